//! The atomics: as those of `core::sync::atomic`, in the memory of a run if there is one.

use crate::engine;
use std::cell::UnsafeCell;
use std::fmt;
use std::sync::atomic as machine;

pub use std::sync::atomic::{Ordering, compiler_fence};

/// A fence.
pub fn fence(order: Ordering) {
    if engine::is_running() {
        engine::fence(order);
    } else {
        machine::fence(order);
    }
}

macro_rules! atomic {
    ($name:ident, $value:ty, $native:ident) => {
        atomic!(@base $name, $value, $native, [], |v: $value| v as u64, |v: u64| v as $value);
        impl $name {
            atomic!(@modify fetch_add, $value, |old, by| old.wrapping_add(by));
            atomic!(@modify fetch_sub, $value, |old, by| old.wrapping_sub(by));
            atomic!(@modify fetch_and, $value, |old, by| old & by);
            atomic!(@modify fetch_or, $value, |old, by| old | by);
            atomic!(@modify fetch_xor, $value, |old, by| old ^ by);
            atomic!(@modify fetch_max, $value, |old, by| old.max(by));
            atomic!(@modify fetch_min, $value, |old, by| old.min(by));
        }
    };
    (@modify $op:ident, $value:ty, |$old:ident, $by:ident| $new:expr) => {
        /// As the machine's.
        #[inline]
        pub fn $op(&self, $by: $value, order: Ordering) -> $value {
            self.modify(order, |$old: $value| $new)
        }
    };
    (@base $name:ident, $value:ty, $native:ident, [$($g:ident)?], $to:expr, $from:expr) => {
        /// As the machine's of this name.
        #[repr(transparent)]
        pub struct $name$(<$g>)?(UnsafeCell<$value>);

        // SAFETY: threads of a run are coroutines of one thread; outside of a run every access is one of the machine's atomics.
        unsafe impl$(<$g>)? Sync for $name$(<$g>)? {}
        // SAFETY: as above.
        unsafe impl$(<$g>)? Send for $name$(<$g>)? {}

        impl$(<$g>)? $name$(<$g>)? {
            /// As the machine's.
            pub const fn new(value: $value) -> Self {
                Self(UnsafeCell::new(value))
            }

            /// As the machine's.
            ///
            /// # Safety
            /// As the machine's.
            pub const unsafe fn from_ptr<'a>(at: *mut $value) -> &'a Self {
                // SAFETY: the caller's promise; the layout is that of the value.
                unsafe { &*at.cast::<Self>() }
            }

            /// As the machine's.
            pub const fn as_ptr(&self) -> *mut $value {
                self.0.get()
            }

            /// As the machine's.
            pub fn get_mut(&mut self) -> &mut $value {
                self.0.get_mut()
            }

            /// As the machine's.
            pub fn into_inner(self) -> $value {
                self.0.into_inner()
            }

            fn native(&self) -> &machine::$native$(<$g>)? {
                // SAFETY: the same size and alignment, and nobody uses the value otherwise while it is shared.
                unsafe { machine::$native::from_ptr(self.0.get()) }
            }

            /// What is in memory: the newest value.
            fn now(&self) -> $value {
                self.native().load(Ordering::Relaxed)
            }

            fn put(&self, value: $value) {
                self.native().store(value, Ordering::Relaxed);
            }

            fn modify(&self, order: Ordering, new: impl Fn($value) -> $value) -> $value {
                if !engine::is_running() {
                    let native = self.native();
                    let mut old = native.load(Ordering::Relaxed);
                    loop {
                        let changed = native.compare_exchange(old, new(old), order, Ordering::Relaxed);
                        match changed {
                            Ok(_) => return old,
                            Err(now) => old = now,
                        }
                    }
                }
                engine::step();
                // Nothing comes between the look and the change: there is no step in between.
                let old = self.now();
                let value = new(old);
                engine::access_now(|memory, thread, _| {
                    memory.store(thread, self.0.get().addr(), $to(old), $to(value), order, true);
                });
                self.put(value);
                old
            }

            /// As the machine's.
            #[inline]
            pub fn load(&self, order: Ordering) -> $value {
                if !engine::is_running() {
                    return self.native().load(order);
                }
                let seen = engine::access(|memory, thread, choose| {
                    memory.load(thread, self.0.get().addr(), $to(self.now()), order, choose)
                });
                seen.map_or_else(|| self.now(), $from)
            }

            /// As the machine's.
            #[inline]
            pub fn store(&self, value: $value, order: Ordering) {
                if !engine::is_running() {
                    return self.native().store(value, order);
                }
                engine::access(|memory, thread, _| {
                    let (now, at) = ($to(self.now()), self.0.get().addr());
                    memory.store(thread, at, now, $to(value), order, false);
                    self.put(value);
                });
            }

            /// As the machine's.
            #[inline]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                self.modify(order, |_| value)
            }

            /// As the machine's.
            ///
            /// # Errors
            /// What was there if that was not `old`.
            #[inline]
            pub fn compare_exchange(
                &self,
                old: $value,
                new: $value,
                order: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                if !engine::is_running() {
                    return self.native().compare_exchange(old, new, order, failure);
                }
                engine::step();
                let now = self.now();
                if now == old {
                    engine::access_now(|memory, thread, _| {
                        let at = self.0.get().addr();
                        memory.store(thread, at, $to(now), $to(new), order, true);
                    });
                    self.put(new);
                    return Ok(old);
                }
                // What fails has seen something else; the instruction looks at what is newest.
                engine::access_now(|memory, thread, _| {
                    if failure == Ordering::SeqCst {
                        memory.fence(thread, failure);
                    }
                    memory.load(thread, self.0.get().addr(), $to(now), failure, |_| 0);
                    if failure == Ordering::SeqCst {
                        memory.fence(thread, failure);
                    }
                });
                Err(now)
            }

            /// As the machine's; never fails for no reason.
            ///
            /// # Errors
            /// What was there if that was not `old`.
            #[inline]
            pub fn compare_exchange_weak(
                &self,
                old: $value,
                new: $value,
                order: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(old, new, order, failure)
            }

            /// As the machine's.
            ///
            /// # Errors
            /// What was there when `new` gave nothing.
            pub fn fetch_update(
                &self,
                order: Ordering,
                failure: Ordering,
                mut new: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                let mut seen = self.load(failure);
                while let Some(value) = new(seen) {
                    match self.compare_exchange(seen, value, order, failure) {
                        Ok(old) => return Ok(old),
                        Err(now) => seen = now,
                    }
                }
                Err(seen)
            }
        }

        impl$(<$g>)? fmt::Debug for $name$(<$g>)? {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.now().fmt(f)
            }
        }
    };
}

atomic!(AtomicU8, u8, AtomicU8);
atomic!(AtomicU16, u16, AtomicU16);
atomic!(AtomicU32, u32, AtomicU32);
atomic!(AtomicU64, u64, AtomicU64);
atomic!(AtomicUsize, usize, AtomicUsize);
atomic!(AtomicI32, i32, AtomicI32);
atomic!(AtomicI64, i64, AtomicI64);
atomic!(@base AtomicBool, bool, AtomicBool, [], u64::from, |v| v != 0);
atomic!(@base AtomicPtr, *mut T, AtomicPtr, [T], |v: *mut T| v.expose_provenance() as u64, |v| {
    std::ptr::with_exposed_provenance_mut(v as usize)
});

impl AtomicBool {
    atomic!(@modify fetch_and, bool, |old, by| old & by);
    atomic!(@modify fetch_or, bool, |old, by| old | by);
    atomic!(@modify fetch_xor, bool, |old, by| old ^ by);
}

macro_rules! begin {
    ($($name:ident),*) => {$(
        impl Default for $name {
            fn default() -> Self {
                Self::new(Default::default())
            }
        }
    )*};
}
begin!(
    AtomicU8,
    AtomicU16,
    AtomicU32,
    AtomicU64,
    AtomicUsize,
    AtomicI32,
    AtomicI64,
    AtomicBool
);

impl<T> Default for AtomicPtr<T> {
    fn default() -> Self {
        Self::new(std::ptr::null_mut())
    }
}
