//! `bench contention`: every CPU allocates at once, then every CPU frees, size by size.
//!
//! The published experiment three times: as a program meets it, through every contestant's `malloc`; on object caches with
//! the published improvements of the growth path switched on one after another; and the same stages on eight simulated CPUs,
//! where what is counted are locks taken and steps under them.

use super::contestants::Field;
use super::fastpath::table;
use super::inside::{self, Inside, Ratio, by_size};
use super::published::{self, PUBLISHED};
use super::rounds::{Part, Results};
use super::table::{Table, number};
use super::worker::CONTENTION_SIZES;
use super::{chosen, finish, measure_workers};
use crate::args::Plan;
use anyhow::Result;
use flagstone_bench::{Job, SHORT_SIZES, STEP_SIZES};

const PRELOADED: Part = Part { name: "contention" };
const PARTS: &[Part] = &[
    PRELOADED,
    Part { name: "stages" },
    Part { name: "exchange" },
    Part { name: "steps" },
];

const ALL: Ratio = Ratio {
    head: "ratio",
    of: "+release",
    by: &["before"],
};

/// Measures and prints.
pub(crate) fn contention(plan: &Plan) -> Result<()> {
    let parts = chosen(plan, PARTS, |part| part.name)?;
    let has = |name| parts.iter().any(|part| part.name == name);
    let by_preloading = if has(PRELOADED.name) {
        let field = Field::gather_beside(plan, Job::Stages.subjects())?;
        let results = measure_workers(plan, &field, &[PRELOADED])?;
        Some((field, results))
    } else {
        None
    };
    let run = |job: Job| {
        has(job.name())
            .then(|| inside::measure(plan, &[job]))
            .transpose()
    };
    let stages = run(Job::Stages)?;
    let exchange = run(Job::Exchange)?;
    let steps = run(Job::Steps)?;

    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    println!(
        "{cpus} CPUs at once; nanoseconds per operation, minimum/median of {} rounds.",
        plan.rounds
    );
    println!("Published: cycles, before the growth path was changed and after.\n");
    if let Some((field, results)) = &by_preloading {
        print_preloaded(field, results);
    }
    if let Some(stages) = &stages {
        print_stages(stages, plan.objects);
    }
    if let Some(exchange) = &exchange {
        let title = "Allocated on one CPU, freed on another, nanoseconds from object to object";
        let rows = by_size(SHORT_SIZES, "exchange", "");
        println!("{}", exchange.table(title, "bytes", &rows, &[ALL]));
    }
    if let Some(steps) = &steps {
        print_steps(steps);
    }
    let measured: Vec<_> = by_preloading
        .iter()
        .map(|(field, results)| (field, results))
        .chain(
            [&stages, &exchange, &steps]
                .into_iter()
                .flatten()
                .map(|inside| (&inside.field, &inside.results)),
        )
        .collect();
    let units = "nanoseconds or cycles per operation; of steps/…, events per 1,000 operations";
    finish(plan, "contention", &measured, units)
}

fn print_preloaded(field: &Field, results: &Results) {
    let stages = &PUBLISHED.contention_cycles.stages;
    for (what, title) in [
        ("alloc", "10,000 allocations on each CPU"),
        ("free", "10,000 frees on each CPU"),
    ] {
        let rows: Vec<_> = CONTENTION_SIZES
            .iter()
            .map(|size| (size.to_string(), format!("contention/{size}/{what}")))
            .collect();
        let change: Vec<_> = CONTENTION_SIZES
            .iter()
            .map(|&size| {
                let of = |rows: &published::Cycles| {
                    rows.iter()
                        .find(|row| row.0 == size)
                        .map(|row| if what == "alloc" { row.1 } else { row.2 })
                };
                match (
                    stages.first().and_then(|s| of(&s.rows)),
                    stages.last().and_then(|s| of(&s.rows)),
                ) {
                    (Some(before), Some(after)) => format!("{before}>{after}"),
                    _ => "-".into(),
                }
            })
            .collect();
        println!(
            "{}",
            table(
                title,
                "bytes",
                &rows,
                Some(("published", &change)),
                field,
                results
            )
        );
    }
}

fn print_stages(stages: &Inside, objects: u32) {
    println!("Object caches with published arrays; each stage adds to the one before:");
    println!("  +colour   the next colour is taken without the node's lock");
    println!("  +refill   a new slab gives the CPU its objects before it is linked");
    println!("  +look     free objects are looked for without the lock");
    println!("  +release  slabs to give back are chosen once after a batch of frees");
    println!("`shipped`: all, and malloc's arrays, which grow. `ratio`: +release by before.");
    println!("`tid-list`: all, and arrays that are lists through the objects;");
    println!("`tid-list+cpu`: the same over slabs for each CPU, the rival form.\n");
    for (what, title) in [("alloc", "allocations"), ("free", "frees")] {
        let title = format!("{objects} {title} on each CPU, nanoseconds");
        let rows = by_size(SHORT_SIZES, "stages", what);
        println!("{}", stages.table(&title, "bytes", &rows, &[ALL]));
    }
    let names: Vec<&str> = stages
        .field
        .contestants
        .iter()
        .map(|c| c.name.as_str())
        .collect();
    let mut table = Table::new(
        "Cycles of an allocation/a free, median; what was published below it",
        std::iter::once("bytes")
            .chain(names.iter().copied())
            .map(String::from),
    );
    let published = &PUBLISHED.contention_cycles.stages;
    for &size in SHORT_SIZES {
        let own = names
            .iter()
            .map(|name| stages.cycles(&format!("stages/{size}"), name));
        table.row(std::iter::once(size.to_string()).chain(own));
        let order = Job::Stages.subjects();
        let theirs = names.iter().map(|name| {
            let stage = order.iter().position(|subject| subject == name);
            stage
                .and_then(|stage| published.get(stage))
                .map_or_else(|| "-".into(), |stage| published::cell(&stage.rows, size))
        });
        table.row(std::iter::once("  published".into()).chain(theirs));
    }
    println!("{table}");
}

fn print_steps(steps: &Inside) {
    println!("Eight simulated CPUs, pages of 4 KiB, per 1,000 operations; medians.\n");
    for (what, title) in [
        ("locks", "Node locks taken"),
        ("steps", "Steps under node locks"),
        ("waits", "Node locks waited for"),
        ("all-locks", "Locks of any kind taken"),
        ("slabs", "Slabs made"),
    ] {
        let names = steps.field.contestants.iter().map(|c| c.name.clone());
        let mut table = Table::new(title, std::iter::once("bytes".to_owned()).chain(names));
        for (label, metric) in by_size(STEP_SIZES, "steps", what) {
            let medians =
                (0..steps.field.contestants.len()).map(|who| steps.results.median(&metric, who));
            table.row(std::iter::once(label).chain(medians.map(number)));
        }
        println!("{table}");
    }
}
