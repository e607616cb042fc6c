//! Virtual ranges, checked, and turned into offsets from the first address that a table translates.
//!
//! An offset has the bits that the table translates and no others, so that the end of the last range is a number too.

use crate::error::Error;
use crate::format::{Canonical, Format, Level};
use core::marker::PhantomData;
use flagstone_types::{Bytes, VirtAddr};

/// A range of virtual addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VirtRange {
    /// The first address.
    pub start: VirtAddr,
    /// How long it is; it may end with the last address there is.
    pub len: Bytes,
}

impl VirtRange {
    /// The `bytes` from `start` on.
    #[must_use]
    pub const fn new(start: usize, bytes: usize) -> Self {
        Self {
            start: VirtAddr(start),
            len: Bytes(bytes),
        }
    }
}

/// Which addresses a page table translates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// All that the format can; the lower half where the format has two roots.
    #[default]
    Whole,
    /// The lower half: addresses whose highest bits are 0.
    Lower,
    /// The upper half: addresses whose highest bits are 1.
    Upper,
}

/// Offsets of a table's addresses from the first one it translates: `start..end`, not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// How addresses of one table become offsets and back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses<F> {
    reach: Reach,
    format: PhantomData<F>,
}

impl<F: Format> Addresses<F> {
    pub(crate) const fn new(reach: Reach) -> Self {
        Self {
            reach,
            format: PhantomData,
        }
    }

    pub(crate) const fn reach(&self) -> Reach {
        self.reach
    }

    fn bits() -> u32 {
        F::virt_bits()
    }

    fn mask() -> u64 {
        u64::MAX >> (64 - Self::bits())
    }

    /// The offset of an address.
    #[inline]
    pub(crate) fn offset(&self, at: VirtAddr) -> Result<u64, Error> {
        let va = at.0 as u64;
        let upper = va as i64 >> (Self::bits() - 1);
        let above = va as i64 >> (Self::bits() % 64);
        let fits = match (F::CANONICAL, self.reach) {
            (Canonical::SignExtended, Reach::Whole) => upper == 0 || upper == -1,
            (Canonical::SignExtended, Reach::Lower) => upper == 0,
            (Canonical::SignExtended, Reach::Upper) => upper == -1,
            (Canonical::TwoRoots, Reach::Upper) => above == -1,
            (Canonical::TwoRoots | Canonical::ZeroExtended, _) => above == 0,
        };
        if fits {
            Ok(va & Self::mask())
        } else {
            Err(Error::NotCanonical(at))
        }
    }

    /// The address of an offset.
    #[inline]
    pub(crate) fn address(&self, offset: u64) -> VirtAddr {
        let unused = 64 - Self::bits();
        let offset = offset & Self::mask();
        VirtAddr(match (F::CANONICAL, self.reach) {
            (Canonical::SignExtended, _) => ((offset << unused) as i64 >> unused) as usize,
            (Canonical::TwoRoots, Reach::Upper) => (offset | !Self::mask()) as usize,
            _ => offset as usize,
        })
    }

    /// The address behind the last one of `..end`; `usize::MAX` for the end of all addresses.
    pub(crate) fn end_address(&self, end: u64) -> VirtAddr {
        match self.address(end - 1).0.checked_add(1) {
            Some(end) => VirtAddr(end),
            None => VirtAddr(usize::MAX),
        }
    }

    /// The offsets of a range whose ends must be multiples of what an entry of `level` reaches.
    #[inline]
    pub(crate) fn span(&self, range: VirtRange, level: Level) -> Result<Span, Error> {
        let shift = F::shift(level);
        let (at, bytes) = (range.start.0 as u64, range.len.0 as u64);
        for value in [at, bytes] {
            if value & ((1u64 << shift) - 1) != 0 {
                return Err(Error::Misaligned { value, shift });
            }
        }
        let start = self.offset(range.start)?;
        if bytes == 0 || bytes - 1 > Self::mask() {
            return Err(Error::BadLength(range.len.0));
        }
        // The last byte must be in the same part of the address space as the first one.
        let last = start + (bytes - 1);
        let part = match F::CANONICAL {
            Canonical::SignExtended => Self::bits() - 1,
            _ => Self::bits(),
        };
        if start.unbounded_shr(part) != last.unbounded_shr(part) {
            let beyond = range.start.0.wrapping_add(range.len.0 - 1);
            return Err(Error::NotCanonical(VirtAddr(beyond)));
        }
        Ok(Span {
            start,
            end: last + 1,
        })
    }
}

/// The index of an offset in a table of `level`.
#[inline(always)]
pub(crate) fn index_of<F: Format>(level: Level, offset: u64) -> usize {
    (offset >> F::shift(level)) as usize & (F::entries(level) - 1)
}

/// How many bytes an entry of `level` translates.
#[inline(always)]
pub(crate) fn reach_of<F: Format>(level: Level) -> u64 {
    1u64 << F::shift(level)
}
