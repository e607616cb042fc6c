//! Page frames: zones, buddy lists, per-CPU page lists, page metadata.
#![no_std]

mod block;
mod frames;
mod page;
mod reclaimer;

pub use block::{PageBlock, PageRun};
pub use frames::{Frames, ReleasePolicy, Released};
pub use page::{Page, PageKind};
pub use reclaimer::Reclaimer;
