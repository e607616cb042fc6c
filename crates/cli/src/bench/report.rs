//! The JSON form of an experiment: every sample, and what one needs to know to judge them.

use super::contestants::{Absent, Contestant, Field};
use super::rounds::{Failure, Results};
use super::statistics::{median, minimum};
use crate::args::Plan;
use serde::Serialize;
use std::fs;

/// An experiment as data.
#[derive(Debug, Serialize)]
pub(crate) struct Report<'a> {
    experiment: &'a str,
    version: &'static str,
    rounds: u32,
    machine: Machine,
    contestants: Vec<&'a Contestant>,
    not_measured: Vec<&'a Absent>,
    failures: Vec<&'a Failure>,
    /// What the numbers of each kind of metric count.
    units: &'a str,
    results: Vec<Measured<'a>>,
}

#[derive(Debug, Serialize)]
struct Measured<'a> {
    metric: &'a str,
    contestant: &'a str,
    minimum: Option<f64>,
    median: Option<f64>,
    samples: &'a [f64],
}

/// What was measured on.
#[derive(Debug, Serialize)]
struct Machine {
    processor: String,
    cpus: usize,
    kernel: String,
    /// Variables that change how a malloc works.
    settings: Vec<String>,
}

impl<'a> Report<'a> {
    pub(crate) fn new(
        experiment: &'a str,
        plan: &Plan,
        sets: &[(&'a Field, &'a Results)],
        units: &'a str,
    ) -> Self {
        let mut measured = Vec::new();
        for (field, results) in sets {
            for (metric, all) in results.iter() {
                for (samples, contestant) in all.iter().zip(&field.contestants) {
                    if !samples.is_empty() {
                        measured.push(Measured {
                            metric,
                            contestant: &contestant.name,
                            minimum: minimum(samples),
                            median: median(samples),
                            samples,
                        });
                    }
                }
            }
        }
        let fields = || sets.iter().map(|(field, _)| *field);
        Self {
            experiment,
            version: env!("CARGO_PKG_VERSION"),
            rounds: plan.rounds,
            machine: Machine::this(),
            contestants: fields().flat_map(|field| &field.contestants).collect(),
            not_measured: fields().flat_map(|field| &field.absent).collect(),
            failures: sets
                .iter()
                .flat_map(|(_, results)| &results.failures)
                .collect(),
            units,
            results: measured,
        }
    }
}

impl Machine {
    fn this() -> Self {
        let line = |file: &str| fs::read_to_string(file).unwrap_or_default();
        let processor = line("/proc/cpuinfo")
            .lines()
            .find_map(|line| {
                line.strip_prefix("model name")
                    .and_then(|rest| rest.split_once(": "))
            })
            .map_or_else(String::new, |(_, name)| name.to_owned());
        let settings = std::env::vars()
            .filter(|(name, _)| {
                ["FLAGSTONE_", "MALLOC_", "MIMALLOC_", "TCMALLOC_"]
                    .iter()
                    .any(|prefix| name.starts_with(prefix))
                    || name == "GLIBC_TUNABLES"
            })
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        Self {
            processor,
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: line("/proc/sys/kernel/osrelease").trim().to_owned(),
            settings,
        }
    }
}
