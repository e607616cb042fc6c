//! Quantities: addresses, page frame numbers, orders, bytes, time.

use core::fmt;

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub usize);

/// A point in monotonic time, or a span of it, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The span from `earlier` to `self`; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

/// A physical address in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PhysAddr(pub u64);

/// A virtual address in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VirtAddr(pub usize);

/// A page frame number: a physical address divided by the page size of the
/// host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pfn(pub usize);

impl Pfn {
    /// The frame `pages` frames further on.
    #[must_use]
    pub const fn add(self, pages: usize) -> Self {
        Self(self.0 + pages)
    }

    /// Whether the frame number is a multiple of `2^order`.
    #[must_use]
    pub const fn is_aligned(self, order: Order) -> bool {
        self.0 & (order.pages() - 1) == 0
    }

    /// The block of the same order that together with this one makes a block
    /// of the next order.
    #[must_use]
    pub const fn buddy(self, order: Order) -> Self {
        Self(self.0 ^ order.pages())
    }
}

impl fmt::Display for Pfn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A contiguous run of page frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PfnRange {
    /// The first frame.
    pub start: Pfn,
    /// How many frames.
    pub pages: usize,
}

impl PfnRange {
    /// The run of `pages` frames that begins at `start`.
    #[must_use]
    pub const fn new(start: Pfn, pages: usize) -> Self {
        Self { start, pages }
    }

    /// The frame after the last one.
    #[must_use]
    pub const fn end(self) -> Pfn {
        Pfn(self.start.0 + self.pages)
    }

    /// Whether `pfn` is one of the frames.
    #[must_use]
    pub const fn contains(self, pfn: Pfn) -> bool {
        pfn.0 >= self.start.0 && pfn.0 - self.start.0 < self.pages
    }
}

/// A power of two of page frames: order 0 is one page, order 9 is 512.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Order(u8);

impl Order {
    /// One page.
    pub const ZERO: Self = Self(0);

    /// `2^order` pages, if that number fits in an address.
    #[must_use]
    pub const fn new(order: u32) -> Option<Self> {
        if order < usize::BITS {
            Some(Self(order as u8))
        } else {
            None
        }
    }

    /// The smallest order with at least `pages` pages (at least one), if there is one.
    #[must_use]
    pub const fn covering(pages: usize) -> Option<Self> {
        if pages <= 1 {
            return Some(Self(0));
        }
        Self::new(usize::BITS - (pages - 1).leading_zeros())
    }

    /// The exponent.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0 as u32
    }

    /// The exponent, as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// How many pages a block of this order has.
    #[must_use]
    pub const fn pages(self) -> usize {
        1 << self.0
    }

    /// How many bytes a block of this order has where a page has `2^page_shift`.
    #[must_use]
    pub const fn bytes(self, page_shift: u32) -> usize {
        1 << (self.0 as u32 + page_shift)
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn covering_is_the_smallest_order_that_holds_the_pages() {
        assert_eq!(Order::covering(0), Some(Order::ZERO));
        for pages in 1..5000usize {
            let order = Order::covering(pages).unwrap();
            assert!(order.pages() >= pages);
            assert!(order.get() == 0 || order.pages() / 2 < pages);
        }
        assert_eq!(Order::covering(usize::MAX), None);
        assert_eq!(Order::covering(1 << 63), Order::new(63));
    }

    #[test]
    fn buddies_are_each_others_buddies() {
        let order = Order::new(3).unwrap();
        assert_eq!(Pfn(8).buddy(order), Pfn(0));
        assert_eq!(Pfn(0).buddy(order), Pfn(8));
        assert!(Pfn(24).is_aligned(order) && !Pfn(4).is_aligned(order));
    }

    #[test]
    fn a_range_contains_its_start_and_not_its_end() {
        let r = PfnRange::new(Pfn(10), 3);
        assert!(r.contains(Pfn(10)) && r.contains(Pfn(12)));
        assert!(!r.contains(r.end()) && !r.contains(Pfn(9)));
    }
}
