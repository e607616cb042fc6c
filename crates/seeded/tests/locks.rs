//! Locks: exclusion, order, deadlock, statistics.

use flagstone_host::{Cpus, Mutex, classes};
use flagstone_seeded::{FailureKind, Machine, Task, for_each_seed, task};
use std::cell::Cell;

type Lock<C> = Mutex<&'static Machine, C, Cell<u64>>;

/// Whether the environment chose the seeds, so that what only many seeds show need not show.
fn few_seeds() -> bool {
    std::env::var_os("FLAGSTONE_SEED").is_some() || std::env::var_os("FLAGSTONE_SEEDS").is_some()
}

#[test]
fn a_lock_excludes_and_everybody_gets_it() {
    let contended = Cell::new(0);
    for_each_seed(300, |seed| {
        let machine = Machine::builder()
            .cpus(1 + seed as usize % 5)
            .seed(seed)
            .build();
        let lock = Lock::<classes::Zone>::new(Cell::new(0));
        let tasks = (0..8).map(|_| {
            let lock = &lock;
            task(move |ctx| {
                for _ in 0..10 {
                    let value = lock.lock();
                    let seen = value.get();
                    ctx.step();
                    ctx.step();
                    value.set(seen + 1);
                }
            })
        });
        machine.run(tasks.collect());
        assert_eq!(lock.lock().get(), 80);
        let stats = machine.lock_stats();
        assert_eq!(
            (stats.len(), stats[0].name, stats[0].acquisitions),
            (1, "zone", 81)
        );
        assert!(stats[0].steps >= 160 && stats[0].longest >= 2);
        contended.set(contended.get() + stats[0].contended);
    });
    assert!(contended.get() > 100 || few_seeds());
}

#[test]
fn steps_under_a_lock_are_those_of_its_holder_whatever_others_do() {
    let steps = |tasks: usize, seed| {
        let machine = Machine::builder().cpus(4).seed(seed).build();
        let lock = Lock::<classes::SlabNode>::new(Cell::new(0));
        let tasks = (0..tasks).map(|_| {
            let lock = &lock;
            task(move |ctx| {
                let _held = lock.lock();
                (0..10).for_each(|_| ctx.step());
            })
        });
        machine.run(tasks.collect());
        let stat = machine.lock_stats()[0];
        machine.reset_lock_stats();
        assert!(machine.lock_stats().is_empty());
        stat.steps
    };
    for seed in 0..20 {
        assert_eq!(steps(8, seed), 8 * steps(1, seed));
    }
}

#[test]
fn a_lock_taken_out_of_order_fails_the_run_but_a_tried_one_does_not() {
    let machine = Machine::builder().seed(3).build();
    let zone = Lock::<classes::Zone>::new(Cell::new(0));
    let node = Lock::<classes::SlabNode>::new(Cell::new(0));
    let failure = machine
        .try_run(vec![task(|_| {
            let _zone = zone.lock();
            drop(node.try_lock().expect("free"));
            let _node = node.lock();
        })])
        .unwrap_err();
    assert_eq!(failure.kind, FailureKind::LockOrder);
    assert!(
        failure.text.contains("slab_node taken while holding zone"),
        "{}",
        failure.text
    );
}

#[test]
fn a_lock_taken_twice_fails_the_run() {
    let machine = Machine::builder().build();
    let zone = Lock::<classes::Zone>::new(Cell::new(0));
    let failure = machine
        .try_run(vec![task(|_| {
            let _once = zone.lock();
            let _twice = zone.lock();
        })])
        .unwrap_err();
    assert_eq!(failure.kind, FailureKind::LockOrder);
}

#[test]
fn a_lock_that_may_sleep_is_not_taken_with_interrupts_blocked() {
    let machine = Machine::builder().interrupts(true).build();
    let list = Lock::<classes::CacheList>::new(Cell::new(0));
    let host = &machine;
    let tasks: Vec<Task<'_>> = vec![task(|_| {
        let _irq = host.irq_guard();
        let _held = list.lock();
    })];
    assert_eq!(
        machine.try_run(tasks).unwrap_err().kind,
        FailureKind::LockOrder
    );
}

#[test]
fn a_deadlock_is_found_and_says_who_holds_what() {
    for_each_seed(100, |seed| {
        let machine = Machine::builder()
            .cpus(1 + seed as usize % 3)
            .seed(seed)
            .build();
        let node = Lock::<classes::SlabNode>::new(Cell::new(0));
        let zone = Lock::<classes::Zone>::new(Cell::new(0));
        // The order checker forbids a cycle of waiting tasks, so the lock that never comes is one held outside.
        let outside = zone.lock();
        let tasks = (0..3).map(|_| {
            let (node, zone) = (&node, &zone);
            task(move |_| {
                let _node = node.lock();
                let _zone = zone.lock();
            })
        });
        let failure = machine.try_run(tasks.collect()).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Deadlock);
        let text = failure.to_string();
        assert!(text.contains("outside on CPU 0 holds zone@"), "{text}");
        assert!(
            text.contains("waits for zone@") && text.contains("(held outside)"),
            "{text}"
        );
        assert!(text.contains("SEED="), "{text}");
        drop(outside);
    });
}

#[test]
fn a_lock_that_a_task_never_released_is_told_at_its_end() {
    let machine = Machine::builder().build();
    let zone = Lock::<classes::Zone>::new(Cell::new(0));
    let failure = machine
        .try_run(vec![task(|_| std::mem::forget(zone.lock()))])
        .unwrap_err();
    assert_eq!(failure.kind, FailureKind::Leftover);
    assert!(failure.text.contains("holds zone@"), "{}", failure.text);
}

#[test]
fn two_machines_in_one_thread_keep_their_locks_apart() {
    let (a, b) = (Machine::builder().build(), Machine::builder().build());
    let of_a = Lock::<classes::Zone>::new(Cell::new(0));
    let of_b = Lock::<classes::SlabNode>::new(Cell::new(0));
    (&a).current_cpu();
    let held_in_a = of_a.lock();
    (&b).current_cpu();
    let held_in_b = of_b.lock();
    drop(held_in_a);
    drop(held_in_b);
    assert_eq!(
        (a.lock_stats()[0].name, b.lock_stats()[0].name),
        ("zone", "slab_node")
    );
}

#[test]
fn a_lock_works_in_a_thread_without_a_machine() {
    type Plain = Mutex<&'static Machine, classes::Zone, u64>;
    let lock = std::sync::Arc::new(Plain::new(0));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let lock = std::sync::Arc::clone(&lock);
            std::thread::spawn(move || (0..1000).for_each(|_| *lock.lock() += 1))
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(*lock.lock(), 4000);
}

#[test]
fn an_interrupt_may_take_locks_of_its_classes_and_no_others() {
    let run = |sleeps: bool| {
        let machine = Machine::builder().interrupts(true).seed(4).build();
        let zone = Lock::<classes::Zone>::new(Cell::new(0));
        let list = Lock::<classes::CacheList>::new(Cell::new(0));
        let handler = || {
            zone.lock().set(1);
            if sleeps {
                list.lock().set(1);
            }
        };
        let work = || {
            task(|_| {
                for _ in 0..50 {
                    let _list = list.lock();
                    let _zone = zone.lock();
                }
            })
        };
        let result = machine.with_interrupts(&handler, || machine.try_run(vec![work(), work()]));
        assert!(machine.interrupts() > 0);
        result
    };
    run(false).unwrap();
    assert_eq!(run(true).unwrap_err().kind, FailureKind::LockOrder);
}
