//! x86-64: four levels, or five with LA57; 4 KiB pages, leaves of 2 MiB and 1 GiB.
//!
//! Bit positions are those of the Intel SDM, volume 3A, chapter "Paging", and the AMD64 APM, volume 2, chapter "Page Translation and Protection".
//! Invariant: a word from here that has Write=0 and Dirty=1 came from a leaf whose `SHADOW` was granted, or from a word that had it;
//! every other dirty leaf that may not be written keeps that in `SAVED_DIRTY`, bit 58.

use super::absent::AbsentLayout;
use super::x86::{self, ACCESSED, DIRTY, LARGE, NX, PRESENT, USER, WRITE};
use super::{Absent, Access, Canonical, Entry, Format, Leaf, Level, Marks};
use flagstone_types::PhysAddr;

/// Four levels: 48 bits of virtual address.
pub type X86_64 = LongMode<4>;
/// Five levels (LA57): 57 bits of virtual address.
pub type X86_64La57 = LongMode<5>;

/// Long mode with `LEVELS` levels. Use [`X86_64`] or [`X86_64La57`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LongMode<const LEVELS: u8>;

/// The leaf is there, but present=0: no access. Bits 52 to 58 of present entries are ignored by the unit, all but bit 0 of others.
const NO_ACCESS: u64 = 1 << 57;
/// Dirty, but the dirty bit may not say so because Write=0.
const SAVED_DIRTY: u64 = 1 << 58;
const KEY: u32 = 59;
/// Bits 52 to 56: software's, too, and not used.
const UNUSED: u64 = 31 << 52;

/// What may not change in a translation that somebody holds: bits 3 and 4 (memory type), 7, 8, the address, the key.
const IDENTITY: u64 = 0x780f_ffff_ffff_f198;

/// Bits 5 and 6 are left alone: some processors set them in an entry that has just lost its present bit.
const ABSENT: AbsentLayout = AbsentLayout {
    kind: 9,
    marks: 1,
    area: 58,
    number: 12,
    number_bits: 40,
    inverted: true,
    fixed: 0,
    ignored: ACCESSED | DIRTY,
};

impl<const LEVELS: u8> LongMode<LEVELS> {
    /// The value of `IA32_PAT` that the encoding of [`super::Memory`] relies on.
    pub const PAT: u64 = x86::PAT;

    /// Moves dirty between the dirty bit and saved-dirty, as write access asks.
    #[inline(always)]
    const fn settle_dirty(raw: u64) -> u64 {
        let dirty = (raw & DIRTY != 0) | (raw & SAVED_DIRTY != 0);
        let write = raw & WRITE != 0;
        raw & !(DIRTY | SAVED_DIRTY)
            | if dirty & write { DIRTY } else { 0 }
            | if dirty & !write { SAVED_DIRTY } else { 0 }
    }

    #[inline(always)]
    const fn is_shadow(raw: u64) -> bool {
        raw & (WRITE | DIRTY) == DIRTY
    }

    /// A leaf from its bits, present or without access. An entry at once: where only a part of it is asked for nothing else is worked out.
    #[inline(always)]
    fn decode_leaf(level: Level, bits: u64) -> Entry {
        let raw = x86::upright(level, bits);
        let Some(memory) = x86::memory_of(level, raw) else {
            return Entry::Bad(bits);
        };
        if raw & (x86::reserved(level) | UNUSED) != 0
            || raw & (WRITE | SAVED_DIRTY) == WRITE | SAVED_DIRTY
        {
            return Entry::Bad(bits);
        }
        let mut marks = x86::marks_of(raw);
        marks.set(Marks::DIRTY, raw & (DIRTY | SAVED_DIRTY) != 0);
        marks.set(Marks::SHADOW, Self::is_shadow(raw));
        marks.set(Marks::NO_ACCESS, raw & PRESENT == 0);
        let at = PhysAddr(raw & x86::address(level));
        let key = (raw >> KEY & 15) as u8;
        Entry::Leaf(Leaf::decoded(at, x86::access_of(raw), marks, memory, key))
    }
}

impl<const LEVELS: u8> Format for LongMode<LEVELS> {
    const NAME: &'static str = if LEVELS == 5 { "x86_64-la57" } else { "x86_64" };
    const PAGE_SHIFT: u32 = 12;
    const TOP: Level = if LEVELS == 5 { Level::PGD } else { Level::P4D };
    const INDEX_BITS: [u32; 6] = [0, 9, 9, 9, 9, if LEVELS == 5 { 9 } else { 0 }];
    const CANONICAL: Canonical = Canonical::SignExtended;
    const PHYS_BITS: u32 = 52;
    const LEAF: [bool; 6] = [false, true, true, true, false, false];
    const FAULT_DROPS: bool = true;
    const TABLE_YOUNG: bool = true;
    const SHADOW: bool = true;

    #[inline(always)]
    fn can(level: Level, leaf: &Leaf) -> bool {
        let shadow = leaf.marks().contains(Marks::SHADOW);
        Self::LEAF[level.index()]
            && leaf.at.0 & !x86::address(level) == 0
            && leaf.access().contains(Access::READ)
            && leaf.key < 16
            && (!shadow || leaf.is_granted_shadow())
    }

    #[inline(always)]
    fn leaf(level: Level, leaf: &Leaf) -> u64 {
        let marks = leaf.marks();
        let dirty = marks.contains(Marks::DIRTY);
        let unit_dirty = leaf.access().contains(Access::WRITE) | leaf.is_granted_shadow();
        let raw = leaf.at.0
            | x86::leaf_bits(level, leaf)
            | if dirty & unit_dirty { DIRTY } else { 0 }
            | if dirty & !unit_dirty { SAVED_DIRTY } else { 0 }
            | (leaf.key as u64) << KEY;
        if marks.contains(Marks::NO_ACCESS) {
            x86::upright(level, raw | NO_ACCESS)
        } else {
            raw | PRESENT
        }
    }

    #[inline(always)]
    fn table(_: Level, at: PhysAddr) -> u64 {
        at.0 | PRESENT | WRITE | USER
    }

    #[inline(always)]
    fn absent(_: Level, absent: &Absent) -> Option<u64> {
        ABSENT.encode(absent)
    }

    #[inline(always)]
    fn decode(level: Level, raw: u64) -> Entry {
        if raw & !(ACCESSED | DIRTY) == 0 {
            return Entry::None;
        }
        let large = level == Level::PTE || raw & LARGE != 0;
        let entry = match (raw & PRESENT != 0, raw & NO_ACCESS != 0) {
            (true, true) => None,
            (true, false) if !large => x86::decode_table(raw, NX),
            (false, false) => ABSENT.decode(raw).map(Entry::Absent),
            _ if large && Self::LEAF[level.index()] => return Self::decode_leaf(level, raw),
            _ => None,
        };
        entry.unwrap_or(Entry::Bad(raw))
    }

    #[inline(always)]
    fn is_present(_: Level, raw: u64) -> bool {
        raw & PRESENT != 0
    }

    #[inline(always)]
    fn is_table(level: Level, raw: u64) -> bool {
        level != Level::PTE && raw & (PRESENT | LARGE) == PRESENT
    }

    #[inline(always)]
    fn child(level: Level, raw: u64) -> Option<PhysAddr> {
        if level == Level::PTE {
            return None;
        }
        x86::table_at(raw)
    }

    #[inline(always)]
    fn leaf_address(level: Level, raw: u64) -> Option<PhysAddr> {
        let leaf = if level == Level::PTE {
            PRESENT
        } else {
            PRESENT | LARGE
        };
        let others = NO_ACCESS | SAVED_DIRTY | UNUSED | x86::reserved(level) | x86::pat(level);
        if Self::LEAF[level.index()] && raw & (leaf | others) == leaf {
            // Most are: with none of the bits that take a second look.
            return Some(PhysAddr(raw & x86::address(level)));
        }
        match Self::decode(level, raw) {
            Entry::Leaf(leaf) => Some(leaf.at),
            _ => None,
        }
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
        raw & (DIRTY | SAVED_DIRTY) != 0
    }

    #[inline(always)]
    fn with_access(level: Level, raw: u64, access: Access) -> u64 {
        let shadow = Self::is_shadow(raw) & !access.contains(Access::WRITE);
        let hidden = !access.intersects(Access::READ.union(Access::WRITE).union(Access::EXEC));
        let settle = |raw| if shadow { raw } else { Self::settle_dirty(raw) };
        if !hidden & (raw & PRESENT != 0) {
            return settle(raw & !x86::ACCESS | x86::access_bits(access));
        }
        let raw = x86::upright(level, raw) & !(x86::ACCESS | PRESENT | NO_ACCESS)
            | x86::access_bits(access)
            | if hidden { NO_ACCESS } else { PRESENT };
        x86::upright(level, settle(raw))
    }

    #[inline(always)]
    fn write_protect(level: Level, raw: u64) -> u64 {
        let _ = level;
        Self::settle_dirty(raw & !WRITE)
    }

    #[inline(always)]
    fn advance(level: Level, raw: u64, pages: u64) -> u64 {
        x86::advance(level, raw, pages << Self::shift(level))
    }

    /// By the bits: what only the accessed bit or software's bits tell apart needs none, nor does what allows more.
    #[inline(always)]
    fn needs_invalidation(_: Level, old: u64, new: u64) -> bool {
        let allowing = PRESENT | WRITE | USER | DIRTY;
        let less = old & !new & allowing | new & !old & NX | (old ^ new) & IDENTITY;
        let shadow_lost = Self::is_shadow(old) & (new & WRITE != 0);
        (old & PRESENT != 0) & ((less != 0) | shadow_lost)
    }
}
