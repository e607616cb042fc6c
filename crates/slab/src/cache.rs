//! A cache: objects of one size, their arrays, their nodes.

use core::fmt;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};
use flagstone_frames::{Frames, PageKind, PageRun};
use flagstone_host::Host;
use flagstone_types::{FreeError, Gfp, Nid};

use crate::caches::Caches;
use crate::debug::Shape;
use crate::layout::Layout;
use crate::node::Node;
use crate::random::Sequence;
use crate::record::Record;
use crate::slot::CpuSlabs;
use crate::unarrayed::Reasons;

/// Runs once on every object of a new slab.
pub type Constructor = unsafe fn(NonNull<u8>);

/// Properties of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheFlags {
    /// The pages of its slabs go back only after a grace period: a reader that found an object
    /// without a lock may look at it until then (`SLAB_TYPESAFE_BY_RCU`).
    pub typesafe_by_rcu: bool,
    /// The objects can be given back by a shrinker (`SLAB_RECLAIM_ACCOUNT`).
    pub reclaimable: bool,
    /// From the DMA zone (`SLAB_CACHE_DMA`).
    pub dma: bool,
    /// Objects are aligned to a cache line if they are not much smaller (`SLAB_HWCACHE_ALIGN`).
    pub hwcache_align: bool,
    /// Never shared with another cache of the same shape (`SLAB_NO_MERGE`).
    pub no_merge: bool,
    /// Objects are zeroed when they are freed, so no index may lie in them. Every free must be seen for
    /// that, so such a cache uses no arrays.
    pub zero_on_free: bool,
}

/// The part of an object that may be copied to and from user space, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserCopy {
    /// Where it starts in the object.
    pub offset: u32,
    /// How long it is; 0 forbids copies.
    pub size: u32,
}

/// A cache's name, cut at 31 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Name {
    bytes: [u8; 31],
    len: u8,
}

impl Name {
    pub(crate) const LONGEST: usize = 31;

    pub(crate) fn new(name: &str) -> Self {
        let mut len = name.len().min(Self::LONGEST);
        while !name.is_char_boundary(len) {
            len -= 1;
        }
        let mut bytes = [0; 31];
        bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
        Self {
            bytes,
            len: len as u8,
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        core::str::from_utf8(&self.bytes[..self.len as usize]).unwrap_or("?")
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

/// The neighbours of a cache on the list of caches; protected by its lock.
#[derive(Clone, Copy)]
pub(crate) struct CacheLinks<H: Host> {
    pub(crate) next: *mut Cache<H>,
    pub(crate) prev: *mut Cache<H>,
}

/// An object cache. Made by [`Caches::create`](crate::Caches::create), used through the methods of
/// [`Caches`]. Its address is constant while it exists (S10).
pub struct Cache<H: Host> {
    /// The fast path; first, so that a free finds it without an addition.
    pub(crate) array: ManuallyDrop<H::Array>,
    pub(crate) layout: Layout,
    /// `2^40 / size` rounded up, or 0 where that would not divide exactly.
    pub(crate) reciprocal: u64,
    pub(crate) object_size: u32,
    /// Objects that move at once between array and node.
    pub(crate) batch: AtomicU32,
    /// The limit that a CPU's array gets when it is first used; 0 while arrays are switched off.
    pub(crate) limit: AtomicU32,
    /// Why it is without arrays.
    pub(crate) reasons: Reasons,
    /// What `limit` is while arrays are on; 0 for a cache that must see every object.
    pub(crate) first_limit: u32,
    pub(crate) capacity: u32,
    /// Joined to the flags of every page request.
    pub(crate) gfp: Gfp,
    pub(crate) flags: CacheFlags,
    /// What debugging keeps with each object, if the cache is debugged.
    pub(crate) debug: Option<Shape>,
    pub(crate) usercopy: UserCopy,
    pub(crate) ctor: Option<Constructor>,
    pub(crate) name: Name,
    pub(crate) sequence: Sequence,
    pub(crate) nodes: NonNull<Node<H>>,
    pub(crate) node_count: u32,
    /// What its alien caches or its CPUs' slots are in.
    pub(crate) memory: Option<PageRun>,
    pub(crate) cpu_slabs: CpuSlabs<H>,
    /// The cache whose objects hold the indexes of an off-slab layout.
    pub(crate) index_cache: Option<NonNull<Cache<H>>>,
    /// How many `create` calls this cache stands for.
    pub(crate) users: AtomicU32,
    pub(crate) links: CacheLinks<H>,
    /// Slabs whose pages wait for a grace period; destruction waits for them.
    pub(crate) deferred: AtomicU32,
    /// The caches it is among, for deferred calls.
    pub(crate) owner: NonNull<Caches<H>>,
}

// SAFETY: everything reachable from a cache is atomic or behind a lock; the raw pointers are constant (S10) or
// protected by the list's lock.
unsafe impl<H: Host> Send for Cache<H> {}
// SAFETY: as above.
unsafe impl<H: Host> Sync for Cache<H> {}

impl<H: Host> Cache<H> {
    /// Zeroes an object for a request that asks for it. An object with a constructor stays in its constructed state.
    ///
    /// # Safety
    /// The object is one of this cache and the caller's.
    #[inline]
    pub(crate) unsafe fn clear(&self, object: NonNull<u8>) {
        if self.ctor.is_none() {
            // SAFETY: as promised; an object has so many bytes, of which the owner may touch what it asked for (S15).
            unsafe {
                let bytes = match &self.debug {
                    Some(shape) => shape.requested(object).min(self.object_size()),
                    None => self.object_size(),
                };
                object.write_bytes(0, bytes);
            }
        }
    }

    /// The name it was made with, cut at 31 bytes.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// Bytes of an object as asked for.
    #[must_use]
    pub const fn object_size(&self) -> usize {
        self.object_size as usize
    }

    /// Bytes of an object that its user may use: all of the stride, or what [`Cache::object_size`] says where the rest is
    /// spoken for.
    #[must_use]
    pub const fn usable_size(&self) -> usize {
        if self.keeps_contents() || self.debug.is_some() {
            self.object_size as usize
        } else {
            self.layout.size as usize
        }
    }

    /// Whether what is in a free object matters to somebody (S7).
    pub(crate) const fn keeps_contents(&self) -> bool {
        self.ctor.is_some() || self.flags.typesafe_by_rcu || self.flags.zero_on_free
    }

    /// How its slabs are cut.
    #[must_use]
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Whether its objects are debugged.
    #[must_use]
    pub const fn is_debugged(&self) -> bool {
        self.debug.is_some()
    }

    /// The host's array behind the fast path.
    #[must_use]
    pub fn array(&self) -> &H::Array {
        &self.array
    }

    /// Objects that move at once between a CPU's array and its node.
    #[must_use]
    pub fn batch(&self) -> u32 {
        self.batch.load(Ordering::Relaxed)
    }

    /// What may be copied to and from user space.
    #[must_use]
    pub const fn usercopy(&self) -> UserCopy {
        self.usercopy
    }

    /// The factor for [`Cache::divide`], 0 if no 64-bit one is exact for offsets below `bytes`.
    pub(crate) const fn reciprocal_of(size: u32, bytes: usize) -> u64 {
        // With r = ceil(2^40 / size), r * size - 2^40 < size, so offset * r / 2^40 is exact while
        // offset * size < 2^40; and offset * r < 2^64 while offset < 2^26 and size >= 4.
        if bytes <= 1 << 26 && size >= 4 && (bytes as u64) < (1 << 40) / size as u64 {
            (1u64 << 40).div_ceil(size as u64)
        } else {
            0
        }
    }

    /// `offset / size`; for offsets beyond the slab some number that is not below `num`, or whatever
    /// object the wrapped product names, which the caller's remainder check refuses.
    #[inline]
    pub(crate) fn divide(&self, offset: usize) -> usize {
        if self.reciprocal != 0 && offset < 1 << 26 {
            ((offset as u64 * self.reciprocal) >> 40) as usize
        } else {
            offset / self.layout.size as usize
        }
    }

    pub(crate) const fn reciprocal(layout: &Layout, page_shift: u32) -> u64 {
        Self::reciprocal_of(layout.size, layout.order.bytes(page_shift))
    }

    /// The node part of node `nid`.
    #[inline]
    pub(crate) fn node(&self, nid: Nid) -> &Node<H> {
        let at = u32::from(nid.0).min(self.node_count - 1);
        // SAFETY: there are `node_count` nodes, made with the cache, alive as long as it (S10).
        unsafe { self.nodes.add(at as usize).as_ref() }
    }

    pub(crate) fn each_node(&self) -> impl Iterator<Item = &Node<H>> {
        (0..self.node_count as u16).map(|nid| self.node(Nid(nid)))
    }

    /// The slab that `object` lies in: the address of its block, its node, its record.
    ///
    /// # Errors
    /// If the pointer is in no slab of this cache.
    #[inline]
    pub(crate) fn slab_of(
        &self,
        frames: &Frames<H>,
        object: NonNull<u8>,
    ) -> Result<(usize, Nid, NonNull<Record<H>>), FreeError> {
        let host = frames.host();
        let pfn = host
            .pfn_of(object.as_ptr().addr())
            .ok_or(FreeError::Foreign)?;
        let (head, page) = frames.head(pfn).ok_or(FreeError::NotAllocated)?;
        if page.kind() != PageKind::Slab {
            return Err(FreeError::NotAllocated);
        }
        let record =
            NonNull::new(page.view().cast::<Record<H>>()).ok_or(FreeError::NotAllocated)?;
        // SAFETY: the page is the head of a slab, so its view is a record, whose `cache` is constant (S5, S9).
        let owner = unsafe { (&raw const (*record.as_ptr()).cache).read() };
        if !core::ptr::eq(owner.as_ptr(), self) {
            return Err(FreeError::WrongCache);
        }
        Ok((host.frame_ptr(head).as_ptr().addr(), host.nid(head), record))
    }

    /// Whether an object of this cache starts at `object`.
    ///
    /// # Errors
    /// What is there instead.
    pub(crate) fn start_of(
        &self,
        frames: &Frames<H>,
        object: NonNull<u8>,
    ) -> Result<(), FreeError> {
        let (_, _, slab) = self.slab_of(frames, object)?;
        // SAFETY: the slab's `objects` is constant (S5), and nothing else of the record is read.
        let objects = unsafe { (&raw const (*slab.as_ptr()).objects).read() };
        self.number_in(objects, object).map(drop)
    }

    /// The number of the object at `object` in the slab whose first object is at `objects`, or what is wrong with the pointer.
    ///
    /// # Errors
    /// [`FreeError::NotAllocated`] beside the objects, [`FreeError::Interior`] inside of one.
    #[inline]
    pub(crate) fn number_in(
        &self,
        objects: NonNull<u8>,
        object: NonNull<u8>,
    ) -> Result<u32, FreeError> {
        let offset = object.as_ptr().addr().wrapping_sub(objects.as_ptr().addr());
        let number = self.divide(offset);
        if number >= self.layout.num as usize {
            return Err(FreeError::NotAllocated);
        }
        match offset - number * self.layout.size as usize {
            0 => Ok(number as u32),
            offset => Err(FreeError::Interior { offset }),
        }
    }
}

impl<H: Host> fmt::Debug for Cache<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache")
            .field("name", &self.name())
            .field("object_size", &self.object_size)
            .field("layout", &self.layout)
            .finish_non_exhaustive()
    }
}
