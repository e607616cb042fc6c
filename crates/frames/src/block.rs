//! Owned page frames: a block of a power of two, or a run of any length.
//!
//! Whoever has the value owns the frames; freeing moves it. There is no destructor: dropping a block
//! loses its frames for good.

use flagstone_types::{Order, Pfn, PfnRange};

/// `2^order` contiguous page frames, aligned to their own size. Owned.
#[must_use = "dropping a block loses its frames"]
#[derive(Debug, PartialEq, Eq)]
pub struct PageBlock {
    pfn: Pfn,
    order: Order,
    zero: bool,
}

impl PageBlock {
    pub(crate) const fn new(pfn: Pfn, order: Order, zero: bool) -> Self {
        Self { pfn, order, zero }
    }

    /// The first frame.
    #[must_use]
    pub const fn pfn(&self) -> Pfn {
        self.pfn
    }

    /// The order: the block has `2^order` frames.
    #[must_use]
    pub const fn order(&self) -> Order {
        self.order
    }

    /// Whether the contents were known to be zero when the block was handed out.
    #[must_use]
    pub const fn zero(&self) -> bool {
        self.zero
    }

    /// The frames.
    #[must_use]
    pub const fn range(&self) -> PfnRange {
        PfnRange::new(self.pfn, self.order.pages())
    }

    /// Gives up the value and keeps the ownership: first frame and order.
    #[must_use]
    pub const fn into_raw(self) -> (Pfn, Order) {
        (self.pfn, self.order)
    }

    /// The block again. Its contents count as unknown.
    ///
    /// # Safety
    /// `(pfn, order)` came from [`PageBlock::into_raw`], once (F1).
    pub const unsafe fn from_raw(pfn: Pfn, order: Order) -> Self {
        Self {
            pfn,
            order,
            zero: false,
        }
    }
}

/// A run of contiguous page frames of any length, at least one. Owned.
#[must_use = "dropping a run loses its frames"]
#[derive(Debug, PartialEq, Eq)]
pub struct PageRun {
    pub(crate) start: Pfn,
    pub(crate) pages: usize,
    pub(crate) zero: bool,
}

impl PageRun {
    /// The first frame.
    #[must_use]
    pub const fn start(&self) -> Pfn {
        self.start
    }

    /// How many frames.
    #[must_use]
    pub const fn pages(&self) -> usize {
        self.pages
    }

    /// Whether the contents were known to be zero when the run was handed out.
    #[must_use]
    pub const fn zero(&self) -> bool {
        self.zero
    }

    /// The frames.
    #[must_use]
    pub const fn range(&self) -> PfnRange {
        PfnRange::new(self.start, self.pages)
    }

    /// Gives up the value and keeps the ownership: the frames.
    #[must_use]
    pub const fn into_raw(self) -> PfnRange {
        PfnRange::new(self.start, self.pages)
    }

    /// The run again. Its contents count as unknown.
    ///
    /// # Safety
    /// `frames` came from [`PageRun::into_raw`], once, and has its length now (F1).
    pub const unsafe fn from_raw(frames: PfnRange) -> Self {
        Self {
            start: frames.start,
            pages: frames.pages,
            zero: false,
        }
    }
}
