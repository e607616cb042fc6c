//! Forks: every lock is taken before and released after, in both processes, so that the child can allocate at once.
//!
//! A process with one thread takes none: nobody else can hold one, and if a signal handler forks, the code that it
//! interrupted may hold some, and goes on with them in both processes.

use core::arch::asm;
use core::sync::atomic::{AtomicBool, Ordering};

use flagstone_host::classes::Fork;

use crate::direct;
use crate::guard;
use crate::heap::caches;
use crate::process::{Lock, Process};

/// The gate: one fork at a time.
static GATE: lock_api::Mutex<Lock<Fork>, ()> = lock_api::Mutex::new(());

static REGISTERED: AtomicBool = AtomicBool::new(false);

/// Whether the fork under way took the locks. Written by who holds the gate.
static LOCKED: AtomicBool = AtomicBool::new(false);

/// Whether the C library says that this is the only thread. `false` where it does not tell (before glibc 2.32).
#[inline(always)]
pub(crate) fn is_only_thread() -> bool {
    let flag: *const u8;
    // SAFETY: reads an address that the loader filled in, 0 if there is no such symbol. The reference is weak, so that
    // older C libraries do without.
    unsafe {
        asm!(
            ".weak __libc_single_threaded",
            "mov {flag}, qword ptr [rip + __libc_single_threaded@GOTPCREL]",
            flag = out(reg) flag,
            options(nostack, readonly, preserves_flags),
        );
    }
    // SAFETY: a byte of the C library, which is always there; other threads write it only while there are any.
    !flag.is_null() && unsafe { flag.read_volatile() } != 0
}

/// Asks the C library to call us around forks. Ours are registered before anybody else's can be, so they run last before the fork
/// and first after it: other handlers may allocate.
pub(crate) fn register() {
    if !REGISTERED.swap(true, Ordering::Relaxed) {
        // SAFETY: the functions exist as long as the process.
        unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    }
}

unsafe extern "C" fn prepare() {
    if is_only_thread() {
        return;
    }
    core::mem::forget(GATE.lock());
    LOCKED.store(true, Ordering::Relaxed);
    if let Some(caches) = caches() {
        caches.lock_for_fork();
    }
    direct::lock_for_fork();
    guard::lock_for_fork();
    Process::start().prepare_fork();
}

unsafe extern "C" fn parent() {
    if !LOCKED.load(Ordering::Relaxed) {
        return;
    }
    // SAFETY: `prepare` ran in this thread.
    unsafe {
        Process::start().after_fork_in_parent();
        release();
    }
}

unsafe extern "C" fn child() {
    Process::start().renew_in_child();
    let had_threads = LOCKED.load(Ordering::Relaxed);
    if had_threads {
        // SAFETY: `prepare` ran in the thread that this one is a copy of.
        unsafe {
            Process::start().after_fork_in_child();
            release();
        }
    }
    if had_threads {
        guard::after_fork();
    }
    crate::live::after_fork(had_threads);
}

/// # Safety
/// `prepare` ran in this thread or the one that it is a copy of.
unsafe fn release() {
    // SAFETY: as promised.
    unsafe {
        guard::unlock_after_fork();
        direct::unlock_after_fork();
        if let Some(caches) = caches() {
            caches.unlock_after_fork();
        }
        LOCKED.store(false, Ordering::Relaxed);
        GATE.force_unlock();
    }
}
