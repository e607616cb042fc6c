//! Where a workload works: regions, each the reach of one table, and the slots in them.

use super::Work;
use crate::op::{GROUPS, Run};
use crate::platform::Platform;
use crate::slots::SLOTS;
use crate::space::{Space, reach};
use flagstone_pgtable::VirtRange;
use flagstone_pgtable::format::{Format, Level};
use flagstone_types::VirtAddr;

/// Slots of a region: first and how many.
pub(super) const fn slots_of(region: u8) -> (usize, usize) {
    match region {
        0 => (0, 3),
        1 => (3, 3),
        2 => (6, 3),
        3 => (9, 2),
        _ => (11, 2),
    }
}

/// The region of a slot.
pub(super) const fn region_of(slot: usize) -> u8 {
    match slot {
        0..=2 => 0,
        3..=5 => 1,
        6..=8 => 2,
        9 | 10 => 3,
        _ => 4,
    }
}

/// The pages of one leaf of the second level, in pages.
pub(super) fn table_pages<P: Platform>() -> usize {
    reach::<P::Format>(Level::PMD) / reach::<P::Format>(Level::PTE)
}

impl<P: Platform> Work<'_, P> {
    pub(super) fn page() -> usize {
        Space::<P>::page()
    }

    /// The first address of a region.
    pub(super) fn region(&self, region: u8) -> VirtAddr {
        let window = self.space.platform.window().0;
        let top = P::Format::TOP;
        let far = if top > Level::PUD { top } else { Level::PUD };
        VirtAddr(match region {
            0..=2 => window + region as usize * reach::<P::Format>(Level::PMD),
            3 => window + reach::<P::Format>(far),
            _ => window + 2 * reach::<P::Format>(Level::PUD),
        })
    }

    /// Whether a region is mapped by leaves of the third level.
    pub(super) fn is_large(&self, region: u8) -> bool {
        region == 4 && self.space.table().has_leaf(Level::PUD)
    }

    pub(super) fn region_range(&self, region: u8) -> VirtRange {
        let level = if region == 4 { Level::PUD } else { Level::PMD };
        VirtRange::new(self.region(region).0, reach::<P::Format>(level))
    }

    /// Which page of its region a slot is.
    pub(super) fn page_of(slot: usize) -> usize {
        match region_of(slot) {
            0 => table_pages::<P>() - 3 + slot,
            2 => table_pages::<P>() / 2 + slot - 6,
            region => slot - slots_of(region).0,
        }
    }

    pub(super) fn va(&self, slot: usize) -> VirtAddr {
        let offset = Self::page_of(slot) * Self::page();
        VirtAddr(self.region(region_of(slot)).0 + offset)
    }

    pub(super) fn range(&self, run: Run) -> VirtRange {
        Space::<P>::pages(self.va(run.first.into()), run.count.into())
    }

    /// Everything that a workload maps.
    pub(super) fn everything(&self) -> [VirtRange; 3] {
        let near = reach::<P::Format>(Level::PMD) * 3;
        [
            VirtRange::new(self.region(0).0, near),
            self.region_range(3),
            self.region_range(4),
        ]
    }
}

const _: () = {
    let mut slots = 0;
    let mut n = 0;
    while n < GROUPS.len() {
        slots += GROUPS[n].1;
        n += 1;
    }
    assert!(slots == SLOTS);
};
