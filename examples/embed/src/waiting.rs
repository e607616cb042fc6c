//! Locks and grace periods on a machine where nobody ever waits: there is nobody to wait for.

use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering::Relaxed};

use crate::Board;
use flagstone_host::{Grace, RcuHead};
use lock_api::{GuardNoSend, RawMutex};

/// A lock: whether it is held.
#[derive(Debug)]
pub struct Flag(AtomicBool);

// SAFETY: E1: between a test and a store nothing else runs.
unsafe impl RawMutex for Flag {
    #[allow(
        clippy::declare_interior_mutable_const,
        reason = "what the trait asks for"
    )]
    const INIT: Self = Self(AtomicBool::new(false));

    type GuardMarker = GuardNoSend;

    fn lock(&self) {
        // Whoever holds it is below us on the stack and would wait for us for ever.
        assert!(self.try_lock(), "a lock is taken twice");
    }

    fn try_lock(&self) -> bool {
        let is_free = !self.0.load(Relaxed);
        self.0.store(true, Relaxed);
        is_free
    }

    unsafe fn unlock(&self) {
        self.0.store(false, Relaxed);
    }
}

/// How many read-side sections exist.
static READERS: AtomicU32 = AtomicU32::new(0);
/// The newest deferred call; each leads to the next older one.
static DEFERRED: AtomicPtr<RcuHead> = AtomicPtr::new(null_mut());
/// Whether deferred calls are being made.
static CALLING: AtomicBool = AtomicBool::new(false);

/// A read-side section.
#[derive(Debug)]
pub struct Reading(());

impl Drop for Reading {
    fn drop(&mut self) {
        READERS.store(READERS.load(Relaxed) - 1, Relaxed);
    }
}

impl Grace for Board {
    type ReadGuard<'a> = Reading;

    fn read(&self) -> Reading {
        READERS.store(READERS.load(Relaxed) + 1, Relaxed);
        Reading(())
    }

    unsafe fn defer(&self, head: NonNull<RcuHead>, call: unsafe fn(NonNull<RcuHead>)) {
        let next = DEFERRED.load(Relaxed);
        // SAFETY: the head is ours until its call (G1).
        unsafe {
            head.write(RcuHead {
                next,
                call: Some(call),
            })
        };
        DEFERRED.store(head.as_ptr(), Relaxed);
    }

    fn poll(&self) -> usize {
        if READERS.load(Relaxed) > 0 || CALLING.swap(true, Relaxed) {
            return 0;
        }
        let mut calls = 0;
        while let Some(head) = NonNull::new(DEFERRED.load(Relaxed)) {
            // SAFETY: G1: a deferred head is valid until its call, and no section is left that could have seen what it guards.
            unsafe {
                DEFERRED.store((*head.as_ptr()).next, Relaxed);
                if let Some(call) = (*head.as_ptr()).call {
                    call(head);
                }
            }
            calls += 1;
        }
        CALLING.store(false, Relaxed);
        calls
    }

    fn synchronize(&self) {
        assert_eq!(
            READERS.load(Relaxed),
            0,
            "waiting for a grace period inside a read-side section"
        );
        self.poll();
    }
}
