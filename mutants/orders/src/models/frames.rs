//! The page allocator: what is published once, and what is computed by whoever comes last.

use super::Body;
use crate::board::{BLOCK, Board, FIRST, LATE};
use core::ptr::NonNull;
use flagstone_frames::{Frames, Reclaimer};
use flagstone_host::MemRange;
use flagstone_types::{Gfp, Nid, Order, Pfn, PfnRange, Zone};
use flagstone_weak::run;

type Host = &'static Board<12>;

struct Nothing;

impl Reclaimer<Host> for Nothing {
    fn reclaim(&self, _: &Frames<Host>, _: Gfp, _: Order, _: Nid) -> usize {
        0
    }
}

fn on_frames(f: impl FnOnce(Host, &Frames<Host>)) {
    Board::with(|board| {
        let frames = Frames::new(board).expect("memory for the page allocator");
        f(board, &frames);
    });
}

/// One block of the memory that the machine does not have from the beginning.
fn late(n: usize, zone: Zone) -> MemRange {
    MemRange {
        frames: PfnRange::new(Pfn(FIRST + LATE + n * BLOCK), BLOCK),
        nid: Nid(0),
        zone,
    }
}

pub(super) fn reclaimer(seed: u64) {
    on_frames(|_, frames| {
        frames.set_min_free(Some(0));
        let none = || {
            let mut blocks = Vec::new();
            while let Ok(block) =
                frames.alloc_pages(Gfp::KERNEL, Order::new(4).expect("an order"), None)
            {
                blocks.push(block);
            }
            blocks
                .into_iter()
                .for_each(|block| frames.free_pages(block));
        };
        let nothing = NonNull::from(&Nothing);
        let threads: Vec<Body<'_>> = vec![
            // SAFETY: F3: a constant.
            Box::new(|| unsafe { frames.set_reclaimer(nothing.as_ptr()) }),
            Box::new(none),
        ];
        run(seed, threads);
    });
}

pub(super) fn slots(seed: u64) {
    on_frames(|_, frames| {
        let threads: Vec<Body<'_>> = vec![
            Box::new(|| frames.add_memory(late(0, Zone::Movable)).expect("room")),
            Box::new(|| {
                for _ in 0..3 {
                    if let Ok(block) =
                        frames.alloc_pages(Gfp::HIGHUSER_MOVABLE, Order::default(), None)
                    {
                        frames.free_pages(block);
                    }
                }
            }),
        ];
        run(seed, threads);
    });
}

pub(super) fn watermarks(seed: u64) {
    on_frames(|_, frames| {
        let threads: Vec<Body<'_>> = vec![
            Box::new(|| frames.add_memory(late(0, Zone::Normal)).expect("room")),
            Box::new(|| frames.add_memory(late(1, Zone::Movable)).expect("room")),
        ];
        run(seed, threads);
        let marks = || {
            frames
                .report()
                .map(|zone| (zone.min, zone.low, zone.high))
                .collect::<Vec<_>>()
        };
        let left = marks();
        frames.set_min_free(None);
        assert_eq!(left, marks(), "watermarks of an older size");
    });
}
