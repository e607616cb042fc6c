//! Reading without locks: what is mapped where.

use crate::error::Error;
use crate::format::{Entry, Format, Leaf, Level};
use crate::level::{Raw, TableLevel};
use crate::mode::Mode;
use crate::ops::{Ops, Place, Stop, Visit};
use crate::span::{VirtRange, reach_of};
use crate::table::TableHost;
use flagstone_types::{PhysAddr, VirtAddr};

/// An entry that a walk came to: the first one on its way down that names no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The first address that the entry translates.
    pub at: VirtAddr,
    /// Its level.
    pub level: Level,
    /// What it says; never [`Entry::Table`].
    pub entry: Entry,
}

impl Found {
    /// The leaf, if it is one.
    #[must_use]
    pub fn leaf(&self) -> Option<Leaf> {
        match self.entry {
            Entry::Leaf(leaf) => Some(leaf),
            _ => None,
        }
    }

    /// Where `at`, an address that the entry translates, is in physical memory.
    #[must_use]
    pub fn physical(&self, at: VirtAddr) -> Option<PhysAddr> {
        let offset = at.0.wrapping_sub(self.at.0) as u64;
        self.leaf().map(|leaf| PhysAddr(leaf.at.0 + offset))
    }
}

struct Walk<C> {
    end: u64,
    each: C,
}

impl<H: TableHost, F: Format, M: Mode, C: FnMut(Found)> Visit<H, F, M> for Walk<C> {
    const FLOOR: Level = Level::PTE;
    /// The offset behind what was walked.
    type Out = u64;

    #[inline]
    fn at<'s, L: TableLevel>(
        &mut self,
        ops: &Ops<'s, '_, H, F, M>,
        place: Place<'s, H, F, L>,
        _: Raw<F, L>,
    ) -> Result<u64, Stop> {
        let size = reach_of::<F>(L::LEVEL);
        let start = place.start();
        let count = place.count_to(self.end);
        // The last present leaf: those that are alike differ in their address.
        let mut last: Option<(Raw<F, L>, Leaf)> = None;
        for n in 0..count {
            let raw = place.table.load(place.index + n);
            let offset = start + n as u64 * size;
            if let Some((other, leaf)) = &last
                && raw.flags() == other.flags()
            {
                (self.each)(Found {
                    at: ops.address(offset),
                    level: L::LEVEL,
                    entry: Entry::Leaf(leaf.moved(raw.address_by(*other, leaf.at))),
                });
                continue;
            }
            if raw.is_table() {
                // It became one since the walk, if it is the first.
                return if n == 0 { Err(Stop::Again) } else { Ok(offset) };
            }
            if !raw.is_none() {
                let entry = raw.decode();
                if let Entry::Leaf(leaf) = entry
                    && raw.is_present()
                {
                    last = Some((raw, leaf));
                }
                (self.each)(Found {
                    at: ops.address(offset),
                    level: L::LEVEL,
                    entry,
                });
            }
        }
        Ok(start + count as u64 * size)
    }
}

impl<H: TableHost, F: Format, M: Mode> Ops<'_, '_, H, F, M> {
    /// Tells `each` of every leaf and absent entry of a range, in ascending order, read without locks as [`Ops::lookup`] does. The range may begin and
    /// end within a huge leaf. `each` runs in a read-side section: it may neither wait for a grace period nor allocate.
    ///
    /// # Errors
    /// A range that is unaligned or not translated here.
    #[inline]
    pub fn walk(&self, range: VirtRange, each: impl FnMut(Found)) -> Result<(), Error> {
        let span = self.table.addresses.span(range, Level::PTE)?;
        let mut walk = Walk {
            end: span.end,
            each,
        };
        let mut at = span.start;
        while at < span.end {
            at = self.visit(at, &mut walk)?;
        }
        Ok(())
    }
}
