//! Many tasks on few CPUs, torn apart at every host call: nothing is lost, nothing is handed out twice, contents stay.
//!
//! Here is everything at once; `drains` has arrays that are drained and switched off beside their use, `ends` the ends of caches and forks.
//!
//! `FLAGSTONE_SEEDS` says how many seeds, `FLAGSTONE_SEED` replays one.

#[path = "../ledger/mod.rs"]
mod ledger;

mod drains;
mod ends;

use core::mem::MaybeUninit;
use core::ptr::NonNull;
use flagstone_host::{Cpus, Grace};
use flagstone_seeded::{
    ArrayForm, Builder, Call, Fault, Machine, Rng, Task, TaskCtx, for_each_seed, task,
};
use flagstone_slab::{Cache, CacheHandle, CacheParams, Caches, Placement};
use flagstone_types::{AllocError, CpuId, Gfp, Nid};
use ledger::{Flavour, Host, Ledger, Owned};
use std::cell::RefCell;

const MAGIC: u64 = 0x5eed_0b1e_c7ed_c0de;

/// Objects of the constructed caches begin with a mark that their users leave alone.
unsafe fn construct(object: NonNull<u8>) {
    // SAFETY: S7: objects with this constructor have at least eight bytes.
    unsafe { object.cast::<u64>().write(MAGIC) };
}

fn mark_of(object: NonNull<u8>) -> u64 {
    // SAFETY: the object is the test's, or of a type-safe cache and found in the read-side section that goes on.
    unsafe { object.cast::<u64>().read_volatile() }
}

/// What all tasks share.
struct Stage<'c, 'm, const SHIFT: u32, const ORDER: u32> {
    machine: &'m Machine<SHIFT, ORDER>,
    caches: &'c Caches<Host<'m, SHIFT, ORDER>>,
    shared: Vec<(CacheHandle<'c, Host<'m, SHIFT, ORDER>>, Shape)>,
    ledger: Ledger,
    /// Objects that any task may free, by cache; the last list is `kmalloc`'s.
    pools: Vec<RefCell<Vec<Owned>>>,
}

#[derive(Clone, Copy)]
struct Shape {
    size: usize,
    align: usize,
    constructed: bool,
}

impl<'c, 'm, const SHIFT: u32, const ORDER: u32> Stage<'c, 'm, SHIFT, ORDER> {
    fn came(&self, shape: Shape, object: NonNull<u8>) -> Owned {
        let owned = self.ledger.take(object, shape.size, shape.align);
        if shape.constructed {
            assert_eq!(mark_of(object), MAGIC, "{object:p} is not as constructed");
        } else {
            owned.fill();
        }
        owned
    }

    fn goes(&self, shape: Shape, owned: Owned) -> NonNull<u8> {
        if shape.constructed {
            assert_eq!(mark_of(owned.object), MAGIC, "{owned:?} has changed");
        } else {
            owned.check(owned.len);
        }
        self.ledger.give(owned);
        owned.object
    }

    fn pick(&self, rng: &Rng) -> (usize, &Cache<Host<'m, SHIFT, ORDER>>, Shape) {
        let at = rng.below(self.shared.len());
        let (handle, shape) = &self.shared[at];
        (at, handle, *shape)
    }

    fn take_from_pool(&self, at: usize, rng: &Rng) -> Option<Owned> {
        let mut pool = self.pools[at].borrow_mut();
        let which = rng.below(pool.len());
        (!pool.is_empty()).then(|| pool.swap_remove(which))
    }

    fn work(&self, ctx: &TaskCtx<'_>, rng: &Rng) {
        let caches = self.caches;
        let (at, cache, shape) = self.pick(rng);
        match rng.below(42) {
            0..=11 => match caches.alloc(cache, Gfp::KERNEL) {
                Ok(object) => {
                    let owned = self.came(shape, object);
                    self.pools[at].borrow_mut().push(owned);
                }
                Err(error) => assert_eq!(error, AllocError::OutOfMemory),
            },
            12..=23 => {
                if let Some(owned) = self.take_from_pool(at, rng) {
                    let object = self.goes(shape, owned);
                    // SAFETY: the task owned the object.
                    unsafe { caches.free(cache, object) };
                }
            }
            24..=25 => {
                let mut into = [MaybeUninit::uninit(); 12];
                let n = rng.below(13);
                if let Ok(objects) = caches.alloc_bulk(cache, Gfp::KERNEL, &mut into[..n]) {
                    assert_eq!(objects.len(), n);
                    for object in objects {
                        let owned = self.came(shape, *object);
                        self.pools[at].borrow_mut().push(owned);
                    }
                }
            }
            26..=27 => {
                let objects: Vec<_> = (0..rng.below(13))
                    .map_while(|_| self.take_from_pool(at, rng))
                    .map(|owned| self.goes(shape, owned))
                    .collect();
                // SAFETY: the task owned the objects.
                unsafe { caches.free_bulk(cache, &objects) };
            }
            28 => {
                let nid = Nid(rng.below(self.machine.nodes() as usize) as u16);
                let placement = Placement::Preferred(nid);
                if let Ok(object) = caches.alloc_placed(cache, Gfp::KERNEL, &placement) {
                    let owned = self.came(shape, object);
                    self.pools[at].borrow_mut().push(owned);
                }
            }
            29..=30 => {
                let size = 1 + rng.below(1500);
                if let Ok(object) = caches.kmalloc(size, Gfp::KERNEL) {
                    let owned = self.ledger.take_filled(object, size, 8);
                    self.pools[self.shared.len()].borrow_mut().push(owned);
                }
            }
            31..=32 => {
                if let Some(owned) = self.take_from_pool(self.shared.len(), rng) {
                    let object = self.ledger.give_checked(owned);
                    // SAFETY: the task owned it.
                    unsafe { caches.kfree(object) };
                }
            }
            33 => {
                caches.shrink(cache);
            }
            34 => {
                caches.reap(rng.chance(128));
            }
            35 => {
                caches.set_arrays(cache, rng.chance(160));
            }
            36 => self.look(ctx, rng),
            37 => self.private(rng),
            38 => {
                caches.set_cpu_slabs(cache, rng.pick(&[0, 1, 8, 60]));
            }
            39 => {
                let cpu = rng.below(self.machine.possible_cpus() as usize);
                caches.drain_cpu(CpuId(cpu as u32));
            }
            40 => {
                let switches = caches.improvements();
                let on = rng.chance(128);
                match rng.below(4) {
                    0 => switches.set_lockless_look(on),
                    1 => switches.set_refill_first(on),
                    2 => switches.set_lockless_colour(on),
                    _ => switches.set_release_once(on),
                }
            }
            _ => ctx.migrate(CpuId(
                rng.below(self.machine.possible_cpus() as usize) as u32
            )),
        }
    }

    /// Looks at an object of the type-safe cache without owning it.
    fn look(&self, ctx: &TaskCtx<'_>, rng: &Rng) {
        let reader = (&self.machine).read();
        let found = {
            let pool = self.pools[1].borrow();
            pool.get(rng.below(pool.len())).map(|owned| owned.object)
        };
        if let Some(object) = found {
            for _ in 0..rng.below(30) {
                ctx.step();
                assert_eq!(
                    mark_of(object),
                    MAGIC,
                    "a type-safe object is something else"
                );
            }
        }
        drop(reader);
    }

    /// A cache of this task's own, from its making to its end.
    fn private(&self, rng: &Rng) {
        let shape = Shape {
            size: 8 << rng.below(8),
            align: 8,
            constructed: rng.chance(64),
        };
        let mut params = CacheParams::new("private", shape.size, 0);
        params.flags.no_merge = rng.chance(128);
        params.flags.typesafe_by_rcu = params.flags.no_merge && rng.chance(128);
        if shape.constructed {
            params.ctor = Some(construct);
        }
        let alone = params.flags.no_merge || shape.constructed;
        let Ok(mut handle) = self.caches.create(&params) else {
            return;
        };
        let mut mine = Vec::new();
        for _ in 0..rng.below(20) {
            if let Ok(object) = self.caches.alloc(&handle, Gfp::KERNEL) {
                mine.push(self.came(shape, object));
            }
        }
        let keep = rng.below(3);
        while mine.len() > keep {
            let object = self.goes(shape, mine.swap_remove(rng.below(mine.len())));
            // SAFETY: the task owned it.
            unsafe { self.caches.free(&handle, object) };
        }
        if alone && !mine.is_empty() {
            match self.caches.destroy(handle) {
                Ok(()) => panic!("a cache with live objects was destroyed"),
                Err(busy) => {
                    assert_eq!(busy.objects, mine.len());
                    handle = busy.cache;
                }
            }
        }
        for owned in mine {
            let object = self.goes(shape, owned);
            // SAFETY: the task owned it.
            unsafe { self.caches.free(&handle, object) };
        }
        if let Err(busy) = self.caches.destroy(handle) {
            panic!("{busy}");
        }
    }
}

/// What one seed does.
struct Plan {
    cpus: usize,
    nodes: usize,
    pages: usize,
    form: ArrayForm,
    flavour: Flavour,
    tasks: usize,
    rounds: usize,
    random: bool,
    /// Limit of CPU slabs, or none.
    cpu_slabs: Option<u32>,
}

fn plan(rng: &Rng) -> Plan {
    let form = rng.pick(&ArrayForm::ALL);
    let cpus = rng.pick(&[1, 2, 3, 4, 4, 8, 64]);
    Plan {
        cpus,
        nodes: rng.pick(&[1, 1, 1, 2, 3, 8]).min(cpus),
        pages: rng.pick(&[64, 256, 512]),
        form,
        flavour: rng.pick(&Flavour::ALL),
        tasks: if form == ArrayForm::Plain {
            cpus.min(6)
        } else {
            cpus.min(6) + 1 + rng.below(4)
        },
        rounds: 50,
        random: rng.chance(40),
        cpu_slabs: rng.pick(&[None, Some(1), Some(8), Some(60)]),
    }
}

fn caches_of<'c, 'm, const SHIFT: u32, const ORDER: u32>(
    caches: &'c Caches<Host<'m, SHIFT, ORDER>>,
    cpu_slabs: Option<u32>,
) -> Option<Vec<(CacheHandle<'c, Host<'m, SHIFT, ORDER>>, Shape)>> {
    let mut all = Vec::new();
    for (name, size, align, constructed, typesafe) in [
        ("plain", 96, 32, false, false),
        ("typesafe", 200, 8, true, true),
        ("off-slab", 128, 128, true, false),
        ("large", 3000, 8, false, false),
    ] {
        let mut params = CacheParams::new(name, size, align);
        params.flags.no_merge = true;
        params.flags.typesafe_by_rcu = typesafe;
        params.cpu_slabs = cpu_slabs;
        params.ctor = constructed.then_some(construct as _);
        let shape = Shape {
            size,
            align,
            constructed,
        };
        all.push((caches.create(&params).ok()?, shape));
    }
    Some(all)
}

fn run<const SHIFT: u32, const ORDER: u32>(
    seed: u64,
    plan: &Plan,
    rng: &Rng,
) -> Result<(), String> {
    let machine = Builder::<SHIFT, ORDER>::new()
        .seed(seed)
        .cpus(plan.cpus)
        .nodes(plan.nodes)
        .memory((plan.pages >> (SHIFT - 12)).max(8 << (16 - SHIFT)))
        .form(plan.form)
        .build();
    let caches = ledger::boot(&machine, plan.flavour.policy());
    caches.improvements().set_random_freelist(plan.random);
    caches
        .improvements()
        .set_cpu_slabs(plan.cpu_slabs.is_some());
    let before = ledger::used_pages(caches);
    let Some(shared) = caches_of(caches, plan.cpu_slabs) else {
        return Ok(()); // too little memory to begin with
    };
    let stage = Stage {
        machine: &machine,
        caches,
        pools: (0..=shared.len()).map(|_| RefCell::default()).collect(),
        shared,
        ledger: Ledger::default(),
    };
    if rng.chance(40) {
        machine.inject(Call::StopArrays, Fault::Chance(60));
    }
    for _ in 0..2 {
        let tasks: Vec<Task<'_>> = (0..plan.tasks)
            .map(|_| {
                let (stage, rng) = (&stage, Rng::new(rng.bits()));
                task(move |ctx| {
                    for _ in 0..plan.rounds {
                        stage.work(ctx, &rng);
                    }
                })
            })
            .collect();
        machine
            .try_run(tasks)
            .map_err(|failure| failure.to_string())?;
        ledger::validate(caches);
    }
    machine.inject(Call::StopArrays, Fault::Never);
    let Stage {
        shared,
        ledger,
        pools,
        ..
    } = stage;
    for owned in pools.into_iter().flat_map(RefCell::into_inner) {
        ledger.give(owned);
        // SAFETY: the test owned it.
        unsafe { caches.kfree(owned.object) };
    }
    for (handle, _) in shared {
        caches.destroy(handle).map_err(|busy| busy.to_string())?;
    }
    let exact = plan.flavour == Flavour::Unshared;
    ledger::expect_nothing_left(caches, before, exact, plan.random);
    Ok(())
}

#[test]
fn nothing_is_lost_or_doubled_under_any_schedule() {
    for_each_seed(400, |seed| {
        let rng = Rng::new(!seed);
        let plan = plan(&rng);
        let result = match rng.below(4) {
            0 => run::<14, 5>(seed, &plan, &rng),
            1 => run::<16, 4>(seed, &plan, &rng),
            _ => run::<12, 6>(seed, &plan, &rng),
        };
        if let Err(problem) = result {
            panic!("{problem}");
        }
    });
}
