//! `flagstone bench`: experiments, each one command with tables on standard output and every sample as JSON.
//!
//! ```text
//!   contestants   glibc, the rivals that are installed, Flagstone: each a library to preload
//!   rounds        every round gives every contestant one turn at every part: raw samples
//!   statistics    minimum, median, geometric mean
//!   table         80 columns                 report   JSON
//!   worker        what runs under a contestant, in a process of its own
//!   fastpath, contention, programs, layouts  the experiments; layouts runs nothing, it works the rule out
//!   published     the published figures that are printed beside ours
//! ```
//!
//! A rival that is a crate, the object-cache interface and the forms of `CpuCache` are measured in one process,
//! by the benchmarks of the crates they belong to; what is here sees a malloc as a program sees it.

mod contention;
mod contestants;
mod fastpath;
mod kernel_caches;
mod layouts;
mod programs;
mod published;
mod report;
mod rounds;
mod statistics;
mod table;
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
        Experiment::Layouts { json } => layouts::layouts(json.as_deref()),
        Experiment::Programs(plan) => programs::programs(plan),
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

/// Writes the samples, if a file was named, and says what was not measured.
fn finish(
    plan: &Plan,
    experiment: &str,
    field: &Field,
    results: &Results,
    units: &str,
) -> Result<()> {
    for absent in &field.absent {
        println!("not measured: {}: {}", absent.name, absent.reason);
    }
    for failure in &results.failures {
        println!(
            "failed: {} under {}: {}",
            failure.part, failure.contestant, failure.reason
        );
    }
    if let Some(path) = &plan.json {
        let report = Report::new(experiment, plan, field, results, units);
        let text = serde_json::to_string_pretty(&report)? + "\n";
        std::fs::write(path, text).with_context(|| path.display().to_string())?;
        println!("samples: {}", path.display());
    }
    if !results.failures.is_empty() {
        bail!("{} of the measurements failed", results.failures.len());
    }
    Ok(())
}

/// Names of the contestants, as the heads of columns.
fn heads(contestants: &[Contestant]) -> impl Iterator<Item = String> {
    contestants.iter().map(|contestant| contestant.name.clone())
}
