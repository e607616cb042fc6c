//! How many pages the records of device memory take, and whether they may be shared.
//!
//! A record is 64 bytes, so a huge device page of many frames has pages full of records of tails that say the same. Such a compound keeps
//! two pages of records, the one with its head and one of tails, and maps the second wherever tails are (D2). Everything here is
//! arithmetic; the mapping is in `device.rs`.

use core::fmt;

use crate::MemmapHome;
use flagstone_host::{META_BYTES, MemmapCaps};
use flagstone_types::{Bytes, Order};

/// Pages of records that a compound keeps: the head's, and that of all other tails.
const KEPT: usize = 2;

/// What records take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemmapInfo {
    /// Pages of memory that records take.
    pub pages: usize,
    /// Pages that they would take besides if none were shared.
    pub saved: usize,
}

impl MemmapInfo {
    /// Pages of records, shared or not.
    #[must_use]
    pub const fn total(self) -> usize {
        self.pages + self.saved
    }
}

impl fmt::Display for MemmapInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.total();
        write!(f, "{} of {total} pages saved", self.saved)
    }
}

/// Why records of device memory are not shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotShared {
    /// The architecture does not do it for device memory, or not with the MMU that is in use.
    Switch,
    /// The frames are used one by one.
    NotCompound,
    /// The device keeps its records itself.
    OwnMemmap,
    /// The running machine has no page-table entry that maps a whole compound.
    NoLeaf,
    /// A compound's records fill no more pages than would be kept.
    Small,
}

impl fmt::Display for NotShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Switch => "the architecture or its MMU does not share records of device memory",
            Self::NotCompound => "the frames are not compound",
            Self::OwnMemmap => "the device keeps its records itself",
            Self::NoLeaf => "the machine has no mapping as large as the compound",
            Self::Small => "the records of a compound fill too few pages",
        })
    }
}

impl core::error::Error for NotShared {}

/// Pages of records of one compound of `order`, where pages have `2^page_shift` bytes, if they are shared. A compound whose records fill at
/// most the pages that are kept saves nothing; less than a page counts as one, which it shares with its neighbours.
#[must_use]
pub const fn memmap_of_compound(page_shift: u32, order: Order) -> MemmapInfo {
    let records = (1 << page_shift) / META_BYTES;
    let total = order.pages().div_ceil(records);
    let pages = if total > KEPT { KEPT } else { total };
    MemmapInfo {
        pages,
        saved: total - pages,
    }
}

/// Whether a machine with pages of `2^page_shift` bytes shares the records of device memory in compounds of `order`.
///
/// # Errors
/// The first reason why it does not.
pub fn memmap_sharing(
    caps: &MemmapCaps,
    page_shift: u32,
    order: Order,
    home: MemmapHome,
) -> Result<(), NotShared> {
    if !caps.share_device {
        return Err(NotShared::Switch);
    }
    if order == Order::ZERO {
        return Err(NotShared::NotCompound);
    }
    if home != MemmapHome::System {
        return Err(NotShared::OwnMemmap);
    }
    if !caps.has_leaf(order) {
        return Err(NotShared::NoLeaf);
    }
    if memmap_of_compound(page_shift, order).saved == 0 {
        return Err(NotShared::Small);
    }
    Ok(())
}

/// One line of [`MemmapTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemmapRow {
    /// A page has `2^page_shift` bytes.
    pub page_shift: u32,
    /// The size of a compound.
    pub compound: Bytes,
    /// What the records of one compound take.
    pub memmap: MemmapInfo,
}

/// What sharing saves, for every page size and the huge mappings that some architecture has with it. Prints as a table.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemmapTable;

impl MemmapTable {
    /// The lines: by page size, then by size of compound.
    pub fn rows() -> impl Iterator<Item = MemmapRow> {
        /// Page shift, and shift of the compound's bytes.
        const SIZES: [(u32, u32); 7] = [
            (12, 21),
            (12, 30),
            (14, 25),
            (14, 36),
            (16, 21),
            (16, 29),
            (16, 30),
        ];
        SIZES.into_iter().map(|(page_shift, shift)| MemmapRow {
            page_shift,
            compound: Bytes(1 << shift),
            memmap: memmap_of_compound(
                page_shift,
                Order::new(shift - page_shift).unwrap_or_default(),
            ),
        })
    }
}

impl fmt::Display for MemmapTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:>8} {:>10} {:>12} {:>8}",
            "page", "compound", "memmap pages", "saved"
        )?;
        for row in Self::rows() {
            let (size, unit) = match row.compound.0 {
                bytes if bytes >= 1 << 30 => (bytes >> 30, "GiB"),
                bytes => (bytes >> 20, "MiB"),
            };
            let page = (1usize << row.page_shift) >> 10;
            let memmap = row.memmap;
            writeln!(
                f,
                "{page:>4} KiB {size:>6} {unit} {:>12} {:>8}",
                memmap.total(),
                memmap.saved
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flagstone_host::MemmapArch;
    use std::string::ToString;

    fn order(order: u32) -> Order {
        Order::new(order).unwrap()
    }

    #[test]
    fn the_counts_are_the_published_ones() {
        let of = |page_shift, shift: u32| {
            let memmap = memmap_of_compound(page_shift, order(shift - page_shift));
            (memmap.saved, memmap.total())
        };
        assert_eq!(of(16, 30), (14, 16));
        assert_eq!(of(12, 30), (4094, 4096));
        assert_eq!(of(12, 21), (6, 8));
        assert_eq!(of(16, 21), (0, 1));
        assert_eq!(of(14, 25), (6, 8));
        assert_eq!(of(16, 29), (6, 8));
    }

    #[test]
    fn two_pages_of_records_save_nothing_and_three_would() {
        for page_shift in [12, 14, 16] {
            let page = page_shift - 6;
            assert_eq!(memmap_of_compound(page_shift, order(0)).total(), 1);
            assert_eq!(memmap_of_compound(page_shift, order(page)).saved, 0);
            assert_eq!(memmap_of_compound(page_shift, order(page + 1)).saved, 0);
            assert_eq!(memmap_of_compound(page_shift, order(page + 2)).saved, 2);
        }
    }

    #[test]
    fn the_table_is_for_reading() {
        insta::assert_snapshot!(MemmapTable.to_string(), @r"
            page   compound memmap pages    saved
           4 KiB      2 MiB            8        6
           4 KiB      1 GiB         4096     4094
          16 KiB     32 MiB            8        6
          16 KiB     64 GiB        16384    16382
          64 KiB      2 MiB            1        0
          64 KiB    512 MiB            8        6
          64 KiB      1 GiB           16       14
        ");
    }

    #[test]
    fn who_shares_is_asked_of_the_running_machine() {
        let home = MemmapHome::System;
        let ppc = |radix, pud| MemmapCaps::new(MemmapArch::Ppc64 { radix }, 16, true, pud);
        let gib = order(14);
        assert_eq!(memmap_sharing(&ppc(true, true), 16, gib, home), Ok(()));
        assert_eq!(
            memmap_sharing(&ppc(false, true), 16, gib, home),
            Err(NotShared::Switch)
        );
        assert_eq!(
            memmap_sharing(&ppc(true, false), 16, gib, home),
            Err(NotShared::NoLeaf)
        );
        let two_mib = order(5);
        assert_eq!(
            memmap_sharing(&ppc(true, true), 16, two_mib, home),
            Err(NotShared::Small)
        );
        let x86 = |pud| MemmapCaps::new(MemmapArch::X86_64, 12, true, pud);
        assert_eq!(memmap_sharing(&x86(false), 12, order(9), home), Ok(()));
        assert_eq!(
            memmap_sharing(&x86(false), 12, order(18), home),
            Err(NotShared::NoLeaf)
        );
        assert_eq!(memmap_sharing(&x86(true), 12, order(18), home), Ok(()));
        assert_eq!(
            memmap_sharing(&x86(true), 12, order(0), home),
            Err(NotShared::NotCompound)
        );
        let own = MemmapHome::Device { pages: 512 };
        assert_eq!(
            memmap_sharing(&x86(true), 12, order(9), own),
            Err(NotShared::OwnMemmap)
        );
        let arm = MemmapCaps::new(MemmapArch::Arm64, 12, true, true);
        assert!(arm.share_hugetlb, "the other switch does not count");
        assert_eq!(
            memmap_sharing(&arm, 12, order(9), home),
            Err(NotShared::Switch)
        );
    }
}
