//! The caches themselves under a model checker: drains, the shared array, growth, remote frees, switching arrays off, ends of caches.
//!
//! `FLAGSTONE_SHUTTLE` says how many schedules of each; a failure prints the one that replays it.

mod board;
mod cpu_slabs;

use board::{Board, Kind, on_bare_board, on_board};
use core::ptr::NonNull;
use flagstone_host::{ArrayParams, CpuCache, Host as _, PageMap, PhysMem, Push};
use flagstone_slab::{Cache, CacheHandle, CacheParams, Caches};
use flagstone_types::{CpuId, Gfp};
use shuttle::thread;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

type Host = &'static Board;

const ONE_NODE: Kind = Kind {
    cpus: 2,
    nodes: 1,
    count_first: false,
};
const TWO_NODES: Kind = Kind {
    nodes: 2,
    ..ONE_NODE
};

fn schedules(default: usize) -> usize {
    match std::env::var("FLAGSTONE_SHUTTLE") {
        Ok(text) => text.parse().expect("FLAGSTONE_SHUTTLE is a number"),
        Err(_) => default,
    }
}

/// Checks `model` under random schedules and under few preemptions.
fn check(count: usize, model: impl Fn() + Send + Sync + Copy + 'static) {
    let count = schedules(count);
    shuttle::check_random(model, count);
    shuttle::check_pct(model, count, 3);
}

/// Which objects a thread owns: none is owned twice.
#[derive(Clone, Default)]
struct Owners(Arc<Mutex<BTreeSet<usize>>>);

impl Owners {
    fn take(&self, object: NonNull<u8>) -> NonNull<u8> {
        let new = self.0.lock().unwrap().insert(object.as_ptr().addr());
        assert!(new, "{object:p} was handed out twice");
        // SAFETY: the thread owns the object, which has 64 bytes at least.
        unsafe { object.cast::<usize>().write(object.as_ptr().addr()) };
        object
    }

    fn give(&self, object: NonNull<u8>) -> NonNull<u8> {
        // SAFETY: the thread owns the object.
        let mark = unsafe { object.cast::<usize>().read() };
        assert_eq!(mark, object.as_ptr().addr(), "contents have changed");
        assert!(self.0.lock().unwrap().remove(&mark), "not owned");
        object
    }
}

fn alloc(caches: &Caches<Host>, cache: &Cache<Host>, owners: &Owners) -> NonNull<u8> {
    owners.take(caches.alloc(cache, Gfp::KERNEL).expect("memory enough"))
}

fn free(caches: &Caches<Host>, cache: &Cache<Host>, owners: &Owners, object: NonNull<u8>) {
    // SAFETY: the thread owns the object.
    unsafe { caches.free(cache, owners.give(object)) };
}

/// A pointer to an object on its way to another thread.
struct Sent(NonNull<u8>);

// SAFETY: whoever receives it owns the object.
unsafe impl Send for Sent {}

fn made(
    caches: &'static Caches<Host>,
    size: usize,
    cpu_slabs: Option<u32>,
) -> Arc<CacheHandle<'static, Host>> {
    let mut params = CacheParams::new("modelled", size, 8);
    params.flags.no_merge = true;
    params.cpu_slabs = cpu_slabs;
    Arc::new(caches.create(&params).expect("memory enough"))
}

/// Nothing is with anybody: all invariants hold, and everything goes back.
fn finish(caches: &Caches<Host>, handle: Arc<CacheHandle<'static, Host>>) {
    caches.validate().unwrap();
    caches.shrink(&handle);
    assert_eq!(caches.objects_out(&handle), 0, "objects are lost");
    let handle = Arc::into_inner(handle).expect("nobody else has it");
    // SAFETY: the handle is of these caches and ends here.
    let handle = unsafe { CacheHandle::from_raw(caches, handle.into_raw()) };
    assert!(caches.destroy(handle).is_ok(), "an empty cache is busy");
    caches.frames().validate().unwrap();
}

/// Two threads allocate and free, `other` runs beside them.
fn beside(
    kind: Kind,
    size: usize,
    keep: usize,
    other: impl Fn(&Caches<Host>, &Cache<Host>) + Send + Sync + Copy + 'static,
) {
    beside_with(kind, size, keep, None, other);
}

/// The same, on a cache that has CPU slabs if there is a limit for them.
fn beside_with(
    kind: Kind,
    size: usize,
    keep: usize,
    cpu_slabs: Option<u32>,
    other: impl Fn(&Caches<Host>, &Cache<Host>) + Send + Sync + Copy + 'static,
) {
    on_board(kind, |caches| {
        let handle = made(caches, size, cpu_slabs);
        let owners = Owners::default();
        let mut threads: Vec<_> = (0..2)
            .map(|_| {
                let (handle, owners) = (handle.clone(), owners.clone());
                thread::spawn(move || {
                    let mut mine = Vec::new();
                    for _ in 0..3 {
                        while mine.len() < keep {
                            mine.push(alloc(caches, &handle, &owners));
                        }
                        while mine.len() > 1 {
                            free(caches, &handle, &owners, mine.remove(0));
                        }
                    }
                    free(caches, &handle, &owners, mine.remove(0));
                })
            })
            .collect();
        let cache = handle.clone();
        threads.push(thread::spawn(move || other(caches, &cache)));
        threads.into_iter().for_each(|t| t.join().unwrap());
        finish(caches, handle);
    });
}

fn drains(kind: Kind) {
    beside(kind, 64, 3, |caches, cache| {
        for _ in 0..3 {
            caches.drain_arrays(cache);
        }
    });
}

#[test]
fn draining_beside_allocation_and_free() {
    check(150, || drains(ONE_NODE));
}

/// An array by itself: one thread pops and pushes, the other drains. Each object comes out once.
fn drained_array(kind: Kind) {
    on_bare_board(kind, |board| {
        let params = ArrayParams {
            capacity: 4,
            link_offset: 0,
        };
        let array = Arc::new(board.new_array(params).expect("memory enough"));
        array.set_limit(CpuId(0), 4);
        let mut start = None;
        board.boot_ranges(&mut |range| start = Some(range.frames.start));
        let base = board.frame_ptr(start.expect("memory"));
        // SAFETY: M5: objects in the board's memory, which nobody else uses.
        let objects: Vec<_> = (0..3).map(|n| unsafe { base.add(n * 64) }).collect();
        // SAFETY: A1: they are the model's.
        assert_eq!(unsafe { array.push_n(&objects) }, 3);
        let user = {
            let array = array.clone();
            thread::spawn(move || {
                let mut kept = Vec::new();
                for _ in 0..2 {
                    let Some(object) = array.pop() else { continue };
                    // SAFETY: A1: the thread has just got the object.
                    if unsafe { array.push(object) } != Push::Done {
                        kept.push(object.as_ptr().addr());
                    }
                }
                kept
            })
        };
        let mut out: Vec<usize> = Vec::new();
        for _ in 0..2 {
            let stopped = board.stop_arrays().expect("boards can stop arrays");
            board.drain(&stopped, &array, CpuId(0), &mut |objects| {
                out.extend(objects.iter().map(|o| o.as_ptr().addr()));
            });
        }
        out.extend(user.join().unwrap());
        let mut array = Arc::into_inner(array).expect("nobody else has it");
        board.drain_unshared(&mut array, CpuId(0), &mut |objects| {
            out.extend(objects.iter().map(|o| o.as_ptr().addr()));
        });
        out.sort_unstable();
        let all: Vec<_> = objects.iter().map(|o| o.as_ptr().addr()).collect();
        assert_eq!(out, all, "objects that came out");
    });
}

#[test]
fn draining_an_array_beside_its_sections() {
    let kind = Kind {
        cpus: 1,
        ..ONE_NODE
    };
    check(2000, move || drained_array(kind));
}

#[test]
fn reading_the_count_before_the_stop_flag_is_found() {
    let broken = Kind {
        cpus: 1,
        count_first: true,
        ..ONE_NODE
    };
    // In a thread of its own: what a failed model leaves behind ends with it.
    let found = std::thread::spawn(move || {
        shuttle::check_random(move || drained_array(broken), 20_000);
    })
    .join();
    assert!(found.is_err(), "not found");
}

#[test]
fn the_shared_array_passes_objects_between_cpus() {
    check(150, || {
        beside(ONE_NODE, 64, 6, |caches, cache| {
            caches.reap(false);
            caches.shrink(cache);
            caches.reap(true);
        });
    });
}

#[test]
fn growing_and_linking_beside_frees_of_the_new_objects() {
    // Two objects to a slab: nearly every allocation grows, and every shrink releases.
    check(150, || {
        beside(ONE_NODE, 2000, 4, |caches, cache| {
            caches.improvements().set_random_freelist(true);
            caches.shrink(cache);
            caches.improvements().set_refill_first(false);
            caches.shrink(cache);
        });
    });
}

/// Objects are allocated by one thread and freed by another, while a third drains.
fn travels(cpu_slabs: Option<u32>) {
    on_board(TWO_NODES, move |caches| {
        let handle = made(caches, 600, cpu_slabs);
        let owners = Owners::default();
        let belt: Arc<Mutex<Vec<Sent>>> = Arc::default();
        let mut threads = Vec::new();
        for _ in 0..2 {
            let (handle, owners, belt) = (handle.clone(), owners.clone(), belt.clone());
            threads.push(thread::spawn(move || {
                for _ in 0..6 {
                    let object = Sent(alloc(caches, &handle, &owners));
                    belt.lock().unwrap().push(object);
                    let other = belt.lock().unwrap().pop();
                    if let Some(Sent(object)) = other {
                        free(caches, &handle, &owners, object);
                    }
                    thread::yield_now();
                }
            }));
        }
        let cache = handle.clone();
        threads.push(thread::spawn(move || {
            caches.shrink(&cache);
            caches.reap(true);
        }));
        threads.into_iter().for_each(|t| t.join().unwrap());
        for Sent(object) in belt.lock().unwrap().drain(..) {
            free(caches, &handle, &owners, object);
        }
        finish(caches, handle);
    });
}

#[test]
fn objects_travel_home_from_another_node() {
    check(120, || travels(None));
}

#[test]
fn arrays_that_are_switched_off_are_empty_until_they_are_on_again() {
    check(120, || {
        beside(ONE_NODE, 64, 3, |caches, cache| {
            for _ in 0..2 {
                assert!(caches.set_arrays(cache, false));
                assert_eq!(caches.info(cache).cached_objects, 0);
                thread::yield_now();
                assert_eq!(caches.info(cache).cached_objects, 0);
                assert!(caches.set_arrays(cache, true));
            }
        });
    });
}

#[test]
fn makers_and_destroyers_of_one_shape_and_a_reaper_meet() {
    check(120, || {
        on_board(ONE_NODE, |caches| {
            let owners = Owners::default();
            let mut threads: Vec<_> = (0..2)
                .map(|n| {
                    let owners = owners.clone();
                    thread::spawn(move || {
                        for round in 0..2 {
                            let mut params = CacheParams::new("one-shape", 72, 8);
                            params.flags.typesafe_by_rcu = (n + round) % 2 == 0;
                            let handle = caches.create(&params).expect("memory enough");
                            let object = alloc(caches, &handle, &owners);
                            free(caches, &handle, &owners, object);
                            assert!(caches.destroy(handle).is_ok());
                        }
                    })
                })
                .collect();
            threads.push(thread::spawn(move || {
                caches.reap(true);
                caches.shrink_all();
            }));
            threads.into_iter().for_each(|t| t.join().unwrap());
            caches.validate().unwrap();
            caches.frames().validate().unwrap();
        });
    });
}
