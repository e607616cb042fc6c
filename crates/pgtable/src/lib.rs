//! Page tables: formats of five architectures, walks under split locks, batches of invalidations.
//!
//! ```text
//!   PageTable<H, F> ── root ── tables ── entries: nothing │ a table │ a leaf │ absent      format::Format says how
//!      │
//!      ├─ shared()     Ops: map, unmap, protect, …   any number of contexts; a lock per table
//!      ├─ exclusive()  Ops: the same                 who has `&mut`; no locks, no grace periods
//!      └─ cpus         who must be told of changes
//!
//!   unmap, protect, … ──▶ Gather ── finish ──▶ one invalidation on all CPUs ──▶ leaves to their Owner, tables to a grace period
//! ```
//!
//! A walk goes down without locks inside a read-side section; at the table whose entries are to change it takes that table's lock and makes sure that
//! the table is still linked. What is taken out belongs to the [`Gather`] until no CPU can use it. `MODEL.md` has the
//! invariants by number, and why each race is right.
//!
//! ```text
//! let table = PageTable::<_, X86_64>::new(&frames, Params::default())?;
//! let ops = table.shared();
//! ops.map::<Pte>(VirtAddr(0x1000), &Leaf::new(at, Access::READ | Access::WRITE | Access::USER, Mapping::Ordinary), 512)?;
//! let mut gather = ops.gather(owner);
//! ops.unmap(VirtRange::new(0x1000, 512 << 12), &mut gather)?;
//! ops.free_tables(VirtRange::new(0x1000, 512 << 12), &mut gather)?;
//! gather.finish();                    // invalidates once, then releases
//! ```
#![no_std]

#[cfg(test)]
extern crate std;

mod alike;
mod bad_access;
mod borrowed;
mod change;
mod collapse;
pub mod cr3;
pub mod dump;
mod edit;
mod error;
mod flush;
pub mod format;
mod free_tables;
mod gather;
mod guard;
pub mod kernel_map;
mod level;
mod lookup;
mod map;
mod mode;
mod ops;
mod record;
mod replace;
pub mod shadow;
mod single;
mod span;
mod spares;
mod split;
mod stray;
mod table;
mod unmap;
mod words;
mod young;

#[cfg(test)]
mod tests;

pub use bad_access::{BadAccess, FaultCode};
pub use error::{Error, MapError};
pub use flush::CEILING;
pub use gather::{Gather, NotOwned, Owner, Taken, UseUnasked};
pub use guard::TableGuard;
pub use level::{P4d, Pgd, Pmd, Pte, Pud, Raw, TableLevel};
pub use lookup::Found;
pub use mode::{Exclusive, Mode, Shared};
pub use ops::Ops;
pub use replace::Become;
pub use span::{Reach, VirtRange};
pub use table::{PageTable, Params, TableHost};
