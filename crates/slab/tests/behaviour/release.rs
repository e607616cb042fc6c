//! When slabs go back, and what happens under the node's lock.

use super::*;

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
