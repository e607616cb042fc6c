//! Running a workload: every CPU does its operations, and what it sees is held against the states of the slots and the ledger.
//!
//! `places` says where it works; the operations are in `mapping` and `single` (what is mapped changes), `shaping` (it does not) and `looking`.

mod looking;
mod mapping;
mod places;
mod shaping;
mod single;

use crate::op::Op;
use crate::platform::{Platform, Touch};
use crate::slots::Slots;
use crate::space::{Space, said};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use flagstone_host::Grace;
use flagstone_pgtable::Error;
use places::slots_of;

/// What a workload did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Operations.
    pub ops: u64,
    /// Accesses that were allowed.
    pub allowed: u64,
    /// Accesses that were refused.
    pub refused: u64,
    /// Accesses and lookups whose outcome the books knew exactly.
    pub exact: u64,
}

#[derive(Debug, Default)]
struct Counts {
    ops: AtomicU64,
    allowed: AtomicU64,
    refused: AtomicU64,
    exact: AtomicU64,
}

fn add(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

/// A workload under way.
struct Work<'p, P: Platform> {
    space: Space<'p, P>,
    slots: Slots,
    counts: Counts,
}

impl<P: Platform> Work<'_, P> {
    fn wrong(&self, text: alloc::string::String) {
        self.space.findings.add(text);
    }

    /// That an error is one that may be.
    fn expect(&self, result: &Result<(), Error>, may_be: impl Fn(&Error) -> bool) {
        if let Err(error) = result
            && !may_be(error)
        {
            self.wrong(said("an operation", error));
        }
    }

    fn perform(&self, op: Op) {
        let region = |region: u8| {
            let (first, count) = slots_of(region);
            (first, count, self.region_range(region))
        };
        match op {
            Op::Map(run, access) => self.map(run, access),
            Op::MapHuge(region, access) => self.map_region(region, access, false),
            Op::Fill(region, access) => self.map_region(region, access, true),
            Op::Unmap(run, tables) => {
                let (first, count) = (run.first.into(), run.count.into());
                self.unmap(first, count, self.range(run), tables);
            }
            Op::UnmapRegion(n, tables) => {
                let (first, count, range) = region(n);
                self.unmap(first, count, range, tables);
            }
            Op::UnmapBack(run) => self.unmap_back(run),
            Op::MapOne(slot, access) => self.map_one(slot.into(), access),
            Op::UnmapOne(slot) => self.unmap_one(slot.into()),
            Op::ProtectOne(slot, access) => self.protect_one(slot.into(), access),
            Op::Physical(slot) => self.physical(slot.into()),
            Op::Protect(run, access) => {
                let (first, count) = (run.first.into(), run.count.into());
                self.protect(first, count, self.range(run), access);
            }
            Op::ProtectRegion(n, access) => {
                let (first, count, range) = region(n);
                self.protect(first, count, range, access);
            }
            Op::Age(run) => {
                let ops = self.space.ops();
                let result = ops.test_and_clear_young(self.range(run), |_, _, _| ());
                self.expect(&result.map(|_| ()), |error| {
                    matches!(error, Error::CutsHuge { .. })
                });
            }
            Op::Clean(run) => self.clean(run),
            Op::Split(region) => self.split(region),
            Op::Collapse(region, in_place) => self.collapse(region, in_place),
            Op::Retract(region) => self.retract(region),
            Op::Replace(slot) => self.replace(slot.into()),
            Op::FreeTables => {
                for range in self.everything() {
                    let result = self
                        .space
                        .gathered(|ops, gather| ops.free_tables(range, gather));
                    self.expect(&result, |_| false);
                }
            }
            Op::Lookup(slot) => self.lookup(slot.into()),
            Op::Walk => self.walk(),
            Op::Read(slot) => self.touch(slot.into(), Touch::Read),
            Op::Write(slot) => {
                let word = self.space.new_word();
                self.touch(slot.into(), Touch::Write(word));
            }
            Op::Exec(slot) => self.touch(slot.into(), Touch::Exec),
            Op::Switch => {
                self.space.leave();
                self.space.enter();
            }
            Op::Poll => {
                self.space.host().poll();
            }
        }
        add(&self.counts.ops);
    }
}

/// Runs a workload on a platform, CPU by CPU side by side, and looks at everything that is left. As many CPUs as the platform has take part. `None` if there is no memory for a page table.
///
/// # Panics
/// If something is wrong.
pub fn run_workload<P: Platform>(platform: &P, workload: &[Vec<Op>]) -> Option<Tally> {
    let cpus = workload.len().min(platform.cpus());
    let ops: usize = workload.iter().map(Vec::len).sum();
    let work = Work {
        space: Space::new(platform, ops * 6 + 16)?,
        slots: Slots::new(),
        counts: Counts::default(),
    };
    work.space.run(cpus, &|cpu| {
        for op in &workload[cpu] {
            if work.space.findings.any() {
                break;
            }
            work.perform(*op);
        }
    });
    work.check_states();
    let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let tally = Tally {
        ops: count(&work.counts.ops),
        allowed: count(&work.counts.allowed),
        refused: count(&work.counts.refused),
        exact: count(&work.counts.exact),
    };
    // Only leaves were mapped.
    assert_eq!(work.space.absent.load(Ordering::Relaxed), 0);
    let everything = work.everything();
    work.space.end(&everything);
    Some(tally)
}
