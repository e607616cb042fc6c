//! The global allocator of a Rust program.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::NonNull;

use crate::entry;

/// Flagstone as the allocator of a Rust program:
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: flagstone_malloc::Flagstone = flagstone_malloc::Flagstone;
///
/// let words: Vec<String> = "all of this is on Flagstone".split(' ').map(String::from).collect();
/// assert_eq!(words.len(), 6);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Flagstone;

// SAFETY: allocations are at least as large and as aligned as asked for, disjoint, and live until they are freed.
unsafe impl GlobalAlloc for Flagstone {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= entry::ALIGN {
            entry::allocate(layout.size())
        } else {
            entry::allocate_aligned(layout.size(), layout.align())
        }
    }

    #[inline]
    unsafe fn dealloc(&self, object: *mut u8, _layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { entry::free(object) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= entry::ALIGN {
            return entry::allocate_zeroed(layout.size());
        }
        let object = entry::allocate_aligned(layout.size(), layout.align());
        if !object.is_null() {
            // SAFETY: the object is ours and has so many bytes.
            unsafe { object.write_bytes(0, layout.size()) };
        }
        object
    }

    #[inline]
    unsafe fn realloc(&self, object: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if layout.align() <= entry::ALIGN
            && let Some(old) = NonNull::new(object)
        {
            // SAFETY: the caller's promise.
            return unsafe { entry::reallocate(old, size) };
        }
        let to = entry::allocate_aligned(size, layout.align());
        if !to.is_null() {
            // SAFETY: both are live and different; the old one is the caller's to give up.
            unsafe {
                to.copy_from_nonoverlapping(object, layout.size().min(size));
                entry::free(object);
            }
        }
        to
    }
}
