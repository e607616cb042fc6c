//! Every host call that can fail is made to fail, at every point: errors are values, and nothing is lost.

mod ledger;

use core::mem::MaybeUninit;
use core::ptr::NonNull;
use flagstone_frames::Frames;
use flagstone_host::Level;
use flagstone_seeded::{Call, Fault, Machine, Rng, for_each_seed};
use flagstone_slab::{CacheParams, Caches, KERNEL_CLASSES, NodeMask, Placement};
use flagstone_types::{AllocError, Gfp, Nid, Order};
use ledger::{Flavour, Ledger};

unsafe fn construct(object: NonNull<u8>) {
    // SAFETY: S7: objects with this constructor have at least eight bytes.
    unsafe { object.cast::<u64>().write(1) };
}

/// Calls `each` with 1, 2, … until it says that the n-th call was never reached.
fn sweep(mut each: impl FnMut(u64) -> bool) -> u64 {
    for n in 1..5000 {
        if !each(n) {
            return n - 1;
        }
    }
    panic!("no end");
}

#[test]
fn boot_fails_as_a_value_at_every_call() {
    for nodes in [1, 3] {
        for call in [Call::BootAlloc, Call::NewArray] {
            let points = sweep(|n| {
                let machine = Machine::builder().cpus(3).nodes(nodes).build();
                let frames = Frames::new(&machine).unwrap();
                machine.inject(call, Fault::Nth(n));
                match Caches::boot(frames, Flavour::Linux.policy(), KERNEL_CLASSES) {
                    Ok(caches) => {
                        ledger::validate(caches);
                        false
                    }
                    Err(error) => {
                        assert_eq!(error, AllocError::OutOfMemory);
                        true
                    }
                }
            });
            assert!(points > KERNEL_CLASSES.len() as u64, "{call:?}: {points}");
        }
    }
}

/// A machine on which only `left` pages are free.
fn starve(caches: &Caches<&Machine>, left: usize) -> Vec<flagstone_frames::PageBlock> {
    let frames = caches.frames();
    let mut hogs = Vec::new();
    while let Ok(block) = frames.alloc_pages(Gfp::KERNEL | Gfp::NOWARN, Order::ZERO, None) {
        hogs.push(block);
    }
    for _ in 0..left {
        if let Some(block) = hogs.pop() {
            frames.free_pages(block);
        }
    }
    hogs
}

#[test]
fn making_a_cache_leaves_nothing_behind_wherever_it_fails() {
    for nodes in [1, 2] {
        for left in 0..12 {
            for fault in [Fault::Never, Fault::Nth(1)] {
                let machine = Machine::builder().cpus(2).nodes(nodes).build();
                let caches = ledger::boot(&machine, Flavour::Unshared.policy());
                let before = ledger::used_pages(caches);
                let hogs = starve(caches, left);
                machine.inject(Call::NewArray, fault);
                let mut params = CacheParams::new("made", 128, 128);
                params.ctor = Some(construct);
                let made = caches.create(&params);
                assert!(fault == Fault::Never || made.is_err());
                for block in hogs {
                    caches.frames().free_pages(block);
                }
                match made {
                    Ok(handle) => caches.destroy(handle).unwrap(),
                    Err(error) => assert_eq!(error, AllocError::OutOfMemory),
                }
                ledger::expect_nothing_left(caches, before, true, false);
                assert_eq!(machine.array_stats().dropped_in_use, 0);
            }
        }
    }
}

/// The same work with ever more memory, until it is enough: each page request is the first to fail once.
#[test]
fn work_survives_a_lack_of_pages_at_every_request() {
    for (nodes, flavour) in [
        (1, Flavour::Unshared),
        (2, Flavour::Unshared),
        (1, Flavour::Linux),
        (1, Flavour::Process),
        (3, Flavour::Tiny),
    ] {
        for random in [false, true] {
            for left in 0..60 {
                let machine = Machine::builder().cpus(3).nodes(nodes).build();
                let caches = ledger::boot(&machine, flavour.policy());
                caches.improvements().set_random_freelist(random);
                let before = ledger::used_pages(caches);
                let mut handles = Vec::new();
                for (name, size, typesafe, ctor) in [
                    ("a", 64, false, false),
                    ("b", 128, false, true),
                    ("c", 700, true, true),
                ] {
                    let mut params = CacheParams::new(name, size, if ctor { 128 } else { 8 });
                    params.flags.typesafe_by_rcu = typesafe;
                    params.flags.no_merge = true;
                    params.ctor = ctor.then_some(construct as _);
                    handles.push(caches.create(&params).unwrap());
                }
                let hogs = starve(caches, left);
                let ledger = Ledger::default();
                let mut all = Vec::new();
                let mut failures = 0;
                for handle in &handles {
                    for _ in 0..150 {
                        match caches.alloc(handle, Gfp::KERNEL) {
                            Ok(object) => all.push(ledger.take(object, handle.object_size(), 8)),
                            Err(error) => {
                                assert_eq!(error, AllocError::OutOfMemory);
                                failures += 1;
                            }
                        }
                    }
                    let mut into = [MaybeUninit::uninit(); 200];
                    let owned = ledger.count();
                    match caches.alloc_bulk(handle, Gfp::ATOMIC, &mut into) {
                        Ok(objects) => all.extend(
                            objects
                                .iter()
                                .map(|o| ledger.take(*o, handle.object_size(), 8)),
                        ),
                        Err(error) => {
                            assert_eq!(error, AllocError::OutOfMemory);
                            assert_eq!(ledger.count(), owned);
                            failures += 1;
                        }
                    }
                }
                for size in [8, 100, 5000, 40_000] {
                    match caches.kmalloc(size, Gfp::KERNEL | Gfp::ZERO) {
                        Ok(object) => all.push(ledger.take(object, size, 8)),
                        Err(_) => failures += 1,
                    }
                }
                assert!(failures > 0 || left > 3);
                for owned in all {
                    ledger.give(owned);
                    // SAFETY: the test owned it.
                    unsafe { caches.kfree(owned.object) };
                }
                for block in hogs {
                    caches.frames().free_pages(block);
                }
                for handle in handles {
                    caches.destroy(handle).unwrap();
                }
                let exact = flavour == Flavour::Unshared;
                ledger::expect_nothing_left(caches, before, exact, random);
            }
        }
    }
}

#[test]
fn a_failed_krealloc_leaves_the_old_allocation_as_it_was() {
    let machine = Machine::builder().build();
    let caches = ledger::boot(&machine, Flavour::Linux.policy());
    let ledger = Ledger::default();
    let old = caches.kmalloc(100, Gfp::KERNEL).unwrap();
    let owned = ledger.take_filled(old, 100, 8);
    let hogs = starve(caches, 0);
    // SAFETY: the test owns the object.
    let grown = unsafe { caches.krealloc(Some(old), 30_000, Gfp::KERNEL) };
    assert_eq!(grown, Err(AllocError::OutOfMemory));
    ledger.give_checked(owned);
    // SAFETY: the test owns the object.
    unsafe {
        assert_eq!(
            caches.krealloc(Some(old), 0, Gfp::KERNEL),
            Err(AllocError::InvalidArgument)
        );
        caches.kfree(old);
    }
    drop(hogs);
    ledger::validate(caches);
}

#[test]
fn a_node_without_memory_is_served_by_others_unless_it_must_not() {
    let machine = Machine::builder()
        .cpus(2)
        .nodes(2)
        .zone(Nid(0), flagstone_types::Zone::Normal, 128)
        .zone(Nid(1), flagstone_types::Zone::Normal, 128)
        .build();
    let caches = ledger::boot(&machine, Flavour::Linux.policy());
    let handle = caches.create(&CacheParams::new("placed", 256, 8)).unwrap();
    let mut hogs = Vec::new();
    while let Ok(block) =
        caches
            .frames()
            .alloc_pages(Gfp::KERNEL | Gfp::THISNODE, Order::ZERO, Some(Nid(1)))
    {
        hogs.push(block);
    }
    let logged = machine.messages().len();
    let only = Gfp::KERNEL | Gfp::THISNODE;
    assert_eq!(
        caches.alloc_node(&handle, only, Nid(1)),
        Err(AllocError::OutOfMemory)
    );
    assert!(machine.messages().len() > logged, "a failure is reported");
    let logged = machine.messages().len();
    let both = Placement::Bind(NodeMask(0b11));
    machine.set_cpu(flagstone_types::CpuId(1));
    let mut objects = vec![
        caches.alloc_node(&handle, Gfp::KERNEL, Nid(1)).unwrap(),
        caches.alloc_placed(&handle, Gfp::KERNEL, &both).unwrap(),
        caches.alloc(&handle, Gfp::KERNEL).unwrap(),
    ];
    assert_eq!(
        machine.messages().len(),
        logged,
        "nothing failed: {:?}",
        machine.messages()
    );
    let there = Placement::Bind(NodeMask(0b10));
    assert_eq!(
        caches.alloc_placed(&handle, Gfp::KERNEL, &there),
        Err(AllocError::OutOfMemory)
    );
    assert_eq!(
        caches.alloc_placed(&handle, Gfp::KERNEL, &Placement::Bind(NodeMask(0b100))),
        Err(AllocError::InvalidArgument)
    );
    assert!(machine.messages().len() > logged);
    assert!(
        machine
            .messages()
            .iter()
            .all(|(level, _)| *level == Level::Warning)
    );
    for object in objects.drain(..) {
        // SAFETY: the test owns it.
        unsafe { caches.free(&handle, object) };
    }
    caches.destroy(handle).unwrap();
    ledger::validate(caches);
}

#[test]
fn arrays_that_can_not_be_stopped_keep_what_they_have_and_lose_nothing() {
    for_each_seed(30, |seed| {
        let rng = Rng::new(!seed);
        let machine = Machine::builder().seed(seed).cpus(4).nodes(2).build();
        let caches = ledger::boot(&machine, Flavour::Linux.policy());
        let before = ledger::used_pages(caches);
        machine.inject(Call::StopArrays, Fault::From(1));
        let mut params = CacheParams::new("unstoppable", 64, 8);
        params.flags.no_merge = true;
        let handle = caches.create(&params).unwrap();
        let mut all = Vec::new();
        for _ in 0..200 {
            machine.set_cpu(flagstone_types::CpuId(rng.below(4) as u32));
            all.push(caches.alloc(&handle, Gfp::KERNEL).unwrap());
            let object = all.swap_remove(rng.below(all.len()));
            if rng.chance(100) {
                // SAFETY: the test owns it.
                unsafe { caches.free(&handle, object) };
            } else {
                all.push(object);
            }
        }
        assert!(!caches.drain_arrays(&handle));
        assert!(!caches.set_arrays(&handle, false));
        caches.reap(true);
        caches.shrink_all();
        let busy = caches.destroy(handle).unwrap_err();
        assert_eq!(busy.objects, all.len());
        let handle = busy.cache;
        for object in all {
            // SAFETY: the test owns it.
            unsafe { caches.free(&handle, object) };
        }
        // Nobody else has the cache, so it can end even so.
        caches.destroy(handle).unwrap();
        machine.inject(Call::StopArrays, Fault::Never);
        ledger::expect_nothing_left(caches, before, false, false);
        assert_eq!(machine.array_stats().dropped_in_use, 0);
    });
}
