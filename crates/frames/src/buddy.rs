//! The buddy lists of a zone, under its lock: free blocks by order and migrate type.
//!
//! Every free block is as large as can be: when a block is freed and its buddy is free, they become one
//! (B2). Of a block only the first frame's metadata is touched; its other frames are tails already and stay so (B3).
//! Splitting and merging move links only; the counts of free and touched pages change once per
//! operation, so that `least_touched` never sees a state in between.

use core::sync::atomic::Ordering;

use crate::page::{PageKind, Place, State};
use crate::zone::{Locked, ZoneState, order};
use flagstone_host::Host;
use flagstone_types::{MigrateType, Pfn, PfnRange};

/// Words of a free block's view.
const PREV: usize = 0;
const NEXT: usize = 1;
const TOUCHED: usize = 2;

/// Which end of a list a block is put at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The end that allocation takes from.
    Hot,
    /// The end that is used last and released first.
    Cold,
}

/// Whether blocks of this type may not merge with blocks of another type.
pub(crate) const fn is_set_apart(migrate: MigrateType) -> bool {
    matches!(migrate, MigrateType::HighAtomic | MigrateType::Isolate)
}

/// The frame that a link names.
pub(crate) const fn linked(link: u64) -> Option<Pfn> {
    if link == 0 {
        None
    } else {
        Some(Pfn(link as usize - 1))
    }
}

pub(crate) const fn link_to(pfn: Pfn) -> u64 {
    pfn.0 as u64 + 1
}

impl<'a, H: Host> Locked<'a, H> {
    /// The block after `pfn` in its list, towards the cold end.
    pub(crate) fn colder(&self, pfn: Pfn) -> Option<Pfn> {
        linked(self.zone.page(pfn).word(NEXT).load(Ordering::Relaxed))
    }

    /// The block before `pfn` in its list, towards the hot end.
    pub(crate) fn hotter(&self, pfn: Pfn) -> Option<Pfn> {
        linked(self.zone.page(pfn).word(PREV).load(Ordering::Relaxed))
    }

    /// How many pages of the free block at `pfn` have contents.
    pub(crate) fn touched_in(&self, pfn: Pfn) -> usize {
        self.zone.page(pfn).word(TOUCHED).load(Ordering::Relaxed) as usize
    }

    /// Asks the owner of the memory how many pages have contents, where that matters.
    pub(crate) fn ask_touched(&self, pfn: Pfn, pages: usize) -> usize {
        if H::CAN_RELEASE {
            self.zone.host.touched(PfnRange::new(pfn, pages))
        } else {
            0
        }
    }

    /// Puts a block in a list. Counts nothing.
    pub(crate) fn link(
        &mut self,
        pfn: Pfn,
        block: u32,
        migrate: MigrateType,
        touched: usize,
        end: End,
    ) {
        let zone = self.zone;
        let page = zone.page(pfn);
        let list = &mut self.lists.free[migrate.index()][block as usize];
        let me = link_to(pfn);
        let (prev, next) = match end {
            End::Hot => (0, core::mem::replace(&mut list.head, me)),
            End::Cold => (core::mem::replace(&mut list.tail, me), 0),
        };
        match linked(next) {
            Some(n) => zone.page(n).word(PREV).store(me, Ordering::Relaxed),
            None => list.tail = me,
        }
        match linked(prev) {
            Some(p) => zone.page(p).word(NEXT).store(me, Ordering::Relaxed),
            None => list.head = me,
        }
        list.blocks += 1;
        page.word(PREV).store(prev, Ordering::Relaxed);
        page.word(NEXT).store(next, Ordering::Relaxed);
        page.word(TOUCHED).store(touched as u64, Ordering::Relaxed);
        page.set_state(State::new(PageKind::Buddy, block, migrate, 0));
    }

    /// Takes a free block out of its list and returns how many of its pages have contents. Counts nothing; the frame is a
    /// tail until the caller says what it is.
    pub(crate) fn unlink(&mut self, pfn: Pfn) -> usize {
        let zone = self.zone;
        let page = zone.page(pfn);
        let state = page.state();
        debug_assert_eq!(state.kind(), PageKind::Buddy);
        let list = &mut self.lists.free[state.migrate().index()][state.order() as usize];
        let prev = page.word(PREV).load(Ordering::Relaxed);
        let next = page.word(NEXT).load(Ordering::Relaxed);
        match linked(next) {
            Some(n) => zone.page(n).word(PREV).store(prev, Ordering::Relaxed),
            None => list.tail = prev,
        }
        match linked(prev) {
            Some(p) => zone.page(p).word(NEXT).store(next, Ordering::Relaxed),
            None => list.head = next,
        }
        list.blocks -= 1;
        page.set_state(State::TAIL);
        page.word(TOUCHED).load(Ordering::Relaxed) as usize
    }

    /// Counts pages that came into the lists.
    pub(crate) fn count_in(&mut self, pages: usize, touched: usize) {
        let free = self.zone.free_pages();
        self.zone.free.store(free + pages, Ordering::Relaxed);
        self.lists.touched += touched;
    }

    /// Counts pages that left the lists.
    pub(crate) fn count_out(&mut self, pages: usize, touched: usize) {
        let free = self.zone.free_pages();
        debug_assert!(free >= pages && self.lists.touched >= touched);
        self.zone.free.store(free - pages, Ordering::Relaxed);
        self.lists.touched -= touched;
        self.lists.least_touched = self.lists.least_touched.min(self.lists.touched);
    }

    /// Puts a block that is in no list into one, merged with its buddies as far as they are free.
    /// Counts nothing.
    pub(crate) fn merge(&mut self, pfn: Pfn, block: u32, touched: usize, end: End) {
        let zone = self.zone;
        let migrate = zone.block_type(pfn);
        if block > ZoneState::<H>::PAGE_BLOCK_ORDER {
            self.set_block_types(pfn, block, migrate);
        }
        let (mut start, mut size, mut touched) = (pfn, block, touched);
        while size < H::MAX_ORDER {
            let buddy = start.buddy(order(size));
            let page = zone.page(buddy);
            let state = page.state();
            if state.kind() != PageKind::Buddy || state.order() != size || !zone.holds(page) {
                break;
            }
            if state.migrate() != migrate {
                if is_set_apart(state.migrate()) || is_set_apart(migrate) {
                    break;
                }
                self.set_block_types(buddy, size, migrate);
            }
            touched += self.unlink(buddy);
            zone.page(Pfn(start.0.max(buddy.0))).set_state(State::TAIL);
            start = Pfn(start.0.min(buddy.0));
            size += 1;
        }
        self.link(start, size, migrate, touched, end);
    }

    /// Puts any range of frames that are in no list into the lists. Returns how many have contents. Counts nothing.
    pub(crate) fn merge_range(&mut self, range: PfnRange, end: End) -> usize {
        let (mut pfn, mut left, mut total) = (range.start, range.pages, 0);
        while left > 0 {
            let block = pfn.0.trailing_zeros().min(left.ilog2()).min(H::MAX_ORDER);
            let touched = self.ask_touched(pfn, 1 << block);
            self.merge(pfn, block, touched, end);
            total += touched;
            pfn = pfn.add(1 << block);
            left -= 1 << block;
        }
        total
    }

    /// Frees a range of frames that nobody owns any more.
    pub(crate) fn free_range(&mut self, range: PfnRange, end: End) {
        let touched = self.merge_range(range, end);
        self.count_in(range.pages, touched);
    }

    /// Frees one block.
    pub(crate) fn free_block(&mut self, pfn: Pfn, block: u32) {
        let touched = self.ask_touched(pfn, 1 << block);
        self.merge(pfn, block, touched, End::Hot);
        self.count_in(1 << block, touched);
    }

    /// How many of `touched` pages with contents, in a block of `2^(half + 1)` pages, are in the half at `pfn`.
    pub(crate) fn touched_half(&self, pfn: Pfn, half: u32, touched: usize) -> usize {
        if touched == 0 {
            0
        } else if touched == 2 << half {
            1 << half
        } else {
            self.ask_touched(pfn, 1 << half)
        }
    }

    /// Takes the block at `pfn` out of its list and gives all but its first `2^want` pages back, to lists of type
    /// `rest`. Returns how many of the pages taken have contents. Counts them out.
    pub(crate) fn carve(&mut self, pfn: Pfn, want: u32, rest: MigrateType) -> usize {
        let mut size = self.zone.page(pfn).state().order();
        let mut touched = self.unlink(pfn);
        while size > want {
            size -= 1;
            let upper = pfn.add(1 << size);
            let in_upper = self.touched_half(upper, size, touched);
            touched -= in_upper;
            self.link(upper, size, rest, in_upper, End::Hot);
        }
        self.count_out(1 << want, touched);
        touched
    }

    /// Takes a block of `want` from the smallest that is large enough in the lists of `migrate`.
    pub(crate) fn take_smallest(&mut self, want: u32, migrate: MigrateType) -> Option<Pfn> {
        let lists = &self.lists.free[migrate.index()][want as usize..=H::MAX_ORDER as usize];
        let pfn = lists.iter().find_map(|list| linked(list.head))?;
        self.carve(pfn, want, migrate);
        Some(pfn)
    }

    /// Takes a block of `want` for pages of type `migrate`, from other types' lists if need be. The frame is marked as
    /// allocated.
    pub(crate) fn take(&mut self, want: u32, migrate: MigrateType, atomic: bool) -> Option<Pfn> {
        let mut pfn = None;
        if atomic && want > 0 {
            pfn = self.take_smallest(want, MigrateType::HighAtomic);
        }
        if pfn.is_none() {
            pfn = self
                .take_smallest(want, migrate)
                .or_else(|| self.take_fallback(want, migrate));
            if let Some(pfn) = pfn
                && atomic
                && want > 0
            {
                self.reserve_high_atomic(pfn, want);
            }
        }
        let pfn = pfn?;
        let from = self.zone.block_type(pfn);
        self.zone
            .page(pfn)
            .set_state(State::new(PageKind::Allocated, want, from, 0));
        Some(pfn)
    }

    /// Gives the page blocks that a block of order `block` covers (at least the one it is in) the type `to`. Moves no list entries.
    pub(crate) fn set_block_types(&mut self, pfn: Pfn, block: u32, to: MigrateType) {
        let first = ZoneState::<H>::page_block(pfn);
        let count = 1usize << block.saturating_sub(ZoneState::<H>::PAGE_BLOCK_ORDER);
        for n in 0..count {
            let page = self
                .zone
                .page(first.add(n << ZoneState::<H>::PAGE_BLOCK_ORDER));
            let old = page.place();
            if old.is_known() {
                self.lists.page_blocks[old.migrate().index()] -= 1;
                self.lists.page_blocks[to.index()] += 1;
                page.set_place(Place::new(self.zone.nid, self.zone.zone, to));
            }
        }
    }
}
