//! The vocabulary of every Flagstone layer: addresses, frame numbers, orders,
//! node and CPU ids, GFP flags, errors.
//!
//! Nothing here knows a machine. A public signature anywhere above this crate
//! uses one of these types where one of them is meant, so that a unit can not
//! be mistaken: a [`Pfn`] counts page frames, a [`PhysAddr`] counts bytes, an
//! [`Order`] is a power of two of page frames.
#![no_std]

mod cpu_mask;
mod error;
mod gfp;
mod ids;
mod units;

pub use cpu_mask::{AtomicCpuMask, CpuMask};
pub use error::{AllocError, FreeError};
pub use gfp::Gfp;
pub use ids::{CpuId, MigrateType, Nid, Zone};
pub use units::{Bytes, Nanos, Order, Pfn, PfnRange, PhysAddr, VirtAddr};
