//! Flagstone on the bare machine: an image that boots under QEMU, brings up every CPU and works allocators and page tables hard.
//!
//! ```text
//!   start.s ─► startup ─► memory plan, areas of CPUs, clock ─► other CPUs (cpu_start.s ─► crew)
//!                 │
//!                 └─► trial: heap (frames, slab, GlobalAlloc) under load on every CPU, with timer interrupts that allocate ─► exit
//!
//!   Kernel answers the traits of the host:  memory   PageMap, PhysMem, Backing       array   CpuCache, stop and drain
//!                                           lock     SpinLock by class               grace   quiescent states
//!                                           services Cpus, Count, Entropy            clock, serial   Clock, Log
//!                                           unit     TableMemory, Mmu                shootdown       Shootdown
//!
//!   space       the kernel's page table, address spaces that share it        entry_area   stacks and descriptors of a CPU at random places
//! ```
//!
//! The fast paths of the object caches are *sections* (`asm/section.s`): a few instructions that an interrupt sends back to their
//! start, without a locked instruction and without blocking interrupts. `MODEL.md` has the invariants by number, and how the image
//! is built.
#![no_std]
// Outside of the image nothing starts the machine: in a process the unit tests run, and much of the code is never compiled further than checked.
#![cfg_attr(any(test, not(feature = "image")), allow(dead_code))]

extern crate alloc;

mod access;
mod apic;
mod array;
mod barrier;
mod clock;
mod command_line;
mod crew;
mod descriptors;
mod direct;
mod entry_area;
mod features;
mod grace;
mod heap;
mod interrupts;
mod kernel;
mod layout;
mod lock;
mod madt;
mod memory;
mod per_cpu;
mod plan;
mod section;
mod serial;
mod services;
mod shootdown;
mod space;
mod start_info;
#[cfg(all(feature = "image", not(test)))]
mod startup;
mod trap;
mod trial;
mod unit;

use core::sync::atomic::{AtomicBool, Ordering};

pub use array::{Array, Stopped};
pub use grace::ReadGuard;
pub use heap::Heap;
pub use interrupts::IrqGuard;
pub use kernel::Kernel;
pub use lock::SpinLock;
pub use shootdown::Pending;

/// Reports a panic and ends the run as failed. Of CPUs that panic together, or a panic that panics, the first is reported.
pub fn panicked(info: &core::panic::PanicInfo<'_>) -> ! {
    static PANICKED: AtomicBool = AtomicBool::new(false);
    if PANICKED.swap(true, Ordering::Relaxed) {
        // The first one ends the run; if it can not, this one does.
        for _ in 0..1_u32 << 26 {
            core::hint::spin_loop();
        }
    } else {
        serial::last_line(format_args!("{info}"));
    }
    serial::exit(serial::Outcome::Failed);
}
