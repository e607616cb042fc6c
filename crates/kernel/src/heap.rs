//! The heap: object caches over the machine's frames, with Linux's figures, and the global allocator of Rust on them.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::interrupts;
use crate::kernel::Kernel;
use crate::per_cpu::Area;
use flagstone_frames::Frames;
use flagstone_host::PageMap;
use flagstone_slab::{ArrayTuning, BadFree, Caches, KERNEL_CLASSES, LayoutPolicy, Policy};
use flagstone_types::{AllocError, Gfp};

static CACHES: AtomicPtr<Caches<Kernel>> = AtomicPtr::new(null_mut());

/// Brings up page frames and object caches. Called once.
///
/// # Errors
/// [`AllocError::OutOfMemory`], and what the layers say of the machine.
pub(crate) fn boot() -> Result<&'static Caches<Kernel>, AllocError> {
    let policy = Policy {
        layout: LayoutPolicy {
            min_order: 0,
            max_order: 1,
            min_objects: 1,
            cache_line: 64,
            in_record: false,
            in_object: true,
            zeroed: false,
            tail: 0,
        },
        arrays: |size| ArrayTuning::linux(size, Kernel::PAGE_SIZE, Area::count()),
        alien_limit: 12,
        adaptive: false,
        bad_free: report_bad_free,
        debug: flagstone_slab::DebugPolicy::NONE,
    };
    let caches: &'static Caches<Kernel> =
        Caches::boot(Frames::new(Kernel)?, policy, KERNEL_CLASSES)?;
    CACHES.store(core::ptr::from_ref(caches).cast_mut(), Ordering::Release);
    Ok(caches)
}

fn report_bad_free(bad: &BadFree<'_>) {
    panic!("free of {:p} to {}: {}", bad.object, bad.cache, bad.error);
}

/// The caches, once they are there.
pub(crate) fn caches() -> Option<&'static Caches<Kernel>> {
    // SAFETY: not null, so `boot` stored caches that live as long as the machine.
    unsafe { CACHES.load(Ordering::Acquire).as_ref() }
}

/// Flags for an allocation here and now.
pub(crate) fn gfp() -> Gfp {
    if interrupts::is_inside() {
        Gfp::ATOMIC
    } else {
        Gfp::KERNEL
    }
}

/// The global allocator. Alignments up to a page; others are refused.
#[derive(Debug)]
pub struct Heap;

impl Heap {
    /// How many bytes to ask for, so that the object is aligned: classes that are powers of two are aligned to their size, up to a page, and
    /// larger blocks to pages.
    const fn request(layout: Layout) -> Option<usize> {
        let (size, align) = (layout.size(), layout.align());
        if align > Kernel::PAGE_SIZE {
            return None;
        }
        if align <= 8 || size >= Kernel::PAGE_SIZE {
            return Some(size);
        }
        let least = if size > align { size } else { align };
        Some(least.next_power_of_two())
    }
}

// SAFETY: memory comes from `kmalloc` and belongs to the caller until it is freed; `request` sees to the alignment.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (Some(caches), Some(size)) = (caches(), Self::request(layout)) else {
            return null_mut();
        };
        caches
            .kmalloc(size, gfp())
            .map_or(null_mut(), NonNull::as_ptr)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let (Some(caches), Some(size)) = (caches(), Self::request(layout)) else {
            return null_mut();
        };
        caches
            .kmalloc(size, gfp() | Gfp::ZERO)
            .map_or(null_mut(), NonNull::as_ptr)
    }

    unsafe fn dealloc(&self, object: *mut u8, _layout: Layout) {
        if let (Some(caches), Some(object)) = (caches(), NonNull::new(object)) {
            // SAFETY: the caller gives up what `alloc` returned.
            unsafe { caches.kfree(object) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_large_enough_for_the_alignment() {
        let request = |size, align| Heap::request(Layout::from_size_align(size, align).unwrap());
        assert_eq!(request(24, 8), Some(24));
        assert_eq!(request(24, 16), Some(32));
        assert_eq!(request(24, 512), Some(512));
        assert_eq!(request(700, 64), Some(1024));
        assert_eq!(request(10_000, 4096), Some(10_000));
        assert_eq!(request(1, 8192), None);
    }
}
