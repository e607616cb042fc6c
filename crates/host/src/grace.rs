//! Grace periods: when everyone who could have seen something has stopped looking.

use core::ptr::NonNull;

/// The place in an object where a deferred call is kept until its grace period has
/// passed. Two words; the object's own bytes otherwise stay readable.
#[repr(C)]
#[derive(Debug)]
pub struct RcuHead {
    /// The next deferred call; the host's while it waits.
    pub next: *mut RcuHead,
    /// What to call.
    pub call: Option<unsafe fn(NonNull<RcuHead>)>,
}

impl RcuHead {
    /// A head that waits for nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            next: core::ptr::null_mut(),
            call: None,
        }
    }
}

impl Default for RcuHead {
    fn default() -> Self {
        Self::new()
    }
}

/// Read-side sections and waiting for them.
pub trait Grace {
    /// A read-side section: lasts until it is dropped. Nests. Holding one the
    /// caller may not wait for a grace period.
    type ReadGuard<'a>
    where
        Self: 'a;

    /// Begins a read-side section. Takes no lock.
    fn read(&self) -> Self::ReadGuard<'_>;

    /// Arranges that `call(head)` runs once, after every read-side section that exists now has
    /// ended; in the context of whoever calls [`Grace::poll`] or [`Grace::synchronize`] then, with no locks of
    /// the core held.
    ///
    /// # Safety
    /// `head` stays valid and untouched until the call; `call` accepts it.
    unsafe fn defer(&self, head: NonNull<RcuHead>, call: unsafe fn(NonNull<RcuHead>));

    /// Runs deferred calls whose grace period has passed and returns how many. Never waits. Called
    /// with no locks held; inside a deferred call it returns 0.
    fn poll(&self) -> usize;

    /// Waits until every read-side section that exists now has ended, then runs what was deferred before.
    /// Called with no locks held.
    fn synchronize(&self);
}
