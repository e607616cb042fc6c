//! Memory: the direct map, metadata of pages, and who owns the memory behind it.

use core::alloc::Layout;
use core::ptr::NonNull;
use flagstone_types::{AllocError, Nid, Pfn, PfnRange, Zone};

/// Bytes of metadata per page frame.
pub const META_BYTES: usize = 64;

/// A run of page frames that exists when the machine starts or that was added later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemRange {
    /// The frames.
    pub frames: PfnRange,
    /// The node they are in.
    pub nid: Nid,
    /// The zone they are in.
    pub zone: Zone,
}

/// Page frames and their metadata.
///
/// # Safety
/// An implementation promises (clauses of `MODEL.md`):
/// - **M2** [`PageMap::meta`] answers for every frame of every largest-order block that holds any
///   memory, always with the same address, linear within that block, 64-byte aligned, zeroed when it first answers;
/// - **M3** [`PageMap::boot_alloc`] returns zeroed memory that nobody else uses, for ever;
/// - **M8** a largest-order block never mixes nodes or zones.
pub unsafe trait PageMap {
    /// A page frame has `2^PAGE_SHIFT` bytes: 12, 14 or 16.
    const PAGE_SHIFT: u32;
    /// A page frame in bytes.
    const PAGE_SIZE: usize = 1 << Self::PAGE_SHIFT;
    /// The largest order of the buddy lists (Linux: 10).
    const MAX_ORDER: u32 = 10;
    /// Frames whose metadata fill one page.
    const RECORDS: usize = Self::PAGE_SIZE / META_BYTES;

    /// The 64 bytes of metadata of a frame, `None` where no memory can be.
    fn meta(&self, pfn: Pfn) -> Option<NonNull<u8>>;

    /// The node of a frame that [`PageMap::meta`] answers for; constant, by arithmetic.
    fn nid(&self, pfn: Pfn) -> Nid;

    /// The memory that is there at start, in pieces, each within one zone of one node.
    fn boot_ranges(&self, each: &mut dyn FnMut(MemRange));

    /// Memory for structures that live as long as the machine, before and
    /// below the buddy lists; zeroed.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`] if there is none.
    fn boot_alloc(&self, layout: Layout) -> Result<NonNull<u8>, AllocError>;
}

/// The direct map: frames that have a constant address.
///
/// # Safety
/// An implementation promises (clauses of `MODEL.md`):
/// - **M1** [`PhysMem::frame_ptr`] is injective, constant, page-aligned, and linear with one provenance over any run of
///   frames of one zone for which `meta` answers;
/// - **M4** [`PhysMem::pfn_of`] is the inverse of `frame_ptr` for any address within the frame.
pub unsafe trait PhysMem: PageMap {
    /// Where the frame is mapped. Meaningful for frames that [`PageMap::meta`] answers for.
    fn frame_ptr(&self, pfn: Pfn) -> NonNull<u8>;

    /// The frame that `address` lies in, `None` if it is outside the direct map of managed memory.
    fn pfn_of(&self, address: usize) -> Option<Pfn>;

    /// Notes that objects in `frames` belong to the array with this tag (0: to none; their objects never
    /// enter an array), where a host finds an object's array by a map. A host without such a map does nothing. May run
    /// beside a free, which sees the old tag or the new one (A12).
    fn tag(&self, frames: PfnRange, tag: u16) {
        let _ = (frames, tag);
    }

    /// Makes frames that belonged to a slab accessible in whole again, where the host took that from a part of them when they were tagged. `false` if
    /// it can not: the frames are lost.
    fn reopen(&self, frames: PfnRange) -> bool {
        let _ = frames;
        true
    }

    /// Notes that the object of `bytes` bytes at `object`, of a size class that the host hands out too, was a structure of the
    /// core's own and is about to be freed, for a host whose free objects have contents (A13). The host may write to it.
    fn returned(&self, object: NonNull<u8>, bytes: usize) {
        let _ = (object, bytes);
    }
}

/// The owner of the memory behind the frames: a hypervisor, an operating system, or
/// nobody (then every method has its trivial form).
///
/// Frames that a host adds are *committed*: they can be read and written.
pub trait Backing {
    /// Whether [`Backing::release`] does anything.
    const CAN_RELEASE: bool = false;

    /// Makes frames readable and writable, and the metadata of every largest-order block they are in. Frames are committed once, before
    /// they are added to a zone; committing them again is harmless.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`] if the owner refuses; nothing has changed.
    fn commit(&self, frames: PfnRange) -> Result<(), AllocError> {
        let _ = frames;
        Ok(())
    }

    /// Gives the memory behind free frames back. They stay usable and read as
    /// zero from now on. `false` if the owner did not take (all of) it: each page then is as before or reads as zero,
    /// and all still count as touched (M6).
    fn release(&self, frames: PfnRange) -> bool {
        let _ = frames;
        false
    }

    /// Told that free frames are about to be handed out. Returns whether all of them are known to
    /// be zero, and forgets it.
    fn take(&self, frames: PfnRange) -> bool {
        let _ = frames;
        false
    }

    /// Told that the caller's frames, known to be zero, will be used up soon and in full: an owner that hands memory out page by
    /// page may do so for all of them at once. Contents stay zero.
    fn populate(&self, frames: PfnRange) {
        let _ = frames;
    }

    /// How many of the free frames in `frames` have contents, that is: are not known to be zero and
    /// would give memory back if they were released.
    fn touched(&self, frames: PfnRange) -> usize {
        frames.pages
    }
}
