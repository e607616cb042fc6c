//! Page allocator and object caches on simulated machines: up to 64 CPUs and 8 nodes, pages of 4, 16 and 64 KiB, tasks that are preempted and moved at
//! every host call, in slow paths too. Whoever gets memory writes a pattern of his own into it and finds it when he gives it back; a map of intervals that
//! knows nothing of the code under test says that nothing is handed out twice; at every quiet point both are validated.
//!
//! The long form: `FLAGSTONE_SEEDS=20000 cargo test --release -p flagstone-sim --test memory -- --nocapture`.

use core::cell::{Cell, RefCell};
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use flagstone_frames::{Frames, PageBlock, PageRun};
use flagstone_host::{Cpus, Grace, PhysMem};
use flagstone_seeded::{Call, Fault};
use flagstone_sim::{Arch, Machine, Rng, TaskCtx, for_each_seed, task};
use flagstone_slab::{
    ArrayTuning, BadFree, Cache, CacheHandle, CacheParams, Caches, KERNEL_CLASSES, LayoutPolicy,
    Placement, Policy,
};
use flagstone_types::{CpuId, Gfp, Nid, Order, PfnRange, Zone};
use std::collections::BTreeMap;

const ORDER: u32 = 5;
type Host<'m, const SHIFT: u32> = &'m Machine<SHIFT, ORDER>;

/// Memory that a task has.
enum Mine {
    Object(NonNull<u8>, usize),
    Kmalloc(NonNull<u8>, usize),
    Block(PageBlock),
    Run(PageRun),
}

/// Who has which bytes.
#[derive(Default)]
struct Ledger {
    owned: RefCell<BTreeMap<usize, usize>>,
    serial: Cell<u64>,
}

impl Ledger {
    fn take(&self, start: NonNull<u8>, len: usize) -> u64 {
        let start = start.as_ptr().addr();
        let mut owned = self.owned.borrow_mut();
        if let Some((&other, &length)) = owned.range(..start + len).next_back() {
            assert!(
                other + length <= start,
                "{len} bytes at {start:#x} overlap {length} bytes at {other:#x}"
            );
        }
        owned.insert(start, len);
        self.serial.set(self.serial.get() + 1);
        self.serial.get() << 8
    }

    fn give(&self, start: NonNull<u8>, len: usize) {
        let length = self.owned.borrow_mut().remove(&start.as_ptr().addr());
        assert_eq!(length, Some(len), "{start:p} is not owned");
    }
}

/// Where a pattern of the owner stands in `len` bytes: at both ends and here and there.
fn places(len: usize) -> impl Iterator<Item = usize> {
    let last = len.saturating_sub(8) & !7;
    (0..len / 8 * 8)
        .step_by(1016)
        .chain([last])
        .take_while(move |_| len >= 8)
}

fn fill(start: NonNull<u8>, len: usize, stamp: u64) {
    for at in places(len) {
        // SAFETY: the task has these bytes.
        unsafe {
            start
                .add(at)
                .cast::<u64>()
                .write_unaligned(stamp | at as u64 & 0xff)
        };
    }
}

fn check(start: NonNull<u8>, len: usize, stamp: u64) {
    for at in places(len) {
        // SAFETY: as above.
        let found = unsafe { start.add(at).cast::<u64>().read_unaligned() };
        assert_eq!(
            found,
            stamp | at as u64 & 0xff,
            "byte {at} of {len} at {start:p}"
        );
    }
}

fn bad_free(bad: &BadFree<'_>) {
    panic!("a good free was refused: {:?} of {}", bad.error, bad.cache);
}

fn policy(tiny: bool) -> Policy {
    let small: fn(usize) -> ArrayTuning = |_| ArrayTuning {
        capacity: 5,
        limit: 3,
        batch: 2,
        shared_capacity: 7,
        shared_limit: 4,
    };
    let usual: fn(usize) -> ArrayTuning = |size| ArrayTuning::linux(size, 4096, 8);
    Policy {
        layout: LayoutPolicy {
            min_order: 0,
            max_order: 1,
            min_objects: 1,
            cache_line: 64,
            in_record: tiny,
            in_object: true,
            zeroed: false,
            tail: 0,
        },
        arrays: if tiny { small } else { usual },
        alien_limit: if tiny { 3 } else { 12 },
        adaptive: false,
        bad_free,
        debug: flagstone_slab::DebugPolicy::NONE,
    }
}

/// What all tasks share.
struct World<'c, 'm, const SHIFT: u32> {
    caches: &'c Caches<Host<'m, SHIFT>>,
    made: Vec<(CacheHandle<'c, Host<'m, SHIFT>>, usize)>,
    ledger: Ledger,
    /// What any task may give back, by whoever it was got; with its stamp.
    pool: RefCell<Vec<(Mine, u64)>>,
    cpus: usize,
    nodes: usize,
}

impl<'m, const SHIFT: u32> World<'_, 'm, SHIFT> {
    fn frames(&self) -> &Frames<Host<'m, SHIFT>> {
        self.caches.frames()
    }

    fn bytes(&self, mine: &Mine) -> (NonNull<u8>, usize) {
        let frames = |range: PfnRange| {
            let start = self.caches.host().frame_ptr(range.start);
            (start, range.pages << SHIFT)
        };
        match mine {
            Mine::Object(at, len) | Mine::Kmalloc(at, len) => (*at, *len),
            Mine::Block(block) => frames(block.range()),
            Mine::Run(run) => frames(run.range()),
        }
    }

    fn got(&self, mine: Mine) {
        let (start, len) = self.bytes(&mine);
        let stamp = self.ledger.take(start, len);
        fill(start, len, stamp);
        self.pool.borrow_mut().push((mine, stamp));
    }

    /// Gives something back that was in the pool.
    fn give(&self, rng: &Rng) -> bool {
        let taken = {
            let mut pool = self.pool.borrow_mut();
            let which = rng.below(pool.len());
            (!pool.is_empty()).then(|| pool.swap_remove(which))
        };
        let Some((mine, stamp)) = taken else {
            return false;
        };
        let (start, len) = self.bytes(&mine);
        check(start, len, stamp);
        self.ledger.give(start, len);
        match mine {
            // SAFETY: it came from this cache, the only one of its size, and nobody else has it.
            Mine::Object(at, len) => unsafe { self.caches.free(self.cache_of(len), at) },
            // SAFETY: it came from `kmalloc`, and nobody else has it.
            Mine::Kmalloc(at, _) => unsafe { self.caches.kfree(at) },
            Mine::Block(block) => self.frames().free_pages(block),
            Mine::Run(run) => self.frames().free_run(run),
        }
        true
    }

    fn cache_of(&self, size: usize) -> &Cache<Host<'m, SHIFT>> {
        let made = self.made.iter().find(|(_, of)| *of == size);
        &made.expect("a cache of this size").0
    }

    fn object(&self, rng: &Rng) {
        let (cache, size) = &self.made[rng.below(self.made.len())];
        let got = match rng.below(4) {
            0 => {
                let nid = Nid(rng.below(self.nodes) as u16);
                let placement = Placement::Preferred(nid);
                self.caches.alloc_placed(cache, Gfp::KERNEL, &placement)
            }
            1 => {
                let mut into = [MaybeUninit::uninit(); 7];
                let n = 1 + rng.below(7);
                if let Ok(objects) = self.caches.alloc_bulk(cache, Gfp::NOWAIT, &mut into[..n]) {
                    objects
                        .iter()
                        .for_each(|at| self.got(Mine::Object(*at, *size)));
                }
                return;
            }
            _ => self.caches.alloc(cache, Gfp::KERNEL),
        };
        if let Ok(at) = got {
            self.got(Mine::Object(at, *size));
        }
    }

    fn work(&self, ctx: &TaskCtx<'_>, rng: &Rng) {
        let (frames, caches) = (self.frames(), self.caches);
        match rng.below(40) {
            0..=9 => self.object(rng),
            10..=12 => {
                let size = 1 + rng.below(3000);
                if let Ok(at) = caches.kmalloc(size, Gfp::KERNEL) {
                    self.got(Mine::Kmalloc(at, size));
                }
            }
            13..=16 => {
                let order = Order::new(rng.below(ORDER as usize) as u32).expect("a small order");
                let gfp = rng.pick(&[Gfp::KERNEL, Gfp::ATOMIC, Gfp::NOWAIT | Gfp::MOVABLE]);
                if let Ok(block) = frames.alloc_pages(gfp, order, None) {
                    self.got(Mine::Block(block));
                }
            }
            17 => {
                if let Ok(run) = frames.alloc_run(Gfp::KERNEL, 1 + rng.below(20), None) {
                    self.got(Mine::Run(run));
                }
            }
            18..=33 => {
                self.give(rng);
            }
            34 => {
                caches.shrink(&self.made[rng.below(self.made.len())].0);
            }
            35 => {
                caches.reap(rng.chance(128));
            }
            36 => frames.drain_page_lists(),
            37 => {
                frames.release_now(rng.below(40));
            }
            38 => {
                caches.drain_cpu(CpuId(rng.below(self.cpus) as u32));
            }
            _ => {
                ctx.migrate(CpuId(rng.below(self.cpus) as u32));
                caches.host().poll();
            }
        }
    }

    /// Nobody runs: everything is whole, and what is owned is in nobody else's hands.
    fn check_quiet(&self) {
        if let Err(wrong) = self.caches.validate() {
            panic!("{wrong}");
        }
        if let Err(wrong) = self.frames().validate() {
            panic!("{wrong}");
        }
        let memory = self.caches.host().inner().check_memory();
        memory.expect("memory is as the books say");
        for (mine, stamp) in self.pool.borrow().iter() {
            let (start, len) = self.bytes(mine);
            check(start, len, *stamp);
            if let Mine::Block(block) = mine {
                let head = self.frames().head(block.pfn());
                assert_eq!(head.map(|(pfn, _)| pfn), Some(block.pfn()));
            }
        }
    }
}

/// Pages that are in use.
fn used<const SHIFT: u32>(frames: &Frames<Host<'_, SHIFT>>) -> usize {
    frames.drain_page_lists();
    let nodes = frames.host().nodes();
    (0..nodes as u16)
        .map(|nid| frames.managed_count(Nid(nid)) - frames.free_count(Nid(nid)))
        .sum()
}

fn run<const SHIFT: u32>(arch: Arch, seed: u64) {
    let rng = Rng::new(seed ^ 0x6d65_6d6f_7279);
    let cpus = rng.pick(&[1, 2, 3, 4, 8, 16, 64]);
    let nodes = rng.pick(&[1, 1, 2, 3, 4, 8]).min(cpus);
    let mut builder = Machine::<SHIFT, ORDER>::builder(arch)
        .seed(seed)
        .cpus(cpus)
        .nodes(nodes)
        .pinned(rng.chance(128))
        .memory((rng.pick(&[4, 8, 16]) + cpus.div_ceil(8)) << ORDER);
    if rng.chance(64) {
        builder =
            builder
                .zone(Nid(0), Zone::Dma32, 2 << ORDER)
                .zone(Nid(0), Zone::Normal, 6 << ORDER);
    }
    let machine = builder.build();
    let host = &machine;
    let frames = Frames::new(host).expect("room for the page allocator");
    frames.set_min_free(rng.pick(&[Some(0), Some(0), Some(8)]));
    let Ok(caches) = Caches::boot(frames, policy(rng.chance(128)), KERNEL_CLASSES) else {
        return;
    };
    caches.improvements().set_random_freelist(rng.chance(128));
    let before = used(caches.frames());
    let sizes = [40, 200, 1032];
    let made = ["small", "middle", "large"].into_iter().zip(sizes);
    let made: Vec<_> = made
        .map_while(|(name, size)| {
            let handle = caches.create(&CacheParams::new(name, size, 8)).ok()?;
            Some((handle, size))
        })
        .collect();
    if made.len() < sizes.len() {
        // Too little memory to begin with.
        return;
    }
    if rng.chance(64) {
        machine.inner().inject(Call::Release, Fault::Chance(64));
    }
    let world = World {
        caches,
        made,
        ledger: Ledger::default(),
        pool: RefCell::default(),
        cpus,
        nodes,
    };
    let tasks = if cpus > 16 {
        cpus
    } else {
        cpus + rng.below(cpus + 1)
    };
    let rounds = if cpus > 16 { 6 } else { 24 };
    for _ in 0..2 {
        let tasks = (0..tasks).map(|_| {
            let (world, rng) = (&world, Rng::new(rng.bits()));
            task(move |ctx| (0..rounds).for_each(|_| world.work(ctx, &rng)))
        });
        machine.run(tasks.collect());
        world.check_quiet();
    }
    while world.give(&rng) {}
    world.check_quiet();
    for (handle, _) in world.made {
        caches.destroy(handle).expect("a cache without objects");
    }
    host.synchronize();
    for _ in 0..3 {
        caches.shrink_all();
    }
    assert!(caches.validate().is_ok());
    caches.frames().validate().expect("zones are whole");
    // Shared arrays and random orders of caches that live for ever: a few for each node.
    let now = used(caches.frames());
    let most = (KERNEL_CLASSES.len() + 1) * (nodes + 1) * 2;
    assert!(now <= before + most, "{now} pages in use, {before} before");
}

#[test]
fn memory_with_pages_of_4k() {
    for_each_seed(120, |seed| run::<12>(Arch::X86_64 { levels: 4 }, seed));
}

#[test]
fn memory_with_pages_of_16k() {
    let arch = Arch::named("arm64-16k").expect("a form with pages of 16 KiB");
    for_each_seed(40, |seed| run::<14>(arch, seed));
}

#[test]
fn memory_with_pages_of_64k() {
    let arch = Arch::named("ppc64-64k").expect("a form with pages of 64 KiB");
    for_each_seed(40, |seed| run::<16>(arch, seed));
}
