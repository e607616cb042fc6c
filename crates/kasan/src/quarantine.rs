//! Freed objects that wait before they are free, so that who still uses one meets its poison and not another object (K3).
//!
//! ```text
//!   put ─▶ slot of this CPU (a try-lock) ─ a batch ─▶ one queue, oldest first ─ above the limit ─▶ evict, down to 3/4
//!            └─ its lock is taken ──────────────────────▲
//! ```
//!
//! Objects are linked through a [`Link`] that lies where their cache says: in the freed object or in its metadata. The queue counts bytes. Whoever allocates and may
//! wait calls [`Quarantine::reduce`]; objects are evicted with no lock held. A cache that shrinks or dies takes its own out by
//! [`Quarantine::remove`], which also waits for those that somebody else is evicting.

mod list;
#[cfg(test)]
mod tests;

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use flagstone_host::{Machine, Mutex, MutexGuard, classes};
use flagstone_types::Bytes;

pub use list::Link;
use list::List;

/// The part of all memory that quarantine may hold if nothing else is said: Linux's.
pub const DEFAULT_FRACTION: usize = 32;
/// The most that one CPU's slot holds before it hands its objects on.
const MOST_IN_SLOT: usize = 1 << 20;
/// Objects that leave the queue in one hold of its lock.
const AT_ONCE: usize = 64;

/// One CPU's freed objects. The host gives a slice of them, one for each possible CPU.
#[derive(Debug)]
#[repr(align(64))]
pub struct Slot<H: Machine>(Mutex<H, classes::QuarantineSlot, List>);

impl<H: Machine> Slot<H> {
    /// An empty one.
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::<H, classes::QuarantineSlot, List>::new(List::EMPTY))
    }
}

impl<H: Machine> Default for Slot<H> {
    fn default() -> Self {
        Self::new()
    }
}

#[derive(Debug)]
struct Queue {
    list: List,
    /// Contexts that wait in [`Quarantine::remove`]: nobody begins to evict meanwhile.
    removers: usize,
}

/// What quarantine holds and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuarantineStats {
    /// Bytes in the queue; those in the slots of CPUs are not counted.
    pub queued: Bytes,
    /// The most that it may hold.
    pub limit: Bytes,
    /// Objects that left it because it was full.
    pub evicted: u64,
}

/// Freed objects that wait; see the module.
#[derive(Debug)]
pub struct Quarantine<'s, H: Machine> {
    host: H,
    slots: &'s [Slot<H>],
    queue: Mutex<H, classes::Quarantine, Queue>,
    /// Bytes in the queue: written under its lock, read without it as a hint.
    queued: AtomicUsize,
    limit: AtomicUsize,
    /// Contexts that have objects out of the queue which they are evicting (Q4).
    evicting: AtomicUsize,
    evicted: AtomicU64,
}

impl<'s, H: Machine> Quarantine<'s, H> {
    /// An empty quarantine that may hold `limit` bytes.
    #[must_use]
    pub const fn new(host: H, slots: &'s [Slot<H>], limit: Bytes) -> Self {
        Self {
            host,
            slots,
            queue: Mutex::<H, classes::Quarantine, Queue>::new(Queue {
                list: List::EMPTY,
                removers: 0,
            }),
            queued: AtomicUsize::new(0),
            limit: AtomicUsize::new(limit.0),
            evicting: AtomicUsize::new(0),
            evicted: AtomicU64::new(0),
        }
    }

    /// Sets the most that it may hold. What is too much leaves at the next [`Quarantine::reduce`].
    pub fn set_limit(&self, limit: Bytes) {
        self.limit.store(limit.0, Ordering::Relaxed);
    }

    /// What it holds and did.
    #[must_use]
    pub fn stats(&self) -> QuarantineStats {
        QuarantineStats {
            queued: Bytes(self.queued.load(Ordering::Relaxed)),
            limit: Bytes(self.limit.load(Ordering::Relaxed)),
            evicted: self.evicted.load(Ordering::Relaxed),
        }
    }

    /// What a slot may hold: together a quarter of the limit.
    fn slot_limit(&self) -> usize {
        (self.limit.load(Ordering::Relaxed) / 4 / self.slots.len().max(1)).min(MOST_IN_SLOT)
    }

    /// What the queue may hold: the rest.
    fn queue_limit(&self) -> usize {
        let limit = self.limit.load(Ordering::Relaxed);
        limit - self.slot_limit() * self.slots.len()
    }

    /// Takes a freed object of `bytes` bytes that is marked with `cache`, a number that the caller chooses. Called with no lock of rank `quarantine_slot` or above
    /// held; works in interrupts. Never refuses.
    ///
    /// # Safety
    /// `link` is valid for a [`Link`], aligned for one, and nobody else's until the object is evicted or removed (Q1).
    pub unsafe fn put(&self, link: NonNull<Link>, cache: usize, bytes: Bytes) {
        // SAFETY: Q1, promised by the caller.
        unsafe { link.write(Link::new(cache, bytes.0)) };
        let slot = self
            .slots
            .get(self.host.current_cpu().index())
            .and_then(|slot| slot.0.try_lock());
        match slot {
            Some(mut slot) => {
                // SAFETY: Q1, Q2: written above, on no list.
                unsafe { slot.push(link) };
                if slot.bytes() > self.slot_limit() {
                    // The slot stays locked: an object on its way is always in one or the other (Q3).
                    self.append(&mut slot);
                }
            }
            None => {
                let mut one = List::EMPTY;
                // SAFETY: Q1, Q2: written above, on no list.
                unsafe { one.push(link) };
                self.append(&mut one);
            }
        }
    }

    fn append(&self, list: &mut List) {
        let mut queue = self.queue.lock();
        queue.list.append(list);
        self.note(&queue);
    }

    fn note(&self, queue: &MutexGuard<'_, H, classes::Quarantine, Queue>) {
        self.queued.store(queue.list.bytes(), Ordering::Relaxed);
    }

    /// Whether [`Quarantine::reduce`] would do anything; a hint.
    #[inline]
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.queued.load(Ordering::Relaxed) > self.queue_limit()
    }

    /// If it holds more than its limit, takes the oldest objects out until it holds three quarters of that, and gives each to `evict` with the number of its cache. Called
    /// with no lock of the core held; `evict` is too, and may lock, wait, and put objects in, but not remove any.
    pub fn reduce(&self, mut evict: impl FnMut(NonNull<Link>, usize)) {
        if !self.is_over() {
            return;
        }
        let target = self.queue_limit() / 4 * 3;
        loop {
            let mut queue = self.queue.lock();
            if queue.removers > 0 {
                return;
            }
            let mut out = List::EMPTY;
            for _ in 0..AT_ONCE {
                if queue.list.bytes() <= target {
                    break;
                }
                let Some(link) = queue.list.pop() else { break };
                // SAFETY: Q2: it left the queue and is on no list.
                unsafe { out.push(link) };
            }
            if out.is_empty() {
                return;
            }
            self.note(&queue);
            self.evicting.fetch_add(1, Ordering::Relaxed);
            drop(queue);
            let mut count = 0;
            while let Some(link) = out.pop() {
                // SAFETY: Q1, Q2: ours alone since it left the queue.
                let cache = unsafe { link.read().cache() };
                evict(link, cache);
                count += 1;
            }
            self.evicted.fetch_add(count, Ordering::Relaxed);
            // What was done to the objects is seen by who waits for it (Q4).
            self.evicting.fetch_sub(1, Ordering::Release);
        }
    }

    /// Takes out all objects whose cache `chosen` says yes to, and gives each to `evict`; then waits until no object that left before is being evicted. Called
    /// outside interrupts with no lock of the core held, and not by `evict` of [`Quarantine::reduce`]. `evict` is called with no lock held.
    ///
    /// Objects that are put in meanwhile may stay: who lets a cache die puts no more of it in.
    pub fn remove(
        &self,
        chosen: impl Fn(usize) -> bool,
        mut evict: impl FnMut(NonNull<Link>, usize),
    ) {
        let mut out = List::EMPTY;
        // Slots first: what leaves one meanwhile is in the queue when that is looked at (Q3).
        for slot in self.slots {
            slot.0.lock().split(&chosen, &mut out);
        }
        let mut queue = self.queue.lock();
        queue.list.split(&chosen, &mut out);
        self.note(&queue);
        queue.removers += 1;
        drop(queue);
        while let Some(link) = out.pop() {
            // SAFETY: Q1, Q2: ours alone since it left its list.
            let cache = unsafe { link.read().cache() };
            evict(link, cache);
        }
        let mut spins = 0;
        while self.evicting.load(Ordering::Acquire) != 0 {
            self.host.relax(spins);
            spins = spins.saturating_add(1);
        }
        self.queue.lock().removers -= 1;
    }

    /// Locks everything for a fork (host L3): slots, then the queue.
    pub fn lock_for_fork(&self) {
        for slot in self.slots {
            core::mem::forget(slot.0.lock());
        }
        core::mem::forget(self.queue.lock());
    }

    /// Unlocks everything after a fork. In the child, objects that other threads were evicting are lost, and nobody waits for them.
    ///
    /// # Safety
    /// The context called [`Quarantine::lock_for_fork`] before the fork, or is the child of one that did.
    pub unsafe fn unlock_after_fork(&self, in_child: bool) {
        if in_child {
            self.evicting.store(0, Ordering::Relaxed);
            // SAFETY: the lock is held by this context, as promised, and no guard of it exists.
            unsafe { (*self.queue.data_ptr()).removers = 0 };
        }
        // SAFETY: host L3: locked by `lock_for_fork`, promised by the caller.
        unsafe { self.queue.force_unlock() };
        for slot in self.slots {
            // SAFETY: as above.
            unsafe { slot.0.force_unlock() };
        }
    }
}
