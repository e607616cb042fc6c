//! Locks: a word that is free, held, or held with somebody waiting in the kernel.
//!
//! There is no owner, no fairness and no poisoning, so the child of a fork can go on with every lock
//! that its parent took before, and a lock can be a constant.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use flagstone_host::LockClass;

use super::syscall;

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// Rounds of looking before a waiter sleeps: about as long as the short critical sections of the core last.
const SPINS: u32 = 100;

/// Whether waiting by looking makes sense, that is: another CPU could release the lock meanwhile.
pub(super) static MAY_SPIN: AtomicBool = AtomicBool::new(false);

/// A lock of class `C`.
#[derive(Debug)]
pub struct Lock<C> {
    state: AtomicU32,
    class: PhantomData<fn() -> C>,
}

impl<C> Lock<C> {
    /// Makes the lock free, whoever holds it.
    ///
    /// # Safety
    /// Only for the child of a fork: the holder must be a thread that does not exist any more, and what the lock
    /// protects must be in order.
    pub unsafe fn reset(&self) {
        self.state.store(FREE, Ordering::Release);
    }

    #[cold]
    #[inline(never)]
    fn wait(&self) {
        if MAY_SPIN.load(Ordering::Relaxed) {
            for _ in 0..SPINS {
                core::hint::spin_loop();
                let state = self.state.load(Ordering::Relaxed);
                if state == FREE && self.take(HELD) {
                    return;
                }
                if state == CONTENDED {
                    break;
                }
            }
        }
        // Whoever slept can not know whether others still do, so it takes the lock as contended.
        while self.state.swap(CONTENDED, Ordering::Acquire) != FREE {
            syscall::futex_wait(&self.state, CONTENDED);
        }
    }

    #[inline]
    fn take(&self, as_state: u32) -> bool {
        self.state
            .compare_exchange(FREE, as_state, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    #[cold]
    #[inline(never)]
    fn wake(&self) {
        syscall::futex_wake(&self.state, 1);
    }
}

// SAFETY: the state goes from free to held by one atomic exchange, so one context holds the lock at a time;
// acquire and release order what it protects.
unsafe impl<C: LockClass> lock_api::RawMutex for Lock<C> {
    #[allow(
        clippy::declare_interior_mutable_const,
        reason = "the interface asks for a constant"
    )]
    const INIT: Self = Self {
        state: AtomicU32::new(FREE),
        class: PhantomData,
    };
    type GuardMarker = lock_api::GuardNoSend;

    #[inline]
    fn lock(&self) {
        if !self.take(HELD) {
            self.wait();
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.take(HELD)
    }

    #[inline]
    unsafe fn unlock(&self) {
        if self.state.swap(FREE, Ordering::Release) == CONTENDED {
            self.wake();
        }
    }

    #[inline]
    fn is_locked(&self) -> bool {
        self.state.load(Ordering::Relaxed) != FREE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flagstone_host::classes::HostInner;
    use lock_api::RawMutex as _;
    use std::sync::Arc;

    #[test]
    fn one_thread_at_a_time_is_inside() {
        for spin in [false, true] {
            MAY_SPIN.store(spin, Ordering::Relaxed);
            let counter = Arc::new(lock_api::Mutex::<Lock<HostInner>, u64>::new(0));
            let threads: Vec<_> = (0..6)
                .map(|_| {
                    let counter = counter.clone();
                    std::thread::spawn(move || {
                        for i in 0..20_000 {
                            let mut guard = counter.lock();
                            let before = *guard;
                            if i % 512 == 0 {
                                std::thread::yield_now();
                            }
                            *guard = before + 1;
                        }
                    })
                })
                .collect();
            threads.into_iter().for_each(|t| t.join().unwrap());
            assert_eq!(*counter.lock(), 120_000);
        }
    }

    #[test]
    fn a_held_lock_is_not_taken_by_trying() {
        let lock = Lock::<HostInner>::INIT;
        assert!(lock.try_lock() && !lock.try_lock() && lock.is_locked());
        // SAFETY: taken above.
        unsafe { lock.unlock() };
        assert!(lock.try_lock());
        // SAFETY: stands for a holder that is gone.
        unsafe { lock.reset() };
        assert!(!lock.is_locked());
    }
}
