//! One behaviour each.

use super::{GFP, frames, machine, order};
use crate::{Frames, PageKind};
use flagstone_host::{Backing, Count, Event, MemRange, PhysMem};
use flagstone_seeded::{Builder, Call, Fault, Machine};
use flagstone_types::{AllocError, FreeError, Gfp, Nid, Order, Pfn, PfnRange, Zone};
use std::vec::Vec;

fn blocks_merge_back<const SHIFT: u32>() {
    let m = machine::<SHIFT, 6>(4 << 6);
    let f = frames(&m);
    let before = f.report().next().unwrap().free_blocks;
    let mut blocks = Vec::new();
    for n in 0..200 {
        match f.alloc_pages(GFP, order(n % 4), None) {
            Ok(block) => blocks.push(block),
            Err(error) => assert_eq!(error, AllocError::OutOfMemory),
        }
        f.validate().unwrap();
    }
    assert_eq!(f.free_count(Nid(0)), 0);
    for block in blocks {
        f.free_pages(block);
    }
    f.drain_page_lists();
    f.validate().unwrap();
    assert_eq!(f.free_count(Nid(0)), 4 << 6);
    let sum = |b: &[[usize; 16]; 5]| {
        core::array::from_fn::<usize, 16, _>(|o| b.iter().map(|t| t[o]).sum())
    };
    assert_eq!(sum(&f.report().next().unwrap().free_blocks), sum(&before));
}

#[test]
fn after_freeing_everything_merges_back_whatever_the_page_size() {
    blocks_merge_back::<12>();
    blocks_merge_back::<14>();
    blocks_merge_back::<16>();
}

#[test]
fn arguments_without_meaning_are_refused() {
    let m = machine::<12, 6>(128);
    let f = frames(&m);
    assert_eq!(
        f.alloc_pages(GFP, order(7), None).unwrap_err(),
        AllocError::TooLarge
    );
    assert_eq!(
        f.alloc_pages(GFP, Order::ZERO, Some(Nid(1))).unwrap_err(),
        AllocError::InvalidArgument
    );
    assert_eq!(
        f.alloc_run(GFP, 0, None).unwrap_err(),
        AllocError::InvalidArgument
    );
    assert_eq!(
        f.alloc_run(GFP, usize::MAX >> 12, None).unwrap_err(),
        AllocError::TooLarge
    );
    assert_eq!(f.free_count(Nid(0)), 128);
}

#[test]
fn memory_is_zero_when_that_is_asked_for_or_said() {
    let m = machine::<12, 6>(64);
    let f = frames(&m);
    for round in 0..3u8 {
        let block = f.alloc_pages(GFP | Gfp::ZERO, order(5), None).unwrap();
        assert!(block.zero());
        let host: &Machine<12, 6> = &m;
        let bytes = (&host).frame_ptr(block.pfn());
        for n in 0..32 << 12 {
            // SAFETY: F1: the block is ours.
            unsafe {
                assert_eq!(bytes.add(n).read(), 0, "round {round}");
                bytes.add(n).write(0xee);
            }
        }
        f.free_pages(block);
    }
    let dirty = f.alloc_pages(GFP, order(5), None).unwrap();
    assert!(!dirty.zero(), "it was written before");
    f.free_pages(dirty);
}

#[test]
fn fresh_pages_in_a_page_list_are_still_known_to_be_zero() {
    let m = machine::<12, 10>(1 << 12);
    let f = frames(&m);
    let first = f.alloc_pages(GFP, Order::ZERO, None).unwrap();
    let second = f.alloc_pages(GFP, Order::ZERO, None).unwrap();
    assert!(first.zero() && second.zero());
    f.free_pages(second);
    let again = f.alloc_pages(GFP, Order::ZERO, None).unwrap();
    assert!(!again.zero(), "it was handed out before");
    f.free_pages(again);
    f.free_pages(first);
    f.drain_page_lists();
    assert_eq!(
        f.touched_free_count(),
        2,
        "what was listed only was not touched"
    );
    f.validate().unwrap();
}

#[test]
fn the_tails_of_every_block_lead_to_its_head() {
    let m = machine::<12, 6>(256);
    let f = frames(&m);
    let compound = f.alloc_pages(GFP | Gfp::COMP, order(5), None).unwrap();
    let plain = f.alloc_pages(GFP, order(4), None).unwrap();
    let run = f.alloc_run(GFP, 100, None).unwrap();
    for range in [compound.range(), plain.range(), run.range()] {
        f.page(range.start).unwrap().set_kind(PageKind::Large);
        for n in 0..range.pages {
            let (head, page) = f.head(range.start.add(n)).unwrap();
            assert_eq!((head, page.kind()), (range.start, PageKind::Large));
            let address = (&&m).frame_ptr(range.start.add(n)).as_ptr() as usize + 17;
            assert_eq!(f.page_of_address(address).unwrap().0, range.start);
        }
    }
    f.free_pages(compound);
    f.free_pages(plain);
    f.free_run(run);
    f.validate().unwrap();
}

#[test]
fn a_wrong_free_is_told_apart() {
    let m = machine::<12, 6>(128);
    let f = frames(&m);
    let block = f.alloc_pages(GFP, order(4), None).unwrap();
    assert_eq!(f.check_block(block.pfn(), order(4)), Ok(()));
    assert_eq!(
        f.check_block(block.pfn(), order(3)),
        Err(FreeError::NotAllocated)
    );
    assert_eq!(
        f.check_block(block.pfn().add(3), order(0)),
        Err(FreeError::Interior { offset: 3 << 12 })
    );
    assert_eq!(
        f.check_block(Pfn(1 << 40), order(0)),
        Err(FreeError::Foreign)
    );
    let pfn = block.pfn();
    f.free_pages(block);
    assert_eq!(f.check_block(pfn, order(4)), Err(FreeError::AlreadyFree));
    assert_eq!(
        f.check_block(pfn.add(1), order(0)),
        Err(FreeError::AlreadyFree)
    );
}

#[test]
fn pieces_of_any_length_join_when_they_are_neighbours() {
    let m = Builder::<16, 6>::new()
        .cpus(1)
        .memory(0)
        .unadded(Nid(0), Zone::Normal, 256)
        .build();
    let f = frames(&m);
    let range = m.unadded_ranges()[0];
    let mut at = range.frames.start;
    for pages in [1, 30, 3, 64, 7, 100, 51] {
        let frames = PfnRange::new(at, pages);
        (&&m).commit(frames).unwrap();
        f.add_memory(MemRange { frames, ..range }).unwrap();
        f.validate().unwrap();
        at = frames.end();
    }
    let zone = f.report().next().unwrap();
    assert_eq!(
        zone.free_blocks
            .iter()
            .map(|orders| orders[6])
            .sum::<usize>(),
        4
    );
    assert_eq!((zone.free, zone.managed, zone.spanned), (256, 256, 256));
}

#[test]
fn memory_that_can_not_be_added_changes_nothing() {
    let m = Builder::<12, 6>::new()
        .cpus(1)
        .memory(64)
        .unadded(Nid(0), Zone::Normal, 64)
        .build();
    let f = frames(&m);
    let range = m.unadded_ranges()[0];
    let add = |start: Pfn, pages| {
        f.add_memory(MemRange {
            frames: PfnRange::new(start, pages),
            ..range
        })
    };
    (&&m).commit(range.frames).unwrap();
    add(range.frames.start.add(10), 10).unwrap();
    let text = std::format!("{}{}", f.buddyinfo(), f.zoneinfo());
    assert_eq!(add(range.frames.start, 0), Err(AllocError::InvalidArgument));
    assert_eq!(add(range.frames.start, 64), Err(AllocError::Exists));
    assert_eq!(add(range.frames.start.add(19), 1), Err(AllocError::Exists));
    assert_eq!(add(Pfn(1 << 40), 64), Err(AllocError::InvalidArgument));
    assert_eq!(add(Pfn(usize::MAX), 64), Err(AllocError::InvalidArgument));
    let wrong_node = MemRange {
        nid: Nid(9),
        ..range
    };
    assert_eq!(f.add_memory(wrong_node), Err(AllocError::InvalidArgument));
    let wrong_zone = MemRange {
        zone: Zone::Movable,
        frames: PfnRange::new(range.frames.start, 4),
        ..range
    };
    assert_eq!(f.add_memory(wrong_zone), Err(AllocError::InvalidArgument));
    f.validate().unwrap();
    assert_eq!(text, std::format!("{}{}", f.buddyinfo(), f.zoneinfo()));
    add(range.frames.start, 10).unwrap();
    add(range.frames.start.add(20), 44).unwrap();
    f.validate().unwrap();
}

#[test]
fn no_room_for_the_structures_is_an_error() {
    let m = machine::<12, 6>(64);
    for call in 1..=3 {
        m.inject(Call::BootAlloc, Fault::Nth(call));
        assert_eq!(Frames::new(&m).err(), Some(AllocError::OutOfMemory));
    }
}

#[test]
fn events_are_counted_when_page_lists_are_drained() {
    let m = machine::<12, 6>(256);
    let f = frames(&m);
    let blocks: Vec<_> = (0..10)
        .map(|_| f.alloc_pages(GFP, order(1), None).unwrap())
        .collect();
    blocks.into_iter().for_each(|block| f.free_pages(block));
    let run = f.alloc_run(GFP, 21, None).unwrap();
    f.free_run(run);
    f.drain_page_lists();
    let counted = |event| (&&m).counted(event);
    assert_eq!(counted(Event::PgallocNormal), 20 + 21);
    assert_eq!(counted(Event::Pgfree), 20 + 21);
    assert_eq!((counted(Event::NumaHit), counted(Event::NumaMiss)), (11, 0));
}

#[test]
fn a_forked_child_can_allocate_at_once() {
    let m = machine::<12, 6>(64);
    let f = frames(&m);
    let gate = flagstone_host::Mutex::<&Machine<12, 6>, flagstone_host::classes::Fork, ()>::new(());
    {
        let _held = gate.lock();
        f.lock_for_fork();
        // SAFETY: F2: just taken.
        unsafe { f.unlock_after_fork() };
    }
    let block = f.alloc_pages(GFP, Order::ZERO, None).unwrap();
    f.free_pages(block);
}
