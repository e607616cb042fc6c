//! The class known: a pair on an object cache, on the array behind it, and on a thread-local array, chunk by chunk in turns; then
//! many allocations before many frees. One process for each form of arrays.

use crate::allocator::Allocator;
use crate::arrays::{Bare, Floor};
use crate::caches::{self, Objects};
use crate::stages::{LIST, RIVAL};
use crate::{BATCH_SIZES, Error, Print, Scale, loops, processors};
use flagstone_malloc::process::{
    ArrayForm, ExchangeLock, Plain, ProcessWith, Restartable, TransactionArray, TransactionList,
};

/// The forms; the list once more over CPU slabs. `plain` is for one thread only.
pub(crate) const SUBJECTS: &[&str] =
    &["restartable", "exchange", "tid-array", LIST, RIVAL, "plain"];

/// Bytes of the object of a pair.
const PAIR: usize = 64;

/// `known/floor`, `known/array`, `known/cache` for pairs, `known/SIZE/…` for batches.
pub(crate) fn measure(subject: &str, scale: &Scale, print: &mut Print<'_>) -> Result<(), Error> {
    match subject {
        "restartable" => with::<Restartable>(subject, scale, print, called::pairs),
        "exchange" => with::<ExchangeLock>(subject, scale, print, Objects::called_pairs),
        "tid-array" => with::<TransactionArray>(subject, scale, print, Objects::called_pairs),
        LIST | RIVAL => with::<TransactionList>(subject, scale, print, Objects::called_pairs),
        // A plain array counts as CPU 0's, so that another CPU's limit can not be set.
        _ if processors::allowed()?[0] != 0 => Err(Error::Processor {
            cpu: 0,
            error: std::io::Error::other(
                "plain arrays are CPU 0's, where this process may not run",
            ),
        }),
        _ => with::<Plain>(subject, scale, print, Objects::called_pairs),
    }
}

fn with<F: ArrayForm>(
    subject: &str,
    scale: &Scale,
    print: &mut Print<'_>,
    called_pairs: fn(&Objects<'static, F>, u32),
) -> Result<(), Error> {
    processors::stay_on_first()?;
    let caches = caches::bring_up::<F>(caches::SHIPPED)?;
    caches.improvements().set_cpu_slabs(subject == RIVAL);
    let objects = Objects::new(caches, PAIR)?;
    let mut bare = Bare::<F>::new(ProcessWith::start())?;
    let floor = Floor::new();
    let [compiled, called, array, cache, cache_called] = loops::by_turns(
        [
            &mut |n| floor.pairs(n),
            &mut |n| floor.called_pairs(n),
            &mut |n| bare.pairs(n),
            &mut |n| loops::pairs(&objects, PAIR, n),
            &mut |n| called_pairs(&objects, n),
        ],
        scale.slice,
    );
    objects.cool();
    objects.destroy();
    print("known/floor".into(), compiled);
    print("known/floor-called".into(), called);
    print("known/array".into(), array);
    print("known/cache".into(), cache);
    print("known/cache-called".into(), cache_called);
    print("known/cache-by-floor".into(), cache / compiled);
    print("known/called-by-called".into(), cache_called / called);
    let how = loops::How {
        touch: false,
        cool: false,
    };
    for &size in BATCH_SIZES {
        let objects = Objects::new(caches, size)?;
        loops::batch(&objects, size, how, scale).print("known", size, print);
        objects.destroy();
    }
    Ok(())
}

/// The functions that programs in C call, instruction by instruction as the shared library has them.
mod called {
    use crate::caches::Objects;
    use core::hint::black_box;
    use core::ptr::{NonNull, null_mut};
    use core::sync::atomic::{AtomicPtr, Ordering};
    use flagstone_malloc::known::KnownCache;
    use flagstone_malloc::process::{Process, Restartable};
    use flagstone_slab::{CacheHandle, Caches};

    static CACHES: AtomicPtr<Caches<Process>> = AtomicPtr::new(null_mut());

    /// `n` pairs.
    pub(super) fn pairs(objects: &Objects<'static, Restartable>, n: u32) {
        let handle = objects.cache();
        CACHES.store((&raw const *handle.caches()).cast_mut(), Ordering::Relaxed);
        // SAFETY: a handle beside the one that `objects` has, which is neither destroyed nor used after this function.
        let known = KnownCache::of(unsafe {
            CacheHandle::from_raw(handle.caches(), NonNull::from(&**handle))
        });
        let known = black_box(&raw const known);
        let alloc = black_box(alloc as extern "C" fn(*const KnownCache) -> *mut u8);
        let free = black_box(free as unsafe extern "C" fn(*const KnownCache, *mut u8));
        for _ in 0..n {
            let object = alloc(known);
            // SAFETY: B2.
            unsafe { free(known, object) };
        }
    }

    #[unsafe(naked)]
    extern "C" fn alloc(cache: *const KnownCache) -> *mut u8 {
        flagstone_malloc::cache_alloc_body!(alloc_slow)
    }

    extern "C" fn alloc_slow(cache: *const KnownCache) -> *mut u8 {
        // SAFETY: `pairs` published the caches and passes a cache of them.
        let object = unsafe { (*cache).alloc_slow(&*CACHES.load(Ordering::Relaxed)) };
        object.map_or(null_mut(), NonNull::as_ptr)
    }

    /// # Safety
    /// As [`Caches::free`].
    #[unsafe(naked)]
    unsafe extern "C" fn free(cache: *const KnownCache, object: *mut u8) {
        flagstone_malloc::cache_free_body!(free_slow)
    }

    /// # Safety
    /// As [`free`].
    unsafe extern "C" fn free_slow(cache: *const KnownCache, object: *mut u8) {
        if let Some(object) = NonNull::new(object) {
            // SAFETY: as `alloc_slow`; the caller's promise.
            unsafe { (*cache).free_slow(&*CACHES.load(Ordering::Relaxed), object) };
        }
    }
}
