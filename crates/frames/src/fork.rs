//! Holding every lock while a process forks, so that the child begins with all structures consistent (L3).

use crate::Frames;
use flagstone_host::Host;

impl<H: Host> Frames<H> {
    /// Takes every lock of this layer, class by class. The caller holds the gate ([`flagstone_host::classes::Fork`]) and
    /// has taken all classes of lower rank.
    pub fn lock_for_fork(&self) {
        for zone in self.zones() {
            zone.for_raw_slots(crate::page_list::Slot::lock_for_fork);
        }
        for zone in self.zones() {
            zone.lock_for_fork();
        }
    }

    /// Releases what [`Frames::lock_for_fork`] took, in the parent and in the child.
    ///
    /// # Safety
    /// Once in each after `lock_for_fork`, by the thread that called it (F2); no memory was added in between.
    pub unsafe fn unlock_after_fork(&self) {
        for zone in self.zones() {
            // SAFETY: F2, by the caller's promise.
            unsafe { zone.unlock_after_fork() };
        }
        for zone in self.zones() {
            zone.for_raw_slots(|slot| {
                // SAFETY: F2, by the caller's promise.
                unsafe { slot.unlock_after_fork() };
            });
        }
    }
}
