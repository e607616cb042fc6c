//! Allocation in interrupts: each timer interrupt takes an object, fills it, and now and then frees those that it has taken, on
//! every CPU, under all the other trials.

use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use super::SharedCache;
use crate::kernel::Kernel;
use crate::per_cpu::{Area, MOST_CPUS};
use crate::{crew, trap};
use flagstone_host::Cpus;
use flagstone_slab::{CacheParams, Caches};
use flagstone_types::Gfp;

const KEPT: usize = 24;
const WORDS: usize = 12;

static CACHE: SharedCache = SharedCache::new();
static KEPT_BY: [[AtomicPtr<u8>; KEPT]; MOST_CPUS] =
    [const { [const { AtomicPtr::new(null_mut()) }; KEPT] }; MOST_CPUS];
static ALLOCATED: AtomicU64 = AtomicU64::new(0);

fn mark(object: NonNull<u8>) -> u64 {
    object.addr().get() as u64 ^ 0x5555_5555_5555_5555
}

fn tick(ticks: u64) {
    super::sections::tick();
    let caches = super::caches();
    let kept = &KEPT_BY[Area::current().id.index()];
    let slot = &kept[ticks as usize % KEPT];
    // Where there is no memory, this one is left out.
    if slot.load(Ordering::Relaxed).is_null()
        && let Ok(object) = caches.alloc(CACHE.get(), Gfp::ATOMIC | Gfp::NOWARN)
    {
        // SAFETY: the object is ours, of `WORDS` words, aligned.
        unsafe { object.cast::<[u64; WORDS]>().write([mark(object); WORDS]) };
        slot.store(object.as_ptr(), Ordering::Relaxed);
        ALLOCATED.fetch_add(1, Ordering::Relaxed);
    }
    if ticks as usize % KEPT == KEPT - 1 {
        free_kept(caches, kept);
    }
}

fn free_kept(caches: &Caches<Kernel>, kept: &[AtomicPtr<u8>]) {
    for slot in kept {
        if let Some(object) = NonNull::new(slot.swap(null_mut(), Ordering::Relaxed)) {
            // SAFETY: from `tick`, ours, and written.
            unsafe {
                let content = object.cast::<[u64; WORDS]>().read();
                assert_eq!(content, [mark(object); WORDS], "an object has changed");
                caches.free(CACHE.get(), object);
            }
        }
    }
}

/// From now on interrupts allocate.
pub(super) fn begin() {
    let mut params = CacheParams::new("tick", WORDS * 8, 8);
    params.flags.no_merge = true;
    CACHE.make(&params);
    trap::on_tick(Some(tick));
}

/// From now on they do not; returns how many objects they had.
pub(super) fn end() -> u64 {
    trap::on_tick(None);
    crew::run(|cpu| {
        let _guard = Kernel.irq_guard();
        free_kept(super::caches(), &KEPT_BY[cpu]);
    });
    CACHE.destroy();
    ALLOCATED.load(Ordering::Relaxed)
}
