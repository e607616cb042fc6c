//! The machine's memory: frames in a static array, a record of 64 bytes for each, and a pool for what lives as long as the
//! machine.

use core::alloc::Layout;
use core::cell::UnsafeCell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::Board;
use flagstone_host::{Backing, META_BYTES, MemRange, PageMap, PhysMem};
use flagstone_types::{AllocError, Nid, Pfn, PfnRange, Zone};

const PAGE: usize = 4096;
/// Four blocks of the largest order.
const FRAMES: usize = 4 << 10;
const POOL_BYTES: usize = 256 << 10;

/// Bytes that start as zero and belong to whoever the layers above say.
#[repr(C, align(4096))]
struct Area<const BYTES: usize>(UnsafeCell<[u8; BYTES]>);

// SAFETY: E1.
unsafe impl<const BYTES: usize> Sync for Area<BYTES> {}

impl<const BYTES: usize> Area<BYTES> {
    const fn zeroed() -> Self {
        Self(UnsafeCell::new([0; BYTES]))
    }

    /// The address of the byte `offset`, which is below `BYTES`.
    fn at(&self, offset: usize) -> NonNull<u8> {
        NonNull::from(&self.0)
            .cast::<u8>()
            .map_addr(|start| start.saturating_add(offset))
    }
}

static MEMORY: Area<{ FRAMES * PAGE }> = Area::zeroed();
static RECORDS: Area<{ FRAMES * META_BYTES }> = Area::zeroed();
static POOL: Area<POOL_BYTES> = Area::zeroed();
static POOL_USED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: M2 by E2: one array of zeroed, aligned records for all frames. M3 by E3. M8: there is one node and one zone.
unsafe impl PageMap for Board {
    const PAGE_SHIFT: u32 = PAGE.trailing_zeros();

    fn meta(&self, pfn: Pfn) -> Option<NonNull<u8>> {
        (pfn.0 < FRAMES).then(|| RECORDS.at(pfn.0 * META_BYTES))
    }

    fn nid(&self, _pfn: Pfn) -> Nid {
        Nid(0)
    }

    fn boot_ranges(&self, each: &mut dyn FnMut(MemRange)) {
        each(MemRange {
            frames: PfnRange::new(Pfn(0), FRAMES),
            nid: Nid(0),
            zone: Zone::Normal,
        });
    }

    fn boot_alloc(&self, layout: Layout) -> Result<NonNull<u8>, AllocError> {
        // The pool is as aligned as a page; nothing asks for more.
        let start = POOL_USED
            .load(Ordering::Relaxed)
            .next_multiple_of(layout.align());
        let end = start
            .checked_add(layout.size())
            .filter(|&end| end <= POOL_BYTES);
        let (Some(end), true) = (end, layout.align() <= PAGE) else {
            return Err(AllocError::OutOfMemory);
        };
        POOL_USED.store(end, Ordering::Relaxed);
        Ok(POOL.at(start))
    }
}

// SAFETY: M1, M4 by E2: frames lie one after the other in one array.
unsafe impl PhysMem for Board {
    fn frame_ptr(&self, pfn: Pfn) -> NonNull<u8> {
        MEMORY.at(pfn.0 * PAGE)
    }

    fn pfn_of(&self, address: usize) -> Option<Pfn> {
        let offset = address.wrapping_sub(MEMORY.at(0).addr().get());
        (offset < FRAMES * PAGE).then_some(Pfn(offset / PAGE))
    }
}

/// Nobody owns the memory but the machine.
impl Backing for Board {}
