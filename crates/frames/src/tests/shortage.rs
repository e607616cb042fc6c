//! Who gets what when memory is short or not where it is wanted: zones and nodes in turn, reserves, the reclaimer, migrate types.

use super::{GFP, frames, machine, order};
use crate::{Frames, PageKind, Reclaimer};
use core::cell::Cell;
use core::sync::atomic::{AtomicUsize, Ordering};
use flagstone_host::{Backing, Count, Event, Host};
use flagstone_seeded::{Builder, Machine};
use flagstone_types::{AllocError, Gfp, Nid, Order, Pfn, Zone};
use std::vec::Vec;

#[test]
fn zones_and_nodes_are_asked_nearest_first() {
    let m = Builder::<12, 6>::new()
        .cpus(4)
        .nodes(2)
        .zone(Nid(0), Zone::Dma, 64)
        .zone(Nid(0), Zone::Normal, 64)
        .zone(Nid(0), Zone::Movable, 64)
        .zone(Nid(1), Zone::Normal, 64)
        .build();
    let f = frames(&m);
    let place = |gfp: Gfp| {
        let block = f.alloc_pages(gfp, order(6), Some(Nid(0))).ok()?;
        let page = f.page(block.pfn()).unwrap();
        let place = (page.nid(), page.zone());
        let _ = block.into_raw();
        Some(place)
    };
    assert_eq!(
        place(GFP | Gfp::HIGHMEM | Gfp::MOVABLE),
        Some((Nid(0), Zone::Movable))
    );
    assert_eq!(
        place(GFP | Gfp::HIGHMEM | Gfp::MOVABLE),
        Some((Nid(0), Zone::Normal))
    );
    assert_eq!(place(GFP), Some((Nid(0), Zone::Dma)));
    assert_eq!(place(GFP | Gfp::THISNODE), None);
    assert_eq!(place(GFP | Gfp::DMA), None, "node 1 has no such zone");
    assert_eq!(place(GFP), Some((Nid(1), Zone::Normal)));
    assert_eq!(place(GFP), None);
    assert_eq!((&&m).counted(Event::NumaMiss), 1);
    assert_eq!((&&m).counted(Event::NumaHit), 3);
    f.validate().unwrap();
}

#[test]
fn a_machine_without_restricted_zones_serves_requests_for_them() {
    let m = machine::<16, 6>(64);
    let f = frames(&m);
    let block = f.alloc_pages(GFP | Gfp::DMA, Order::ZERO, None).unwrap();
    assert_eq!(f.page(block.pfn()).unwrap().zone(), Zone::Normal);
    f.free_pages(block);
}

#[test]
fn device_memory_has_metadata_and_is_never_handed_out() {
    let m = Builder::<12, 6>::new()
        .cpus(1)
        .memory(0)
        .zone(Nid(0), Zone::Device, 64)
        .build();
    let f = frames(&m);
    assert_eq!(
        f.alloc_pages(GFP, Order::ZERO, None).unwrap_err(),
        AllocError::OutOfMemory
    );
    let start = f.report().next().unwrap().start;
    assert_eq!(f.page(start.add(5)).unwrap().kind(), PageKind::Device);
}

#[test]
fn reserves_are_for_whom_the_flags_say() {
    let m = machine::<12, 6>(1024);
    let f = Frames::new(&m).unwrap();
    f.set_min_free(Some(128));
    let exhaust = |gfp: Gfp| {
        let mut pages = 0;
        while let Ok(block) = f.alloc_pages(gfp, order(4), None) {
            let _ = block.into_raw();
            pages += 16;
        }
        pages
    };
    let _ = exhaust(GFP);
    let (min, free) = (128, f.free_count(Nid(0)));
    assert!(
        free >= min && free < min + 17,
        "{free} pages are left above the minimum"
    );
    assert_eq!(exhaust(GFP), 0);
    let _ = exhaust(Gfp::HIGH);
    let free = f.free_count(Nid(0));
    assert!((64..64 + 17).contains(&free), "half of the reserve: {free}");
    let _ = exhaust(Gfp::ATOMIC);
    let free = f.free_count(Nid(0));
    assert!(
        (48..48 + 17).contains(&free),
        "and a quarter of that: {free}"
    );
    assert_eq!(exhaust(Gfp::MEMALLOC | Gfp::NOMEMALLOC), 0);
    let _ = exhaust(Gfp::MEMALLOC);
    assert_eq!(f.free_count(Nid(0)), 0);
}

/// Adds unadded memory, or says it has none.
struct Grower<'m, const SHIFT: u32, const ORDER: u32> {
    machine: &'m Machine<SHIFT, ORDER>,
    next: Cell<usize>,
    wakes: AtomicUsize,
    calls: AtomicUsize,
}

// SAFETY: the tests of this file run in one thread.
unsafe impl<const SHIFT: u32, const ORDER: u32> Sync for Grower<'_, SHIFT, ORDER> {}

impl<'m, const SHIFT: u32, const ORDER: u32> Reclaimer<&'m Machine<SHIFT, ORDER>>
    for Grower<'m, SHIFT, ORDER>
where
    &'m Machine<SHIFT, ORDER>: Host,
{
    fn reclaim(
        &self,
        frames: &Frames<&'m Machine<SHIFT, ORDER>>,
        _: Gfp,
        _: Order,
        _: Nid,
    ) -> usize {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let Some(range) = self.machine.unadded_ranges().get(self.next.get()).copied() else {
            return 0;
        };
        self.next.set(self.next.get() + 1);
        (&self.machine).commit(range.frames).unwrap();
        frames.add_memory(range).unwrap();
        range.frames.pages
    }

    fn wake(&self, _: &Frames<&'m Machine<SHIFT, ORDER>>, _: Nid) {
        self.wakes.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn the_reclaimer_is_asked_as_often_as_the_flags_allow() {
    let m = Builder::<16, 6>::new()
        .cpus(1)
        .memory(0)
        .unadded(Nid(0), Zone::Normal, 8)
        .unadded(Nid(0), Zone::Normal, 64)
        .unadded(Nid(0), Zone::Normal, 64)
        .build();
    let f = frames(&m);
    let grower = Grower {
        machine: &m,
        next: Cell::new(0),
        wakes: AtomicUsize::new(0),
        calls: AtomicUsize::new(0),
    };
    // SAFETY: F3: it outlives `f`, which is not used after it.
    unsafe { f.set_reclaimer(&raw const grower) };
    let calls = || grower.calls.swap(0, Ordering::Relaxed);
    assert!(f.alloc_pages(Gfp::NOWAIT, Order::ZERO, None).is_err());
    assert_eq!((calls(), grower.wakes.load(Ordering::Relaxed)), (0, 1));
    assert!(
        f.alloc_pages(Gfp::KERNEL | Gfp::MEMALLOC, Order::ZERO, None)
            .is_err()
    );
    assert_eq!(calls(), 0, "who frees memory is not sent to free memory");
    assert!(
        f.alloc_pages(Gfp::KERNEL | Gfp::NORETRY, order(6), None)
            .is_err()
    );
    assert_eq!(calls(), 1);
    let block = f.alloc_pages(Gfp::KERNEL, order(6), None).unwrap();
    assert_eq!(calls(), 1);
    let run = f.alloc_run(Gfp::KERNEL, 60, None).unwrap();
    assert_eq!(calls(), 1);
    assert!(f.alloc_run(Gfp::KERNEL, 60, None).is_err());
    assert_eq!(calls(), 1, "no gain, no second round");
    assert_eq!((&&m).counted(Event::Allocstall), 4);
    f.free_run(run);
    f.free_pages(block);
    f.validate().unwrap();
}

#[test]
fn listed_pages_of_other_cpus_are_gathered_before_a_request_fails() {
    let m = Builder::<12, 6>::new().cpus(4).memory(64).build();
    let f = frames(&m);
    for cpu in 0..4 {
        m.set_cpu(flagstone_types::CpuId(cpu));
        let block = f.alloc_pages(GFP, Order::ZERO, None).unwrap();
        f.free_pages(block);
    }
    let all = f.alloc_pages(GFP, order(6), None).unwrap();
    f.free_pages(all);
    f.validate().unwrap();
}

#[test]
fn migrate_types_take_whole_page_blocks_from_each_other() {
    let m = machine::<12, 10>(4 << 10);
    let f = frames(&m);
    let a = f.alloc_pages(GFP, order(4), None).unwrap();
    let b = f
        .alloc_pages(GFP | Gfp::RECLAIMABLE, order(4), None)
        .unwrap();
    let c = f.alloc_pages(GFP | Gfp::MOVABLE, order(4), None).unwrap();
    let blocks = f.report().next().unwrap().page_blocks;
    assert_eq!(
        blocks,
        [2, 4, 2, 0, 0],
        "each of two types took one largest block: two page blocks"
    );
    f.validate().unwrap();
    let far = |x: Pfn, y: Pfn| x.0 >> 10 != y.0 >> 10;
    assert!(far(a.pfn(), b.pfn()) && far(b.pfn(), c.pfn()) && far(a.pfn(), c.pfn()));
    for block in [a, b, c] {
        f.free_pages(block);
    }
    f.validate().unwrap();
    assert!((&&m).counted(Event::PgmigratetypeFallback) >= 2);
}

#[test]
fn atomic_callers_get_a_reserve_of_their_own_and_give_it_up_under_pressure() {
    let m = machine::<12, 4>(4096);
    let f = Frames::new(&m).unwrap();
    f.set_min_free(Some(256));
    let mut held = Vec::new();
    while let Ok(block) = f.alloc_pages(GFP, order(2), None) {
        held.push(block);
    }
    let atomic = f.alloc_pages(Gfp::ATOMIC, order(1), None).unwrap();
    assert_eq!(
        f.report().next().unwrap().high_atomic,
        16,
        "one page block is set apart"
    );
    f.drain_page_lists();
    f.validate().unwrap();
    let free = f.free_count(Nid(0));
    f.free_pages(atomic);
    assert_eq!(
        f.free_count(Nid(0)),
        free + 2,
        "it goes past the page lists"
    );
    f.set_min_free(Some(0));
    while let Ok(block) = f.alloc_pages(Gfp::KERNEL, order(0), None) {
        held.push(block);
    }
    assert_eq!(
        (f.report().next().unwrap().high_atomic, f.free_count(Nid(0))),
        (0, 0)
    );
    for block in held {
        f.free_pages(block);
    }
    f.drain_page_lists();
    f.validate().unwrap();
    assert_eq!(f.free_count(Nid(0)), 4096);
}
