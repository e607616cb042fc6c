//! Sampled guard pages: now and then one allocation gets a page of its own, between two that can not be touched.
//!
//! ```text
//!   no access │ object 0      ░░░│ no access │░░ object 1     │ no access │ …
//!             └ left or right, by chance; ░ holds a pattern that is looked at when the object is freed
//! ```
//!
//! An access beyond the object's page, or to a freed object, faults at once and is reported with the object's history; a write between
//! the object and the end of its page is found when it is freed. The method is that of Linux's KFENCE: few objects are watched at any
//! moment, for next to nothing, in as many processes as there are.
//!
//! | file | what |
//! | --- | --- |
//! | `gate.rs` | which allocation: when the interval is over, the next one that the pool can hold |
//! | `pool.rs` | the pages, what is in them, and in which order they are used again |
//! | `fault.rs` | faults in the pool, and all others handed on |
//! | `coverage.rs` | call stacks that are in the pool already, when it fills up |
//! | `notice.rs` | what is reported |
//!
//! `MODEL.md` has the invariants (W1 …).

mod coverage;
mod fault;
mod gate;
mod notice;
mod pool;
#[cfg(test)]
mod tests;

use core::ptr::NonNull;

use flagstone_types::Nanos;

pub use fault::{Handler, replace_handler};
pub(crate) use gate::{is_armed, tick};
pub use pool::Statistics;

/// What is asked for (`FLAGSTONE_GUARD`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuardParams {
    /// The least time between two sampled allocations.
    pub interval: Nanos,
    /// How many objects the pool has, 1 to [`MOST_OBJECTS`].
    pub objects: u32,
}

/// The largest pool, in objects.
pub const MOST_OBJECTS: u32 = 65_535;

impl GuardParams {
    /// One allocation in 100 ms, 255 objects: about 2 MiB of address space, half of which is ever touched.
    pub const DEFAULT: Self = Self {
        interval: Nanos(100_000_000),
        objects: 255,
    };
}

/// Sets the pool up and begins to sample. Says on standard error if there is no memory for it.
pub(crate) fn start(params: &GuardParams) {
    if pool::create(params.objects) {
        fault::install();
        gate::begin(params.interval);
    } else {
        flagstone_host::Log::log(
            &crate::process::Process::start(),
            flagstone_host::Level::Error,
            format_args!("no memory for {} guarded objects, none is", params.objects),
        );
    }
}

/// A guarded allocation of `size` bytes aligned to `align`, if this is the one that the gate waits for and the pool can hold it.
#[cold]
pub(crate) fn sample(size: usize, align: usize) -> Option<NonNull<u8>> {
    if size > pool::PAGE || align > pool::PAGE || !gate::pass() {
        return None;
    }
    pool::allocate(size, align)
}

/// What a pointer is to the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guarded {
    /// The start of an allocated object of so many bytes.
    Object {
        /// Bytes asked for.
        size: usize,
    },
    /// In the pool, and not the start of an allocated object.
    Not,
}

/// What `object` is to the pool; `None` if it is outside, which costs a comparison.
#[inline]
pub(crate) fn find(object: NonNull<u8>) -> Option<Guarded> {
    pool::contains(object.addr().get()).then(|| pool::look(object.addr().get()))
}

/// Frees what is in the pool at `object`; a pointer that is no allocated object is reported, and nothing else happens.
pub(crate) fn free(object: NonNull<u8>) {
    pool::free(object.addr().get());
}

/// How often allocations were sampled, and what was found; all zero while the mode is off.
#[must_use]
pub fn statistics() -> Statistics {
    pool::statistics()
}

/// Whether a signal of the kernel may be one of ours: sampling is on.
#[must_use]
pub fn is_on() -> bool {
    pool::exists()
}

pub(crate) fn lock_for_fork() {
    pool::lock_for_fork();
}

/// # Safety
/// This thread, or the one that it is a copy of, called [`lock_for_fork`].
pub(crate) unsafe fn unlock_after_fork() {
    // SAFETY: as promised.
    unsafe { pool::unlock_after_fork() };
}

/// In the child of a fork: a thread that is gone may have been opening or closing the gate.
pub(crate) fn after_fork() {
    gate::after_fork();
}
