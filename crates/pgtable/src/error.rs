//! Why an operation on a page table did not happen.

use crate::format::{Entry, Leaf, Level};
use core::fmt;
use flagstone_types::{AllocError, PhysAddr, VirtAddr};

/// Why an operation was refused. Unless the operation says otherwise nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A virtual address or a length is no multiple of what is mapped: `2^shift` bytes.
    Misaligned {
        /// The address or length.
        value: u64,
        /// It must be a multiple of `2^shift`.
        shift: u32,
    },
    /// The address is in no range that this table translates, or a range reaches beyond one, here.
    NotCanonical(VirtAddr),
    /// A length of zero, or one that no address space has, in bytes.
    BadLength(usize),
    /// The last byte of a leaf has more bits than physical addresses of this machine or format.
    BeyondPhysical(PhysAddr),
    /// The format or the machine has no such leaf on this level.
    Unsupported {
        /// The level.
        level: Level,
        /// The leaf.
        leaf: Leaf,
    },
    /// The format has no room for the numbers of an absent entry, or the operation has no such form with this format.
    NoSuchEntry(Level),
    /// Something is at this address already.
    Occupied {
        /// Where.
        at: VirtAddr,
        /// On which level.
        level: Level,
        /// What.
        entry: Entry,
    },
    /// Nothing that the operation could work on is at this address.
    NotMapped(VirtAddr),
    /// The range cuts through a huge leaf, which must be split first.
    CutsHuge {
        /// The first address of the leaf.
        at: VirtAddr,
        /// Its level.
        level: Level,
    },
    /// The entries of a table do not map contiguous memory in one way, from this address on.
    NotUniform(VirtAddr),
    /// An entry has bits that this format never has.
    Corrupt {
        /// The address that it would translate.
        at: VirtAddr,
        /// Its level.
        level: Level,
        /// Its bits.
        raw: u64,
    },
    /// No table could be allocated.
    NoTable(AllocError),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Misaligned { value, shift } => {
                write!(f, "{value:#x} is not a multiple of {:#x}", 1u64 << shift)
            }
            Self::NotCanonical(at) => write!(f, "address {:#x} is not translated here", at.0),
            Self::BadLength(bytes) => write!(f, "a range of {bytes:#x} bytes is not possible"),
            Self::BeyondPhysical(at) => {
                write!(f, "physical address {:#x} has too many bits", at.0)
            }
            Self::Unsupported { level, leaf } => {
                write!(f, "no leaf like {leaf:?} on level {}", level.get())
            }
            Self::NoSuchEntry(level) => write!(f, "no such entry on level {}", level.get()),
            Self::Occupied { at, level, entry } => {
                write!(f, "{entry:?} is at {:#x} on level {}", at.0, level.get())
            }
            Self::NotMapped(at) => write!(f, "nothing is mapped at {:#x}", at.0),
            Self::CutsHuge { at, level } => write!(
                f,
                "the range cuts through the leaf at {:#x} on level {}",
                at.0,
                level.get()
            ),
            Self::NotUniform(at) => {
                write!(f, "not one contiguous mapping from {:#x} on", at.0)
            }
            Self::Corrupt { at, level, raw } => write!(
                f,
                "the entry {raw:#x} of {:#x} on level {} has impossible bits",
                at.0,
                level.get()
            ),
            Self::NoTable(error) => write!(f, "no table: {error}"),
        }
    }
}

impl core::error::Error for Error {}

impl From<AllocError> for Error {
    fn from(error: AllocError) -> Self {
        Self::NoTable(error)
    }
}

/// Why a mapping stopped, and how far it got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapError {
    /// Why.
    pub error: Error,
    /// How many leaves were mapped before; those are the table's, the others are still the caller's. 0 unless other contexts changed
    /// the same range meanwhile.
    pub mapped: usize,
}

impl From<Error> for MapError {
    fn from(error: Error) -> Self {
        Self { error, mapped: 0 }
    }
}

impl From<AllocError> for MapError {
    fn from(error: AllocError) -> Self {
        Error::from(error).into()
    }
}

impl From<MapError> for Error {
    fn from(stopped: MapError) -> Self {
        stopped.error
    }
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (after {} leaves)", self.error, self.mapped)
    }
}

impl core::error::Error for MapError {}
