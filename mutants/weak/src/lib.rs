//! A model of weak memory, and atomics that live in it.
//!
//! ```text
//!   run(seed, threads) ── engine: one coroutine to a thread, switched before every access
//!                            │
//!   atomic::AtomicU32 … ─────┤  a load may answer with any value that its thread has not yet seen overwritten
//!   read, write ─────────────┘  marks of ordinary accesses: two that nothing orders are a race
//! ```
//!
//! Outside of [`run`] the atomics are those of the machine, so what is built before and looked at afterwards costs nothing. Their layout is that of
//! the machine's, and their constructors are constants: sources are built with them by changing the path they are imported from.
//!
//! **What is modelled.** Each location has a history of values, each with what its writer published. Each thread has a view: the oldest value of each
//! location that it may still see. `Acquire`, `Release`, fences and read-modify-writes move views as the language says (release sequences
//! included). Values of one location are in the order of their stores. Loads are not answered from stores that come later. A `SeqCst` access is
//! what x86-64 makes of it: a store and a read-modify-write are full fences, a load is an `Acquire` load.
//!
//! Schedules and answers are drawn from a seed: what is found is found again with the same seed. Waiting is told by [`spin`], after
//! which a thread sees what is newest, so that stale answers do not go on for ever.

pub mod atomic;
mod engine;
mod memory;

pub use engine::{current, is_running, run, spin, step};

/// Marks an ordinary read of what is at an address. A race with an ordinary write that does not come before it is a panic.
pub fn read<T: ?Sized>(at: *const T) {
    engine::mark(at.cast::<u8>().addr(), false);
}

/// Marks an ordinary write, or the end of what is at an address: of everything that came before it, nothing may be unordered.
pub fn write<T: ?Sized>(at: *const T) {
    engine::mark(at.cast::<u8>().addr(), true);
}

#[cfg(test)]
mod litmus;
