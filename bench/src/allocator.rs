//! Allocators as the loops see them: objects of one size, allocated and freed.
//!
//! Everybody's `malloc` is called in the same way, through a pointer that the compiler can not see through, with no function of ours
//! between: that costs what a call through a shared library's table costs, and nothing can be inlined or left out.
//! [`Inlined`] is the exception that shows what the call is worth.

use std::ffi::c_void;
use std::hint::black_box;
use std::ptr::NonNull;

/// Where objects come from and go to (B2).
pub(crate) trait Allocator: Sync {
    /// An object of `size` bytes, at least eight. Ends the process if there is none: what was measured would mean nothing.
    fn alloc(&self, size: usize) -> NonNull<u8>;

    /// Frees it.
    ///
    /// # Safety
    /// B2.
    unsafe fn free(&self, object: NonNull<u8>, size: usize);

    /// Gives back what is free, so that what follows starts from nothing, as far as the allocator can do that.
    fn cool(&self) {}
}

/// Ends the process for want of memory.
#[cold]
#[inline(never)]
pub(crate) fn no_memory(size: usize) -> ! {
    eprintln!("no memory for an object of {size} bytes");
    std::process::exit(1)
}

#[inline(always)]
fn checked(object: *mut u8, size: usize) -> NonNull<u8> {
    match NonNull::new(object) {
        Some(object) => object,
        None => no_memory(size),
    }
}

type Malloc = unsafe extern "C" fn(usize) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut c_void);

/// `malloc` and `free`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByCall {
    malloc: Malloc,
    free: Free,
}

impl ByCall {
    pub(crate) fn new(malloc: Malloc, free: Free) -> Self {
        Self {
            malloc: black_box(malloc),
            free: black_box(free),
        }
    }
}

impl Allocator for ByCall {
    #[inline(always)]
    fn alloc(&self, size: usize) -> NonNull<u8> {
        // SAFETY: malloc may be called with any size.
        checked(unsafe { (self.malloc)(size) }.cast(), size)
    }

    #[inline(always)]
    unsafe fn free(&self, object: NonNull<u8>, _size: usize) {
        // SAFETY: B2.
        unsafe { (self.free)(object.as_ptr().cast()) }
    }
}

/// Flagstone's `malloc` inlined into the loop, as a program gets it that makes it its global allocator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inlined;

impl Allocator for Inlined {
    #[inline(always)]
    fn alloc(&self, size: usize) -> NonNull<u8> {
        checked(flagstone_malloc::entry::allocate(size), size)
    }

    #[inline(always)]
    unsafe fn free(&self, object: NonNull<u8>, _size: usize) {
        // SAFETY: B2.
        unsafe { flagstone_malloc::entry::free(object.as_ptr()) }
    }
}
