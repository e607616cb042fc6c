//! Errors that more than one layer returns.

use core::fmt;

/// Why memory was not handed out. Nothing has changed when one is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AllocError {
    /// There is not enough memory for what the caller's flags allow. Trying
    /// again later, or with flags that allow more, may succeed.
    OutOfMemory,
    /// The request can never be met: larger than the largest block or object,
    /// or more than the address space.
    TooLarge,
    /// The alignment, size or another argument has no meaning.
    InvalidArgument,
    /// A name or id that must be unique is in use, or no id is left.
    Exists,
}

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OutOfMemory => "out of memory",
            Self::TooLarge => "request is larger than can ever be met",
            Self::InvalidArgument => "invalid argument",
            Self::Exists => "name or id is already in use",
        })
    }
}

impl core::error::Error for AllocError {}

/// Why a pointer was not accepted by a free function. The memory that it
/// points into is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FreeError {
    /// The address is in no range that this allocator manages.
    Foreign,
    /// The address is in managed memory that holds no allocation.
    NotAllocated,
    /// The address is inside an allocation, but not its start; `offset` bytes in.
    Interior {
        /// Distance from the start of the object in bytes.
        offset: usize,
    },
    /// The object is free already.
    AlreadyFree,
    /// The object belongs to another cache than the one it was freed to.
    WrongCache,
}

impl fmt::Display for FreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => f.write_str("pointer was not allocated here"),
            Self::NotAllocated => {
                f.write_str("pointer is in memory that was freed or never allocated")
            }
            Self::Interior { offset } => {
                write!(f, "pointer is {offset} bytes inside an allocation")
            }
            Self::AlreadyFree => f.write_str("object is already free"),
            Self::WrongCache => f.write_str("object belongs to another cache"),
        }
    }
}

impl core::error::Error for FreeError {}
