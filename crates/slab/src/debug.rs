//! Debugging of objects: what is asked for, cache by cache.

mod options;

pub use options::{DebugFlags, DebugOptions};
