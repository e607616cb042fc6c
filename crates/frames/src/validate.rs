//! The whole structure checked against its invariants, for tests at moments when nobody allocates.

use core::fmt;

use crate::Frames;
use crate::buddy::{is_set_apart, link_to, linked};
use crate::page::{PageKind, State};
use crate::zone::{Locked, ORDERS, ZoneState, order};
use flagstone_host::Host;
use flagstone_types::{MigrateType, Nid, Pfn, PfnRange, Zone};

/// A broken invariant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inconsistency {
    /// The zone.
    pub zone: (Nid, Zone),
    /// The frame at which it was noticed.
    pub pfn: Pfn,
    /// What should hold, with its number in `MODEL.md`.
    pub rule: &'static str,
}

impl fmt::Display for Inconsistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (nid, zone) = self.zone;
        write!(
            f,
            "node {nid}, zone {}, frame {}: broken: {}",
            zone.name(),
            self.pfn,
            self.rule
        )
    }
}

impl core::error::Error for Inconsistency {}

impl<H: Host> Frames<H> {
    /// Checks everything. Nobody may use the allocator meanwhile, and every owned block must have its tails.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn validate(&self) -> Result<(), Inconsistency> {
        for zone in self.zones().iter().filter(|zone| zone.managed_pages() > 0) {
            check_slots(zone)?;
            let locked = zone.lock();
            locked.check_lists()?;
            locked.check_frames()?;
        }
        Ok(())
    }
}

fn broken<H: Host>(zone: &ZoneState<H>, pfn: Pfn, rule: &'static str) -> Inconsistency {
    Inconsistency {
        zone: (zone.nid, zone.zone),
        pfn,
        rule,
    }
}

fn check_slots<H: Host>(zone: &ZoneState<H>) -> Result<(), Inconsistency> {
    let mut result = Ok(());
    zone.for_slots(|_, lists| {
        let mut pages = 0;
        for orders in &lists.heads {
            for (size, &head) in orders.iter().enumerate() {
                let mut next = linked(head);
                while let Some(pfn) = next {
                    let page = zone.page(pfn);
                    let state = page.state();
                    if state.kind() != PageKind::PageList
                        || state.order() as usize != size
                        || !zone.holds(page)
                    {
                        result = Err(broken(zone, pfn, "Z2: a listed block says so"));
                        return;
                    }
                    pages += 1 << size;
                    if pages > zone.managed_pages() {
                        result = Err(broken(zone, pfn, "Z2: a page list ends"));
                        return;
                    }
                    next = linked(page.word(0).load(core::sync::atomic::Ordering::Relaxed));
                }
            }
        }
        if pages != lists.pages {
            result = Err(broken(zone, Pfn(0), "Z2: a page list counts its pages"));
        }
    });
    result
}

impl<H: Host> Locked<'_, H> {
    fn check_lists(&self) -> Result<(), Inconsistency> {
        let zone = self.zone;
        let (mut free, mut touched) = (0, 0);
        for migrate in MigrateType::ALL {
            for size in 0..ORDERS {
                let list = &self.lists.free[migrate.index()][size];
                let (mut blocks, mut last, mut next) = (0, 0, linked(list.head));
                while let Some(pfn) = next {
                    if size > H::MAX_ORDER as usize || blocks > zone.managed_pages() {
                        return Err(broken(
                            zone,
                            pfn,
                            "B1: lists end, and none is beyond the largest order",
                        ));
                    }
                    self.check_free(pfn, size as u32, migrate)?;
                    if self.hotter(pfn) != linked(last) {
                        return Err(broken(zone, pfn, "B1: links agree in both directions"));
                    }
                    free += 1 << size;
                    touched += self.touched_in(pfn);
                    blocks += 1;
                    last = link_to(pfn);
                    next = self.colder(pfn);
                }
                if list.tail != last || list.blocks != blocks {
                    return Err(broken(
                        zone,
                        Pfn(size),
                        "B1: a list knows its last block and their number",
                    ));
                }
            }
        }
        if free != zone.free_pages() || touched != self.lists.touched {
            return Err(broken(
                zone,
                Pfn(0),
                "B5: the zone counts its free and its touched pages",
            ));
        }
        if self.lists.least_touched > touched {
            return Err(broken(
                zone,
                Pfn(0),
                "R1: the least is not above the present",
            ));
        }
        Ok(())
    }

    fn check_free(&self, pfn: Pfn, size: u32, migrate: MigrateType) -> Result<(), Inconsistency> {
        let zone = self.zone;
        let page = zone.page(pfn);
        if page.state() != State::new(PageKind::Buddy, size, migrate, 0) || !zone.holds(page) {
            return Err(broken(
                zone,
                pfn,
                "B1: a free block says that it is one, of its list",
            ));
        }
        if !pfn.is_aligned(order(size)) {
            return Err(broken(zone, pfn, "B1: a block is aligned to its size"));
        }
        let blocks = 1usize << size.saturating_sub(ZoneState::<H>::PAGE_BLOCK_ORDER);
        for n in 0..blocks {
            if zone.block_type(pfn.add(n << ZoneState::<H>::PAGE_BLOCK_ORDER)) != migrate {
                return Err(broken(
                    zone,
                    pfn,
                    "B4: a free block is in the list of its page block's type",
                ));
            }
        }
        let buddy = pfn.buddy(order(size));
        if size < H::MAX_ORDER
            && let Some(page) = zone.try_page(buddy)
            && zone.holds(page)
        {
            let state = page.state();
            let apart = state.migrate() != migrate
                && (is_set_apart(migrate) || is_set_apart(state.migrate()));
            if state.kind() == PageKind::Buddy && state.order() == size && !apart {
                return Err(broken(zone, pfn, "B2: free buddies have merged"));
            }
        }
        if H::CAN_RELEASE
            && zone.host.touched(PfnRange::new(pfn, 1 << size)) != self.touched_in(pfn)
        {
            return Err(broken(
                zone,
                pfn,
                "B5: a free block knows how many of its pages have contents",
            ));
        }
        Ok(())
    }

    /// That every frame of the zone is in exactly one block, and how many there are.
    fn check_frames(&self) -> Result<(), Inconsistency> {
        let zone = self.zone;
        let (mut at, end) = self.lists.span;
        let (mut managed, mut free, mut high_atomic) = (0, 0, 0);
        let mut blocks = [0; MigrateType::COUNT];
        while at < end {
            let Some(page) = zone.try_page(at) else {
                at = Pfn((at.0 | (ZoneState::<H>::MAX_BLOCK - 1)) + 1);
                continue;
            };
            let state = page.state();
            if state.kind() == PageKind::Absent || !zone.holds(page) {
                at = at.add(1);
                continue;
            }
            if !state.kind().is_head() {
                return Err(broken(zone, at, "P5: every frame is in a block"));
            }
            let pages = if state.has(State::RUN) {
                page.run_pages()
            } else {
                1 << state.order()
            };
            for n in 1..pages {
                let tail = at.add(n);
                if zone
                    .try_page(tail)
                    .is_none_or(|p| p.kind() != PageKind::Tail || !zone.holds(p))
                {
                    return Err(broken(
                        zone,
                        tail,
                        "P5: the frames of a block but the first are tails",
                    ));
                }
                if state.has(State::DEVICE)
                    && zone.page(tail).state() != State::aligned_tail(state.order())
                {
                    return Err(broken(
                        zone,
                        tail,
                        "D1: a tail of device memory says the order of its compound",
                    ));
                }
            }
            managed += pages;
            if state.kind() == PageKind::Buddy {
                free += pages;
            }
            at = at.add(pages);
        }
        let mut at = ZoneState::<H>::page_block(self.lists.span.0);
        while at < end {
            if let Some(page) = zone.try_page(at)
                && zone.holds(page)
            {
                let migrate = page.place().migrate();
                blocks[migrate.index()] += 1;
                if migrate == MigrateType::HighAtomic {
                    high_atomic += ZoneState::<H>::PAGE_BLOCK_PAGES;
                }
            }
            at = at.add(ZoneState::<H>::PAGE_BLOCK_PAGES);
        }
        if managed != zone.managed_pages() || free != zone.free_pages() {
            return Err(broken(
                zone,
                end,
                "B5: the zone counts its pages, and free blocks are in lists",
            ));
        }
        if blocks != self.lists.page_blocks
            || high_atomic != zone.high_atomic.load(core::sync::atomic::Ordering::Relaxed)
        {
            return Err(broken(
                zone,
                end,
                "B6: the zone counts its page blocks by type",
            ));
        }
        Ok(())
    }
}
