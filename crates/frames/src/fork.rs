//! Holding every lock while a process forks, so that the child begins with all structures consistent (L3).

use core::sync::atomic::Ordering;

use crate::Frames;
use crate::page_list::Slot;
use crate::zone::ZoneState;
use flagstone_host::Host;

impl<H: Host> Frames<H> {
    /// Takes every lock of this layer, class by class. The caller holds the gate ([`flagstone_host::classes::Fork`]) and
    /// has taken all classes of lower rank.
    pub fn lock_for_fork(&self) {
        loop {
            for zone in self.zones() {
                let has_slots = !zone.slots.load(Ordering::Acquire).is_null();
                zone.slots_held.store(has_slots, Ordering::Relaxed);
                if has_slots {
                    zone.for_raw_slots(Slot::lock_for_fork);
                }
            }
            for zone in self.zones() {
                zone.lock_for_fork();
            }
            // A zone may have got its first memory before it was locked.
            let is_held = |zone: &ZoneState<H>| {
                zone.slots_held.load(Ordering::Relaxed)
                    || zone.slots.load(Ordering::Acquire).is_null()
            };
            if self.zones().iter().all(is_held) {
                return;
            }
            // SAFETY: F2: just taken.
            unsafe { self.unlock_after_fork() };
        }
    }

    /// Releases what [`Frames::lock_for_fork`] took, in the parent and in the child.
    ///
    /// # Safety
    /// Once in each after `lock_for_fork`, by the thread that called it (F2).
    pub unsafe fn unlock_after_fork(&self) {
        // Slots first: once a zone's lock is free it may get slots, and those are not held.
        let was_held = |zone: &&ZoneState<H>| zone.slots_held.swap(false, Ordering::Relaxed);
        for zone in self.zones().iter().filter(was_held) {
            zone.for_raw_slots(|slot| {
                // SAFETY: F2, by the caller's promise; slots are there to stay (Z3).
                unsafe { slot.unlock_after_fork() };
            });
        }
        for zone in self.zones() {
            // SAFETY: F2, by the caller's promise.
            unsafe { zone.unlock_after_fork() };
        }
    }
}
