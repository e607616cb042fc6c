//! Runs: exact length, growing and shrinking in place, beyond the largest block.

use super::{GFP, frames, machine, order};
use flagstone_host::{Backing, MemRange, PhysMem};
use flagstone_seeded::Builder;
use flagstone_types::{AllocError, Gfp, Nid, PfnRange, Zone};

#[test]
fn a_run_takes_exactly_what_it_says() {
    let m = machine::<16, 6>(256);
    let f = frames(&m);
    for pages in [1, 2, 3, 5, 8, 9, 31, 33, 63, 64] {
        f.drain_page_lists();
        let free = f.free_count(Nid(0));
        let run = f.alloc_run(GFP, pages, None).unwrap();
        f.drain_page_lists();
        assert_eq!((run.pages(), f.free_count(Nid(0))), (pages, free - pages));
        assert_eq!(f.run_at(run.start()), Some(run.range()));
        f.validate().unwrap();
        f.free_run(run);
        f.validate().unwrap();
    }
}

#[test]
fn runs_beyond_the_largest_block_are_contiguous_in_the_direct_map() {
    let m = machine::<12, 4>(40 << 4);
    let f = frames(&m);
    let run = f.alloc_run(GFP | Gfp::ZERO, 100, None).unwrap();
    let first = (&&m).frame_ptr(run.start()).as_ptr() as usize;
    for n in 0..100 {
        assert_eq!(
            (&&m).frame_ptr(run.start().add(n)).as_ptr() as usize,
            first + n * 4096
        );
    }
    assert_eq!(f.free_count(Nid(0)), 540);
    f.validate().unwrap();
    let second = f.alloc_run(GFP, 540, None).unwrap();
    assert_eq!(f.free_count(Nid(0)), 0);
    f.free_run(run);
    f.free_run(second);
    f.validate().unwrap();
    assert_eq!(
        f.report()
            .next()
            .unwrap()
            .free_blocks
            .iter()
            .map(|o| o[4])
            .sum::<usize>(),
        40
    );
}

#[test]
fn a_run_may_lie_across_blocks_that_are_not_wholly_free() {
    let m = Builder::<16, 6>::new()
        .cpus(1)
        .memory(0)
        .unadded(Nid(0), Zone::Normal, 256)
        .build();
    let f = frames(&m);
    let range = m.unadded_ranges()[0];
    // Frames 20..120: no aligned block of 64 among them, but 100 in a row.
    let frames = PfnRange::new(range.frames.start.add(20), 100);
    (&&m).commit(frames).unwrap();
    f.add_memory(MemRange { frames, ..range }).unwrap();
    let run = f.alloc_run(GFP, 100, None).unwrap();
    assert_eq!(run.range(), frames);
    for n in 0..100 {
        assert_eq!(f.head(frames.start.add(n)).unwrap().0, frames.start);
    }
    f.validate().unwrap();
    f.free_run(run);
    f.validate().unwrap();
}

#[test]
fn a_run_grows_only_into_free_frames() {
    let m = machine::<16, 6>(128);
    let f = frames(&m);
    let mut run = f.alloc_run(GFP, 10, None).unwrap();
    let zero = f.grow_run(&mut run, 30).unwrap();
    assert!(zero && run.pages() == 40);
    f.validate().unwrap();
    assert_eq!(f.grow_run(&mut run, 100), Err(AllocError::OutOfMemory));
    assert_eq!((run.pages(), f.free_count(Nid(0))), (40, 88));
    let rest = 128 - 40;
    if f.grow_run(&mut run, rest).is_ok() {
        assert_eq!(f.free_count(Nid(0)), 0);
    }
    f.validate().unwrap();
    for n in 0..run.pages() {
        assert_eq!(f.head(run.start().add(n)).unwrap().0, run.start());
    }
    f.free_run(run);
    f.validate().unwrap();
    assert_eq!(f.free_count(Nid(0)), 128);
}

#[test]
fn a_run_does_not_grow_over_a_neighbour() {
    let m = machine::<12, 6>(64);
    let f = frames(&m);
    let mut run = f.alloc_run(GFP, 16, None).unwrap();
    let next = f.alloc_run(GFP, 16, None).unwrap();
    let (lower, upper) = if run.start() < next.start() {
        (&mut run, &next)
    } else {
        unreachable!("low addresses first")
    };
    let gap = upper.start().0 - lower.range().end().0;
    assert_eq!(f.grow_run(lower, gap + 1), Err(AllocError::OutOfMemory));
    assert_eq!(lower.pages(), 16);
    f.validate().unwrap();
    f.free_run(next);
    assert!(f.grow_run(&mut run, 48).is_ok());
    f.free_run(run);
    f.validate().unwrap();
}

#[test]
fn a_run_gives_its_end_back() {
    let m = machine::<12, 4>(128);
    let f = frames(&m);
    let mut run = f.alloc_run(GFP, 70, None).unwrap();
    assert_eq!(f.shrink_run(&mut run, 0), Err(AllocError::InvalidArgument));
    assert_eq!(f.shrink_run(&mut run, 71), Err(AllocError::InvalidArgument));
    f.shrink_run(&mut run, 70).unwrap();
    for pages in [69, 48, 33, 17, 3, 1] {
        f.shrink_run(&mut run, pages).unwrap();
        f.validate().unwrap();
        assert_eq!((run.pages(), f.free_count(Nid(0))), (pages, 128 - pages));
    }
    f.free_run(run);
    f.drain_page_lists();
    f.validate().unwrap();
}

#[test]
fn what_interior_frames_were_before_does_not_show() {
    let m = machine::<12, 6>(64);
    let f = frames(&m);
    // Make a head of every frame first.
    let singles: std::vec::Vec<_> = (0..64)
        .map(|_| f.alloc_pages(GFP, order(0), None).unwrap())
        .collect();
    for single in &singles {
        f.page(single.pfn())
            .unwrap()
            .set_kind(crate::PageKind::Slab);
    }
    singles.into_iter().for_each(|single| f.free_pages(single));
    f.drain_page_lists();
    let run = f.alloc_run(GFP, 61, None).unwrap();
    for n in 1..61 {
        assert_eq!(
            f.page(run.start().add(n)).unwrap().kind(),
            crate::PageKind::Tail
        );
    }
    f.validate().unwrap();
    f.free_run(run);
}

#[test]
fn a_run_begins_where_its_alignment_says() {
    let m = machine::<16, 4>(400);
    let f = frames(&m);
    let unaligned = f.alloc_run(GFP, 3, None).unwrap();
    for (pages, align) in [
        (1, 4),
        (5, 3),
        (16, 2),
        (17, 4),
        (40, 3),
        (3, 6),
        (100, 5),
        (9, 0),
    ] {
        let run = f.alloc_run_aligned(GFP, pages, order(align), None).unwrap();
        assert_eq!(run.pages(), pages);
        assert!(
            run.start().is_aligned(order(align)),
            "{pages} pages at {}",
            run.start()
        );
        f.validate().unwrap();
        assert_eq!(
            f.head(run.range().end().add(0))
                .map(|head| head.0 == run.start()),
            Some(false)
        );
        f.free_run(run);
        f.validate().unwrap();
    }
    f.free_run(unaligned);
    f.drain_page_lists();
    assert_eq!(f.free_count(Nid(0)), 400);
}

#[test]
fn an_aligned_run_is_not_made_of_unaligned_pieces() {
    let m = machine::<12, 4>(16);
    let f = frames(&m);
    let first = f.alloc_run(GFP, 1, None).unwrap();
    assert_eq!(
        f.alloc_run_aligned(GFP, 12, order(4), None).unwrap_err(),
        AllocError::OutOfMemory
    );
    let run = f.alloc_run(GFP, 12, None).unwrap();
    f.free_run(run);
    f.free_run(first);
}

#[test]
fn a_run_over_page_blocks_of_different_types_leaves_one_type_behind() {
    let m = machine::<12, 10>(1 << 10);
    let f = frames(&m);
    let mut run = f.alloc_run(GFP, 512, None).unwrap();
    let movable = f.alloc_pages(GFP | Gfp::MOVABLE, order(9), None).unwrap();
    f.free_pages(movable);
    assert_eq!(f.report().next().unwrap().page_blocks[..2], [1, 1]);
    f.grow_run(&mut run, 512).unwrap();
    f.free_run(run);
    f.validate().unwrap();
    assert_eq!(
        f.report()
            .next()
            .unwrap()
            .free_blocks
            .iter()
            .map(|o| o[10])
            .sum::<usize>(),
        1
    );
}
