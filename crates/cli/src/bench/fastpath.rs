//! `bench fastpath`: malloc and free alone, as a program calls them.

use super::contestants::Field;
use super::published::{self, PUBLISHED};
use super::rounds::{Part, Results};
use super::statistics::geometric_mean;
use super::table::{Table, number};
use super::worker::{BATCH_SIZES, PAIR_SIZES};
use super::{chosen, finish, heads, measure_workers};
use crate::args::Plan;
use anyhow::Result;

const PARTS: &[Part] = &[
    Part { name: "pair" },
    Part { name: "batch" },
    Part {
        name: "batch-touched",
    },
    Part { name: "ring" },
    Part { name: "larson" },
];

/// Measures and prints.
pub(crate) fn fastpath(plan: &Plan) -> Result<()> {
    let parts: Vec<Part> = chosen(plan, PARTS, |part| part.name)?
        .into_iter()
        .copied()
        .collect();
    let field = Field::gather(plan)?;
    let results = measure_workers(plan, &field, &parts)?;
    println!(
        "Nanoseconds per operation, minimum/median of {} rounds; `ratio` is Flagstone's median",
        plan.rounds
    );
    println!("as a multiple of the best rival's. Published columns: cycles in a kernel.\n");
    for part in &parts {
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
                        &field,
                        &results
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
                        &field,
                        &results
                    )
                );
                println!(
                    "{}",
                    batch_table(
                        "10,000 objects: free alone",
                        "batch",
                        "free",
                        &field,
                        &results
                    )
                );
            }
            "batch-touched" => {
                let title = "10,000 objects allocated and written to, then freed: a pair";
                println!(
                    "{}",
                    batch_table(title, "touched", "both", &field, &results)
                );
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
                        &field,
                        &results
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
                        &field,
                        &results
                    )
                );
            }
        }
    }
    finish(
        plan,
        "fastpath",
        &field,
        &results,
        "nanoseconds per operation",
    )
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
