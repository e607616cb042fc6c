//! `ptdump`: a page table as ranges, whoever it belongs to.
//!
//! [`Ranges`] reads words by a function, so a saved image of a machine works as well as a live one. It trusts nothing that it reads: a word that the format
//! does not know is shown, not followed.

use crate::format::{Absent, Access, Entry, Format, Leaf, Level, Marks, Memory};
use crate::span::{Addresses, Reach, reach_of};
use core::fmt;
use core::marker::PhantomData;
use flagstone_types::{PhysAddr, VirtAddr};

/// What all of a range is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Leaves with equal flags.
    Leaf {
        /// What may be done.
        access: Access,
        /// What is noted; accessed and dirty only if asked for.
        marks: Marks,
        /// How it is cached.
        memory: Memory,
        /// Protection key.
        key: u8,
    },
    /// Absent entries of one kind, here the first.
    Absent(Absent),
    /// A word that no entry of the format may be.
    Bad(u64),
    /// A table that can not be read, at this address.
    Unreadable(PhysAddr),
}

/// A range of equal entries of one level, as long as it can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first address.
    pub start: VirtAddr,
    /// The last address.
    pub last: VirtAddr,
    /// The level of the entries.
    pub level: Level,
    /// Whether it is the format's highest level.
    pub is_top: bool,
    /// What they are.
    pub kind: Kind,
    /// Where the first byte is in memory, for leaves.
    pub at: Option<PhysAddr>,
    /// Whether the memory is contiguous from there on.
    pub is_contiguous: bool,
}

impl Range {
    /// Bytes of it; the whole address space is one less.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        (self.last.0 - self.start.0).saturating_add(1)
    }

    /// Whether it may be both written and executed.
    #[must_use]
    pub fn is_writable_and_executable(&self) -> bool {
        matches!(self.kind, Kind::Leaf { access, marks, .. }
            if access.contains(Access::WRITE | Access::EXEC) && !marks.contains(Marks::NO_ACCESS))
    }
}

/// One entry on the way.
#[derive(Clone, Copy)]
struct Item {
    offset: u64,
    level: Level,
    kind: Kind,
    at: Option<PhysAddr>,
}

/// An iterator over the ranges of a page table in ascending order of addresses; what says nothing is left out.
#[derive(Clone, Debug)]
pub struct Ranges<F, R> {
    read: R,
    addresses: Addresses<F>,
    /// By level: the table and the entry that comes next.
    stack: [(PhysAddr, usize); 6],
    level: Level,
    with_unit_bits: bool,
    pending: Option<Range>,
    format: PhantomData<F>,
}

impl<F: Format, R: FnMut(PhysAddr) -> Option<u64>> Ranges<F, R> {
    /// Over the table at `root`. `read` gives the word at an address as it is in memory, `None` if there is none.
    #[must_use]
    pub fn new(root: PhysAddr, reach: Reach, read: R) -> Self {
        let mut stack = [(PhysAddr(0), 0); 6];
        stack[F::TOP.index()] = (root, 0);
        Self {
            read,
            addresses: Addresses::new(reach),
            stack,
            level: F::TOP,
            with_unit_bits: false,
            pending: None,
            format: PhantomData,
        }
    }

    /// Tells accessed and dirty apart too.
    #[must_use]
    pub fn with_unit_bits(mut self) -> Self {
        self.with_unit_bits = true;
        self
    }

    fn offset(&self) -> u64 {
        let mut offset = 0;
        let mut level = F::TOP;
        loop {
            let (_, index) = self.stack[level.index()];
            offset += index as u64 * reach_of::<F>(level);
            match level.below() {
                Some(below) if level > self.level => level = below,
                _ => return offset,
            }
        }
    }

    /// The next entry that says something.
    fn next_item(&mut self) -> Option<Item> {
        loop {
            let (table, index) = self.stack[self.level.index()];
            if index == F::entries(self.level) {
                if self.level == F::TOP {
                    return None;
                }
                self.level = self.level.above()?;
                self.stack[self.level.index()].1 += 1;
                continue;
            }
            let (offset, level) = (self.offset(), self.level);
            let Some(word) = (self.read)(PhysAddr(table.0.wrapping_add(index as u64 * 8))) else {
                // The rest of the table is not there either.
                self.stack[level.index()].1 = F::entries(level);
                return Some(Item {
                    offset,
                    level,
                    kind: Kind::Unreadable(table),
                    at: None,
                });
            };
            let (kind, at) = match (F::decode(level, F::from_memory(word)), level.below()) {
                (Entry::Table { at, .. }, Some(below)) => {
                    self.stack[below.index()] = (at, 0);
                    self.level = below;
                    continue;
                }
                (Entry::None, _) => {
                    self.stack[level.index()].1 += 1;
                    continue;
                }
                (Entry::Leaf(leaf), _) => (self.leaf_kind(&leaf), Some(leaf.at)),
                (Entry::Absent(absent), _) => (Kind::Absent(absent), None),
                (Entry::Table { .. }, None) => (Kind::Bad(word), None),
                (Entry::Bad(raw), _) => (Kind::Bad(raw), None),
            };
            self.stack[level.index()].1 += 1;
            return Some(Item {
                offset,
                level,
                kind,
                at,
            });
        }
    }

    fn leaf_kind(&self, leaf: &Leaf) -> Kind {
        let mut marks = leaf.marks();
        if !self.with_unit_bits {
            marks.remove(Marks::YOUNG | Marks::DIRTY);
        }
        Kind::Leaf {
            access: leaf.access(),
            marks,
            memory: leaf.memory,
            key: leaf.key,
        }
    }

    fn range(&self, item: &Item) -> Range {
        let end = item.offset + reach_of::<F>(item.level);
        Range {
            start: self.addresses.address(item.offset),
            last: self.addresses.address(end - 1),
            level: item.level,
            is_top: item.level == F::TOP,
            kind: item.kind,
            at: item.at,
            is_contiguous: true,
        }
    }
}

/// Whether two entries belong into one range.
fn is_same(a: &Kind, b: &Kind) -> bool {
    match (a, b) {
        (Kind::Absent(a), Kind::Absent(b)) => {
            core::mem::discriminant(a) == core::mem::discriminant(b)
        }
        (Kind::Leaf { .. }, Kind::Leaf { .. }) => a == b,
        _ => false,
    }
}

impl<F: Format, R: FnMut(PhysAddr) -> Option<u64>> Iterator for Ranges<F, R> {
    type Item = Range;

    fn next(&mut self) -> Option<Range> {
        loop {
            let Some(item) = self.next_item() else {
                return self.pending.take();
            };
            let new = self.range(&item);
            let Some(old) = &mut self.pending else {
                self.pending = Some(new);
                continue;
            };
            let follows = old.last.0.wrapping_add(1) == new.start.0 && new.start.0 != 0;
            if !follows || old.level != new.level || !is_same(&old.kind, &new.kind) {
                return self.pending.replace(new);
            }
            if let (Some(first), Some(at)) = (old.at, new.at) {
                let expected = first.0.wrapping_add((new.start.0 - old.start.0) as u64);
                old.is_contiguous &= expected == at.0;
            }
            old.last = new.last;
        }
    }
}

/// The name of a level as Linux calls it.
#[must_use]
pub const fn level_name(level: Level, is_top: bool) -> &'static str {
    match level.get() {
        _ if is_top => "pgd",
        1 => "pte",
        2 => "pmd",
        3 => "pud",
        4 => "p4d",
        _ => "pgd",
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Leaf {
                access,
                marks,
                memory,
                key,
            } => {
                let user = if access.contains(Access::USER) {
                    "USR"
                } else {
                    "   "
                };
                let write = if access.contains(Access::WRITE) {
                    "RW"
                } else {
                    "ro"
                };
                let exec = if access.contains(Access::EXEC) {
                    "x "
                } else {
                    "NX"
                };
                let memory = match memory {
                    Memory::WriteBack => "  ",
                    Memory::WriteCombining => "WC",
                    Memory::WriteThrough => "WT",
                    Memory::Uncached => "UC",
                    Memory::Device => "DV",
                };
                let global = if marks.contains(Marks::GLOBAL) {
                    "GLB"
                } else {
                    "   "
                };
                write!(f, "{user} {write} {memory} {global} {exec}")?;
                for (mark, name) in [
                    (Marks::NO_ACCESS, "none"),
                    (Marks::SHADOW, "shstk"),
                    (Marks::SPECIAL, "special"),
                    (Marks::SOFT_DIRTY, "soft-dirty"),
                    (Marks::UFFD_WP, "uffd-wp"),
                    (Marks::YOUNG, "young"),
                    (Marks::DIRTY, "dirty"),
                ] {
                    if marks.contains(mark) {
                        write!(f, " {name}")?;
                    }
                }
                if key != 0 {
                    write!(f, " key={key}")?;
                }
                Ok(())
            }
            Self::Absent(Absent::Swap { .. }) => f.write_str("swap"),
            Self::Absent(Absent::Migration { .. }) => f.write_str("migration"),
            Self::Absent(Absent::Device { .. }) => f.write_str("device"),
            Self::Absent(Absent::Marker { .. }) => f.write_str("marker"),
            Self::Bad(raw) => write!(f, "bad entry {raw:#x}"),
            Self::Unreadable(at) => write!(f, "no table at {:#x}", at.0),
        }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut size, mut unit) = (self.bytes() >> 10, 0);
        while size >= 1024 && size % 1024 == 0 {
            size /= 1024;
            unit += 1;
        }
        let unit = ["K", "M", "G", "T", "P", "E"][unit.min(5)];
        write!(
            f,
            "{:#018x}-{:#018x} {size:>8}{unit} {} {}",
            self.start.0,
            // As Linux prints it: the end of all addresses is 0.
            self.last.0.wrapping_add(1),
            self.kind,
            level_name(self.level, self.is_top)
        )
    }
}

/// What may be both written and executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WritableAndExecutable {
    /// Bytes of it.
    pub bytes: usize,
    /// The first such range.
    pub first: Option<Range>,
}

impl WritableAndExecutable {
    /// Looks at ranges.
    pub fn of(ranges: impl IntoIterator<Item = Range>) -> Self {
        let mut this = Self::default();
        for range in ranges {
            if range.is_writable_and_executable() {
                this.bytes = this.bytes.saturating_add(range.bytes());
                this.first.get_or_insert(range);
            }
        }
        this
    }
}

impl fmt::Display for WritableAndExecutable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.first {
            None => f.write_str("W+X mappings: none found"),
            Some(first) => write!(
                f,
                "W+X mappings: {} KiB found, the first at {:#x}",
                self.bytes >> 10,
                first.start.0
            ),
        }
    }
}
