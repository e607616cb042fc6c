//! Formats of page tables: one type per architecture, constants and codecs only.
//!
//! A *raw* entry is the word in the order of bits that the manual numbers; [`Format::to_memory`] makes of it what
//! memory holds. A codec never looks at the machine: what only some machines of an architecture have is asked of
//! [`flagstone_host::MmuCaps`] by whoever builds entries. Everything that is written into a table went through
//! [`Format::leaf`], [`Format::table`] or [`Format::absent`]; everything that is read comes out of [`Format::decode`].

mod absent;
mod any;
mod arm64;
mod invalidation;
mod leaf;
mod pae;
mod ppc64;
mod riscv64;
mod x86;
mod x86_64;

pub use any::{Arch, UnknownFormat};
pub use arm64::{Arm64, Arm64K4, Arm64K16, Arm64K64};
pub use leaf::{Access, Leaf, Marks, Memory};
pub use pae::X86Pae;
pub use ppc64::{Ppc64, Ppc64K4, Ppc64K64};
pub use riscv64::{Riscv64, Riscv64Sv39, Riscv64Sv48};
pub use x86_64::{LongMode, X86_64, X86_64La57};

use core::fmt::Debug;
use flagstone_types::PhysAddr;

/// An entry that is not present and yet says something. `offset` and `payload` are the caller's; a format says how many bits it has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Absent {
    /// The page is in swap area `area`, slot `offset`.
    Swap {
        /// Swap area, below 32.
        area: u8,
        /// Slot in the area.
        offset: u64,
        /// Whether only this entry has the slot.
        exclusive: bool,
        /// Marks that outlive the page: `SOFT_DIRTY` and `UFFD_WP`.
        marks: Marks,
    },
    /// The frame is being moved to another place.
    Migration {
        /// The old frame number, in base pages of the format.
        frame: u64,
        /// Whether it was writable.
        write: bool,
        /// Of the old entry: `YOUNG`, `DIRTY`, `SOFT_DIRTY` and `UFFD_WP`.
        marks: Marks,
    },
    /// The memory of a device that the CPU can not reach.
    Device {
        /// The device's frame number.
        frame: u64,
        /// Whether it may be written.
        write: bool,
    },
    /// No page, but something to remember about the place.
    Marker {
        /// What: the caller's, 3 bits.
        payload: u8,
    },
}

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Entry {
    /// Nothing.
    None,
    /// Names a table of the next lower level.
    Table {
        /// Where it is.
        at: PhysAddr,
        /// The accessed bit of the entry, where the format has one for tables.
        young: bool,
    },
    /// Maps memory: a page on the first level, a huge page above.
    Leaf(Leaf),
    /// Not present, and says why.
    Absent(Absent),
    /// Bits that no entry of this format may have: reserved ones, or a type that does not exist.
    Bad(u64),
}

/// A level of a page table: 1 holds the entries of single pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Level(u8);

impl Level {
    /// The lowest: entries of pages.
    pub const PTE: Self = Self(1);
    /// The second.
    pub const PMD: Self = Self(2);
    /// The third.
    pub const PUD: Self = Self(3);
    /// The fourth.
    pub const P4D: Self = Self(4);
    /// The fifth.
    pub const PGD: Self = Self(5);

    /// A level from 1 to 5.
    #[must_use]
    pub const fn new(level: u8) -> Option<Self> {
        if matches!(level, 1..=5) {
            Some(Self(level))
        } else {
            None
        }
    }

    /// 1 to 5.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// As an index into tables of a format's constants.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The level that entries of this one name tables of.
    #[must_use]
    pub const fn below(self) -> Option<Self> {
        Self::new(self.0.wrapping_sub(1))
    }

    /// The level whose entries name tables of this one.
    #[must_use]
    pub const fn above(self) -> Option<Self> {
        Self::new(self.0 + 1)
    }
}

/// How virtual addresses outside of the table's reach are told from those within.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Canonical {
    /// The bits above are copies of the highest one that is translated (x86-64, riscv64).
    SignExtended,
    /// One table for the lower half (bits above are 0) and another for the upper half (bits above are 1): arm64.
    TwoRoots,
    /// All bits above are 0 (x86 PAE, a ppc64 quadrant).
    ZeroExtended,
}

/// A page-table format.
///
/// Laws, checked by property tests for every format: `decode(leaf(l)) = Leaf(l)` for what [`Format::can`] allows;
/// the same for tables and absent entries; `to_memory` and `from_memory` are inverse; `decode` never panics; a raw of 0 is [`Entry::None`].
pub trait Format: Copy + Debug + Default + Send + Sync + 'static {
    /// As tools call it: `x86_64`, `x86_64-la57`, `x86-pae`, `arm64-4k`, …
    const NAME: &'static str;
    /// A page has `2^PAGE_SHIFT` bytes.
    const PAGE_SHIFT: u32;
    /// The level of the root.
    const TOP: Level;
    /// How many bits of an address each level translates, by [`Level::index`]; 0 above the top.
    const INDEX_BITS: [u32; 6];
    /// How addresses beyond are told.
    const CANONICAL: Canonical;
    /// Bits of a physical address that the format has room for.
    const PHYS_BITS: u32;
    /// Levels on which a leaf may stand, by [`Level::index`]; the first always.
    const LEAF: [bool; 6];
    /// Whether an entry is two words of 32 bits that are read and written one after the other.
    const HALVES: bool = false;
    /// Whether a valid entry that changes its address, size or kind must be invalid, and invalidated, in between.
    const BREAK_BEFORE_MAKE: bool = false;
    /// Whether a fault drops the translation that caused it, so that an entry which has come to allow more needs no invalidation.
    const FAULT_DROPS: bool = false;
    /// Whether table entries have an accessed bit.
    const TABLE_YOUNG: bool = false;
    /// Whether the format can say [`Marks::SHADOW`].
    const SHADOW: bool = false;

    /// What memory holds for a raw entry: the same, but for big-endian formats.
    #[inline(always)]
    #[must_use]
    fn to_memory(raw: u64) -> u64 {
        raw
    }

    /// The inverse of [`Format::to_memory`].
    #[inline(always)]
    #[must_use]
    fn from_memory(word: u64) -> u64 {
        word
    }

    /// Whether an entry of this level can say exactly this. No format can say a [`Marks::SHADOW`] that was not granted ([`Leaf::is_granted_shadow`]).
    fn can(level: Level, leaf: &Leaf) -> bool;

    /// The entry of a leaf that [`Format::can`] allows. A `SHADOW` that was not granted is left out, and the entry is dirty by other means.
    fn leaf(level: Level, leaf: &Leaf) -> u64;

    /// The entry on `level` that names the table at `at`.
    fn table(level: Level, at: PhysAddr) -> u64;

    /// The entry for something absent; `None` if its numbers do not fit.
    fn absent(level: Level, absent: &Absent) -> Option<u64>;

    /// What an entry says.
    fn decode(level: Level, raw: u64) -> Entry;

    /// Whether the unit may use the entry: neither nothing nor absent nor without access.
    fn is_present(level: Level, raw: u64) -> bool;

    /// Whether the entry names a table.
    fn is_table(level: Level, raw: u64) -> bool;

    /// The table that the entry names, if it names one and nothing is wrong with it.
    #[inline(always)]
    #[must_use]
    fn child(level: Level, raw: u64) -> Option<PhysAddr> {
        if !Self::is_table(level, raw) {
            return None;
        }
        match Self::decode(level, raw) {
            Entry::Table { at, .. } => Some(at),
            _ => None,
        }
    }

    /// Where the memory of a leaf begins; `None` for any other entry.
    #[inline(always)]
    #[must_use]
    fn leaf_address(level: Level, raw: u64) -> Option<PhysAddr> {
        match Self::decode(level, raw) {
            Entry::Leaf(leaf) => Some(leaf.at),
            _ => None,
        }
    }

    /// The bits that the unit changes by itself in a present leaf, as its abilities allow: accessed and dirty. It sets them, but for AP\[2\] of arm64, which it clears.
    fn unit_bits(level: Level) -> u64;

    /// The leaf entry with YOUNG as said; the rest stays.
    fn with_young(level: Level, raw: u64, young: bool) -> u64;

    /// Whether a leaf entry is young.
    fn is_young(level: Level, raw: u64) -> bool;

    /// Whether a leaf entry is dirty (saved-dirty included).
    fn is_dirty(level: Level, raw: u64) -> bool;

    /// A leaf entry with other access, marks and frame as they are; write access taken from a dirty one leaves it dirty by
    /// whatever means the format has (saved-dirty on x86-64). [`Marks::NO_ACCESS`] is set if `access` has neither loads nor stores nor
    /// execution, and the entry stays a leaf; it is cleared otherwise. Access that the format can not tell apart is rounded up: stores bring
    /// loads, and on x86 execution does. [`Marks::SHADOW`] stays unless [`Access::WRITE`] is given: see [`Format::write_protect`].
    fn with_access(level: Level, raw: u64, access: Access) -> u64;

    /// A leaf entry that nobody may write: without [`Access::WRITE`] and [`Marks::SHADOW`], and dirty if it was.
    fn write_protect(level: Level, raw: u64) -> u64;

    /// The leaf entry with its address moved on by `pages` entries of its own size.
    fn advance(level: Level, raw: u64, pages: u64) -> u64;

    /// The leaf entry of the level below that maps the first part of what the leaf `raw` maps, `SHADOW` included, for a split in place;
    /// `None` if `raw` is no leaf or the level below can not say it.
    #[inline]
    #[must_use]
    fn first_part(level: Level, raw: u64) -> Option<u64> {
        let below = level.below()?;
        let Entry::Leaf(leaf) = Self::decode(level, raw) else {
            return None;
        };
        let leaf = leaf.found_in_place();
        Self::can(below, &leaf).then(|| Self::leaf(below, &leaf))
    }

    /// Whether a leaf entry of one place that was `old` and is `new` obliges to an invalidation: the unit may hold the old one, and what it
    /// would do with it is more than the new one allows, something else, or fault without end.
    #[inline(always)]
    #[must_use]
    fn needs_invalidation(level: Level, old: u64, new: u64) -> bool {
        invalidation::by_meaning::<Self>(level, old, new)
    }

    /// How far an entry of `level` reaches: `2^shift` bytes.
    #[inline(always)]
    #[must_use]
    fn shift(level: Level) -> u32 {
        let mut shift = Self::PAGE_SHIFT;
        let mut below = 1;
        while below < level.index() {
            shift += Self::INDEX_BITS[below];
            below += 1;
        }
        shift
    }

    /// Entries of a table of `level`.
    #[inline(always)]
    #[must_use]
    fn entries(level: Level) -> usize {
        1 << Self::INDEX_BITS[level.index()]
    }

    /// Bytes of a table of `level`: less than a page, a page, or several.
    #[inline(always)]
    #[must_use]
    fn table_bytes(level: Level) -> usize {
        Self::entries(level) * size_of::<u64>()
    }

    /// Bits of an address that the table translates.
    #[inline(always)]
    #[must_use]
    fn virt_bits() -> u32 {
        Self::shift(Self::TOP) + Self::INDEX_BITS[Self::TOP.index()]
    }
}
