//! One published rule of the caches each, named as a sentence.

mod ledger;

use core::mem::MaybeUninit;
use core::ptr::NonNull;
use flagstone_frames::PageKind;
use flagstone_host::{Count, Event, Grace, PageMap};
use flagstone_seeded::{ArrayForm, Call, Fault, Machine, Policy as Schedule, Rng, task};
use flagstone_slab::layout::IndexPlace;
use flagstone_slab::{
    ArrayTuning, Cache, CacheParams, Caches, KmallocSet, ObjectCache, Policy, SlabInfo, UserCopy,
};
use flagstone_types::{AllocError, CpuId, FreeError, Gfp, Nanos, Nid};
use ledger::{Flavour, Ledger, bad_frees, is_zero};
use std::cell::Cell;
use std::collections::BTreeSet;

type Host<'m> = &'m Machine;

fn machine() -> Machine {
    Machine::builder().cpus(1).build()
}

fn alloc<'m>(caches: &Caches<Host<'m>>, cache: &Cache<Host<'m>>) -> NonNull<u8> {
    caches.alloc(cache, Gfp::KERNEL).unwrap()
}

fn free<'m>(caches: &Caches<Host<'m>>, cache: &Cache<Host<'m>>, object: NonNull<u8>) {
    // SAFETY: the tests here own what they free, or free what is none on purpose to have it refused.
    unsafe { caches.free(cache, object) };
}

/// As many objects as `slabs` slabs have, by slab, with arrays off so that slabs are filled one after the other.
fn fill_slabs<'m>(
    caches: &Caches<Host<'m>>,
    cache: &Cache<Host<'m>>,
    slabs: usize,
) -> Vec<Vec<NonNull<u8>>> {
    assert!(caches.set_arrays(cache, false));
    let num = cache.layout().num as usize;
    (0..slabs)
        .map(|_| (0..num).map(|_| alloc(caches, cache)).collect())
        .collect()
}

/// Limit 10 (one CPU, batch 2, 6 objects to a slab), 9 free objects.
fn free_two_with_nine_free(release_once: bool, in_one_batch: bool) -> usize {
    let machine = machine();
    let caches = ledger::boot(&machine, Flavour::Linux.policy());
    caches.improvements().set_release_once(release_once);
    let mut params = CacheParams::new("ten", 640, 8);
    params.arrays = Some(ArrayTuning {
        capacity: 2,
        limit: 2,
        batch: 2,
        shared_capacity: 0,
        shared_limit: 0,
    });
    let handle = caches.create(&params).unwrap();
    assert_eq!(handle.layout().num, 6);
    let mut slabs = fill_slabs(caches, &handle, 4);
    let last = slabs[0].pop().unwrap();
    let other = slabs[2].pop().unwrap();
    let nine: Vec<_> = slabs[0].iter().chain(&slabs[1][..4]).copied().collect();
    for object in nine {
        free(caches, &handle, object);
    }
    let before = caches.info(&handle);
    assert_eq!(before.objects - before.active_objects, 9);
    if in_one_batch {
        caches.set_arrays(&handle, true);
    }
    free(caches, &handle, last);
    free(caches, &handle, other);
    if in_one_batch {
        assert_eq!(caches.info(&handle).slabs, before.slabs);
        assert!(caches.drain_arrays(&handle));
    }
    ledger::validate(caches);
    before.slabs - caches.info(&handle).slabs
}

#[test]
fn releasing_is_decided_once_after_the_frees_and_not_at_the_one_that_empties_a_slab() {
    for in_one_batch in [false, true] {
        assert_eq!(free_two_with_nine_free(true, in_one_batch), 1);
        assert_eq!(free_two_with_nine_free(false, in_one_batch), 0);
    }
}

/// Lock acquisitions and steps under the node's lock for allocations and frees on eight CPUs at once.
fn contention(adjust: impl Fn(&Caches<Host<'_>>)) -> (u64, u64) {
    let (mut locks, mut steps) = (0, 0);
    for seed in 0..6 {
        let machine = Machine::builder()
            .cpus(8)
            .seed(seed)
            .memory(1024)
            .policy(Schedule::Uniform { mean: 10 })
            .preemption(0)
            .interrupts(true)
            .build();
        let caches = ledger::boot(&machine, Flavour::Linux.policy());
        adjust(caches);
        let handle = caches
            .create(&CacheParams::new("contended", 480, 8))
            .unwrap();
        assert!(handle.layout().colours > 1);
        let before = (
            (&machine).counted(Event::SlabNodeLock),
            (&machine).counted(Event::SlabNodeSteps),
        );
        let cache: &Cache<Host<'_>> = &handle;
        let tasks = (0..8).map(|cpu| {
            task(move |ctx| {
                ctx.migrate(CpuId(cpu));
                for _ in 0..2 {
                    let all: Vec<_> = (0..125).map(|_| alloc(caches, cache)).collect();
                    for object in all {
                        free(caches, cache, object);
                    }
                }
            })
        });
        machine.run(tasks.collect());
        locks += (&machine).counted(Event::SlabNodeLock) - before.0;
        steps += (&machine).counted(Event::SlabNodeSteps) - before.1;
        ledger::validate(caches);
    }
    (locks, steps)
}

#[test]
fn each_improvement_takes_work_from_under_the_lock() {
    let all = contention(|_| {});
    let no_look = contention(|c| c.improvements().set_lockless_look(false));
    let no_refill = contention(|c| c.improvements().set_refill_first(false));
    let no_colour = contention(|c| c.improvements().set_lockless_colour(false));
    let no_once = contention(|c| c.improvements().set_release_once(false));
    let none = contention(|c| {
        c.improvements().set_lockless_look(false);
        c.improvements().set_refill_first(false);
        c.improvements().set_lockless_colour(false);
        c.improvements().set_release_once(false);
    });
    let per_1000 = |(locks, steps): (u64, u64)| (locks / 24, steps / 24);
    eprintln!(
        "locks and steps per 1000 operations: all {:?}, without the look {:?}, the refill {:?}, \
         the colour {:?}, the release {:?}, any {:?}",
        per_1000(all),
        per_1000(no_look),
        per_1000(no_refill),
        per_1000(no_colour),
        per_1000(no_once),
        per_1000(none),
    );
    assert!(all.0 < no_look.0, "{all:?} {no_look:?}");
    assert!(
        all.0 < no_refill.0 && all.1 < no_refill.1,
        "{all:?} {no_refill:?}"
    );
    assert!(all.0 < no_colour.0, "{all:?} {no_colour:?}");
    assert!(all.1 < no_once.1, "{all:?} {no_once:?}");
    assert!(all.0 < none.0 && all.1 < none.1, "{all:?} {none:?}");
}

#[test]
fn objects_that_are_freed_on_another_node_go_home() {
    let machine = Machine::builder().cpus(2).nodes(2).build();
    let caches = ledger::boot(&machine, Flavour::Linux.policy());
    let handle = caches
        .create(&CacheParams::new("travellers", 64, 64))
        .unwrap();
    let all: Vec<_> = (0..60).map(|_| alloc(caches, &handle)).collect();
    machine.set_cpu(CpuId(1));
    for object in &all {
        free(caches, &handle, *object);
        ledger::validate(caches);
    }
    assert_eq!((&machine).counted(Event::SlabRemoteFree), 60);
    // Twelve wait here; each time one more comes, all go home.
    assert_eq!((&machine).counted(Event::SlabAlienFlush), 60 / 13 * 12);
    assert_eq!(caches.info(&handle).used_objects(), 0);
    let here = alloc(caches, &handle);
    let nid = |o: NonNull<u8>| {
        let host = &machine;
        host.nid(flagstone_host::PhysMem::pfn_of(&host, o.as_ptr().addr()).unwrap())
    };
    assert_eq!(
        nid(here),
        Nid(1),
        "those of the other node are not handed out here"
    );
    free(caches, &handle, here);
    machine.set_cpu(CpuId(0));
    let slabs = caches.info(&handle).slabs;
    for _ in 0..40 {
        assert_eq!(nid(alloc(caches, &handle)), Nid(0));
    }
    assert_eq!(
        caches.info(&handle).slabs,
        slabs,
        "they are used again at home"
    );
}

#[test]
fn one_node_has_no_alien_caches() {
    let machine = Machine::builder().cpus(4).nodes(1).build();
    let caches = ledger::boot(&machine, Flavour::Linux.policy());
    let before = ledger::used_pages(caches);
    let handle = caches.create(&CacheParams::new("local", 64, 64)).unwrap();
    let object = alloc(caches, &handle);
    machine.set_cpu(CpuId(3));
    free(caches, &handle, object);
    assert_eq!((&machine).counted(Event::SlabRemoteFree), 0);
    caches.destroy(handle).unwrap();
    ledger::expect_nothing_left(caches, before, false, false);
}

thread_local!(static CONSTRUCTED: Cell<usize> = const { Cell::new(0) });

unsafe fn construct(object: NonNull<u8>) {
    CONSTRUCTED.set(CONSTRUCTED.get() + 1);
    // SAFETY: S7: objects with this constructor have 40 bytes.
    unsafe { object.write_bytes(0x3c, 40) };
}

fn is_constructed(object: NonNull<u8>) -> bool {
    // SAFETY: the test owns the object.
    (0..40).all(|at| unsafe { object.add(at).read() } == 0x3c)
}

#[test]
fn the_constructor_runs_once_on_each_object_of_a_slab_and_its_work_stays() {
    for form in ArrayForm::ALL {
        let machine = Machine::builder().cpus(1).form(form).build();
        let caches = ledger::boot(&machine, Flavour::Tiny.policy());
        CONSTRUCTED.set(0);
        let mut params = CacheParams::new("constructed", 40, 8);
        params.ctor = Some(construct);
        let handle = caches.create(&params).unwrap();
        let mut all = Vec::new();
        for round in 0..500 {
            // A zeroed object with a constructor makes no sense: the constructor wins.
            let gfp = if round % 2 == 0 {
                Gfp::KERNEL
            } else {
                Gfp::KERNEL | Gfp::ZERO
            };
            all.push(caches.alloc(&handle, gfp).unwrap());
            assert!(all.iter().all(|o| is_constructed(*o)), "{form:?}");
            if round % 3 != 0 {
                free(caches, &handle, all.swap_remove(round % all.len()));
            }
        }
        assert_eq!(CONSTRUCTED.get(), caches.info(&handle).objects, "{form:?}");
        assert!(caches.ksize(all[0]).unwrap() >= 40);
        for object in all {
            free(caches, &handle, object);
        }
        caches.destroy(handle).unwrap();
    }
}

#[test]
fn pages_of_type_safe_objects_go_back_only_after_a_grace_period() {
    for seed in 0..20 {
        let machine = Machine::builder().cpus(2).seed(seed).build();
        let caches = ledger::boot(&machine, Flavour::Unshared.policy());
        let mut params = CacheParams::new("typesafe", 64, 8);
        params.flags.typesafe_by_rcu = true;
        let handle = caches.create(&params).unwrap();
        let all: Vec<_> = (0..100).map(|_| alloc(caches, &handle)).collect();
        let slabs = caches.info(&handle).slabs;
        let (reading, shrunk) = (Cell::new(false), Cell::new(false));
        let machine = &machine;
        let slab_blocks = || ledger::blocks_of_kind(caches, PageKind::Slab);
        let (handle_ref, all) = (&handle, &all);
        machine.run(vec![
            task(|ctx| {
                let reader = machine.read();
                reading.set(true);
                while !shrunk.get() {
                    ctx.yield_now();
                }
                assert!(slab_blocks() >= slabs, "pages went back under a reader");
                assert!(machine.deferred() >= slabs);
                drop(reader);
            }),
            task(|ctx| {
                while !reading.get() {
                    ctx.yield_now();
                }
                for object in all {
                    free(caches, handle_ref, *object);
                }
                assert_eq!(caches.shrink(handle_ref), slabs);
                assert_eq!(caches.info(handle_ref).slabs, 0);
                shrunk.set(true);
            }),
        ]);
        machine.synchronize();
        machine.poll();
        assert_eq!(machine.deferred(), 0);
        caches.destroy(handle).unwrap();
        caches.shrink_all();
        assert_eq!(slab_blocks(), 0);
    }
}

#[test]
fn a_cache_with_live_objects_is_not_destroyed_and_says_how_many_it_has() {
    let machine = Machine::builder().cpus(2).build();
    let caches = ledger::boot(&machine, Flavour::Linux.policy());
    let mut params = CacheParams::new("busy", 100, 8);
    params.flags.no_merge = true;
    let handle = caches.create(&params).unwrap();
    let mut all: Vec<_> = (0..50).map(|_| alloc(caches, &handle)).collect();
    for object in all.drain(7..) {
        free(caches, &handle, object);
    }
    let busy = caches.destroy(handle).unwrap_err();
    assert_eq!(busy.objects, 7);
    assert_eq!(busy.to_string(), "cache busy: 7 objects are still in use");
    let handle = busy.cache;
    let mut names = Vec::new();
    caches.slabinfo(|info| names.push(info.name().to_owned()));
    assert!(names.contains(&"busy".to_owned()), "it is listed as before");
    all.extend((0..50).map(|_| alloc(caches, &handle)));
    for object in all {
        free(caches, &handle, object);
    }
    ledger::validate(caches);
    caches.destroy(handle).unwrap();
}

#[test]
fn caches_of_one_shape_are_shared_unless_something_sets_them_apart() {
    let machine = machine();
    let caches = ledger::boot(&machine, Flavour::Linux.policy());
    let plain = CacheParams::new("first", 72, 8);
    let first = caches.create(&plain).unwrap();
    let is_shared = |change: &dyn Fn(&mut CacheParams<'_>)| {
        let mut params = CacheParams::new("second", 72, 8);
        change(&mut params);
        let second = caches.create(&params).unwrap();
        let shared = core::ptr::eq(&raw const *first, &raw const *second);
        caches.destroy(second).unwrap();
        shared
    };
    assert!(is_shared(&|_| {}));
    assert!(is_shared(&|p| p.size = 66), "the same stride");
    assert!(!is_shared(&|p| p.size = 73));
    assert!(!is_shared(&|p| p.align = 16));
    assert!(!is_shared(&|p| p.flags.no_merge = true));
    assert!(!is_shared(&|p| p.flags.typesafe_by_rcu = true));
    assert!(!is_shared(&|p| p.flags.reclaimable = true));
    assert!(!is_shared(&|p| p.flags.dma = true));
    assert!(!is_shared(&|p| p.flags.zero_on_free = true));
    assert!(!is_shared(&|p| p.ctor = Some(construct)));
    assert!(!is_shared(&|p| p.usercopy = UserCopy { offset: 0, size: 8 }));
    assert!(!is_shared(
        &|p| p.arrays = Some(ArrayTuning::linux(72, 4096, 1))
    ));
    // A cache whose arrays were asked for is not handed to others either.
    let mut params = CacheParams::new("own arrays", 136, 8);
    params.arrays = Some(ArrayTuning::linux(136, 4096, 1));
    let own = caches.create(&params).unwrap();
    let other = caches.create(&CacheParams::new("other", 136, 8)).unwrap();
    assert_eq!(other.name(), "other");
    // The end of one of two that share is not the end of the other.
    let second = caches.create(&plain).unwrap();
    let object = alloc(caches, &second);
    caches.destroy(second).unwrap();
    free(caches, &first, object);
    for handle in [own, other, first] {
        caches.destroy(handle).unwrap();
    }
    ledger::validate(caches);
}

#[test]
fn names_are_cut_at_31_bytes_between_characters() {
    let machine = machine();
    let caches = ledger::boot(&machine, Flavour::Linux.policy());
    let name = |text: &str| {
        let mut params = CacheParams::new(text, 24, 8);
        params.flags.no_merge = true;
        let handle = caches.create(&params).unwrap();
        let name = handle.name().to_owned();
        caches.destroy(handle).unwrap();
        name
    };
    assert_eq!(name("a_name"), "a_name");
    assert_eq!(name(""), "");
    assert_eq!(name(&"x".repeat(31)), "x".repeat(31));
    assert_eq!(name(&"x".repeat(40)), "x".repeat(31));
    assert_eq!(name(&format!("{}ü", "x".repeat(30))), "x".repeat(30));
}

#[test]
fn parameters_without_meaning_are_refused() {
    let machine = machine();
    let caches = ledger::boot(&machine, Flavour::Linux.policy());
    let before = ledger::used_pages(caches);
    let refused = |change: &dyn Fn(&mut CacheParams<'_>)| {
        let mut params = CacheParams::new("refused", 64, 8);
        change(&mut params);
        caches
            .create(&params)
            .map(|handle| handle.name().to_owned())
    };
    let invalid = Err(AllocError::InvalidArgument);
    assert_eq!(refused(&|p| p.size = 0), invalid);
    let empty_line = |p: &mut CacheParams<'_>| {
        p.size = 0;
        p.flags.hwcache_align = true;
    };
    assert_eq!(refused(&empty_line), invalid);
    assert_eq!(refused(&|p| p.align = 24), invalid);
    let odd_line = |p: &mut CacheParams<'_>| {
        p.align = 24;
        p.flags.hwcache_align = true;
    };
    assert_eq!(refused(&odd_line), invalid);
    assert_eq!(refused(&|p| p.align = 8192), invalid);
    assert_eq!(refused(&|p| p.size = 1 << 20), Err(AllocError::TooLarge));
    assert_eq!(refused(&|p| p.size = usize::MAX), Err(AllocError::TooLarge));
    let copy = |offset, size| move |p: &mut CacheParams<'_>| p.usercopy = UserCopy { offset, size };
    assert_eq!(refused(&copy(60, 5)), invalid);
    assert_eq!(refused(&copy(65, 0)), invalid);
    assert_eq!(refused(&copy(u32::MAX, 2)), invalid);
    let zeroed = |p: &mut CacheParams<'_>| {
        p.flags.zero_on_free = true;
        p.ctor = Some(construct);
    };
    assert_eq!(refused(&zeroed), invalid);
    let zeroed = |p: &mut CacheParams<'_>| {
        p.flags.zero_on_free = true;
        p.flags.typesafe_by_rcu = true;
    };
    assert_eq!(refused(&zeroed), invalid);
    ledger::expect_nothing_left(caches, before, false, false);
    assert!(refused(&copy(60, 4)).is_ok());
}

#[test]
fn random_free_lists_are_permutations_that_differ_between_slabs() {
    for (size, place) in [
        (64, IndexPlace::InObject),
        (480, IndexPlace::InObject),
        (24, IndexPlace::Dedicated),
    ] {
        let machine = Machine::builder().cpus(1).memory(1024).build();
        let caches = ledger::boot(&machine, Flavour::Linux.policy());
        caches.improvements().set_random_freelist(true);
        let handle = caches.create(&CacheParams::new("random", size, 8)).unwrap();
        assert_eq!(handle.layout().place, place, "{size}");
        let num = handle.layout().num as usize;
        let stride = handle.layout().size as usize;
        let mut orders = BTreeSet::new();
        for slab in fill_slabs(caches, &handle, 6) {
            let base = slab.iter().map(|o| o.as_ptr().addr()).min().unwrap();
            let order: Vec<usize> = slab
                .iter()
                .map(|o| (o.as_ptr().addr() - base) / stride)
                .collect();
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..num), "each object once");
            orders.insert(order);
        }
        assert!(orders.len() >= 5, "{size}: slabs have the same order");
        assert!(!orders.contains(&(0..num).collect::<Vec<_>>()));
        ledger::validate(caches);
    }
}

#[test]
fn a_class_that_gives_the_memory_of_its_own_sequence_grows_once_more_inside_its_growth() {
    let machine = Machine::builder().cpus(1).memory(1024).build();
    let caches = ledger::boot(&machine, Flavour::Linux.policy());
    caches.improvements().set_random_freelist(true);
    let ledger = Ledger::default();
    // 32 objects of 128 bytes: their sequence of 64 bytes comes from a class whose own comes from the 128 bytes.
    for size in [128, 64, 8, 16, 2048, 4096, 8192, 32] {
        for _ in 0..40 {
            let object = caches.kmalloc(size, Gfp::KERNEL).unwrap();
            ledger.take_filled(object, size, 8);
        }
    }
    ledger::validate(caches);
}

#[test]
fn freed_objects_of_a_cache_that_zeroes_are_zero_at_once() {
    for nodes in [1, 2] {
        let machine = Machine::builder().cpus(2).nodes(nodes).build();
        let caches = ledger::boot(&machine, Flavour::Linux.policy());
        let mut params = CacheParams::new("secrets", 100, 8);
        params.flags.zero_on_free = true;
        let handle = caches.create(&params).unwrap();
        let ledger = Ledger::default();
        let all: Vec<_> = (0..60)
            .map(|_| ledger.take_filled(alloc(caches, &handle), 100, 8))
            .collect();
        machine.set_cpu(CpuId(1));
        let (some, rest) = all.split_at(30);
        for owned in some {
            free(caches, &handle, owned.object);
            assert!(is_zero(owned.object, 100));
        }
        let rest: Vec<_> = rest.iter().map(|owned| owned.object).collect();
        // SAFETY: the test owns the objects.
        unsafe { caches.free_bulk(&handle, &rest) };
        assert!(rest.iter().all(|object| is_zero(*object, 100)));
        assert!(caches.set_arrays(&handle, true));
        let object = alloc(caches, &handle);
        free(caches, &handle, object);
        assert_eq!(caches.info(&handle).cached_objects, 0, "no array is used");
        caches.destroy(handle).unwrap();
    }
}

#[test]
fn a_double_free_of_what_is_on_top_is_reported() {
    for form in ArrayForm::ALL {
        let machine = Machine::builder().cpus(2).nodes(2).form(form).build();
        let caches = ledger::boot(&machine, Flavour::Linux.policy());
        let handle = caches.create(&CacheParams::new("twice", 64, 64)).unwrap();
        let object = alloc(caches, &handle);
        free(caches, &handle, object);
        free(caches, &handle, object);
        let entry = (
            object.as_ptr().addr(),
            FreeError::AlreadyFree,
            "twice".to_owned(),
        );
        assert_eq!(bad_frees(), std::slice::from_ref(&entry), "{form:?}");
        // The same on top of an alien cache.
        let object = alloc(caches, &handle);
        machine.set_cpu(CpuId(1));
        free(caches, &handle, object);
        free(caches, &handle, object);
        assert_eq!(bad_frees(), [entry], "{form:?}");
        machine.set_cpu(CpuId(0));
        let all: BTreeSet<_> = (0..100).map(|_| alloc(caches, &handle)).collect();
        assert_eq!(all.len(), 100, "none is handed out twice");
        ledger::validate(caches);
    }
}

#[test]
fn pointers_that_are_no_objects_are_reported_and_left_alone() {
    let machine = Machine::builder().cpus(1).build();
    let caches = ledger::boot(&machine, Flavour::Linux.policy());
    let handle = caches.create(&CacheParams::new("checked", 100, 8)).unwrap();
    let other = caches.create(&CacheParams::new("other", 200, 8)).unwrap();
    let object = alloc(caches, &handle);
    let large = caches.kmalloc(50_000, Gfp::KERNEL).unwrap();
    let mut outside = [0u64; 2];
    let outside = NonNull::from(&mut outside).cast::<u8>();
    // SAFETY: only addresses are made.
    let (inside, inside_large) = unsafe { (object.add(52), large.add(4096 * 2 + 8)) };
    // SAFETY: nothing of it is an object, so nothing is freed.
    unsafe {
        caches.kfree(outside);
        caches.kfree(inside);
        caches.kfree(inside_large);
    }
    let found: Vec<_> = bad_frees()
        .into_iter()
        .map(|(_, e, name)| (e, name))
        .collect();
    assert_eq!(
        found,
        [
            (FreeError::Foreign, "kmalloc".to_owned()),
            (FreeError::Interior { offset: 52 }, "kmalloc".to_owned()),
            (FreeError::Interior { offset: 8200 }, "kmalloc".to_owned()),
        ]
    );
    assert_eq!(
        caches.ksize(inside),
        Err(FreeError::Interior { offset: 52 })
    );
    // Where every free is seen, the cache's own refuses them too, and more.
    for cache in [&handle, &other] {
        caches.set_arrays(cache, false);
    }
    free(caches, &handle, inside);
    free(caches, &handle, outside);
    free(caches, &other, object);
    free(caches, &handle, large);
    free(caches, &handle, object);
    free(caches, &handle, object);
    let found: Vec<_> = bad_frees()
        .into_iter()
        .map(|(_, e, name)| (e, name))
        .collect();
    assert_eq!(
        found,
        [
            (FreeError::Interior { offset: 52 }, "checked".to_owned()),
            (FreeError::Foreign, "checked".to_owned()),
            (FreeError::WrongCache, "other".to_owned()),
            (FreeError::NotAllocated, "checked".to_owned()),
            (FreeError::AlreadyFree, "checked".to_owned()),
        ]
    );
    // SAFETY: the test owns it; then it does not any more.
    unsafe {
        caches.kfree(large);
        caches.kfree(large);
    }
    assert_eq!(bad_frees()[0].1, FreeError::NotAllocated);
    ledger::validate(caches);
    caches.destroy(handle).unwrap();
    caches.destroy(other).unwrap();
}

#[test]
fn slab_pages_stay_unmovable_whatever_the_request_says() {
    let machine = machine();
    let caches = ledger::boot(&machine, Flavour::Linux.policy());
    let handle = caches.create(&CacheParams::new("fixed", 64, 8)).unwrap();
    let object = caches.alloc(&handle, Gfp::HIGHUSER_MOVABLE).unwrap();
    let (_, page) = caches
        .frames()
        .page_of_address(object.as_ptr().addr())
        .unwrap();
    assert_eq!(page.migrate_type(), flagstone_types::MigrateType::Unmovable);
    let mut params = CacheParams::new("reclaimable", 64, 8);
    params.flags.reclaimable = true;
    let handle = caches.create(&params).unwrap();
    let object = alloc(caches, &handle);
    let (_, page) = caches
        .frames()
        .page_of_address(object.as_ptr().addr())
        .unwrap();
    assert_eq!(
        page.migrate_type(),
        flagstone_types::MigrateType::Reclaimable
    );
}

#[test]
fn layouts_of_the_caches_of_a_kernel_are_counted() {
    let machine = machine();
    let caches = ledger::boot(&machine, Flavour::Linux.policy());
    // Sizes and alignments of caches that kernels have, those with a constructor or type-safe marked.
    let sizes = [
        ("task_struct", 2816, 64, false),
        ("files_cache", 704, 64, false),
        ("signal_cache", 1088, 64, true),
        ("sighand_cache", 2112, 64, true),
        ("mm_struct", 1024, 64, false),
        ("vm_area_struct", 200, 8, false),
        ("anon_vma", 80, 8, true),
        ("anon_vma_chain", 64, 8, false),
        ("dentry", 192, 8, false),
        ("inode_cache", 592, 8, true),
        ("filp", 256, 64, false),
        ("radix_tree_node", 576, 8, true),
        ("buffer_head", 104, 8, false),
        ("bio-0", 192, 64, false),
        ("names_cache", 4096, 64, false),
        ("proc_inode_cache", 648, 8, true),
        ("sock_inode_cache", 640, 64, true),
        ("skbuff_head_cache", 256, 64, false),
        ("TCP", 1984, 64, false),
        ("cred_jar", 192, 64, false),
        ("pid", 128, 64, false),
        ("ext4_inode_cache", 1064, 8, true),
    ];
    let mut handles = Vec::new();
    for (name, size, align, keeps) in sizes {
        let mut params = CacheParams::new(name, size, align);
        params.flags.no_merge = true;
        params.ctor = keeps.then_some(construct as _);
        handles.push(caches.create(&params).unwrap());
    }
    let mut counts = [0; 4];
    let mut wasteless = 0;
    caches.slabinfo(|info| {
        counts[info.layout.place as usize] += 1;
        wasteless += usize::from(info.layout.waste == 0);
    });
    insta::assert_snapshot!(
        format!("{:?} {wasteless} without waste", IndexPlace::ALL.map(|p| (p.name(), counts[p as usize]))),
        @r#"[("in-object", 25), ("leftover", 8), ("off-slab", 0), ("dedicated", 3)] 14 without waste"#
    );
    assert_eq!(counts.iter().sum::<usize>(), handles.len() + 14);
}

fn info_of_a_known_state() -> Vec<SlabInfo> {
    let machine = Machine::builder().cpus(2).build();
    let caches = ledger::boot(&machine, Flavour::Linux.policy());
    let mut params = CacheParams::new("a \"quoted\" name", 60, 8);
    params.flags.reclaimable = true;
    let handle = caches.create(&params).unwrap();
    let all: Vec<_> = (0..200).map(|_| alloc(caches, &handle)).collect();
    for object in &all[..150] {
        free(caches, &handle, *object);
    }
    let mut infos = Vec::new();
    caches.slabinfo(|info| infos.push(*info));
    infos
}

#[test]
fn slabinfo_reads_as_linux_prints_it() {
    let infos = info_of_a_known_state();
    let mut text = SlabInfo::HEADER.to_owned();
    for info in &infos[..3] {
        text += &format!("\n{info}");
    }
    insta::assert_snapshot!(text, @r#"
    slabinfo - version: 2.1
    # name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> : tunables <limit> <batchcount> <sharedfactor> : slabdata <active_slabs> <num_slabs> <sharedavail>
    a "quoted" name      250    252     64   63    1 : tunables  120   60    8 : slabdata      4      4    120
    kmalloc-8192           0      0   8192    1    2 : tunables    8    4    0 : slabdata      0      0      0
    kmalloc-4096           0      0   4096    1    1 : tunables   24   12    8 : slabdata      0      0      0
    "#);
}

#[test]
fn slabinfo_is_json_too() {
    for info in info_of_a_known_state() {
        let mut text = String::new();
        info.write_json(&mut text).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["name"], info.name());
        assert_eq!(value["num_objs"], info.objects);
        assert_eq!(value["used_objs"], info.used_objects());
        assert_eq!(value["layout"], info.layout.place.name());
        assert_eq!(value["reclaimable"], info.reclaimable);
    }
}

fn text_of(machine: &Machine) -> String {
    let lines: Vec<_> = machine
        .messages()
        .into_iter()
        .map(|(level, line)| format!("{level:?}: {line}"))
        .collect();
    lines.join("\n")
}

#[test]
fn flags_that_make_no_sense_are_reported_with_the_stack_and_fixed() {
    let machine = machine();
    let caches = ledger::boot(&machine, Flavour::Linux.policy());
    let handle = caches.create(&CacheParams::new("flags", 64, 8)).unwrap();
    machine.set_backtrace(&[0xffff_ffff_8110_1234, 0xffff_ffff_8110_5678]);
    caches.alloc(&handle, Gfp::KERNEL | Gfp::HIGHMEM).unwrap();
    let unknown = Gfp::from_bits_retain(0x8000_0000);
    caches
        .alloc_node(
            &handle,
            Gfp::KERNEL | Gfp::DMA32 | Gfp::THISNODE | unknown,
            Nid(0),
        )
        .unwrap();
    insta::assert_snapshot!(text_of(&machine), @r#"
    Warning: Unexpected gfp: 0x2 (__GFP_HIGHMEM). Fixing up to gfp: 0x24000c0 (GFP_KERNEL). Fix your code!
    Warning:  [<ffffffff81101234>]
    Warning:  [<ffffffff81105678>]
    Warning: Unexpected gfp: 0x80000004 (GFP_DMA32|0x80000000). Fixing up to gfp: 0x24400c0 (GFP_KERNEL|__GFP_THISNODE). Fix your code!
    Warning:  [<ffffffff81101234>]
    Warning:  [<ffffffff81105678>]
    "#);
}

#[test]
fn a_lack_of_memory_is_reported_and_not_more_often_than_ten_times_in_five_seconds() {
    let machine = Machine::builder().cpus(2).nodes(2).memory(64).build();
    let caches = ledger::boot(&machine, Flavour::Linux.policy());
    let handle = caches.create(&CacheParams::new("hungry", 3000, 8)).unwrap();
    // All memory but room for four slabs on one node and two on the other.
    let order = handle.layout().order;
    for (nid, slabs) in [(Nid(0), 4), (Nid(1), 2)] {
        let mut hogs = Vec::new();
        let flags = Gfp::KERNEL | Gfp::THISNODE;
        while let Ok(block) = caches.frames().alloc_pages(flags, order, Some(nid)) {
            hogs.push(block);
        }
        for block in hogs.drain(..slabs) {
            caches.frames().free_pages(block);
        }
    }
    while caches.alloc(&handle, Gfp::KERNEL | Gfp::NOWARN).is_ok() {}
    assert_eq!(
        text_of(&machine),
        "",
        "nothing is said if nothing is to be said"
    );
    caches.alloc(&handle, Gfp::KERNEL).unwrap_err();
    insta::assert_snapshot!(text_of(&machine), @r#"
    Warning: SLAB: Unable to allocate memory on node 0, gfp=0x24000c0(GFP_KERNEL)
      cache: hungry, object size: 3000, order: 1
    Warning:   node 0: slabs: 4/4, objs: 8/8
    Warning:   node 1: slabs: 2/2, objs: 4/4
    "#);
    for _ in 0..50 {
        caches.alloc(&handle, Gfp::KERNEL).unwrap_err();
    }
    let reports = |m: &Machine| text_of(m).matches("Unable to allocate").count();
    assert_eq!(reports(&machine), 10);
    machine.advance(Nanos(5_100_000_000));
    caches.alloc(&handle, Gfp::KERNEL).unwrap_err();
    assert_eq!(reports(&machine), 11);
}

#[test]
fn what_is_idle_goes_back_after_two_rounds_of_the_reaper() {
    let machine = machine();
    let caches = ledger::boot(&machine, Flavour::Unshared.policy());
    let handle = caches.create(&CacheParams::new("idle", 512, 8)).unwrap();
    let all: Vec<_> = (0..100).map(|_| alloc(caches, &handle)).collect();
    for object in all {
        free(caches, &handle, object);
    }
    let slabs = caches.info(&handle).slabs;
    assert!(slabs > 0);
    caches.reap(true);
    let kept = caches.info(&handle).slabs;
    assert!(kept > 0, "what was just freed may be wanted again");
    let reaped = caches.reap(true);
    assert!(reaped.slabs >= kept);
    assert_eq!(caches.info(&handle).slabs, 0);
}

#[test]
fn limits_adapt_to_use_and_fall_back_when_idle() {
    let machine = machine();
    let policy: Policy = Flavour::Process.policy();
    let caches = ledger::boot(&machine, policy);
    let handle = caches.create(&CacheParams::new("adaptive", 64, 8)).unwrap();
    let limit = || flagstone_host::CpuCache::limit(handle.array(), CpuId(0));
    let object = alloc(caches, &handle);
    free(caches, &handle, object);
    let first = limit();
    for _ in 0..20 {
        let all: Vec<_> = (0..2000).map(|_| alloc(caches, &handle)).collect();
        for object in all {
            free(caches, &handle, object);
        }
    }
    assert_eq!(limit(), (policy.arrays)(64).capacity, "began with {first}");
    caches.reap(true);
    assert_eq!(limit(), first);
    ledger::validate(caches);
}

#[test]
fn values_of_an_object_cache_are_dropped_and_counted() {
    let machine = machine();
    let caches = ledger::boot(&machine, Flavour::Linux.policy());
    let counted = std::rc::Rc::new(());
    let cache = ObjectCache::new(caches, "values").unwrap();
    let one = cache
        .insert((counted.clone(), 7u64))
        .map_err(|_| ())
        .unwrap();
    let two = cache.insert((counted.clone(), 8)).map_err(|_| ()).unwrap();
    assert_eq!(
        (one.1, two.1, std::rc::Rc::strong_count(&counted)),
        (7, 8, 3)
    );
    drop(one);
    assert_eq!(std::rc::Rc::strong_count(&counted), 2);
    let raw = two.into_raw();
    let busy = cache.destroy().unwrap_err();
    assert_eq!(busy.objects, 1);
    // SAFETY: the value is the test's; it is dropped and its object given back.
    unsafe {
        raw.drop_in_place();
        caches.free(&busy.cache, raw.cast());
    }
    caches.destroy(busy.cache).unwrap();
    let empty = ObjectCache::<Host<'_>, ()>::new(caches, "empty");
    assert!(matches!(empty, Err(AllocError::InvalidArgument)));
    let bulk = ObjectCache::<Host<'_>, [u32; 5]>::new(caches, "bulk").unwrap();
    let mut into = [MaybeUninit::uninit(); 30];
    let all = bulk.alloc_bulk(&mut into).unwrap().to_vec();
    // SAFETY: they came from here and are not used any more.
    unsafe { bulk.free_bulk(&all) };
    bulk.destroy().unwrap();
}

#[test]
fn krealloc_stays_in_place_while_the_object_is_large_enough() {
    let machine = machine();
    let caches = ledger::boot(&machine, Flavour::Linux.policy());
    let rng = Rng::new(3);
    // SAFETY: the test owns what it reallocates.
    unsafe {
        let first = caches.krealloc(None, 50, Gfp::KERNEL).unwrap();
        assert_eq!(
            caches.krealloc(Some(first), 64, Gfp::KERNEL).unwrap(),
            first
        );
        let second = caches.krealloc(Some(first), 65, Gfp::KERNEL).unwrap();
        assert_ne!(first, second);
        assert_eq!(caches.ksize(second).unwrap(), 96);
        let mut now = second;
        for _ in 0..100 {
            now = caches
                .krealloc(Some(now), 1 + rng.below(30_000), Gfp::KERNEL)
                .unwrap();
        }
        caches.kfree(now);
    }
    ledger::validate(caches);
}

#[test]
fn dma_objects_come_from_the_dma_zone() {
    let machine = Machine::builder()
        .cpus(1)
        .zone(Nid(0), flagstone_types::Zone::Dma, 64)
        .zone(Nid(0), flagstone_types::Zone::Normal, 128)
        .build();
    let caches = ledger::boot(&machine, Flavour::Linux.policy());
    let mut params = CacheParams::new("dma", 64, 8);
    params.flags.dma = true;
    let handle = caches.create(&params).unwrap();
    let zone = |object: NonNull<u8>| {
        let (_, page) = caches
            .frames()
            .page_of_address(object.as_ptr().addr())
            .unwrap();
        page.zone()
    };
    assert_eq!(zone(alloc(caches, &handle)), flagstone_types::Zone::Dma);
    // The zone is the cache's to say, not the request's.
    let plain = caches.create(&CacheParams::new("plain", 72, 8)).unwrap();
    let object = caches.alloc(&plain, Gfp::KERNEL | Gfp::DMA).unwrap();
    assert_eq!(zone(object), flagstone_types::Zone::Normal);
    let object = caches.kmalloc(20_000, Gfp::KERNEL | Gfp::DMA).unwrap();
    assert_eq!(zone(object), flagstone_types::Zone::Dma);
}

#[test]
fn kmalloc_has_sets_of_classes_for_devices_and_for_shrinkers() {
    let machine = Machine::builder()
        .cpus(1)
        .zone(Nid(0), flagstone_types::Zone::Dma, 128)
        .zone(Nid(0), flagstone_types::Zone::Normal, 128)
        .build();
    let caches = ledger::boot(&machine, Flavour::Linux.policy());
    let page = |gfp: Gfp| {
        let object = caches.kmalloc(100, gfp).unwrap();
        let (_, page) = caches
            .frames()
            .page_of_address(object.as_ptr().addr())
            .unwrap();
        let found = (page.zone(), page.migrate_type(), page.kind());
        assert!(caches.ksize(object).unwrap() >= 100);
        // SAFETY: the test owns it.
        unsafe { caches.kfree(object) };
        found
    };
    use flagstone_types::{MigrateType, Zone};
    let ordinary = (Zone::Normal, MigrateType::Unmovable, PageKind::Slab);
    let (dma, reclaimable) = (Gfp::KERNEL | Gfp::DMA, Gfp::KERNEL | Gfp::RECLAIMABLE);
    assert_eq!(page(Gfp::KERNEL), ordinary);
    assert_eq!(page(reclaimable), ordinary);
    assert_eq!(page(dma).0, Zone::Dma);
    assert_eq!(page(dma).2, PageKind::Large);
    for set in [KmallocSet::Dma, KmallocSet::Reclaimable] {
        machine.inject(Call::NewArray, Fault::Nth(3));
        assert_eq!(caches.make_kmalloc_set(set), Err(AllocError::OutOfMemory));
        caches.make_kmalloc_set(set).unwrap();
        caches.make_kmalloc_set(set).unwrap();
    }
    let mut names = Vec::new();
    caches.slabinfo(|info| names.push(info.name().to_owned()));
    assert_eq!(names.len(), 3 * flagstone_slab::KERNEL_CLASSES.len() + 1);
    assert!(names.contains(&"dma-kmalloc-192".to_owned()));
    assert!(names.contains(&"kmalloc-rcl-8".to_owned()));
    assert_eq!(page(Gfp::KERNEL), ordinary);
    assert_eq!(
        page(dma | Gfp::RECLAIMABLE),
        (Zone::Dma, MigrateType::Unmovable, PageKind::Slab)
    );
    assert_eq!(
        page(reclaimable),
        (Zone::Normal, MigrateType::Reclaimable, PageKind::Slab)
    );
    ledger::validate(caches);
}
