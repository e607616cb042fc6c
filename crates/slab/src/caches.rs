//! All caches of a machine: their list, their making and their end.

use core::alloc::Layout as MemLayout;
use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::Deref;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use flagstone_frames::{FaultPoint, Frames};
use flagstone_host::{ArrayParams, CpuCache, Host, Mutex, classes};
use flagstone_types::{AllocError, Gfp, Nid};

use crate::alien::AlienCaches;
use crate::cache::{Cache, CacheFlags, CacheLinks, Constructor, Name, UserCopy};
use crate::cache_list::CacheList;
use crate::debug::Shape;
use crate::kmalloc::{Kmalloc, KmallocClass};
use crate::layout::{self, IndexClass, IndexPlace, Layout, ObjectShape};
use crate::node::Node;
use crate::placement::NumaPolicy;
use crate::random::Sequence;
use crate::refusal::Refusals;
use crate::slot::CpuSlabs;
use crate::tuning::{ArrayTuning, Improvements, Policy};
use crate::unarrayed::Reasons;

/// What a cache is made with.
#[derive(Clone, Copy, Debug)]
pub struct CacheParams<'a> {
    /// What `slabinfo` calls it; cut at 31 bytes.
    pub name: &'a str,
    /// Bytes of an object.
    pub size: usize,
    /// Alignment in bytes, a power of two; 0 for the machine's word.
    pub align: usize,
    /// Its properties.
    pub flags: CacheFlags,
    /// Runs once on every object of a new slab; such objects are freed in their constructed state.
    pub ctor: Option<Constructor>,
    /// What may be copied to and from user space.
    pub usercopy: UserCopy,
    /// The arrays, if not what the host's policy says.
    pub arrays: Option<ArrayTuning>,
    /// CPU slabs, the rival form: free objects that the slabs on a CPU's list may have when another one comes, 0 for a cache without such lists; if not what
    /// [`Improvements::cpu_slabs`] says.
    pub cpu_slabs: Option<u32>,
}

impl<'a> CacheParams<'a> {
    /// Whether what is in a free object matters to somebody, so that nothing of ours may be kept there (S7).
    const fn keeps_contents(&self) -> bool {
        self.ctor.is_some() || self.flags.typesafe_by_rcu || self.flags.zero_on_free
    }

    /// Objects of `size` bytes with the given alignment and nothing special.
    #[must_use]
    pub const fn new(name: &'a str, size: usize, align: usize) -> Self {
        Self {
            name,
            size,
            align,
            flags: CacheFlags {
                typesafe_by_rcu: false,
                reclaimable: false,
                dma: false,
                hwcache_align: false,
                no_merge: false,
                zero_on_free: false,
            },
            ctor: None,
            usercopy: UserCopy { offset: 0, size: 0 },
            arrays: None,
            cpu_slabs: None,
        }
    }
}

/// The object caches of a machine, over its page frames.
pub struct Caches<H: Host> {
    pub(crate) frames: Frames<H>,
    pub(crate) policy: Policy,
    pub(crate) improvements: Improvements,
    pub(crate) nodes: u32,
    pub(crate) list: Mutex<H, classes::CacheList, CacheList<H>>,
    /// The cache that further caches' own structures come from.
    pub(crate) cache_cache: Option<NonNull<Cache<H>>>,
    pub(crate) kmalloc: Kmalloc<H>,
    pub(crate) reports: flagstone_frames::ReportLimit,
    pub(crate) refusals: Refusals,
    pub(crate) failslab: FaultPoint,
    /// How objects are placed for who says nothing; null: where they are asked for. Never taken away again.
    pub(crate) policy_of_machine: AtomicPtr<NumaPolicy>,
}

// SAFETY: caches are `Sync`, the pointers to them are constant after boot.
unsafe impl<H: Host> Send for Caches<H> {}
// SAFETY: as above.
unsafe impl<H: Host> Sync for Caches<H> {}

/// The right to a cache made by [`Caches::create`]; [`Caches::destroy`] takes it back. Dropping
/// it leaves the cache alive for ever.
pub struct CacheHandle<'c, H: Host> {
    pub(crate) caches: &'c Caches<H>,
    pub(crate) cache: NonNull<Cache<H>>,
}

// SAFETY: a reference to a `Sync` cache.
unsafe impl<H: Host> Send for CacheHandle<'_, H> {}
// SAFETY: as above.
unsafe impl<H: Host> Sync for CacheHandle<'_, H> {}

impl<'c, H: Host> CacheHandle<'c, H> {
    /// The caches that this one is among.
    #[must_use]
    pub const fn caches(&self) -> &'c Caches<H> {
        self.caches
    }

    /// The handle as a pointer, for interfaces in C; given back by [`CacheHandle::from_raw`].
    #[must_use]
    pub fn into_raw(self) -> NonNull<Cache<H>> {
        self.cache
    }

    /// The handle again.
    ///
    /// # Safety
    /// The pointer came from [`CacheHandle::into_raw`] of a handle of these caches, once.
    #[must_use]
    pub const unsafe fn from_raw(caches: &'c Caches<H>, cache: NonNull<Cache<H>>) -> Self {
        Self { caches, cache }
    }
}

impl<H: Host> Deref for CacheHandle<'_, H> {
    type Target = Cache<H>;

    fn deref(&self) -> &Cache<H> {
        // SAFETY: the cache is alive while its handle is (S10).
        unsafe { self.cache.as_ref() }
    }
}

impl<H: Host> fmt::Debug for CacheHandle<'_, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// An array of fewer slots is not worth having.
const SMALLEST_ARRAY: u32 = 6;

impl<H: Host> Caches<H> {
    /// Brings the caches up over `frames`: the cache of caches, then one per class of `kmalloc`.
    /// What is returned lives as long as the machine.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`], or what [`layout::choose`] says of a class.
    pub fn boot<'h>(
        frames: Frames<H>,
        policy: Policy,
        kmalloc: &'static [KmallocClass],
    ) -> Result<&'h Self, AllocError>
    where
        H: 'h,
    {
        let host = frames.host();
        let nodes = host.nodes().max(1);
        let place = host.boot_alloc(MemLayout::new::<Self>())?.cast::<Self>();
        // SAFETY: boot memory is ours for ever and aligned (M3).
        let caches = unsafe {
            place.write(Self {
                frames,
                policy,
                improvements: Improvements::default(),
                nodes,
                list: lock_api::Mutex::new(CacheList::new()),
                cache_cache: None,
                kmalloc: Kmalloc::new(&host, kmalloc)?,
                reports: flagstone_frames::ReportLimit::new(),
                refusals: Refusals::new(),
                failslab: FaultPoint::new("failslab"),
                policy_of_machine: AtomicPtr::new(null_mut()),
            });
            &mut *place.as_ptr()
        };
        let size = Self::structure_layout(nodes).size();
        let mut params = CacheParams::new("kmem_cache", size, 64);
        params.flags.no_merge = true;
        caches.cache_cache = Some(caches.make(&params)?.into_raw());
        for (i, class) in kmalloc.iter().enumerate() {
            let mut params = CacheParams::new(class.name, class.size, class.align);
            params.flags.no_merge = true;
            params.usercopy = UserCopy {
                offset: 0,
                size: class.size as u32,
            };
            let cache = caches.make_permanent(&params)?;
            caches.kmalloc.set(i, cache);
        }
        Ok(caches)
    }

    /// The page frames below.
    #[must_use]
    pub const fn frames(&self) -> &Frames<H> {
        &self.frames
    }

    /// The machine.
    #[must_use]
    pub fn host(&self) -> H {
        self.frames.host()
    }

    /// The switches.
    #[must_use]
    pub const fn improvements(&self) -> &Improvements {
        &self.improvements
    }

    /// A cache's own structures: itself, then its nodes.
    fn structure_layout(nodes: u32) -> MemLayout {
        let cache = MemLayout::new::<Cache<H>>();
        MemLayout::array::<Node<H>>(nodes as usize)
            .and_then(|nodes| cache.extend(nodes))
            .map_or(cache, |(both, _)| both.pad_to_align())
    }

    /// Bytes from a cache to its nodes.
    const NODES_OFFSET: usize = size_of::<Cache<H>>().next_multiple_of(align_of::<Node<H>>());

    /// Makes a cache, or hands out one of the same shape that may be shared.
    ///
    /// # Errors
    /// [`AllocError::InvalidArgument`] (zero size, an alignment that is no power of two or larger
    /// than a page, a user-copy region outside the object, objects that are zeroed on free although they have a constructor or
    /// are type-safe by RCU), [`AllocError::TooLarge`], [`AllocError::OutOfMemory`], [`AllocError::Exists`] if no array is left.
    pub fn create(&self, params: &CacheParams<'_>) -> Result<CacheHandle<'_, H>, AllocError> {
        if let Some(shared) = self.mergeable(params) {
            return Ok(shared);
        }
        self.make(params)
    }

    /// A cache that objects with these parameters may share: the same stride, no constructor, no
    /// property that the other has not.
    fn mergeable(&self, params: &CacheParams<'_>) -> Option<CacheHandle<'_, H>> {
        let special = params.flags.no_merge
            || params.flags.typesafe_by_rcu
            || params.flags.zero_on_free
            || params.ctor.is_some()
            || params.usercopy.size != 0
            || params.arrays.is_some()
            || params.cpu_slabs.is_some()
            || self.shape(params).is_some();
        if special || !self.improvements.merge() {
            return None;
        }
        let wanted = self.choose_layout(params).ok()?;
        let list = self.lock_list();
        let found = list.iter().find(|c| {
            c.layout == wanted
                && !c.flags.no_merge
                && c.debug.is_none()
                && c.flags == params.flags
                && c.ctor.is_none()
                && c.usercopy.size == 0
                && c.cpu_slabs.exist() == self.improvements.cpu_slabs()
                && c.object_size as usize >= params.size
        })?;
        found.users.fetch_add(1, Ordering::Relaxed);
        Some(CacheHandle {
            caches: self,
            cache: NonNull::from(found),
        })
    }

    /// The alignment of objects without debugging; `None` for one that can not be.
    fn align_of(&self, params: &CacheParams<'_>) -> Option<usize> {
        if params.size == 0 || !(params.align == 0 || params.align.is_power_of_two()) {
            return None;
        }
        let mut align = if params.align == 0 {
            size_of::<usize>()
        } else {
            params.align
        };
        if params.flags.hwcache_align {
            let mut line = self.policy.layout.cache_line;
            while params.size <= line / 2 {
                line /= 2;
            }
            align = align.max(line);
        }
        Some(align)
    }

    fn choose_layout(&self, params: &CacheParams<'_>) -> Result<Layout, AllocError> {
        let keeps = params.keeps_contents();
        if params.size == 0
            || !(params.align == 0 || params.align.is_power_of_two())
            || params.flags.zero_on_free && (params.ctor.is_some() || params.flags.typesafe_by_rcu)
        {
            return Err(AllocError::InvalidArgument);
        }
        let mut align = self.align_of(params).ok_or(AllocError::InvalidArgument)?;
        let debug = self.shape_for(params, align);
        if let Some(debug) = &debug {
            align = debug.align as usize;
        }
        let shape = ObjectShape {
            object_size: match &debug {
                Some(debug) => debug.bytes as usize,
                None => Self::link_offset(params)
                    .map_or(Some(params.size), |link| {
                        link.checked_add(size_of::<usize>())
                    })
                    .ok_or(AllocError::TooLarge)?,
            },
            align,
            may_overwrite: !keeps && debug.is_none(),
            may_be_off_slab: true,
            reclaimable: params.flags.reclaimable,
        };
        let class = |bytes| {
            let cache = self.kmalloc.cache_for(bytes)?;
            Some(IndexClass {
                size: cache.layout.size as usize,
                off_slab: cache.layout.place == IndexPlace::OffSlab,
            })
        };
        layout::choose(
            &shape,
            &self.policy.layout,
            H::PAGE_SHIFT,
            H::MAX_ORDER,
            &class,
        )
    }

    /// What debugging keeps with objects of these parameters. The cache of caches is not debugged: reports are made with its help.
    fn shape_for(&self, params: &CacheParams<'_>, align: usize) -> Option<Shape> {
        self.cache_cache?;
        let flags = (self.policy.debug.flags)(params.name);
        // A link of the host's arrays lies behind objects whose contents matter.
        let links = Self::link_offset(params).map_or(0, |at| at + size_of::<usize>());
        Shape::new(
            flags,
            params.size.max(links),
            align,
            params.keeps_contents(),
        )
    }

    /// As [`Caches::shape_for`] with the alignment that the objects have.
    fn shape(&self, params: &CacheParams<'_>) -> Option<Shape> {
        let align = self.align_of(params)?;
        self.shape_for(params, align)
    }

    /// Where an array that links objects keeps its link if that may not be in the object itself (S7).
    fn link_offset(params: &CacheParams<'_>) -> Option<usize> {
        let links = <H::Array as CpuCache>::READS_STALE_LINKS;
        // A size that has no multiple after it is too large in any case.
        (links && params.keeps_contents())
            .then(|| params.size.checked_next_multiple_of(size_of::<usize>()))
            .map(|offset| offset.unwrap_or(usize::MAX))
    }

    fn make(&self, params: &CacheParams<'_>) -> Result<CacheHandle<'_, H>, AllocError> {
        let place = match self.cache_cache {
            // SAFETY: the cache of caches lives for ever.
            Some(cache) => self.alloc(unsafe { cache.as_ref() }, Gfp::KERNEL)?,
            None => self.host().boot_alloc(Self::structure_layout(self.nodes))?,
        };
        self.make_at(place, params).inspect_err(|_| {
            if let Some(cache) = self.cache_cache {
                // SAFETY: the structure was allocated above and holds nothing.
                unsafe { self.free(cache.as_ref(), place) };
            }
        })
    }

    /// A cache that is never destroyed, whose structures come from boot memory.
    fn make_permanent(&self, params: &CacheParams<'_>) -> Result<NonNull<Cache<H>>, AllocError> {
        let place = self.host().boot_alloc(Self::structure_layout(self.nodes))?;
        Ok(self.make_at(place, params)?.into_raw())
    }

    /// An array for a cache, as large as wanted or as the host still has room for.
    fn new_array(
        &self,
        wanted: u32,
        params: &CacheParams<'_>,
    ) -> Result<(H::Array, u32), AllocError> {
        let mut capacity = wanted;
        loop {
            let array = self.host().new_array(ArrayParams {
                capacity,
                link_offset: Self::link_offset(params).unwrap_or(0) as u32,
            });
            match array {
                Ok(array) => return Ok((array, capacity)),
                Err(AllocError::Exists) if capacity > SMALLEST_ARRAY => {
                    capacity = (capacity / 2).max(SMALLEST_ARRAY);
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn make_at(
        &self,
        place: NonNull<u8>,
        params: &CacheParams<'_>,
    ) -> Result<CacheHandle<'_, H>, AllocError> {
        let usercopy_end = params.usercopy.offset.checked_add(params.usercopy.size);
        if usercopy_end.is_none_or(|end| end as usize > params.size) {
            return Err(AllocError::InvalidArgument);
        }
        let layout = self.choose_layout(params)?;
        let host = self.host();
        let arrays = params
            .arrays
            .unwrap_or_else(|| (self.policy.arrays)(layout.size as usize));
        let (array, capacity) = self.new_array(arrays.capacity.max(1), params)?;
        let arrays = ArrayTuning { capacity, ..arrays };
        let first_limit = arrays.limit.clamp(1, capacity);
        let batch = arrays.batch.clamp(1, first_limit);
        let limit = if params.flags.zero_on_free {
            0
        } else {
            first_limit
        };
        let cpus = host.possible_cpus();
        let cpu_limit = params
            .cpu_slabs
            .unwrap_or_else(|| match self.improvements.cpu_slabs() {
                true => CpuSlabs::<H>::limit_for(layout.size as usize, H::PAGE_SIZE),
                false => 0,
            });
        let (mut arrays, mut pages) = (arrays, 0);
        if cpu_limit != 0 {
            arrays.shared_capacity = 0;
            pages = CpuSlabs::<H>::pages(cpus, self.nodes);
        } else if self.nodes > 1 {
            pages = AlienCaches::<H>::pages(self.nodes, self.policy.alien_limit);
        }
        let memory = match pages {
            0 => None,
            pages => Some(self.frames.alloc_run(Gfp::KERNEL, pages, None)?),
        };
        let cpu_slabs = match &memory {
            Some(run) if cpu_limit != 0 => {
                CpuSlabs::make(&self.frames, run, cpus, self.nodes, cpu_limit)
            }
            _ => CpuSlabs::none(),
        };
        let cpus = cpus as usize;
        let free_limit = (1 + cpus) * batch as usize + layout.num as usize;
        let cache = place.cast::<Cache<H>>();
        // SAFETY: the structure's memory is ours, large enough and aligned for the cache and its nodes behind it.
        unsafe {
            let nodes = cache.byte_add(Self::NODES_OFFSET).cast::<Node<H>>();
            for nid in 0..self.nodes as u16 {
                let nid = Nid(nid);
                let limit = self.policy.alien_limit;
                let aliens = match &memory {
                    Some(run) if cpu_limit == 0 => {
                        AlienCaches::make(&self.frames, run, nid, self.nodes, limit)
                    }
                    _ => AlienCaches::none(),
                };
                nodes
                    .add(nid.index())
                    .write(Node::new(nid, aliens, free_limit, &arrays));
            }
            let index_cache = (layout.place == IndexPlace::OffSlab)
                .then(|| {
                    self.kmalloc
                        .cache_for(layout.index_bytes())
                        .map(NonNull::from)
                })
                .flatten();
            cache.write(Cache {
                array: ManuallyDrop::new(array),
                layout,
                reciprocal: Cache::<H>::reciprocal(&layout, H::PAGE_SHIFT),
                object_size: params.size as u32,
                batch: AtomicU32::new(batch),
                limit: AtomicU32::new(limit),
                reasons: Reasons::new(0),
                first_limit: limit,
                capacity,
                gfp: if params.flags.dma {
                    Gfp::DMA
                } else {
                    Gfp::empty()
                } | if params.flags.reclaimable {
                    Gfp::RECLAIMABLE
                } else {
                    Gfp::empty()
                },
                flags: CacheFlags {
                    // Arrays that were asked for are for this one only.
                    no_merge: params.flags.no_merge
                        || params.arrays.is_some()
                        || params.cpu_slabs.is_some(),
                    ..params.flags
                },
                debug: self.shape(params),
                usercopy: params.usercopy,
                ctor: params.ctor,
                name: Name::new(params.name),
                sequence: Sequence::none(),
                nodes,
                node_count: self.nodes,
                memory,
                cpu_slabs,
                index_cache,
                users: AtomicU32::new(1),
                links: CacheLinks {
                    next: null_mut(),
                    prev: null_mut(),
                },
                deferred: AtomicU32::new(0),
                owner: NonNull::from(self),
            });
        }
        let mut list = self.lock_list();
        // SAFETY: nobody else reaches the cache before it is on the list.
        unsafe { (*cache.as_ptr()).begin_unarrayed(&list) };
        list.link(cache);
        drop(list);
        Ok(CacheHandle {
            caches: self,
            cache,
        })
    }

    /// Calls `each` with every cache, newest first, under the list's lock.
    pub fn each_cache(&self, mut each: impl FnMut(&Cache<H>)) {
        let list = self.lock_list();
        for cache in list.iter() {
            each(cache);
        }
    }
}
