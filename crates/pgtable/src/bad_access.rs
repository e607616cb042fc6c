//! A report of an access that faulted: what the error code says, and the entry at every level.

use crate::dump::level_name;
use crate::format::{Entry, Format, Level};
use crate::span::{Addresses, Reach, index_of};
use core::fmt;
use core::marker::PhantomData;
use flagstone_types::{PhysAddr, VirtAddr};

bitflags::bitflags! {
    /// The error code of a page fault, in x86's bits (Intel SDM volume 3A, section 4.7); hosts of other architectures translate theirs.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct FaultCode: u32 {
        /// The entry was present: access was refused. Else nothing was there.
        const PRESENT = 1;
        /// A store.
        const WRITE = 1 << 1;
        /// By user code.
        const USER = 1 << 2;
        /// An entry on the way has a reserved bit.
        const RESERVED = 1 << 3;
        /// An instruction fetch.
        const FETCH = 1 << 4;
        /// Refused by a protection key.
        const KEY = 1 << 5;
        /// By a shadow-stack access.
        const SHADOW = 1 << 6;
    }
}

/// A fault and what the page table said when the report was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadAccess<F> {
    /// The address.
    pub at: VirtAddr,
    /// The error code.
    pub code: FaultCode,
    /// The entries on the way down, by [`Level::index`]: as far as there are tables. [`None`] also where a table could not be read.
    pub entries: [Option<u64>; 6],
    /// Whether the table translates such an address at all.
    pub is_canonical: bool,
    format: PhantomData<F>,
}

impl<F: Format> BadAccess<F> {
    /// Walks the table at `root`. `read` gives the word at an address as it is in memory.
    pub fn new(
        root: PhysAddr,
        reach: Reach,
        at: VirtAddr,
        code: FaultCode,
        mut read: impl FnMut(PhysAddr) -> Option<u64>,
    ) -> Self {
        let offset = Addresses::<F>::new(reach).offset(at);
        let mut entries = [None; 6];
        let (mut table, mut level) = (root, F::TOP);
        while let Ok(offset) = offset {
            let slot = table
                .0
                .wrapping_add(index_of::<F>(level, offset) as u64 * 8);
            let Some(word) = read(PhysAddr(slot)) else {
                break;
            };
            let raw = F::from_memory(word);
            entries[level.index()] = Some(raw);
            match (F::decode(level, raw), level.below()) {
                (Entry::Table { at, .. }, Some(below)) => (table, level) = (at, below),
                _ => break,
            }
        }
        Self {
            at,
            code,
            entries,
            is_canonical: offset.is_ok(),
            format: PhantomData,
        }
    }

    /// The last entry that was reached, and what it says.
    #[must_use]
    pub fn last(&self) -> Option<(Level, Entry)> {
        (1..6).filter_map(Level::new).find_map(|level| {
            let raw = self.entries[level.index()]?;
            Some((level, F::decode(level, raw)))
        })
    }

    /// What the error code says of the reason.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        if !self.code.contains(FaultCode::PRESENT) {
            "not-present page"
        } else if self.code.contains(FaultCode::RESERVED) {
            "reserved bit violation"
        } else if self.code.contains(FaultCode::KEY) {
            "protection keys violation"
        } else if self.code.contains(FaultCode::SHADOW) {
            "shadow stack violation"
        } else {
            "permissions violation"
        }
    }
}

impl<F: Format> fmt::Display for BadAccess<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = if self.code.contains(FaultCode::USER) {
            "user"
        } else {
            "supervisor"
        };
        let what = if self.code.contains(FaultCode::FETCH) {
            "instruction fetch"
        } else if self.code.contains(FaultCode::WRITE) {
            "write access"
        } else {
            "read access"
        };
        writeln!(f, "bad {who} {what} at address {:#018x}", self.at.0)?;
        writeln!(
            f,
            "#PF: error_code({:#06x}) - {}",
            self.code.bits(),
            self.reason()
        )?;
        if !self.is_canonical {
            return write!(f, "the address is not canonical");
        }
        let mut first = true;
        for level in (1..6).rev().filter_map(Level::new) {
            let Some(raw) = self.entries[level.index()] else {
                continue;
            };
            let name = level_name(level, level == F::TOP);
            let separator = if first { "" } else { "\n" };
            write!(f, "{separator}{name} {raw:016x} ")?;
            first = false;
            match F::decode(level, raw) {
                Entry::None => f.write_str("none")?,
                Entry::Table { at, .. } => write!(f, "table at {:#x}", at.0)?,
                Entry::Leaf(leaf) => write!(
                    f,
                    "leaf at {:#x} {:?} {:?} {:?}",
                    leaf.at.0,
                    leaf.access(),
                    leaf.marks(),
                    leaf.memory
                )?,
                Entry::Absent(absent) => write!(f, "{absent:?}")?,
                Entry::Bad(_) => f.write_str("bad: reserved bits or no such type")?,
            }
        }
        if first {
            f.write_str("the root can not be read")?;
        }
        Ok(())
    }
}
