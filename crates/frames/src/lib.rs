//! Page frames: who owns each page of the machine's memory.
//!
//! ```text
//!   Frames ─┬─ node 0 ─┬─ zone DMA … Device ─┬─ free lists by migrate type and order   (zone lock)
//!           │          │                     ├─ page lists, one slot a CPU             (page-list locks, tried)
//!           │          │                     └─ watermarks, counts                     (atomics)
//!           ├─ node 1 …
//!           └─ Reclaimer: asked when all of them run short
//!
//!   Page (64 bytes a frame): state │ place │ view of the owner
//! ```
//!
//! A free frame is in one free list or page list; any other frame is in one [`PageBlock`] or [`PageRun`] that somebody
//! owns; freeing is a move. Blocks and runs of any kind have one *head* and else *tails*, so the
//! layer finds from any address what it is in, and touches one line of metadata for a block of any size. `MODEL.md`
//! has the invariants by number.
#![no_std]

#[cfg(test)]
extern crate std;

mod alloc;
mod block;
mod buddy;
mod device;
mod extent;
mod failure;
mod fork;
mod frames;
mod head;
mod inject;
mod memmap;
mod migrate;
mod page;
mod page_list;
mod reclaimer;
mod release;
mod report;
mod run;
mod shortage;
mod validate;
mod watermark;
mod zone;

#[cfg(test)]
mod tests;

pub use block::{PageBlock, PageRun};
pub use device::{DeviceMemory, DeviceRequest, MemmapHome};
pub use failure::{PageFailure, ReportLimit};
pub use frames::Frames;
pub use inject::{BadAttr, FaultAttr, FaultCount, FaultPoint, glob};
pub use memmap::{
    MemmapInfo, MemmapRow, MemmapTable, NotShared, memmap_of_compound, memmap_sharing,
};
pub use page::{Page, PageKind};
pub use reclaimer::Reclaimer;
pub use release::{ReleasePolicy, Released};
pub use report::{BuddyInfo, PageTypeInfo, ZoneInfo, ZoneReport};
pub use validate::Inconsistency;
