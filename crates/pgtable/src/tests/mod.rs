//! Tests of whole page tables on a machine without a unit.

mod concurrent;

mod host;
mod huge;
mod kernel;
mod lent;
mod mapping;
mod model;
mod single;

use crate::format::{Access, Format, Leaf, Marks};
use crate::shadow::Mapping;
use crate::{NotOwned, Ops, Owner, PageTable, Params, Reach, Shared, Taken, VirtRange};
use flagstone_frames::Frames;
use flagstone_host::MmuCaps;
use flagstone_types::{Gfp, PhysAddr};
use host::{TestHost, Unit, machine};
use std::vec::Vec;

pub(crate) const RW: Access = Access::READ.union(Access::WRITE).union(Access::USER);
pub(crate) const RO: Access = Access::READ.union(Access::USER);

pub(crate) fn leaf(at: u64, access: Access) -> Leaf {
    Leaf::new(PhysAddr(at), access, Mapping::Ordinary)
}

/// An owner that writes down what it gets.
#[derive(Debug, Default)]
pub(crate) struct Books(pub(crate) Vec<Taken>);

// SAFETY: O1: nothing is owned.
unsafe impl Owner for Books {
    fn release(&mut self, taken: Taken) {
        self.0.push(taken);
    }
}

pub(crate) fn params() -> Params {
    Params {
        reach: Reach::Whole,
        gfp: Gfp::NOWAIT,
        ..Params::default()
    }
}

/// Runs `test` with an empty page table on a machine with this unit, used by CPU 0, and checks that it leaves no page behind.
pub(crate) fn with_table<F: Format, const SHIFT: u32>(
    caps: MmuCaps,
    test: impl FnOnce(&mut PageTable<'_, TestHost<'_, SHIFT>, F>, &Unit),
) {
    let machine = machine::<SHIFT>(if SHIFT == 12 { 512 } else { 192 });
    let unit = Unit::new(caps);
    let host = TestHost {
        machine: &machine,
        unit: &unit,
    };
    let frames = Frames::new(host).unwrap();
    frames.set_min_free(Some(0));
    frames.drain_page_lists();
    let free = frames.free_count(flagstone_types::Nid(0));
    let mut table = PageTable::<_, F>::new(&frames, params()).unwrap();
    table.enter(flagstone_types::CpuId(0));
    test(&mut table, &unit);
    // SAFETY: T6: there is no unit.
    unsafe { table.leave(flagstone_types::CpuId(0)) };
    drop(table);
    frames.drain_page_lists();
    assert_eq!(
        frames.free_count(flagstone_types::Nid(0)),
        free,
        "pages were lost"
    );
    frames.validate().unwrap();
}

/// Unmaps a range and says what came out.
pub(crate) fn unmap<F: Format, const SHIFT: u32>(
    ops: &Ops<'_, '_, TestHost<'_, SHIFT>, F, Shared>,
    range: VirtRange,
) -> Vec<Taken> {
    let mut books = Books::default();
    let mut gather = ops.gather(&mut books);
    ops.unmap(range, &mut gather).unwrap();
    gather.finish();
    books.0
}

pub(crate) use host::CAPS as ALL;
pub(crate) type NoOwner = NotOwned;
