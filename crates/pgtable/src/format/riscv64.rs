//! riscv64: Sv39 and Sv48, pages of 4 KiB, leaves on every level.
//!
//! Bit positions are those of the RISC-V Instruction Set Manual, volume II ("Privileged Architecture"), sections "Sv39" and "Svpbmt". An entry that loads, stores and fetches
//! may not use names a table. Whether the unit sets A and D by itself (Svadu) or faults is a matter of capabilities. Only two bits are software's, so there is no room for
//! `UFFD_WP` in a leaf that is present or not; memory that is not write-back needs Svpbmt.

use super::absent::AbsentLayout;
use super::{Absent, Access, Canonical, Entry, Format, Leaf, Level, Marks, Memory};
use flagstone_types::PhysAddr;

/// Three levels: 39 bits of virtual address.
pub type Riscv64Sv39 = Riscv64<3>;
/// Four levels: 48 bits of virtual address.
pub type Riscv64Sv48 = Riscv64<4>;

/// `LEVELS` levels. Use [`Riscv64Sv39`] or [`Riscv64Sv48`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Riscv64<const LEVELS: u8>;

const VALID: u64 = 1;
const READ: u64 = 1 << 1;
const WRITE: u64 = 1 << 2;
const EXEC: u64 = 1 << 3;
/// R, W, X and U are [`Access`], one bit higher.
const ACCESS: u64 = 15 << ACCESS_SHIFT;
const ACCESS_SHIFT: u32 = 1;
const GLOBAL: u64 = 1 << 5;
const ACCESSED: u64 = 1 << 6;
const DIRTY: u64 = 1 << 7;
/// RSW.
const SPECIAL: u64 = 1 << 8;
const SOFT_DIRTY: u64 = 1 << 9;
/// PPN: bits 10 to 53, of bits 12 to 55 of an address.
const PPN: u64 = 0x003f_ffff_ffff_fc00;
const PPN_SHIFT: u32 = 2;
/// PBMT: not cached, in weak order.
const NOT_CACHED: u64 = 1 << 61;
/// PBMT: not cached, in strong order.
const IO: u64 = 2 << 61;
const MEMORY: u64 = 3 << 61;
/// The leaf is there, but invalid: no access. An invalid entry is ignored but for bit 0.
const NO_ACCESS: u64 = 1 << 58;

const ABSENT: AbsentLayout = AbsentLayout {
    kind: 1,
    marks: 4,
    area: 59,
    number: 10,
    number_bits: 44,
    inverted: false,
    fixed: 0,
    ignored: 0,
};

impl<const LEVELS: u8> Riscv64<LEVELS> {
    /// The bits of PPN that a leaf of the level may set.
    #[inline(always)]
    fn ppn(level: Level) -> u64 {
        PPN & u64::MAX << (Self::shift(level) - PPN_SHIFT)
    }

    #[inline(always)]
    const fn access_bits(access: Access) -> u64 {
        let write = access.bits() as u64 & Access::WRITE.bits() as u64;
        (access.bits() as u64 | write >> 1) << ACCESS_SHIFT
    }

    #[inline(always)]
    fn decode_leaf(level: Level, raw: u64) -> Option<Leaf> {
        let memory = match raw & MEMORY {
            0 => Memory::WriteBack,
            NOT_CACHED => Memory::WriteCombining,
            IO => Memory::Device,
            _ => return None,
        };
        let access = Access::from_bits_truncate((raw >> ACCESS_SHIFT & 15) as u8);
        let mut marks = Marks::empty();
        marks.set(Marks::YOUNG, raw & ACCESSED != 0);
        marks.set(Marks::DIRTY, raw & DIRTY != 0);
        marks.set(Marks::SOFT_DIRTY, raw & SOFT_DIRTY != 0);
        marks.set(Marks::SPECIAL, raw & SPECIAL != 0);
        marks.set(Marks::GLOBAL, raw & GLOBAL != 0);
        marks.set(Marks::NO_ACCESS, raw & VALID == 0);
        let known = VALID
            | ACCESS
            | GLOBAL
            | ACCESSED
            | DIRTY
            | SPECIAL
            | SOFT_DIRTY
            | MEMORY
            | Self::ppn(level)
            | if raw & VALID == 0 { NO_ACCESS } else { 0 };
        let fetch = raw & (READ | EXEC) != 0;
        let write_only = raw & (READ | WRITE) == WRITE;
        if raw & !known != 0 || !fetch || write_only {
            return None;
        }
        let at = PhysAddr((raw & Self::ppn(level)) << PPN_SHIFT);
        Some(Leaf::decoded(at, access, marks, memory, 0))
    }
}

impl<const LEVELS: u8> Format for Riscv64<LEVELS> {
    const NAME: &'static str = if LEVELS == 3 {
        "riscv64-sv39"
    } else {
        "riscv64-sv48"
    };
    const PAGE_SHIFT: u32 = 12;
    const TOP: Level = if LEVELS == 3 { Level::PUD } else { Level::P4D };
    const INDEX_BITS: [u32; 6] = [0, 9, 9, 9, if LEVELS == 3 { 0 } else { 9 }, 0];
    const CANONICAL: Canonical = Canonical::SignExtended;
    const PHYS_BITS: u32 = 56;
    const LEAF: [bool; 6] = [false, true, true, true, LEVELS > 3, false];

    #[inline(always)]
    fn can(level: Level, leaf: &Leaf) -> bool {
        let access = leaf.access();
        Self::LEAF[level.index()]
            && leaf.at.0 & !(Self::ppn(level) << PPN_SHIFT) == 0
            && (access.contains(Access::READ)
                || access.contains(Access::EXEC) && !access.contains(Access::WRITE))
            && !matches!(leaf.memory, Memory::Uncached | Memory::WriteThrough)
            && leaf.key == 0
            && !leaf.marks().intersects(Marks::SHADOW.union(Marks::UFFD_WP))
    }

    #[inline(always)]
    fn leaf(_: Level, leaf: &Leaf) -> u64 {
        let marks = leaf.marks();
        let memory = match leaf.memory {
            Memory::WriteBack => 0,
            Memory::WriteCombining => NOT_CACHED,
            _ => IO,
        };
        let hidden = marks.contains(Marks::NO_ACCESS);
        leaf.at.0 >> PPN_SHIFT
            | Self::access_bits(leaf.access())
            | memory
            | if marks.contains(Marks::YOUNG) {
                ACCESSED
            } else {
                0
            }
            | if marks.contains(Marks::DIRTY) {
                DIRTY
            } else {
                0
            }
            | if marks.contains(Marks::SOFT_DIRTY) {
                SOFT_DIRTY
            } else {
                0
            }
            | if marks.contains(Marks::SPECIAL) {
                SPECIAL
            } else {
                0
            }
            | if marks.contains(Marks::GLOBAL) {
                GLOBAL
            } else {
                0
            }
            | if hidden { NO_ACCESS } else { VALID }
    }

    #[inline(always)]
    fn table(_: Level, at: PhysAddr) -> u64 {
        at.0 >> PPN_SHIFT | VALID
    }

    #[inline(always)]
    fn absent(_: Level, absent: &Absent) -> Option<u64> {
        ABSENT.encode(absent)
    }

    #[inline(always)]
    fn decode(level: Level, raw: u64) -> Entry {
        if raw == 0 {
            return Entry::None;
        }
        let entry = if raw & (VALID | NO_ACCESS) == 0 {
            ABSENT.decode(raw).map(Entry::Absent)
        } else if Self::is_table(level, raw) {
            (raw & !PPN == VALID).then_some(Entry::Table {
                at: PhysAddr((raw & PPN) << PPN_SHIFT),
                young: false,
            })
        } else if Self::LEAF[level.index()] {
            Self::decode_leaf(level, raw).map(Entry::Leaf)
        } else {
            None
        };
        entry.unwrap_or(Entry::Bad(raw))
    }

    #[inline(always)]
    fn is_present(_: Level, raw: u64) -> bool {
        raw & VALID != 0
    }

    #[inline(always)]
    fn is_table(level: Level, raw: u64) -> bool {
        level != Level::PTE && raw & (VALID | READ | WRITE | EXEC) == VALID
    }

    #[inline(always)]
    fn unit_bits(_: Level) -> u64 {
        ACCESSED | DIRTY
    }

    #[inline(always)]
    fn with_young(_: Level, raw: u64, young: bool) -> u64 {
        raw & !ACCESSED | if young { ACCESSED } else { 0 }
    }

    #[inline(always)]
    fn is_young(_: Level, raw: u64) -> bool {
        raw & ACCESSED != 0
    }

    #[inline(always)]
    fn is_dirty(_: Level, raw: u64) -> bool {
        raw & DIRTY != 0
    }

    #[inline(always)]
    fn with_access(_: Level, raw: u64, access: Access) -> u64 {
        let raw = raw & !(ACCESS | VALID | NO_ACCESS);
        if access.intersects(Access::READ.union(Access::WRITE).union(Access::EXEC)) {
            raw | Self::access_bits(access) | VALID
        } else {
            raw | Self::access_bits(access.union(Access::READ)) | NO_ACCESS
        }
    }

    #[inline(always)]
    fn write_protect(_: Level, raw: u64) -> u64 {
        raw & !WRITE
    }

    #[inline(always)]
    fn advance(level: Level, raw: u64, pages: u64) -> u64 {
        let mask = Self::ppn(level);
        let moved = raw.wrapping_add(pages << (Self::shift(level) - PPN_SHIFT));
        raw & !mask | moved & mask
    }
}
