//! GFP flags: what an allocation may do and where its memory may come from.
//!
//! The names are Linux's, the numbers are those that Linux 4.x printed, so
//! that reports can be compared with published ones: `__GFP_HIGHMEM` is 0x2
//! and `GFP_KERNEL` is 0x24000c0.

use bitflags::bitflags;
use core::fmt;

use crate::{MigrateType, Zone};

bitflags! {
    /// Flags of an allocation request.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Gfp: u32 {
        /// From [`Zone::Dma`].
        const DMA = 0x1;
        /// From high memory; no zone of ours, accepted for reports only.
        const HIGHMEM = 0x2;
        /// From [`Zone::Dma32`] or below.
        const DMA32 = 0x4;
        /// The page can be moved; [`Zone::Movable`] may serve it.
        const MOVABLE = 0x8;
        /// The page can be given back by a shrinker.
        const RECLAIMABLE = 0x10;
        /// May use the reserves down to half the minimum watermark.
        const HIGH = 0x20;
        /// May start physical I/O.
        const IO = 0x40;
        /// May call into a file system.
        const FS = 0x80;
        /// Likely to be dirtied soon; spreads over zones.
        const WRITE = 0x100;
        /// No report when it fails.
        const NOWARN = 0x200;
        /// Try hard, but fail in the end.
        const RETRY_MAYFAIL = 0x400;
        /// Never fail.
        const NOFAIL = 0x800;
        /// Give up after the first attempt to reclaim.
        const NORETRY = 0x1000;
        /// May use every reserve: the caller is freeing memory.
        const MEMALLOC = 0x2000;
        /// Make a compound page.
        const COMP = 0x4000;
        /// Contents are zero.
        const ZERO = 0x8000;
        /// May not use the reserves, whatever else is set.
        const NOMEMALLOC = 0x10000;
        /// Only from nodes that the caller's cpuset allows.
        const HARDWALL = 0x20000;
        /// Only from the node that was named.
        const THISNODE = 0x40000;
        /// Atomic: the caller can not sleep and may use part of the reserves.
        const ATOMIC_CONTEXT = 0x80000;
        /// Charge the caller's memory control group.
        const ACCOUNT = 0x100000;
        /// Do not record the page in leak tracking.
        const NOTRACK = 0x200000;
        /// May reclaim directly, that is: may sleep.
        const DIRECT_RECLAIM = 0x400000;
        /// Other nodes' free memory is no matter.
        const OTHER_NODE = 0x800000;
        /// May wake kswapd. (Bit 25, as in the published report.)
        const KSWAPD_RECLAIM = 0x2000000;

        /// May reclaim in either way.
        const RECLAIM = Self::DIRECT_RECLAIM.bits() | Self::KSWAPD_RECLAIM.bits();
        /// An ordinary kernel allocation.
        const KERNEL = Self::RECLAIM.bits() | Self::IO.bits() | Self::FS.bits();
        /// An allocation in a context that can not sleep.
        const ATOMIC = Self::HIGH.bits() | Self::ATOMIC_CONTEXT.bits() | Self::KSWAPD_RECLAIM.bits();
        /// Can not sleep and may not use the reserves.
        const NOWAIT = Self::KSWAPD_RECLAIM.bits();
        /// May reclaim, but not start I/O.
        const NOIO = Self::RECLAIM.bits();
        /// May start I/O, but not call into a file system.
        const NOFS = Self::RECLAIM.bits() | Self::IO.bits();
        /// For user space, not movable by the kernel.
        const USER = Self::KERNEL.bits() | Self::HARDWALL.bits();
        /// For user space, anywhere, movable.
        const HIGHUSER_MOVABLE = Self::USER.bits() | Self::HIGHMEM.bits() | Self::MOVABLE.bits();
    }
}

impl Gfp {
    /// Flags that a slab request may not carry: they are about whole pages or
    /// about zones that an object can not live in.
    pub const SLAB_BUG_MASK: Self = Self::HIGHMEM.union(Self::DMA32);

    /// The zone that the flags ask for; lower ones may serve as fallback.
    #[must_use]
    pub const fn zone(self) -> Zone {
        if self.contains(Self::DMA) {
            Zone::Dma
        } else if self.contains(Self::DMA32) {
            Zone::Dma32
        } else if self.contains(Self::MOVABLE) && self.contains(Self::HIGHMEM) {
            Zone::Movable
        } else {
            Zone::Normal
        }
    }

    /// The free lists that the flags ask for.
    #[must_use]
    pub const fn migrate_type(self) -> MigrateType {
        if self.contains(Self::MOVABLE) {
            MigrateType::Movable
        } else if self.contains(Self::RECLAIMABLE) {
            MigrateType::Reclaimable
        } else {
            MigrateType::Unmovable
        }
    }

    /// Whether the caller may sleep.
    #[must_use]
    pub const fn may_sleep(self) -> bool {
        self.contains(Self::DIRECT_RECLAIM)
    }
}

/// Sets of flags that reports print under one name, largest first.
const COMPOUND: &[(Gfp, &str)] = &[
    (Gfp::HIGHUSER_MOVABLE, "GFP_HIGHUSER_MOVABLE"),
    (Gfp::USER, "GFP_USER"),
    (Gfp::KERNEL, "GFP_KERNEL"),
    (Gfp::NOFS, "GFP_NOFS"),
    (Gfp::ATOMIC, "GFP_ATOMIC"),
    (Gfp::NOIO, "GFP_NOIO"),
];

const SINGLE: &[(Gfp, &str)] = &[
    (Gfp::DMA, "GFP_DMA"),
    (Gfp::HIGHMEM, "__GFP_HIGHMEM"),
    (Gfp::DMA32, "GFP_DMA32"),
    (Gfp::MOVABLE, "__GFP_MOVABLE"),
    (Gfp::RECLAIMABLE, "__GFP_RECLAIMABLE"),
    (Gfp::HIGH, "__GFP_HIGH"),
    (Gfp::IO, "__GFP_IO"),
    (Gfp::FS, "__GFP_FS"),
    (Gfp::WRITE, "__GFP_WRITE"),
    (Gfp::NOWARN, "__GFP_NOWARN"),
    (Gfp::RETRY_MAYFAIL, "__GFP_RETRY_MAYFAIL"),
    (Gfp::NOFAIL, "__GFP_NOFAIL"),
    (Gfp::NORETRY, "__GFP_NORETRY"),
    (Gfp::MEMALLOC, "__GFP_MEMALLOC"),
    (Gfp::COMP, "__GFP_COMP"),
    (Gfp::ZERO, "__GFP_ZERO"),
    (Gfp::NOMEMALLOC, "__GFP_NOMEMALLOC"),
    (Gfp::HARDWALL, "__GFP_HARDWALL"),
    (Gfp::THISNODE, "__GFP_THISNODE"),
    (Gfp::ATOMIC_CONTEXT, "__GFP_ATOMIC"),
    (Gfp::ACCOUNT, "__GFP_ACCOUNT"),
    (Gfp::NOTRACK, "__GFP_NOTRACK"),
    (Gfp::DIRECT_RECLAIM, "__GFP_DIRECT_RECLAIM"),
    (Gfp::OTHER_NODE, "__GFP_OTHER_NODE"),
    (Gfp::KSWAPD_RECLAIM, "__GFP_KSWAPD_RECLAIM"),
];

impl fmt::Display for Gfp {
    /// The names joined by `|`, a set of flags that has a name of its own
    /// under that name, unknown bits as a hexadecimal number, none as `0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = *self;
        let mut first = true;
        for (set, name) in COMPOUND.iter().chain(SINGLE) {
            if left.contains(*set) {
                if !first {
                    f.write_str("|")?;
                }
                f.write_str(name)?;
                first = false;
                left = left.difference(*set);
            }
        }
        if left.bits() != 0 || first {
            if !first {
                f.write_str("|")?;
            }
            if left.bits() == 0 {
                f.write_str("0")?;
            } else {
                write!(f, "{:#x}", left.bits())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    extern crate alloc;
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn names_are_printed_largest_set_first() {
        assert_eq!(Gfp::KERNEL.to_string(), "GFP_KERNEL");
        assert_eq!(
            (Gfp::KERNEL | Gfp::ZERO).to_string(),
            "GFP_KERNEL|__GFP_ZERO"
        );
        assert_eq!(Gfp::HIGHMEM.to_string(), "__GFP_HIGHMEM");
        assert_eq!(Gfp::empty().to_string(), "0");
        assert_eq!(Gfp::from_bits_retain(0x8000_0000).to_string(), "0x80000000");
    }

    #[test]
    fn numbers_match_the_published_report() {
        assert_eq!(Gfp::HIGHMEM.bits(), 0x2);
        assert_eq!(Gfp::KERNEL.bits(), 0x24000c0);
    }

    #[test]
    fn zone_and_migrate_type_follow_the_flags() {
        assert_eq!(Gfp::KERNEL.zone(), Zone::Normal);
        assert_eq!((Gfp::KERNEL | Gfp::DMA).zone(), Zone::Dma);
        assert_eq!(Gfp::HIGHUSER_MOVABLE.zone(), Zone::Movable);
        assert_eq!(
            (Gfp::KERNEL | Gfp::RECLAIMABLE).migrate_type(),
            MigrateType::Reclaimable
        );
    }
}
