//! Object caches of this process over arrays of any form, and objects of one of them as an allocator.

use crate::Error;
use crate::allocator::{Allocator, no_memory};
use core::hint::black_box;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};
use flagstone_frames::{Frames, Reclaimer};
use flagstone_malloc::process::{ArrayForm, ProcessWith};
use flagstone_malloc::{classes, heap};
use flagstone_slab::{
    ArrayTuning, BadFree, CacheHandle, CacheParams, Caches, Constructor, LayoutPolicy, Policy,
};
use flagstone_types::{Gfp, Nid, Order};

/// Whether this process has its caches (B1).
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Claims the process's page frames.
///
/// # Errors
/// [`Error::Taken`] the second time.
pub(crate) fn claim() -> Result<(), Error> {
    if TAKEN.swap(true, Ordering::Relaxed) {
        Err(Error::Taken)
    } else {
        Ok(())
    }
}

/// More frames from the system when there are too few: an eighth of what there is.
struct Growth;

static GROWTH: Growth = Growth;

impl<F: ArrayForm> Reclaimer<ProcessWith<F>> for Growth {
    fn reclaim(&self, frames: &Frames<ProcessWith<F>>, _: Gfp, order: Order, nid: Nid) -> usize {
        let pages = (frames.managed_count(nid) / 8)
            .clamp(16, 1024)
            .max(2 * order.pages());
        let Ok(range) = frames.host().grow(nid, pages.next_multiple_of(16)) else {
            return 0;
        };
        let pages = range.frames.pages;
        frames.add_memory(range).map_or(0, |()| pages)
    }
}

fn bad_free(bad: &BadFree<'_>) {
    eprintln!("{:p} freed to {}: {:?}", bad.object, bad.cache, bad.error);
    std::process::abort()
}

/// What `malloc` chooses: arrays that grow with use.
pub(crate) const SHIPPED: Policy = Policy {
    bad_free,
    ..heap::POLICY
};

/// Arrays of the published sizes, which stay as they are.
pub(crate) const PUBLISHED: Policy = Policy {
    arrays: published_arrays,
    alien_limit: 12,
    adaptive: false,
    layout: LayoutPolicy {
        in_record: false,
        ..SHIPPED.layout
    },
    ..SHIPPED
};

/// The published sizes are those of a machine with pages of 4 KiB and several CPUs.
fn published_arrays(size: usize) -> ArrayTuning {
    ArrayTuning::linux(size, 4096, 2)
}

/// Brings up the caches of this process.
///
/// # Errors
/// [`Error::Taken`], [`Error::Memory`].
pub(crate) fn bring_up<F: ArrayForm>(
    policy: Policy,
) -> Result<&'static Caches<ProcessWith<F>>, Error> {
    claim()?;
    let refused = Error::memory("object caches");
    let frames = Frames::new(ProcessWith::<F>::start()).map_err(&refused)?;
    frames.set_min_free(Some(0));
    // SAFETY: B7.
    unsafe { frames.set_reclaimer(&raw const GROWTH) };
    Caches::boot(frames, policy, &classes::CLASSES).map_err(refused)
}

/// Objects of one cache of its own.
pub(crate) struct Objects<'c, F: ArrayForm> {
    caches: &'c Caches<ProcessWith<F>>,
    cache: CacheHandle<'c, ProcessWith<F>>,
}

impl<'c, F: ArrayForm> Objects<'c, F> {
    /// A cache of objects of `size` bytes.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub(crate) fn new(caches: &'c Caches<ProcessWith<F>>, size: usize) -> Result<Self, Error> {
        Self::constructed(caches, size, None)
    }

    /// The same with a constructor, which keeps the index out of free objects.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub(crate) fn constructed(
        caches: &'c Caches<ProcessWith<F>>,
        size: usize,
        ctor: Option<Constructor>,
    ) -> Result<Self, Error> {
        let mut params = CacheParams::new("bench", size, 0);
        params.flags.no_merge = true;
        params.ctor = ctor;
        let cache = caches
            .create(&params)
            .map_err(Error::memory("an object cache"))?;
        Ok(Self { caches, cache })
    }

    /// Ends the cache.
    pub(crate) fn destroy(self) {
        // With every object freed, as the loops do (B2), this can not fail.
        if let Err(busy) = self.caches.destroy(self.cache) {
            eprintln!("{busy}");
        }
    }

    /// `n` pairs by calls of functions that are told the cache.
    pub(crate) fn called_pairs(&self, n: u32) {
        let this = black_box(self);
        let alloc = black_box(Self::alloc_called as fn(&Self) -> NonNull<u8>);
        let free = black_box(Self::free_called as unsafe fn(&Self, NonNull<u8>));
        for _ in 0..n {
            let object = alloc(this);
            // SAFETY: B2.
            unsafe { free(this, object) };
        }
    }

    #[inline(never)]
    fn alloc_called(&self) -> NonNull<u8> {
        self.alloc(0)
    }

    /// # Safety
    /// As [`Allocator::free`].
    #[inline(never)]
    unsafe fn free_called(&self, object: NonNull<u8>) {
        // SAFETY: the caller's promise.
        unsafe { self.free(object, 0) }
    }

    pub(crate) fn cache(&self) -> &CacheHandle<'c, ProcessWith<F>> {
        &self.cache
    }
}

impl<F: ArrayForm> Allocator for Objects<'_, F> {
    #[inline(always)]
    fn alloc(&self, size: usize) -> NonNull<u8> {
        match self.caches.alloc(&self.cache, Gfp::KERNEL) {
            Ok(object) => object,
            Err(_) => no_memory(size),
        }
    }

    #[inline(always)]
    unsafe fn free(&self, object: NonNull<u8>, _size: usize) {
        // SAFETY: B2.
        unsafe { self.caches.free(&self.cache, object) }
    }

    fn cool(&self) {
        self.caches.shrink(&self.cache);
    }
}
