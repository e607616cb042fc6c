//! CPU slabs, the rival form of a cache (S17): what is between a CPU's array and the nodes is a slot of slabs of the CPU's own.
//!
//! Off unless a cache is made with it. An array is refilled from the slot without the node's lock; slabs come from the node several at
//! a time, and go back all at once when there are too many. `slot.rs` has the slots themselves; here is how the slow paths
//! of allocation and free go through them, and how they are emptied.

use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use flagstone_host::Host;
use flagstone_types::{CpuId, FreeError, Nid};

use crate::alloc::CHUNK;
use crate::cache::Cache;
use crate::caches::Caches;
use crate::node::{Doomed, LockedNode, Refused};
use crate::record::{ListId, Place, Record};
use crate::slot::LockedSlot;

/// Which slabs leave a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leaving {
    /// The partial ones but for the one that came last.
    Surplus,
    /// The partial ones.
    Partial,
    /// All.
    All,
}

/// Slabs of a slot, or of all slots of a cache, that belong to one node.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CpuUse {
    pub(crate) partial: usize,
    pub(crate) full: usize,
    /// Free objects in the partial ones.
    pub(crate) free_objects: usize,
}

/// How far objects were put back.
enum Given {
    /// All of them.
    All,
    /// Up to one that is refused.
    Refused(Refused),
    /// Up to one whose slab is on the slot of a CPU that somebody else holds.
    Blocked { at: usize, cpu: CpuId },
}

impl<H: Host> Caches<H> {
    /// Moves a batch from the current CPU's slot into its array, and hands out one more. `None` if neither the slot nor the node has a free
    /// object, or somebody else holds the slot.
    pub(crate) fn refill_from_slot(&self, cache: &Cache<H>, nid: Nid) -> Option<NonNull<u8>> {
        if !cache.cpu_slabs.exist() {
            return None;
        }
        let node = cache.node(nid);
        let mut slot = cache.own_slot(&self.frames)?;
        let cpu = self.host().current_cpu();
        let limit = cache.ready_limit(self.host(), cpu);
        self.widen(cache, cpu, limit, &node.flushed);
        node.refilled.store(true, Ordering::Relaxed);
        let mut left = cache.batch_for(limit, self.policy.adaptive) + 1;
        let mut object = None;
        let mut fetched = false;
        while left > 0 {
            let mut buffer = [NonNull::dangling(); CHUNK];
            let n = slot.take(nid, &mut buffer[..left.min(CHUNK)]);
            if n == 0 {
                let look = !self.improvements.lockless_look() || node.looks_stocked();
                if fetched || !look {
                    break;
                }
                fetched = true;
                let want = (cache.cpu_slabs.limit() as usize).div_ceil(2);
                slot.fetch(&mut node.lock(cache, &self.frames), want);
                continue;
            }
            left -= n;
            let spare = self.stock_array(cache, &mut buffer[..n], &mut object);
            if !spare.is_empty() {
                slot.restore(nid, spare);
                break;
            }
        }
        object
    }

    /// One object of node `nid` from the current CPU's slot.
    pub(crate) fn take_from_slot(&self, cache: &Cache<H>, nid: Nid) -> Option<NonNull<u8>> {
        let mut one = [NonNull::dangling()];
        let mut slot = cache.own_slot(&self.frames)?;
        (slot.take(nid, &mut one) == 1).then_some(one[0])
    }

    /// Gives a new slab its place: the current CPU's slot if it may have one, else its node.
    ///
    /// # Safety
    /// The caller owns the slab, which is of node `nid` of this cache.
    pub(crate) unsafe fn link_grown(&self, cache: &Cache<H>, slab: NonNull<Record<H>>, nid: Nid) {
        // SAFETY: as promised.
        unsafe {
            match cache.own_slot(&self.frames) {
                Some(mut slot) => slot.adopt(slab, nid),
                None => cache.node(nid).lock(cache, &self.frames).link(slab),
            }
        }
    }

    /// Gives objects to their slabs, wherever those are; returns how many slabs were released.
    pub(crate) fn give_placed(&self, cache: &Cache<H>, mut objects: &[NonNull<u8>]) -> usize {
        let mut released = 0;
        loop {
            let mut doomed = Doomed::new();
            let given = self.give_until(cache, objects, &mut doomed);
            released += self.release(cache, doomed);
            match given {
                Given::All => return released,
                Given::Refused(Refused { at, error }) => {
                    self.refuse(cache, objects[at], error);
                    objects = &objects[at + 1..];
                }
                Given::Blocked { at, cpu } => {
                    objects = &objects[at..];
                    let mut doomed = Doomed::new();
                    let (n, refused) = self.give_at(cache, objects, cpu, &mut doomed);
                    released += self.release(cache, doomed);
                    objects = &objects[n..];
                    if let (Some(error), [object, rest @ ..]) = (refused, objects) {
                        self.refuse(cache, *object, error);
                        objects = rest;
                    }
                }
            }
        }
    }

    /// Puts objects back until one is refused or would have to wait for a slot while others are held. A slab that was full moves to the current CPU's slot.
    fn give_until(
        &self,
        cache: &Cache<H>,
        objects: &[NonNull<u8>],
        doomed: &mut Doomed<H>,
    ) -> Given {
        let once = self.improvements.release_once();
        let mut given = Given::All;
        let mut own = cache.own_slot(&self.frames);
        let mut other: Option<LockedSlot<'_, H>> = None;
        let mut node: Option<LockedNode<'_, H>> = None;
        let mut at = 0;
        while at < objects.len() {
            let object = objects[at];
            // Looked up again whenever a lock was taken: only then does the slab stay where it is (S5).
            let (nid, slab) = match cache.slab_of(&self.frames, object) {
                Ok((_, nid, slab)) => (nid, slab),
                Err(error) => {
                    given = Given::Refused(Refused { at, error });
                    break;
                }
            };
            // SAFETY: a record of this cache's.
            let place = unsafe { Record::place(slab) };
            let result = match (place, &mut own, &mut other, &mut node) {
                // SAFETY: the slab is on a list of the node, whose lock is held.
                (Place::Node, own, _, Some(node)) if node.node.nid == nid => unsafe {
                    node.give_or_move(slab, object, doomed, once, own.as_mut())
                },
                (Place::Node, _, _, node) => {
                    close(node.take(), doomed, once);
                    *node = Some(cache.node(nid).lock(cache, &self.frames));
                    continue;
                }
                // SAFETY: the slab is on a list of the slot, whose lock is held.
                (Place::Cpu(cpu), Some(own), _, _) if own.cpu == cpu => unsafe {
                    own.give(slab, nid, object).map(drop)
                },
                // SAFETY: as above; the slab moves from one slot to another, both held.
                (Place::Cpu(cpu), own, Some(other), _) if other.cpu == cpu => unsafe {
                    other.give(slab, nid, object).map(|was_full| {
                        if let (true, Some(own)) = (was_full, own) {
                            other.detach(slab, nid);
                            own.adopt(slab, nid);
                        }
                    })
                },
                (Place::Cpu(cpu), _, other, _) => {
                    *other = None;
                    *other = cache.try_slot(&self.frames, cpu);
                    if other.is_some() {
                        continue;
                    }
                    given = Given::Blocked { at, cpu };
                    break;
                }
            };
            if let Err(error) = result {
                given = Given::Refused(Refused { at, error });
                break;
            }
            at += 1;
        }
        close(node, doomed, once);
        drop(other);
        if let Some(mut own) = own
            && own.overflows()
        {
            self.empty_slot(cache, &mut own, Leaving::Surplus, doomed);
        }
        given
    }

    /// Puts objects back whose slabs are on the slot of `cpu`, waiting for its lock with no other held. Returns how many went, and why the next one is refused, if it is.
    fn give_at(
        &self,
        cache: &Cache<H>,
        objects: &[NonNull<u8>],
        cpu: CpuId,
        doomed: &mut Doomed<H>,
    ) -> (usize, Option<FreeError>) {
        let Some(mut slot) = cache.lock_slot(&self.frames, cpu) else {
            // No such CPU: what was read as a record is none.
            return (0, Some(FreeError::NotAllocated));
        };
        let mut n = 0;
        for &object in objects {
            let Ok((_, nid, slab)) = cache.slab_of(&self.frames, object) else {
                break;
            };
            // SAFETY: a record of this cache's; if it is here it stays here, for the slot's lock is held.
            unsafe {
                if Record::place(slab) != Place::Cpu(cpu) {
                    break;
                }
                if let Err(error) = slot.give(slab, nid, object) {
                    return (n, Some(error));
                }
            }
            n += 1;
        }
        if slot.overflows() {
            self.empty_slot(cache, &mut slot, Leaving::Surplus, doomed);
        }
        (n, None)
    }

    /// Moves slabs of a slot to their nodes: to each node's lists in one hold of its lock. Returns how many.
    fn empty_slot(
        &self,
        cache: &Cache<H>,
        slot: &mut LockedSlot<'_, H>,
        leaving: Leaving,
        doomed: &mut Doomed<H>,
    ) -> usize {
        let keep_newest = leaving == Leaving::Surplus;
        let mut moved = 0;
        for node in cache.each_node() {
            let nid = node.nid;
            let next = |slot: &LockedSlot<'_, H>| {
                let full = slot.lists.set(nid).full.last();
                slot.next_partial(nid, keep_newest)
                    .or(full.filter(|_| leaving == Leaving::All))
            };
            if next(slot).is_none() {
                continue;
            }
            let mut locked = node.lock(cache, &self.frames);
            while let Some(slab) = next(slot) {
                // SAFETY: the slab is on a list of the slot; both locks are held (S5).
                unsafe {
                    slot.detach(slab, nid);
                    locked.link(slab);
                }
                moved += 1;
            }
            locked.release_surplus(doomed);
        }
        moved
    }

    fn empty_slots(&self, cache: &Cache<H>, cpu: CpuId, leaving: Leaving) -> (usize, usize) {
        let mut doomed = Doomed::new();
        let moved = match cache.lock_slot(&self.frames, cpu) {
            Some(mut slot) => self.empty_slot(cache, &mut slot, leaving, &mut doomed),
            None => 0,
        };
        (moved, self.release(cache, doomed))
    }

    /// Moves every slab with free objects from the slots to the nodes; returns how many slabs moved.
    pub(crate) fn recall_slabs(&self, cache: &Cache<H>) -> usize {
        let cpus = cache.cpu_slabs.cpus();
        cpus.map(|cpu| self.empty_slots(cache, cpu, Leaving::Partial).0)
            .sum()
    }

    /// The same; returns how many slabs were released.
    pub(crate) fn drain_slots(&self, cache: &Cache<H>) -> usize {
        let cpus = cache.cpu_slabs.cpus();
        cpus.map(|cpu| self.empty_slots(cache, cpu, Leaving::Partial).1)
            .sum()
    }

    /// Sets how many free objects the slabs on a CPU's slot may have when another one comes; 0 switches CPU slabs off: every slab is on its node's lists then.
    /// `false` for a cache that was made without them.
    pub fn set_cpu_slabs(&self, cache: &Cache<H>, objects: u32) -> bool {
        if !cache.cpu_slabs.exist() {
            return false;
        }
        cache.cpu_slabs.set_limit(objects);
        if objects == 0 {
            for cpu in cache.cpu_slabs.cpus() {
                self.empty_slots(cache, cpu, Leaving::All);
            }
        }
        true
    }

    /// Gives what waits on a CPU that has gone offline to its nodes, of every cache: the objects in its array, the slabs on its slot. `false` if the host
    /// can not stop arrays; they keep their objects then.
    pub fn drain_cpu(&self, cpu: CpuId) -> bool {
        let stopped = self.host().stop_arrays();
        self.each_cache(|cache| {
            if let Some(stopped) = &stopped {
                self.drain_cpus(stopped, cache, core::iter::once(cpu.0));
            }
            self.empty_slots(cache, cpu, Leaving::All);
        });
        stopped.is_some()
    }

    /// The slabs of one node that are on slots; out of date at once while others use the cache.
    pub(crate) fn cpu_use(&self, cache: &Cache<H>, nid: Nid) -> CpuUse {
        let mut usage = CpuUse::default();
        for cpu in cache.cpu_slabs.cpus() {
            if let Some(slot) = cache.lock_slot(&self.frames, cpu) {
                let set = slot.lists.set(nid);
                usage.partial += set.partial.len();
                usage.full += set.full.len();
                usage.free_objects += set.free;
            }
        }
        usage
    }
}

/// Ends the work on a node: free slabs beyond its limit leave it, where that is decided once.
fn close<H: Host>(node: Option<LockedNode<'_, H>>, doomed: &mut Doomed<H>, once: bool) {
    if let Some(mut node) = node
        && once
    {
        node.release_surplus(doomed);
    }
}

impl<H: Host> LockedNode<'_, H> {
    /// A slab with free objects: a partial one if there is one.
    pub(crate) fn first_stocked(&self) -> Option<NonNull<Record<H>>> {
        self.lists.partial.first().or(self.lists.free.first())
    }

    /// Takes a slab off its list. It is the caller's as long as the lock is held, and must be given another place until then.
    ///
    /// # Safety
    /// The slab is on a list of this node.
    pub(crate) unsafe fn detach(&mut self, slab: NonNull<Record<H>>) {
        let lists = &mut *self.lists;
        // SAFETY: as promised; the node's lock is held (S5).
        unsafe {
            lists.free_objects -= (self.cache.layout.num - (*slab.as_ptr()).active) as usize;
            match (*slab.as_ptr()).list {
                ListId::Full => lists.full.remove(slab),
                ListId::Free => lists.free.remove(slab),
                _ => lists.partial.remove(slab),
            }
        }
        self.steps += 1;
    }

    /// Puts an object back into a slab of this node's lists. If the slab was full and there is a slot for it, it moves there.
    ///
    /// # Errors
    /// As [`Record::give`]; nothing has changed.
    ///
    /// # Safety
    /// The slab is on a list of this node.
    unsafe fn give_or_move(
        &mut self,
        slab: NonNull<Record<H>>,
        object: NonNull<u8>,
        doomed: &mut Doomed<H>,
        once: bool,
        slot: Option<&mut LockedSlot<'_, H>>,
    ) -> Result<(), FreeError> {
        self.steps += 1;
        // SAFETY: as promised; the node's lock is held (S5), and the slot's if there is one.
        unsafe {
            let was_full = (*slab.as_ptr()).list == ListId::Full;
            self.give_one(slab, object, doomed, once)?;
            if let (true, Some(slot)) = (was_full, slot)
                && (*slab.as_ptr()).list != ListId::None
            {
                self.detach(slab);
                slot.adopt(slab, self.node.nid);
            }
        }
        Ok(())
    }
}
