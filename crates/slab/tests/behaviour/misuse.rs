//! Pointers that are freed twice or are no objects.

use super::*;

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

thread_local!(static TOLD: Cell<Option<&'static Caches<Host<'static>>>> = const { Cell::new(None) });

/// Does what the handler of an abort may do: the machine fails the test if a lock is taken that is held already.
fn use_the_heap(bad: &flagstone_slab::BadFree<'_>) {
    ledger::note_bad_free(bad);
    let caches = TOLD.get().unwrap();
    let object = caches.kmalloc(100, Gfp::KERNEL).unwrap();
    // SAFETY: allocated just now.
    unsafe { caches.kfree(object) };
    {
        type Gate = flagstone_host::Mutex<Host<'static>, flagstone_host::classes::Fork, ()>;
        static GATE: Gate = Gate::new(());
        let _gate = GATE.lock();
        caches.lock_for_fork();
        // SAFETY: F2: taken just now.
        unsafe { caches.unlock_after_fork() };
    }
    caches.reap(true);
}

#[test]
fn whoever_is_told_of_a_bad_free_may_take_every_lock() {
    // Leaked, so that the function above can name it.
    let machine: &'static Machine = Box::leak(Box::new(Machine::builder().cpus(1).build()));
    let policy = Policy {
        bad_free: use_the_heap,
        debug: flagstone_slab::DebugPolicy::NONE,
        ..Flavour::Tiny.policy()
    };
    let caches = ledger::boot(machine, policy);
    TOLD.set(Some(caches));
    let handle = caches.create(&CacheParams::new("told", 100, 8)).unwrap();
    let object = alloc(caches, &handle);
    // SAFETY: only addresses are made.
    let inside = unsafe { [object.add(8), object.add(16), object.add(24)] };
    // As long as they wait in an array nobody has looked at them; objects before and behind them reach their slabs all the same.
    let others: Vec<_> = (0..40).map(|_| alloc(caches, &handle)).collect();
    for (i, other) in others.iter().enumerate() {
        free(caches, &handle, *other);
        if i % 8 == 0 {
            free(caches, &handle, inside[i / 8 % 3]);
        }
    }
    caches.reap(true);
    caches.shrink_all();
    let reported: BTreeSet<_> = bad_frees().into_iter().map(|bad| bad.0).collect();
    assert_eq!(reported, inside.map(|at| at.as_ptr().addr()).into());
    free(caches, &handle, object);
    caches.shrink_all();
    assert_eq!(caches.objects_out(&handle), 0);
    ledger::validate(caches);
}
