//! Many CPUs at once under seeded schedules: every frame has one owner, and the structure is whole afterwards.

use crate::{Frames, PageBlock, PageKind, PageRun, ReleasePolicy};
use core::cell::{Cell, RefCell};
use flagstone_host::{Backing, Clock, MemRange, Mutex, PhysMem, classes};
use flagstone_seeded::{Builder, Call, Fault, Machine, Rng, Task, TaskCtx, for_each_seed, task};
use flagstone_types::{Gfp, Nanos, Nid, Order, Pfn, PfnRange, Zone};
use std::collections::BTreeMap;
use std::format;
use std::vec::Vec;

enum Owned {
    Block(PageBlock),
    Run(PageRun),
}

impl Owned {
    fn range(&self) -> PfnRange {
        match self {
            Self::Block(block) => block.range(),
            Self::Run(run) => run.range(),
        }
    }
}

struct World<'m, const SHIFT: u32, const ORDER: u32> {
    machine: &'m Machine<SHIFT, ORDER>,
    frames: Frames<&'m Machine<SHIFT, ORDER>>,
    owned: RefCell<BTreeMap<usize, usize>>,
    /// What tasks left behind for those of the next round.
    left: RefCell<Vec<(Owned, u64)>>,
    to_add: RefCell<Vec<MemRange>>,
    failed: Cell<usize>,
}

impl<const SHIFT: u32, const ORDER: u32> World<'_, SHIFT, ORDER> {
    fn own(&self, range: PfnRange) {
        let mut owned = self.owned.borrow_mut();
        if let Some((&before, &pages)) = owned.range(..range.end().0).next_back() {
            assert!(
                before + pages <= range.start.0,
                "{range:?} overlaps {pages} pages at {before:#x}"
            );
        }
        owned.insert(range.start.0, range.pages);
    }

    fn disown(&self, range: PfnRange) {
        assert_eq!(
            self.owned.borrow_mut().remove(&range.start.0),
            Some(range.pages)
        );
    }

    fn word(&self, pfn: Pfn) -> *mut u64 {
        (&self.machine).frame_ptr(pfn).as_ptr().cast()
    }

    fn stamp(&self, range: PfnRange, stamp: u64) {
        for n in 0..range.pages {
            // SAFETY: F1: the task owns the frames.
            unsafe { self.word(range.start.add(n)).write(stamp) };
        }
    }

    fn check(&self, range: PfnRange, stamp: u64) {
        for n in 0..range.pages {
            // SAFETY: F1: the task owns the frames.
            let found = unsafe { self.word(range.start.add(n)).read() };
            assert_eq!(found, stamp, "frame {n} of {range:?}");
        }
    }

    fn free(&self, (owned, stamp): (Owned, u64)) {
        self.check(owned.range(), stamp);
        self.disown(owned.range());
        match owned {
            Owned::Block(block) => self.frames.free_pages(block),
            Owned::Run(run) => self.frames.free_run(run),
        }
    }

    fn work(&self, context: &TaskCtx<'_>, seed: u64, steps: usize) {
        let rng = Rng::new(seed ^ (context.index() as u64 + 1));
        let share = |all: usize| all.div_ceil(2);
        let mut mine: Vec<(Owned, u64)> = {
            let mut left = self.left.borrow_mut();
            let from = left.len() - share(left.len());
            left.split_off(from)
        };
        for step in 0..steps {
            let stamp = (context.index() << 32 | step) as u64 + 1;
            let gfp = rng.pick(&[
                Gfp::KERNEL,
                Gfp::NOWAIT | Gfp::MOVABLE,
                Gfp::ATOMIC,
                Gfp::KERNEL | Gfp::ZERO | Gfp::COMP,
            ]);
            let got = match rng.below(8) {
                0..3 => {
                    let order = Order::new(rng.below(ORDER as usize + 1) as u32).unwrap();
                    self.frames
                        .alloc_pages(gfp, order, None)
                        .ok()
                        .map(|b| (b.zero(), Owned::Block(b)))
                }
                3 => {
                    let pages = 1 + rng.below(3 << ORDER);
                    self.frames
                        .alloc_run(gfp, pages, None)
                        .ok()
                        .map(|r| (r.zero(), Owned::Run(r)))
                }
                4 if !mine.is_empty() => {
                    let at = rng.below(mine.len());
                    self.resize(&mut mine[at], rng.below(20));
                    continue;
                }
                _ if !mine.is_empty() => {
                    self.free(mine.swap_remove(rng.below(mine.len())));
                    continue;
                }
                _ => continue,
            };
            let Some((zero, owned)) = got else {
                self.failed.set(self.failed.get() + 1);
                continue;
            };
            self.own(owned.range());
            if zero {
                self.check(owned.range(), 0);
            }
            self.stamp(owned.range(), stamp);
            context.step();
            mine.push((owned, stamp));
        }
        self.left
            .borrow_mut()
            .extend(mine.drain(..share(mine.len())));
        for owned in mine {
            self.free(owned);
        }
    }

    /// Nobody runs: everything must be right, with what is owned still owned.
    fn check_quiet(&self) {
        self.frames.validate().unwrap();
        for (&start, &pages) in &*self.owned.borrow() {
            let (head, page) = self.frames.head(Pfn(start + pages - 1)).unwrap();
            assert_eq!((head, page.kind()), (Pfn(start), PageKind::Allocated));
        }
    }

    fn free_left(&self) {
        let left = self.left.take();
        left.into_iter().for_each(|owned| self.free(owned));
        assert!(self.owned.borrow().is_empty());
    }

    fn resize(&self, (owned, stamp): &mut (Owned, u64), by: usize) {
        let Owned::Run(run) = owned else { return };
        let old = run.range();
        if by.is_multiple_of(2) && self.frames.grow_run(run, by).is_ok() {
            // The added frames first: nobody else may think that they are his.
            let added = PfnRange::new(old.end(), by);
            self.disown(old);
            self.own(run.range());
            self.stamp(added, *stamp);
        } else if by % 2 == 1 && by < old.pages {
            self.disown(old);
            self.own(PfnRange::new(old.start, by));
            self.frames.shrink_run(run, by).unwrap();
        }
        self.check(run.range(), *stamp);
    }

    fn keep_house(&self, context: &TaskCtx<'_>, seed: u64, steps: usize) {
        let rng = Rng::new(seed);
        for _ in 0..steps {
            match rng.below(6) {
                0 => self.frames.drain_page_lists(),
                1 => {
                    let policy = ReleasePolicy {
                        keep: rng.below(20),
                        interval: Nanos(1),
                        max_calls: 1 + rng.below(4),
                    };
                    self.frames.release_idle((&self.machine).now(), &policy);
                }
                2 => {
                    let range = self.to_add.borrow_mut().pop();
                    if let Some(range) = range {
                        (&self.machine).commit(range.frames).unwrap();
                        self.frames.add_memory(range).unwrap();
                    }
                }
                3 => self
                    .frames
                    .set_min_free(rng.pick(&[Some(0), Some(20), None])),
                4 => drop(format!(
                    "{}{}",
                    self.frames.buddyinfo(),
                    self.frames.zoneinfo()
                )),
                _ => {
                    let _ = self.frames.head(Pfn(rng.below(1 << (ORDER + 6))));
                }
            }
            context.step();
        }
    }
}

fn run<const SHIFT: u32, const ORDER: u32>(
    seed: u64,
    cpus: usize,
    nodes: usize,
    workers: usize,
    pages: usize,
) {
    let mut builder = Builder::<SHIFT, ORDER>::new()
        .seed(seed)
        .cpus(cpus)
        .nodes(nodes)
        .memory(pages);
    for nid in 0..nodes as u16 {
        builder = builder.unadded(Nid(nid), Zone::Normal, 2 << ORDER);
    }
    let machine = builder.build();
    let frames = Frames::new(&machine).unwrap();
    frames.set_min_free(Some(0));
    machine.inject(Call::Release, Fault::Chance(64));
    let world = World {
        machine: &machine,
        frames,
        owned: RefCell::default(),
        left: RefCell::default(),
        to_add: RefCell::new(machine.unadded_ranges()),
        failed: Cell::new(0),
    };
    let world = &world;
    for round in 0..3 {
        let seed = seed ^ round << 32;
        let mut tasks: Vec<Task<'_>> = (0..workers)
            .map(|_| task(move |context| world.work(context, seed, 15)))
            .collect();
        tasks.push(task(move |context| world.keep_house(context, seed, 8)));
        machine.run(tasks);
        world.check_quiet();
    }
    world.free_left();
    world.frames.drain_page_lists();
    world.frames.validate().unwrap();
    for zone in world.frames.report() {
        assert_eq!((zone.free, zone.listed), (zone.managed, 0));
    }
    machine.check_memory().unwrap();
}

#[test]
fn cpus_at_once_never_share_a_frame() {
    for_each_seed(150, |seed| {
        let rng = Rng::new(seed);
        let (cpus, nodes) = (1 + rng.below(8), 1 + rng.below(3));
        let workers = 2 + rng.below(5);
        match rng.below(3) {
            0 => run::<12, 4>(seed, cpus.max(nodes), nodes, workers, 20 << 4),
            1 => run::<14, 3>(seed, cpus.max(nodes), nodes, workers, 20 << 3),
            // Large enough for a reserve for atomic callers.
            _ => run::<12, 2>(seed, cpus.max(nodes), nodes, workers, 500),
        }
    });
}

#[test]
fn many_cpus_and_nodes_work_too() {
    for_each_seed(6, |seed| run::<12, 3>(seed, 64, 8, 24, 20 << 3));
}

#[test]
fn a_fork_waits_for_everybody_and_holds_everything() {
    for_each_seed(60, |seed| {
        let machine = Builder::<12, 3>::new()
            .seed(seed)
            .cpus(3)
            .nodes(2)
            .zone(Nid(0), Zone::Normal, 160)
            .unadded(Nid(1), Zone::Normal, 40)
            .build();
        let frames = Frames::new(&machine).unwrap();
        let world = World {
            machine: &machine,
            frames,
            owned: RefCell::default(),
            left: RefCell::default(),
            to_add: RefCell::new(machine.unadded_ranges()),
            failed: Cell::new(0),
        };
        let (world, gate) = (
            &world,
            &Mutex::<&Machine<12, 3>, classes::Fork, ()>::new(()),
        );
        let mut tasks: Vec<Task<'_>> = (0..3)
            .map(|_| task(move |context| world.work(context, seed, 15)))
            .collect();
        tasks.push(task(move |context| world.keep_house(context, seed, 20)));
        let free = move || [Nid(0), Nid(1)].map(|nid| world.frames.free_count(nid));
        tasks.push(task(move |context| {
            for _ in 0..4 {
                let _gate = gate.lock();
                world.frames.lock_for_fork();
                let before = free();
                (0..30).for_each(|_| context.step());
                assert_eq!(before, free(), "nobody moves meanwhile");
                // SAFETY: F2: this task took them.
                unsafe { world.frames.unlock_after_fork() };
                context.step();
            }
        }));
        machine.run(tasks);
        world.check_quiet();
        world.free_left();
        world.frames.validate().unwrap();
    });
}
