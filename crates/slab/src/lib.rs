//! Object caches in the SLAB tradition: per-CPU arrays whose allocation and free take no lock, a shared
//! array and slab lists per node, alien caches for objects of other nodes.
//!
//! ```text
//!   alloc ──► per-CPU array ──► shared array ──► partial / free slabs ──► page frames
//!               (no lock)         (node's lock)     (node's lock)          (no lock held)
//!   free  ──► per-CPU array ──► shared array ──► partial / full slabs ──► page frames
//!         └─► alien cache of another node ──► that node
//! ```
//!
//! `MODEL.md` has the state and the invariants. The fast path is [`Caches::alloc`] and [`Caches::free`]
//! over the host's [`CpuCache`](flagstone_host::CpuCache); everything else is a slow path of its own.
#![no_std]

mod alien;
mod alloc;
mod cache;
mod cache_list;
mod caches;
mod cpu_slabs;
mod debug;
mod drain;
mod ending;
mod fork;
mod free;
mod grow;
mod info;
mod inject;
mod kmalloc;
mod kmalloc_sets;
pub mod layout;
mod lists;
mod node;
mod object_cache;
mod oom;
mod placement;
mod random;
mod record;
mod refusal;
mod shared;
mod slot;
mod tuning;
mod unarrayed;
mod validate;

pub use cache::{Cache, CacheFlags, Constructor, UserCopy};
pub use caches::{CacheHandle, CacheParams, Caches};
pub use debug::{DebugFlags, DebugOptions, DebugPolicy};
pub use drain::Reaped;
pub use ending::Busy;
pub use info::SlabInfo;
pub use kmalloc::{Found, KERNEL_CLASSES, KmallocClass};
pub use kmalloc_sets::KmallocSet;
pub use object_cache::{CacheBox, ObjectCache};
pub use oom::{NodeUse, OutOfMemory, UnexpectedGfp};
pub use placement::{NodeMask, NumaPolicy, Placement};
pub use tuning::{ArrayTuning, BadFree, Improvements, LayoutPolicy, Policy};

#[cfg(test)]
extern crate std;
