//! Flagstone for programs: the process host and, on it, malloc, a global allocator for Rust, and object caches.
#![cfg_attr(not(test), no_std)]

pub mod process;
