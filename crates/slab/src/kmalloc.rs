//! Size classes: objects of any size from a fixed set of caches, and whole pages beyond the largest.

use core::alloc::Layout as MemLayout;
use core::ptr::NonNull;
use flagstone_frames::{PageKind, PageRun};
use flagstone_host::Host;
use flagstone_types::{AllocError, FreeError, Gfp, PfnRange};

use crate::cache::Cache;
use crate::caches::Caches;
use crate::kmalloc_sets::{KmallocSet, SetTable};
use crate::record::Record;

/// One class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KmallocClass {
    /// The name of its cache.
    pub name: &'static str,
    /// Bytes of an object.
    pub size: usize,
    /// Alignment of its objects in bytes.
    pub align: usize,
}

macro_rules! kernel_classes {
    ($($size:literal),*) => {
        /// The classes of a kernel: powers of two, and 96 and 192.
        pub const KERNEL_CLASSES: &[KmallocClass] = &[$(KmallocClass {
            name: concat!("kmalloc-", $size),
            size: $size,
            align: {
                let s: usize = $size;
                if s.is_power_of_two() && s > 64 { if s > 4096 { 4096 } else { s } }
                else { 1 << s.trailing_zeros() }
            },
        }),*];
    };
}

kernel_classes!(
    8, 16, 32, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096, 8192
);

/// The caches of the classes, smallest first.
pub(crate) struct Kmalloc<H: Host> {
    classes: &'static [KmallocClass],
    caches: NonNull<Option<NonNull<Cache<H>>>>,
    pub(crate) sets: SetTable<H>,
}

impl<H: Host> Kmalloc<H> {
    pub(crate) fn new(host: &H, classes: &'static [KmallocClass]) -> Result<Self, AllocError> {
        if !classes.windows(2).all(|w| w[0].size < w[1].size) {
            return Err(AllocError::InvalidArgument);
        }
        let layout = MemLayout::array::<Option<NonNull<Cache<H>>>>(classes.len().max(1))
            .map_err(|_| AllocError::TooLarge)?;
        // Zeroed: every class has no cache yet.
        Ok(Self {
            classes,
            caches: host.boot_alloc(layout)?.cast(),
            sets: SetTable::new(host, classes.len())?,
        })
    }

    pub(crate) fn set(&mut self, class: usize, cache: NonNull<Cache<H>>) {
        assert!(class < self.classes.len());
        // SAFETY: in bounds; boot is the only writer.
        unsafe { self.caches.add(class).write(Some(cache)) };
    }

    /// The cache of class number `class`.
    pub(crate) fn cache(&self, class: usize) -> Option<&Cache<H>> {
        if class >= self.classes.len() {
            return None;
        }
        // SAFETY: in bounds; written at boot only; permanent caches live for ever.
        unsafe { self.caches.add(class).read().map(|c| &*c.as_ptr()) }
    }

    /// The smallest class for so many bytes, if it is ready.
    pub(crate) fn cache_for(&self, bytes: usize) -> Option<&Cache<H>> {
        self.cache(self.class_for(bytes))
    }

    fn class_for(&self, bytes: usize) -> usize {
        self.classes.partition_point(|c| c.size < bytes)
    }

    /// The cache for a request that asks for a set of its own; `None` where whole pages serve it.
    fn cache_of_set(&self, set: KmallocSet, bytes: usize) -> Option<&Cache<H>> {
        let class = self.class_for(bytes);
        let cache = self.sets.cache(set, class);
        match set {
            KmallocSet::Dma => cache,
            KmallocSet::Reclaimable => cache.or_else(|| self.cache(class)),
        }
    }

    pub(crate) const fn classes(&self) -> &'static [KmallocClass] {
        self.classes
    }
}

impl<H: Host> Caches<H> {
    /// The cache that serves `kmalloc` requests of `size` bytes, `None` where whole pages do.
    #[must_use]
    pub fn kmalloc_cache(&self, size: usize) -> Option<&Cache<H>> {
        self.kmalloc.cache_for(size)
    }

    /// The cache of class number `class` of those given to [`Caches::boot`].
    #[must_use]
    pub fn class_cache(&self, class: usize) -> Option<&Cache<H>> {
        self.kmalloc.cache(class)
    }

    /// Memory of at least `size` bytes, aligned to a word, and to its own size where that is a power of two (up to a page). With [`Gfp::DMA`] or
    /// [`Gfp::RECLAIMABLE`] from the set of classes for that ([`Caches::make_kmalloc_set`]); where there is none, whole pages serve DMA requests.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`]; [`AllocError::InvalidArgument`] for zero bytes.
    pub fn kmalloc(&self, size: usize, gfp: Gfp) -> Result<NonNull<u8>, AllocError> {
        if size == 0 {
            return Err(AllocError::InvalidArgument);
        }
        let cache = match KmallocSet::of(gfp) {
            None => self.kmalloc.cache_for(size),
            Some(set) => self.kmalloc.cache_of_set(set, size),
        };
        match cache {
            Some(cache) => self.alloc(cache, gfp),
            None => self.kmalloc_large(size, gfp),
        }
    }

    fn kmalloc_large(&self, size: usize, gfp: Gfp) -> Result<NonNull<u8>, AllocError> {
        let flags = (self.fix_up(gfp) - crate::grow::NOT_FOR_PAGES) | (gfp & Gfp::ZERO);
        let run = self
            .frames
            .alloc_run(flags, size.div_ceil(H::PAGE_SIZE), None)?;
        let page = self
            .frames
            .page(run.start())
            .ok_or(AllocError::InvalidArgument)?;
        page.set_kind(PageKind::Large);
        let PfnRange { start, .. } = run.into_raw();
        Ok(self.host().frame_ptr(start))
    }

    /// What lies at `object`: the usable bytes from there to the end of its allocation.
    ///
    /// # Errors
    /// If no allocation of these caches starts there.
    pub fn ksize(&self, object: NonNull<u8>) -> Result<usize, FreeError> {
        Ok(match self.find(object)? {
            Found::Object(cache) => cache.usable_size(),
            Found::Large(frames) => frames.pages * H::PAGE_SIZE,
        })
    }

    /// What starts at `object`.
    ///
    /// # Errors
    /// If no slab object or large allocation starts there. Whether an object is free is not looked up.
    pub fn find(&self, object: NonNull<u8>) -> Result<Found<'_, H>, FreeError> {
        let address = object.as_ptr().addr();
        let host = self.host();
        let pfn = host.pfn_of(address).ok_or(FreeError::Foreign)?;
        let (head, page) = self.frames.head(pfn).ok_or(FreeError::NotAllocated)?;
        match page.kind() {
            PageKind::Slab => {
                let record = page.view().cast::<Record<H>>();
                // SAFETY: the view of a slab's head is a record whose `cache` and `objects` are constant, and the
                // cache is alive while it has slabs (S5, S9, S10).
                let (cache, objects) = unsafe {
                    let cache = (&raw const (*record).cache).read();
                    (&*cache.as_ptr(), (&raw const (*record).objects).read())
                };
                cache.number_in(objects, object)?;
                Ok(Found::Object(cache))
            }
            PageKind::Large => {
                let offset = address - host.frame_ptr(head).as_ptr().addr();
                if offset != 0 {
                    return Err(FreeError::Interior { offset });
                }
                self.frames
                    .run_at(head)
                    .map(Found::Large)
                    .ok_or(FreeError::NotAllocated)
            }
            _ => Err(FreeError::NotAllocated),
        }
    }

    /// Frees what `kmalloc` or any cache handed out. A pointer that is neither is reported and left alone.
    ///
    /// # Safety
    /// The caller owns the object and nobody uses it any more.
    pub unsafe fn kfree(&self, object: NonNull<u8>) {
        match self.find(object) {
            // SAFETY: as promised.
            Ok(Found::Object(cache)) => unsafe { self.free(cache, object) },
            Ok(Found::Large(frames)) => {
                if let Some(page) = self.frames.page(frames.start) {
                    page.set_kind(PageKind::Allocated);
                }
                // SAFETY: the run was taken apart in `kmalloc_large`, and its owner gives it up here.
                self.frames.free_run(unsafe { PageRun::from_raw(frames) });
            }
            Err(error) => {
                (self.policy.bad_free)(&crate::BadFree {
                    object,
                    error,
                    cache: "kmalloc",
                });
            }
        }
    }

    /// Changes the size of an allocation, in place where its object is large enough; it never moves to a smaller one.
    /// `None` allocates. On failure the old one is as it was.
    ///
    /// # Errors
    /// As [`Caches::kmalloc`]; [`AllocError::InvalidArgument`] also if nothing starts at `object`.
    ///
    /// # Safety
    /// The caller owns the object, and gives it up if this succeeds.
    pub unsafe fn krealloc(
        &self,
        object: Option<NonNull<u8>>,
        size: usize,
        gfp: Gfp,
    ) -> Result<NonNull<u8>, AllocError> {
        let Some(old) = object else {
            return self.kmalloc(size, gfp);
        };
        let have = self.ksize(old).map_err(|_| AllocError::InvalidArgument)?;
        if size != 0 && size <= have {
            return Ok(old);
        }
        let new = self.kmalloc(size, gfp)?;
        // SAFETY: both are live allocations of at least so many bytes and do not overlap; the old one is given up.
        unsafe {
            new.copy_from_nonoverlapping(old, have.min(size));
            self.kfree(old);
        }
        Ok(new)
    }
}

/// What a pointer into managed memory is the start of.
pub enum Found<'a, H: Host> {
    /// An object of this cache.
    Object(&'a Cache<H>),
    /// A large allocation of these frames.
    Large(PfnRange),
}
