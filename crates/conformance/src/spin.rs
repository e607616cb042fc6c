//! The suite's own lock: a word that is waited for without asking the machine for anything.
//!
//! It is held for a few instructions and never across a call of the host, so in a simulator, where contexts change places in such calls only, nobody
//! ever waits; and it adds no step to the schedules that are under test. It is not taken in interrupts.

use core::hint::spin_loop;
use core::sync::atomic::{AtomicBool, Ordering};

/// See the module.
#[derive(Debug)]
pub(crate) struct RawSpin(AtomicBool);

// SAFETY: S1: `lock` and `try_lock` return with the word changed from false to true by the caller, and only `unlock` changes it back.
unsafe impl lock_api::RawMutex for RawSpin {
    #[allow(clippy::declare_interior_mutable_const)]
    const INIT: Self = Self(AtomicBool::new(false));
    type GuardMarker = lock_api::GuardNoSend;

    fn lock(&self) {
        while !self.try_lock() {
            spin_loop();
        }
    }

    fn try_lock(&self) -> bool {
        self.0
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    unsafe fn unlock(&self) {
        self.0.store(false, Ordering::Release);
    }
}

/// A value under the lock.
pub(crate) type Spin<T> = lock_api::Mutex<RawSpin, T>;
