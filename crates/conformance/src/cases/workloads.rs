//! Random workloads as cases.

use super::Outcome;
use crate::op::{Mix, workload};
use crate::platform::Platform;
use crate::workload::run_workload;

/// A workload that is drawn from the platform's own random numbers.
pub(super) fn drawn<P: Platform>(p: &P, mix: Mix, cpus: usize, each: usize) -> Outcome {
    let ops = workload(p.random(), mix, cpus, each);
    if run_workload(p, &ops).is_none() {
        return Outcome::Skipped("no memory for a page table");
    }
    p.check_memory();
    Outcome::Passed
}

pub(super) fn all<P: Platform>(p: &P) -> Outcome {
    drawn(p, Mix::All, p.cpus(), 12)
}

pub(super) fn pages<P: Platform>(p: &P) -> Outcome {
    drawn(p, Mix::Pages, p.cpus(), 24)
}
