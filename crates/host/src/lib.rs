//! The host boundary: everything that a Flagstone layer may ask of the machine
//! it runs on, as small traits, each one thing that a machine can do.
//!
//! ```text
//!   slab   frames                      ask through &H where H: Host
//!     │       │
//!     ▼       ▼
//!   Host = PhysMem + Backing + Cpus + Clock + Entropy + Log + Backtrace
//!          + Count + Grace + Lock<C> + Arrays (CpuCache)
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
mod memory;
mod services;

pub use counters::{Count, Event};
pub use cpu_cache::{ArrayParams, CpuCache};
pub use cpus::Cpus;
pub use grace::{Grace, RcuHead};
pub use lock::{LockClass, Mutex, MutexGuard, Rank, classes};
pub use memory::{Backing, MemRange, META_BYTES, PhysMem};
pub use services::{Backtrace, Clock, Entropy, Level, Log};

/// A machine that Flagstone's layers can run on.
pub trait Host:
    Copy + Send + Sync + PhysMem + Backing + Cpus + Clock + Entropy + Log + Backtrace + Count + Grace
{
    /// A raw lock of class `C`. Constructible in a constant; finds its machine
    /// by itself. Taking it also keeps interrupts of this CPU from entering the
    /// same layer, where the host has interrupts.
    type Lock<C: LockClass>: lock_api::RawMutex;

    /// A per-CPU stack of object pointers.
    type Array: CpuCache;

    /// Proof that no CPU is inside a section of any [`CpuCache`] of this host,
    /// and none will enter one that succeeds until the proof is dropped.
    type Stopped<'a>
    where
        Self: 'a;

    /// Makes an array of `params.capacity` slots on each possible CPU.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`](flagstone_types::AllocError) if the host has
    /// no room for it.
    fn new_array(&self, params: ArrayParams) -> Result<Self::Array, flagstone_types::AllocError>;

    /// Makes every array of this host refuse to pop and push, and waits until
    /// no CPU is inside a section that began before.
    ///
    /// `None` if this host can not do that (for instance because a process
    /// lost the right to call `membarrier`); arrays are then drained by the CPUs
    /// that own them only.
    fn stop_arrays(&self) -> Option<Self::Stopped<'_>>;

    /// Takes every pointer out of `cpu`'s stack of `array`, in pieces, bottom
    /// first. The stack is empty afterwards.
    fn drain(
        &self,
        stopped: &Self::Stopped<'_>,
        array: &Self::Array,
        cpu: flagstone_types::CpuId,
        take: &mut dyn FnMut(&[core::ptr::NonNull<u8>]),
    );
}
