//! Quarantine against a model, and under seeded schedules: nothing lost, nothing twice, nothing in the wrong order.

use super::*;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use flagstone_host::Cpus as _;
use flagstone_seeded::{Machine as Seeded, for_each_seed, task};
use flagstone_types::CpuId;
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::vec;
use std::vec::Vec;

type Host<'m> = &'m Seeded<12, 6>;

/// Freed objects: the link of each, in memory that lives as long as the test.
struct Objects(Vec<UnsafeCell<MaybeUninit<Link>>>);

impl Objects {
    fn new(count: usize) -> Self {
        Self(
            (0..count)
                .map(|_| UnsafeCell::new(MaybeUninit::uninit()))
                .collect(),
        )
    }

    fn link(&self, k: usize) -> NonNull<Link> {
        NonNull::new(self.0[k].get()).unwrap().cast()
    }

    fn number(&self, link: NonNull<Link>) -> usize {
        (0..self.0.len()).find(|k| self.link(*k) == link).unwrap()
    }
}

fn slots<'m>(count: usize) -> Vec<Slot<Host<'m>>> {
    (0..count).map(|_| Slot::new()).collect()
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Put {
        cpu: u32,
        cache: usize,
        bytes: usize,
    },
    Reduce,
    Remove(usize),
    Limit(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0..3u32, 0..3usize, 1..400usize).prop_map(|(cpu, cache, bytes)| Op::Put { cpu, cache, bytes }),
        2 => Just(Op::Reduce),
        1 => (0..3usize).prop_map(Op::Remove),
        1 => (0..8000usize).prop_map(Op::Limit),
    ]
}

proptest! {
    #[test]
    fn objects_leave_once_and_in_order(ops in prop::collection::vec(op(), 1..200)) {
        let machine = Seeded::builder().cpus(3).build();
        let host: Host = &machine;
        let slots = slots(3);
        let objects = Objects::new(ops.len());
        let quarantine = Quarantine::new(host, &slots, Bytes(4000));
        // What waits: (number, cache, cpu, bytes), in the order of the puts.
        let mut waiting: Vec<(usize, usize, u32, usize)> = vec![];
        for (k, op) in ops.iter().enumerate() {
            match *op {
                Op::Put { cpu, cache, bytes } => {
                    machine.set_cpu(CpuId(cpu));
                    // SAFETY: Q1: the link lives as long as the test and is put in once.
                    unsafe { quarantine.put(objects.link(k), cache, Bytes(bytes)) };
                    waiting.push((k, cache, cpu, bytes));
                }
                Op::Reduce => {
                    let before = quarantine.stats();
                    let mut out = vec![];
                    quarantine.reduce(|link, cache| out.push((objects.number(link), cache)));
                    // Of one CPU, the oldest leave first.
                    for (number, cache) in out {
                        let at = waiting.iter().position(|w| w.0 == number).unwrap();
                        prop_assert_eq!(waiting[at].1, cache);
                        let cpu = waiting[at].2;
                        prop_assert!(waiting[..at].iter().all(|w| w.2 != cpu));
                        waiting.remove(at);
                    }
                    let after = quarantine.stats();
                    prop_assert!(after.queued <= after.limit);
                    prop_assert!(!quarantine.is_over());
                    prop_assert_eq!(after.queued == before.queued, after.evicted == before.evicted);
                    let all: usize = waiting.iter().map(|w| w.3).sum();
                    prop_assert!(all <= after.limit.0 + 3 * 400 + 8000 / 4);
                }
                Op::Remove(cache) => {
                    let mut out = BTreeSet::new();
                    quarantine.remove(|c| c == cache, |link, c| {
                        assert!(c == cache && out.insert(objects.number(link)));
                    });
                    let expected: BTreeSet<usize> = waiting.iter().filter(|w| w.1 == cache).map(|w| w.0).collect();
                    prop_assert_eq!(out, expected);
                    waiting.retain(|w| w.1 != cache);
                }
                Op::Limit(limit) => quarantine.set_limit(Bytes(limit)),
            }
        }
        let mut out = BTreeSet::new();
        quarantine.remove(|_| true, |link, _| assert!(out.insert(objects.number(link))));
        prop_assert_eq!(out, waiting.iter().map(|w| w.0).collect());
        prop_assert_eq!(quarantine.stats().queued, Bytes(0));
    }
}

#[test]
fn many_cpus_lose_nothing_and_a_removed_cache_is_in_nobodys_hands() {
    for_each_seed(60, |seed| {
        let machine = Seeded::builder().cpus(4).seed(seed).build();
        let host: Host = &machine;
        let slots = slots(4);
        let objects = Objects::new(160);
        let quarantine = Quarantine::new(host, &slots, Bytes(1200));
        let out = RefCell::new(BTreeSet::new());
        let gone = |link, _| {
            // Between leaving and being free others run.
            host.relax(0);
            assert!(out.borrow_mut().insert(objects.number(link)));
        };
        let mut tasks: Vec<flagstone_seeded::Task<'_>> = (0..4usize)
            .map(|t| {
                let (quarantine, objects, gone) = (&quarantine, &objects, &gone);
                task(move |_| {
                    for k in 0..30 {
                        // SAFETY: Q1: each link is put in once.
                        unsafe { quarantine.put(objects.link(t * 30 + k), t % 2, Bytes(40)) };
                        quarantine.reduce(gone);
                    }
                })
            })
            .collect();
        tasks.push(task(|_| {
            for k in 120..160 {
                // SAFETY: Q1: each link is put in once.
                unsafe { quarantine.put(objects.link(k), 7, Bytes(40)) };
            }
            quarantine.remove(|cache| cache == 7, gone);
            assert!((120..160).all(|k| out.borrow().contains(&k)));
        }));
        machine.run(tasks);
        quarantine.remove(|_| true, gone);
        assert_eq!(out.borrow().len(), 160);
    });
}

#[test]
fn after_a_fork_the_child_goes_on() {
    let machine = Seeded::builder().cpus(2).build();
    let host: Host = &machine;
    let slots = slots(2);
    let objects = Objects::new(2);
    let quarantine = Quarantine::new(host, &slots, Bytes(100));
    // SAFETY: Q1: each link is put in once.
    unsafe { quarantine.put(objects.link(0), 0, Bytes(60)) };
    let gate = Mutex::<Host, classes::Fork, ()>::new(());
    for in_child in [false, true] {
        let _gate = gate.lock();
        quarantine.lock_for_fork();
        // SAFETY: locked by this context just now.
        unsafe { quarantine.unlock_after_fork(in_child) };
    }
    // SAFETY: as above.
    unsafe { quarantine.put(objects.link(1), 0, Bytes(30)) };
    let mut out = 0;
    quarantine.reduce(|_, _| out += 1);
    assert_eq!((out, quarantine.stats().evicted), (1, 1));
}
