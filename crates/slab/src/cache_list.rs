//! The list of all caches of a machine, through links in the caches, under a lock of its own.

use core::ptr::{NonNull, null_mut};
use flagstone_host::Host;

use crate::cache::{Cache, CacheLinks};
use crate::inject::Pattern;

/// The list of caches, newest first.
pub(crate) struct CacheList<H: Host> {
    first: *mut Cache<H>,
    count: usize,
    /// The names of the caches whose allocations can be made to fail.
    pub(crate) inject: Pattern,
    /// Whether objects are placed by a policy of the machine.
    pub(crate) placed: bool,
}

// SAFETY: the caches on the list are `Sync` and reached under the list's lock.
unsafe impl<H: Host> Send for CacheList<H> {}

impl<H: Host> CacheList<H> {
    pub(crate) const fn new() -> Self {
        Self {
            first: null_mut(),
            count: 0,
            inject: None,
            placed: false,
        }
    }

    /// The caches.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Cache<H>> {
        // SAFETY: listed caches are alive while the list is locked (S10).
        let mut at = unsafe { self.first.as_ref() };
        core::iter::from_fn(move || {
            let cache = at?;
            // SAFETY: as above.
            at = unsafe { cache.links.next.as_ref() };
            Some(cache)
        })
    }

    pub(crate) fn link(&mut self, cache: NonNull<Cache<H>>) {
        // SAFETY: the cache is new and the list is locked; only list operations touch `links`.
        unsafe {
            (*cache.as_ptr()).links = CacheLinks {
                next: self.first,
                prev: null_mut(),
            };
            if let Some(first) = self.first.as_mut() {
                first.links.prev = cache.as_ptr();
            }
        }
        self.first = cache.as_ptr();
        self.count += 1;
    }

    pub(crate) fn unlink(&mut self, cache: NonNull<Cache<H>>) {
        // SAFETY: the cache is on the list, which is locked.
        unsafe {
            let CacheLinks { next, prev } = (*cache.as_ptr()).links;
            if let Some(next) = next.as_mut() {
                next.links.prev = prev;
            }
            match prev.as_mut() {
                Some(prev) => prev.links.next = next,
                None => self.first = next,
            }
        }
        self.count -= 1;
    }
}
