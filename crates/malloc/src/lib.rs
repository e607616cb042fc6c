//! Flagstone for programs: the process host and, on it, malloc, a global allocator for Rust, and object caches.
//!
//! A Rust program makes [`Flagstone`] its global allocator, or takes object caches from [`heap::heap`]. Programs that are not
//! changed get the C interface of `flagstone-preload`.
#![cfg_attr(not(test), no_std)]

mod ageing;
mod choices;
pub mod classes;
mod debug;
mod direct;
pub mod entry;
mod fork;
mod global;
mod growth;
pub mod guard;
pub mod harden;
pub mod heap;
mod hot;
pub mod known;
mod large;
pub mod live;
mod misuse;
pub mod process;
pub mod report;
pub mod spool;

pub use ageing::trim;
pub use global::Flagstone;
pub use misuse::fatal;
