//! Pointers that were freed and are no objects (S12): told to the host's policy with no lock held.
//!
//! The policy may end the process, and what runs then (a handler of the signal, a fork in it) may need any lock. Where a slab
//! refuses a pointer, its node's lock is released first. The list of caches is another matter: whoever walks it holds it from
//! cache to cache. What is refused meanwhile waits here until the list is released.

use core::cell::UnsafeCell;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use flagstone_host::{Host, MutexGuard, classes};
use flagstone_types::FreeError;

use crate::cache::{Cache, Name};
use crate::cache_list::CacheList;
use crate::caches::Caches;
use crate::tuning::BadFree;

/// So many refused pointers can wait. More are dropped unreported: the first ones say that something is wrong.
const MOST: usize = 8;

const EMPTY: u8 = 0;
const CLAIMED: u8 = 1;
const READY: u8 = 2;

#[derive(Clone, Copy)]
struct Entry {
    object: NonNull<u8>,
    error: FreeError,
    /// By value: the cache may be gone when it is reported.
    cache: Name,
}

struct Slot {
    state: AtomicU8,
    entry: UnsafeCell<Option<Entry>>,
}

/// The refused pointers that wait for the list of caches to be released.
pub(crate) struct Refusals {
    /// Whether somebody holds the list. Written by the holder.
    list_held: AtomicBool,
    slots: [Slot; MOST],
}

// SAFETY: an entry is reached only by the context that moved its slot's state to `CLAIMED`.
unsafe impl Sync for Refusals {}
// SAFETY: a refused pointer is a number to us.
unsafe impl Send for Refusals {}

impl Refusals {
    pub(crate) const fn new() -> Self {
        Self {
            list_held: AtomicBool::new(false),
            slots: [const {
                Slot {
                    state: AtomicU8::new(EMPTY),
                    entry: UnsafeCell::new(None),
                }
            }; MOST],
        }
    }

    fn put(&self, entry: Entry) {
        for slot in &self.slots {
            if slot.claim(EMPTY) {
                // SAFETY: claimed by us.
                unsafe { *slot.entry.get() = Some(entry) };
                slot.state.store(READY, Ordering::SeqCst);
                return;
            }
        }
    }

    fn take(&self) -> Option<Entry> {
        let slot = self.slots.iter().find(|slot| slot.claim(READY))?;
        // SAFETY: claimed by us.
        let entry = unsafe { (*slot.entry.get()).take() };
        slot.state.store(EMPTY, Ordering::SeqCst);
        entry
    }
}

impl Slot {
    fn claim(&self, from: u8) -> bool {
        self.state
            .compare_exchange(from, CLAIMED, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }
}

/// The list of caches, locked. What was refused meanwhile is reported when it is released.
pub(crate) struct LockedList<'a, H: Host> {
    caches: &'a Caches<H>,
    list: ManuallyDrop<MutexGuard<'a, H, classes::CacheList, CacheList<H>>>,
}

impl<H: Host> Deref for LockedList<'_, H> {
    type Target = CacheList<H>;

    fn deref(&self) -> &CacheList<H> {
        &self.list
    }
}

impl<H: Host> DerefMut for LockedList<'_, H> {
    fn deref_mut(&mut self) -> &mut CacheList<H> {
        &mut self.list
    }
}

impl<H: Host> Drop for LockedList<'_, H> {
    fn drop(&mut self) {
        self.caches
            .refusals
            .list_held
            .store(false, Ordering::SeqCst);
        // SAFETY: released once, here.
        unsafe { ManuallyDrop::drop(&mut self.list) };
        self.caches.report_waiting();
    }
}

impl<H: Host> Caches<H> {
    pub(crate) fn lock_list(&self) -> LockedList<'_, H> {
        let list = self.list.lock();
        self.refusals.list_held.store(true, Ordering::SeqCst);
        LockedList {
            caches: self,
            list: ManuallyDrop::new(list),
        }
    }

    /// Tells of a freed pointer that is no allocated object (S12): now, or when whoever holds the list of caches (it may be this
    /// context) has released it. Called with no other lock of the core held.
    #[cold]
    #[inline(never)]
    pub(crate) fn refuse(&self, cache: &Cache<H>, object: NonNull<u8>, error: FreeError) {
        let entry = Entry {
            object,
            error,
            cache: cache.name,
        };
        if !self.refusals.list_held.load(Ordering::SeqCst) {
            return self.report(&entry);
        }
        self.refusals.put(entry);
        // If the list is held still, its holder looks for the entry after it has said otherwise.
        if !self.refusals.list_held.load(Ordering::SeqCst) {
            self.report_waiting();
        }
    }

    fn report(&self, entry: &Entry) {
        (self.policy.bad_free)(&BadFree {
            object: entry.object,
            error: entry.error,
            cache: entry.cache.as_str(),
        });
    }

    fn report_waiting(&self) {
        while let Some(entry) = self.refusals.take() {
            self.report(&entry);
        }
    }
}
