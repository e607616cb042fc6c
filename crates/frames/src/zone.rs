//! A zone: one kind of memory of one node.
//!
//! What is read without the lock (free pages, watermarks, sizes) is atomic and may be out of date; it is
//! written under the zone's lock (Z1), but for the watermarks, which are computed from sizes again and again
//! until nothing changes ([`crate::watermark`]). Everything else is [`Lists`], behind the lock.

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use crate::page_list::Slot;
use crate::{Page, page::Place};
use flagstone_host::{Host, Mutex, MutexGuard, classes};
use flagstone_types::{MigrateType, Nid, Order, Pfn, Zone};

/// Room for orders in a zone: the largest order of a host is below it.
pub(crate) const ORDERS: usize = 16;

/// One free list: doubly linked through the blocks' metadata. Frees push at the head, so the tail is coldest.
/// Links are frame numbers plus one; 0 is none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct List {
    pub(crate) head: u64,
    pub(crate) tail: u64,
    pub(crate) blocks: usize,
}

/// What a zone's lock protects.
#[derive(Debug)]
pub(crate) struct Lists {
    /// Free lists by migrate type and order.
    pub(crate) free: [[List; ORDERS]; MigrateType::COUNT],
    /// Page blocks of each migrate type.
    pub(crate) page_blocks: [usize; MigrateType::COUNT],
    /// Free pages in the lists that have contents.
    pub(crate) touched: usize,
    /// The least that `touched` was since the last release of idle memory (0 before the first): so many pages were idle all the time.
    pub(crate) least_touched: usize,
    /// The first frame, and the one after the last.
    pub(crate) span: (Pfn, Pfn),
}

/// A zone.
#[repr(align(64))]
pub(crate) struct ZoneState<H: Host> {
    pub(crate) host: H,
    pub(crate) nid: Nid,
    pub(crate) zone: Zone,
    /// The per-CPU page lists, null until there is memory.
    pub(crate) slots: AtomicPtr<Slot<H>>,
    /// Pages in the free lists.
    pub(crate) free: AtomicUsize,
    /// Pages that move between a page list and the free lists at once.
    pub(crate) batch: AtomicUsize,
    /// Pages that a page list may hold.
    pub(crate) list_limit: AtomicUsize,
    /// Pages in page blocks that are reserved for atomic callers.
    pub(crate) high_atomic: AtomicUsize,
    pub(crate) min: AtomicUsize,
    pub(crate) low: AtomicUsize,
    pub(crate) high: AtomicUsize,
    /// Pages that stay free when a request for a higher zone falls back to this one, by that zone.
    pub(crate) protection: [AtomicUsize; Zone::COUNT],
    /// Pages that were added.
    pub(crate) managed: AtomicUsize,
    /// Memmap pages of device memory that frames are behind, one each (D5).
    pub(crate) memmap_pages: AtomicUsize,
    /// Memmap pages of device memory that share a frame with another.
    pub(crate) memmap_saved: AtomicUsize,
    /// Whether a fork holds the locks of the slots. Written by the holder of the fork gate only.
    pub(crate) slots_held: AtomicBool,
    lists: Mutex<H, classes::Zone, Lists>,
}

/// A zone with its lock held.
pub(crate) struct Locked<'a, H: Host> {
    pub(crate) zone: &'a ZoneState<H>,
    pub(crate) lists: MutexGuard<'a, H, classes::Zone, Lists>,
}

impl<H: Host> ZoneState<H> {
    /// Page blocks have this order: as much as one entry of the second level of a page table maps, as in
    /// Linux, but at most the largest block.
    pub(crate) const PAGE_BLOCK_ORDER: u32 = if H::PAGE_SHIFT - 3 < H::MAX_ORDER {
        H::PAGE_SHIFT - 3
    } else {
        H::MAX_ORDER
    };
    pub(crate) const PAGE_BLOCK_PAGES: usize = 1 << Self::PAGE_BLOCK_ORDER;
    pub(crate) const MAX_BLOCK: usize = {
        assert!((H::MAX_ORDER as usize) < ORDERS);
        1 << H::MAX_ORDER
    };

    pub(crate) fn new(host: H, nid: Nid, zone: Zone) -> Self {
        Self {
            host,
            nid,
            zone,
            slots: AtomicPtr::new(core::ptr::null_mut()),
            free: AtomicUsize::new(0),
            batch: AtomicUsize::new(1),
            list_limit: AtomicUsize::new(0),
            high_atomic: AtomicUsize::new(0),
            min: AtomicUsize::new(0),
            low: AtomicUsize::new(0),
            high: AtomicUsize::new(0),
            protection: [const { AtomicUsize::new(0) }; Zone::COUNT],
            managed: AtomicUsize::new(0),
            memmap_pages: AtomicUsize::new(0),
            memmap_saved: AtomicUsize::new(0),
            slots_held: AtomicBool::new(false),
            lists: Mutex::<H, classes::Zone, _>::new(Lists {
                free: [[List::default(); ORDERS]; MigrateType::COUNT],
                page_blocks: [0; MigrateType::COUNT],
                touched: 0,
                least_touched: 0,
                span: (Pfn(0), Pfn(0)),
            }),
        }
    }

    pub(crate) fn lock(&self) -> Locked<'_, H> {
        Locked {
            zone: self,
            lists: self.lists.lock(),
        }
    }

    /// Takes the lock for a fork. [`ZoneState::unlock_after_fork`] gives it back.
    pub(crate) fn lock_for_fork(&self) {
        core::mem::forget(self.lists.lock());
    }

    /// # Safety
    /// After [`ZoneState::lock_for_fork`] by the same context (or by the one it is a fork of), once.
    pub(crate) unsafe fn unlock_after_fork(&self) {
        // SAFETY: the caller holds the lock (F2).
        unsafe { self.lists.force_unlock() };
    }

    /// The metadata of a frame, if there is any.
    pub(crate) fn try_page(&self, pfn: Pfn) -> Option<&Page> {
        page_of(&self.host, pfn)
    }

    /// The metadata of a frame in a largest-order block that has memory.
    pub(crate) fn page(&self, pfn: Pfn) -> &Page {
        match self.try_page(pfn) {
            Some(page) => page,
            None => unreachable!("M2: a block with memory has metadata for all its frames"),
        }
    }

    /// Whether the frame's metadata says that it is in this zone.
    pub(crate) fn holds(&self, page: &Page) -> bool {
        page.place()
            .same_zone(Place::new(self.nid, self.zone, MigrateType::Unmovable))
    }

    /// The first frame of the page block that `pfn` is in.
    pub(crate) const fn page_block(pfn: Pfn) -> Pfn {
        Pfn(pfn.0 & !(Self::PAGE_BLOCK_PAGES - 1))
    }

    /// The migrate type of the page block that `pfn` is in.
    pub(crate) fn block_type(&self, pfn: Pfn) -> MigrateType {
        self.page(Self::page_block(pfn)).place().migrate()
    }

    /// Pages in the free lists; out of date at once.
    pub(crate) fn free_pages(&self) -> usize {
        self.free.load(Ordering::Relaxed)
    }

    pub(crate) fn managed_pages(&self) -> usize {
        self.managed.load(Ordering::Relaxed)
    }
}

/// The metadata of a frame, if there is any.
pub(crate) fn page_of<H: Host>(host: &H, pfn: Pfn) -> Option<&Page> {
    let meta = host.meta(pfn)?;
    // SAFETY: M2: 64 bytes, aligned, at a constant address as long as the machine is there, zeroed at
    // first (all zero is a valid `Page`); shared access is through atomics (P1, P2). V1, D3: the same for device memory, until
    // it is removed, when nobody uses the reference any more.
    Some(unsafe { meta.cast::<Page>().as_ref() })
}

/// The order of `2^order` pages, for orders that are known to be small.
pub(crate) fn order(order: u32) -> Order {
    Order::new(order).unwrap_or_default()
}
