//! Forking a process: every lock is taken, so that the child begins with consistent structures and free locks (host L3).

use flagstone_host::Host;
use lock_api::RawMutex as _;

use crate::caches::Caches;

impl<H: Host> Caches<H> {
    /// Takes every lock of the caches and of the page frames. The caller holds the fork gate.
    pub fn lock_for_fork(&self) {
        // SAFETY: raw locks are released by `unlock_after_fork` alone.
        unsafe { self.list.raw().lock() };
        self.each_cache_held(|cache| {
            for node in cache.each_node() {
                for to in cache.each_node() {
                    if let Some(alien) = node.aliens.to(to.nid) {
                        // SAFETY: as above.
                        unsafe { alien.stack.raw().lock() };
                    }
                }
            }
        });
        self.each_cache_held(|cache| {
            for lock in cache
                .cpu_slabs
                .cpus()
                .filter_map(|cpu| cache.cpu_slabs.raw(cpu))
            {
                lock.lock();
            }
        });
        self.each_cache_held(|cache| {
            for node in cache.each_node() {
                // SAFETY: as above.
                unsafe { node.lists.raw().lock() };
            }
        });
        self.frames.lock_for_fork();
    }

    /// Releases them, in the parent and in the child.
    ///
    /// # Safety
    /// This context (or, in the child, the one that it is a copy of) took them by [`Caches::lock_for_fork`].
    pub unsafe fn unlock_after_fork(&self) {
        // SAFETY: as promised.
        unsafe {
            self.frames.unlock_after_fork();
            self.each_cache_held(|cache| {
                for lock in cache
                    .cpu_slabs
                    .cpus()
                    .filter_map(|cpu| cache.cpu_slabs.raw(cpu))
                {
                    lock.unlock();
                }
                for node in cache.each_node() {
                    node.lists.raw().unlock();
                    for to in cache.each_node() {
                        if let Some(alien) = node.aliens.to(to.nid) {
                            alien.stack.raw().unlock();
                        }
                    }
                }
            });
            self.list.raw().unlock();
        }
    }

    /// Calls `each` with every cache; the list's lock is held.
    fn each_cache_held(&self, mut each: impl FnMut(&crate::cache::Cache<H>)) {
        // SAFETY: this context holds the lock, taken raw.
        let list = unsafe { &*self.list.data_ptr() };
        list.iter().for_each(&mut each);
    }
}
