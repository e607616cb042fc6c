//! Contiguous free frames of any length: how a run is found that no single free block can hold, and how
//! a run grows in place.
//!
//! An extent is a sequence of free blocks, each beginning where the one before ends, in one zone and in one
//! piece of the direct map (M1). The search begins at blocks so large that every extent that will do has one
//! (an extent of `n` pages holds an aligned block of a quarter of the power of two that covers `n`, or more),
//! and follows each extent to both sides from its first such block only. Blocks reserved for atomic callers do not count.

use crate::buddy::{End, linked};
use crate::page::{PageKind, State};
use crate::zone::Locked;
use flagstone_host::Host;
use flagstone_types::{MigrateType, Pfn, PfnRange};

impl<H: Host> Locked<'_, H> {
    /// The order of the free block that begins at `pfn`, if one does.
    pub(crate) fn free_block_at(&self, pfn: Pfn) -> Option<u32> {
        let page = self.zone.try_page(pfn)?;
        let state = page.state();
        let usable = state.kind() == PageKind::Buddy
            && state.migrate() != MigrateType::HighAtomic
            && self.zone.holds(page);
        usable.then(|| state.order())
    }

    /// The free block that ends where `pfn` begins.
    pub(crate) fn free_block_before(&self, pfn: Pfn) -> Option<(Pfn, u32)> {
        (0..=H::MAX_ORDER.min(pfn.0.trailing_zeros())).find_map(|size| {
            let start = Pfn(pfn.0.checked_sub(1 << size)?);
            (self.free_block_at(start) == Some(size)).then_some((start, size))
        })
    }

    /// How many free frames follow from `from` on, without a gap; stops counting at `enough`.
    pub(crate) fn free_after(&self, from: Pfn, enough: usize) -> usize {
        let mut pages = 0;
        while pages < enough {
            let at = from.add(pages);
            let Some(size) = self.free_block_at(at) else {
                break;
            };
            pages += 1 << size;
        }
        pages
    }

    /// Where the extent begins that the free block at `seed` is in; `None` if an earlier block of it
    /// is as large as `least`.
    fn extent_start(&self, seed: Pfn, least: u32) -> Option<Pfn> {
        let mut start = seed;
        while let Some((before, size)) = self.free_block_before(start) {
            if size >= least {
                return None;
            }
            start = before;
        }
        Some(start)
    }

    /// The start of the shortest extent of at least `pages`, looking at no more than `most` blocks to begin from.
    pub(crate) fn find_extent(&self, pages: usize, most: usize) -> Option<Pfn> {
        let least = pages
            .next_power_of_two()
            .ilog2()
            .saturating_sub(2)
            .min(H::MAX_ORDER.saturating_sub(1));
        let mut best: Option<(usize, Pfn)> = None;
        let mut looked_at = 0;
        for size in least..=H::MAX_ORDER {
            for migrate in [
                MigrateType::Unmovable,
                MigrateType::Reclaimable,
                MigrateType::Movable,
            ] {
                let mut next = linked(self.lists.free[migrate.index()][size as usize].head);
                while let Some(seed) = next {
                    if looked_at == most {
                        return best.map(|(_, start)| start);
                    }
                    looked_at += 1;
                    next = self.colder(seed);
                    let Some(start) = self.extent_start(seed, least) else {
                        continue;
                    };
                    let limit = best.map_or(usize::MAX, |(length, _)| length);
                    let length = self.free_after(start, limit);
                    if length >= pages && length < limit {
                        best = Some((length, start));
                        if length == pages {
                            return Some(start);
                        }
                    }
                }
            }
        }
        best.map(|(_, start)| start)
    }

    /// Takes `pages` frames out of the lists from `start` on, which is where a free block begins that is
    /// followed by free ones. All of them are tails then.
    pub(crate) fn take_extent(&mut self, start: Pfn, pages: usize) {
        let (mut covered, mut touched) = (0, 0);
        while covered < pages {
            let at = start.add(covered);
            covered += 1 << self.zone.page(at).state().order();
            touched += self.unlink(at);
        }
        if covered > pages {
            let rest = PfnRange::new(start.add(pages), covered - pages);
            touched -= self.merge_range(rest, End::Hot);
        }
        self.count_out(pages, touched);
    }

    /// Takes a run of exactly `pages` frames: from the smallest block of at least `order` that is free or, unless the run is to be `aligned`
    /// as a block of `order` is, from an extent. The first frame is marked as the head of a run.
    pub(crate) fn take_run(
        &mut self,
        pages: usize,
        order: u32,
        aligned: bool,
        migrate: MigrateType,
    ) -> Option<Pfn> {
        /// How many blocks are looked at when the run could also fit one block: somebody waits for the lock.
        const GLANCE: usize = 64;
        let mut start = None;
        if order <= H::MAX_ORDER {
            let least_touched = self.lists.least_touched;
            start = self.take(order, migrate, false);
            if let Some(pfn) = start
                && pages < 1 << order
            {
                self.free_range(
                    PfnRange::new(pfn.add(pages), (1 << order) - pages),
                    End::Hot,
                );
                // The surplus was gone for no time at all.
                self.lists.least_touched = least_touched.min(self.lists.touched);
            }
        }
        if start.is_none() && pages > 1 && !aligned {
            let most = if order <= H::MAX_ORDER {
                GLANCE
            } else {
                usize::MAX
            };
            start = self.find_extent(pages, most);
            if let Some(pfn) = start {
                self.take_extent(pfn, pages);
            }
        }
        let start = start?;
        self.head_run(start, pages);
        Some(start)
    }

    /// Makes `start`, a tail in no list, the head of a run of `pages`.
    pub(crate) fn head_run(&self, start: Pfn, pages: usize) {
        let page = self.zone.page(start);
        page.set_state(State::new(
            PageKind::Allocated,
            0,
            self.zone.block_type(start),
            0,
        ));
        page.make_run(pages);
    }
}
