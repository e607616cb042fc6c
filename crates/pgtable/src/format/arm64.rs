//! arm64: granules of 4, 16 and 64 KiB, 48 bits of virtual and physical address, one table for each half of the addresses.
//!
//! Bit positions are those of the Arm Architecture Reference Manual for A-profile, chapter D8, VMSAv8-64 translation table descriptor formats, stage 1. The DBM bit says
//! "may be written"; AP\[2\] says "not without a fault or, where the unit keeps the dirty state, its note", which the unit makes by clearing AP\[2\]. So a leaf that may be written and
//! is clean has DBM and AP\[2\], a dirty one has DBM alone, and one that may not be written has AP\[2\] alone; its dirtiness is in a software bit. Whether the unit sets AF and
//! clears AP\[2\] by itself is a matter of capabilities: the encoding is the same.

use super::absent::AbsentLayout;
use super::{Absent, Access, Canonical, Entry, Format, Leaf, Level, Marks, Memory};
use flagstone_types::PhysAddr;

/// Pages of 4 KiB, four levels; leaves of 2 MiB and 1 GiB.
pub type Arm64K4 = Arm64<12>;
/// Pages of 16 KiB, four levels, the root with two entries; leaves of 32 MiB.
pub type Arm64K16 = Arm64<14>;
/// Pages of 64 KiB, three levels; leaves of 512 MiB.
pub type Arm64K64 = Arm64<16>;

/// A granule of `2^SHIFT` bytes. Use [`Arm64K4`], [`Arm64K16`] or [`Arm64K64`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arm64<const SHIFT: u32>;

const VALID: u64 = 1;
/// A page on the first level, a table above; a block has 0 here.
const TYPE: u64 = 1 << 1;
const ATTRIBUTE: u32 = 2;
/// AP\[1\]: user code may load.
const USER: u64 = 1 << 6;
/// AP\[2\].
const READ_ONLY: u64 = 1 << 7;
/// SH: inner shareable.
const SHARED: u64 = 3 << 8;
const ACCESSED: u64 = 1 << 10;
const NOT_GLOBAL: u64 = 1 << 11;
const DBM: u64 = 1 << 51;
/// No execution by the kernel.
const PXN: u64 = 1 << 53;
/// No execution by user code.
const UXN: u64 = 1 << 54;
/// Bits 55 to 58 are software's: `DIRTY`, `SOFT_DIRTY`, `UFFD_WP` and `SPECIAL` in the order of [`Marks`].
const SOFTWARE_MARKS: Marks = Marks::DIRTY
    .union(Marks::SOFT_DIRTY)
    .union(Marks::UFFD_WP)
    .union(Marks::SPECIAL);
const SOFTWARE_SHIFT: u32 = 54;
const SAVED_DIRTY: u64 = 1 << 55;
/// The leaf is there, but invalid: no access. An invalid descriptor is ignored but for bit 0.
const NO_ACCESS: u64 = 1 << 59;
/// Bits 12 to 47.
const FRAME: u64 = 0x0000_ffff_ffff_f000;
/// The bits that [`Access`] decides, but for writing.
const ACCESS: u64 = USER | PXN | UXN;
const WRITING: u64 = DBM | READ_ONLY | SAVED_DIRTY;

const ABSENT: AbsentLayout = AbsentLayout {
    kind: 2,
    marks: 5,
    area: 52,
    number: 12,
    number_bits: 40,
    inverted: false,
    fixed: 0,
    ignored: 0,
};

impl<const SHIFT: u32> Arm64<SHIFT> {
    /// The value of `MAIR_EL1` that the encoding of [`Memory`] relies on: write-back, not cached, device that keeps every order, device that
    /// acknowledges stores early, write-through.
    pub const MAIR: u64 = 0x0000_00bb_0400_44ff;

    #[inline(always)]
    fn address(level: Level) -> u64 {
        FRAME & u64::MAX << Self::shift(level)
    }

    #[inline(always)]
    const fn access_bits(access: Access) -> u64 {
        let user = access.contains(Access::USER);
        let exec = access.contains(Access::EXEC);
        let load = access.intersects(Access::READ.union(Access::WRITE));
        (if user & load { USER } else { 0 })
            | if user & exec { 0 } else { UXN }
            | if !user & exec { 0 } else { PXN }
    }

    /// `None` for execution by both or by the kernel of what user code may access.
    #[inline(always)]
    const fn access_of(raw: u64) -> Option<Access> {
        let write = if raw & DBM != 0 {
            Access::WRITE
        } else {
            Access::empty()
        };
        let read = Access::READ.union(write);
        Some(match raw & ACCESS {
            x if x == USER | PXN | UXN => Access::USER.union(read),
            x if x == USER | PXN => Access::USER.union(Access::EXEC).union(read),
            PXN if write.is_empty() => Access::USER.union(Access::EXEC),
            x if x == PXN | UXN => read,
            UXN => Access::EXEC.union(read),
            _ => return None,
        })
    }

    /// The bits of writing for a leaf that may be written or not, and is dirty or not.
    #[inline(always)]
    const fn writing(write: bool, dirty: bool) -> u64 {
        (if write { DBM } else { 0 })
            | if write & dirty { 0 } else { READ_ONLY }
            | if !write & dirty { SAVED_DIRTY } else { 0 }
    }

    #[inline(always)]
    const fn dirty(raw: u64) -> bool {
        raw & SAVED_DIRTY != 0 || raw & (DBM | READ_ONLY) == DBM
    }

    #[inline(always)]
    fn decode_leaf(level: Level, raw: u64) -> Option<Leaf> {
        let access = Self::access_of(raw)?;
        let memory = match raw >> ATTRIBUTE & 7 {
            0 => Memory::WriteBack,
            1 => Memory::WriteCombining,
            2 => Memory::Uncached,
            3 => Memory::Device,
            4 => Memory::WriteThrough,
            _ => return None,
        };
        let mut marks =
            Marks::from_bits_truncate((raw >> SOFTWARE_SHIFT) as u16).intersection(SOFTWARE_MARKS);
        marks.set(Marks::DIRTY, Self::dirty(raw));
        marks.set(Marks::YOUNG, raw & ACCESSED != 0);
        marks.set(Marks::GLOBAL, raw & NOT_GLOBAL == 0);
        marks.set(Marks::NO_ACCESS, raw & VALID == 0);
        let known = Self::address(level)
            | VALID
            | TYPE
            | 7 << ATTRIBUTE
            | SHARED
            | ACCESSED
            | NOT_GLOBAL
            | ACCESS
            | WRITING
            | (SOFTWARE_MARKS.bits() as u64) << SOFTWARE_SHIFT
            | if raw & VALID == 0 { NO_ACCESS } else { 0 };
        let expected = SHARED | if level == Level::PTE { TYPE } else { 0 };
        // Writable in a way that no dirty state is kept of; or dirty in software though the unit may keep it.
        let untracked = raw & (DBM | READ_ONLY) == 0;
        let twice = raw & (DBM | SAVED_DIRTY) == DBM | SAVED_DIRTY;
        if raw & !known != 0 || raw & (SHARED | TYPE) != expected || untracked || twice {
            return None;
        }
        let at = PhysAddr(raw & Self::address(level));
        Some(Leaf::decoded(at, access, marks, memory, 0))
    }
}

impl<const SHIFT: u32> Format for Arm64<SHIFT> {
    const NAME: &'static str = match SHIFT {
        12 => "arm64-4k",
        14 => "arm64-16k",
        _ => "arm64-64k",
    };
    const PAGE_SHIFT: u32 = SHIFT;
    const TOP: Level = if SHIFT == 16 { Level::PUD } else { Level::P4D };
    const INDEX_BITS: [u32; 6] = match SHIFT {
        12 => [0, 9, 9, 9, 9, 0],
        14 => [0, 11, 11, 11, 1, 0],
        _ => [0, 13, 13, 6, 0, 0],
    };
    const CANONICAL: Canonical = Canonical::TwoRoots;
    const PHYS_BITS: u32 = 48;
    const LEAF: [bool; 6] = [false, true, true, SHIFT == 12, false, false];
    const BREAK_BEFORE_MAKE: bool = true;

    #[inline(always)]
    fn can(level: Level, leaf: &Leaf) -> bool {
        let access = leaf.access();
        let exec_only = access == Access::EXEC.union(Access::USER);
        Self::LEAF[level.index()]
            && leaf.at.0 & !Self::address(level) == 0
            && (access.contains(Access::READ) || exec_only)
            && leaf.key == 0
            && !leaf.marks().contains(Marks::SHADOW)
    }

    #[inline(always)]
    fn leaf(level: Level, leaf: &Leaf) -> u64 {
        let (access, marks) = (leaf.access(), leaf.marks());
        let index = leaf.memory as u64;
        let software = marks.intersection(SOFTWARE_MARKS).difference(Marks::DIRTY);
        let hidden = marks.contains(Marks::NO_ACCESS);
        leaf.at.0
            | Self::access_bits(access)
            | Self::writing(access.contains(Access::WRITE), marks.contains(Marks::DIRTY))
            | index << ATTRIBUTE
            | SHARED
            | (software.bits() as u64) << SOFTWARE_SHIFT
            | if marks.contains(Marks::YOUNG) {
                ACCESSED
            } else {
                0
            }
            | if marks.contains(Marks::GLOBAL) {
                0
            } else {
                NOT_GLOBAL
            }
            | if level == Level::PTE { TYPE } else { 0 }
            | if hidden { NO_ACCESS } else { VALID }
    }

    #[inline(always)]
    fn table(_: Level, at: PhysAddr) -> u64 {
        at.0 | VALID | TYPE
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
        let table = level != Level::PTE && raw & (VALID | TYPE) == VALID | TYPE;
        let frame = FRAME & u64::MAX << SHIFT;
        let entry = if table {
            (raw & !frame == VALID | TYPE).then_some(Entry::Table {
                at: PhysAddr(raw & frame),
                young: false,
            })
        } else if raw & (VALID | NO_ACCESS) == 0 {
            ABSENT.decode(raw).map(Entry::Absent)
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
        level != Level::PTE && raw & (VALID | TYPE) == VALID | TYPE
    }

    #[inline(always)]
    fn unit_bits(_: Level) -> u64 {
        ACCESSED | READ_ONLY
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
        Self::dirty(raw)
    }

    #[inline(always)]
    fn with_access(_: Level, raw: u64, access: Access) -> u64 {
        let hidden = !access.intersects(Access::READ.union(Access::WRITE).union(Access::EXEC));
        let shown = if hidden {
            access.union(Access::READ)
        } else {
            access
        };
        raw & !(ACCESS | WRITING | VALID | NO_ACCESS)
            | Self::access_bits(shown)
            | Self::writing(access.contains(Access::WRITE), Self::dirty(raw))
            | if hidden { NO_ACCESS } else { VALID }
    }

    #[inline(always)]
    fn write_protect(_: Level, raw: u64) -> u64 {
        raw & !WRITING | Self::writing(false, Self::dirty(raw))
    }

    #[inline(always)]
    fn advance(level: Level, raw: u64, pages: u64) -> u64 {
        let mask = Self::address(level);
        let moved = raw.wrapping_add(pages << Self::shift(level));
        raw & !mask | moved & mask
    }
}
