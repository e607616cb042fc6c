//! The class known: a pair on an object cache, on the array behind it, and on a thread-local array, chunk by chunk in turns; then
//! many allocations before many frees. One process for each form of arrays.

use crate::allocator::Allocator;
use crate::arrays::{Bare, Floor};
use crate::caches::{self, Objects};
use crate::{BATCH_SIZES, Error, Print, Scale, loops, processors};
use flagstone_malloc::process::{
    ArrayForm, ExchangeLock, Plain, ProcessWith, Restartable, TransactionArray, TransactionList,
};

/// The forms. `plain` is for one thread only.
pub(crate) const SUBJECTS: &[&str] = &["restartable", "exchange", "tid-array", "tid-list", "plain"];

/// Bytes of the object of a pair.
const PAIR: usize = 64;

/// `known/floor`, `known/array`, `known/cache` for pairs, `known/SIZE/…` for batches.
pub(crate) fn measure(subject: &str, scale: &Scale, print: &mut Print<'_>) -> Result<(), Error> {
    match subject {
        "restartable" => with::<Restartable>(scale, print),
        "exchange" => with::<ExchangeLock>(scale, print),
        "tid-array" => with::<TransactionArray>(scale, print),
        "tid-list" => with::<TransactionList>(scale, print),
        // A plain array counts as CPU 0's, so that another CPU's limit can not be set.
        _ if processors::allowed()?[0] != 0 => Err(Error::Processor {
            cpu: 0,
            error: std::io::Error::other(
                "plain arrays are CPU 0's, where this process may not run",
            ),
        }),
        _ => with::<Plain>(scale, print),
    }
}

fn with<F: ArrayForm>(scale: &Scale, print: &mut Print<'_>) -> Result<(), Error> {
    processors::stay_on_first()?;
    let caches = caches::bring_up::<F>(caches::SHIPPED)?;
    let objects = Objects::new(caches, PAIR)?;
    let mut bare = Bare::<F>::new(ProcessWith::start())?;
    let floor = Floor::new();
    let [floor, array, cache] = loops::by_turns(
        [&mut |n| floor.pairs(n), &mut |n| bare.pairs(n), &mut |n| {
            loops::pairs(&objects, PAIR, n)
        }],
        scale.slice,
    );
    objects.cool();
    objects.destroy();
    print("known/floor".into(), floor);
    print("known/array".into(), array);
    print("known/cache".into(), cache);
    print("known/cache-by-floor".into(), cache / floor);
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
