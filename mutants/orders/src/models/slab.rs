//! The caches: what is published once, ends, refused pointers, arrays and slots that are switched off.

use super::Body;
use crate::board::Board;
use core::ptr::NonNull;
use flagstone_frames::Frames;
use flagstone_slab::{
    ArrayTuning, BadFree, CacheHandle, CacheParams, Caches, KmallocClass, KmallocSet, LayoutPolicy,
    Policy,
};
use flagstone_types::Gfp;
use flagstone_weak::run;
use std::cell::Cell;

type Host = &'static Board<12>;

const CLASSES: &[KmallocClass] = &[KmallocClass {
    name: "kmalloc-64",
    size: 64,
    align: 64,
}];

const POLICY: Policy = Policy {
    debug: flagstone_slab::DebugPolicy::NONE,
    layout: LayoutPolicy {
        min_order: 0,
        max_order: 1,
        min_objects: 1,
        cache_line: 64,
        in_record: false,
        in_object: true,
        zeroed: false,
        tail: 0,
    },
    arrays: |_| ArrayTuning {
        capacity: 4,
        limit: 2,
        batch: 1,
        shared_capacity: 3,
        shared_limit: 2,
    },
    alien_limit: 2,
    adaptive: false,
    bad_free,
};

thread_local! {
    static REFUSED: Cell<u32> = const { Cell::new(0) };
}

fn bad_free(_: &BadFree<'_>) {
    REFUSED.set(REFUSED.get() + 1);
}

fn on_caches(f: impl FnOnce(&'static Caches<Host>)) {
    Board::with(|board| {
        let frames = Frames::new(board).expect("memory for the page allocator");
        frames.set_min_free(Some(0));
        f(Caches::boot(frames, POLICY, CLASSES).expect("memory for the caches"));
        // What was deferred is of this board.
        crate::grace::synchronize();
    });
}

fn made(
    caches: &'static Caches<Host>,
    size: usize,
    cpu_slabs: Option<u32>,
    rcu: bool,
) -> CacheHandle<'static, Host> {
    let mut params = CacheParams::new("modelled", size, 8);
    params.flags.no_merge = true;
    params.flags.typesafe_by_rcu = rcu;
    params.cpu_slabs = cpu_slabs;
    caches.create(&params).expect("memory enough")
}

fn alloc(caches: &Caches<Host>, cache: &CacheHandle<'static, Host>) -> NonNull<u8> {
    caches.alloc(cache, Gfp::NOWAIT).expect("memory enough")
}

/// Takes `n` objects and gives them back.
fn turn(caches: &Caches<Host>, cache: &CacheHandle<'static, Host>, n: usize) {
    let objects: Vec<_> = (0..n).map(|_| alloc(caches, cache)).collect();
    for object in objects {
        // SAFETY: allocated above.
        unsafe { caches.free(cache, object) };
    }
}

pub(super) fn order(seed: u64) {
    on_caches(|caches| {
        caches.improvements().set_random_freelist(true);
        let cache = made(caches, 1000, None, false);
        let work = || turn(caches, &cache, 3);
        let threads: Vec<Body<'_>> = vec![Box::new(work), Box::new(work)];
        run(seed, threads);
    });
}

pub(super) fn set(seed: u64) {
    on_caches(|caches| {
        let threads: Vec<Body<'_>> = vec![
            Box::new(|| {
                caches
                    .make_kmalloc_set(KmallocSet::Reclaimable)
                    .expect("memory")
            }),
            Box::new(|| {
                for _ in 0..3 {
                    let gfp = Gfp::NOWAIT | Gfp::RECLAIMABLE;
                    if let Ok(object) = caches.kmalloc(64, gfp) {
                        // SAFETY: allocated above.
                        unsafe { caches.kfree(object) };
                    }
                }
            }),
        ];
        run(seed, threads);
    });
}

pub(super) fn end(seed: u64) {
    on_caches(|caches| {
        let cache = made(caches, 600, None, true);
        turn(caches, &cache, 2);
        caches.shrink(&cache);
        let threads: Vec<Body<'_>> = vec![
            Box::new(|| assert!(caches.destroy(cache).is_ok(), "an empty cache is busy")),
            Box::new(|| {
                for _ in 0..4 {
                    crate::grace::poll();
                }
            }),
        ];
        run(seed, threads);
    });
}

pub(super) fn refusals(seed: u64) {
    on_caches(|caches| {
        REFUSED.set(0);
        let cache = made(caches, 600, None, false);
        let kept = alloc(caches, &cache);
        assert!(caches.set_arrays(&cache, false));
        let misuse = || {
            // SAFETY: S12: it is no object, which is what the model is about: it is refused.
            unsafe { caches.free(&cache, kept.add(8)) };
        };
        let threads: Vec<Body<'_>> = vec![
            Box::new(misuse),
            Box::new(|| {
                caches.reap(false);
            }),
            Box::new(misuse),
        ];
        run(seed, threads);
        assert_eq!(REFUSED.get(), 2, "reports of two refused pointers");
        // SAFETY: allocated above.
        unsafe { caches.free(&cache, kept) };
    });
}

pub(super) fn off(seed: u64) {
    on_caches(|caches| {
        let cache = made(caches, 64, None, false);
        let threads: Vec<Body<'_>> = vec![
            Box::new(|| turn(caches, &cache, 3)),
            Box::new(|| {
                assert!(caches.set_arrays(&cache, false));
            }),
            Box::new(|| turn(caches, &cache, 1)),
        ];
        run(seed, threads);
        assert_eq!(
            caches.info(&cache).cached_objects,
            0,
            "objects in arrays that are off"
        );
        caches.validate().expect("in order");
    });
}

pub(super) fn cpu_slabs_off(seed: u64) {
    on_caches(|caches| {
        let cache = made(caches, 1000, Some(2), false);
        let threads: Vec<Body<'_>> = vec![
            Box::new(|| turn(caches, &cache, 3)),
            Box::new(|| {
                assert!(caches.set_cpu_slabs(&cache, 0));
            }),
            Box::new(|| turn(caches, &cache, 2)),
        ];
        run(seed, threads);
        assert_eq!(
            caches.info(&cache).cpu_slabs,
            0,
            "slabs on slots that are off"
        );
        caches.validate().expect("in order");
    });
}
