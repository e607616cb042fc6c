//! Object caches as the written-out fast paths know them: for programs in C, whose every operation is a call.
//!
//! A [`KnownCache`] has beside its cache what a fast path needs of it, so that the address of the CPU's array is one load and two
//! additions away. `hot.rs` has the instructions; what they do is [`Caches::alloc`] and [`Caches::free`] with the cache given.

use core::mem::{align_of, size_of};
use core::ptr::NonNull;

use flagstone_host::{CpuCache, Cpus};
use flagstone_slab::{Cache, CacheHandle, Caches};
use flagstone_types::{AllocError, Gfp};

use crate::entry;
use crate::process::Process;
use crate::process::fast::TAG_SHIFT;

/// A cache and where its array is. Lives from [`KnownCache::new`] to [`KnownCache::forget`], and is never changed.
#[repr(C)]
#[derive(Debug)]
pub struct KnownCache {
    /// Where the array is in every slice, in bytes; 0 if it has none.
    pub place: u32,
    /// The same, or an odd number where a free must look at the object's node first.
    pub home: u32,
    cache: NonNull<Cache<Process>>,
}

impl KnownCache {
    /// What the fast paths need of the cache of `handle`, which the value keeps.
    #[must_use]
    pub fn of(handle: CacheHandle<'_, Process>) -> Self {
        let place = u32::from(handle.array().tag()) << TAG_SHIFT;
        let home = if handle.caches().host().nodes() > 1 {
            1
        } else {
            place
        };
        let cache = handle.into_raw();
        Self { place, home, cache }
    }

    /// The same in memory of its own.
    ///
    /// # Errors
    /// The handle, if there is no memory.
    pub fn new(
        handle: CacheHandle<'_, Process>,
    ) -> Result<NonNull<Self>, CacheHandle<'_, Process>> {
        const { assert!(align_of::<Self>() <= entry::ALIGN) };
        let Some(this): Option<NonNull<Self>> =
            NonNull::new(entry::allocate(size_of::<Self>()).cast::<Self>())
        else {
            return Err(handle);
        };
        // SAFETY: the memory is ours, large enough and aligned.
        unsafe { this.write(Self::of(handle)) };
        Ok(this)
    }

    /// The cache.
    #[must_use]
    pub fn cache(&self) -> &Cache<Process> {
        // SAFETY: `new` took the handle, so the cache is alive until its owner destroys it, who uses the value no more then.
        unsafe { self.cache.as_ref() }
    }

    /// Gives the value's own memory back; the cache stays as it is.
    ///
    /// # Safety
    /// `this` came from [`KnownCache::new`]; nobody uses it any more.
    pub unsafe fn forget(this: NonNull<Self>) {
        // SAFETY: as promised; it was allocated by `new`.
        unsafe { entry::free(this.as_ptr().cast()) }
    }

    /// An object, where the fast path has none.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`].
    pub fn alloc_slow(&self, caches: &Caches<Process>) -> Result<NonNull<u8>, AllocError> {
        caches.alloc(self.cache(), Gfp::KERNEL | Gfp::NOWARN)
    }

    /// Frees an object, where the fast path could not.
    ///
    /// # Safety
    /// As [`Caches::free`].
    pub unsafe fn free_slow(&self, caches: &Caches<Process>, object: NonNull<u8>) {
        // SAFETY: the caller's promise.
        unsafe { caches.free(self.cache(), object) }
    }
}
