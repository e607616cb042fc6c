//! The smallest program that brings its own host: page frames and object caches in a static array of 16 MiB, on a machine of one
//! CPU. `docs/embedding.md` walks through it.
//!
//! ```text
//!   main       brings up frames and caches, uses them, prints where the memory is
//!   memory     the machine's frames: a static array             PageMap, PhysMem, Backing
//!   array      a stack of pointers for the one CPU               CpuCache, Host
//!   waiting    locks and grace periods, where nobody waits       Lock, Grace
//!   services   CPUs, time, random numbers, messages, counters    Cpus, Clock, Entropy, Log, Backtrace, Count
//! ```
//!
//! Only `main` and the messages use the standard library; the host needs nothing but `core`.

mod array;
mod memory;
mod services;
mod waiting;

use flagstone_frames::Frames;
use flagstone_host::{LockClass, Machine, PageMap};
use flagstone_slab::{
    ArrayTuning, BadFree, CacheParams, Caches, DebugPolicy, KERNEL_CLASSES, LayoutPolicy, Policy,
    SlabInfo,
};
use flagstone_types::{AllocError, Gfp, Order};

/// The machine as a value. It has no size: everything is in statics.
#[derive(Clone, Copy, Debug)]
pub struct Board;

impl Machine for Board {
    type Lock<C: LockClass> = waiting::Flag;
}

/// What this host chooses: Linux's figures.
const POLICY: Policy = Policy {
    layout: LayoutPolicy {
        min_order: 0,
        max_order: 0,
        min_objects: 1,
        cache_line: 64,
        in_record: false,
        in_object: true,
        zeroed: false,
        tail: 0,
    },
    arrays: |size| ArrayTuning::linux(size, Board::PAGE_SIZE, 1),
    alien_limit: 0,
    adaptive: false,
    bad_free: |bad: &BadFree<'_>| {
        println!("wrong free ({}): {}", bad.cache, bad.error);
    },
    debug: DebugPolicy::NONE,
};

fn main() -> Result<(), AllocError> {
    let frames = Frames::new(Board)?;
    let caches: &Caches<Board> = Caches::boot(frames, POLICY, KERNEL_CLASSES)?;

    // A cache of one's own, and objects of it.
    let sensors = caches.create(&CacheParams::new("sensor", 72, 8))?;
    let readings = [(); 100].map(|()| caches.alloc(&sensors, Gfp::KERNEL));
    println!(
        "100 sensors: {} in use",
        caches.info(&sensors).used_objects()
    );

    // Bytes of any number.
    let text = caches.kmalloc(1000, Gfp::KERNEL | Gfp::ZERO)?;
    println!(
        "kmalloc of 1000 bytes: {} usable",
        caches.ksize(text).unwrap_or(0)
    );

    // Page frames: a block of 8 pages, which is freed when it is dropped.
    let block =
        caches
            .frames()
            .alloc_pages(Gfp::KERNEL, Order::new(3).unwrap_or_default(), None)?;
    println!("a block of {} pages", 1 << block.order().get());

    // A mistake is noticed, and changes nothing.
    // SAFETY: this is the mistake: the pointer is in the middle of an object.
    unsafe { caches.kfree(text.add(8)) };

    println!("\n{}", SlabInfo::HEADER);
    caches.slabinfo(|info| {
        if info.active_objects > 0 {
            println!("{info}");
        }
    });
    print!("\n{}", caches.frames().buddyinfo());

    drop(block);
    // SAFETY: allocated above; nobody uses them any more.
    unsafe {
        caches.kfree(text);
        for sensor in readings.into_iter().flatten() {
            caches.free(&sensors, sensor);
        }
    }
    if let Err(busy) = caches.destroy(sensors) {
        println!("{busy:?}");
    }

    // Memory that is not there is an error, never a panic: take all there is, and give it back.
    let mut taken = Vec::new();
    while let Ok(block) = caches.frames().alloc_pages(Gfp::KERNEL, Order::ZERO, None) {
        taken.push(block);
    }
    println!(
        "\nall memory: {} single pages, then: {:?}",
        taken.len(),
        caches.kmalloc(1 << 20, Gfp::KERNEL)
    );
    Ok(())
}
