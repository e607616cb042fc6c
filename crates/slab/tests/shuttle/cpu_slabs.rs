//! The rival form under the model checker: slabs that move between the CPUs' slots and the nodes beside allocations and frees.
//!
//! The CPU is drawn at each call, so a slab is freed to from another CPU than its own as often as not, and the slot of the current CPU is
//! often somebody else's.

use super::*;

#[test]
fn slots_beside_drains_of_them() {
    // Two objects to a slab, so that nearly every free finds a full one.
    check(150, || {
        beside_with(ONE_NODE, 2000, 4, Some(2), |caches, cache| {
            caches.drain_cpu(CpuId(0));
            caches.reap(true);
            caches.shrink(cache);
        });
    });
}

#[test]
fn slots_that_are_switched_off_and_on() {
    check(150, || {
        beside_with(ONE_NODE, 1000, 5, Some(1), |caches, cache| {
            for _ in 0..2 {
                assert!(caches.set_cpu_slabs(cache, 0));
                assert_eq!(caches.info(cache).cpu_slabs, 0);
                thread::yield_now();
                assert_eq!(caches.info(cache).cpu_slabs, 0);
                assert!(caches.set_cpu_slabs(cache, 3));
            }
        });
    });
}

#[test]
fn slots_of_two_nodes_hand_slabs_to_each_other() {
    check(120, || travels(Some(1)));
    check(60, || travels(Some(100)));
}

#[test]
fn a_fork_takes_the_locks_of_slots() {
    use flagstone_host::classes::Fork;
    type Gate = flagstone_host::Mutex<Host, Fork, ()>;
    check(100, || {
        beside_with(TWO_NODES, 600, 3, Some(4), |caches, _| {
            static GATE: Gate = Gate::new(());
            let gate = GATE.lock();
            caches.lock_for_fork();
            thread::yield_now();
            // SAFETY: F2: this thread took them just now.
            unsafe { caches.unlock_after_fork() };
            drop(gate);
        });
    });
}
