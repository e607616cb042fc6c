//! Migrate types of page blocks: which lists serve when a type's own are empty, and the reserve for atomic callers.
//!
//! A free block of at most page-block order is in the list of its page block's type, always (B4). So a request
//! either claims a page block as a whole, if that is mostly free, and all its free blocks move with it, or
//! takes one block and leaves the rest where it was.

use core::sync::atomic::Ordering;

use crate::buddy::{End, is_set_apart, linked};
use crate::page::{PageKind, State};
use crate::zone::{Locked, ZoneState};
use flagstone_host::{Event, Host};
use flagstone_types::{MigrateType, Pfn};

/// Whose lists serve a type that has none left, first choice first (as in Linux).
const fn fallbacks(migrate: MigrateType) -> [MigrateType; 2] {
    match migrate {
        MigrateType::Movable => [MigrateType::Reclaimable, MigrateType::Unmovable],
        MigrateType::Reclaimable => [MigrateType::Unmovable, MigrateType::Movable],
        _ => [MigrateType::Reclaimable, MigrateType::Movable],
    }
}

impl<H: Host> Locked<'_, H> {
    /// Takes a block of `want` for pages of type `migrate` from the lists of other types.
    #[cold]
    #[inline(never)]
    pub(crate) fn take_fallback(&mut self, want: u32, migrate: MigrateType) -> Option<Pfn> {
        let pfn = self.take_claimed(want, migrate).or_else(|| {
            // The smallest block that will do: it disturbs the other type least.
            (want..=H::MAX_ORDER).find_map(|size| {
                fallbacks(migrate).into_iter().find_map(|from| {
                    let pfn = linked(self.lists.free[from.index()][size as usize].head)?;
                    self.carve(pfn, want, from);
                    Some(pfn)
                })
            })
        })?;
        self.zone.host.count(Event::PgmigratetypeFallback, 1);
        Some(pfn)
    }

    /// Claims a page block of another type, the one with the largest free block, and takes from it.
    fn take_claimed(&mut self, want: u32, migrate: MigrateType) -> Option<Pfn> {
        let block = ZoneState::<H>::PAGE_BLOCK_ORDER;
        // A movable page in a foreign block does little harm, so it claims only what is large.
        let least = if migrate == MigrateType::Movable {
            want.max(block / 2)
        } else {
            want
        };
        let mut refused = [false; 2];
        for size in (least..=H::MAX_ORDER).rev() {
            for (from, refused) in fallbacks(migrate).into_iter().zip(&mut refused) {
                let Some(pfn) = linked(self.lists.free[from.index()][size as usize].head) else {
                    continue;
                };
                if size >= block {
                    self.set_block_types(pfn, size, migrate);
                    self.carve(pfn, want, migrate);
                    return Some(pfn);
                }
                if !*refused {
                    let (free, present) = self.count_page_block(pfn);
                    if free * 2 >= present {
                        self.change_page_block(pfn, migrate);
                        return self.take_smallest(want, migrate);
                    }
                    *refused = true;
                }
            }
        }
        None
    }

    /// The blocks that begin in a page block: `each` gets the first frame and the state. Frames
    /// of others may change kind meanwhile, but blocks are cut and joined under this lock only.
    fn for_blocks(&mut self, pfn: Pfn, mut each: impl FnMut(&mut Self, Pfn, State)) {
        let first = ZoneState::<H>::page_block(pfn);
        let mut n = 0;
        while n < ZoneState::<H>::PAGE_BLOCK_PAGES {
            let at = first.add(n);
            let state = self.zone.page(at).state();
            n += if state.kind().is_head() && !state.has(State::RUN) {
                1 << state.order()
            } else {
                1
            };
            each(self, at, state);
        }
    }

    /// How many pages of a page block are free, and how many there are. No free block reaches beyond it.
    fn count_page_block(&mut self, pfn: Pfn) -> (usize, usize) {
        let (mut free, mut absent) = (0, 0);
        self.for_blocks(pfn, |_, _, state| match state.kind() {
            PageKind::Buddy => free += 1 << state.order(),
            PageKind::Absent => absent += 1,
            _ => {}
        });
        (free, ZoneState::<H>::PAGE_BLOCK_PAGES - absent)
    }

    /// Gives a page block another type and moves its free blocks to that type's lists.
    pub(crate) fn change_page_block(&mut self, pfn: Pfn, to: MigrateType) {
        self.set_block_types(pfn, 0, to);
        self.for_blocks(pfn, |zone, at, state| {
            if state.kind() == PageKind::Buddy {
                let touched = zone.unlink(at);
                // Not merely linked: what kept it from merging may have been its type.
                zone.merge(at, state.order(), touched, End::Hot);
            }
        });
    }

    /// After an atomic caller got a block: reserves its page block for such callers, up to 1 % of the zone.
    pub(crate) fn reserve_high_atomic(&mut self, pfn: Pfn, size: u32) {
        let block = ZoneState::<H>::PAGE_BLOCK_PAGES;
        let share = self.zone.managed_pages() / 100;
        let reserved = self.zone.high_atomic.load(Ordering::Relaxed);
        if size >= ZoneState::<H>::PAGE_BLOCK_ORDER
            || share < block
            || reserved + block > share.next_multiple_of(block)
            || is_set_apart(self.zone.block_type(pfn))
        {
            return;
        }
        // The frame was just carved and is a tail; it must not be taken for a part of a free block.
        self.zone
            .high_atomic
            .store(reserved + block, Ordering::Relaxed);
        self.change_page_block(pfn, MigrateType::HighAtomic);
    }

    /// Ends the reservation of one page block that has free blocks. Returns whether there was one.
    pub(crate) fn unreserve_high_atomic(&mut self, to: MigrateType) -> bool {
        let lists = &self.lists.free[MigrateType::HighAtomic.index()];
        let Some(pfn) = lists.iter().find_map(|list| linked(list.head)) else {
            return false;
        };
        let reserved = self.zone.high_atomic.load(Ordering::Relaxed);
        self.zone.high_atomic.store(
            reserved - ZoneState::<H>::PAGE_BLOCK_PAGES,
            Ordering::Relaxed,
        );
        self.change_page_block(pfn, to);
        true
    }
}

#[cfg(test)]
mod tests {
    use crate::tests::{frames, machine};
    use core::sync::atomic::Ordering;
    use flagstone_types::{MigrateType, Zone};

    #[test]
    fn a_reservation_that_ends_merges_with_its_neighbour() {
        // Page blocks of 512 pages, largest blocks of 1024, and enough memory for one reservation.
        let m = machine::<12, 10>(52 << 10);
        let f = frames(&m);
        let zone = &f.zones()[Zone::Normal.index()];
        let pfn = zone.lock().take(1, MigrateType::Unmovable, true).unwrap();
        assert_eq!(zone.block_type(pfn), MigrateType::HighAtomic);
        assert_eq!(zone.high_atomic.load(Ordering::Relaxed), 512);
        f.validate().unwrap();
        zone.lock().free_block(pfn, 1);
        f.validate().unwrap();
        let largest = |f: &crate::Frames<_>| {
            let zone: crate::ZoneReport = f.report().next().unwrap();
            zone.free_blocks
                .iter()
                .map(|orders| orders[10])
                .sum::<usize>()
        };
        assert_eq!(
            largest(&f),
            51,
            "the reserved half of a largest block stays apart"
        );
        assert!(zone.lock().unreserve_high_atomic(MigrateType::Unmovable));
        assert!(!zone.lock().unreserve_high_atomic(MigrateType::Unmovable));
        f.validate().unwrap();
        assert_eq!(largest(&f), 52);
    }
}
