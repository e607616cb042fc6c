//! `flagstone bench`: experiments, each one command with tables on standard output and every sample as JSON.
//!
//! ```text
//!   contestants   glibc, the rivals that are installed, Flagstone: each a library to preload
//!   rounds        every round gives every contestant one turn at every part: raw samples
//!   statistics    minimum, median, geometric mean
//!   table         80 columns                 report   JSON
//!   worker        what runs under a contestant, in a process of its own
//!   inside        what runs in one process, by `flagstone-bench`: one subject, in a process of its own
//!   fastpath, contention, programs, layouts, randomisation, pgtable, tlb   the experiments
//!   published     the published figures that are printed beside ours
//! ```
//!
//! A contestant is a malloc as a program sees it, preloaded. A subject is what preloading can not show: a rival that is linked in,
//! an object cache whose class is known, a form of arrays, a stage of the growth path, an order of free lists.

mod contention;
mod contestants;
mod fastpath;
pub(crate) mod inside;
mod kernel_caches;
mod layouts;
mod pgtable;
mod programs;
mod published;
mod randomisation;
mod report;
mod rounds;
mod statistics;
pub(crate) mod table;
mod tlb;
pub(crate) mod worker;

use crate::args::{Experiment, Plan};
use anyhow::{Context, Result, bail};
use contestants::{Contestant, Field};
use report::Report;
use rounds::{Part, Results};

/// Runs one experiment and prints its tables.
pub(crate) fn bench(experiment: &Experiment) -> Result<()> {
    match experiment {
        Experiment::Fastpath(plan) => fastpath::fastpath(plan),
        Experiment::Contention(plan) => contention::contention(plan),
        Experiment::Layouts(plan) => layouts::layouts(plan),
        Experiment::Randomisation(plan) => randomisation::randomisation(plan),
        Experiment::Programs(plan) => programs::programs(plan),
        Experiment::Pgtable(plan) => pgtable::pgtable(plan),
        Experiment::Tlb(plan) => tlb::tlb(plan),
    }
}

/// The parts that `--only` leaves of an experiment.
fn chosen<'a, T>(
    plan: &Plan,
    all: &'a [T],
    name: impl Fn(&T) -> &'static str,
) -> Result<Vec<&'a T>> {
    if let Some(unknown) = plan
        .only
        .iter()
        .find(|only| all.iter().all(|part| name(part) != *only))
    {
        let names: Vec<_> = all.iter().map(name).collect();
        bail!(
            "--only {unknown}: no such part; there are: {}",
            names.join(", ")
        );
    }
    Ok(all
        .iter()
        .filter(|part| plan.only.is_empty() || plan.only.iter().any(|only| name(part) == only))
        .collect())
}

/// Runs workers for `parts` under every contestant.
fn measure_workers(plan: &Plan, field: &Field, parts: &[Part]) -> Result<Results> {
    rounds::interleave(
        plan.rounds,
        parts,
        &field.contestants,
        |part, contestant| worker::ask(contestant, part.name),
    )
}

/// Those who took part in some parts of an experiment, and their samples.
type Measured<'a> = (&'a Field, &'a Results);

/// Writes the samples, if a file was named, and says what was not measured.
fn finish(plan: &Plan, experiment: &str, measured: &[Measured<'_>], units: &str) -> Result<()> {
    let failures = say_what_is_missing(measured);
    if let Some(path) = &plan.json {
        let report = Report::new(experiment, plan, measured, units);
        let text = serde_json::to_string_pretty(&report)? + "\n";
        std::fs::write(path, text).with_context(|| path.display().to_string())?;
        println!("samples: {}", path.display());
    }
    failures
}

/// Prints who was not measured, and what failed.
///
/// # Errors
/// Something failed.
fn say_what_is_missing(measured: &[Measured<'_>]) -> Result<()> {
    for absent in measured.iter().flat_map(|(field, _)| &field.absent) {
        println!("not measured: {}: {}", absent.name, absent.reason);
    }
    let mut failures = 0;
    for failure in measured.iter().flat_map(|(_, results)| &results.failures) {
        failures += 1;
        println!(
            "failed: {} under {}: {}",
            failure.part, failure.contestant, failure.reason
        );
    }
    if failures > 0 {
        bail!("{failures} of the measurements failed");
    }
    Ok(())
}

/// Names of the contestants, as the heads of columns.
fn heads(contestants: &[Contestant]) -> impl Iterator<Item = String> {
    contestants.iter().map(|contestant| contestant.name.clone())
}
