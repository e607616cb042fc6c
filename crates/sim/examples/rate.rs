//! How many small machines a second: two CPUs map, use, unmap and flush one page each; building the machine is part of it.
//!
//! `cargo run --release -p flagstone-sim --example rate [SCHEDULES]`

use flagstone_host::{Asid, Invalidate, Mmu, Shootdown, TableMemory};
use flagstone_sim::{Access, Arch, Machine, Rng, task};
use flagstone_types::{CpuMask, PhysAddr, VirtAddr};
use std::time::Instant;

const VA: VirtAddr = VirtAddr(0x40_0000_5000);

fn schedule(seed: u64, cpus: usize) -> u64 {
    let machine = Machine::<12>::builder(Arch::X86_64 { levels: 4 })
        .seed(seed)
        .cpus(cpus)
        .build();
    let host = &machine;
    let geometry = machine.arch().geometry();
    let table = |n: u64| (machine.nth_frame(n as usize).0 as u64) << 12;
    let entry = |n: u64| PhysAddr(table(n) + 8 * geometry.index(4 - n as u8, VA.0 as u64));
    for n in 0..3 {
        // SAFETY: the frames are this program's: nothing else runs on this machine.
        unsafe { host.store_entry(entry(n), table(n + 1) | 0x27) };
    }
    let (root, leaf) = (PhysAddr(table(0)), entry(3));
    let tasks = (0..cpus as u64).map(|n| {
        task(move |_| {
            let page = 0x100_0000 + (n << 12);
            // SAFETY: as above; the table lives as long as the machine.
            unsafe { host.activate(root, Asid(1), true) };
            for _ in 0..4 {
                // SAFETY: as above.
                unsafe { host.exchange_entry(leaf, page | 7) };
                let _ = host.access(VA, Access::WRITE);
                // SAFETY: as above.
                unsafe { host.exchange_entry(leaf, 0) };
                let pending = host.shoot(
                    &CpuMask::first(cpus as u32),
                    &Invalidate {
                        asid: Some(Asid(1)),
                        start: VA,
                        end: VirtAddr(VA.0 + 0x1000),
                        stride: 12,
                        tables: false,
                    },
                );
                host.wait(pending);
            }
        })
    });
    machine.run(tasks.collect()).steps
}

fn main() {
    let count: u64 = std::env::args()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .unwrap_or(2_000);
    for cpus in [2, 8] {
        let seeds = Rng::new(1);
        let start = Instant::now();
        let steps: u64 = (0..count).map(|_| schedule(seeds.bits(), cpus)).sum();
        let seconds = start.elapsed().as_secs_f64();
        println!(
            "{cpus} CPUs: {count} schedules of {} steps in {seconds:.2} s: {:.0}/s, {:.2} million an hour",
            steps / count,
            count as f64 / seconds,
            count as f64 / seconds * 3600e-6
        );
    }
}
