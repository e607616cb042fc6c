//! Memory of the machine: metadata, boot pool, frames (M2 to M4).
//!
//! [`prepare`] runs once on the first CPU, before anything else asks; afterwards all is constant but the cursor of the pool.

use core::alloc::Layout;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::command_line;
use crate::direct::{self, DIRECT, REACH};
use crate::kernel::Kernel;
use crate::plan::{BLOCK, PAGE, Plan};
use crate::start_info::StartInfo;
use flagstone_host::{Backing, META_BYTES, MemRange, PageMap, PhysMem};
use flagstone_types::{AllocError, Nid, Pfn};

const BLOCK_SHIFT: u32 = BLOCK.trailing_zeros() - PAGE.trailing_zeros();
const BLOCKS: usize = (REACH / BLOCK) as usize;

/// Where the metadata of frame 0 is.
static METADATA: AtomicPtr<u8> = AtomicPtr::new(null_mut());
/// The first frame above all memory.
static END: AtomicUsize = AtomicUsize::new(0);
/// Frames of a node.
static NODE_PAGES: AtomicUsize = AtomicUsize::new(0);
/// How many nodes there are.
static NODES: AtomicU32 = AtomicU32::new(1);
/// One bit for each largest block, set if the page allocator gets memory in it.
static PRESENT: [AtomicU64; BLOCKS / 64] = [const { AtomicU64::new(0) }; BLOCKS / 64];
/// The next free physical address of the boot pool, and the pool's end.
static POOL: AtomicU64 = AtomicU64::new(0);
static POOL_END: AtomicU64 = AtomicU64::new(0);
/// The ranges for the page allocator. Firmware's map has few, zones cut some in two.
static RANGES: [Range; 128] = [const { Range::new() }; 128];

struct Range {
    start: AtomicUsize,
    pages: AtomicUsize,
    zone: AtomicUsize,
    nid: AtomicU16,
}

impl Range {
    const fn new() -> Self {
        Self {
            start: AtomicUsize::new(0),
            pages: AtomicUsize::new(0),
            zone: AtomicUsize::new(0),
            nid: AtomicU16::new(0),
        }
    }
}

/// Plans memory by the firmware's map and clears the boot pool, which gets `pool` bytes besides metadata. `false` if there is too
/// little memory.
///
/// # Safety
/// Once, on the first CPU, before anything else here is used; `image_end` is the physical end of the image.
pub(crate) unsafe fn prepare(info: &StartInfo, image_end: u64, pool: u64, reach: u64) -> bool {
    /// Nodes that memory is cut into at most.
    const MOST_NODES: u64 = 8;
    let nodes = command_line::number("nodes").unwrap_or(1);
    let nodes = nodes.clamp(1, MOST_NODES) as u32;
    let Some(plan) = Plan::new(info.regions(), image_end, pool, reach, nodes) else {
        return false;
    };
    let bytes = (plan.pool.end - plan.pool.start) as usize;
    let start = direct::pointer(plan.pool.start);
    // SAFETY: M1, M2: mapped memory that nobody uses.
    unsafe { start.write_bytes(0, bytes) };
    METADATA.store(start.as_ptr(), Ordering::Relaxed);
    END.store(plan.end.0, Ordering::Relaxed);
    NODE_PAGES.store(plan.node_pages, Ordering::Relaxed);
    let nodes = plan.end.0.div_ceil(plan.node_pages);
    NODES.store(nodes as u32, Ordering::Relaxed);
    POOL.store(plan.pool.start + plan.metadata, Ordering::Relaxed);
    POOL_END.store(plan.pool.end, Ordering::Relaxed);
    let mut ranges = RANGES.iter();
    plan.ranges(info.regions(), reach, &mut |range| {
        let Some(slot) = ranges.next() else {
            return;
        };
        slot.start.store(range.frames.start.0, Ordering::Relaxed);
        slot.pages.store(range.frames.pages, Ordering::Relaxed);
        slot.zone.store(range.zone.index(), Ordering::Relaxed);
        slot.nid.store(range.nid.0, Ordering::Relaxed);
        let first = range.frames.start.0 >> BLOCK_SHIFT;
        let last = (range.frames.end().0 - 1) >> BLOCK_SHIFT;
        for block in first..=last {
            PRESENT[block / 64].fetch_or(1 << (block % 64), Ordering::Relaxed);
        }
    });
    true
}

/// The physical address after all memory.
pub(crate) fn end() -> u64 {
    END.load(Ordering::Relaxed) as u64 * PAGE
}

/// Memory nodes, at least 1.
#[inline]
pub(crate) fn nodes() -> u32 {
    NODES.load(Ordering::Relaxed)
}

#[inline]
fn is_present(pfn: Pfn) -> bool {
    let block = pfn.0 >> BLOCK_SHIFT;
    pfn.0 < END.load(Ordering::Relaxed)
        && PRESENT[block / 64].load(Ordering::Relaxed) >> (block % 64) & 1 != 0
}

// SAFETY: host M2 by M4: one array, so linear everywhere, made of zeroed pool memory at the start of a page; host M3 by M3;
// host M8: nodes and zones meet at multiples of the largest block (plan.rs).
unsafe impl PageMap for Kernel {
    const PAGE_SHIFT: u32 = 12;

    #[inline]
    fn meta(&self, pfn: Pfn) -> Option<NonNull<u8>> {
        if !is_present(pfn) {
            return None;
        }
        // SAFETY: M4: the array has an entry for every frame below END.
        NonNull::new(unsafe { METADATA.load(Ordering::Relaxed).add(pfn.0 * META_BYTES) })
    }

    #[inline]
    fn nid(&self, pfn: Pfn) -> Nid {
        Nid((pfn.0 / NODE_PAGES.load(Ordering::Relaxed)) as u16)
    }

    fn boot_ranges(&self, each: &mut dyn FnMut(MemRange)) {
        for range in &RANGES {
            let pages = range.pages.load(Ordering::Relaxed);
            if pages != 0 {
                each(MemRange {
                    frames: flagstone_types::PfnRange::new(
                        Pfn(range.start.load(Ordering::Relaxed)),
                        pages,
                    ),
                    nid: Nid(range.nid.load(Ordering::Relaxed)),
                    zone: flagstone_types::Zone::ALL[range.zone.load(Ordering::Relaxed)],
                });
            }
        }
    }

    fn boot_alloc(&self, layout: Layout) -> Result<NonNull<u8>, AllocError> {
        let (size, align) = (layout.size() as u64, layout.align() as u64);
        let end = POOL_END.load(Ordering::Relaxed);
        let mut at = 0;
        // Pool addresses are as aligned as their places in the direct map, up to its own alignment of 512 GiB.
        POOL.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
            at = next.checked_next_multiple_of(align)?;
            at.checked_add(size).filter(|&next| next <= end)
        })
        .map_err(|_| AllocError::OutOfMemory)?;
        Ok(direct::pointer(at))
    }
}

// SAFETY: host M1 and M4: the direct map is linear (M1).
unsafe impl PhysMem for Kernel {
    #[inline]
    fn frame_ptr(&self, pfn: Pfn) -> NonNull<u8> {
        direct::pointer((pfn.0 as u64).wrapping_mul(PAGE))
    }

    #[inline]
    fn pfn_of(&self, address: usize) -> Option<Pfn> {
        let pfn = Pfn(address.wrapping_sub(DIRECT) >> Self::PAGE_SHIFT);
        is_present(pfn).then_some(pfn)
    }
}

/// Nobody else owns the memory of a bare machine.
impl Backing for Kernel {}
