//! Freeing: the fast path, what happens when a CPU's array is full, and objects of other nodes.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};
use flagstone_host::{CpuCache, Event, Host, Push};
use flagstone_types::{CpuId, FreeError, Gfp, Nid};

use crate::alloc::CHUNK;
use crate::cache::Cache;
use crate::caches::Caches;
use crate::node::{Doomed, Refused, Strays};

impl<H: Host> Caches<H> {
    /// Frees an object of `cache`. A pointer that is none is reported through
    /// [`Policy::bad_free`](crate::Policy::bad_free) when that is noticed, and goes nowhere.
    ///
    /// # Safety
    /// The caller owns the object and nobody uses it any more (but for readers of a type-safe cache); an
    /// object of a cache with a constructor is in its constructed state.
    #[inline]
    pub unsafe fn free(&self, cache: &Cache<H>, object: NonNull<u8>) {
        if self.nodes > 1
            && let Some(nid) = self.foreign_node(object)
        {
            return self.free_alien(cache, object, nid);
        }
        // SAFETY: the object is the caller's to give.
        match unsafe { cache.array.push(object) } {
            Push::Done => {}
            outcome => self.free_slow(cache, object, outcome),
        }
    }

    /// Frees objects of `cache`.
    ///
    /// # Safety
    /// As for [`Caches::free`], for each.
    pub unsafe fn free_bulk(&self, cache: &Cache<H>, mut objects: &[NonNull<u8>]) {
        if self.nodes > 1 {
            for &object in objects {
                // SAFETY: as promised.
                unsafe { self.free(cache, object) };
            }
            return;
        }
        while let [rest @ .., object] = objects {
            // SAFETY: the objects are the caller's to give.
            let moved = unsafe { cache.array.push_n(objects) };
            if moved > 0 {
                objects = &objects[..objects.len() - moved];
            } else {
                self.free_slow(cache, *object, Push::Full);
                objects = rest;
            }
        }
    }

    /// The node of an object, if it is not the one this runs on.
    fn foreign_node(&self, object: NonNull<u8>) -> Option<Nid> {
        let host = self.host();
        let nid = host.nid(host.pfn_of(object.as_ptr().addr())?);
        (nid != host.current_node()).then_some(nid)
    }

    /// The way when the CPU's array is full or stopped, or the object is on top of it already.
    #[cold]
    #[inline(never)]
    pub(crate) fn free_slow(&self, cache: &Cache<H>, object: NonNull<u8>, outcome: Push) {
        if outcome == Push::OnTop {
            return self.refuse(cache, object, FreeError::AlreadyFree);
        }
        if let Some(shape) = &cache.debug
            && !self.debug_free(cache, shape, object)
        {
            return;
        }
        let host = self.host();
        let cpu = host.current_cpu();
        let nid = host.current_node();
        if cache.flags.zero_on_free {
            // A pointer that is no object is refused here as by its slab.
            match cache.start_of(&self.frames, object) {
                // SAFETY: the object is ours and has so many bytes.
                Ok(()) => unsafe { object.write_bytes(0, cache.object_size()) },
                Err(error) => return self.refuse(cache, object, error),
            }
        }
        let limit = cache.ready_limit(host, cpu);
        host.count(Event::SlabFlush, 1);
        if limit != 0 {
            // The array may only just have got its limit.
            // SAFETY: the object is ours.
            match unsafe { cache.array.push(object) } {
                Push::Done => return,
                Push::OnTop => return self.refuse(cache, object, FreeError::AlreadyFree),
                Push::Full => {}
            }
            self.flush(cache, nid, self.tune(cache, nid, cpu, limit));
            // SAFETY: as above.
            match unsafe { cache.array.push(object) } {
                Push::Done => return,
                Push::OnTop => return self.refuse(cache, object, FreeError::AlreadyFree),
                Push::Full => {}
            }
        }
        self.give_home(cache, &[object]);
    }

    /// How many objects to flush; where limits adapt, doubles the CPU's limit instead if its array was filled and emptied in turn.
    fn tune(&self, cache: &Cache<H>, nid: Nid, cpu: CpuId, limit: u32) -> usize {
        let node = cache.node(nid);
        self.widen(cache, cpu, limit, &node.refilled);
        node.flushed.store(true, Ordering::Relaxed);
        cache.batch_for(limit, self.policy.adaptive)
    }

    /// Doubles the limit of a CPU's array if `answered` says that it is the other half of an exchange between arrays, and limits adapt.
    pub(crate) fn widen(&self, cache: &Cache<H>, cpu: CpuId, limit: u32, answered: &AtomicBool) {
        if self.policy.adaptive && limit < cache.capacity && answered.load(Ordering::Relaxed) {
            answered.store(false, Ordering::Relaxed);
            let more = limit.saturating_mul(2).min(cache.capacity);
            cache.set_array_limit(self.host(), cpu, more);
        }
    }

    /// Moves up to `batch` objects from the CPU's array to its node: to the shared array while there
    /// is room, then to the slabs.
    fn flush(&self, cache: &Cache<H>, nid: Nid, batch: usize) {
        let node = cache.node(nid);
        // No reclaim of any kind: this may be called with the list of caches locked, when a slab with its index elsewhere is
        // released there (host L1). Should there be no memory now, an allocation asks again.
        self.ready_shared(cache, nid, Gfp::empty());
        let mut left = batch;
        if self.nodes == 1 && !cache.cpu_slabs.exist() {
            let mut locked = node.lock(cache, &self.frames);
            // Every object is of this node, so they may go from array to array.
            let n = locked
                .lists
                .shared
                .fill(left, |room| cache.array.pop_n(room));
            locked.steps += n as u64;
            left -= n;
        }
        while left > 0 {
            let mut buffer = [core::mem::MaybeUninit::uninit(); CHUNK];
            let n = cache.array.pop_n(&mut buffer[..left.min(CHUNK)]);
            if n == 0 {
                break;
            }
            left -= n;
            // SAFETY: the first `n` were written.
            self.give_home(cache, unsafe { buffer[..n].assume_init_ref() });
        }
    }

    /// Gives the shared array of a node its memory when it is first wanted, by means that `gfp` allows.
    pub(crate) fn ready_shared(&self, cache: &Cache<H>, nid: Nid, gfp: Gfp) {
        let node = cache.node(nid);
        if !node.looks_unprovided() {
            return;
        }
        let wanted = {
            let locked = node.lock(cache, &self.frames);
            if !locked.lists.shared_missing() {
                return;
            }
            locked.lists.shared_wanted
        };
        let pages = (wanted as usize * size_of::<usize>()).div_ceil(H::PAGE_SIZE);
        let run = self.frames.alloc_run(gfp | Gfp::NOWARN, pages, Some(nid));
        let mut locked = node.lock(cache, &self.frames);
        let surplus = match run {
            Ok(run) if locked.lists.shared_missing() => {
                locked.lists.shared.provide(&self.frames, run, wanted);
                None
            }
            Ok(run) => Some(run),
            // Objects go to their slabs meanwhile.
            Err(_) => None,
        };
        drop(locked);
        if let Some(run) = surplus {
            self.frames.free_run(run);
        }
    }

    /// Gives objects to their own nodes, whichever they are: to the shared array while there is room, then to the slabs; in a cache
    /// with CPU slabs, to the slabs wherever they are. Returns how many slabs were released.
    pub(crate) fn give_home(&self, cache: &Cache<H>, mut objects: &[NonNull<u8>]) -> usize {
        if cache.cpu_slabs.exist() {
            return self.give_placed(cache, objects);
        }
        let host = self.host();
        let mut released = 0;
        // With one node there is nothing to sort; a foreign pointer is found when its slab is looked for.
        let home = |object: NonNull<u8>| match self.nodes {
            1 => Some(Nid(0)),
            _ => host.pfn_of(object.as_ptr().addr()).map(|pfn| host.nid(pfn)),
        };
        while let [first, ..] = objects {
            let nid = home(*first);
            let same = objects
                .iter()
                .take(CHUNK)
                .take_while(|o| home(**o) == nid)
                .count();
            let (these, rest) = objects.split_at(same);
            objects = rest;
            let Some(nid) = nid else {
                these
                    .iter()
                    .for_each(|o| self.refuse(cache, *o, FreeError::Foreign));
                continue;
            };
            released += self.give_node(cache, nid, these);
        }
        released
    }

    /// As [`Caches::give_home`] for at most [`CHUNK`] objects of one node.
    fn give_node(&self, cache: &Cache<H>, nid: Nid, mut these: &[NonNull<u8>]) -> usize {
        let node = cache.node(nid);
        let once = self.improvements.release_once();
        let mut released = 0;
        while !these.is_empty() {
            let mut doomed = Doomed::new();
            let mut strays = Strays::new();
            let refused = {
                let mut locked = node.lock(cache, &self.frames);
                // Arrays that are switched off are not replaced by the shared one.
                let arrays = cache.limit.load(Ordering::Relaxed) != 0;
                let mut n = if arrays {
                    locked.lists.shared.push_n(these)
                } else {
                    0
                };
                if n < these.len()
                    && arrays
                    && self.policy.adaptive
                    && node.emptied.load(Ordering::Relaxed)
                {
                    node.emptied.store(false, Ordering::Relaxed);
                    locked.widen_shared();
                    n += locked.lists.shared.push_n(&these[..these.len() - n]);
                }
                locked.steps += n as u64;
                these = &these[..these.len() - n];
                if these.is_empty() {
                    break;
                }
                // None of them strays: they were sorted by their own nodes.
                locked.give(these, &mut strays, &mut doomed, once)
            };
            released += self.release(cache, doomed);
            let Err(Refused { at, error }) = refused else {
                break;
            };
            self.refuse(cache, these[at], error);
            these = &these[at + 1..];
        }
        released
    }

    /// Frees an object of another node: into the alien cache for it, and that one's objects home when it is full.
    #[cold]
    #[inline(never)]
    fn free_alien(&self, cache: &Cache<H>, object: NonNull<u8>, nid: Nid) {
        let host = self.host();
        host.count(Event::SlabRemoteFree, 1);
        if cache.limit.load(Ordering::Relaxed) == 0 {
            return self.free_slow(cache, object, Push::Full);
        }
        let here = host.current_node();
        let Some(alien) = cache.node(here).aliens.to(nid) else {
            self.give_home(cache, &[object]);
            return;
        };
        let mut buffer = [NonNull::dangling(); CHUNK];
        let n = {
            let mut stack = alien.stack.lock();
            if stack.top() == Some(object) {
                drop(stack);
                return self.refuse(cache, object, FreeError::AlreadyFree);
            }
            // Looked at again under the lock, which whoever empties the stacks after switching arrays off takes later.
            if cache.limit.load(Ordering::SeqCst) != 0 && stack.push(object) {
                return;
            }
            stack.pop_n(&mut buffer[..CHUNK - 1])
        };
        buffer[n] = object;
        host.count(Event::SlabAlienFlush, n as u64);
        self.give_home(cache, &buffer[..=n]);
    }
}
