//! `bench randomisation`: free lists in random order beside free lists in order, in both forms of cache.

use super::inside::{self, Inside, Ratio, by_size};
use super::published::{self, PUBLISHED, Randomisation};
use super::rounds::Part;
use super::table::Table;
use super::{chosen, finish};
use crate::args::Plan;
use anyhow::Result;
use flagstone_bench::{BATCH_SIZES, Job};

const JOBS: &[Job] = &[Job::OrderFresh, Job::OrderAgain, Job::OrderWritten];
const PARTS: &[Part] = &[
    Part { name: "fresh" },
    Part { name: "again" },
    Part { name: "written" },
];

const RATIOS: &[Ratio] = &[
    Ratio {
        head: "array ratio",
        of: "array random",
        by: &["array"],
    },
    Ratio {
        head: "list ratio",
        of: "list random",
        by: &["list"],
    },
];

/// Measures and prints.
pub(crate) fn randomisation(plan: &Plan) -> Result<()> {
    let parts = chosen(plan, PARTS, |part| part.name)?;
    let jobs: Vec<Job> = JOBS
        .iter()
        .filter(|job| parts.iter().any(|part| part.name == job.name()))
        .copied()
        .collect();
    let orders = inside::measure(plan, &jobs)?;
    println!(
        "Nanoseconds, minimum/median of {} rounds; a ratio is random by in order.",
        plan.rounds
    );
    println!("Wanted: a geometric mean of at most 1.04 for the array.\n");
    let n = plan.objects;
    for job in &jobs {
        let kind = job.name();
        let title = match job {
            Job::OrderFresh => format!("{n} objects of new slabs allocated, then freed: a pair"),
            Job::OrderAgain => format!("{n} objects allocated again, then freed: a pair"),
            _ => format!("{n} objects of new slabs allocated, written to, then freed: a pair"),
        };
        let rows = by_size(BATCH_SIZES, kind, "both");
        println!("{}", orders.table(&title, "bytes", &rows, RATIOS));
        if *job == Job::OrderAgain {
            let rows = by_size(BATCH_SIZES, kind, "pair");
            println!(
                "{}",
                orders.table("One object allocated and freed", "bytes", &rows, RATIOS)
            );
        }
    }
    let kind = jobs.first().map_or("fresh", |job| job.name());
    let forms = [
        (
            "array",
            "array random",
            &PUBLISHED.randomisation_array_cache_cycles,
        ),
        (
            "list",
            "list random",
            &PUBLISHED.randomisation_in_object_list_cycles,
        ),
    ];
    for (ordered, random, theirs) in forms {
        println!(
            "{}",
            beside_published(&orders, kind, ordered, random, theirs)
        );
    }
    let units = "nanoseconds or cycles per operation";
    finish(
        plan,
        "randomisation",
        &[(&orders.field, &orders.results)],
        units,
    )
}

/// Cycles of one form with and without, beside the published.
fn beside_published(
    orders: &Inside,
    kind: &str,
    ordered: &str,
    random: &str,
    theirs: &Randomisation,
) -> Table {
    let heads = [
        "bytes",
        ordered,
        random,
        "published",
        "random",
        "published pair",
        "random",
    ];
    let title = format!("Cycles of an allocation/a free, median of `{kind}`");
    let mut table = Table::new(title, heads.map(String::from));
    for &size in BATCH_SIZES {
        let own = |name| orders.cycles(&format!("{kind}/{size}"), name);
        let pair = |rows: &[(usize, u64)]| {
            let row = rows.iter().find(|row| row.0 == size);
            row.map_or_else(|| "-".into(), |row| row.1.to_string())
        };
        table.row([
            size.to_string(),
            own(ordered),
            own(random),
            published::cell(&theirs.before, size),
            published::cell(&theirs.after, size),
            pair(&theirs.pair_before),
            pair(&theirs.pair_after),
        ]);
    }
    table
}
