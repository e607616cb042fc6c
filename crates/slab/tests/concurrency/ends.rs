//! Caches that end while others of their shape are made, and forks.

use super::ledger::{self, Flavour};
use flagstone_seeded::{Machine, Rng, Task, TaskCtx, for_each_seed, task};
use flagstone_slab::CacheParams;
use flagstone_types::Gfp;

/// Makers and destroyers of caches of one shape meet: a handle that is handed out is never one of a cache that ends.
#[test]
fn merging_and_destroying_meet() {
    for_each_seed(200, |seed| {
        let rng = Rng::new(!seed);
        let machine = Machine::builder().seed(seed).cpus(3).build();
        let caches = ledger::boot(&machine, Flavour::Tiny.policy());
        caches.improvements().set_cpu_slabs(rng.chance(128));
        let tasks = (0..5)
            .map(|_| {
                let rng = Rng::new(rng.bits());
                task(move |_| {
                    for _ in 0..8 {
                        let params = CacheParams::new("one-shape", 72, 8);
                        let handle = caches.create(&params).unwrap();
                        assert_eq!(handle.name(), "one-shape");
                        let mine: Vec<_> = (0..rng.below(5))
                            .map(|_| caches.alloc(&handle, Gfp::KERNEL).unwrap())
                            .collect();
                        for object in mine {
                            // SAFETY: the task owns it.
                            unsafe { caches.free(&handle, object) };
                        }
                        if rng.chance(60) {
                            caches.reap(true);
                        }
                        caches.destroy(handle).unwrap();
                    }
                })
            })
            .collect();
        machine.run(tasks);
        let mut names = Vec::new();
        caches.slabinfo(|info| names.push(info.name().to_owned()));
        assert!(!names.contains(&"one-shape".to_owned()));
        ledger::validate(caches);
    });
}

/// A cache is destroyed beside those who free its last objects: it ends when no object is with anybody, never before.
#[test]
fn destroying_beside_the_last_frees() {
    for_each_seed(200, |seed| {
        let rng = Rng::new(!seed);
        let nodes = 1 + rng.below(2);
        let machine = Machine::builder().seed(seed).cpus(4).nodes(nodes).build();
        let caches = ledger::boot(&machine, Flavour::Tiny.policy());
        let mut params = CacheParams::new("ending", 72, 8);
        params.flags.no_merge = true;
        let handle = caches.create(&params).unwrap();
        let mut objects: Vec<_> = (0..60)
            .map(|_| caches.alloc(&handle, Gfp::KERNEL).unwrap())
            .collect();
        // Objects that no task has begun to free.
        let live = core::cell::Cell::new(objects.len());
        let mut tasks: Vec<Task<'_>> = (0..3)
            .map(|_| {
                let mine = objects.split_off(objects.len() - 20);
                let live = &live;
                task(move |_| {
                    for object in mine {
                        live.set(live.get() - 1);
                        // SAFETY: the task owns it.
                        unsafe { caches.kfree(object) };
                    }
                })
            })
            .collect();
        let live = &live;
        tasks.push(task(move |ctx| {
            let mut handle = handle;
            while let Err(busy) = caches.destroy(handle) {
                handle = busy.cache;
                ctx.yield_now();
            }
            assert_eq!(live.get(), 0, "objects in use were destroyed");
        }));
        machine.run(tasks);
        ledger::validate(caches);
    });
}

/// A fork takes every lock while others allocate, free, reap and make caches; nobody waits for ever, and the order is kept.
#[test]
fn forks_take_every_lock_in_order() {
    for_each_seed(60, |seed| {
        let rng = Rng::new(!seed);
        let machine = Machine::builder()
            .seed(seed)
            .cpus(3)
            .nodes(1 + rng.below(3))
            .build();
        let caches = ledger::boot(&machine, Flavour::Tiny.policy());
        caches.improvements().set_cpu_slabs(rng.chance(128));
        let gate = flagstone_host::Mutex::<&Machine, flagstone_host::classes::Fork, ()>::new(());
        let gate = &gate;
        let mut tasks: Vec<Task<'_>> = (0..4)
            .map(|_| {
                let rng = Rng::new(rng.bits());
                task(move |_| {
                    for _ in 0..4 {
                        let params = CacheParams::new("forked", 8 << rng.below(7), 8);
                        let handle = caches.create(&params).unwrap();
                        let mine: Vec<_> = (0..10)
                            .map(|_| caches.alloc(&handle, Gfp::KERNEL).unwrap())
                            .collect();
                        for object in mine {
                            // SAFETY: the task owns it.
                            unsafe { caches.free(&handle, object) };
                        }
                        caches.reap(rng.chance(128));
                        caches.destroy(handle).unwrap();
                    }
                })
            })
            .collect();
        tasks.extend((0..2).map(|_| {
            task(move |ctx: &TaskCtx<'_>| {
                for _ in 0..3 {
                    let _gate = gate.lock();
                    caches.lock_for_fork();
                    for _ in 0..5 {
                        ctx.step();
                    }
                    // SAFETY: F2: this task took them just now.
                    unsafe { caches.unlock_after_fork() };
                }
            })
        }));
        machine.run(tasks);
        ledger::validate(caches);
    });
}
