//! The memory functions of C.

use core::ffi::{c_int, c_void};
use core::ptr::{NonNull, null_mut};

use flagstone_malloc::entry;
use flagstone_malloc::harden::copy::Direction;

/// The smallest page of the system in bytes.
const PAGE: usize = 4096;

#[cold]
#[inline(never)]
fn no_memory() -> *mut c_void {
    // SAFETY: the address of the thread's errno.
    unsafe { *libc::__errno_location() = libc::ENOMEM };
    null_mut()
}

#[inline(always)]
fn or_errno(object: *mut u8) -> *mut c_void {
    if object.is_null() {
        no_memory()
    } else {
        object.cast()
    }
}

/// `malloc`: at least `size` bytes, aligned to 16; null and `ENOMEM` if there are none. Zero bytes are an allocation of their own.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub extern "C" fn malloc(size: usize) -> *mut c_void {
    flagstone_malloc::allocate_body!(malloc_slow)
}

extern "C" fn malloc_slow(size: usize) -> *mut c_void {
    or_errno(entry::allocate_slow(size))
}

/// `free`. Keeps `errno`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn free(object: *mut c_void) {
    flagstone_malloc::free_body!(free_slow)
}

/// # Safety
/// As `free`.
unsafe extern "C" fn free_slow(object: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe { entry::free_slow(object.cast()) }
}

/// `free_sized` of C23: the size need not be looked at.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_sized(object: *mut c_void, _size: usize) {
    // SAFETY: the caller's promise.
    unsafe { entry::free(object.cast()) }
}

/// `free_aligned_sized` of C23.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_aligned_sized(object: *mut c_void, _align: usize, _size: usize) {
    // SAFETY: the caller's promise.
    unsafe { entry::free(object.cast()) }
}

/// `calloc`: zeroed; null and `ENOMEM` if the product is more than there can be.
#[unsafe(no_mangle)]
pub extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        Some(bytes) => or_errno(entry::allocate_zeroed(bytes)),
        None => no_memory(),
    }
}

/// `realloc`. `realloc(p, 0)` frees and returns null, `realloc(NULL, n)` allocates.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(object: *mut c_void, size: usize) -> *mut c_void {
    let Some(old) = NonNull::new(object.cast::<u8>()) else {
        return malloc(size);
    };
    // SAFETY: the caller's promise.
    unsafe {
        if size == 0 {
            entry::free(old.as_ptr());
            return null_mut();
        }
        or_errno(entry::reallocate(old, size))
    }
}

/// `reallocarray`: `realloc` of a product; null and `ENOMEM` if that is more than there can be.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(
    object: *mut c_void,
    count: usize,
    size: usize,
) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: the caller's promise.
        Some(bytes) => unsafe { realloc(object, bytes) },
        None => no_memory(),
    }
}

/// `posix_memalign`: `EINVAL` for an alignment that is no power of two or no multiple of a pointer's size, `ENOMEM`; `*into` is
/// written on success only, and `errno` never.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(
    into: *mut *mut c_void,
    align: usize,
    size: usize,
) -> c_int {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<*mut c_void>()) {
        return libc::EINVAL;
    }
    let object = entry::allocate_aligned(size, align);
    if object.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller's promise.
    unsafe { *into = object.cast() };
    0
}

/// The alignment that the C library uses for a request of `align`: the next power of two; none if there is none.
fn rounded(align: usize) -> Option<usize> {
    if align > (1 << (usize::BITS - 1)) {
        None
    } else {
        Some(align.next_power_of_two())
    }
}

/// `memalign`: an alignment that is no power of two is rounded up to one; `EINVAL` if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    match rounded(align) {
        Some(align) => or_errno(entry::allocate_aligned(size, align)),
        None => {
            // SAFETY: the address of the thread's errno.
            unsafe { *libc::__errno_location() = libc::EINVAL };
            null_mut()
        }
    }
}

/// `aligned_alloc`, which the C library makes the same as `memalign`.
#[unsafe(no_mangle)]
pub extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    memalign(align, size)
}

/// `valloc`: aligned to a page.
#[unsafe(no_mangle)]
pub extern "C" fn valloc(size: usize) -> *mut c_void {
    memalign(PAGE, size)
}

/// `pvalloc`: whole pages, aligned to a page.
#[unsafe(no_mangle)]
pub extern "C" fn pvalloc(size: usize) -> *mut c_void {
    match size.checked_next_multiple_of(PAGE) {
        Some(size) => memalign(PAGE, size),
        None => no_memory(),
    }
}

/// `malloc_usable_size`: how many bytes of the allocation may be used; 0 for null.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(object: *mut c_void) -> usize {
    // SAFETY: the caller's promise.
    unsafe { entry::usable_size(object.cast()) }
}

/// For the object that checks copies (`flagstone-usercopy`): comes back if the bytes lie in one object or in none. `direction` is 0 if they are read and 1 if they are overwritten.
#[unsafe(no_mangle)]
pub extern "C" fn flagstone_check_copy(buffer: *const c_void, length: usize, direction: c_int) {
    let direction = if direction == 0 {
        Direction::From
    } else {
        Direction::To
    };
    flagstone_malloc::harden::copy::check(buffer.cast(), length, direction);
}
