//! A small deterministic machine for tests: any number of CPUs and nodes in one thread, under a seeded schedule.
//!
//! ```text
//!   test ──▶ Machine::run([task, task, …])          tasks are coroutines, CPUs are slots they run in
//!                 │        ▲
//!                 ▼        │ switch, preempt, migrate   (schedule)
//!   layer under test ──▶ host call = steps ─────────┘
//! ```
//!
//! `&Machine` implements every trait of `flagstone_host`. Each host call takes *steps*; at a step the
//! schedule may let another CPU go on, preempt the task, or move it to another CPU. Sections of a per-CPU
//! array are several steps, so that they are torn apart in the middle as a real machine would. A seed
//! decides everything; a failure prints it. Outside of [`Machine::run`] the same calls are plain calls, so that a
//! property test can use a machine without any task.
//!
//! ```
//! use flagstone_host::{Cpus, Host};
//! use flagstone_seeded::{Machine, task};
//!
//! let machine = Machine::builder().cpus(4).seed(7).build();
//! let host = &machine;
//! machine.run((0..8).map(|_| task(move |_| assert!(host.current_cpu().0 < 4))).collect());
//! ```
//!
//! `MODEL.md` says what is simulated, what is not, and why the array forms are right.

mod arrays;
mod backing;
mod builder;
mod context;
mod failure;
mod faults;
mod grace;
mod hooks;
mod lock;
mod machine;
mod memmap;
mod memory;
mod rng;
mod run;
mod schedule;
mod seeds;
mod thread_bound;

pub use arrays::{Array, ArrayForm, ArrayStats, Mutation, Stopped};
pub use builder::Builder;
pub use failure::{Failure, FailureKind};
pub use faults::{Call, Fault};
pub use grace::ReadGuard;
pub use hooks::Hooks;
pub use lock::{LockStat, RawLock};
pub use machine::{IrqGuard, Machine};
pub use rng::Rng;
pub use run::{Report, Task, TaskCtx, task};
pub use schedule::Policy;
pub use seeds::for_each_seed;
pub use thread_bound::ThreadBound;
