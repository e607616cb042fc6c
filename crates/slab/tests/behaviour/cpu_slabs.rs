//! The rival form: slabs on the lists of the CPUs that use them.

use super::*;

/// A cache with CPU slabs of so many free objects, and arrays off, so that slabs see every allocation and every free.
fn made<'c, 'm>(
    caches: &'c Caches<Host<'m>>,
    size: usize,
    limit: u32,
) -> flagstone_slab::CacheHandle<'c, Host<'m>> {
    let mut params = CacheParams::new("rival", size, 8);
    params.cpu_slabs = Some(limit);
    let handle = caches.create(&params).unwrap();
    assert!(caches.set_arrays(&handle, false));
    handle
}

fn two_cpus(nodes: usize) -> Machine {
    Machine::builder().cpus(2).nodes(nodes).build()
}

fn locks(machine: &Machine) -> u64 {
    machine.counted(Event::SlabNodeLock)
}

fn grown(machine: &Machine) -> u64 {
    machine.counted(Event::SlabGrow)
}

/// What `op` does, and how often it takes a node's lock.
fn locks_of<R>(machine: &Machine, op: impl FnOnce() -> R) -> (R, u64) {
    let before = locks(machine);
    let result = op();
    (result, locks(machine) - before)
}

#[test]
fn slabs_of_the_cpu_are_filled_and_emptied_without_the_node_lock() {
    let machine = two_cpus(1);
    let caches = ledger::boot(&machine, Flavour::Linux.policy());
    let handle = made(caches, 256, 52);
    let (_, taken) = locks_of(&machine, || {
        for _ in 0..3 {
            let all: Vec<_> = (0..40).map(|_| alloc(caches, &handle)).collect();
            all.into_iter()
                .for_each(|object| free(caches, &handle, object));
        }
    });
    // Three slabs become free and are the CPU's still; the fourth to be put would be too many.
    assert_eq!(taken, 0);
    let info = caches.info(&handle);
    assert_eq!(
        (info.cpu_slabs, info.cpu_free_objects, info.slabs),
        (3, 48, 3)
    );
    assert_eq!(info.used_objects(), 0);
    ledger::validate(caches);
}

#[test]
fn an_array_is_refilled_from_the_cpu_and_flushed_to_it() {
    for form in ArrayForm::ALL {
        let machine = Machine::builder().cpus(2).form(form).build();
        let caches = ledger::boot(&machine, Flavour::Linux.policy());
        let mut params = CacheParams::new("rival", 256, 8);
        params.cpu_slabs = Some(1000);
        let handle = caches.create(&params).unwrap();
        let (_, taken) = locks_of(&machine, || {
            for _ in 0..3 {
                let all: Vec<_> = (0..300).map(|_| alloc(caches, &handle)).collect();
                all.into_iter()
                    .for_each(|object| free(caches, &handle, object));
            }
        });
        assert_eq!(taken, 0, "{form:?}");
        let info = caches.info(&handle);
        assert_eq!(info.used_objects(), 0);
        assert!(info.cached_objects > 0 && info.shared_available == 0);
        ledger::validate(caches);
    }
}

#[test]
fn a_slab_that_was_full_goes_to_the_cpu_that_frees_to_it() {
    for nodes in [1, 2] {
        let machine = two_cpus(nodes);
        let caches = ledger::boot(&machine, Flavour::Linux.policy());
        let handle = made(caches, 256, 52);
        let slabs: Vec<Vec<_>> = (0..2)
            .map(|_| (0..16).map(|_| alloc(caches, &handle)).collect())
            .collect();
        assert_eq!(caches.info(&handle).cpu_slabs, 0, "full ones do not count");
        machine.set_cpu(CpuId(1));
        let (_, taken) = locks_of(&machine, || {
            for object in &slabs[0][..4] {
                free(caches, &handle, *object);
            }
        });
        assert_eq!(taken, 0);
        assert_eq!(caches.info(&handle).cpu_slabs, 1);
        // On the other CPU there is nothing to be had; here there is, if it is of this node.
        let before = grown(&machine);
        machine.set_cpu(CpuId(0));
        let other = alloc(caches, &handle);
        assert_eq!(grown(&machine), before + 1);
        machine.set_cpu(CpuId(1));
        let same = alloc(caches, &handle);
        let more = grown(&machine) - before - 1;
        assert_eq!(more, u64::from(nodes == 2), "node-local comes first");
        assert_eq!(slabs[0][..4].contains(&same), nodes == 1);
        for object in slabs[0][4..].iter().chain(&slabs[1]).chain([&other, &same]) {
            free(caches, &handle, *object);
        }
        ledger::validate(caches);
        if nodes == 1 {
            free_the_rest(caches, &handle, &slabs[0][..4], same);
        }
        caches.destroy(handle).unwrap();
    }
}

/// Nothing is left of the first four but `same`, which was freed.
fn free_the_rest<'m>(
    caches: &Caches<Host<'m>>,
    handle: &Cache<Host<'m>>,
    first: &[NonNull<u8>],
    same: NonNull<u8>,
) {
    assert!(first.contains(&same));
    assert_eq!(caches.info(handle).used_objects(), 0);
}

#[test]
fn too_many_free_objects_take_all_but_the_newest_slab_to_the_node_in_one_go() {
    let machine = two_cpus(1);
    let caches = ledger::boot(&machine, Flavour::Linux.policy());
    let handle = made(caches, 256, 6);
    let slabs: Vec<Vec<_>> = (0..9)
        .map(|_| (0..16).map(|_| alloc(caches, &handle)).collect())
        .collect();
    // One object of each: the eighth slab finds seven free objects there.
    for (n, slab) in slabs.iter().enumerate() {
        let (_, taken) = locks_of(&machine, || free(caches, &handle, slab[0]));
        assert_eq!(taken, u64::from(n == 7), "slab {n}");
        let there = if n < 7 { n + 1 } else { n - 6 };
        assert_eq!(caches.info(&handle).cpu_slabs, there);
    }
    // What is refilled from the node comes several slabs at a time, half of the limit.
    let one = || locks_of(&machine, || alloc(caches, &handle)).1;
    let taken: Vec<_> = (0..8).map(|_| one()).collect();
    assert_eq!(taken, [0, 0, 1, 0, 0, 1, 0, 0]);
    ledger::validate(caches);
}

#[test]
fn slots_are_drained_by_whoever_gives_memory_back() {
    let machine = two_cpus(2);
    let caches = ledger::boot(&machine, Flavour::Linux.policy());
    let handle = made(caches, 256, 1000);
    let fill = || {
        for cpu in [0, 1] {
            machine.set_cpu(CpuId(cpu));
            let all: Vec<_> = (0..64).map(|_| alloc(caches, &handle)).collect();
            all.into_iter()
                .for_each(|object| free(caches, &handle, object));
        }
        assert_eq!(caches.info(&handle).cpu_slabs, 8);
    };
    fill();
    assert_eq!(caches.shrink(&handle), 8);
    fill();
    assert_eq!(caches.shrink_all(), 8);
    fill();
    caches.reap(false);
    assert_eq!(caches.info(&handle).cpu_slabs, 0);
    caches.shrink(&handle);
    fill();
    assert!(caches.drain_cpu(CpuId(0)));
    let info = caches.info(&handle);
    assert!(info.cpu_slabs == 4, "{}", info.cpu_slabs);
    ledger::validate(caches);
    assert!(caches.set_cpu_slabs(&handle, 0));
    assert_eq!(caches.info(&handle).cpu_slabs, 0);
    let kept = alloc(caches, &handle);
    free(caches, &handle, alloc(caches, &handle));
    assert_eq!(caches.info(&handle).cpu_slabs, 0, "switched off");
    ledger::validate(caches);
    assert!(caches.set_cpu_slabs(&handle, 1000));
    let busy = caches.destroy(handle).unwrap_err();
    assert_eq!(busy.objects, 1);
    let handle = busy.cache;
    free(caches, &handle, kept);
    free(caches, &handle, alloc(caches, &handle));
    assert_eq!(caches.info(&handle).cpu_slabs, 1, "as it was");
    caches.destroy(handle).unwrap();
    ledger::validate(caches);
}

#[test]
fn what_waits_on_other_cpus_is_found_before_memory_is_out() {
    for nodes in [1, 2] {
        let machine = Machine::builder().cpus(4).nodes(nodes).memory(256).build();
        let caches = ledger::boot(&machine, Flavour::Linux.policy());
        let handle = made(caches, 1000, 10_000);
        let mut all = Vec::new();
        while let Ok(object) = caches.alloc(&handle, Gfp::KERNEL | Gfp::NOWARN) {
            all.push(object);
        }
        let freed: Vec<_> = all.drain(..40).collect();
        for object in &freed {
            free(caches, &handle, *object);
        }
        for (cpu, gfp) in [(1, Gfp::empty()), (2, Gfp::THISNODE), (3, Gfp::empty())] {
            machine.set_cpu(CpuId(cpu));
            let object = caches
                .alloc_node(&handle, Gfp::KERNEL | gfp, Nid(0))
                .unwrap();
            assert!(freed.contains(&object));
            free(caches, &handle, object);
        }
        all.into_iter()
            .for_each(|object| free(caches, &handle, object));
        assert_eq!(caches.info(&handle).used_objects(), 0);
        caches.destroy(handle).unwrap();
        ledger::validate(caches);
    }
}

#[test]
fn the_switch_is_for_caches_that_are_made_after_it() {
    let machine = two_cpus(1);
    let caches = ledger::boot(&machine, Flavour::Linux.policy());
    let params = CacheParams::new("plain", 300, 8);
    let plain = caches.create(&params).unwrap();
    caches.improvements().set_cpu_slabs(true);
    let rival = caches.create(&params).unwrap();
    assert!(
        !core::ptr::eq(&raw const *plain, &raw const *rival),
        "forms do not merge"
    );
    let again = caches.create(&params).unwrap();
    assert!(core::ptr::eq(&raw const *again, &raw const *rival));
    assert!(!caches.set_cpu_slabs(&plain, 10) && caches.set_cpu_slabs(&rival, 10));
    caches.improvements().set_cpu_slabs(false);
    for handle in [plain, rival, again] {
        free(caches, &handle, alloc(caches, &handle));
        caches.destroy(handle).unwrap();
    }
}

#[test]
fn slabinfo_tells_of_cpu_slabs() {
    let machine = two_cpus(1);
    let caches = ledger::boot(&machine, Flavour::Linux.policy());
    let handle = made(caches, 256, 52);
    let object = alloc(caches, &handle);
    let mut text = String::new();
    caches.info(&handle).write_json(&mut text).unwrap();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["cpu_slabs"], 1);
    assert_eq!(value["cpu_free_objs"], 15);
    assert_eq!(value["active_objs"], 1);
    free(caches, &handle, object);
}
