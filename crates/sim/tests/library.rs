//! The library's page tables under the unit, a few CPUs, every rule. The conformance suite does it at length and with every format; this shows that model and
//! library agree on what is allowed, and how many small schedules a second there are.

use flagstone_frames::{Frames, PageBlock};
use flagstone_host::{Asid, Cpus, Grace};
use flagstone_pgtable::format::{self, Access as Allow, Format, Leaf};
use flagstone_pgtable::shadow::Mapping;
use flagstone_pgtable::{Owner, PageTable, Params, Pte, Reach, Taken, VirtRange};
use flagstone_sim::{Access, Arch, FaultKind, Machine, Rng, for_each_seed, task};
use flagstone_types::{Gfp, Nid, Order, Pfn, PfnRange, PhysAddr, VirtAddr};

type Host<'m, const SHIFT: u32> = &'m Machine<SHIFT, 4>;

/// Gives frames back, and says so to the machine first.
struct Free<'f, 'm, const SHIFT: u32>(&'f Frames<Host<'m, SHIFT>>);

// SAFETY: O1: each leaf stands for a block of one frame, whose raw form was given up when it was mapped.
unsafe impl<const SHIFT: u32> Owner for Free<'_, '_, SHIFT> {
    fn release(&mut self, taken: Taken) {
        for n in 0..taken.pages {
            let leaf = match taken.entry {
                format::Entry::Leaf(leaf) => leaf,
                other => panic!("{other:?} was never mapped"),
            };
            let pfn = Pfn((leaf.at.0 >> SHIFT) as usize + n);
            self.0.host().frame_freed(PfnRange::new(pfn, 1));
            // SAFETY: F1: as above; nobody else has it.
            self.0
                .free_pages(unsafe { PageBlock::from_raw(pfn, Order::ZERO) });
        }
    }
}

const PAGES: usize = 6;

fn small<F: Format, const SHIFT: u32>(seed: u64, ops: usize) {
    let arch = Arch::named(F::NAME).unwrap();
    let rng = Rng::new(seed ^ 1);
    let cpus = 2 + rng.below(2);
    let machine = Machine::<SHIFT, 4>::builder(arch)
        .seed(seed)
        .cpus(cpus)
        .memory(if SHIFT == 12 { 256 } else { 128 })
        .build();
    let host = &machine;
    let frames = Frames::new(host).unwrap();
    frames.set_min_free(Some(0));
    frames.drain_page_lists();
    let free = frames.free_count(Nid(0));
    let params = |asid| Params {
        asid: Some(Asid(asid)),
        reach: Reach::Whole,
        gfp: Gfp::NOWAIT,
    };
    {
        let table = PageTable::<_, F>::new(&frames, params(1)).unwrap();
        let idle = PageTable::<_, F>::new(&frames, params(2)).unwrap();
        let page = 1usize << SHIFT;
        // Across the end of a table of pages, where there is more than one.
        let base = F::entries(format::Level::PTE) * page - 2 * page;
        let range = |from: usize, pages: usize| VirtRange {
            start: VirtAddr(base + from * page),
            len: flagstone_types::Bytes(pages * page),
        };
        let (t, i, f) = (&table, &idle, &frames);
        let work = (0..cpus).map(|n| {
            let rng = Rng::new(seed.wrapping_mul(31).wrapping_add(n as u64));
            task(move |_| {
                let cpu = host.current_cpu();
                // SAFETY: tasks stay on their CPUs, and the page tables outlive the run.
                unsafe { t.activate(cpu) };
                let shared = t.shared();
                for _ in 0..ops {
                    let at = rng.below(PAGES);
                    let some = range(at, 1 + rng.below(PAGES - at));
                    match rng.below(8) {
                        0 | 1 => {
                            let Ok(block) =
                                f.alloc_pages(Gfp::NOWAIT | Gfp::ZERO, Order::ZERO, None)
                            else {
                                continue;
                            };
                            let place = PhysAddr((block.pfn().0 as u64) << SHIFT);
                            let access = Allow::READ | Allow::WRITE | Allow::USER;
                            let leaf = Leaf::new(place, access, Mapping::Ordinary);
                            match shared.map::<Pte>(some.start, &leaf, 1) {
                                Ok(()) => {
                                    let _ = block.into_raw();
                                }
                                Err(_) => f.free_pages(block),
                            }
                        }
                        2 => {
                            let mut gather = shared.gather(Free(f));
                            shared.unmap(some, &mut gather).unwrap();
                            if rng.chance(128) {
                                shared.free_tables(some, &mut gather).unwrap();
                            }
                            gather.finish();
                        }
                        3 => {
                            let mut gather = shared.gather(Free(f));
                            let access = if rng.chance(128) {
                                Allow::READ | Allow::USER
                            } else {
                                Allow::READ | Allow::WRITE | Allow::USER
                            };
                            shared.protect(some, access, &mut gather).unwrap();
                            gather.finish();
                        }
                        4 => {
                            let _ = shared.lookup(some.start).unwrap();
                            host.poll();
                        }
                        _ => {
                            let access = if rng.chance(128) {
                                Access::WRITE
                            } else {
                                Access::READ
                            };
                            let outcome = if access.stores() {
                                host.write_u64(some.start, seed, access)
                            } else {
                                host.read_u64(some.start, access).map(|_| ())
                            };
                            if let Err(fault) = outcome {
                                assert!(
                                    matches!(
                                        fault.kind,
                                        FaultKind::NotPresent
                                            | FaultKind::Protection
                                            | FaultKind::NotAccessed
                                            | FaultKind::NotDirty
                                    ),
                                    "{fault}"
                                );
                            }
                        }
                    }
                }
                // SAFETY: as above.
                unsafe {
                    i.activate(cpu);
                    t.leave(cpu);
                }
            })
        });
        machine.run(work.collect());
        machine.each_leaf(table.root(), |leaf| {
            let found = table.shared().lookup(leaf.va).unwrap();
            assert_eq!(found.physical(leaf.va), Some(leaf.at), "{leaf:?}");
        });
        let shared = table.shared();
        let mut gather = shared.gather(Free(&frames));
        shared.unmap(range(0, PAGES), &mut gather).unwrap();
        shared.free_tables(range(0, PAGES), &mut gather).unwrap();
        gather.finish();
        host.synchronize();
        // Nobody translates by them any more.
        machine.reset_units();
        for cpu in 0..cpus {
            // SAFETY: T6: no CPU translates by anything.
            unsafe { idle.leave(flagstone_types::CpuId(cpu as u32)) };
        }
    }
    host.synchronize();
    frames.drain_page_lists();
    frames.validate().unwrap();
    assert_eq!(frames.free_count(Nid(0)), free, "pages were lost");
    machine.inner().check_memory().unwrap();
}

macro_rules! formats {
    ($($name:ident: $format:ty, $shift:literal;)*) => {
        $(#[test]
        fn $name() {
            for_each_seed(300, |seed| small::<$format, $shift>(seed, 12));
        })*
    };
}

formats! {
    x86_64: format::X86_64, 12;
}
