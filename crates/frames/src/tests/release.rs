//! Idle memory goes back: how much, in how many calls, and what stays.

use super::{GFP, frames, machine, order};
use crate::{ReleasePolicy, Released};
use flagstone_host::{Count, Event};
use flagstone_seeded::{Call, Fault};
use flagstone_types::Nanos;
use std::vec::Vec;

const SECOND: u64 = 1_000_000_000;

fn policy(keep: usize, max_calls: usize) -> ReleasePolicy {
    ReleasePolicy {
        keep,
        interval: Nanos(SECOND),
        max_calls,
    }
}

fn at(second: u64) -> Nanos {
    Nanos(second * SECOND)
}

#[test]
fn what_was_idle_for_a_whole_interval_goes_back_in_one_call() {
    let m = machine::<16, 6>(512);
    let f = frames(&m);
    assert_eq!(f.release_idle(at(1), &policy(0, 10)), Released::default());
    let run = f.alloc_run(GFP, 300, None).unwrap();
    f.free_run(run);
    assert_eq!(f.touched_free_count(), 300);
    assert_eq!(
        f.release_idle(at(2), &policy(0, 10)).pages,
        0,
        "it was in use a moment ago"
    );
    assert_eq!(
        f.release_idle(Nanos(2 * SECOND + 5), &policy(0, 10)).pages,
        0
    );
    let released = f.release_idle(at(3), &policy(0, 10));
    assert_eq!(
        released,
        Released {
            pages: 300,
            calls: 1
        }
    );
    assert_eq!(f.touched_free_count(), 0);
    assert_eq!((&&m).counted(Event::BackingRelease), 300);
    f.validate().unwrap();
    m.check_memory().unwrap();
    assert_eq!(f.release_idle(at(4), &policy(0, 10)), Released::default());
}

#[test]
fn what_is_used_in_between_or_is_to_be_kept_stays() {
    let m = machine::<16, 6>(512);
    let f = frames(&m);
    f.release_idle(at(1), &policy(0, 10));
    let all: Vec<_> = (0..8)
        .map(|_| f.alloc_pages(GFP, order(6), None).unwrap())
        .collect();
    all.into_iter().for_each(|block| f.free_pages(block));
    f.release_idle(at(2), &policy(0, 10));
    // 128 of 512 pages are needed for a moment within the interval.
    let used: Vec<_> = (0..2)
        .map(|_| f.alloc_pages(GFP, order(6), None).unwrap())
        .collect();
    used.into_iter().for_each(|block| f.free_pages(block));
    let released = f.release_idle(at(3), &policy(100, 100));
    assert_eq!(released.pages, 512 - 128 - 100);
    assert_eq!(f.touched_free_count(), 228);
    f.validate().unwrap();
    m.check_memory().unwrap();
}

#[test]
fn calls_are_limited_and_a_refusal_ends_them() {
    let m = machine::<12, 4>(256);
    let f = frames(&m);
    let blocks: Vec<_> = (0..16)
        .map(|_| f.alloc_pages(GFP, order(4), None).unwrap())
        .collect();
    let (odd, even): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|b| b.pfn().0 / 16 % 2 == 1);
    f.release_idle(at(1), &policy(0, 3));
    odd.into_iter().for_each(|block| f.free_pages(block));
    f.release_idle(at(2), &policy(0, 3));
    assert_eq!(
        f.release_idle(at(3), &policy(0, 3)),
        Released {
            pages: 48,
            calls: 3
        }
    );
    f.validate().unwrap();
    m.inject(Call::Release, Fault::From(1));
    assert_eq!(
        f.release_idle(at(4), &policy(0, 3)),
        Released { pages: 0, calls: 1 }
    );
    assert_eq!(f.touched_free_count(), 80);
    f.validate().unwrap();
    m.inject(Call::Release, Fault::Never);
    assert_eq!(
        f.release_now(0),
        Released {
            pages: 80,
            calls: 5
        }
    );
    even.into_iter().for_each(|block| f.free_pages(block));
    f.validate().unwrap();
    m.check_memory().unwrap();
}

#[test]
fn released_blocks_are_used_last() {
    let m = machine::<12, 4>(64);
    let f = frames(&m);
    let blocks: Vec<_> = (0..4)
        .map(|_| f.alloc_pages(GFP, order(4), None).unwrap())
        .collect();
    blocks.into_iter().for_each(|block| f.free_pages(block));
    assert_eq!(f.release_now(32).pages, 32);
    for zero in [false, false, true, true] {
        let block = f.alloc_pages(GFP, order(4), None).unwrap();
        assert_eq!(block.zero(), zero);
        let _ = block.into_raw();
    }
}

#[test]
fn a_part_of_a_block_can_go_back() {
    let m = machine::<16, 6>(64);
    let f = frames(&m);
    let block = f.alloc_pages(GFP, order(6), None).unwrap();
    f.free_pages(block);
    assert_eq!(f.release_now(20).pages, 44);
    assert_eq!(f.touched_free_count(), 20);
    f.validate().unwrap();
    m.check_memory().unwrap();
}

#[test]
fn what_a_run_did_not_take_of_its_block_was_idle() {
    let m = machine::<16, 6>(64);
    let f = frames(&m);
    let block = f.alloc_pages(GFP, order(6), None).unwrap();
    f.free_pages(block);
    f.release_idle(at(1), &policy(0, 10));
    let run = f.alloc_run(GFP, 33, None).unwrap();
    f.free_run(run);
    assert_eq!(f.release_idle(at(2), &policy(0, 10)).pages, 31);
    f.validate().unwrap();
}
