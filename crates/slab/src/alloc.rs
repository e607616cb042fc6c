//! Allocation: the fast path, and what happens when a CPU's array is empty.

use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use flagstone_host::{CpuCache, Event, Host};
use flagstone_types::{AllocError, CpuId, Gfp, Nid};

use crate::cache::Cache;
use crate::caches::Caches;
use crate::node::{Node, Strays};
use crate::unarrayed::Reasons;

/// Objects that move through the stack at once between slabs and an array.
pub(crate) const CHUNK: usize = Strays::MOST;

impl<H: Host> Cache<H> {
    /// The limit of a CPU's array, after giving it its first one if the cache has arrays at all.
    pub(crate) fn ready_limit(&self, host: H, cpu: CpuId) -> u32 {
        let limit = self.array.limit(cpu);
        if limit != 0 {
            return limit;
        }
        self.set_array_limit(host, cpu, self.first_limit)
    }

    /// Sets the limit of one CPU's array unless arrays are switched off, and returns what it is now. The read-side section keeps
    /// somebody who switches them off from believing that it is done before this has had its effect (see `set_arrays`).
    pub(crate) fn set_array_limit(&self, host: H, cpu: CpuId, limit: u32) -> u32 {
        let _reader = host.read();
        if self.limit.load(Ordering::SeqCst) == 0 {
            return 0;
        }
        self.array.set_limit(cpu, limit);
        limit
    }

    /// How many objects to move between an array with this limit and the node.
    pub(crate) fn batch_for(&self, limit: u32, adaptive: bool) -> usize {
        if adaptive {
            (limit / 2).max(limit.min(1)) as usize
        } else {
            self.batch().min(limit) as usize
        }
    }
}

impl<H: Host> Caches<H> {
    /// An object of `cache`, zeroed if the flags say so (but one with a constructor is as constructed).
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`].
    #[inline]
    pub fn alloc(&self, cache: &Cache<H>, gfp: Gfp) -> Result<NonNull<u8>, AllocError> {
        let object = match cache.array.pop() {
            Some(object) => object,
            None => self.alloc_slow(cache, gfp)?,
        };
        if gfp.contains(Gfp::ZERO) {
            // SAFETY: the object is ours.
            unsafe { cache.clear(object) };
        }
        Ok(object)
    }

    /// Fills `into` with objects of `cache`; all or none.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`]; then nothing was allocated.
    pub fn alloc_bulk<'a>(
        &self,
        cache: &Cache<H>,
        gfp: Gfp,
        into: &'a mut [core::mem::MaybeUninit<NonNull<u8>>],
    ) -> Result<&'a mut [NonNull<u8>], AllocError> {
        let mut n = cache.array.pop_n(into);
        while n < into.len() {
            match self.alloc_slow(cache, gfp) {
                Ok(object) => {
                    into[n].write(object);
                    n += 1;
                }
                Err(error) => {
                    // SAFETY: the first `n` were written and are ours.
                    unsafe { self.free_bulk(cache, into[..n].assume_init_ref()) };
                    return Err(error);
                }
            }
            n += cache.array.pop_n(&mut into[n..]);
        }
        // SAFETY: all were written.
        let objects = unsafe { into.assume_init_mut() };
        if gfp.contains(Gfp::ZERO) {
            for object in &*objects {
                // SAFETY: the object is ours.
                unsafe { cache.clear(*object) };
            }
        }
        Ok(objects)
    }

    /// An object of `cache` from node `nid` if there is memory there, else from the nearest that has some;
    /// with [`Gfp::THISNODE`], from that node or not at all.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`]; [`AllocError::InvalidArgument`] if there is no such node.
    pub fn alloc_node(
        &self,
        cache: &Cache<H>,
        gfp: Gfp,
        nid: Nid,
    ) -> Result<NonNull<u8>, AllocError> {
        if u32::from(nid.0) >= self.nodes {
            return Err(AllocError::InvalidArgument);
        }
        if nid == self.host().current_node() && !gfp.contains(Gfp::THISNODE) {
            return self.alloc(cache, gfp);
        }
        let gfp = self.fix_up(gfp);
        if self.is_to_fail(cache, gfp) {
            return Err(AllocError::OutOfMemory);
        }
        let object = self.alloc_from_nodes(cache, gfp, nid)?;
        if let Some(shape) = &cache.debug {
            self.debug_alloc(cache, shape, object, cache.object_size());
        }
        if gfp.contains(Gfp::ZERO) {
            // SAFETY: the object is ours.
            unsafe { cache.clear(object) };
        }
        Ok(object)
    }

    /// The way when the CPU's array is empty or stopped.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`].
    #[cold]
    #[inline(never)]
    pub fn alloc_slow(&self, cache: &Cache<H>, gfp: Gfp) -> Result<NonNull<u8>, AllocError> {
        self.alloc_sized_slow(cache, gfp, cache.object_size())
    }

    /// As [`Caches::alloc`] for a request of `size` bytes, at most an object's: where the cache is debugged, what lies behind them must not be
    /// touched.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`].
    #[inline]
    pub fn alloc_sized(
        &self,
        cache: &Cache<H>,
        gfp: Gfp,
        size: usize,
    ) -> Result<NonNull<u8>, AllocError> {
        let object = match cache.array.pop() {
            Some(object) => object,
            None => self.alloc_sized_slow(cache, gfp, size)?,
        };
        if gfp.contains(Gfp::ZERO) {
            // SAFETY: the object is ours.
            unsafe { cache.clear(object) };
        }
        Ok(object)
    }

    fn alloc_sized_slow(
        &self,
        cache: &Cache<H>,
        gfp: Gfp,
        size: usize,
    ) -> Result<NonNull<u8>, AllocError> {
        let object = self.alloc_unseen(cache, gfp)?;
        if let Some(shape) = &cache.debug {
            self.debug_alloc(cache, shape, object, size);
        }
        Ok(object)
    }

    fn alloc_unseen(&self, cache: &Cache<H>, gfp: Gfp) -> Result<NonNull<u8>, AllocError> {
        let gfp = self.fix_up(gfp);
        if cache.reasons.has(Reasons::INJECT | Reasons::PLACE) {
            if self.is_to_fail(cache, gfp) {
                return Err(AllocError::OutOfMemory);
            }
            if let Some(policy) = self.machine_policy() {
                return self.alloc_by_machine(cache, gfp, policy);
            }
        }
        self.alloc_here(cache, gfp)
    }

    /// An object from the node that this runs on, or the nearest to it, by way of the CPU's array.
    pub(crate) fn alloc_here(&self, cache: &Cache<H>, gfp: Gfp) -> Result<NonNull<u8>, AllocError> {
        let nid = self.host().current_node();
        let node = cache.node(nid);
        self.host().count(Event::SlabRefill, 1);
        if node.flushed.load(Ordering::Relaxed) {
            self.ready_shared(cache, nid, gfp & (Gfp::RECLAIM | Gfp::NORETRY));
        }
        let mut recalled = false;
        loop {
            if let Some(object) = self.refill_from_slot(cache, nid) {
                return Ok(object);
            }
            // An unlocked look (S4): growing needs no lock until the slab is linked.
            if (!self.improvements.lockless_look() || node.looks_stocked())
                && let Some(object) = self.refill(cache, node)
            {
                return Ok(object);
            }
            node.emptied.store(true, Ordering::Relaxed);
            let local = if self.nodes > 1 {
                gfp | Gfp::THISNODE | Gfp::NOWARN
            } else {
                gfp
            };
            match self.grow_for(cache, local, nid) {
                Ok(Some(object)) => return Ok(object),
                Ok(None) => {}
                // Before there is none, what other CPUs' slots have is made everybody's.
                Err(_)
                    if !core::mem::replace(&mut recalled, true) && self.recall_slabs(cache) > 0 => {
                }
                Err(_) if self.nodes > 1 && !gfp.contains(Gfp::THISNODE) => {
                    return self.alloc_from_nodes(cache, gfp, nid);
                }
                Err(error) => {
                    self.report_out_of_memory(cache, gfp, nid);
                    return Err(error);
                }
            }
        }
    }

    /// Moves a batch from the node into the CPU's array, and hands out one more.
    fn refill(&self, cache: &Cache<H>, node: &Node<H>) -> Option<NonNull<u8>> {
        let cpu = self.host().current_cpu();
        let limit = cache.ready_limit(self.host(), cpu);
        let batch = cache.batch_for(limit, self.policy.adaptive);
        self.widen(cache, cpu, limit, &node.flushed);
        node.refilled.store(true, Ordering::Relaxed);
        let mut locked = node.lock(cache, &self.frames);
        let lists = &mut *locked.lists;
        let shared = &mut lists.shared;
        if let [rest @ .., object] = shared.objects() {
            let object = *object;
            let from = rest.len() - batch.min(rest.len());
            // SAFETY: objects in the shared array are free and ours under the lock (S1, S8).
            let moved = unsafe { cache.array.push_n(&rest[from..]) };
            shared.drop_top(moved + 1);
            locked.steps += moved as u64 + 1;
            return Some(object);
        }
        node.emptied.store(true, Ordering::Relaxed);
        let mut buffer = [NonNull::dangling(); CHUNK];
        let mut object = None;
        let mut left = batch + 1;
        while left > 0 {
            let n = locked.take(&mut buffer[..left.min(CHUNK)]);
            if n == 0 {
                break;
            }
            left -= n;
            let spare = self.stock_array(cache, &mut buffer[..n], &mut object);
            if !spare.is_empty() {
                locked.restore(spare);
                break;
            }
        }
        object
    }

    /// Pushes newly taken objects on the CPU's array, the first of them on top, after keeping the very first for the caller;
    /// returns those that found no room.
    pub(crate) fn stock_array<'b>(
        &self,
        cache: &Cache<H>,
        taken: &'b mut [NonNull<u8>],
        object: &mut Option<NonNull<u8>>,
    ) -> &'b [NonNull<u8>] {
        // Handed out in ascending order of address, as far as a chunk goes.
        taken.reverse();
        let mut rest = &*taken;
        if object.is_none()
            && let [others @ .., first] = rest
        {
            *object = Some(*first);
            rest = others;
        }
        // SAFETY: the objects were just taken out of their slab and are ours (S1).
        let moved = unsafe { cache.array.push_n(rest) };
        &rest[..rest.len() - moved]
    }

    /// Grows the cache for a caller that found nothing. Takes what the CPU's array is to get out of the new slab before it is linked,
    /// so that the node's lock is held only to link; or, if that improvement is off, links it
    /// and lets the caller look again (`None`).
    ///
    /// Nothing gets into the array before the slab is linked: whoever popped it there could free it to a slab that is still being
    /// written to without a lock (S5).
    fn grow_for(
        &self,
        cache: &Cache<H>,
        gfp: Gfp,
        nid: Nid,
    ) -> Result<Option<NonNull<u8>>, AllocError> {
        let (slab, at) = self.grow(cache, gfp, nid)?;
        let here = at == nid;
        let mut buffer = [NonNull::dangling(); CHUNK];
        if here && !self.improvements.refill_first() {
            // To the node, so that the caller finds it, whichever CPU it looks from.
            // SAFETY: the new slab is ours and of this node.
            unsafe { cache.node(at).lock(cache, &self.frames).link(slab) };
            return Ok(None);
        }
        let mut want = 1;
        if here {
            let limit = cache.ready_limit(self.host(), self.host().current_cpu());
            want += cache.batch_for(limit, self.policy.adaptive);
        }
        // SAFETY: the new slab is ours until it is linked (S5); its first object stays where it is.
        let (first, implied, run) = unsafe {
            let record = &mut *slab.as_ptr();
            let run = record.take_fresh(cache, want);
            (record.objects, record.implied(cache), run)
        };
        let n = if run == 0 {
            let n = want.min(CHUNK);
            // SAFETY: as above.
            unsafe { (*slab.as_ptr()).take(cache, &mut buffer[..n]) }
        } else {
            0
        };
        // SAFETY: as above.
        unsafe { self.link_grown(cache, slab, at) };
        let mut object = None;
        if run == 0 {
            let spare = self.stock_array(cache, &mut buffer[..n], &mut object);
            self.give_home(cache, spare);
            return Ok(object);
        }
        let mut next = 0;
        let mut full = false;
        while next < run {
            let chunk = &mut buffer[..CHUNK.min(run - next)];
            let size = cache.layout.size as usize;
            implied.each(next as u32, chunk.len() as u32, |i, number| {
                // SAFETY: what entries `0..run` imply was taken above and is ours (S1).
                chunk[i] = unsafe { first.add(number as usize * size) };
            });
            next += chunk.len();
            if full {
                self.give_home(cache, chunk);
            } else {
                let spare = self.stock_array(cache, chunk, &mut object);
                full = !spare.is_empty();
                self.give_home(cache, spare);
            }
        }
        Ok(object)
    }

    /// One object, past the arrays: from `nid`, or, unless the flags forbid it, from the nearest node that has one.
    pub(crate) fn alloc_from_nodes(
        &self,
        cache: &Cache<H>,
        gfp: Gfp,
        nid: Nid,
    ) -> Result<NonNull<u8>, AllocError> {
        let local = gfp | Gfp::THISNODE | Gfp::NOWARN;
        if let Some(object) = self.take_one(cache, nid) {
            return Ok(object);
        }
        if let Ok(object) = self.grow_one(cache, local, nid) {
            return Ok(object);
        }
        // What CPUs' slots have is made everybody's before it counts as nothing.
        let again = self.recall_slabs(cache) > 0;
        let nodes = self.by_distance(nid).skip(usize::from(!again));
        let allowed = |other: &Nid| *other == nid || !gfp.contains(Gfp::THISNODE);
        for other in nodes.filter(allowed) {
            if let Some(object) = self.take_one(cache, other) {
                return Ok(object);
            }
        }
        self.grow_one(cache, gfp, nid)
            .inspect_err(|_| self.report_out_of_memory(cache, gfp, nid))
    }

    /// One object that a node has.
    fn take_one(&self, cache: &Cache<H>, nid: Nid) -> Option<NonNull<u8>> {
        if let Some(object) = self.take_from_slot(cache, nid) {
            return Some(object);
        }
        let node = cache.node(nid);
        if !node.looks_stocked() {
            return None;
        }
        let mut locked = node.lock(cache, &self.frames);
        let shared = &mut locked.lists.shared;
        if let Some(&object) = shared.objects().last() {
            shared.drop_top(1);
            return Some(object);
        }
        let mut one = [NonNull::dangling()];
        (locked.take(&mut one) == 1).then_some(one[0])
    }

    /// One object of a new slab.
    fn grow_one(&self, cache: &Cache<H>, gfp: Gfp, nid: Nid) -> Result<NonNull<u8>, AllocError> {
        let (slab, at) = self.grow(cache, gfp, nid)?;
        let mut one = [NonNull::dangling()];
        // SAFETY: the new slab is ours until it is linked, and has an object (S5).
        unsafe {
            (*slab.as_ptr()).take(cache, &mut one);
            self.link_grown(cache, slab, at);
        }
        Ok(one[0])
    }

    /// The nodes, nearest to `from` first (itself first of all), equally far ones by number.
    pub(crate) fn by_distance(&self, from: Nid) -> impl Iterator<Item = Nid> + '_ {
        let host = self.host();
        let mut last: Option<(u32, Nid)> = None;
        core::iter::from_fn(move || {
            let key = |nid: Nid| {
                if nid == from {
                    (0, nid)
                } else {
                    (host.distance(from, nid).max(1), nid)
                }
            };
            let next = (0..self.nodes as u16)
                .map(|n| key(Nid(n)))
                .filter(|k| last.is_none_or(|l| *k > l))
                .min()?;
            last = Some(next);
            Some(next.1)
        })
    }
}
