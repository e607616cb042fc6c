//! Hardening: objects whose misuse is found when they change hands, and memory that says nothing to who reads it out of turn.
//!
//! ```text
//!   malloc ── table of places is 0 ──► path ──► this CPU's array, as ever ──► words, zeroes ──► program
//!   free   ── range 0 has no frames ─► path ──► words, zeroes ──► this CPU's array
//! ```
//!
//! The default fast paths are as they are and find nothing: with hardening every call comes to the slow path's door and from there to `path.rs`, which
//! runs the same restartable sections on the same arrays between its own checks. So the cost is that of the checks.
//!
//! | file | what |
//! | --- | --- |
//! | `features.rs` | what there is, and its names |
//! | `path.rs` | allocation, free and resizing with checks |
//! | `places.rs` | where a freed object's array is |
//! | `canary.rs` | secret words in objects, live and freed |
//! | `copy.rs` | copies that span objects |
//! | `guards.rs` | a page at the end of every slab that nobody may touch |
//!
//! `MODEL.md` has the invariants (D1 …).

mod canary;
pub mod copy;
mod features;
mod guards;
mod path;
mod places;

use core::sync::atomic::{AtomicU32, Ordering};

use flagstone_host::{Entropy, Level, Log};
use flagstone_slab::{Caches, LayoutPolicy};

use crate::process::Process;

pub use features::Features;
pub(crate) use guards::{GUARD, close, reopen};
pub(crate) use path::{
    allocate, allocate_class, extra_bytes, free, give_up, reallocate, returned, usable_size,
};
pub(crate) use places::shrink;

/// The features in force; 0 until the heap is up.
static FEATURES: AtomicU32 = AtomicU32::new(0);

#[inline(always)]
fn features() -> Features {
    Features::from_bits_retain(FEATURES.load(Ordering::Relaxed))
}

/// Whether allocations and frees go by the hardened path.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    features().intersects(Features::OBJECTS)
}

/// Whether freed runs of page frames are to be emptied.
#[inline]
pub(crate) fn zeroes_freed() -> bool {
    features().contains(Features::ZERO_FREE)
}

/// Whether allocations are to be zero.
#[inline]
pub(crate) fn zeroes_allocated() -> bool {
    features().contains(Features::ZERO_ALLOC)
}

/// How slabs are cut with what is asked for: room for a guard page, and no index within reach of an object's owner.
pub(crate) fn layout(wanted: Features, policy: LayoutPolicy) -> LayoutPolicy {
    LayoutPolicy {
        in_object: policy.in_object && !wanted.intersects(Features::OBJECTS | Features::ENCODE),
        zeroed: wanted.intersects(Features::WORDS),
        tail: if wanted.contains(Features::GUARDS) {
            GUARD
        } else {
            policy.tail
        },
        ..policy
    }
}

/// Begins, before the first object is handed out. Says on standard error if there is no memory for it.
pub(crate) fn start(caches: &Caches<Process>) {
    let host = caches.host();
    let wanted = host.settings().harden;
    if wanted.contains(Features::RANDOM) {
        caches.improvements().set_random_freelist(true);
    }
    if !wanted.intersects(Features::OBJECTS) {
        return;
    }
    if host.settings().debug().is_some() {
        // Both keep something of their own behind an object, and debugging finds all that these would.
        host.log(
            Level::Warning,
            format_args!(
                "setting FLAGSTONE_HARDEN: what is about objects is left to FLAGSTONE_DEBUG"
            ),
        );
        return;
    }
    // Objects of a class belong to the hardened path alone (D3).
    caches.improvements().set_merge(false);
    canary::start(host.random(), host.random());
    FEATURES.store(wanted.bits(), Ordering::Relaxed);
    places::start();
}
