//! Making and releasing slabs.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};
use flagstone_frames::{PageBlock, PageKind};
use flagstone_host::{CpuCache, Event, Host, RcuHead};
use flagstone_types::{AllocError, Gfp, Nid, PfnRange};

use crate::cache::Cache;
use crate::caches::Caches;
use crate::layout::IndexPlace;
use crate::node::Doomed;
use crate::random::{IN_ORDER, Sequence};
use crate::record::{ListId, Record};

/// Flags of an object request that are about the object, or that a slab can not honour: it stays where it is, and whether it counts as reclaimable is
/// its cache's to say.
pub(crate) const NOT_FOR_PAGES: Gfp = Gfp::ZERO
    .union(Gfp::ACCOUNT)
    .union(Gfp::COMP)
    .union(Gfp::MOVABLE)
    .union(Gfp::RECLAIMABLE)
    .union(Gfp::WRITE);

/// A cache with so many slabs is likely to use up the next one: at most an eighth more memory is taken for it than is used.
const SLABS_OF_A_BUSY_CACHE: usize = 8;
/// Objects of at most so many bytes touch every page of a slab when all of them are used.
const SMALLEST_PAGE: usize = 4096;

impl<H: Host> Caches<H> {
    /// Makes a slab, on node `nid` if there is room. It is on no list and the caller's; it may lie on another node than asked.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`].
    pub(crate) fn grow(
        &self,
        cache: &Cache<H>,
        gfp: Gfp,
        nid: Nid,
    ) -> Result<(NonNull<Record<H>>, Nid), AllocError> {
        let host = self.host();
        let layout = &cache.layout;
        if cache.flags.typesafe_by_rcu && gfp.may_sleep() {
            // Slabs of its own may be waiting to go back. Who may not sleep may be in a read-side section (host G2).
            host.poll();
        }
        let index_object = match cache.index_cache {
            Some(index_cache) => {
                // SAFETY: the index cache is one of `kmalloc`'s, which live for ever (S10).
                let index_cache = unsafe { index_cache.as_ref() };
                Some(self.alloc(index_cache, gfp - Gfp::ZERO)?)
            }
            None => None,
        };
        // Who asked reports, if nothing else helps.
        let mut flags = (gfp - NOT_FOR_PAGES - Gfp::DMA) | cache.gfp | Gfp::NOWARN;
        if layout.order.get() > 0 {
            flags |= Gfp::COMP;
        }
        let block = self
            .frames
            .alloc_pages(flags, layout.order, Some(nid))
            .inspect_err(|_| {
                if let (Some(cache), Some(object)) = (cache.index_cache, index_object) {
                    // SAFETY: the index object was allocated above.
                    unsafe { self.free_own(cache.as_ref(), object) };
                }
            })?;
        let untouched = block.zero();
        let (pfn, _) = block.into_raw();
        let nid = host.nid(pfn);
        let fills_pages = layout.size as usize <= SMALLEST_PAGE;
        if untouched && fills_pages && cache.node(nid).slabs_hint() >= SLABS_OF_A_BUSY_CACHE {
            host.populate(PfnRange::new(pfn, layout.order.pages()));
        }
        let base = host.frame_ptr(pfn);
        if self.policy.layout.zeroed && !untouched {
            // SAFETY: the block is ours and of so many bytes (M1).
            unsafe { base.write_bytes(0, layout.order.bytes(H::PAGE_SHIFT)) };
        }
        let colour = self.next_colour(cache, nid);
        // SAFETY: the colour, the objects and the index lie within the block (layout), which is ours (M1).
        let (objects, index) = unsafe {
            let left = cache.debug.map_or(0, |shape| shape.left);
            let objects = base.add(colour as usize * layout.colour_step as usize + left as usize);
            let index = match (layout.place, index_object) {
                (IndexPlace::InObject, _) => objects
                    .add((layout.num as usize - 1) * layout.size as usize)
                    .as_ptr(),
                (IndexPlace::InRecord, _) => Record::<H>::all_free(layout.num),
                (_, Some(object)) => object.as_ptr(),
                (_, None) => base.add(layout.index_offset as usize).as_ptr(),
            };
            (objects, index)
        };
        let page = self.frames.page(pfn).ok_or(AllocError::InvalidArgument)?;
        let record = page.view().cast::<Record<H>>();
        let Some(slab) = NonNull::new(record) else {
            return Err(AllocError::InvalidArgument);
        };
        // SAFETY: the view of a block that we own is ours (S5).
        unsafe {
            slab.write(Record {
                links: Record::NO_LINKS,
                objects,
                index,
                cache: NonNull::from(cache),
                active: 0,
                written: 0,
                list: ListId::None,
                idle: false,
                start: IN_ORDER,
                place: AtomicU32::new(0),
            });
            if let Some(ctor) = cache.ctor {
                for i in 0..layout.num as usize {
                    ctor(objects.add(i * layout.size as usize)); // S7
                }
            }
            if let Some(shape) = &cache.debug {
                for i in 0..layout.num as usize {
                    self.debug_make(cache, shape, objects.add(i * layout.size as usize)); // S15
                }
            }
            if self.improvements.random_freelist() {
                self.ready_sequence(cache, gfp);
                let seed = cache.sequence.next_seed(|| host.random());
                if cache.sequence.exists() || layout.place == IndexPlace::InRecord {
                    (*record).shuffle(cache, Sequence::start(layout.num, seed));
                } else {
                    (*record).lay_index(cache, cache.sequence.order(layout.num, seed));
                }
            }
        }
        page.set_kind(PageKind::Slab);
        host.tag(PfnRange::new(pfn, layout.order.pages()), cache.array.tag());
        host.count(Event::SlabGrow, 1);
        Ok((slab, nid))
    }

    /// The colour of the next slab of a node.
    fn next_colour(&self, cache: &Cache<H>, nid: Nid) -> u32 {
        let node = cache.node(nid);
        let colours = cache.layout.colours;
        if colours == 1 {
            return 0;
        }
        // The published behaviour before the improvement advances it under the node's lock.
        let _lock = (!self.improvements.lockless_colour()).then(|| node.lock(cache, &self.frames));
        node.colour_next.fetch_add(1, Ordering::Relaxed) % colours
    }

    /// Computes the cache's random sequence if it has none yet and there is memory for it.
    fn ready_sequence(&self, cache: &Cache<H>, gfp: Gfp) {
        let bytes = cache.layout.num as usize * size_of::<u16>();
        if cache.sequence.exists() || !cache.sequence.begin() {
            return;
        }
        // The class that gives the memory may grow for it, and computes its own sequence first; should
        // that come back here, `begin` refuses and an order is computed on the fly.
        let flags = (gfp - NOT_FOR_PAGES - Gfp::DMA) | Gfp::NOWARN;
        match self.kmalloc(bytes, flags) {
            // SAFETY: `bytes` are room for `num` entries, kept until the cache is dismantled.
            Ok(memory) => unsafe {
                cache.sequence.publish(
                    memory.cast().as_ptr(),
                    cache.layout.num,
                    self.host().random(),
                );
            },
            Err(_) => cache.sequence.abandon(),
        }
    }

    /// Releases slabs that left their lists. Called with no node's lock held (host L2).
    pub(crate) fn release(&self, cache: &Cache<H>, mut doomed: Doomed<H>) -> usize {
        let mut released = 0;
        while let Some(slab) = doomed.pop() {
            released += 1;
            // SAFETY: a doomed slab is empty and ours.
            unsafe {
                if cache.flags.typesafe_by_rcu {
                    cache.deferred.fetch_add(1, Ordering::Relaxed);
                    let record = &raw mut (*slab.as_ptr()).links;
                    (*record).rcu = core::mem::ManuallyDrop::new(RcuHead::new());
                    // The record begins with its links, so the head's address is the record's (S11).
                    self.host().defer(slab.cast(), Self::release_deferred);
                } else {
                    self.release_slab(cache, slab);
                }
            }
        }
        if released > 0 {
            self.host().count(Event::SlabShrink, released as u64);
        }
        released
    }

    /// Releases a slab of a type-safe cache after its grace period.
    ///
    /// # Safety
    /// `head` is the beginning of an empty slab's record that nobody else has.
    unsafe fn release_deferred(head: NonNull<RcuHead>) {
        let slab = head.cast::<Record<H>>();
        // SAFETY: as promised; the cache is alive until `deferred` falls (S10), and so
        // are the caches it is among.
        unsafe {
            let cache = &*(*slab.as_ptr()).cache.as_ptr();
            let caches = &*cache.owner.as_ptr();
            caches.release_slab(cache, slab);
            // The last access: whoever destroys the cache waits for it.
            cache.deferred.fetch_sub(1, Ordering::Release);
        }
    }

    /// Frees an object of a size class that was a structure of ours.
    ///
    /// # Safety
    /// As for [`Caches::free`].
    pub(crate) unsafe fn free_own(&self, cache: &Cache<H>, object: NonNull<u8>) {
        self.host().returned(object, cache.layout.size as usize);
        // SAFETY: as promised.
        unsafe { self.free(cache, object) };
    }

    /// Gives a slab's pages back.
    ///
    /// # Safety
    /// The slab is empty, on no list, and nobody reads it any more.
    unsafe fn release_slab(&self, cache: &Cache<H>, slab: NonNull<Record<H>>) {
        let host = self.host();
        // SAFETY: as promised.
        let (objects, index) = unsafe { ((*slab.as_ptr()).objects, (*slab.as_ptr()).index) };
        let order = cache.layout.order;
        let Some(pfn) = host.pfn_of(objects.as_ptr().addr()) else {
            return;
        };
        // The objects may begin in a later page of the block than its head.
        let Some((pfn, page)) = self.frames.head(pfn) else {
            return;
        };
        let frames = PfnRange::new(pfn, order.pages());
        host.tag(frames, 0);
        page.set_kind(PageKind::Allocated);
        if host.reopen(frames) {
            // SAFETY: the block was taken apart in `grow` and is whole again.
            self.frames
                .free_pages(unsafe { PageBlock::from_raw(pfn, order) });
        }
        if let (Some(index_cache), Some(index)) = (cache.index_cache, NonNull::new(index)) {
            // SAFETY: the index of an off-slab layout is an object of that cache, and its slab is gone.
            unsafe { self.free_own(index_cache.as_ref(), index) };
        }
    }
}
