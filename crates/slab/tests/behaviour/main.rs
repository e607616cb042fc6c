//! One published rule of the caches in each test, named as a sentence.

#[path = "../ledger/mod.rs"]
mod ledger;

mod contents;
mod cpu_slabs;
mod lifetime;
mod misuse;
mod nodes;
mod release;
mod reports;

use core::mem::MaybeUninit;
use core::ptr::NonNull;
use flagstone_frames::PageKind;
use flagstone_host::{Count, Event, Grace, PageMap};
use flagstone_seeded::{ArrayForm, Call, Fault, Machine, Policy as Schedule, Rng, task};
use flagstone_slab::layout::IndexPlace;
use flagstone_slab::{
    ArrayTuning, Cache, CacheParams, Caches, KmallocSet, ObjectCache, Policy, SlabInfo, UserCopy,
};
use flagstone_types::{AllocError, CpuId, FreeError, Gfp, Nanos, Nid};
use ledger::{Flavour, Ledger, bad_frees, is_zero};
use std::cell::Cell;
use std::collections::BTreeSet;

type Host<'m> = &'m Machine;

fn machine() -> Machine {
    Machine::builder().cpus(1).build()
}

fn alloc<'m>(caches: &Caches<Host<'m>>, cache: &Cache<Host<'m>>) -> NonNull<u8> {
    caches.alloc(cache, Gfp::KERNEL).unwrap()
}

fn free<'m>(caches: &Caches<Host<'m>>, cache: &Cache<Host<'m>>, object: NonNull<u8>) {
    // SAFETY: the tests here own what they free, or free what is none on purpose to have it refused.
    unsafe { caches.free(cache, object) };
}

/// As many objects as `slabs` slabs have, by slab, with arrays off so that slabs are filled one after the other.
fn fill_slabs<'m>(
    caches: &Caches<Host<'m>>,
    cache: &Cache<Host<'m>>,
    slabs: usize,
) -> Vec<Vec<NonNull<u8>>> {
    assert!(caches.set_arrays(cache, false));
    let num = cache.layout().num as usize;
    (0..slabs)
        .map(|_| (0..num).map(|_| alloc(caches, cache)).collect())
        .collect()
}

thread_local!(static CONSTRUCTED: Cell<usize> = const { Cell::new(0) });

unsafe fn construct(object: NonNull<u8>) {
    CONSTRUCTED.set(CONSTRUCTED.get() + 1);
    // SAFETY: S7: objects with this constructor have 40 bytes.
    unsafe { object.write_bytes(0x3c, 40) };
}

fn is_constructed(object: NonNull<u8>) -> bool {
    // SAFETY: the test owns the object.
    (0..40).all(|at| unsafe { object.add(at).read() } == 0x3c)
}
