//! Per-CPU page lists: free blocks of small orders that a CPU takes and gives back without the zone's lock.
//!
//! A slot belongs to a CPU by hint only (C2): it is locked by trying, and whoever does not get it goes to the
//! buddy lists. A list is singly linked through the first word of its blocks' views, last in, first out, so a push or pop
//! touches no metadata but the block's own. Blocks in a list are free to their user, but not in the zone's count of free pages (Z2).

use core::sync::atomic::Ordering;

use crate::buddy::{link_to, linked};
use crate::page::{Page, PageKind, State};
use crate::zone::{Locked, ZoneState};
use flagstone_host::{Event, Host, Mutex, MutexGuard, classes};
use flagstone_types::{CpuId, MigrateType, Pfn, Zone};

/// Orders that go through page lists (Linux: up to 3).
pub(crate) const LIST_ORDERS: usize = 4;
/// Migrate types that do.
const LIST_TYPES: usize = 3;

/// The page lists of one CPU in one zone.
#[repr(align(64))]
pub(crate) struct Slot<H: Host> {
    inner: Mutex<H, classes::PageList, PageLists>,
}

/// What is in a slot.
#[derive(Debug, Default)]
pub(crate) struct PageLists {
    /// First block of each list, as a link.
    pub(crate) heads: [[u64; LIST_ORDERS]; LIST_TYPES],
    /// Pages in all of them.
    pub(crate) pages: usize,
    /// Events since they were last counted.
    tally: Tally,
    /// The list that the next spill begins with.
    turn: usize,
}

/// Events that are counted together, later: the fast paths count nothing else.
#[derive(Debug, Default)]
struct Tally {
    allocated: u64,
    freed: u64,
    hits: u64,
    misses: u64,
}

/// Whether blocks of this order and type go through page lists.
pub(crate) const fn is_listed(order: u32, migrate: MigrateType) -> bool {
    (order as usize) < LIST_ORDERS && (migrate as usize) < LIST_TYPES
}

/// The event that counts allocations from a zone.
pub(crate) const fn alloc_event(zone: Zone) -> Event {
    match zone {
        Zone::Dma => Event::PgallocDma,
        Zone::Dma32 => Event::PgallocDma32,
        Zone::Normal => Event::PgallocNormal,
        Zone::Movable => Event::PgallocMovable,
        Zone::Device => Event::PgallocDevice,
    }
}

impl<H: Host> Slot<H> {
    pub(crate) fn new() -> Self {
        Self {
            inner: Mutex::<H, classes::PageList, _>::new(PageLists::default()),
        }
    }

    pub(crate) fn lock_for_fork(&self) {
        core::mem::forget(self.inner.lock());
    }

    /// # Safety
    /// After [`Slot::lock_for_fork`] by the same context (or by the one it is a fork of), once.
    pub(crate) unsafe fn unlock_after_fork(&self) {
        // SAFETY: the caller holds the lock (F2).
        unsafe { self.inner.force_unlock() };
    }
}

impl PageLists {
    fn pop<'z, H: Host>(
        &mut self,
        zone: &'z ZoneState<H>,
        size: u32,
        list: usize,
    ) -> Option<(Pfn, &'z Page, State)> {
        let head = &mut self.heads[list][size as usize];
        let pfn = linked(*head)?;
        let page = zone.page(pfn);
        *head = page.word(0).load(Ordering::Relaxed);
        self.pages -= 1 << size;
        Some((pfn, page, page.state()))
    }

    fn push(&mut self, pfn: Pfn, page: &Page, size: u32, list: usize, state: State) {
        let head = &mut self.heads[list][size as usize];
        page.word(0).store(*head, Ordering::Relaxed);
        page.set_state(state);
        *head = link_to(pfn);
        self.pages += 1 << size;
    }

    /// Fills an empty list with a batch from the buddy lists, lowest address on top.
    #[cold]
    #[inline(never)]
    fn refill<H: Host>(&mut self, zone: &ZoneState<H>, size: u32, migrate: MigrateType) {
        self.count(zone);
        let blocks = (zone.batch.load(Ordering::Relaxed) >> size).max(1);
        let mut last: Option<&Page> = None;
        let mut buddy = zone.lock();
        for _ in 0..blocks {
            let Some(pfn) = buddy.take(size, migrate, false) else {
                break;
            };
            let page = zone.page(pfn);
            page.word(0).store(0, Ordering::Relaxed);
            page.set_state(State::new(
                PageKind::PageList,
                size,
                page.state().migrate(),
                State::FRESH,
            ));
            match last {
                Some(last) => last.word(0).store(link_to(pfn), Ordering::Relaxed),
                None => self.heads[migrate.index()][size as usize] = link_to(pfn),
            }
            last = Some(page);
            self.pages += 1 << size;
        }
    }

    /// Moves at least `pages` pages (or all there are) to the buddy lists, one block from each list in turn.
    fn spill<H: Host>(&mut self, zone: &ZoneState<H>, pages: usize) {
        self.count(zone);
        let left = self.pages.saturating_sub(pages);
        if self.pages == left {
            return;
        }
        let mut buddy: Locked<'_, H> = zone.lock();
        while self.pages > left {
            self.turn = (self.turn + 1) % (LIST_TYPES * LIST_ORDERS);
            let (list, size) = (self.turn / LIST_ORDERS, (self.turn % LIST_ORDERS) as u32);
            if let Some((pfn, _, _)) = self.pop(zone, size, list) {
                buddy.free_block(pfn, size);
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn spill_batch<H: Host>(&mut self, zone: &ZoneState<H>, limit: usize) {
        let keep = limit.saturating_sub(zone.batch.load(Ordering::Relaxed));
        self.spill(zone, self.pages.saturating_sub(keep));
    }

    fn count<H: Host>(&mut self, zone: &ZoneState<H>) {
        let tally = core::mem::take(&mut self.tally);
        for (event, n) in [
            (alloc_event(zone.zone), tally.allocated),
            (Event::Pgfree, tally.freed),
            (Event::NumaHit, tally.hits),
            (Event::NumaMiss, tally.misses),
        ] {
            if n > 0 {
                zone.host.count(event, n);
            }
        }
    }
}

impl<H: Host> ZoneState<H> {
    /// The slot of a CPU; `None` if the zone has no memory.
    fn slot(&self, cpu: CpuId) -> Option<&Slot<H>> {
        let slots = self.slots.load(Ordering::Acquire);
        // SAFETY: not null, so it is an array of one slot for each possible CPU that lives as long as the machine
        // (Z3), and the index is in range (C1).
        (!slots.is_null()).then(|| unsafe { &*slots.add(cpu.index()) })
    }

    /// Whether page lists here have room for blocks of `2^size` pages: where they have not, they would only be a detour.
    #[inline]
    fn lists_hold(&self, size: u32) -> bool {
        1 << size <= self.list_limit.load(Ordering::Relaxed)
    }

    fn try_slot(&self, cpu: CpuId) -> Option<MutexGuard<'_, H, classes::PageList, PageLists>> {
        self.slot(cpu)?.inner.try_lock()
    }

    /// A block from the CPU's page list, which is refilled first if it is empty and `may_refill` says yes. Returns its
    /// frame, marked as allocated, and whether it has not been handed out since it left the buddy lists.
    #[inline]
    pub(crate) fn take_listed(
        &self,
        cpu: CpuId,
        size: u32,
        migrate: MigrateType,
        hit: bool,
        may_refill: impl FnOnce() -> bool,
    ) -> Option<(Pfn, bool)> {
        if !self.lists_hold(size) {
            return None;
        }
        let mut lists = self.try_slot(cpu)?;
        let list = migrate.index();
        if lists.heads[list][size as usize] == 0 {
            if !may_refill() {
                return None;
            }
            lists.refill(self, size, migrate);
        }
        let (pfn, page, state) = lists.pop(self, size, list)?;
        lists.tally.allocated += 1 << size;
        if hit {
            lists.tally.hits += 1;
        } else {
            lists.tally.misses += 1;
        }
        page.set_state(State::new(PageKind::Allocated, size, state.migrate(), 0));
        Some((pfn, state.has(State::FRESH)))
    }

    /// Gives a block to the CPU's page list. False if the list is busy: the block is still the caller's.
    #[inline]
    pub(crate) fn give_listed(
        &self,
        cpu: CpuId,
        pfn: Pfn,
        page: &Page,
        size: u32,
        migrate: MigrateType,
    ) -> bool {
        if !self.lists_hold(size) {
            return false;
        }
        let Some(mut lists) = self.try_slot(cpu) else {
            return false;
        };
        let state = State::new(PageKind::PageList, size, migrate, 0);
        lists.push(pfn, page, size, migrate.index(), state);
        lists.tally.freed += 1 << size;
        let limit = self.list_limit.load(Ordering::Relaxed);
        if lists.pages > limit {
            lists.spill_batch(self, limit);
        }
        true
    }

    /// Moves everything in the page lists of all CPUs to the buddy lists and counts what was not counted yet.
    pub(crate) fn drain_slots(&self) {
        for cpu in 0..self.host.possible_cpus() {
            let Some(slot) = self.slot(CpuId(cpu)) else {
                return;
            };
            slot.inner.lock().spill(self, usize::MAX);
        }
    }

    /// Calls `each` with the lists of every CPU.
    pub(crate) fn for_slots(&self, mut each: impl FnMut(CpuId, &PageLists)) {
        for cpu in 0..self.host.possible_cpus() {
            let Some(slot) = self.slot(CpuId(cpu)) else {
                return;
            };
            each(CpuId(cpu), &slot.inner.lock());
        }
    }

    /// Calls `each` with every CPU's slot.
    pub(crate) fn for_raw_slots(&self, mut each: impl FnMut(&Slot<H>)) {
        for cpu in 0..self.host.possible_cpus() {
            let Some(slot) = self.slot(CpuId(cpu)) else {
                return;
            };
            each(slot);
        }
    }

    /// Makes the slots if there are none.
    pub(crate) fn make_slots(&self) -> Result<(), flagstone_types::AllocError> {
        use core::alloc::Layout;
        if !self.slots.load(Ordering::Acquire).is_null() {
            return Ok(());
        }
        let cpus = self.host.possible_cpus() as usize;
        let layout =
            Layout::array::<Slot<H>>(cpus).map_err(|_| flagstone_types::AllocError::OutOfMemory)?;
        let slots = self.host.boot_alloc(layout)?.cast::<Slot<H>>().as_ptr();
        for cpu in 0..cpus {
            // SAFETY: M3: room for `cpus` slots that nobody else has.
            unsafe { slots.add(cpu).write(Slot::new()) };
        }
        // Under the zone's lock, so that none appear while a fork holds it. Two adders may both have made slots; the loser's are
        // never used.
        let _locked = self.lock();
        let _ = self.slots.compare_exchange(
            core::ptr::null_mut(),
            slots,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        Ok(())
    }

    /// Computes batch and limit for a zone of this size: as Linux, a thousandth of the zone but at most 1 MiB,
    /// a quarter of that, a power of two minus one; the limit is six batches.
    pub(crate) fn size_lists(&self) {
        let most = ((1 << 20) / H::PAGE_SIZE).max(1);
        let share = ((self.managed_pages() >> 10).min(most) / 4).max(1);
        let rounded = 1usize << (share + share / 2).ilog2();
        let batch = (rounded - 1).max(1);
        self.batch.store(batch, Ordering::Relaxed);
        self.list_limit.store(batch * 6, Ordering::Relaxed);
    }
}
