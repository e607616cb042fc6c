//! Holding every lock while a process forks, so that the child begins with all structures consistent (L3).

use crate::Frames;
use crate::zone::ZoneState;
use flagstone_host::Host;

impl<H: Host> Frames<H> {
    /// Takes every lock of this layer, in order. Locks of lower rank are taken before by whoever owns them.
    pub fn lock_for_fork(&self) {
        self.for_zones_by_slots(|zone| zone.for_raw_slots(crate::page_list::Slot::lock_for_fork));
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
        self.for_zones_by_slots(|zone| {
            zone.for_raw_slots(|slot| {
                // SAFETY: F2, by the caller's promise.
                unsafe { slot.unlock_after_fork() };
            });
        });
    }

    /// Calls `each` with every zone that has page lists, in ascending order of their address: the order of locks
    /// within the class.
    fn for_zones_by_slots(&self, mut each: impl FnMut(&ZoneState<H>)) {
        let address =
            |zone: &ZoneState<H>| zone.slots.load(core::sync::atomic::Ordering::Acquire) as usize;
        let mut last = 0;
        while let Some(zone) = self
            .zones()
            .iter()
            .filter(|z| address(z) > last)
            .min_by_key(|z| address(z))
        {
            each(zone);
            last = address(zone);
        }
    }
}
