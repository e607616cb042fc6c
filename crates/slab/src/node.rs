//! The part of a cache that belongs to one memory node: its slab lists and the
//! array that the node's CPUs share.
//!
//! Everything here happens under the node's lock, through [`LockedNode`], which
//! publishes the two hints that are read without it when it is dropped.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use flagstone_frames::Frames;
use flagstone_host::{Event, Host, Mutex, MutexGuard, classes};
use flagstone_types::{FreeError, Nid};

use crate::alien::AlienCaches;
use crate::cache::Cache;
use crate::lists::SlabList;
use crate::record::{ListId, Place, Record};
use crate::shared::Shared;
use crate::tuning::ArrayTuning;

/// One node of one cache.
pub(crate) struct Node<H: Host> {
    pub(crate) lists: Mutex<H, classes::SlabNode, Lists<H>>,
    /// Objects in the slabs' indexes (S4).
    free_objects: AtomicUsize,
    /// Slabs, as a hint.
    slabs: AtomicUsize,
    /// Objects in the shared array, as a hint.
    shared_len: AtomicU32,
    /// Whether the shared array waits for its memory, as a hint.
    shared_missing: AtomicBool,
    /// The colour of the next slab, before it is taken modulo the number of colours.
    pub(crate) colour_next: AtomicU32,
    /// Whether an array was refilled since one was last flushed, as a hint: then the flushed one is too small.
    pub(crate) refilled: AtomicBool,
    /// Whether one was flushed since one was last refilled, as a hint: then the refilled one is too small.
    pub(crate) flushed: AtomicBool,
    /// Whether the shared array was found empty since it was last found full, as a hint: then it is too small for the way the
    /// cache is used.
    pub(crate) emptied: AtomicBool,
    /// Objects of other nodes freed here; none where there is one node.
    pub(crate) aliens: AlienCaches<H>,
    pub(crate) nid: Nid,
}

/// What the node's lock protects.
pub(crate) struct Lists<H: Host> {
    pub(crate) partial: SlabList<H>,
    pub(crate) full: SlabList<H>,
    pub(crate) free: SlabList<H>,
    pub(crate) free_objects: usize,
    /// Above so many free objects, free slabs go back to the page allocator.
    pub(crate) free_limit: usize,
    pub(crate) shared: Shared,
    /// What the shared array may hold to begin with, and again when it was idle.
    pub(crate) shared_first: u32,
    /// Objects that the shared array should be able to hold; its memory comes when it is first wanted.
    pub(crate) shared_wanted: u32,
}

// SAFETY: records are reached under the node's lock (S5).
unsafe impl<H: Host> Send for Lists<H> {}

impl<H: Host> Lists<H> {
    /// Whether the shared array is wanted and has no memory yet.
    pub(crate) const fn shared_missing(&self) -> bool {
        self.shared_wanted != 0 && self.shared.capacity == 0
    }
}

/// Slabs that left their lists, chained through their records, to be released when no lock is held.
pub(crate) struct Doomed<H: Host>(SlabList<H>);

impl<H: Host> Doomed<H> {
    pub(crate) const fn new() -> Self {
        Self(SlabList::new())
    }

    pub(crate) fn pop(&mut self) -> Option<NonNull<Record<H>>> {
        let slab = self.0.first()?;
        // SAFETY: the chain owns its slabs, and this one is on it.
        unsafe { self.0.remove(slab) };
        Some(slab)
    }

    /// # Safety
    /// The caller owns the slab, which is on no list.
    pub(crate) unsafe fn push(&mut self, slab: NonNull<Record<H>>) {
        // SAFETY: as promised; a list owned by one context needs no lock.
        unsafe { self.0.push(slab, ListId::None) };
    }
}

impl<H: Host> Node<H> {
    pub(crate) fn new(
        nid: Nid,
        aliens: AlienCaches<H>,
        free_limit: usize,
        arrays: &ArrayTuning,
    ) -> Self {
        Self {
            lists: lock_api::Mutex::new(Lists {
                partial: SlabList::new(),
                full: SlabList::new(),
                free: SlabList::new(),
                free_objects: 0,
                free_limit,
                shared: Shared::new(arrays.shared_limit.min(arrays.shared_capacity)),
                shared_first: arrays.shared_limit.min(arrays.shared_capacity),
                shared_wanted: arrays.shared_capacity,
            }),
            free_objects: AtomicUsize::new(0),
            slabs: AtomicUsize::new(0),
            shared_len: AtomicU32::new(0),
            shared_missing: AtomicBool::new(arrays.shared_capacity != 0),
            colour_next: AtomicU32::new(0),
            refilled: AtomicBool::new(false),
            flushed: AtomicBool::new(false),
            emptied: AtomicBool::new(false),
            aliens,
            nid,
        }
    }

    /// Slabs of the node, as a hint.
    pub(crate) fn slabs_hint(&self) -> usize {
        self.slabs.load(Ordering::Relaxed)
    }

    /// Whether there was anything to fetch a moment ago. Reads without the lock: a stale
    /// "no" costs a new slab, a stale "yes" costs a lock (S4).
    pub(crate) fn looks_stocked(&self) -> bool {
        self.free_objects.load(Ordering::Relaxed) != 0
            || self.shared_len.load(Ordering::Relaxed) != 0
    }

    /// Whether the shared array was without memory a moment ago. A stale answer costs a lock, or a flush to the slabs.
    pub(crate) fn looks_unprovided(&self) -> bool {
        self.shared_missing.load(Ordering::Relaxed)
    }

    pub(crate) fn lock<'a>(
        &'a self,
        cache: &'a Cache<H>,
        frames: &'a Frames<H>,
    ) -> LockedNode<'a, H> {
        let lists = self.lists.lock();
        LockedNode {
            node: self,
            cache,
            frames,
            lists,
            steps: 0,
        }
    }
}

/// A node whose lock is held.
pub(crate) struct LockedNode<'a, H: Host> {
    pub(crate) node: &'a Node<H>,
    pub(crate) cache: &'a Cache<H>,
    pub(crate) frames: &'a Frames<H>,
    pub(crate) lists: MutexGuard<'a, H, classes::SlabNode, Lists<H>>,
    /// Objects handled, list moves and decisions made under the lock.
    pub(crate) steps: u64,
}

impl<H: Host> Drop for LockedNode<'_, H> {
    fn drop(&mut self) {
        self.node
            .free_objects
            .store(self.lists.free_objects, Ordering::Relaxed);
        self.node
            .shared_len
            .store(self.lists.shared.len, Ordering::Relaxed);
        self.node
            .shared_missing
            .store(self.lists.shared_missing(), Ordering::Relaxed);
        let slabs = self.lists.partial.len() + self.lists.full.len() + self.lists.free.len();
        self.node.slabs.store(slabs, Ordering::Relaxed);
        let host = self.frames.host();
        host.count(Event::SlabNodeLock, 1);
        host.count(Event::SlabNodeSteps, self.steps);
    }
}

/// A pointer that is no object, among those that were to be put back.
#[derive(Debug)]
pub(crate) struct Refused {
    /// Its number.
    pub(crate) at: usize,
    pub(crate) error: FreeError,
}

/// Pointers that belong to another node than the one they were given to.
pub(crate) struct Strays {
    objects: [NonNull<u8>; Self::MOST],
    len: usize,
}

impl Strays {
    /// As many as one call of [`LockedNode::give`] may be handed.
    pub(crate) const MOST: usize = 64;

    pub(crate) const fn new() -> Self {
        Self {
            objects: [NonNull::dangling(); Self::MOST],
            len: 0,
        }
    }

    pub(crate) fn push(&mut self, object: NonNull<u8>) {
        self.objects[self.len] = object;
        self.len += 1;
    }

    pub(crate) fn as_slice(&self) -> &[NonNull<u8>] {
        &self.objects[..self.len]
    }
}

impl<H: Host> LockedNode<'_, H> {
    /// Lets the shared array hold twice as many objects, as far as it has room.
    pub(crate) fn widen_shared(&mut self) {
        let lists = &mut *self.lists;
        lists.shared.limit = lists
            .shared
            .limit
            .saturating_mul(2)
            .min(lists.shared_wanted);
    }

    /// Takes up to `into.len()` objects out of the slabs, partial ones first.
    pub(crate) fn take(&mut self, into: &mut [NonNull<u8>]) -> usize {
        let mut n = 0;
        while n < into.len() {
            let lists = &mut *self.lists;
            let Some(slab) = lists.partial.first().or_else(|| lists.free.first()) else {
                break;
            };
            // SAFETY: the slab is on a list of this node, whose lock is held (S5).
            let got = unsafe {
                let record = &mut *slab.as_ptr();
                let list = record.list;
                let got = record.take(self.cache, &mut into[n..]);
                let is_full = record.active == self.cache.layout.num;
                record.idle = false;
                if is_full || list == ListId::Free {
                    match list {
                        ListId::Free => lists.free.remove(slab),
                        _ => lists.partial.remove(slab),
                    }
                    if is_full {
                        lists.full.push(slab, ListId::Full);
                    } else {
                        lists.partial.push(slab, ListId::Partial);
                    }
                    self.steps += 1;
                }
                got
            };
            lists.free_objects -= got;
            n += got;
        }
        self.steps += n as u64;
        n
    }

    /// Puts objects back into their slabs. Those of another node end up in `strays`, slabs that are to be released in `doomed`.
    ///
    /// # Errors
    /// At the first pointer that is no object: those before it are back, those behind it were not looked at. Whoever holds the
    /// lock releases it and then reports (S12).
    pub(crate) fn give(
        &mut self,
        objects: &[NonNull<u8>],
        strays: &mut Strays,
        doomed: &mut Doomed<H>,
        release_once: bool,
    ) -> Result<(), Refused> {
        let bytes = self.cache.layout.order.bytes(H::PAGE_SHIFT);
        let mut known: Option<(usize, NonNull<Record<H>>)> = None;
        let mut result = Ok(());
        for (at, &object) in objects.iter().enumerate() {
            let address = object.as_ptr().addr();
            let slab = match known {
                Some((start, slab)) if address.wrapping_sub(start) < bytes => slab,
                _ => match self.cache.slab_of(self.frames, object) {
                    Ok((start, nid, slab)) if nid == self.node.nid => {
                        known = Some((start, slab));
                        slab
                    }
                    Ok(_) => {
                        strays.push(object);
                        continue;
                    }
                    Err(error) => {
                        result = Err(Refused { at, error });
                        break;
                    }
                },
            };
            // SAFETY: the slab is one of this node of this cache, and the node's lock is held (S5).
            if let Err(error) = unsafe { self.give_one(slab, object, doomed, release_once) } {
                result = Err(Refused { at, error });
                break;
            }
        }
        self.steps += objects.len() as u64;
        if release_once {
            self.release_surplus(doomed);
        }
        result
    }

    /// Puts objects back that were just taken from this node's slabs.
    pub(crate) fn restore(&mut self, objects: &[NonNull<u8>]) {
        let mut doomed = Doomed::new();
        for &object in objects {
            let Ok((_, _, slab)) = self.cache.slab_of(self.frames, object) else {
                continue;
            };
            // SAFETY: the slab is of this node, whose lock is held (S5). It can not be refused, having been
            // taken under the same lock; nothing is released, so `doomed` stays empty.
            let _ = unsafe { self.give_one(slab, object, &mut doomed, true) };
        }
    }

    /// # Safety
    /// S5 for `slab`, which is on a list of this node.
    #[inline]
    pub(crate) unsafe fn give_one(
        &mut self,
        slab: NonNull<Record<H>>,
        object: NonNull<u8>,
        doomed: &mut Doomed<H>,
        release_once: bool,
    ) -> Result<(), FreeError> {
        // SAFETY: as promised.
        unsafe {
            let record = &mut *slab.as_ptr();
            record.give(self.cache, object)?;
            let lists = &mut *self.lists;
            lists.free_objects += 1;
            let was_full = record.active + 1 == self.cache.layout.num;
            let is_free = record.active == 0;
            if !was_full && !is_free {
                return Ok(());
            }
            match record.list {
                ListId::Full => lists.full.remove(slab),
                _ => lists.partial.remove(slab),
            }
            // A list move and, where that is decided at each object, whether to release the slab.
            self.steps += 1 + u64::from(is_free && !release_once);
            if !is_free {
                lists.partial.push(slab, ListId::Partial);
            } else if !release_once && lists.free_objects > lists.free_limit {
                // The published behaviour before the improvement: decided at each freed object.
                lists.free_objects -= self.cache.layout.num as usize;
                doomed.push(slab);
            } else {
                (*slab.as_ptr()).idle = false;
                lists.free.push(slab, ListId::Free);
            }
        }
        Ok(())
    }

    /// Takes free slabs off their list until no more than the limit of objects are free.
    pub(crate) fn release_surplus(&mut self, doomed: &mut Doomed<H>) {
        let limit = self.lists.free_limit;
        self.steps += 1;
        while self.lists.free_objects > limit && self.release_one(doomed) {}
    }

    /// Takes the free slab that has been free longest off its list; `false` if there is none.
    pub(crate) fn release_one(&mut self, doomed: &mut Doomed<H>) -> bool {
        let lists = &mut *self.lists;
        let Some(slab) = lists.free.last() else {
            return false;
        };
        // SAFETY: the slab is on the free list of this node, whose lock is held (S5); then it is ours.
        unsafe {
            lists.free.remove(slab);
            doomed.push(slab);
        }
        lists.free_objects -= self.cache.layout.num as usize;
        self.steps += 1;
        true
    }

    /// Takes the free slabs off their list that were there already when this was last called.
    pub(crate) fn release_idle(&mut self, doomed: &mut Doomed<H>) {
        // The longest free are last; a slab that is not idle has only slabs like it before it.
        while let Some(slab) = self.lists.free.last() {
            // SAFETY: the slab is on a list of this node, whose lock is held (S5).
            if !unsafe { (*slab.as_ptr()).idle } {
                break;
            }
            self.release_one(doomed);
        }
        // SAFETY: as above; the list is not changed.
        unsafe {
            self.lists
                .free
                .for_each(|slab| (*slab.as_ptr()).idle = true)
        };
    }

    /// Puts a slab on the list where it belongs: a new one, or one that leaves a slot.
    ///
    /// # Safety
    /// The caller owns the slab, which is of this node of this cache and on no list, or holds the lock of the slot that it left (S5).
    pub(crate) unsafe fn link(&mut self, slab: NonNull<Record<H>>) {
        let lists = &mut *self.lists;
        // SAFETY: as promised.
        unsafe {
            let active = (*slab.as_ptr()).active;
            (*slab.as_ptr()).idle = false;
            Record::set_place(slab, Place::Node);
            lists.free_objects += (self.cache.layout.num - active) as usize;
            if active == self.cache.layout.num {
                lists.full.push(slab, ListId::Full);
            } else if active == 0 {
                lists.free.push(slab, ListId::Free);
            } else {
                lists.partial.push(slab, ListId::Partial);
            }
        }
        self.steps += 1;
    }
}
