//! Debugging of objects (S12): what is asked for, cache by cache, and what is done for it.
//!
//! ```text
//!   stride of a debugged cache
//!   │ left red zone │ object: asked for ░ rest │ right red zone │ state, size, tracks │
//!                   └ what users know      └ red zone too, while it is allocated
//! ```
//!
//! A debugged cache has no arrays, so that every allocation and every free is seen: an allocation finds out whether the free object was
//! written to, a free whether its neighbourhood was. What is wrong is reported once, put right, and the program goes on. A
//! pointer that can not be freed is reported and goes nowhere.
//!
//! | file | what |
//! | --- | --- |
//! | `options.rs` | which flags a cache gets |
//! | `shape.rs` | where red zones and what is known of an object lie |
//! | `events.rs` | an object is made, allocated, freed |
//! | `damage.rs` | what is wrong, told |

mod damage;
mod events;
mod options;
mod shape;

use flagstone_kasan::StackDepot;
use flagstone_kasan::report::Report;

pub use options::{DebugFlags, DebugOptions};
pub(crate) use shape::Shape;

/// What a host chooses for the debugging of objects.
#[derive(Clone, Copy, Debug)]
pub struct DebugPolicy {
    /// The flags of a cache with this name. Asked when a cache is made.
    pub flags: fn(cache: &str) -> DebugFlags,
    /// Told of what is wrong, with no lock of the core held.
    pub report: fn(report: &Report<'_>),
    /// Where call stacks are kept, if anywhere.
    pub depot: fn() -> Option<&'static StackDepot>,
    /// The thread that runs, as reports number it.
    pub task: fn() -> u32,
}

impl DebugPolicy {
    /// No cache is debugged.
    pub const NONE: Self = Self {
        flags: |_| DebugFlags::NONE,
        report: |_| {},
        depot: || None,
        task: || 0,
    };
}
