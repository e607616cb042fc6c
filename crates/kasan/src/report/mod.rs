//! A bug as a value: what happened, who did it, what is known about the memory.
//!
//! A [`Report`] borrows everything and is made without allocating, by whoever finds the bug. Whoever prints it knows the symbols: its text has the wording and
//! the order that users of Linux know, and its JSON form says the same.
//!
//! ```text
//!   Report ─ bug        what happened: an access, a free, a damaged object, a copy, no memory
//!          ├ by         who: task, CPU, time, call stack
//!          ├ place      the memory: an object with its history, a run of pages, a variable, a frame of a stack
//!          ├ shadow     the state of memory around
//!          ├ dumps      bytes of objects
//!          └ fixes, notes
//! ```

mod bug;
mod dump;
mod json;
mod place;
mod symbols;
#[cfg(test)]
mod tests;
mod text;

pub use bug::{
    Access, AccessBug, AccessKind, BadFree, Bug, CopyDirection, Damage, DamagedRange, FreeBug,
    MemoryShortage, NodeUse, Problem, SlabUse, UserCopy,
};
pub use dump::{Dump, ShadowRows};
pub use place::{DescribeObject, Event, Object, ObjectState, Place};
pub use symbols::{NoSymbols, Symbol, Symbols};
pub use text::Text;

use core::fmt;
use flagstone_types::{CpuId, Nanos};

use crate::Stack;

/// Who did it, where and when.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The thread or process.
    pub task: u32,
    /// Its name.
    pub name: &'a str,
    /// The CPU.
    pub cpu: CpuId,
    /// The time, on the clock of the tracks.
    pub now: Nanos,
    /// The call stack, innermost first: from the access, or from the call that found the bug.
    pub stack: Stack<'a>,
}

/// What was done so that the program can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fix<'a> {
    /// Bytes were overwritten with what should be there.
    Restoring {
        /// What they are: "Right Redzone", "Object padding", …
        what: &'a str,
        /// The first one.
        from: usize,
        /// How many.
        bytes: usize,
        /// The value written to each.
        value: u8,
    },
    /// An object was not freed.
    NotFreed {
        /// The object, or the pointer that was to be freed.
        object: usize,
    },
    /// Anything else, in words.
    Other(&'a str),
}

/// One bug.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// What happened.
    pub bug: Bug<'a>,
    /// Who did it.
    pub by: Context<'a>,
    /// What is known about the memory.
    pub place: Place<'a>,
    /// The state of memory around the address.
    pub shadow: Option<&'a ShadowRows>,
    /// Contents of memory.
    pub dumps: &'a [Dump<'a>],
    /// What was done about it.
    pub fixes: &'a [Fix<'a>],
    /// Anything more, a line each.
    pub notes: &'a [&'a str],
}

impl<'a> Report<'a> {
    /// The report of `bug` with nothing more known.
    #[must_use]
    pub const fn new(bug: Bug<'a>, by: Context<'a>) -> Self {
        Self {
            bug,
            by,
            place: Place::Unknown,
            shadow: None,
            dumps: &[],
            fixes: &[],
            notes: &[],
        }
    }

    /// Its text, with what `symbols` knows about return addresses.
    #[must_use]
    pub const fn text<'r>(&'r self, symbols: &'r dyn Symbols) -> Text<'r> {
        Text {
            report: self,
            symbols,
        }
    }

    /// Writes it as one JSON object without line ends.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_json(&self, symbols: &dyn Symbols, out: &mut dyn fmt::Write) -> fmt::Result {
        json::write(self, symbols, out)
    }
}

/// Return addresses are printed as numbers; see [`Report::text`].
impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.text(&NoSymbols))
    }
}
