//! The slot of one CPU in a cache with CPU slabs: lists of slabs that are on no node's list, under a lock of the slot's own (S3, S5).
//!
//! For each node a list of partial slabs, from which the CPU's array is refilled, and one of full ones, which wait for
//! a free. The current CPU is a hint, so a slot is only tried there; a slot of another CPU is waited for while no other lock
//! is held.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};
use flagstone_frames::{Frames, PageRun};
use flagstone_host::{Host, Mutex, MutexGuard, classes};
use flagstone_types::{CpuId, FreeError, Nid};

use crate::cache::Cache;
use crate::lists::SlabList;
use crate::node::LockedNode;
use crate::record::{ListId, Place, Record};

/// The slots of a cache: one for each CPU, or none in a cache without CPU slabs.
pub(crate) struct CpuSlabs<H: Host> {
    first: Option<NonNull<Slot<H>>>,
    cpus: u16,
    nodes: u16,
    /// Free objects that the partial slabs of a slot may have when another one comes; 0 while CPU slabs are switched off (S14).
    limit: AtomicU32,
}

// SAFETY: a shared pointer to `Sync` values that live as long as the cache (S10).
unsafe impl<H: Host> Send for CpuSlabs<H> {}
// SAFETY: as above.
unsafe impl<H: Host> Sync for CpuSlabs<H> {}

/// One CPU's slot; what follows it in memory are its sets.
#[repr(align(64))]
struct Slot<H: Host> {
    lists: Mutex<H, classes::CpuSlabs, CpuLists<H>>,
}

/// What a slot's lock protects.
pub(crate) struct CpuLists<H: Host> {
    /// One for each node.
    sets: NonNull<Set<H>>,
    nodes: u32,
    /// Free objects in partial slabs.
    pub(crate) free: usize,
}

// SAFETY: the sets are reached through the slot's lock, and records under it (S5).
unsafe impl<H: Host> Send for CpuLists<H> {}

/// The slabs of one node on a slot.
pub(crate) struct Set<H: Host> {
    pub(crate) partial: SlabList<H>,
    pub(crate) full: SlabList<H>,
    /// Free objects in partial slabs.
    pub(crate) free: usize,
}

impl<H: Host> CpuLists<H> {
    /// The slabs of node `nid`.
    pub(crate) fn set(&self, nid: Nid) -> &Set<H> {
        assert!(u32::from(nid.0) < self.nodes, "no node {nid}");
        // SAFETY: there are `nodes` of them, made with the slot, and the lock is held (S5).
        unsafe { &*self.sets.as_ptr().add(nid.index()) }
    }

    fn set_mut(&mut self, nid: Nid) -> &mut Set<H> {
        assert!(u32::from(nid.0) < self.nodes, "no node {nid}");
        // SAFETY: as above.
        unsafe { &mut *self.sets.as_ptr().add(nid.index()) }
    }
}

impl<H: Host> CpuSlabs<H> {
    pub(crate) const fn none() -> Self {
        Self {
            first: None,
            cpus: 0,
            nodes: 0,
            limit: AtomicU32::new(0),
        }
    }

    /// The figure that is published for objects of `size` bytes where a page has `page_size`.
    pub(crate) const fn limit_for(size: usize, page_size: usize) -> u32 {
        if size >= page_size {
            6
        } else if size >= 1024 {
            24
        } else if size >= 256 {
            52
        } else {
            120
        }
    }

    const fn bytes_per_cpu(nodes: u32) -> usize {
        (size_of::<Slot<H>>() + nodes as usize * size_of::<Set<H>>())
            .next_multiple_of(align_of::<Slot<H>>())
    }

    /// Pages that the slots of one cache take.
    pub(crate) fn pages(cpus: u32, nodes: u32) -> usize {
        (cpus as usize * Self::bytes_per_cpu(nodes)).div_ceil(H::PAGE_SIZE)
    }

    /// Makes the slots in `memory`.
    pub(crate) fn make(
        frames: &Frames<H>,
        memory: &PageRun,
        cpus: u32,
        nodes: u32,
        limit: u32,
    ) -> Self {
        let base = frames.host().frame_ptr(memory.start());
        for cpu in 0..cpus as usize {
            // SAFETY: the run has `pages()` pages, so the CPU's part lies within it, aligned as a slot, and it is the cache's own
            // (M1); the sets behind the slot are aligned, for a slot's size is a multiple of its alignment.
            unsafe {
                let slot = base.add(cpu * Self::bytes_per_cpu(nodes)).cast::<Slot<H>>();
                let sets = slot.add(1).cast::<Set<H>>();
                for nid in 0..nodes as usize {
                    sets.add(nid).write(Set {
                        partial: SlabList::new(),
                        full: SlabList::new(),
                        free: 0,
                    });
                }
                slot.write(Slot {
                    lists: lock_api::Mutex::new(CpuLists {
                        sets,
                        nodes,
                        free: 0,
                    }),
                });
            }
        }
        Self {
            first: Some(base.cast()),
            // A CPU beyond would have no slot, and work on the lists of nodes.
            cpus: cpus as u16,
            nodes: nodes as u16,
            limit: AtomicU32::new(limit),
        }
    }

    /// Whether the cache was made with slots.
    pub(crate) const fn exist(&self) -> bool {
        self.first.is_some()
    }

    /// Free objects that a slot's slabs may have when another one comes; 0 while CPU slabs are switched off.
    pub(crate) fn limit(&self) -> u32 {
        self.limit.load(Ordering::SeqCst)
    }

    /// Sets the limit and returns the old one. Who sets it to 0 empties the slots then (S14).
    pub(crate) fn set_limit(&self, limit: u32) -> u32 {
        self.limit.swap(limit, Ordering::SeqCst)
    }

    /// The CPUs that have a slot.
    pub(crate) fn cpus(&self) -> impl Iterator<Item = CpuId> + use<H> {
        (0..u32::from(self.cpus)).map(CpuId)
    }

    fn slot(&self, cpu: CpuId) -> Option<&Slot<H>> {
        let first = self.first?;
        // SAFETY: there are `cpus` slots, so far apart, made by `make`, alive as long as the cache (S10).
        (cpu.0 < u32::from(self.cpus)).then(|| unsafe {
            first
                .byte_add(cpu.index() * Self::bytes_per_cpu(u32::from(self.nodes)))
                .as_ref()
        })
    }

    /// The raw lock of a slot, for a fork.
    pub(crate) fn raw(&self, cpu: CpuId) -> Option<&H::Lock<classes::CpuSlabs>> {
        // SAFETY: whoever takes it by hand releases it by hand.
        self.slot(cpu).map(|slot| unsafe { slot.lists.raw() })
    }
}

/// A slot whose lock is held.
pub(crate) struct LockedSlot<'a, H: Host> {
    pub(crate) cpu: CpuId,
    pub(crate) cache: &'a Cache<H>,
    pub(crate) frames: &'a Frames<H>,
    pub(crate) lists: MutexGuard<'a, H, classes::CpuSlabs, CpuLists<H>>,
    /// The slab that came last, if one came under this lock.
    newest: Option<NonNull<Record<H>>>,
}

impl<H: Host> Cache<H> {
    fn slot_guard<'a>(
        &'a self,
        frames: &'a Frames<H>,
        cpu: CpuId,
        lists: MutexGuard<'a, H, classes::CpuSlabs, CpuLists<H>>,
    ) -> LockedSlot<'a, H> {
        LockedSlot {
            cpu,
            cache: self,
            frames,
            lists,
            newest: None,
        }
    }

    /// Waits for the lock of a CPU's slot.
    pub(crate) fn lock_slot<'a>(
        &'a self,
        frames: &'a Frames<H>,
        cpu: CpuId,
    ) -> Option<LockedSlot<'a, H>> {
        let lists = self.cpu_slabs.slot(cpu)?.lists.lock();
        Some(self.slot_guard(frames, cpu, lists))
    }

    /// The same if nobody holds it.
    pub(crate) fn try_slot<'a>(
        &'a self,
        frames: &'a Frames<H>,
        cpu: CpuId,
    ) -> Option<LockedSlot<'a, H>> {
        let lists = self.cpu_slabs.slot(cpu)?.lists.try_lock()?;
        Some(self.slot_guard(frames, cpu, lists))
    }

    /// The slot of the current CPU, if nobody holds it and it may be given slabs (S14).
    pub(crate) fn own_slot<'a>(&'a self, frames: &'a Frames<H>) -> Option<LockedSlot<'a, H>> {
        if !self.cpu_slabs.exist() {
            return None;
        }
        let slot = self.try_slot(frames, frames.host().current_cpu())?;
        (self.cpu_slabs.limit() != 0).then_some(slot)
    }
}

impl<H: Host> LockedSlot<'_, H> {
    /// Takes up to `into.len()` objects out of the slot's slabs of node `nid`.
    pub(crate) fn take(&mut self, nid: Nid, into: &mut [NonNull<u8>]) -> usize {
        let num = self.cache.layout.num;
        let set = self.lists.set_mut(nid);
        let mut n = 0;
        while n < into.len() {
            let Some(slab) = set.partial.first() else {
                break;
            };
            // SAFETY: the slab is on a list of this slot, whose lock is held (S5).
            n += unsafe {
                let got = (*slab.as_ptr()).take(self.cache, &mut into[n..]);
                if (*slab.as_ptr()).active == num {
                    set.partial.remove(slab);
                    set.full.push(slab, ListId::Full);
                }
                got
            };
        }
        set.free -= n;
        self.lists.free -= n;
        n
    }

    /// Puts an object back into a slab of this slot; whether the slab was full.
    ///
    /// # Errors
    /// As [`Record::give`]; nothing has changed.
    ///
    /// # Safety
    /// The slab is on a list of this slot, and of node `nid`.
    pub(crate) unsafe fn give(
        &mut self,
        slab: NonNull<Record<H>>,
        nid: Nid,
        object: NonNull<u8>,
    ) -> Result<bool, FreeError> {
        let set = self.lists.set_mut(nid);
        // SAFETY: as promised; the slot's lock is held (S5).
        let was_full = unsafe {
            (*slab.as_ptr()).give(self.cache, object)?;
            let was_full = (*slab.as_ptr()).list == ListId::Full;
            if was_full {
                set.full.remove(slab);
                set.partial.push(slab, ListId::Partial);
            }
            was_full
        };
        set.free += 1;
        self.lists.free += 1;
        if was_full {
            self.newest = Some(slab);
        }
        Ok(was_full)
    }

    /// Puts objects back that were just taken from this slot's slabs of node `nid`.
    pub(crate) fn restore(&mut self, nid: Nid, objects: &[NonNull<u8>]) {
        for &object in objects {
            if let Ok((_, _, slab)) = self.cache.slab_of(self.frames, object) {
                // SAFETY: taken under the same lock, so the slab is here still, and does not refuse it.
                let _ = unsafe { self.give(slab, nid, object) };
            }
        }
    }

    fn free_in(&self, slab: NonNull<Record<H>>) -> usize {
        // SAFETY: called with slabs of this slot, or on their way to it or from it, whose records are ours (S5).
        (self.cache.layout.num - unsafe { (*slab.as_ptr()).active }) as usize
    }

    /// Takes in a slab of node `nid`.
    ///
    /// # Safety
    /// The slab is on no list, and the caller owns it or holds the lock of the place that it left (S5); CPU slabs are not switched off (S14).
    pub(crate) unsafe fn adopt(&mut self, slab: NonNull<Record<H>>, nid: Nid) {
        let free = self.free_in(slab);
        let place = Place::Cpu(self.cpu);
        let set = self.lists.set_mut(nid);
        // SAFETY: as promised.
        unsafe {
            if free == 0 {
                set.full.push(slab, ListId::Full);
            } else {
                set.partial.push(slab, ListId::Partial);
            }
            Record::set_place(slab, place);
        }
        set.free += free;
        self.lists.free += free;
        self.newest = Some(slab);
    }

    /// Takes a slab off its list. It is the caller's as long as the lock is held, and must be given another place until then.
    ///
    /// # Safety
    /// The slab is on a list of this slot, and of node `nid`.
    pub(crate) unsafe fn detach(&mut self, slab: NonNull<Record<H>>, nid: Nid) {
        let free = self.free_in(slab);
        let set = self.lists.set_mut(nid);
        // SAFETY: as promised; the slot's lock is held (S5).
        unsafe {
            if free == 0 {
                set.full.remove(slab);
            } else {
                set.partial.remove(slab);
            }
        }
        set.free -= free;
        self.lists.free -= free;
        if self.newest == Some(slab) {
            self.newest = None;
        }
    }

    /// Moves slabs with free objects here from the lists of their node, whose lock is held, until so many objects are free here; at least one, if there is one.
    pub(crate) fn fetch(&mut self, node: &mut LockedNode<'_, H>, want: usize) {
        let nid = node.node.nid;
        while let Some(slab) = node.first_stocked() {
            // SAFETY: the slab is on a list of the node; both locks are held (S5). Slots are in use: this is the current CPU's (S14).
            unsafe {
                node.detach(slab);
                self.adopt(slab, nid);
            }
            if self.lists.set(nid).free >= want {
                break;
            }
        }
        // What was fetched is about to be used, and no reason to give anything back.
        self.newest = None;
    }

    /// Whether a slab has come, and the others had more free objects than the limit.
    pub(crate) fn overflows(&self) -> bool {
        self.newest.is_some_and(|slab| {
            self.lists.free - self.free_in(slab) > self.cache.cpu_slabs.limit() as usize
        })
    }

    /// The partial slab of node `nid` that is next to go to its node: all but the one that came last, if that one is to stay.
    pub(crate) fn next_partial(&self, nid: Nid, keep_newest: bool) -> Option<NonNull<Record<H>>> {
        let last = self.lists.set(nid).partial.last()?;
        if keep_newest && self.newest == Some(last) {
            // SAFETY: the slab is on a list of this slot, whose lock is held (S5).
            return NonNull::new(unsafe { (*last.as_ptr()).links.list.prev });
        }
        Some(last)
    }
}
