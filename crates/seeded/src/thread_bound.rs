//! Values that only the thread that made them may touch.
//!
//! The host boundary wants hosts and arrays to be `Sync`, and a machine lives in one thread. A
//! [`ThreadBound`] is `Sync` for any content because it refuses every other thread (clause T1).

use core::cell::Cell;
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicU64, Ordering};

/// A number that no other thread of this process has had.
fn this_thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local!(static ID: Cell<u64> = const { Cell::new(0) });
    ID.with(|id| {
        if id.get() == 0 {
            id.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        id.get()
    })
}

/// A value of one thread.
#[derive(Debug)]
pub struct ThreadBound<T> {
    thread: u64,
    value: ManuallyDrop<T>,
}

// SAFETY: T1: the value is reached through `get`, which panics in any thread but the one that made it, and is
// dropped in that thread or not at all.
unsafe impl<T> Send for ThreadBound<T> {}
// SAFETY: T1, as above.
unsafe impl<T> Sync for ThreadBound<T> {}

impl<T> ThreadBound<T> {
    /// A value that belongs to the calling thread.
    pub fn new(value: T) -> Self {
        Self {
            thread: this_thread(),
            value: ManuallyDrop::new(value),
        }
    }

    /// The value.
    ///
    /// # Panics
    /// In another thread than the one that made it.
    #[inline]
    pub fn get(&self) -> &T {
        assert!(
            self.thread == this_thread(),
            "a seeded machine is used in a thread that did not build it"
        );
        &self.value
    }
}

impl<T> Drop for ThreadBound<T> {
    fn drop(&mut self) {
        if self.thread == this_thread() {
            // SAFETY: T1: dropped once, here, in the thread that made it.
            unsafe { ManuallyDrop::drop(&mut self.value) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ThreadBound;

    #[test]
    fn another_thread_is_refused() {
        let bound = ThreadBound::new(core::cell::Cell::new(1));
        bound.get().set(2);
        let refused = std::thread::scope(|s| s.spawn(|| bound.get().get()).join());
        assert!(refused.is_err());
        assert_eq!(bound.get().get(), 2);
    }
}
