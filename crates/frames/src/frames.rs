//! The page allocator as a value.

use crate::{Page, PageBlock, PageRun, Reclaimer};
use flagstone_host::{Host, MemRange};
use flagstone_types::{AllocError, Gfp, Nanos, Nid, Order, Pfn};

/// The page allocator of one machine.
pub struct Frames<H: Host> {
    host: H,
}

/// How idle memory goes back to its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleasePolicy {
    /// Free pages with contents that are kept however long they are idle.
    pub keep: usize,
    /// How long pages must have been free.
    pub interval: Nanos,
    /// How many times the owner may be called at once.
    pub max_calls: usize,
}

/// What [`Frames::release_idle`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Released {
    /// Pages whose memory went back.
    pub pages: usize,
    /// How many times the owner was called.
    pub calls: usize,
}

impl<H: Host> Frames<H> {
    /// An allocator for the memory that `host` has at start.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`] if the host has no room for the structures.
    pub fn new(host: H) -> Result<Self, AllocError> {
        Ok(Self { host })
    }

    /// The host.
    pub fn host(&self) -> H {
        self.host
    }

    /// Adds memory.
    ///
    /// # Errors
    /// Nothing has changed then.
    pub fn add_memory(&self, r: MemRange) -> Result<(), AllocError> {
        let _ = r;
        Err(AllocError::OutOfMemory)
    }

    /// Sets who makes frames free when they run short.
    ///
    /// # Safety
    /// `*reclaimer` outlives the allocator.
    pub unsafe fn set_reclaimer(&self, reclaimer: *const (dyn Reclaimer<H> + '_)) {
        let _ = reclaimer;
    }

    /// Allocates a block.
    ///
    /// # Errors
    /// Out of memory.
    pub fn alloc_pages(
        &self,
        gfp: Gfp,
        order: Order,
        nid: Option<Nid>,
    ) -> Result<PageBlock, AllocError> {
        let _ = (gfp, order, nid);
        Err(AllocError::OutOfMemory)
    }

    /// Frees a block.
    pub fn free_pages(&self, block: PageBlock) {
        let _ = block.into_raw();
    }

    /// Allocates a run.
    ///
    /// # Errors
    /// Out of memory.
    pub fn alloc_run(
        &self,
        gfp: Gfp,
        pages: usize,
        nid: Option<Nid>,
    ) -> Result<PageRun, AllocError> {
        let _ = (gfp, pages, nid);
        Err(AllocError::OutOfMemory)
    }

    /// Frees a run.
    pub fn free_run(&self, run: PageRun) {
        let _ = run.into_raw();
    }

    /// Makes a run longer where it is; says whether the added pages are known to be zero.
    ///
    /// # Errors
    /// Out of memory.
    pub fn grow_run(&self, run: &mut PageRun, extra: usize) -> Result<bool, AllocError> {
        let _ = (run, extra);
        Err(AllocError::OutOfMemory)
    }

    /// Gives the end of a run back.
    ///
    /// # Errors
    /// Invalid length.
    pub fn shrink_run(&self, run: &mut PageRun, pages: usize) -> Result<(), AllocError> {
        let _ = (run, pages);
        Err(AllocError::InvalidArgument)
    }

    /// The metadata of a frame.
    pub fn page(&self, pfn: Pfn) -> Option<&Page> {
        let _ = pfn;
        None
    }

    /// The first frame of the block that `pfn` is in.
    pub fn head(&self, pfn: Pfn) -> Option<(Pfn, &Page)> {
        let _ = pfn;
        None
    }

    /// The first frame of the block that `address` is in.
    pub fn page_of_address(&self, address: usize) -> Option<(Pfn, &Page)> {
        let _ = address;
        None
    }

    /// Free pages of a node.
    pub fn free_count(&self, nid: Nid) -> usize {
        let _ = nid;
        0
    }

    /// Gives idle memory back.
    pub fn release_idle(&self, now: Nanos, policy: &ReleasePolicy) -> Released {
        let _ = (now, policy);
        Released::default()
    }

    /// Moves what is in page lists to the buddy lists.
    pub fn drain_page_lists(&self) {}
}
