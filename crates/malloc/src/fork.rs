//! Forks: every lock is taken before and released after, in both processes, so that the child can allocate at once.

use core::sync::atomic::{AtomicBool, Ordering};

use flagstone_host::classes::Fork;

use crate::direct;
use crate::heap::caches;
use crate::process::{Lock, Process};

/// The gate: one fork at a time.
static GATE: lock_api::Mutex<Lock<Fork>, ()> = lock_api::Mutex::new(());

static REGISTERED: AtomicBool = AtomicBool::new(false);

/// Asks the C library to call us around forks. Ours are registered before anybody else's can be, so they run last before the fork
/// and first after it: other handlers may allocate.
pub(crate) fn register() {
    if !REGISTERED.swap(true, Ordering::Relaxed) {
        // SAFETY: the functions exist as long as the process.
        unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    }
}

unsafe extern "C" fn prepare() {
    core::mem::forget(GATE.lock());
    if let Some(caches) = caches() {
        caches.lock_for_fork();
    }
    direct::lock_for_fork();
    Process::start().prepare_fork();
}

unsafe extern "C" fn parent() {
    // SAFETY: `prepare` ran in this thread.
    unsafe {
        Process::start().after_fork_in_parent();
        release();
    }
}

unsafe extern "C" fn child() {
    // SAFETY: `prepare` ran in the thread that this one is a copy of.
    unsafe {
        Process::start().after_fork_in_child();
        release();
    }
    crate::report::after_fork();
}

/// # Safety
/// `prepare` ran in this thread or the one that it is a copy of.
unsafe fn release() {
    // SAFETY: as promised.
    unsafe {
        direct::unlock_after_fork();
        if let Some(caches) = caches() {
            caches.unlock_after_fork();
        }
        GATE.force_unlock();
    }
}
