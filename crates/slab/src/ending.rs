//! The end of a cache: nothing is taken apart that somebody could still reach (S10).

use core::fmt;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use flagstone_host::Host;
use flagstone_types::Nid;

use crate::cache::Cache;
use crate::caches::{CacheHandle, Caches};
use crate::kmalloc::Found;

/// A cache was not destroyed because objects are still with users.
pub struct Busy<'c, H: Host> {
    /// How many objects.
    pub objects: usize,
    /// The cache, as it was but for free memory it has given back.
    pub cache: CacheHandle<'c, H>,
}

impl<H: Host> fmt::Debug for Busy<'_, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Busy")
            .field("objects", &self.objects)
            .field("cache", &self.cache)
            .finish()
    }
}

impl<H: Host> fmt::Display for Busy<'_, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (objects, name) = (self.objects, self.cache.name());
        write!(f, "cache {name}: {objects} objects are still in use")
    }
}

impl<H: Host> core::error::Error for Busy<'_, H> {}

impl<H: Host> Caches<H> {
    /// Destroys a cache. If others share it, only this handle ends.
    ///
    /// Everything that is free goes back first; then no object may be with a user.
    ///
    /// # Errors
    /// [`Busy`], with the number of objects still in use and the handle.
    pub fn destroy<'c>(&'c self, handle: CacheHandle<'c, H>) -> Result<(), Busy<'c, H>> {
        let cache = handle.cache;
        {
            // In one go: a handle that is handed out meanwhile would be one of a cache that ends.
            let mut list = self.lock_list();
            if handle.users.fetch_sub(1, Ordering::Relaxed) > 1 {
                return Ok(());
            }
            list.unlink(cache);
        }
        // No slab moves from here to there while objects are counted (S14).
        let cpu_slabs = handle.cpu_slabs.limit();
        self.set_cpu_slabs(&handle, 0);
        self.shrink(&handle);
        let objects = self.objects_used(&handle);
        if objects != 0 {
            handle.cpu_slabs.set_limit(cpu_slabs);
            let mut list = self.lock_list();
            handle.users.fetch_add(1, Ordering::Relaxed);
            list.link(cache);
            drop(list);
            return Err(Busy {
                objects,
                cache: handle,
            });
        }
        // SAFETY: unlinked, this was the only handle, and no object is with a user: the context is alone with the cache.
        unsafe { self.drain_unshared(&mut *cache.as_ptr()) };
        // Lookups by pages are over after a grace period, and so may be the releases of type-safe slabs, unless some other
        // context is just running them (S10, S11).
        let mut spins = 0;
        self.host().synchronize();
        while handle.deferred.load(Ordering::Acquire) != 0 {
            self.host().relax(spins);
            self.host().poll();
            spins = spins.saturating_add(1);
        }
        // SAFETY: alone with an empty cache; its structures came from the cache of caches, since permanent caches
        // have no handle.
        unsafe {
            self.dismantle(cache);
            if let Some(cache_cache) = self.cache_cache {
                self.free(cache_cache.as_ref(), cache.cast());
            }
        }
        Ok(())
    }

    /// Gives back what an empty cache owns.
    ///
    /// # Safety
    /// The caller is alone with the cache, which has no slabs.
    unsafe fn dismantle(&self, cache: NonNull<Cache<H>>) {
        // SAFETY: as promised.
        let cache = unsafe { &mut *cache.as_ptr() };
        debug_assert_eq!(*cache.deferred.get_mut(), 0, "slabs still wait (S10)");
        for nid in 0..self.nodes as u16 {
            let memory = cache.node(Nid(nid)).lists.lock().shared.memory.take();
            if let Some(run) = memory {
                self.frames.free_run(run);
            }
        }
        let sequence = cache.sequence.retract();
        if let Some(sequence) = NonNull::new(sequence.cast::<u8>()) {
            // SAFETY: allocated by `kmalloc` when it was published.
            unsafe {
                match self.find(sequence) {
                    Ok(Found::Object(class)) => self.free_own(class, sequence),
                    _ => self.kfree(sequence),
                }
            }
        }
        if let Some(run) = cache.memory.take() {
            self.frames.free_run(run);
        }
        // SAFETY: drained, untagged (its slabs are gone), and never used again (A11).
        unsafe { ManuallyDrop::drop(&mut cache.array) };
    }
}
