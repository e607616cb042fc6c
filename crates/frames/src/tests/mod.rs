//! Tests of the whole allocator on the seeded host.

mod behaviour;
mod concurrent;
mod device;
mod device_faults;
mod model;
mod release;
mod report;
mod runs;
mod shortage;

use crate::Frames;
use flagstone_seeded::{Builder, Machine};
use flagstone_types::{Gfp, Order};

/// A machine of one CPU and one node with `pages` of normal memory.
pub(crate) fn machine<const SHIFT: u32, const ORDER: u32>(pages: usize) -> Machine<SHIFT, ORDER> {
    Builder::<SHIFT, ORDER>::new().cpus(1).memory(pages).build()
}

pub(crate) fn order(order: u32) -> Order {
    Order::new(order).unwrap()
}

/// An allocator whose every page can be had.
pub(crate) fn frames<const SHIFT: u32, const ORDER: u32>(
    machine: &Machine<SHIFT, ORDER>,
) -> Frames<&Machine<SHIFT, ORDER>> {
    let frames = Frames::new(machine).unwrap();
    frames.set_min_free(Some(0));
    frames.validate().unwrap();
    frames
}

pub(crate) const GFP: Gfp = Gfp::NOWAIT;
