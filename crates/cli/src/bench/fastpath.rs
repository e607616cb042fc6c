//! `bench fastpath`: malloc and free alone, as a program calls them, and what lies below them.

use super::contestants::Field;
use super::inside::{self, Inside, Ratio, by_size};
use super::published::{self, PUBLISHED};
use super::rounds::{Part, Results};
use super::statistics::geometric_mean;
use super::table::{Table, number};
use super::worker::{BATCH_SIZES, PAIR_SIZES};
use super::{chosen, finish, heads, measure_workers};
use crate::args::Plan;
use anyhow::Result;
use flagstone_bench::Job;

const PARTS: &[Part] = &[
    Part { name: "pair" },
    Part { name: "batch" },
    Part {
        name: "batch-touched",
    },
    Part { name: "ring" },
    Part { name: "larson" },
    Part { name: LINKED },
    Part { name: KNOWN },
];

/// Everybody linked into one program.
const LINKED: &str = "in-process";
/// Object caches and arrays, the class known.
const KNOWN: &str = "class-known";
const LINKED_JOBS: &[Job] = &[Job::Pair, Job::Batch, Job::Touched];

const TO_RIVALS: Ratio = Ratio {
    head: "ratio",
    of: "flagstone",
    by: &["glibc", "jemalloc", "mimalloc", "snmalloc"],
};

/// Measures and prints.
pub(crate) fn fastpath(plan: &Plan) -> Result<()> {
    let parts: Vec<Part> = chosen(plan, PARTS, |part| part.name)?
        .into_iter()
        .copied()
        .collect();
    let has = |name| parts.iter().any(|part| part.name == name);
    let preloaded: Vec<Part> = parts
        .iter()
        .filter(|part| ![LINKED, KNOWN].contains(&part.name))
        .copied()
        .collect();
    let by_preloading = if preloaded.is_empty() {
        None
    } else {
        let subjects: Vec<_> = [Job::Pair, Job::Known]
            .iter()
            .flat_map(|job| job.subjects())
            .copied()
            .collect();
        let field = Field::gather_beside(plan, &subjects)?;
        let results = measure_workers(plan, &field, &preloaded)?;
        Some((field, results))
    };
    let linked = has(LINKED)
        .then(|| inside::measure(plan, LINKED_JOBS))
        .transpose()?;
    let known = has(KNOWN)
        .then(|| inside::measure(plan, &[Job::Known]))
        .transpose()?;

    println!(
        "Nanoseconds per operation, minimum/median of {} rounds; `ratio` is Flagstone's",
        plan.rounds
    );
    println!("median as a multiple of the best rival's. Published: cycles in a kernel.\n");
    if let Some((field, results)) = &by_preloading {
        print_preloaded(&preloaded, field, results);
    }
    if let Some(linked) = &linked {
        print_linked(linked, plan.objects);
    }
    if let Some(known) = &known {
        print_known(known, plan.objects);
    }
    let measured: Vec<_> = by_preloading
        .iter()
        .map(|(field, results)| (field, results))
        .chain(
            linked
                .iter()
                .chain(&known)
                .map(|inside| (&inside.field, &inside.results)),
        )
        .collect();
    finish(plan, "fastpath", &measured, "nanoseconds per operation")
}

fn print_linked(linked: &Inside, objects: u32) {
    println!("Linked into one program, called by pointer; `inlined`: without the call.\n");
    let batch = format!("{objects} objects allocated, then freed: a pair");
    let free = format!("{objects} objects: free alone");
    let touched = format!("{objects} objects allocated, written to, then freed: a pair");
    let tables = [
        (
            "One object allocated and freed",
            PAIR_SIZES,
            "linked-pair",
            "",
        ),
        (&batch, BATCH_SIZES, "linked-batch", "both"),
        (&free, BATCH_SIZES, "linked-batch", "free"),
        (&touched, BATCH_SIZES, "linked-touched", "both"),
    ];
    for (title, sizes, kind, what) in tables {
        let rows = by_size(sizes, kind, what);
        println!("{}", linked.table(title, "bytes", &rows, &[TO_RIVALS]));
    }
}

fn print_known(known: &Inside, objects: u32) {
    println!("The class known, by form of the per-CPU arrays.\n");
    let rows = [
        ("thread-local array", "known/floor"),
        ("the same, called", "known/floor-called"),
        ("array of the form", "known/array"),
        ("object cache", "known/cache"),
        ("the same, called", "known/cache-called"),
        ("cache by thread-local", "known/cache-by-floor"),
        ("called by called", "known/called-by-called"),
    ]
    .map(|(label, metric)| (label.to_owned(), metric.to_owned()));
    let title = "One object of 64 bytes allocated and freed; the last two rows are ratios";
    println!("{}", known.rows(title, "", &rows, &[]));
    for (title, what) in [
        (
            format!("{objects} objects allocated, then freed: a pair"),
            "both",
        ),
        (format!("{objects} objects: free alone"), "free"),
    ] {
        let rows = by_size(BATCH_SIZES, "known", what);
        println!("{}", known.table(&title, "bytes", &rows, &[]));
    }
}

fn print_preloaded(parts: &[Part], field: &Field, results: &Results) {
    for part in parts {
        match part.name {
            "pair" => {
                let rows: Vec<_> = PAIR_SIZES
                    .iter()
                    .map(|size| (size.to_string(), format!("pair/{size}")))
                    .collect();
                println!(
                    "{}",
                    table(
                        "One object allocated and freed",
                        "bytes",
                        &rows,
                        None,
                        field,
                        results
                    )
                );
                let ns = &PUBLISHED.fastpath_ns;
                println!(
                    "published: {} ns before, {} ns after, {} ns with free objects in a list\n",
                    ns.pair_before, ns.pair_after, ns.rival_in_object_list
                );
            }
            "batch" => {
                println!(
                    "{}",
                    batch_table(
                        "10,000 objects allocated, then freed: a pair",
                        "batch",
                        "both",
                        field,
                        results
                    )
                );
                println!(
                    "{}",
                    batch_table(
                        "10,000 objects: free alone",
                        "batch",
                        "free",
                        field,
                        results
                    )
                );
            }
            "batch-touched" => {
                let title = "10,000 objects allocated and written to, then freed: a pair";
                println!("{}", batch_table(title, "touched", "both", field, results));
            }
            "ring" => {
                let rows = ["64", "mixed"].map(|size| (size.to_owned(), format!("ring/{size}")));
                println!(
                    "{}",
                    table(
                        "Allocated by one thread, freed by another",
                        "bytes",
                        &rows,
                        None,
                        field,
                        results
                    )
                );
            }
            _ => {
                let rows = [("larson".to_owned(), "larson".to_owned())];
                println!(
                    "{}",
                    table(
                        "Objects replaced by all threads",
                        "",
                        &rows,
                        None,
                        field,
                        results
                    )
                );
            }
        }
    }
}

fn batch_table(title: &str, metric: &str, what: &str, field: &Field, results: &Results) -> Table {
    let rows: Vec<_> = BATCH_SIZES
        .iter()
        .map(|size| (size.to_string(), format!("{metric}/{size}/{what}")))
        .collect();
    let cycles = &PUBLISHED.randomisation_array_cache_cycles.before;
    let column: Vec<_> = BATCH_SIZES
        .iter()
        .map(|&size| published::cell(cycles, size))
        .collect();
    table(
        title,
        "bytes",
        &rows,
        Some(("published", &column)),
        field,
        results,
    )
}

/// A table with one row per metric, a column per contestant and the ratio; with several rows, their geometric means.
pub(super) fn table(
    title: &str,
    head: &str,
    rows: &[(String, String)],
    extra: Option<(&str, &[String])>,
    field: &Field,
    results: &Results,
) -> Table {
    let flagstone = field.flagstone();
    let mut columns = vec![head.to_owned()];
    columns.extend(heads(&field.contestants));
    columns.extend(flagstone.map(|_| "ratio".to_owned()));
    columns.extend(extra.map(|(name, _)| name.to_owned()));
    let mut table = Table::new(title, columns);
    let places = || 0..field.contestants.len();
    for (place, (label, metric)) in rows.iter().enumerate() {
        let mut cells = vec![label.clone()];
        cells.extend(places().map(|who| {
            let (minimum, median) = (results.minimum(metric, who), results.median(metric, who));
            if median.is_some() {
                format!("{}/{}", number(minimum), number(median))
            } else {
                "-".into()
            }
        }));
        cells.extend(
            flagstone.map(|who| number(results.ratio_to_best(metric, who, field.rivals()))),
        );
        cells.extend(extra.map(|(_, cells)| cells[place].clone()));
        table.row(cells);
    }
    if rows.len() > 1 {
        let mean = |who: usize| {
            let medians: Option<Vec<f64>> = rows
                .iter()
                .map(|(_, metric)| results.median(metric, who))
                .collect();
            medians.and_then(|medians| geometric_mean(&medians))
        };
        let mut cells = vec!["geom. mean".to_owned()];
        cells.extend(places().map(|who| number(mean(who))));
        let best = field.rivals().filter_map(mean).min_by(f64::total_cmp);
        cells
            .extend(flagstone.map(|who| number(mean(who).zip(best).map(|(own, best)| own / best))));
        table.row(cells);
    }
    table
}
