//! Arrays that are drained all the time, broken on purpose, or switched off, beside their use.

use super::ledger::{self, Flavour, Ledger};
use flagstone_seeded::{
    ArrayForm, Call, Fault, Machine, Mutation, Policy, Rng, Task, for_each_seed, task,
};
use flagstone_slab::CacheParams;
use flagstone_types::Gfp;
use std::panic::AssertUnwindSafe;

/// Allocates, frees and shrinks on arrays that are broken on purpose, or not. `Err` says what went wrong.
fn drained_all_the_time(seed: u64, mutation: Option<Mutation>) -> Result<(), String> {
    let rng = Rng::new(!seed);
    let mut builder = Machine::builder().seed(seed).cpus(3);
    if rng.chance(160) {
        // Long stalls of single tasks are what a wrong order of reads needs.
        let interval = rng.pick(&[4, 8, 15]);
        builder = builder
            .policy(Policy::Priorities { interval })
            .preemption(8);
    }
    if let Some(mutation) = mutation {
        builder = builder.mutation(mutation);
    }
    let machine = builder.build();
    let caches = ledger::boot(&machine, Flavour::Tiny.policy());
    let mut params = CacheParams::new("drained", 64, 64);
    params.cpu_slabs = rng.chance(128).then_some(4);
    let handle = caches.create(&params).unwrap();
    let ledger = Ledger::default();
    let mut tasks: Vec<Task<'_>> = (0..3)
        .map(|_| {
            let (handle, ledger, rng) = (&handle, &ledger, Rng::new(rng.bits()));
            task(move |_| {
                let mut mine = Vec::new();
                for _ in 0..100 {
                    if mine.len() < 6 && rng.chance(140) {
                        let object = caches.alloc(handle, Gfp::KERNEL).unwrap();
                        mine.push(ledger.take_filled(object, 64, 64));
                    } else if let Some(owned) = mine.pop() {
                        // SAFETY: the task owns it.
                        unsafe { caches.free(handle, ledger.give_checked(owned)) };
                    }
                }
                for owned in mine {
                    // SAFETY: the task owns it.
                    unsafe { caches.free(handle, ledger.give_checked(owned)) };
                }
            })
        })
        .collect();
    let drained = &handle;
    tasks.push(task(move |_| {
        for _ in 0..60 {
            caches.drain_arrays(drained);
        }
    }));
    machine.try_run(tasks).map_err(|f| f.to_string())?;
    caches.validate()?;
    caches.shrink(&handle);
    match caches.objects_out(&handle) {
        0 => Ok(()),
        lost => Err(format!("{lost} objects are lost")),
    }
}

#[test]
fn what_is_drained_all_the_time_loses_nothing() {
    for_each_seed(150, |seed| {
        if let Err(problem) = drained_all_the_time(seed, None) {
            panic!("{problem}");
        }
    });
}

/// Whether broken arrays are found through the caches, and after how many seeds.
fn is_found(mutation: Mutation) {
    let seeds = Rng::new(7);
    let found = (1..=4000).find(|_| {
        let seed = seeds.bits();
        let run = AssertUnwindSafe(|| drained_all_the_time(seed, Some(mutation)));
        !matches!(std::panic::catch_unwind(run), Ok(Ok(())))
    });
    ledger::bad_frees();
    let after = found.unwrap_or_else(|| panic!("{mutation:?} was not found"));
    eprintln!("{mutation:?} was found after {after} seeds");
}

#[test]
fn broken_sections_are_found_through_the_caches() {
    is_found(Mutation::StopReadAfterCount);
    is_found(Mutation::NoRestart);
    is_found(Mutation::NoRestartAtStop);
}

/// While arrays are off, every object is seen by the slow paths: none waits in an array, however late a CPU read the old limit.
#[test]
fn arrays_that_are_off_stay_empty() {
    for_each_seed(150, |seed| {
        let rng = Rng::new(!seed);
        let form = rng.pick(&ArrayForm::ALL[..4]);
        let cpus = rng.pick(&[1, 2, 4]);
        let machine = Machine::builder()
            .seed(seed)
            .cpus(cpus)
            .nodes(1 + rng.below(cpus))
            .form(form)
            .build();
        let flavour = rng.pick(&[Flavour::Tiny, Flavour::Process, Flavour::Linux]);
        let caches = ledger::boot(&machine, flavour.policy());
        let mut params = CacheParams::new("switched", 64, 64);
        params.cpu_slabs = rng.chance(128).then_some(100);
        let handle = caches.create(&params).unwrap();
        let done = std::cell::Cell::new(false);
        let mut tasks: Vec<Task<'_>> = (0..cpus + 2)
            .map(|_| {
                let (rng, handle, done) = (Rng::new(rng.bits()), &handle, &done);
                task(move |_| {
                    let mut mine = Vec::new();
                    while !done.get() {
                        if mine.len() < 12 && rng.chance(140) {
                            mine.extend(caches.alloc(handle, Gfp::KERNEL));
                        } else if let Some(object) = mine.pop() {
                            // SAFETY: the task owns it.
                            unsafe { caches.free(handle, object) };
                        }
                    }
                    for object in mine {
                        // SAFETY: the task owns it.
                        unsafe { caches.free(handle, object) };
                    }
                })
            })
            .collect();
        let (handle, done) = (&handle, &done);
        tasks.push(task(move |ctx| {
            for _ in 0..4 {
                assert!(caches.set_arrays(handle, false));
                for _ in 0..4 {
                    let info = caches.info(handle);
                    assert_eq!(info.cached_objects, 0, "{info} {form:?} {flavour:?}");
                    ctx.yield_now();
                }
                assert!(caches.set_arrays(handle, true));
                for _ in 0..rng.below(30) {
                    ctx.yield_now();
                }
            }
            done.set(true);
        }));
        machine.run(tasks);
        ledger::validate(caches);
        caches.shrink(handle);
        assert_eq!(caches.objects_out(handle), 0);
    });
}

/// A caller whose arrays can not be stopped a second time must not undo what another one was told: there is no second time.
#[test]
fn switching_off_fails_only_before_anything_has_changed() {
    for nth in 1..4 {
        let machine = Machine::builder().cpus(2).build();
        let caches = ledger::boot(&machine, Flavour::Tiny.policy());
        let handle = caches
            .create(&CacheParams::new("switched", 64, 64))
            .unwrap();
        assert!(caches.set_arrays(&handle, false));
        // Another caller: it is told no, or what it asked for holds; either way the first one's arrays stay off.
        machine.inject(Call::StopArrays, Fault::Nth(nth));
        let told = caches.set_arrays(&handle, false);
        machine.inject(Call::StopArrays, Fault::Never);
        assert_eq!(told, nth != 1, "stop number {nth}");
        assert_eq!(caches.info(&handle).limit, 0);
        let object = caches.alloc(&handle, Gfp::KERNEL).unwrap();
        // SAFETY: allocated above.
        unsafe { caches.free(&handle, object) };
        assert_eq!(caches.info(&handle).cached_objects, 0);
    }
}
