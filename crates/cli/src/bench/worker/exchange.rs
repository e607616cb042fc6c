//! Several threads: objects that are freed by another thread, and all CPUs at once.

use super::Dice;
use super::cmalloc::{Malloc, Object};
use super::single::nanos;
use anyhow::Result;
use std::cell::UnsafeCell;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Objects that change threads at once.
const BATCH: usize = 64;
/// Batches on their way.
const DEPTH: usize = 32;

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}

/// A ring of batches from one producer to one consumer.
struct Ring {
    batches: [UnsafeCell<[Option<Object>; BATCH]>; DEPTH],
    /// Batches written and read since the start.
    written: AtomicUsize,
    read: AtomicUsize,
}

// SAFETY: W2. `written` and `read` say which of the two threads has a batch.
unsafe impl Sync for Ring {}

impl Ring {
    fn new() -> Self {
        Self {
            batches: std::array::from_fn(|_| UnsafeCell::new(std::array::from_fn(|_| None))),
            written: AtomicUsize::new(0),
            read: AtomicUsize::new(0),
        }
    }

    /// Lets the producer work on the next batch.
    fn produce(&self, fill: impl FnOnce(&mut [Option<Object>; BATCH])) {
        let turn = self.written.load(Ordering::Relaxed);
        wait(|| turn - self.read.load(Ordering::Acquire) < DEPTH);
        // SAFETY: W2. The consumer has released this batch, and looks at it again only after `written` moves on.
        fill(unsafe { &mut *self.batches[turn % DEPTH].get() });
        self.written.store(turn + 1, Ordering::Release);
    }

    /// Lets the consumer work on the next batch.
    fn consume(&self, take: impl FnOnce(&mut [Option<Object>; BATCH])) {
        let turn = self.read.load(Ordering::Relaxed);
        wait(|| self.written.load(Ordering::Acquire) > turn);
        // SAFETY: W2. The producer has released this batch, and writes to it again only after `read` moves on.
        take(unsafe { &mut *self.batches[turn % DEPTH].get() });
        self.read.store(turn + 1, Ordering::Release);
    }
}

/// Spins for a moment, then gives the CPU away between looks.
fn wait(ready: impl Fn() -> bool) {
    let mut looks = 0_u32;
    while !ready() {
        looks += 1;
        if looks < 200 {
            std::hint::spin_loop()
        } else {
            std::thread::yield_now()
        }
    }
}

/// `ring/64` and `ring/mixed`: nanoseconds per object that one thread allocates and writes to, and another frees.
pub(super) fn ring(print: &mut impl FnMut(String, f64)) -> Result<()> {
    const BATCHES: usize = 20_000;
    let malloc = Malloc::of_this_process();
    for (name, smallest, span) in [("64", 64, 1), ("mixed", 16, 497)] {
        let ring = Ring::new();
        let mut start = Instant::now();
        std::thread::scope(|scope| {
            let ring = &ring;
            scope.spawn(move || {
                for _ in 0..BATCHES + DEPTH {
                    ring.consume(|batch| {
                        batch
                            .iter_mut()
                            .filter_map(Option::take)
                            .for_each(|object| malloc.free(object))
                    });
                }
            });
            let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
            for number in 0..BATCHES + DEPTH {
                // The first batches warm both threads up.
                if number == DEPTH {
                    start = Instant::now();
                }
                ring.produce(|batch| {
                    for place in batch {
                        let mut object = malloc.alloc(smallest + dice.below(span));
                        object.touch();
                        *place = Some(object);
                    }
                });
            }
        });
        print(
            format!("ring/{name}"),
            nanos(start.elapsed(), (BATCHES * BATCH) as f64),
        );
    }
    Ok(())
}

/// The shape of a run of Larson's server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Larson {
    threads_per_cpu: usize,
    slots: usize,
    /// How often all threads end and hand their slots to new ones.
    generations: usize,
    /// Replacements by one thread in one generation.
    replacements: usize,
}

pub(super) const LARSON_SHORT: Larson = Larson {
    threads_per_cpu: 1,
    slots: 5000,
    generations: 8,
    replacements: 150_000,
};
pub(super) const LARSON_LONG: Larson = Larson {
    threads_per_cpu: 4,
    slots: 20_000,
    generations: 30,
    replacements: 100_000,
};

/// `larson`: nanoseconds, of all threads together, per object replaced by one of another size.
///
/// Each thread has slots with objects of 8 to 1000 bytes and replaces random ones. A thread that ends leaves its slots
/// to a new thread, as a server's work does, so that half of what is freed early in a generation was allocated elsewhere.
pub(super) fn larson(shape: Larson, print: &mut impl FnMut(String, f64)) -> Result<()> {
    let malloc = Malloc::of_this_process();
    let threads = cpus() * shape.threads_per_cpu;
    let size = |dice: &mut Dice| 8 + dice.below(993);
    let mut dice = Dice(42);
    let mut all: Vec<Vec<Option<Object>>> = (0..threads)
        .map(|_| {
            (0..shape.slots)
                .map(|_| Some(malloc.alloc(size(&mut dice))))
                .collect()
        })
        .collect();
    let start = Instant::now();
    for generation in 0..shape.generations {
        std::thread::scope(|scope| {
            for (number, slots) in all.iter_mut().enumerate() {
                scope.spawn(move || {
                    let mut dice = Dice(((generation * threads + number) as u64 + 1) * 0x9e37_79b9);
                    for _ in 0..shape.replacements {
                        let slot = &mut slots[dice.below(shape.slots)];
                        if let Some(object) = slot.take() {
                            malloc.free(object);
                        }
                        let mut object = malloc.alloc(size(&mut dice));
                        object.touch();
                        *slot = Some(object);
                    }
                });
            }
        });
        all.rotate_left(1);
    }
    let elapsed = start.elapsed();
    all.into_iter()
        .flatten()
        .flatten()
        .for_each(|object| malloc.free(object));
    print(
        "larson".into(),
        nanos(
            elapsed,
            (threads * shape.generations * shape.replacements) as f64,
        ),
    );
    Ok(())
}

/// Sizes of the published experiment.
pub(crate) const CONTENTION_SIZES: &[usize] = &[32, 64, 128, 256, 512, 1024, 2048, 4096];

/// `contention/SIZE/alloc` and `…/free`: every CPU allocates 10,000 objects at once, then all free theirs; mean
/// nanoseconds of one operation on one CPU.
pub(super) fn contention(print: &mut impl FnMut(String, f64)) -> Result<()> {
    const OBJECTS: usize = 10_000;
    const REPETITIONS: usize = 8;
    let malloc = Malloc::of_this_process();
    let threads = cpus();
    for &size in CONTENTION_SIZES {
        let barrier = Barrier::new(threads);
        let times: Vec<(Duration, Duration)> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|_| {
                    scope.spawn(|| {
                        let mut objects = Vec::with_capacity(OBJECTS);
                        let (mut alloc, mut free) = (Duration::ZERO, Duration::ZERO);
                        // One repetition more, which is not counted.
                        for repetition in 0..=REPETITIONS {
                            barrier.wait();
                            let start = Instant::now();
                            objects.extend((0..OBJECTS).map(|_| malloc.alloc(size)));
                            let allocated = start.elapsed();
                            barrier.wait();
                            let start = Instant::now();
                            objects.drain(..).for_each(|object| malloc.free(object));
                            if repetition > 0 {
                                alloc += allocated;
                                free += start.elapsed();
                            }
                        }
                        (alloc, free)
                    })
                })
                .collect();
            workers
                .into_iter()
                .map(|worker| worker.join().expect("a worker thread does not panic"))
                .collect()
        });
        let operations = (threads * REPETITIONS * OBJECTS) as f64;
        print(
            format!("contention/{size}/alloc"),
            nanos(times.iter().map(|time| time.0).sum(), operations),
        );
        print(
            format!("contention/{size}/free"),
            nanos(times.iter().map(|time| time.1).sum(), operations),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_hands_over_every_object_once() {
        let malloc = Malloc::of_this_process();
        let ring = Ring::new();
        let rounds = DEPTH * 20;
        let taken = std::thread::scope(|scope| {
            let consumer = scope.spawn(|| {
                let mut taken = 0;
                for _ in 0..rounds {
                    ring.consume(|batch| {
                        for object in batch.iter_mut().filter_map(Option::take) {
                            malloc.free(object);
                            taken += 1;
                        }
                    });
                }
                taken
            });
            for _ in 0..rounds {
                ring.produce(|batch| {
                    for place in batch {
                        assert!(place.is_none());
                        *place = Some(malloc.alloc(16));
                    }
                });
            }
            consumer.join().unwrap()
        });
        assert_eq!(taken, rounds * BATCH);
    }

    #[test]
    fn larsons_server_counts_every_replacement_once() {
        let mut value = 0.0;
        larson(
            Larson {
                threads_per_cpu: 2,
                slots: 10,
                generations: 3,
                replacements: 100,
            },
            &mut |_, nanos| value = nanos,
        )
        .unwrap();
        assert!(value > 0.0);
    }
}
