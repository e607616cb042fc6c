//! The record of a page of tables: its lock, its deferred free, its fragments. It is the owner's view of the page's metadata.

use crate::level::TableLevel;
use core::cell::UnsafeCell;
use core::mem::offset_of;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use flagstone_frames::{Frames, Page, PageBlock, PageKind};
use flagstone_host::{Host, RcuHead};
use flagstone_types::{Order, Pfn, PhysAddr};

/// What is known of a page (or block of pages) that holds tables.
///
/// Shared by everybody who reached one of its tables (D6): the lock and the counts are atomic, the rest does not change from [`Record::init`] to the
/// deferred free but for `rcu`, which is the grace period's from the moment that `live` has become 0.
#[repr(C)]
pub(crate) struct Record<H: Host> {
    /// A `H::Lock<L::Class>` of the level `L` of its tables.
    lock: UnsafeCell<[u64; 2]>,
    rcu: UnsafeCell<RcuHead>,
    /// Of the root: the allocator; of others: the root's record.
    owner: Owner<H>,
    pfn: Pfn,
    /// Fragments that are not dead.
    live: AtomicU16,
    level: u8,
    /// Of the root: pages whose free is deferred.
    deferred: AtomicU32,
}

#[derive(Clone, Copy)]
pub(crate) union Owner<H: Host> {
    pub(crate) frames: *const Frames<H>,
    pub(crate) root: *const Record<H>,
}

const TOP: u8 = 0x80;

impl<H: Host> Record<H> {
    const FITS: () = assert!(size_of::<Self>() <= 56 && align_of::<Self>() <= 8);

    /// Where the record of the page is.
    #[inline(always)]
    pub(crate) fn of(page: &Page) -> NonNull<Self> {
        const { Self::FITS };
        // SAFETY: a view is never null.
        unsafe { NonNull::new_unchecked(page.view().cast()) }
    }

    /// Makes a page of tables of level `L` of it. `is_root` says which of its forms `owner` has.
    ///
    /// # Safety
    /// The caller owns the block (F1), nobody else has a pointer to its record.
    pub(crate) unsafe fn init<L: TableLevel>(
        page: &Page,
        pfn: Pfn,
        tables: u16,
        owner: Owner<H>,
        is_root: bool,
    ) {
        const {
            assert!(
                size_of::<H::Lock<L::Class>>() <= 16 && align_of::<H::Lock<L::Class>>() <= 8,
                "a lock of a table has at most 16 bytes"
            );
        }
        let this = Self::of(page);
        // SAFETY: P3: the view is the owner's, and the caller is; the lock's place is large enough (asserted).
        unsafe {
            this.write(Self {
                lock: UnsafeCell::new([0; 2]),
                rcu: UnsafeCell::new(RcuHead::new()),
                owner,
                pfn,
                live: AtomicU16::new(tables),
                level: L::LEVEL.get() | if is_root { TOP } else { 0 },
                deferred: AtomicU32::new(0),
            });
            this.as_ref()
                .lock
                .get()
                .cast::<H::Lock<L::Class>>()
                .write(<H::Lock<L::Class> as lock_api::RawMutex>::INIT);
        }
        page.set_kind(PageKind::Table);
    }

    /// The lock.
    ///
    /// # Safety
    /// The record is of a page of tables of level `L`.
    #[inline(always)]
    pub(crate) unsafe fn lock<L: TableLevel>(&self) -> &H::Lock<L::Class> {
        debug_assert_eq!(self.level & !TOP, L::LEVEL.get());
        // SAFETY: `init` wrote it, for the same level; a lock is changed through shared references only.
        unsafe { &*self.lock.get().cast() }
    }

    /// Counts one table of the page as dead; whether it was the last one.
    pub(crate) fn lose_table(&self, tables: u16) -> bool {
        self.live.fetch_sub(tables, Ordering::AcqRel) == tables
    }

    /// Pages of tables whose free is deferred; of a root's record.
    pub(crate) fn deferred(&self) -> u32 {
        self.deferred.load(Ordering::Acquire)
    }

    fn root(&self) -> &Self {
        if self.level & TOP != 0 {
            return self;
        }
        // SAFETY: D7: the root's record outlives all others: dropping the page table waits for `deferred`.
        unsafe { &*self.owner.root }
    }

    fn frames(&self) -> *const Frames<H> {
        // SAFETY: `init`: a root's owner is the allocator.
        unsafe { self.root().owner.frames }
    }

    /// Gives the page back.
    ///
    /// # Safety
    /// Every table in it is dead or was never linked, and nobody reaches it any more (D6, E1). Once.
    pub(crate) unsafe fn free_now(this: NonNull<Self>, page: &Page) {
        // SAFETY: the record is there until the page is freed, below.
        let (frames, pfn) = unsafe { (this.as_ref().frames(), this.as_ref().pfn) };
        // SAFETY: F1: the block became this page table's by `into_raw`, and goes back once.
        let block = unsafe { PageBlock::from_raw(pfn, page.order()) };
        // SAFETY: the allocator outlives the page table.
        unsafe { (*frames).free_pages(block) };
    }

    /// Gives the page back after a grace period (D6).
    ///
    /// # Safety
    /// Every table in it is dead, and was invalidated with `tables`. Once.
    pub(crate) unsafe fn free_after_grace(this: NonNull<Self>, host: &H) {
        // SAFETY: the record is there until `finish_deferred`.
        let record = unsafe { this.as_ref() };
        record.root().deferred.fetch_add(1, Ordering::AcqRel);
        // SAFETY: the pointer is to a field of a record.
        let head = unsafe { NonNull::new_unchecked(record.rcu.get()) };
        // SAFETY: G1: the head stays valid and untouched: the page is freed by the call only.
        unsafe { host.defer(head, Self::finish_deferred) };
    }

    unsafe fn finish_deferred(head: NonNull<RcuHead>) {
        // SAFETY: `free_after_grace` gave the head of a record.
        let this = unsafe { head.byte_sub(offset_of!(Self, rcu)).cast::<Self>() };
        // SAFETY: the record is there until the page is freed, below; the root's is longer.
        let (root, frames, pfn) = unsafe {
            let record = this.as_ref();
            (
                NonNull::from(record.root()),
                record.frames(),
                this.as_ref().pfn,
            )
        };
        // SAFETY: the allocator outlives the page table, whose drop waits for this call.
        let frames = unsafe { &*frames };
        if let Some(page) = frames.page(pfn) {
            // SAFETY: G1: every section that existed when the tables died has ended, so nobody reaches them (D6).
            unsafe { Self::free_now(this, page) };
        }
        // SAFETY: the root's record is there until `deferred` is 0.
        let before = unsafe { root.as_ref() }
            .deferred
            .fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before != 0, "the page table of a deferred free has gone");
    }
}

/// Where the frame at `at` begins, in a host with pages of `2^H::PAGE_SHIFT` bytes.
#[inline(always)]
pub(crate) fn frame_of<H: Host>(at: PhysAddr) -> Pfn {
    Pfn((at.0 >> H::PAGE_SHIFT) as usize)
}

/// The address of a frame.
#[inline(always)]
pub(crate) fn address_of<H: Host>(pfn: Pfn) -> PhysAddr {
    PhysAddr((pfn.0 as u64) << H::PAGE_SHIFT)
}

/// The order of the block that holds tables of so many bytes, and how many of them fit.
#[inline(always)]
pub(crate) fn shape<H: Host>(bytes: usize) -> (Order, u16) {
    let pages = bytes.div_ceil(H::PAGE_SIZE);
    let order = Order::covering(pages).unwrap_or_default();
    (order, (H::PAGE_SIZE / bytes).clamp(1, 1 << 12) as u16)
}
