//! One thread: pairs, and many allocations before many frees.
//!
//! Values are nanoseconds per operation, the mean over a slice of time after one unmeasured repetition: costs that
//! come now and then (a batch moved, a slab made, memory given back) are in it in their proportion.

use super::cmalloc::{Malloc, Object};
use anyhow::Result;
use std::time::{Duration, Instant};

/// How long one size is measured.
const SLICE: Duration = Duration::from_millis(40);
/// How many objects are alive at once in a batch.
const BATCH: usize = 10_000;

/// Sizes of pairs.
pub(crate) const PAIR_SIZES: &[usize] = &[16, 64, 256, 1024, 4096, 16384];
/// Sizes of batches.
pub(crate) const BATCH_SIZES: &[usize] =
    &[8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384];

/// `pair/SIZE`: one object allocated and freed.
pub(super) fn pairs(print: &mut impl FnMut(String, f64)) -> Result<()> {
    const CHUNK: u32 = 100_000;
    let malloc = Malloc::of_this_process();
    for &size in PAIR_SIZES {
        let chunk = || {
            for _ in 0..CHUNK {
                malloc.free(malloc.alloc(size));
            }
        };
        chunk();
        let (mut chunks, start) = (0_u32, Instant::now());
        while start.elapsed() < SLICE {
            chunk();
            chunks += 1;
        }
        print(
            format!("pair/{size}"),
            nanos(start.elapsed(), f64::from(chunks) * f64::from(CHUNK)),
        );
    }
    Ok(())
}

/// `batch/SIZE/alloc`, `batch/SIZE/free` and their sum `batch/SIZE/both`; `touched/…` if objects are written to.
pub(super) fn batches(touch: bool, print: &mut impl FnMut(String, f64)) -> Result<()> {
    let malloc = Malloc::of_this_process();
    let name = if touch { "touched" } else { "batch" };
    let mut objects: Vec<Object> = Vec::with_capacity(BATCH);
    let mut repetition = |size: usize| {
        let start = Instant::now();
        for _ in 0..BATCH {
            let mut object = malloc.alloc(size);
            if touch {
                object.touch();
            }
            objects.push(object);
        }
        let middle = Instant::now();
        objects.drain(..).for_each(|object| malloc.free(object));
        (middle - start, middle.elapsed())
    };
    for &size in BATCH_SIZES {
        repetition(size);
        let (mut alloc, mut free, mut count) = (Duration::ZERO, Duration::ZERO, 0.0);
        while alloc + free < SLICE || count < 3.0 {
            let (one_alloc, one_free) = repetition(size);
            alloc += one_alloc;
            free += one_free;
            count += 1.0;
        }
        let operations = count * BATCH as f64;
        print(format!("{name}/{size}/alloc"), nanos(alloc, operations));
        print(format!("{name}/{size}/free"), nanos(free, operations));
        print(
            format!("{name}/{size}/both"),
            nanos(alloc + free, operations),
        );
    }
    Ok(())
}

/// Nanoseconds per operation.
pub(super) fn nanos(time: Duration, operations: f64) -> f64 {
    time.as_secs_f64() * 1e9 / operations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nanoseconds_are_per_operation() {
        assert!((nanos(Duration::from_micros(3), 1000.0) - 3.0).abs() < 1e-9);
    }

    #[test]
    fn pairs_are_measured_for_every_size() {
        let mut metrics = Vec::new();
        pairs(&mut |metric, value| {
            assert!(value > 0.0);
            metrics.push(metric);
        })
        .unwrap();
        assert_eq!(metrics.len(), PAIR_SIZES.len());
        assert!(metrics.contains(&"pair/64".to_owned()));
    }
}
