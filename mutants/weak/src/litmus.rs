//! What is known of weak memory: results that the language allows are seen, others never.

use crate::atomic::{AtomicBool, AtomicU32, fence};
use crate::{read, run, write};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed, Release, SeqCst};

type Body<'b> = Box<dyn FnOnce() + 'b>;

/// Everything that `test` comes out with over many seeds.
fn results(test: impl Fn(u64) -> (u32, u32)) -> BTreeSet<(u32, u32)> {
    (0..3000).map(test).collect()
}

/// Stores beside loads, with `between` them.
fn store_buffers(store: Ordering, load: Ordering, between: bool) -> BTreeSet<(u32, u32)> {
    results(|seed| {
        let (x, y) = (AtomicU32::new(0), AtomicU32::new(0));
        let (a, b) = (Cell::new(9), Cell::new(9));
        let side = |mine: &AtomicU32, other: &AtomicU32, seen: &Cell<u32>| {
            mine.store(1, store);
            if between {
                fence(SeqCst);
            }
            seen.set(other.load(load));
        };
        let threads: Vec<Body<'_>> =
            vec![Box::new(|| side(&x, &y, &a)), Box::new(|| side(&y, &x, &b))];
        run(seed, threads);
        (a.get(), b.get())
    })
}

#[test]
fn both_may_miss_the_others_store_unless_there_is_a_fence() {
    assert!(store_buffers(Release, Acquire, false).contains(&(0, 0)));
    let fenced = store_buffers(Relaxed, Relaxed, true);
    assert!(!fenced.contains(&(0, 0)) && fenced.len() == 3);
    assert!(!store_buffers(SeqCst, SeqCst, false).contains(&(0, 0)));
}

fn message(store: Ordering, load: Ordering) -> BTreeSet<(u32, u32)> {
    results(|seed| {
        let (data, flag) = (AtomicU32::new(0), AtomicBool::new(false));
        let seen = Cell::new((0, 0));
        let threads: Vec<Body<'_>> = vec![
            Box::new(|| {
                data.store(1, Relaxed);
                flag.store(true, store);
            }),
            Box::new(|| {
                let flag = flag.load(load);
                seen.set((flag.into(), data.load(Relaxed)));
            }),
        ];
        run(seed, threads);
        seen.get()
    })
}

#[test]
fn a_message_arrives_whole_if_both_sides_say_so() {
    assert!(!message(Release, Acquire).contains(&(1, 0)));
    for (store, load) in [(Relaxed, Acquire), (Release, Relaxed), (Relaxed, Relaxed)] {
        assert!(message(store, load).contains(&(1, 0)), "{store:?} {load:?}");
    }
}

#[test]
fn one_location_never_goes_back_and_no_addition_is_lost() {
    results(|seed| {
        let x = AtomicU32::new(0);
        let threads: Vec<Body<'_>> = vec![
            Box::new(|| _ = x.fetch_add(1, Relaxed)),
            Box::new(|| _ = x.fetch_add(1, Relaxed)),
            Box::new(|| {
                let first = x.load(Relaxed);
                assert!(x.load(Relaxed) >= first);
            }),
        ];
        run(seed, threads);
        assert_eq!(x.load(Relaxed), 2);
        (0, 0)
    });
}

/// A release, an addition by somebody else in between, an acquire: the addition hands on.
#[test]
fn additions_hand_on_what_was_released() {
    let seen = results(|seed| {
        let (data, count) = (AtomicU32::new(0), AtomicU32::new(0));
        let seen = Cell::new((0, 0));
        let threads: Vec<Body<'_>> = vec![
            Box::new(|| {
                data.store(1, Relaxed);
                count.fetch_add(1, Release);
            }),
            Box::new(|| _ = count.fetch_add(2, Relaxed)),
            Box::new(|| {
                let count = count.load(Acquire);
                seen.set((count, data.load(Relaxed)));
            }),
        ];
        run(seed, threads);
        seen.get()
    });
    assert!(
        !seen.contains(&(1, 0)) && !seen.contains(&(3, 0)),
        "{seen:?}"
    );
    assert!(seen.contains(&(2, 0)) && seen.contains(&(3, 1)), "{seen:?}");
}

fn race(add: Ordering) -> bool {
    (0..500).any(|seed| {
        let (value, left) = (0u64, AtomicU32::new(2));
        let leave = || {
            read(&raw const value);
            if left.fetch_sub(1, add) == 1 {
                write(&raw const value);
            }
        };
        let threads: Vec<Body<'_>> = vec![Box::new(leave), Box::new(leave)];
        let run = std::panic::AssertUnwindSafe(|| run(seed, threads));
        std::panic::catch_unwind(run).is_err()
    })
}

#[test]
fn the_last_one_out_needs_both_sides_of_the_count() {
    assert!(!race(AcqRel) && race(Release) && race(Acquire) && race(Relaxed));
}
