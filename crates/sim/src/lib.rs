//! A deterministic machine with a memory management unit: the tables in its memory are walked as the architecture's manual says, and
//! what page-table code does wrong is found.
//!
//! ```text
//!   test ──▶ Machine::run([task, …])          flagstone_seeded: coroutine CPUs, schedule, locks, grace, memory
//!              │                                          ▲
//!              ├─ access / read_u64 / write_u64 ─▶ unit ──┤ walks words in frames, sets A and D
//!   pgtable ───┼─ TableMemory, Mmu ──────────────▶ unit ──┤ judges every write
//!              └─ Shootdown ──▶ flight ─ later ──▶ unit ──┘ loses what it must, keeps what it may
//! ```
//!
//! Each CPU's unit has a translation cache with address-space ids, a paging-structure cache, and walks under way; it loads any valid
//! translation at any time and drops any at any time. What it may keep it keeps, so that a missing flush shows. A seed decides
//! everything. `MODEL.md` has the rules by number, and how each is found when broken.
//!
//! ```
//! use flagstone_host::{Asid, Mmu, TableMemory};
//! use flagstone_sim::{Access, Arch, Machine};
//! use flagstone_types::{PhysAddr, VirtAddr};
//!
//! let machine = Machine::<12>::builder(Arch::X86_64 { levels: 4 }).build();
//! let host = &machine;
//! let frame = |n: u64| machine.nth_frame(n as usize).0 as u64 * 4096;
//! for n in 0..3 {
//!     let below = PhysAddr(frame(n + 1) | 7);
//!     // SAFETY: the frames are ours: nothing else runs on this machine.
//!     unsafe { host.store_entry(PhysAddr(frame(n)), below.0) };
//! }
//! // SAFETY: as above; and the table stays as long as the machine.
//! unsafe {
//!     host.store_entry(PhysAddr(frame(3) + 8), 0x5000 | 7);
//!     host.activate(PhysAddr(frame(0)), Asid(1), true);
//! }
//! assert_eq!(machine.access(VirtAddr(0x1234), Access::WRITE), Ok(PhysAddr(0x5234)));
//! ```

mod arch;
mod builder;
mod cost;
mod delegate;
mod device;
mod history;
mod image;
mod machine;
mod mmu;
mod shrink;
mod tables;
mod violation;

pub use arch::{Access, Arch, Geometry, Kind, Page, Rights, Word};
pub use builder::{Builder, usual_caps};
pub use cost::Costs;
pub use device::{Completion, Device, DeviceModel, IoError, Request, SubmitError, Ticket};
pub use flagstone_seeded::{
    Failure, FailureKind, Fault as OrderedFault, Policy, Report, Rng, Task, TaskCtx, for_each_seed,
    task,
};
pub use history::Writer;
pub use image::{NOTE_NAME, NOTE_SPACES, Space};
pub use machine::Machine;
pub use mmu::{Fault, FaultKind, MmuStats, Translation};
pub use shrink::{Shrunk, shrink};
pub use tables::Pending;
pub use violation::{Rule, Violation};
