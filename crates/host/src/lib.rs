//! The host boundary: everything that a Flagstone layer may ask of the machine
//! it runs on, as small traits, each one thing that a machine can do.
//!
//! ```text
//!   slab   frames                      ask through &H where H: Host
//!     │       │
//!     ▼       ▼
//!   Machine = PageMap + Backing + Cpus + Clock + Entropy + Log + Backtrace
//!             + Count + Grace + Lock<C>
//!   Host    = Machine + PhysMem + arrays (CpuCache)
//!     ▲         ▲          ▲           ▲
//!   process   seeded     kernel      pager …          answer
//! ```
//!
//! A host is a `Copy` value: zero-sized in a kernel and in a process, a
//! reference to a machine in a simulator. Nothing in the core asks which host
//! it has; what differs between hosts is in these types and constants, so that
//! a real host compiles to straight code and a simulated one can yield inside
//! every call. `MODEL.md` has the contract as numbered clauses and the lock
//! order.
#![no_std]

mod counters;
mod cpu_cache;
mod cpus;
mod grace;
pub mod held_locks;
mod lock;
mod memmap;
mod memory;
mod mmu;
mod services;

pub use counters::{Count, Event};
pub use cpu_cache::{ArrayParams, CpuCache, Push};
pub use cpus::Cpus;
pub use grace::{Grace, RcuHead};
pub use lock::{LockClass, Mutex, MutexGuard, Rank, classes};
pub use memmap::{MemmapAccess, MemmapArch, MemmapCaps, VirtualMemmap};
pub use memory::{Backing, META_BYTES, MemRange, PageMap, PhysMem};
pub use mmu::{Asid, Invalidate, Mmu, MmuCaps, Shootdown, TableMemory};
pub use services::{Backtrace, Clock, Entropy, Level, Log};

use core::ptr::NonNull;
use flagstone_types::{AllocError, CpuId};

/// What every layer may ask of a machine, page arrays apart: also what a pager has, whose pages
/// have no constant address.
pub trait Machine:
    Copy + Send + Sync + PageMap + Backing + Cpus + Clock + Entropy + Log + Backtrace + Count + Grace
{
    /// A raw lock of class `C`. Constructible in a constant; finds its machine
    /// by itself; does not move while the machine runs. Where the class says so, taking it also keeps
    /// interrupts of this CPU from entering the same layer.
    type Lock<C: LockClass>: lock_api::RawMutex<GuardMarker = lock_api::GuardNoSend>;
}

/// A machine that `frames` and `slab` can run on: its frames have a constant address, and it
/// has per-CPU arrays.
pub trait Host: Machine + PhysMem {
    /// A per-CPU stack of object pointers.
    type Array: CpuCache;

    /// Proof that sections of [`CpuCache`]s of this host are stopped (A5).
    type Stopped;

    /// Makes an array of `params.capacity` slots on each possible CPU; every CPU's limit is 0. May
    /// ask for pages: called with no lock of the core held (A11).
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`] if the host has no room for it, [`AllocError::Exists`] if
    /// no tag is left, [`AllocError::TooLarge`] if the capacity is more than the host can have.
    fn new_array(&self, params: ArrayParams) -> Result<Self::Array, AllocError>;

    /// Makes every array of this host refuse to pop and push, and waits until no CPU is inside a section
    /// that began before (A5). May wait for other CPUs: see A8 for where it may be called.
    ///
    /// `None` if this host can not do that (for instance because a process
    /// lost the right to call `membarrier`); nothing is stopped then, and arrays are drained by the CPUs
    /// that own them only.
    fn stop_arrays(&self) -> Option<Self::Stopped>;

    /// Takes every pointer out of `cpu`'s stack of `array`, in pieces. Claims the stack with one atomic
    /// exchange, so that drains at the same time get disjoint pointers (A9). `take` runs with no lock of the host held.
    fn drain(
        &self,
        stopped: &Self::Stopped,
        array: &Self::Array,
        cpu: CpuId,
        take: &mut dyn FnMut(&[NonNull<u8>]),
    );

    /// As [`Host::drain`], for an array that nobody else can reach: `&mut` proves that no section runs on it. Works
    /// where arrays can not be stopped.
    fn drain_unshared(
        &self,
        array: &mut Self::Array,
        cpu: CpuId,
        take: &mut dyn FnMut(&[NonNull<u8>]),
    );
}
