//! x86 with PAE: three levels on a processor of 32 bits, entries of 64 bits that are read and written in halves; leaves of 4 KiB and 2 MiB.
//!
//! Bit positions are those of the Intel SDM, volume 3A, chapter "Paging", section "PAE paging". The root has four entries, which the processor copies into registers when
//! the root is made active: a change of one takes effect when it is made active again. They have room for an address and a present bit alone. Invariant: the lower half of
//! whatever is not nothing is not 0, so that a reader who finds it 0 may ignore the upper one.

use super::absent::AbsentLayout;
use super::x86::{self, ACCESSED, DIRTY, LARGE, NX, PRESENT, USER, WRITE};
use super::{Absent, Access, Canonical, Entry, Format, Leaf, Level, Marks};
use flagstone_types::PhysAddr;

/// x86 with PAE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct X86Pae;

/// The leaf is there, but present=0: no access. The user bit stands in `HIDDEN_USER` meanwhile, so that this one can be in the lower half.
const NO_ACCESS: u64 = USER;
const HIDDEN_USER: u64 = 1 << 57;
/// Must be 0 where present=1: long mode has software bits and keys there.
const RESERVED: u64 = 0x7ff0_0000_0000_0000;
const FRAME: u64 = 0x000f_ffff_ffff_f000;

const ABSENT: AbsentLayout = AbsentLayout {
    kind: 9,
    marks: 53,
    area: 58,
    number: 12,
    number_bits: 40,
    inverted: true,
    fixed: 0,
    ignored: ACCESSED | DIRTY,
};

impl X86Pae {
    /// The value of `IA32_PAT` that the encoding of [`super::Memory`] relies on.
    pub const PAT: u64 = x86::PAT;

    /// As a present leaf to one without access.
    #[inline(always)]
    const fn hide(level: Level, raw: u64) -> u64 {
        let user = raw & USER != 0;
        let raw = raw & !(PRESENT | USER) | NO_ACCESS | if user { HIDDEN_USER } else { 0 };
        x86::upright(level, raw)
    }

    /// A leaf of either form as a present one.
    #[inline(always)]
    const fn show(level: Level, raw: u64) -> u64 {
        if raw & PRESENT != 0 {
            return raw;
        }
        let user = raw & HIDDEN_USER != 0;
        let raw = x86::upright(level, raw) & !(NO_ACCESS | HIDDEN_USER);
        raw | PRESENT | if user { USER } else { 0 }
    }

    #[inline(always)]
    fn decode_leaf(level: Level, raw: u64) -> Option<Leaf> {
        let shown = Self::show(level, raw);
        let memory = x86::memory_of(level, shown)?;
        if shown & (x86::reserved(level) | RESERVED) != 0 {
            return None;
        }
        let mut marks = x86::marks_of(shown);
        marks.set(Marks::DIRTY, shown & DIRTY != 0);
        marks.set(Marks::NO_ACCESS, raw & PRESENT == 0);
        let at = PhysAddr(shown & x86::address(level));
        Some(Leaf::decoded(at, x86::access_of(shown), marks, memory, 0))
    }
}

impl Format for X86Pae {
    const NAME: &'static str = "x86-pae";
    const PAGE_SHIFT: u32 = 12;
    const TOP: Level = Level::PUD;
    const INDEX_BITS: [u32; 6] = [0, 9, 9, 2, 0, 0];
    const CANONICAL: Canonical = Canonical::ZeroExtended;
    const PHYS_BITS: u32 = 52;
    const LEAF: [bool; 6] = [false, true, true, false, false, false];
    const HALVES: bool = true;
    const FAULT_DROPS: bool = true;
    const TABLE_YOUNG: bool = true;

    #[inline(always)]
    fn can(level: Level, leaf: &Leaf) -> bool {
        Self::LEAF[level.index()]
            && leaf.at.0 & !x86::address(level) == 0
            && leaf.access().contains(Access::READ)
            && leaf.key == 0
            && !leaf.marks().contains(Marks::SHADOW)
    }

    #[inline(always)]
    fn leaf(level: Level, leaf: &Leaf) -> u64 {
        let dirty = leaf.marks().contains(Marks::DIRTY);
        let raw = leaf.at.0 | x86::leaf_bits(level, leaf) | if dirty { DIRTY } else { 0 } | PRESENT;
        if leaf.marks().contains(Marks::NO_ACCESS) {
            Self::hide(level, raw)
        } else {
            raw
        }
    }

    #[inline(always)]
    fn table(level: Level, at: PhysAddr) -> u64 {
        let below_root = level < Self::TOP;
        at.0 | PRESENT | if below_root { WRITE | USER } else { 0 }
    }

    #[inline(always)]
    fn absent(level: Level, absent: &Absent) -> Option<u64> {
        if level < Self::TOP {
            ABSENT.encode(absent)
        } else {
            None
        }
    }

    #[inline(always)]
    fn decode(level: Level, raw: u64) -> Entry {
        let entry = if level == Self::TOP {
            if raw == 0 {
                return Entry::None;
            }
            let at = PhysAddr(raw & FRAME);
            (raw & !FRAME == PRESENT).then_some(Entry::Table { at, young: false })
        } else if raw & !(ACCESSED | DIRTY) == 0 {
            return Entry::None;
        } else {
            let large = level == Level::PTE || raw & LARGE != 0;
            match (raw & PRESENT != 0, large) {
                (true, false) => x86::decode_table(raw, RESERVED | NX),
                (false, _) if raw & NO_ACCESS == 0 => ABSENT.decode(raw).map(Entry::Absent),
                (_, true) if Self::LEAF[level.index()] => {
                    Self::decode_leaf(level, raw).map(Entry::Leaf)
                }
                _ => None,
            }
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
    fn with_access(level: Level, raw: u64, access: Access) -> u64 {
        let raw = Self::show(level, raw) & !x86::ACCESS | x86::access_bits(access);
        if access.intersects(Access::READ.union(Access::EXEC).union(Access::WRITE)) {
            raw
        } else {
            Self::hide(level, raw)
        }
    }

    #[inline(always)]
    fn write_protect(_: Level, raw: u64) -> u64 {
        raw & !WRITE
    }

    #[inline(always)]
    fn advance(level: Level, raw: u64, pages: u64) -> u64 {
        x86::advance(level, raw, pages << Self::shift(level))
    }
}
