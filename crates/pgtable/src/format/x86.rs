//! What x86 with 64-bit entries has in common: the bits of long mode and of PAE that stand at the same places.
//!
//! Bit positions are those of the Intel SDM, volume 3A, chapter "Paging". A leaf whose present bit is 0 has the bits of its address inverted, because
//! some processors load speculatively from the address of an entry that is not present (L1TF); [`upright`] turns it to and fro.

use super::{Access, Entry, Leaf, Level, Marks, Memory};
use flagstone_types::PhysAddr;

pub(super) const PRESENT: u64 = 1;
pub(super) const WRITE: u64 = 1 << 1;
pub(super) const USER: u64 = 1 << 2;
const PWT: u64 = 1 << 3;
pub(super) const ACCESSED: u64 = 1 << 5;
pub(super) const DIRTY: u64 = 1 << 6;
/// The entry is a leaf though its level is above the first.
pub(super) const LARGE: u64 = 1 << 7;
pub(super) const NX: u64 = 1 << 63;
/// The bits that [`Access`] decides.
pub(super) const ACCESS: u64 = WRITE | USER | NX;
/// Bits 12 to 51.
const FRAME: u64 = 0x000f_ffff_ffff_f000;
/// Bits 9, 10 and 11 are software's: `SOFT_DIRTY`, `UFFD_WP` and `SPECIAL` in the order of [`Marks`].
const SOFTWARE_MARKS: Marks = Marks::SOFT_DIRTY
    .union(Marks::UFFD_WP)
    .union(Marks::SPECIAL);
const SOFTWARE_SHIFT: u32 = 7;
/// Bit 8 from bit 5 of [`Marks`].
const GLOBAL_SHIFT: u32 = 3;
/// Bit 5 from bit 0.
const YOUNG_SHIFT: u32 = 5;

/// Memory types by index, 0 to 7: write-back, write-combining, uncached that ranges may overrule, uncached; write-back, write-protected, as 2, write-through.
/// The first four keep to the processor's own order but for write-combining, which is write-through there: weaker than asked is never had.
pub(super) const PAT: u64 = 0x0407_0506_0007_0106;

/// The address in a leaf of `level`.
#[inline(always)]
pub(super) const fn address(level: Level) -> u64 {
    FRAME & u64::MAX << shift(level)
}

/// Bits that are 0 in every leaf of `level`: between the address and bit 12 (PAT, above the first level).
#[inline(always)]
pub(super) const fn reserved(level: Level) -> u64 {
    FRAME & !address(level) & !pat(level)
}

#[inline(always)]
const fn shift(level: Level) -> u32 {
    9 * level.get() as u32 + 3
}

/// The highest bit of the index of the memory type; bit 7 on the first level, where no bit is needed to say "leaf".
#[inline(always)]
pub(super) const fn pat(level: Level) -> u64 {
    if level.get() == 1 { 1 << 7 } else { 1 << 12 }
}

/// Inverts the address of an entry that is not present; the inverse of itself.
#[inline(always)]
pub(super) const fn upright(level: Level, raw: u64) -> u64 {
    let absent = (raw & PRESENT).wrapping_sub(1);
    raw ^ absent & address(level)
}

/// The leaf with its address moved on.
#[inline(always)]
pub(super) const fn advance(level: Level, raw: u64, bytes: u64) -> u64 {
    let raw = upright(level, raw);
    let moved = raw.wrapping_add(bytes) & address(level);
    upright(level, raw & !address(level) | moved)
}

/// Bits of access: there is no bit for loads.
#[inline(always)]
pub(super) const fn access_bits(access: Access) -> u64 {
    let bits = access.bits() as u64;
    bits & Access::WRITE.bits() as u64
        | (bits & Access::USER.bits() as u64) >> 1
        | if access.contains(Access::EXEC) { 0 } else { NX }
}

#[inline(always)]
pub(super) const fn access_of(raw: u64) -> Access {
    let bits = Access::READ.bits() as u64
        | raw & WRITE
        | (raw & USER) << 1
        | if raw & NX == 0 {
            Access::EXEC.bits() as u64
        } else {
            0
        };
    Access::from_bits_truncate(bits as u8)
}

/// A leaf but for its address, present, dirty and what only long mode has.
#[inline(always)]
pub(super) const fn leaf_bits(level: Level, leaf: &Leaf) -> u64 {
    let marks = leaf.marks().bits() as u64;
    // The order of `Memory`, but for the last: write-through has index 7.
    let through = leaf.memory as u64 >> 2;
    let index = leaf.memory as u64 & 3 | (through * 7);
    access_bits(leaf.access())
        | (marks & SOFTWARE_MARKS.bits() as u64) << SOFTWARE_SHIFT
        | (marks & Marks::GLOBAL.bits() as u64) << GLOBAL_SHIFT
        | (marks & Marks::YOUNG.bits() as u64) << YOUNG_SHIFT
        | ((index & 3) * PWT)
        | ((index >> 2) * pat(level))
        | if level.get() == 1 { 0 } else { LARGE }
}

/// The marks that stand at the same place in both.
#[inline(always)]
pub(super) const fn marks_of(raw: u64) -> Marks {
    let bits = raw >> SOFTWARE_SHIFT & SOFTWARE_MARKS.bits() as u64
        | raw >> GLOBAL_SHIFT & Marks::GLOBAL.bits() as u64
        | raw >> YOUNG_SHIFT & Marks::YOUNG.bits() as u64;
    Marks::from_bits_truncate(bits as u16)
}

/// The memory type; `None` for an index that no leaf here has.
#[inline(always)]
pub(super) const fn memory_of(level: Level, raw: u64) -> Option<Memory> {
    let high = if raw & pat(level) == 0 { 0 } else { 4 };
    match (raw / PWT) & 3 | high {
        0 => Some(Memory::WriteBack),
        1 => Some(Memory::WriteCombining),
        2 => Some(Memory::Uncached),
        3 => Some(Memory::Device),
        7 => Some(Memory::WriteThrough),
        _ => None,
    }
}

/// The table that an entry above the first level names, if its bits are those that are written here: as [`decode_table`] says, in one comparison.
#[inline(always)]
pub(super) const fn table_at(raw: u64) -> Option<PhysAddr> {
    if raw & !(FRAME | ACCESSED | DIRTY) == PRESENT | WRITE | USER {
        Some(PhysAddr(raw & FRAME))
    } else {
        None
    }
}

/// An entry that names a table, if its bits are those that are written here, `reserved` being 0.
#[inline(always)]
pub(super) const fn decode_table(raw: u64, reserved: u64) -> Option<Entry> {
    let fixed = PRESENT | WRITE | USER;
    if raw & !(FRAME | ACCESSED | DIRTY) == fixed && raw & reserved == 0 {
        Some(Entry::Table {
            at: PhysAddr(raw & FRAME),
            young: raw & ACCESSED != 0,
        })
    } else {
        None
    }
}
