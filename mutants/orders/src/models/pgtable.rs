//! Page tables: CPUs that enter beside changes, gathers beside each other, and the ends of tables.

use super::Body;
use crate::board::Board;
use flagstone_frames::Frames;
use flagstone_pgtable::format::{Access, Entry, Leaf, Marks, X86_64};
use flagstone_pgtable::shadow::Mapping;
use flagstone_pgtable::{
    NotOwned, Owner, PageTable, Params, Pte, Reach, Taken, UseUnasked, VirtRange,
};
use flagstone_types::{CpuId, Gfp, PhysAddr, VirtAddr};
use flagstone_weak::run;
use std::cell::Cell;

type Host<const SHIFT: u32> = &'static Board<SHIFT>;
type Space<'f, const SHIFT: u32> = PageTable<'f, Host<SHIFT>, X86_64>;

const RW: Access = Access::READ.union(Access::WRITE).union(Access::USER);
const RO: Access = Access::READ.union(Access::USER);
const PAGE: usize = 4096;
const PRESENT: u64 = 1;
const WRITE: u64 = 2;
const ACCESSED: u64 = 0x20;
const DIRTY: u64 = 0x40;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

fn on_space<const SHIFT: u32>(f: impl FnOnce(Host<SHIFT>, Space<'_, SHIFT>)) {
    Board::<SHIFT>::with(|board| {
        let frames = Frames::new(board).expect("memory for the page allocator");
        frames.set_min_free(Some(0));
        let params = Params {
            reach: Reach::Whole,
            gfp: Gfp::NOWAIT,
            ..Params::default()
        };
        let space = PageTable::new(&frames, params).expect("memory for a root");
        f(board, space);
        crate::grace::synchronize();
        frames.validate().expect("in order");
    });
}

fn map<const SHIFT: u32>(space: &Space<'_, SHIFT>, at: usize, pages: usize, marks: Marks) {
    let leaf = Leaf::new(PhysAddr(0x4000_0000), RW, Mapping::Ordinary).mark(marks);
    let mapped = space.shared().map::<Pte>(VirtAddr(at), &leaf, pages);
    assert!(mapped.is_ok(), "memory for tables");
}

/// The entry that the unit finds for an address, and where it is.
fn unit_walk<const SHIFT: u32>(
    board: Host<SHIFT>,
    root: PhysAddr,
    at: usize,
) -> Option<(PhysAddr, u64)> {
    let mut table = root.0;
    for shift in [39, 30, 21, 12] {
        let place = PhysAddr(table + (at >> shift & 511) as u64 * 8);
        let entry = board.unit_load(place);
        if entry & PRESENT == 0 {
            return None;
        }
        if shift == 12 {
            return Some((place, entry));
        }
        table = entry & ADDRESS;
    }
    None
}

pub(super) fn entering(seed: u64) {
    on_space::<12>(|board, space| {
        // What is young and dirty, or of nobody who asks, is changed by stores.
        let marks = if seed % 4 < 2 {
            Marks::YOUNG | Marks::DIRTY
        } else {
            Marks::empty()
        };
        map(&space, PAGE, 1, marks);
        let page = VirtRange::new(PAGE, PAGE);
        let held = Cell::new(0);
        let threads: Vec<Body<'_>> = vec![
            Box::new(|| {
                let ops = space.shared();
                match seed % 5 {
                    0 => {
                        let mut gather = ops.gather(UseUnasked(NotOwned));
                        ops.unmap(page, &mut gather).expect("mapped");
                        gather.finish();
                    }
                    1 => {
                        let mut gather = ops.gather(NotOwned);
                        ops.protect(page, RO, &mut gather).expect("mapped");
                        gather.finish();
                    }
                    2 => drop(ops.unmap_one::<Pte>(VirtAddr(PAGE)).expect("mapped")),
                    3 => ops.protect_one::<Pte>(VirtAddr(PAGE), RO).expect("mapped"),
                    _ => {
                        let mut gather = ops.gather(NotOwned);
                        ops.unmap(page, &mut gather).expect("mapped");
                        gather.finish();
                    }
                }
            }),
            Box::new(|| {
                // SAFETY: the table outlives the run; the thread is that CPU.
                unsafe { space.activate(CpuId(1)) };
                if let Some((_, entry)) = unit_walk(board, space.root(), PAGE) {
                    held.set(entry);
                }
            }),
        ];
        run(seed, threads);
        assert!(
            held.get() & WRITE == 0 || board.was_shot(CpuId(1)),
            "a CPU that entered keeps an old translation"
        );
        // SAFETY: no unit is modelled any more.
        unsafe { space.leave(CpuId(1)) };
    });
}

pub(super) fn quiet(seed: u64) {
    on_space::<12>(|board, space| {
        let pages = 8;
        map(&space, 0, pages, Marks::empty());
        let range = VirtRange::new(0, pages * PAGE);
        let wrote = Cell::new(false);
        let threads: Vec<Body<'_>> = vec![
            Box::new(|| {
                let ops = space.shared();
                let mut gather = ops.gather(NotOwned);
                ops.protect(range, RO, &mut gather).expect("mapped");
                gather.finish();
            }),
            Box::new(|| {
                space.enter(CpuId(1));
                let at = (seed % pages as u64) as usize * PAGE;
                if let Some((place, entry)) = unit_walk(board, space.root(), at)
                    && entry & WRITE != 0
                {
                    wrote.set(board.unit_sets(place, entry, ACCESSED | DIRTY));
                }
            }),
        ];
        run(seed, threads);
        let at = VirtAddr((seed % pages as u64) as usize * PAGE);
        let found = space.shared().lookup(at).expect("in range");
        let Entry::Leaf(leaf) = found.entry else {
            panic!("{found:?}");
        };
        assert!(
            !wrote.get() || leaf.marks().contains(Marks::DIRTY),
            "a dirty bit was lost"
        );
        // SAFETY: no unit is modelled any more.
        unsafe { space.leave(CpuId(1)) };
    });
}

/// Notes whether anything came out.
struct Note<'n>(&'n Cell<bool>);

// SAFETY: O1: nothing is owned.
unsafe impl Owner for Note<'_> {
    fn release(&mut self, _: Taken) {
        self.0.set(true);
    }
}

pub(super) fn gathers(seed: u64) {
    on_space::<12>(|board, space| {
        map(&space, PAGE, 1, Marks::empty());
        // A CPU that runs somewhere and has the translation.
        space.enter(CpuId(2));
        let page = VirtRange::new(PAGE, PAGE);
        let work = || {
            let ops = space.shared();
            let got = Cell::new(false);
            let mut gather = ops.gather(Note(&got));
            ops.unmap(page, &mut gather).expect("in range");
            gather.finish();
            let me = flagstone_weak::current();
            let mine = board.shot.borrow().iter().any(|(by, ..)| *by == me);
            if !got.get() && !mine {
                flagstone_weak::read(&raw const board.marks[1 - me]);
                assert!(board.was_shot(CpuId(2)), "returned before the invalidation");
            }
        };
        let threads: Vec<Body<'_>> = vec![Box::new(work), Box::new(work)];
        run(seed, threads);
        // SAFETY: no unit is modelled any more.
        unsafe { space.leave(CpuId(2)) };
    });
}

const AREA: usize = 2 << 20;

/// Takes the first page of some areas out, and their tables.
fn empty_areas<const SHIFT: u32>(space: &Space<'_, SHIFT>, areas: core::ops::Range<usize>) {
    let ops = space.shared();
    let mut gather = ops.gather(NotOwned);
    for n in areas {
        let page = VirtRange::new(n * AREA, PAGE);
        ops.unmap(page, &mut gather).expect("in range");
        let area = VirtRange::new(n * AREA, AREA);
        ops.free_tables(area, &mut gather).expect("in range");
    }
    gather.finish();
}

pub(super) fn fragments(seed: u64) {
    // Four tables of 4 KiB to a page: all are in use, so that the page goes with the last of them.
    on_space::<14>(|_, space| {
        for n in 0..4 {
            map(&space, n * AREA, 1, Marks::empty());
        }
        let threads: Vec<Body<'_>> = vec![
            Box::new(|| {
                empty_areas(&space, 0..2);
                map(&space, 7 * AREA, 1, Marks::empty());
            }),
            Box::new(|| {
                empty_areas(&space, 2..4);
                for _ in 0..3 {
                    crate::grace::poll();
                }
            }),
            Box::new(|| map(&space, 6 * AREA, 1, Marks::empty())),
        ];
        run(seed, threads);
        empty_areas(&space, 0..8);
    });
}

pub(super) fn ending(seed: u64) {
    on_space::<12>(|_, space| {
        map(&space, 0, 1, Marks::empty());
        empty_areas(&space, 0..1);
        let threads: Vec<Body<'_>> = vec![
            Box::new(|| drop(space)),
            Box::new(|| {
                for _ in 0..4 {
                    crate::grace::poll();
                }
            }),
        ];
        run(seed, threads);
    });
}
