//! Object caches for C programs: the functions of `flagstone.h`.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr::{NonNull, null_mut};

use flagstone_malloc::heap::heap;
use flagstone_malloc::known::KnownCache;
use flagstone_malloc::process::Process;
use flagstone_slab::{Cache, CacheHandle, CacheParams};
use flagstone_types::{AllocError, Gfp};

/// An object cache.
#[derive(Debug)]
pub struct FlagstoneCache {
    // Known by its address only; without a representation of C's the header declares it and no more.
    _opaque: (),
}

/// Runs once on every object when its memory is first used for a cache.
pub type FlagstoneConstructor = Option<unsafe extern "C" fn(object: *mut c_void)>;

fn fail(error: AllocError) {
    let number = match error {
        AllocError::InvalidArgument => libc::EINVAL,
        AllocError::Exists => libc::EEXIST,
        _ => libc::ENOMEM,
    };
    // SAFETY: the address of the thread's errno.
    unsafe { *libc::__errno_location() = number };
}

/// # Safety
/// `cache` came from `flagstone_cache_create` and was not destroyed.
unsafe fn known<'a>(cache: *const FlagstoneCache) -> &'a KnownCache {
    // SAFETY: as promised.
    unsafe { &*cache.cast::<KnownCache>() }
}

/// # Safety
/// As [`known`].
unsafe fn cache_of<'a>(cache: *const FlagstoneCache) -> &'a Cache<Process> {
    // SAFETY: as promised.
    unsafe { known(cache) }.cache()
}

/// Makes a cache of objects of `size` bytes aligned to `align` bytes (a power of two, or 0 for 16). `name` is copied.
/// `constructor`, if not null, runs once on every object when its memory is first used for the cache; objects are then freed in their
/// constructed state. Null and `errno` (`EINVAL`, `ENOMEM`, `EEXIST`) on failure.
///
/// # Safety
/// `name` is a C string; the constructor does not use the cache.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagstone_cache_create(
    name: *const c_char,
    size: usize,
    align: usize,
    constructor: FlagstoneConstructor,
) -> *mut FlagstoneCache {
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap_or("cache");
    let mut params = CacheParams::new(name, size, if align == 0 { 16 } else { align });
    // Its end and its count are about its own objects, which those of a shared cache could not be.
    params.flags.no_merge = true;
    // SAFETY: a function of C and one of Rust that take one pointer and return nothing are called alike on this platform.
    params.ctor = constructor.map(|c| unsafe {
        core::mem::transmute::<unsafe extern "C" fn(*mut c_void), unsafe fn(NonNull<u8>)>(c)
    });
    let caches = match heap() {
        Ok(caches) => caches,
        Err(error) => {
            fail(error);
            return null_mut();
        }
    };
    or_null(caches.create(&params).and_then(|handle| {
        KnownCache::new(handle).map_err(|handle| {
            // It has no objects, so this can not fail.
            let _ = caches.destroy(handle);
            AllocError::OutOfMemory
        })
    }))
}

fn or_null<T, C>(result: Result<NonNull<T>, AllocError>) -> *mut C {
    match result {
        Ok(pointer) => pointer.as_ptr().cast(),
        Err(error) => {
            fail(error);
            null_mut()
        }
    }
}

/// An object; null and `ENOMEM` if there is no memory.
///
/// # Safety
/// The cache is alive.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn flagstone_cache_alloc(cache: *mut FlagstoneCache) -> *mut c_void {
    flagstone_malloc::cache_alloc_body!(alloc_slow)
}

/// # Safety
/// As `flagstone_cache_alloc`.
unsafe extern "C" fn alloc_slow(cache: *mut FlagstoneCache) -> *mut c_void {
    // SAFETY: the caller's promise.
    let known = unsafe { known(cache) };
    or_null(heap().and_then(|caches| known.alloc_slow(caches)))
}

/// An object of zero bytes; not for caches with a constructor.
///
/// # Safety
/// The cache is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagstone_cache_zalloc(cache: *mut FlagstoneCache) -> *mut c_void {
    // SAFETY: the caller's promise.
    let object = unsafe { flagstone_cache_alloc(cache) };
    if !object.is_null() {
        // SAFETY: the object is ours and has so many bytes.
        unsafe {
            object
                .cast::<u8>()
                .write_bytes(0, cache_of(cache).object_size())
        };
    }
    object
}

/// Frees an object of the cache. Null is fine.
///
/// # Safety
/// The object came from this cache and is not used any more.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn flagstone_cache_free(cache: *mut FlagstoneCache, object: *mut c_void) {
    flagstone_malloc::cache_free_body!(free_slow)
}

/// # Safety
/// As `flagstone_cache_free`.
unsafe extern "C" fn free_slow(cache: *mut FlagstoneCache, object: *mut c_void) {
    if let (Ok(caches), Some(object)) = (heap(), NonNull::new(object.cast::<u8>())) {
        // SAFETY: the caller's promise.
        unsafe { known(cache).free_slow(caches, object) };
    }
}

/// Fills `objects` with `count` objects, all or none: `count`, or 0 and `ENOMEM`.
///
/// # Safety
/// The cache is alive; `objects` has room for `count` pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagstone_cache_alloc_bulk(
    cache: *mut FlagstoneCache,
    count: usize,
    objects: *mut *mut c_void,
) -> usize {
    if count == 0 {
        return 0;
    }
    // SAFETY: the caller's promise; a place for a pointer is one for a non-null pointer.
    let (cache, into) = unsafe {
        let into = objects.cast::<MaybeUninit<NonNull<u8>>>();
        (
            cache_of(cache),
            core::slice::from_raw_parts_mut(into, count),
        )
    };
    match heap().and_then(|caches| caches.alloc_bulk(cache, Gfp::KERNEL | Gfp::NOWARN, into)) {
        Ok(objects) => objects.len(),
        Err(error) => {
            fail(error);
            0
        }
    }
}

/// Frees `count` objects of the cache, none of them null.
///
/// # Safety
/// They came from this cache and are not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagstone_cache_free_bulk(
    cache: *mut FlagstoneCache,
    count: usize,
    objects: *const *mut c_void,
) {
    if let Ok(caches) = heap()
        && count > 0
    {
        // SAFETY: the caller's promise.
        unsafe {
            let objects = core::slice::from_raw_parts(objects.cast::<NonNull<u8>>(), count);
            caches.free_bulk(cache_of(cache), objects);
        }
    }
}

/// Gives back the memory of free objects; the number of slabs given back.
///
/// # Safety
/// The cache is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagstone_cache_shrink(cache: *mut FlagstoneCache) -> usize {
    // SAFETY: the caller's promise.
    let cache = unsafe { cache_of(cache) };
    heap().map_or(0, |caches| caches.shrink(cache))
}

/// Destroys a cache: 0; or `-1` and `EBUSY` if objects are still in use, and it lives on.
///
/// # Safety
/// Nobody uses the cache any more, if it succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagstone_cache_destroy(cache: *mut FlagstoneCache) -> c_int {
    let (Ok(caches), Some(known)) = (heap(), NonNull::new(cache.cast::<KnownCache>())) else {
        return 0;
    };
    // SAFETY: the caller's promise.
    let raw = NonNull::from(unsafe { known.as_ref() }.cache());
    // SAFETY: the pointer is the handle's, which `known` keeps: one of the two goes away below.
    let handle = unsafe { CacheHandle::from_raw(caches, raw) };
    match caches.destroy(handle) {
        Ok(()) => {
            // SAFETY: nobody uses the cache any more, and its handle is gone.
            unsafe { KnownCache::forget(known) };
            0
        }
        Err(busy) => {
            let _ = busy.cache.into_raw();
            // SAFETY: the address of the thread's errno.
            unsafe { *libc::__errno_location() = libc::EBUSY };
            -1
        }
    }
}

/// How many objects of the cache are in use.
///
/// # Safety
/// The cache is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flagstone_cache_in_use(cache: *mut FlagstoneCache) -> usize {
    // SAFETY: the caller's promise.
    let cache = unsafe { cache_of(cache) };
    heap().map_or(0, |caches| caches.info(cache).used_objects())
}
