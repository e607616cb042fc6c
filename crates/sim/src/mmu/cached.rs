//! What a CPU's unit holds: translations, tables that it need not look for, and a walk that is under way.

use super::walk::Walk;
use crate::arch::Rights;
use core::fmt;

/// An entry that was read on the way to a translation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Link {
    /// Physical address of the entry.
    pub(crate) at: u64,
    /// What it said.
    pub(crate) raw: u64,
    /// Its level.
    pub(crate) level: u8,
    /// When it was read.
    pub(crate) event: u64,
}

/// Entries that were read, root first.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Links {
    links: [Link; 5],
    len: u8,
}

impl Links {
    pub(crate) fn push(&mut self, link: Link) {
        self.links[self.len as usize] = link;
        self.len += 1;
    }

    pub(crate) fn as_slice(&self) -> &[Link] {
        &self.links[..self.len as usize]
    }

    /// Takes the last one out, of which there is one.
    pub(crate) fn pop(&mut self) -> Link {
        self.len -= 1;
        self.links[self.len as usize]
    }
}

/// Why a translation may not be used any more.
pub(crate) type Condemned = Option<Box<str>>;

/// Whose translation it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag {
    pub(crate) asid: u16,
    /// In every address space.
    pub(crate) global: bool,
    /// The table that it was read from.
    pub(crate) root: u64,
}

/// A translation.
#[derive(Clone, Debug)]
pub(crate) struct Cached {
    pub(crate) tag: Tag,
    /// The first address, aligned to its size.
    pub(crate) va: u64,
    /// It translates `2^shift` bytes.
    pub(crate) shift: u32,
    pub(crate) pa: u64,
    pub(crate) rights: Rights,
    pub(crate) dirty: bool,
    pub(crate) shadow: bool,
    pub(crate) links: Links,
    pub(crate) condemned: Condemned,
}

impl Cached {
    pub(crate) fn holds(&self, va: u64) -> bool {
        va ^ self.va < 1 << self.shift
    }

    /// Whether it maps a byte of the physical range.
    pub(crate) fn maps(&self, start: u64, end: u64) -> bool {
        self.pa < end && start < self.pa + (1 << self.shift)
    }

    pub(crate) fn physical(&self, va: u64) -> u64 {
        self.pa + (va - self.va)
    }
}

impl fmt::Display for Cached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:#x}+{:#x} -> {:#x} ({:?}{}), address space {}{}",
            self.va,
            1u64 << self.shift,
            self.pa,
            self.rights,
            if self.dirty { ", dirty" } else { "" },
            self.tag.asid,
            if self.tag.global { ", global" } else { "" },
        )
    }
}

/// A table that walks may begin at: an entry of a paging-structure cache.
#[derive(Clone, Debug)]
pub(crate) struct CachedTable {
    pub(crate) tag: Tag,
    /// The first address that the table translates.
    pub(crate) va: u64,
    /// It translates `2^shift` bytes.
    pub(crate) shift: u32,
    pub(crate) table: u64,
    /// The table's level.
    pub(crate) level: u8,
    pub(crate) limit: Rights,
    pub(crate) links: Links,
    pub(crate) condemned: Condemned,
}

impl CachedTable {
    pub(crate) fn holds(&self, va: u64) -> bool {
        va ^ self.va < 1 << self.shift
    }
}

/// The unit of one CPU.
#[derive(Debug, Default)]
pub(crate) struct CpuUnit {
    pub(crate) root: Option<u64>,
    pub(crate) asid: u16,
    pub(crate) translations: Vec<Cached>,
    pub(crate) tables: Vec<CachedTable>,
    /// A speculative walk under way.
    pub(crate) walk: Option<Walk>,
    /// The access under way: its translation may be used until it ends.
    pub(crate) using: Option<Cached>,
    /// The walk of the access under way.
    pub(crate) access_walk: Option<Walk>,
    /// Whether an access is under way.
    pub(crate) busy: bool,
    /// The four top entries of x86 PAE, as they were loaded.
    pub(crate) registers: Option<[Link; 4]>,
    /// When the root was made active.
    pub(crate) active_since: u64,
    /// When it was last invalidated.
    pub(crate) invalidated: u64,
}

impl CpuUnit {
    /// Whether a translation with this tag can be used as things are.
    pub(crate) fn can_use(&self, tag: Tag) -> bool {
        self.root.is_some() && (tag.global || tag.asid == self.asid)
    }
}
