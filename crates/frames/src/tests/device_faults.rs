//! Device memory when something fails, is asked for wrongly, or goes while others look.

use super::{GFP, order};
use crate::{DeviceRequest, Frames, MemmapHome, ZoneReport};
use flagstone_host::{Grace, MemRange, MemmapArch, MemmapCaps, PageMap, PhysMem, VirtualMemmap};
use flagstone_seeded::{Builder, Call, Fault, Machine, for_each_seed, task};
use flagstone_types::{AllocError, Gfp, Nid, Order, Pfn, PfnRange, Zone};
use std::vec::Vec;

fn builder() -> Builder<12, 6> {
    let caps = MemmapCaps::new(MemmapArch::X86_64, 12, true, true);
    Builder::<12, 6>::new()
        .memmap(caps)
        .device(Nid(0), 1 << 10, order(9))
}

fn request(frames: PfnRange) -> DeviceRequest {
    DeviceRequest {
        frames,
        compound: order(9),
        home: MemmapHome::System,
    }
}

/// Everything there is to see, but for which free pages have been used, and as what.
fn state(f: &Frames<&Machine<12, 6>>) -> (Vec<ZoneReport>, (usize, usize)) {
    f.drain_page_lists();
    f.validate().unwrap();
    let unused = |mut zone: ZoneReport| {
        let blocks = zone.free_blocks;
        zone.free_blocks = Default::default();
        zone.free_blocks[0] =
            core::array::from_fn(|order| blocks.iter().map(|orders| orders[order]).sum());
        zone.page_blocks = Default::default();
        ZoneReport { touched: 0, ..zone }
    };
    (f.report().map(unused).collect(), f.host().mapped_memmap())
}

#[test]
fn too_little_memory_at_any_point_leaves_all_as_before() {
    // Two compounds take two pages each.
    for pages in 0..4 {
        let m = builder().cpus(1).memory(64).build();
        let f = Frames::new(&m).unwrap();
        f.set_min_free(Some(0));
        let taken: Vec<_> = (0..64 - pages)
            .map(|_| f.alloc_pages(GFP, Order::ZERO, None).unwrap())
            .collect();
        let before = state(&f);
        let range = m.device_ranges()[0];
        assert_eq!(
            f.add_device_memory(request(range)),
            Err(AllocError::OutOfMemory)
        );
        assert_eq!(state(&f).1, before.1);
        assert_eq!(f.free_count(Nid(0)), pages);
        assert!(f.page(range.start).is_none() && f.head(range.start.add(70)).is_none());
        taken.into_iter().for_each(|block| f.free_pages(block));
        let memory = f.add_device_memory(request(range)).unwrap();
        assert_eq!(memory.memmap().pages, 4);
        state(&f);
    }
}

#[test]
fn a_mapping_that_fails_at_any_point_leaves_all_as_before() {
    for home in [MemmapHome::System, MemmapHome::Device { pages: 512 }] {
        let mut failed = 0;
        for nth in 1.. {
            let m = builder().cpus(1).build();
            let f = Frames::new(&m).unwrap();
            let request = DeviceRequest {
                home,
                ..request(m.device_ranges()[0])
            };
            let before = state(&f);
            m.inject(Call::MapMemmap, Fault::Nth(nth));
            match f.add_device_memory(request) {
                Ok(memory) => {
                    state(&f);
                    // SAFETY: D3: nobody else is here.
                    unsafe { f.remove_device_memory(memory) };
                    assert_eq!(state(&f), before);
                    break;
                }
                Err(error) => assert_eq!(error, AllocError::OutOfMemory),
            }
            assert_eq!(state(&f), before);
            assert!(f.page(request.frames.start).is_none());
            failed += 1;
            let memory = f.add_device_memory(request).unwrap();
            assert_eq!(memory.frames(), request.frames);
            state(&f);
        }
        // Of each compound the head's page and the tails'; or every page of records.
        let calls = if home == MemmapHome::System { 4 } else { 16 };
        assert_eq!(failed, calls);
    }
}

#[test]
fn a_wrong_request_is_refused_and_changes_nothing() {
    let m = builder().cpus(1).build();
    let f = Frames::new(&m).unwrap();
    let range = m.device_ranges()[0];
    let normal = f.report().next().unwrap().start;
    let before = state(&f);
    let own = |pages| MemmapHome::Device { pages };
    let asked = |start: Pfn, pages, compound, home| {
        f.add_device_memory(DeviceRequest {
            frames: PfnRange::new(start, pages),
            compound: order(compound),
            home,
        })
    };
    let system = MemmapHome::System;
    for (start, pages, compound, home) in [
        (range.start, 0, 9, system),
        (range.start.add(1), 512, 0, system),
        (range.start.add(64), 512, 9, system),
        (range.start, 100, 0, system),
        (range.start, 576, 9, system),
        (range.start, 2 << 10, 9, system),
        (range.end(), 512, 9, system),
        (normal, 64, 0, system),
        (Pfn(usize::MAX & !511), 512, 9, system),
        (range.start, 512, 40, system),
        (range.start, 1 << 10, 9, own(0)),
        (range.start, 1 << 10, 9, own(16)),
        (range.start, 1 << 10, 9, own(1 << 10)),
        (range.start, 1 << 10, 0, own(15)),
    ] {
        assert_eq!(
            asked(start, pages, compound, home),
            Err(AllocError::InvalidArgument),
            "{pages} frames at {start}, compound {compound}, {home:?}"
        );
        assert_eq!(state(&f), before);
    }
    let memory = f.add_device_memory(request(range)).unwrap();
    let after = state(&f);
    for frames in [
        range,
        PfnRange::new(range.start, 512),
        PfnRange::new(range.start.add(512), 512),
    ] {
        let again = f.add_device_memory(request(frames));
        assert_eq!(again, Err(AllocError::Exists));
    }
    let plain = f.add_memory(MemRange {
        frames: PfnRange::new(range.start.add(64), 64),
        nid: Nid(0),
        zone: Zone::Device,
    });
    assert_eq!(plain, Err(AllocError::Exists));
    assert_eq!(state(&f), after);
    assert_eq!(memory.usable(), range);
}

#[test]
fn devices_come_and_go_while_others_look_and_allocate() {
    for_each_seed(60, |seed| {
        let m = builder().cpus(3).memory(256).seed(seed).build();
        let f = Frames::new(&m).unwrap();
        f.set_min_free(Some(0));
        let before = f.managed_count(Nid(0));
        let range = m.device_ranges()[0];
        let (f, host) = (&f, &m);
        let mut tasks = Vec::new();
        for half in 0..2 {
            tasks.push(task(move |_| {
                let frames = PfnRange::new(range.start.add(half * 512), 512);
                for _ in 0..3 {
                    match f.add_device_memory(request(frames)) {
                        Ok(memory) => {
                            let tail = frames.start.add(500);
                            assert_eq!(f.head(tail).map(|h| h.0), Some(frames.start));
                            // SAFETY: D3: who looks does so in a read-side section.
                            unsafe { f.remove_device_memory(memory) };
                        }
                        Err(AllocError::OutOfMemory) => {}
                        Err(error) => assert_eq!((error, half), (AllocError::Exists, 0)),
                    }
                }
            }));
        }
        tasks.push(task(move |_| {
            // The same frames as the first task's: one of the two gets them.
            let frames = PfnRange::new(range.start, 512);
            for _ in 0..3 {
                match f.add_device_memory(request(frames)) {
                    // SAFETY: D3: as above.
                    Ok(memory) => unsafe { f.remove_device_memory(memory) },
                    Err(error) => assert_ne!(error, AllocError::InvalidArgument),
                }
            }
        }));
        tasks.push(task(move |_| {
            for n in 0..60 {
                let section = host.read();
                let at = range.start.add(n * 17);
                if let Some((head, page)) = f.head(at) {
                    assert_eq!(head.0, at.0 & !511);
                    // It may be hidden by now, but not unmapped.
                    let behind = host.memmap_backing(head);
                    for _ in 0..n % 40 {
                        assert!(behind.is_some() && host.memmap_backing(head) == behind);
                    }
                    assert_eq!(page.zone(), Zone::Device);
                    assert_eq!(page.order(), order(9));
                }
                drop(section);
            }
        }));
        tasks.push(task(move |_| {
            for n in 0..20 {
                let gfp = Gfp::NOWAIT;
                let run = f.alloc_run(gfp, 1 + n * 3, None);
                let page = f.alloc_pages(gfp, order(n as u32 % 4), None);
                // What was a record a moment ago is none now.
                let spoil = |range: PfnRange| {
                    let bytes = range.pages * <&Machine<12, 6>>::PAGE_SIZE;
                    // SAFETY: F1: the frames are ours.
                    unsafe { host.frame_ptr(range.start).write_bytes(0xff, bytes) };
                };
                page.iter().for_each(|page| spoil(page.range()));
                run.iter().for_each(|run| spoil(run.range()));
                page.into_iter().for_each(|page| f.free_pages(page));
                run.into_iter().for_each(|run| f.free_run(run));
            }
        }));
        m.run(tasks);
        f.drain_page_lists();
        f.validate().unwrap();
        assert_eq!(f.free_count(Nid(0)), before);
        assert_eq!(m.mapped_memmap(), (0, 0));
    });
}
