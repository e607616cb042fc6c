//! `bench contention`: every CPU allocates at once, then every CPU frees, size by size.
//!
//! This is the published experiment as a program meets it. What each single improvement of the growth path buys is
//! counted in lock acquisitions and steps under locks, on the test host with more CPUs than this machine has.

use super::contestants::Field;
use super::fastpath::table;
use super::published::{self, PUBLISHED};
use super::rounds::Part;
use super::worker::CONTENTION_SIZES;
use super::{chosen, finish, measure_workers};
use crate::args::Plan;
use anyhow::Result;

const PARTS: &[Part] = &[Part { name: "contention" }];

/// Measures and prints.
pub(crate) fn contention(plan: &Plan) -> Result<()> {
    chosen(plan, PARTS, |part| part.name)?;
    let field = Field::gather(plan)?;
    let results = measure_workers(plan, &field, PARTS)?;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    println!(
        "{cpus} CPUs at once; nanoseconds per operation, minimum/median of {} rounds.",
        plan.rounds
    );
    println!("Published: cycles, before the growth path was changed and after.\n");
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
                &field,
                &results
            )
        );
    }
    finish(
        plan,
        "contention",
        &field,
        &results,
        "nanoseconds per operation",
    )
}
