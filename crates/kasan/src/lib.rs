//! What debugging modes share: who allocated and freed an object, what state memory is in, how a bug is told.
//!
//! ```text
//!   depot       call stacks, each stored once; a stack is a 32-bit handle
//!   track       who, where and when: 24 bytes of an object's metadata
//!   shadow      one byte for eight bytes of memory: may they be accessed, and if not why
//!   quarantine  freed objects that wait before they are free, so that their late users are found
//!   report      a bug as a value that borrows everything; text in the wording of Linux, and JSON
//! ```
//!
//! Everything works in any context (in a signal handler, in an interrupt, in the child of a fork) unless it says otherwise, and allocates
//! nothing: who uses it gives it memory. `MODEL.md` has the state and the numbered invariants.
#![no_std]

#[cfg(test)]
extern crate std;

pub mod depot;
pub mod quarantine;
pub mod report;
pub mod shadow;
mod stack;
mod track;

pub use depot::{Handle, StackDepot};
pub use stack::{Frames, MAX_FRAMES, Stack};
pub use track::Track;
