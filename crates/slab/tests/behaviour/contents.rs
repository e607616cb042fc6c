//! What is in objects: constructors, type-safe memory, random order, zeroing, values.

use super::*;

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
fn random_free_lists_are_permutations_that_differ_between_slabs() {
    for (size, place, flavour) in [
        (64, IndexPlace::InObject, Flavour::Linux),
        (480, IndexPlace::InObject, Flavour::Linux),
        (24, IndexPlace::Dedicated, Flavour::Linux),
        (480, IndexPlace::InRecord, Flavour::Process),
    ] {
        let machine = Machine::builder().cpus(1).memory(1024).build();
        let caches = ledger::boot(&machine, flavour.policy());
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
        // Eight objects have eight starts, so two of six slabs may well begin alike.
        assert!(orders.len() >= 3, "{size}: slabs have the same order");
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
