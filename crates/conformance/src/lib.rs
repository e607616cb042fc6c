//! What page tables must do on a machine with a memory management unit: named cases and random workloads, for any host.
//!
//! ```text
//!   case / workload ──▶ Space ──▶ pgtable ──▶ Host of the platform
//!        │                │
//!        │                └─ ledger: which memory is in the table        Platform: CPUs, accesses through the unit,
//!        └─ slots: what each page must say now                                     memory, what only a model of a unit can tell
//! ```
//!
//! [`cases()`] lists the cases, [`run_case`] runs one on a [`Platform`], [`workload()`] draws operations from a seed and [`run_workload`] does them on
//! many CPUs at once. What is right is known from books of the suite's own (`MODEL.md`), never from the library that is under test. A failure is a panic.
//!
//! The simulator's platform, with a machine for each seed, is the module `sim` behind the feature of that name; the kernel has its own.
//!
//! The suite allocates: it is no part of a core, and runs where there is a heap.
#![no_std]

extern crate alloc;
#[cfg(any(test, feature = "sim"))]
extern crate std;

mod calls;
mod cases;
mod findings;
mod ledger;
mod op;
mod platform;
#[cfg(feature = "sim")]
pub mod sim;
mod slots;
mod space;
mod spin;
mod workload;

pub use cases::{Case, Outcome, cases, run_case};
pub use op::{Draw, Mix, Op, Run, workload};
pub use platform::{Mapped, Platform, RETURN, Refusal, Seen, Table, Touch, Who};
pub use workload::{Tally, run_workload};

/// Draws a workload from a seed and runs it: `each` operations on each of `cpus` CPUs. `None` if there is no memory for a page table.
///
/// # Panics
/// If something is wrong.
pub fn random<P: Platform>(
    seed: u64,
    platform: &P,
    mix: Mix,
    cpus: usize,
    each: usize,
) -> Option<Tally> {
    run_workload(platform, &workload(seed, mix, cpus, each))
}
