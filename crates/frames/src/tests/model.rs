//! Random operations against a model that knows nothing of blocks: a map of owned intervals.
//!
//! The model says which frames are free, so it also says which requests must succeed: a block if an aligned free
//! interval of its size is there, a run beyond the largest block if any free interval is long enough.

use crate::{Frames, PageBlock, PageRun, ReleasePolicy};
use flagstone_host::{Backing, MemRange, PhysMem};
use flagstone_seeded::{Builder, Machine};
use flagstone_types::{AllocError, CpuId, Gfp, Nanos, Nid, Order, Pfn, PfnRange, Zone};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::vec::Vec;

#[derive(Clone, Debug)]
enum Op {
    Block {
        order: u32,
        gfp: u8,
        nid: Option<u16>,
    },
    Run {
        pages: usize,
        gfp: u8,
        nid: Option<u16>,
    },
    Free {
        which: usize,
    },
    Grow {
        which: usize,
        extra: usize,
    },
    Shrink {
        which: usize,
        part: u8,
    },
    Drain,
    Release {
        keep: usize,
        calls: usize,
    },
    Cpu(u32),
    Add,
}

fn op() -> impl Strategy<Value = Op> {
    let nid = || prop_oneof![3 => Just(None), 1 => (0u16..2).prop_map(Some)];
    let pages = prop_oneof![4 => 1usize..20, 1 => 1usize..150];
    prop_oneof![
        6 => (0u32..=5, any::<u8>(), nid()).prop_map(|(order, gfp, nid)| Op::Block { order, gfp, nid }),
        4 => (pages, any::<u8>(), nid()).prop_map(|(pages, gfp, nid)| Op::Run { pages, gfp, nid }),
        7 => any::<usize>().prop_map(|which| Op::Free { which }),
        2 => (any::<usize>(), 0usize..40).prop_map(|(which, extra)| Op::Grow { which, extra }),
        2 => (any::<usize>(), any::<u8>()).prop_map(|(which, part)| Op::Shrink { which, part }),
        1 => Just(Op::Drain),
        1 => (0usize..100, 1usize..4).prop_map(|(keep, calls)| Op::Release { keep, calls }),
        1 => (0u32..3).prop_map(Op::Cpu),
        1 => Just(Op::Add),
    ]
}

fn gfp(bits: u8) -> Gfp {
    let types = [Gfp::empty(), Gfp::MOVABLE, Gfp::RECLAIMABLE];
    let mut gfp = Gfp::KERNEL | types[usize::from(bits) % 3];
    for (bit, flag) in [(8, Gfp::ZERO), (16, Gfp::COMP), (32, Gfp::THISNODE)] {
        if bits & bit != 0 {
            gfp |= flag;
        }
    }
    gfp
}

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

/// What is there (contiguous memory of one node, by start) and what is owned.
#[derive(Default)]
struct Model {
    memory: BTreeMap<usize, (usize, Nid)>,
    owned: BTreeMap<usize, usize>,
}

impl Model {
    fn add(&mut self, range: MemRange) {
        let (mut start, mut end) = (range.frames.start.0, range.frames.end().0);
        if let Some((&before, &(pages, nid))) = self.memory.range(..start).next_back()
            && before + pages == start
            && nid == range.nid
        {
            start = before;
        }
        if let Some(&(pages, nid)) = self.memory.get(&end)
            && nid == range.nid
        {
            self.memory.remove(&end);
            end += pages;
        }
        self.memory.insert(start, (end - start, range.nid));
    }

    fn own(&mut self, range: PfnRange) {
        let (start, end) = (range.start.0, range.end().0);
        if let Some((&before, &pages)) = self.owned.range(..end).next_back() {
            assert!(
                before + pages <= start,
                "{range:?} overlaps {pages} pages at {before:#x}"
            );
        }
        let inside = self.memory.range(..=start).next_back();
        assert!(
            inside.is_some_and(|(&at, &(pages, _))| end <= at + pages),
            "{range:?} is not memory"
        );
        self.owned.insert(start, range.pages);
    }

    fn disown(&mut self, range: PfnRange) {
        assert_eq!(self.owned.remove(&range.start.0), Some(range.pages));
    }

    /// Free intervals: start, pages, node.
    fn free(&self) -> Vec<(usize, usize, Nid)> {
        let mut free = Vec::new();
        for (&start, &(pages, nid)) in &self.memory {
            let mut at = start;
            for (&owned, &owned_pages) in self.owned.range(start..start + pages) {
                free.push((at, owned - at, nid));
                at = owned + owned_pages;
            }
            free.push((at, start + pages - at, nid));
        }
        free.retain(|interval| interval.1 > 0);
        free
    }

    fn has(&self, node: Option<Nid>, fits: impl Fn(usize, usize) -> bool) -> bool {
        self.free()
            .iter()
            .any(|&(start, pages, nid)| node.is_none_or(|n| n == nid) && fits(start, pages))
    }

    /// Blocks by order when nothing is owned and everything has merged.
    fn largest_blocks(&self, max_order: u32) -> Vec<usize> {
        let mut blocks = std::vec![0; max_order as usize + 1];
        for (&start, &(pages, _)) in &self.memory {
            let (mut at, mut left) = (start, pages);
            while left > 0 {
                let mut order = max_order;
                while at % (1 << order) != 0 || left < 1 << order {
                    order -= 1;
                }
                blocks[order as usize] += 1;
                at += 1 << order;
                left -= 1 << order;
            }
        }
        blocks
    }
}

struct World<'m, const SHIFT: u32, const ORDER: u32> {
    machine: &'m Machine<SHIFT, ORDER>,
    frames: Frames<&'m Machine<SHIFT, ORDER>>,
    model: Model,
    owned: Vec<(Owned, u64)>,
    to_add: Vec<MemRange>,
    stamp: u64,
    seconds: u64,
}

impl<'m, const SHIFT: u32, const ORDER: u32> World<'m, SHIFT, ORDER> {
    fn new(machine: &'m Machine<SHIFT, ORDER>) -> Self {
        let frames = super::frames(machine);
        let mut model = Model::default();
        flagstone_host::PageMap::boot_ranges(&machine, &mut |range| model.add(range));
        let mut to_add = Vec::new();
        for range in machine.unadded_ranges() {
            let mut at = range.frames.start;
            for pages in [3, 17, 60, range.frames.pages - 80] {
                to_add.push(MemRange {
                    frames: PfnRange::new(at, pages),
                    ..range
                });
                at = at.add(pages);
            }
        }
        Self {
            machine,
            frames,
            model,
            owned: Vec::new(),
            to_add,
            stamp: 0,
            seconds: 0,
        }
    }

    fn word(&self, pfn: Pfn, last: bool) -> *mut u64 {
        let frame = (&self.machine).frame_ptr(pfn).as_ptr();
        // SAFETY: F1: only called for frames that the test owns; the offset is within the frame.
        unsafe { frame.add(if last { (1 << SHIFT) - 8 } else { 0 }).cast() }
    }

    fn stamp(&self, range: PfnRange, stamp: u64) {
        for n in 0..range.pages {
            for last in [false, true] {
                // SAFETY: F1: the frames are owned by the test.
                unsafe { self.word(range.start.add(n), last).write(stamp) };
            }
        }
    }

    fn check(&self, range: PfnRange, stamp: u64) {
        for n in 0..range.pages {
            for last in [false, true] {
                // SAFETY: F1: the frames are owned by the test.
                let found = unsafe { self.word(range.start.add(n), last).read() };
                assert_eq!(
                    found,
                    stamp,
                    "contents of frame {} changed",
                    range.start.add(n)
                );
            }
        }
    }

    fn take(&mut self, owned: Owned, zero: bool, asked_zero: bool) {
        let range = owned.range();
        self.model.own(range);
        assert!(zero || !asked_zero);
        if zero {
            self.check(range, 0);
        }
        self.stamp += 1;
        self.stamp(range, self.stamp);
        self.owned.push((owned, self.stamp));
    }

    fn pick(&self, which: usize) -> Option<usize> {
        (!self.owned.is_empty()).then(|| which % self.owned.len())
    }

    fn free(&mut self, at: usize) {
        let (owned, stamp) = self.owned.swap_remove(at);
        self.check(owned.range(), stamp);
        self.model.disown(owned.range());
        match owned {
            Owned::Block(block) => self.frames.free_pages(block),
            Owned::Run(run) => self.frames.free_run(run),
        }
    }

    /// The node that alone may serve a request, if one is named.
    fn only(gfp: Gfp, nid: Option<Nid>) -> Option<Nid> {
        // Without a name the node is that of the CPU, which the model does not know.
        if gfp.contains(Gfp::THISNODE) {
            nid
        } else {
            None
        }
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Block {
                order,
                gfp: bits,
                nid,
            } => {
                let (gfp, nid) = (gfp(bits), nid.map(Nid));
                let order = order.min(ORDER);
                match self
                    .frames
                    .alloc_pages(gfp, Order::new(order).unwrap(), nid)
                {
                    Ok(block) => {
                        assert!(block.pfn().0.is_multiple_of(1 << order));
                        assert!(
                            nid.is_none()
                                || !gfp.contains(Gfp::THISNODE)
                                || self.is_on(block.pfn(), nid)
                        );
                        let zero = block.zero();
                        self.take(Owned::Block(block), zero, gfp.contains(Gfp::ZERO));
                    }
                    Err(error) => {
                        assert_eq!(error, AllocError::OutOfMemory);
                        let fits = |start: usize, pages| {
                            start.next_multiple_of(1 << order) + (1 << order) <= start + pages
                        };
                        if nid.is_some() || !gfp.contains(Gfp::THISNODE) {
                            assert!(
                                !self.model.has(Self::only(gfp, nid), fits),
                                "order {order} would fit"
                            );
                        }
                    }
                }
            }
            Op::Run {
                pages,
                gfp: bits,
                nid,
            } => {
                let (gfp, nid) = (gfp(bits), nid.map(Nid));
                match self.frames.alloc_run(gfp, pages, nid) {
                    Ok(run) => {
                        let zero = run.zero();
                        self.take(Owned::Run(run), zero, gfp.contains(Gfp::ZERO));
                    }
                    Err(error) => {
                        assert_eq!(error, AllocError::OutOfMemory);
                        let fits = |_, free| free >= pages;
                        if pages > 1 << ORDER && (nid.is_some() || !gfp.contains(Gfp::THISNODE)) {
                            assert!(
                                !self.model.has(Self::only(gfp, nid), fits),
                                "{pages} pages would fit"
                            );
                        }
                    }
                }
            }
            Op::Free { which } => {
                if let Some(at) = self.pick(which) {
                    self.free(at);
                }
            }
            Op::Grow { which, extra } => self.grow(which, extra),
            Op::Shrink { which, part } => {
                let Some(at) = self.pick(which) else { return };
                let (Owned::Run(run), stamp) = &mut self.owned[at] else {
                    return;
                };
                let (old, stamp) = (run.range(), *stamp);
                let pages = 1 + (old.pages - 1) * usize::from(part) / 255;
                self.frames.shrink_run(run, pages).unwrap();
                let new = run.range();
                self.model.disown(old);
                self.model.own(new);
                self.check(new, stamp);
            }
            Op::Drain => self.frames.drain_page_lists(),
            Op::Release { keep, calls } => {
                self.seconds += 1;
                let policy = ReleasePolicy {
                    keep,
                    interval: Nanos(1),
                    max_calls: calls,
                };
                let before = self.frames.touched_free_count();
                let released = self.frames.release_idle(Nanos(self.seconds), &policy);
                assert!(released.calls <= calls);
                assert_eq!(self.frames.touched_free_count(), before - released.pages);
                assert!(released.pages == 0 || before - released.pages >= keep);
            }
            Op::Cpu(cpu) => self.machine.set_cpu(CpuId(cpu)),
            Op::Add => {
                let Some(range) = self.to_add.pop() else {
                    return;
                };
                (&self.machine).commit(range.frames).unwrap();
                self.frames.add_memory(range).unwrap();
                assert_eq!(self.frames.add_memory(range), Err(AllocError::Exists));
                self.model.add(range);
            }
        }
    }

    fn is_on(&self, pfn: Pfn, nid: Option<Nid>) -> bool {
        self.frames.page(pfn).map(crate::Page::nid) == nid
    }

    fn grow(&mut self, which: usize, extra: usize) {
        let Some(at) = self.pick(which) else { return };
        let (Owned::Run(run), stamp) = &mut self.owned[at] else {
            return;
        };
        let (old, stamp) = (run.range(), *stamp);
        let result = self.frames.grow_run(run, extra);
        let new = run.range();
        match result {
            Ok(zero) => {
                assert_eq!(new, PfnRange::new(old.start, old.pages + extra));
                self.model.disown(old);
                self.model.own(new);
                let added = PfnRange::new(old.end(), extra);
                if zero {
                    self.check(added, 0);
                }
                self.stamp(added, stamp);
                self.check(new, stamp);
            }
            Err(error) => {
                assert_eq!((error, new), (AllocError::OutOfMemory, old));
                self.frames.drain_page_lists();
                let fits = |start, pages| start == old.end().0 && pages >= extra;
                assert!(!self.model.has(None, fits) || self.grown_after_drain(at, extra));
            }
        }
    }

    /// What follows may have been in page lists; then it is not any more.
    fn grown_after_drain(&mut self, at: usize, extra: usize) -> bool {
        let (Owned::Run(run), stamp) = &mut self.owned[at] else {
            return false;
        };
        let (old, stamp) = (run.range(), *stamp);
        if self.frames.grow_run(run, extra).is_err() {
            return false;
        }
        let new = run.range();
        self.model.disown(old);
        self.model.own(new);
        self.stamp(new, stamp);
        true
    }

    fn check_heads(&self) {
        for (owned, _) in &self.owned {
            let range = owned.range();
            for n in 0..range.pages {
                let head = self.frames.head(range.start.add(n)).map(|(pfn, _)| pfn);
                assert_eq!(head, Some(range.start), "head of frame {n} of {range:?}");
            }
        }
    }

    fn finish(mut self) {
        self.check_heads();
        while !self.owned.is_empty() {
            self.free(0);
        }
        self.frames.drain_page_lists();
        self.frames.validate().unwrap();
        let mut blocks = std::vec![0; ORDER as usize + 1];
        for zone in self.frames.report() {
            assert_eq!((zone.free, zone.listed), (zone.managed, 0));
            for orders in zone.free_blocks {
                for (sum, n) in blocks.iter_mut().zip(orders) {
                    *sum += n;
                }
            }
        }
        assert_eq!(blocks, self.model.largest_blocks(ORDER));
        self.machine.check_memory().unwrap();
    }
}

fn play<const SHIFT: u32, const ORDER: u32>(ops: &[Op]) {
    let machine = Builder::<SHIFT, ORDER>::new()
        .cpus(3)
        .nodes(2)
        .zone(Nid(0), Zone::Normal, 107)
        .zone(Nid(1), Zone::Normal, 64)
        .unadded(Nid(0), Zone::Normal, 150)
        .build();
    let mut world = World::new(&machine);
    for op in ops {
        world.apply(op);
        world.frames.validate().unwrap();
    }
    world.finish();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_frame_has_one_owner_and_keeps_its_contents_4k(ops in prop::collection::vec(op(), 1..120)) {
        play::<12, 4>(&ops);
    }

    #[test]
    fn every_frame_has_one_owner_and_keeps_its_contents_16k(ops in prop::collection::vec(op(), 1..120)) {
        play::<14, 5>(&ops);
    }

    #[test]
    fn every_frame_has_one_owner_and_keeps_its_contents_64k(ops in prop::collection::vec(op(), 1..120)) {
        play::<16, 3>(&ops);
    }

    #[test]
    fn page_blocks_smaller_than_the_largest_block_keep_their_types(ops in prop::collection::vec(op(), 1..120)) {
        play::<12, 10>(&ops);
    }
}
