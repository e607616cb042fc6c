//! Leaves that differ in their address only: what was worked out for one holds for the next, and addresses are linear in the bits of an entry.
//!
//! Runs of pages mostly are alike, so a loop over a table does its thinking once and compares after that.

use crate::format::{Access, Format, Leaf, Level};
use crate::level::{Raw, TableLevel};
use crate::span::reach_of;
use flagstone_types::PhysAddr;

/// The bits of a present leaf that are its address: those in which the first and the last leaf of memory differ. A constant.
#[inline(always)]
pub(crate) fn address_bits<F: Format>(level: Level) -> u64 {
    let last = (1u64 << F::PHYS_BITS) - reach_of::<F>(level);
    leaf_at::<F>(level, 0) ^ leaf_at::<F>(level, last)
}

/// How much more an entry is that maps the memory behind another's. A constant; present leaves only.
#[inline(always)]
fn step<F: Format>(level: Level) -> u64 {
    leaf_at::<F>(level, reach_of::<F>(level)).wrapping_sub(leaf_at::<F>(level, 0))
}

#[inline(always)]
fn leaf_at<F: Format>(level: Level, at: u64) -> u64 {
    F::leaf(level, &Leaf::kernel(PhysAddr(at), Access::READ))
}

impl<F: Format, L: TableLevel> Raw<F, L> {
    /// What is not the address.
    #[inline(always)]
    pub(crate) fn flags(self) -> u64 {
        self.bits() & !address_bits::<F>(L::LEVEL)
    }

    /// The present leaf of the memory behind this one's, if that is not beyond the last address.
    #[inline(always)]
    pub(crate) fn following(self) -> Self {
        Self::from_bits(self.bits().wrapping_add(step::<F>(L::LEVEL)))
    }

    /// Where a present leaf is that has the flags of `other`, which is at `at`.
    #[inline(always)]
    pub(crate) fn address_by(self, other: Self, at: PhysAddr) -> PhysAddr {
        let scale = reach_of::<F>(L::LEVEL) / step::<F>(L::LEVEL);
        let apart = self.bits().wrapping_sub(other.bits());
        PhysAddr(at.0.wrapping_add(apart.wrapping_mul(scale)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::*;
    use crate::{Pmd, Pte};

    fn is_linear<F: Format, L: TableLevel>() {
        let size = reach_of::<F>(L::LEVEL);
        let last = ((1u64 << F::PHYS_BITS) - 1) / size;
        for n in [0, 1, 2, 77, last / 2, last - 1, last] {
            let leaf =
                Leaf::kernel(PhysAddr(n * size), Access::READ | Access::WRITE).mark(Marks::YOUNG);
            let raw: Raw<F, L> = Raw::leaf(&leaf).unwrap();
            let first: Raw<F, L> = Raw::leaf(&leaf.moved(PhysAddr(0))).unwrap();
            assert_eq!(raw.flags(), first.flags(), "{}", F::NAME);
            assert_eq!(raw.address_by(first, PhysAddr(0)), leaf.at, "{}", F::NAME);
            assert_eq!(first.address_by(raw, leaf.at), PhysAddr(0), "{}", F::NAME);
            if n < last {
                assert_eq!(raw.following(), raw.next(), "{}", F::NAME);
            }
        }
    }

    #[test]
    fn addresses_are_linear_in_every_format() {
        is_linear::<X86_64, Pte>();
        is_linear::<X86_64, Pmd>();
        is_linear::<X86_64La57, Pmd>();
        is_linear::<X86Pae, Pte>();
        is_linear::<X86Pae, Pmd>();
        is_linear::<Arm64K4, Pte>();
        is_linear::<Arm64K16, Pmd>();
        is_linear::<Arm64K64, Pte>();
        is_linear::<Ppc64K4, Pmd>();
        is_linear::<Ppc64K64, Pte>();
        is_linear::<Riscv64Sv39, Pte>();
        is_linear::<Riscv64Sv48, Pmd>();
    }
}
