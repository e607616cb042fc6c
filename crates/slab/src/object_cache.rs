//! Object caches for Rust types.

use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use flagstone_host::Host;
use flagstone_types::{AllocError, Gfp};

use crate::caches::{CacheHandle, CacheParams, Caches};
use crate::ending::Busy;

/// A cache of values of type `T`.
pub struct ObjectCache<'c, H: Host, T> {
    handle: CacheHandle<'c, H>,
    values: PhantomData<fn(T) -> T>,
}

/// A value in an [`ObjectCache`]; freed, after dropping the value, when it is dropped.
pub struct CacheBox<'o, H: Host, T> {
    object: NonNull<T>,
    cache: &'o CacheHandle<'o, H>,
}

// SAFETY: a box owns its value and frees to a `Sync` cache.
unsafe impl<H: Host, T: Send> Send for CacheBox<'_, H, T> {}
// SAFETY: a shared box gives shared access to its value only.
unsafe impl<H: Host, T: Sync> Sync for CacheBox<'_, H, T> {}

impl<'c, H: Host, T> ObjectCache<'c, H, T> {
    /// A cache of its own for values of type `T`.
    ///
    /// # Errors
    /// As [`Caches::create`]; [`AllocError::InvalidArgument`] for a type without size.
    pub fn new(caches: &'c Caches<H>, name: &str) -> Result<Self, AllocError> {
        let mut params = CacheParams::new(name, size_of::<T>(), align_of::<T>());
        // Its end says how many values are left, which a shared cache could not.
        params.flags.no_merge = true;
        let handle = caches.create(&params)?;
        Ok(Self {
            handle,
            values: PhantomData,
        })
    }

    /// The cache.
    #[must_use]
    pub const fn handle(&self) -> &CacheHandle<'c, H> {
        &self.handle
    }

    /// Moves `value` into an object.
    ///
    /// # Errors
    /// The value, if there is no memory.
    #[inline]
    pub fn insert(&self, value: T) -> Result<CacheBox<'_, H, T>, T> {
        match self.handle.caches().alloc(&self.handle, Gfp::KERNEL) {
            Ok(object) => {
                let object = object.cast::<T>();
                // SAFETY: the object is ours, large enough and aligned for a `T`.
                unsafe { object.write(value) };
                Ok(CacheBox {
                    object,
                    cache: &self.handle,
                })
            }
            Err(_) => Err(value),
        }
    }

    /// Allocates `into.len()` objects at once, all or none. They are not initialised.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`].
    pub fn alloc_bulk<'a>(
        &self,
        into: &'a mut [MaybeUninit<NonNull<T>>],
    ) -> Result<&'a mut [NonNull<T>], AllocError> {
        // SAFETY: `NonNull<T>` and `NonNull<u8>` have the same representation for sized types.
        let raw = unsafe {
            core::slice::from_raw_parts_mut(
                into.as_mut_ptr().cast::<MaybeUninit<NonNull<u8>>>(),
                into.len(),
            )
        };
        self.handle
            .caches()
            .alloc_bulk(&self.handle, Gfp::KERNEL, raw)?;
        // SAFETY: all were written.
        Ok(unsafe { into.assume_init_mut() })
    }

    /// Frees objects without dropping what is in them.
    ///
    /// # Safety
    /// They came from [`ObjectCache::alloc_bulk`] or [`CacheBox::into_raw`] of this cache and are not used any more.
    pub unsafe fn free_bulk(&self, objects: &[NonNull<T>]) {
        // SAFETY: as above; as promised.
        unsafe {
            let raw = core::slice::from_raw_parts(objects.as_ptr().cast(), objects.len());
            self.handle.caches().free_bulk(&self.handle, raw);
        }
    }

    /// Destroys the cache.
    ///
    /// # Errors
    /// [`Busy`] if objects were leaked into the hands of users ([`CacheBox::into_raw`]).
    pub fn destroy(self) -> Result<(), Busy<'c, H>> {
        self.handle.caches().destroy(self.handle)
    }
}

impl<H: Host, T> CacheBox<'_, H, T> {
    /// Gives up the box and keeps the object, which [`ObjectCache::free_bulk`] frees.
    #[must_use]
    pub fn into_raw(self) -> NonNull<T> {
        core::mem::ManuallyDrop::new(self).object
    }
}

impl<H: Host, T> Deref for CacheBox<'_, H, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the box owns an initialised object.
        unsafe { self.object.as_ref() }
    }
}

impl<H: Host, T> DerefMut for CacheBox<'_, H, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and `&mut self` is exclusive.
        unsafe { self.object.as_mut() }
    }
}

impl<H: Host, T> Drop for CacheBox<'_, H, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the box owns the object; nobody uses it after this.
        unsafe {
            self.object.drop_in_place();
            self.cache.caches().free(self.cache, self.object.cast());
        }
    }
}
