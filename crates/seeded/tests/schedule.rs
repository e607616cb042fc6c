//! The schedule: what may intervene where, and that what never ends is told.

use flagstone_host::{Backtrace, Clock, Count, Cpus, Entropy, Event, Level, Log};
use flagstone_seeded::{ArrayForm, FailureKind, Machine, Policy, Rng, Task, for_each_seed, task};
use flagstone_types::{CpuId, Nanos, Nid};
use std::cell::{Cell, RefCell};
use std::collections::HashSet;

fn policies() -> [Policy; 4] {
    [
        Policy::Uniform { mean: 1 },
        Policy::Uniform { mean: 10 },
        Policy::Bursts { calm: 20, storm: 5 },
        Policy::Priorities { interval: 10 },
    ]
}

/// Whether the environment chose the seeds, so that what only many seeds show need not show.
fn few_seeds() -> bool {
    std::env::var_os("FLAGSTONE_SEED").is_some() || std::env::var_os("FLAGSTONE_SEEDS").is_some()
}

#[test]
fn every_task_runs_to_its_end_whatever_the_policy() {
    for policy in policies() {
        for_each_seed(50, |seed| {
            let rng = Rng::new(seed);
            let machine = Machine::builder()
                .cpus(1 + rng.below(8))
                .policy(policy)
                .seed(seed)
                .build();
            let ended = Cell::new(0);
            let (host, count) = (&machine, &ended);
            let tasks: Vec<Task<'_>> = (0..12)
                .map(|i| {
                    task(move |ctx| {
                        assert_eq!(ctx.index(), i);
                        for _ in 0..20 {
                            assert!(host.current_cpu().0 < host.possible_cpus());
                        }
                        count.set(count.get() + 1);
                    })
                })
                .collect();
            let report = machine.run(tasks);
            assert_eq!(ended.get(), 12);
            assert!(report.switches > 0 && report.steps >= 12 * 40);
        });
    }
}

#[test]
fn tasks_interleave_in_very_many_ways() {
    let mut orders = HashSet::new();
    for_each_seed(400, |seed| {
        let machine = Machine::builder().cpus(3).seed(seed).build();
        let order = RefCell::new(Vec::new());
        let tasks = (0..3).map(|i| {
            let order = &order;
            task(move |ctx| {
                for _ in 0..4 {
                    order.borrow_mut().push(i);
                    ctx.step();
                }
            })
        });
        machine.run(tasks.collect());
        orders.insert(order.into_inner());
    });
    assert!(orders.len() > 100 || few_seeds(), "{}", orders.len());
}

#[test]
fn blocked_interrupts_keep_others_off_this_cpu_but_not_off_others() {
    let others_went_on = Cell::new(false);
    for_each_seed(200, |seed| {
        let machine = Machine::builder()
            .cpus(2)
            .interrupts(true)
            .seed(seed)
            .build();
        let inside = [Cell::new(false), Cell::new(false)];
        let tasks = (0..6).map(|_| {
            let (host, inside, others) = (&machine, &inside, &others_went_on);
            task(move |ctx| {
                for _ in 0..10 {
                    let guard = host.irq_guard();
                    let cpu = ctx.cpu();
                    assert!(
                        !inside[cpu.index()].replace(true),
                        "two tasks in one CPU's section"
                    );
                    for _ in 0..5 {
                        ctx.step();
                        ctx.migrate(CpuId(1 - cpu.0));
                        assert_eq!(ctx.cpu(), cpu, "moved with interrupts blocked");
                        others.set(others.get() || inside[1 - cpu.index()].get());
                    }
                    inside[cpu.index()].set(false);
                    let nested = host.irq_guard();
                    drop(guard);
                    drop(nested);
                }
            })
        });
        machine.run(tasks.collect());
    });
    assert!(others_went_on.get() || few_seeds());
}

#[test]
fn without_interrupts_a_guard_keeps_nobody_off() {
    let seen = Cell::new(false);
    for_each_seed(50, |seed| {
        let machine = Machine::builder()
            .cpus(1)
            .interrupts(false)
            .preemption(200)
            .seed(seed)
            .build();
        let inside = Cell::new(0);
        let tasks = (0..3).map(|_| {
            let (host, inside, seen) = (&machine, &inside, &seen);
            task(move |ctx| {
                let _guard = host.irq_guard();
                inside.set(inside.get() + 1);
                (0..20).for_each(|_| ctx.step());
                seen.set(seen.get() || inside.get() > 1);
                inside.set(inside.get() - 1);
            })
        });
        machine.run(tasks.collect());
    });
    assert!(seen.get() || few_seeds());
}

#[test]
fn tasks_move_unless_arrays_are_plain_and_never_to_an_offline_cpu() {
    for_each_seed(50, |seed| {
        let machine = Machine::builder().cpus(4).seed(seed).build();
        machine.set_online(CpuId(2), false);
        assert!(!(&machine).is_online(CpuId(2)) && (&machine).is_online(CpuId(3)));
        let tasks = (0..6).map(|_| {
            let host = &machine;
            task(move |ctx| {
                for cpu in 0..40 {
                    assert_ne!(host.current_cpu(), CpuId(2));
                    ctx.migrate(CpuId(cpu % 4));
                }
            })
        });
        assert!(machine.run(tasks.collect()).migrations > 20);
        let machine = Machine::builder()
            .cpus(4)
            .form(ArrayForm::Plain)
            .seed(seed)
            .build();
        let tasks =
            (0..4).map(|i| task(move |ctx| (0..40).for_each(|_| assert_eq!(ctx.cpu(), CpuId(i)))));
        assert_eq!(machine.run(tasks.collect()).migrations, 0);
    });
}

#[test]
fn what_never_comes_ends_the_run_with_the_seed() {
    let machine = Machine::builder().seed(0xabc).step_limit(10_000).build();
    let host = &machine;
    let failure = machine
        .try_run(vec![task(move |_| {
            while !host.is_online(CpuId(99)) {
                host.relax(0);
            }
        })])
        .unwrap_err();
    assert_eq!(failure.kind, FailureKind::StepLimit);
    assert!(failure.to_string().contains("SEED=0x0000000000000abc"));
    assert!(failure.to_string().contains("FLAGSTONE_SEED=0xabc"));
}

#[test]
fn a_panic_in_a_task_is_a_failure_and_goes_on_as_itself() {
    let machine = Machine::builder().seed(5).build();
    let failure = machine
        .try_run(vec![task(|_| panic!("told so")), task(|ctx| ctx.step())])
        .unwrap_err();
    assert_eq!((failure.kind, failure.seed), (FailureKind::Panic, 5));
    assert!(failure.text.contains("told so"));
    let machine = Machine::builder().build();
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        machine.run(vec![task(|_| panic!("itself"))])
    }));
    assert_eq!(*panic.unwrap_err().downcast::<&str>().unwrap(), "itself");
}

#[test]
fn services_are_virtual_seeded_and_kept() {
    let machine = Machine::builder().cpus(6).nodes(3).seed(1).build();
    let host = &machine;
    let before = host.now();
    machine.advance(Nanos(1_000_000));
    assert!(host.now().since(before).0 >= 1_000_000);
    assert_ne!(host.random(), host.random());
    assert_eq!(
        (&Machine::builder().seed(1).build()).random(),
        (&Machine::builder().seed(1).build()).random()
    );
    host.log(Level::Warning, format_args!("{} pages", 3));
    assert_eq!(machine.messages(), [(Level::Warning, "3 pages".to_owned())]);
    machine.set_backtrace(&[1, 2, 3]);
    let mut into = [0; 2];
    assert_eq!((host.backtrace(&mut into), into), (2, [1, 2]));
    host.count(Event::Pgfree, 4);
    assert_eq!(host.counted(Event::Pgfree), 4);
    machine.set_cpu(CpuId(5));
    assert_eq!(
        (host.current_cpu(), host.current_node()),
        (CpuId(5), Nid(2))
    );
    assert_eq!(
        (host.distance(Nid(0), Nid(0)), host.distance(Nid(0), Nid(2))),
        (10, 20)
    );
}

#[test]
fn thousands_of_machines_live_in_one_process() {
    for_each_seed(3000, |seed| {
        let machine = Machine::builder().cpus(8).nodes(2).seed(seed).build();
        machine.run(
            (0..8)
                .map(|_| task(|ctx| (0..50).for_each(|_| ctx.step())))
                .collect(),
        );
    });
}
