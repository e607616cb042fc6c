//! ppc64 with the radix unit: 52 bits of virtual address, pages of 4 or 64 KiB, leaves of 2 MiB and 1 GiB, entries in big-endian memory.
//!
//! Bit positions are those of the Power ISA, version 3.0B, Book III, radix tree translation, counted here from the lowest bit: its bit 0 is 1 << 63. An entry that names a
//! table says how many bits the next level translates. Tables are smaller than a page on most levels and 64 KiB on the top one.

use super::absent::AbsentLayout;
use super::{Absent, Access, Canonical, Entry, Format, Leaf, Level, Marks, Memory};
use flagstone_types::PhysAddr;

/// Pages of 4 KiB.
pub type Ppc64K4 = Ppc64<12>;
/// Pages of 64 KiB.
pub type Ppc64K64 = Ppc64<16>;

/// Pages of `2^SHIFT` bytes. Use [`Ppc64K4`] or [`Ppc64K64`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ppc64<const SHIFT: u32>;

const VALID: u64 = 1 << 63;
const LEAF: u64 = 1 << 62;
/// A software bit: the hardware tells address spaces apart by quadrant and has no global pages, so this is a note.
const GLOBAL: u64 = 1 << 61;
/// RPN: bits 12 to 56.
const FRAME: u64 = 0x01ff_ffff_ffff_f000;
/// Bits 9 to 11 are software's: `SOFT_DIRTY`, `UFFD_WP` and `SPECIAL` in the order of [`Marks`].
const SOFTWARE_MARKS: Marks = Marks::SOFT_DIRTY
    .union(Marks::UFFD_WP)
    .union(Marks::SPECIAL);
const SOFTWARE_SHIFT: u32 = 7;
/// R.
const REFERENCED: u64 = 1 << 8;
/// C.
const CHANGED: u64 = 1 << 7;
/// ATT: non-idempotent, so in order, guarded, not cached.
const NON_IDEMPOTENT: u64 = 2 << 4;
/// ATT: tolerant, so not cached, but combined and reordered.
const TOLERANT: u64 = 3 << 4;
const ATTRIBUTES: u64 = 3 << 4;
/// EAA: only the kernel.
const PRIVILEGED: u64 = 1 << 3;
const READ: u64 = 1 << 2;
const WRITE: u64 = 1 << 1;
const EXEC: u64 = 1;
const AUTHORITY: u64 = 15;
/// NLB, bits 8 to 59 of an entry that names a table, as far as RPN reaches.
const TABLE: u64 = 0x01ff_ffff_ffff_ff00;

/// R and C stay out: the unit may write them back into an entry that has just been cleared.
const ABSENT: AbsentLayout = AbsentLayout {
    kind: 9,
    marks: 1,
    area: 57,
    number: 12,
    number_bits: 45,
    inverted: false,
    fixed: 0,
    ignored: REFERENCED | CHANGED,
};

impl<const SHIFT: u32> Ppc64<SHIFT> {
    #[inline(always)]
    fn address(level: Level) -> u64 {
        FRAME & u64::MAX << Self::shift(level)
    }

    #[inline(always)]
    const fn authority(access: Access) -> u64 {
        let load = access.intersects(Access::READ.union(Access::WRITE));
        (if load { READ } else { 0 })
            | access.bits() as u64 & WRITE
            | if access.contains(Access::EXEC) {
                EXEC
            } else {
                0
            }
            | if access.contains(Access::USER) {
                0
            } else {
                PRIVILEGED
            }
    }

    #[inline(always)]
    fn decode_leaf(level: Level, raw: u64) -> Option<Leaf> {
        let memory = match raw & ATTRIBUTES {
            0 => Memory::WriteBack,
            NON_IDEMPOTENT => Memory::Device,
            TOLERANT => Memory::WriteCombining,
            _ => return None,
        };
        let mut access = Access::empty();
        access.set(Access::READ, raw & READ != 0);
        access.set(Access::WRITE, raw & WRITE != 0);
        access.set(Access::EXEC, raw & EXEC != 0);
        access.set(Access::USER, raw & PRIVILEGED == 0);
        let mut marks =
            Marks::from_bits_truncate((raw >> SOFTWARE_SHIFT) as u16).intersection(SOFTWARE_MARKS);
        marks.set(Marks::YOUNG, raw & REFERENCED != 0);
        marks.set(Marks::DIRTY, raw & CHANGED != 0);
        marks.set(Marks::GLOBAL, raw & GLOBAL != 0);
        marks.set(Marks::NO_ACCESS, raw & VALID == 0);
        let known = Self::address(level)
            | VALID
            | LEAF
            | GLOBAL
            | (SOFTWARE_MARKS.bits() as u64) << SOFTWARE_SHIFT
            | REFERENCED
            | CHANGED
            | ATTRIBUTES
            | AUTHORITY;
        let fetch = raw & (READ | EXEC) != 0;
        let write_only = raw & (READ | WRITE) == WRITE;
        if raw & !known != 0 || !fetch || write_only {
            return None;
        }
        let at = PhysAddr(raw & Self::address(level));
        Some(Leaf::decoded(at, access, marks, memory, 0))
    }
}

impl<const SHIFT: u32> Format for Ppc64<SHIFT> {
    const NAME: &'static str = if SHIFT == 12 { "ppc64-4k" } else { "ppc64-64k" };
    const PAGE_SHIFT: u32 = SHIFT;
    const TOP: Level = Level::P4D;
    const INDEX_BITS: [u32; 6] = [0, 21 - SHIFT, 9, 9, 13, 0];
    const CANONICAL: Canonical = Canonical::ZeroExtended;
    const PHYS_BITS: u32 = 57;
    const LEAF: [bool; 6] = [false, true, true, true, false, false];
    const FAULT_DROPS: bool = true;

    #[inline(always)]
    fn to_memory(raw: u64) -> u64 {
        raw.to_be()
    }

    #[inline(always)]
    fn from_memory(word: u64) -> u64 {
        u64::from_be(word)
    }

    #[inline(always)]
    fn can(level: Level, leaf: &Leaf) -> bool {
        let access = leaf.access();
        Self::LEAF[level.index()]
            && leaf.at.0 & !Self::address(level) == 0
            && (access.contains(Access::READ)
                || access.contains(Access::EXEC) && !access.contains(Access::WRITE))
            && !matches!(leaf.memory, Memory::Uncached | Memory::WriteThrough)
            && leaf.key == 0
            && !leaf.marks().contains(Marks::SHADOW)
    }

    #[inline(always)]
    fn leaf(_: Level, leaf: &Leaf) -> u64 {
        let marks = leaf.marks();
        let attributes = match leaf.memory {
            Memory::WriteBack => 0,
            Memory::WriteCombining => TOLERANT,
            _ => NON_IDEMPOTENT,
        };
        let software = marks.intersection(SOFTWARE_MARKS).bits() as u64;
        let hidden = marks.contains(Marks::NO_ACCESS);
        leaf.at.0
            | LEAF
            | Self::authority(leaf.access())
            | attributes
            | software << SOFTWARE_SHIFT
            | if marks.contains(Marks::YOUNG) {
                REFERENCED
            } else {
                0
            }
            | if marks.contains(Marks::DIRTY) {
                CHANGED
            } else {
                0
            }
            | if marks.contains(Marks::GLOBAL) {
                GLOBAL
            } else {
                0
            }
            | if hidden { 0 } else { VALID }
    }

    #[inline(always)]
    fn table(level: Level, at: PhysAddr) -> u64 {
        at.0 | VALID | Self::INDEX_BITS[level.index() - 1] as u64
    }

    #[inline(always)]
    fn absent(_: Level, absent: &Absent) -> Option<u64> {
        ABSENT.encode(absent)
    }

    #[inline(always)]
    fn decode(level: Level, raw: u64) -> Entry {
        if raw & !(REFERENCED | CHANGED) == 0 {
            return Entry::None;
        }
        let entry = if raw & LEAF != 0 {
            Self::LEAF[level.index()]
                .then(|| Self::decode_leaf(level, raw).map(Entry::Leaf))
                .flatten()
        } else if raw & VALID == 0 {
            ABSENT.decode(raw).map(Entry::Absent)
        } else if level == Level::PTE {
            None
        } else {
            // A table is aligned to its size, at 8 bytes an entry.
            let size = Self::INDEX_BITS[level.index() - 1] + 3;
            let at = PhysAddr(raw & TABLE & u64::MAX << size);
            (Self::table(level, at) == raw).then_some(Entry::Table { at, young: false })
        };
        entry.unwrap_or(Entry::Bad(raw))
    }

    #[inline(always)]
    fn is_present(_: Level, raw: u64) -> bool {
        raw & VALID != 0
    }

    #[inline(always)]
    fn is_table(level: Level, raw: u64) -> bool {
        level != Level::PTE && raw & (VALID | LEAF) == VALID
    }

    #[inline(always)]
    fn unit_bits(_: Level) -> u64 {
        REFERENCED | CHANGED
    }

    #[inline(always)]
    fn with_young(_: Level, raw: u64, young: bool) -> u64 {
        raw & !REFERENCED | if young { REFERENCED } else { 0 }
    }

    #[inline(always)]
    fn is_young(_: Level, raw: u64) -> bool {
        raw & REFERENCED != 0
    }

    #[inline(always)]
    fn is_dirty(_: Level, raw: u64) -> bool {
        raw & CHANGED != 0
    }

    #[inline(always)]
    fn with_access(_: Level, raw: u64, access: Access) -> u64 {
        if access.intersects(Access::READ.union(Access::WRITE).union(Access::EXEC)) {
            raw & !AUTHORITY | Self::authority(access) | VALID
        } else {
            raw & !(AUTHORITY | VALID) | Self::authority(access.union(Access::READ))
        }
    }

    #[inline(always)]
    fn write_protect(_: Level, raw: u64) -> u64 {
        raw & !WRITE
    }

    #[inline(always)]
    fn advance(level: Level, raw: u64, pages: u64) -> u64 {
        let mask = Self::address(level);
        let moved = raw.wrapping_add(pages << Self::shift(level));
        raw & !mask | moved & mask
    }
}
