//! The loops of one thread: pairs, and many allocations before many frees.
//!
//! A pair's value is the median over short chunks, because a pair has no costs that come only now and then, and a chunk in which
//! something else ran on the CPU is no part of it. A batch's value is the mean over everything after one
//! unmeasured repetition: slabs made and memory given back are in it in their proportion.

use crate::allocator::Allocator;
use crate::clock::{Clock, Span};
use crate::{Print, Scale};
use core::ptr::NonNull;
use std::time::{Duration, Instant};

/// Pairs in a chunk: a fraction of a millisecond.
const CHUNK: u32 = 10_000;

/// Hides from the compiler where a pointer comes from and what memory it reaches, at the cost of no instruction.
#[inline(always)]
pub(crate) fn opaque(object: NonNull<u8>) -> NonNull<u8> {
    let mut pointer = object.as_ptr();
    // SAFETY: B6; the pointer stays what it was.
    unsafe {
        core::arch::asm!("/* {0} */", inout(reg) pointer, options(nostack, preserves_flags));
        NonNull::new_unchecked(pointer)
    }
}

/// Writes to the first eight bytes of an object, as a program does that uses it.
#[inline(always)]
fn touch(object: NonNull<u8>) {
    // SAFETY: B2.
    unsafe { object.cast::<u64>().write_volatile(1) }
}

/// Nanoseconds of one repetition of each of `works`, which take turns chunk by chunk for `slice` each: what disturbs one of them
/// disturbs the others as well.
pub(crate) fn by_turns<const N: usize>(
    mut works: [&mut dyn FnMut(u32); N],
    slice: Duration,
) -> [f64; N] {
    let mut chunks: [Vec<Duration>; N] = core::array::from_fn(|_| Vec::new());
    for work in &mut works {
        work(CHUNK);
    }
    let begin = Instant::now();
    while chunks[0].len() < 3 || begin.elapsed() < slice * N as u32 {
        for (work, chunks) in works.iter_mut().zip(&mut chunks) {
            let start = Instant::now();
            work(CHUNK);
            chunks.push(start.elapsed());
        }
    }
    chunks.map(|mut chunks| {
        chunks.sort_unstable();
        chunks[chunks.len() / 2].as_secs_f64() * 1e9 / f64::from(CHUNK)
    })
}

/// `n` pairs of an object of `size` bytes.
#[inline(always)]
pub(crate) fn pairs(allocator: &impl Allocator, size: usize, n: u32) {
    for _ in 0..n {
        let object = opaque(allocator.alloc(size));
        // SAFETY: B2.
        unsafe { allocator.free(object, size) };
    }
}

/// Nanoseconds of a pair of `size` bytes.
pub(crate) fn pair(allocator: &impl Allocator, size: usize, slice: Duration) -> f64 {
    let [nanos] = by_turns([&mut |n| pairs(allocator, size, n)], slice);
    nanos
}

/// How a batch goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    /// Each object is written to.
    pub(crate) touch: bool,
    /// What is free goes back before each repetition.
    pub(crate) cool: bool,
}

/// Time of all allocations and all frees of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    pub(crate) alloc: Span,
    pub(crate) free: Span,
    /// Allocations, and as many frees.
    pub(crate) operations: f64,
}

impl Batch {
    /// Prints `name/size/alloc`, `free` and `both` in nanoseconds, and the first two in cycles.
    pub(crate) fn print(&self, name: &str, size: usize, print: &mut Print<'_>) {
        let (alloc, free) = (self.alloc, self.free);
        for (what, span) in [("alloc", alloc), ("free", free), ("both", alloc + free)] {
            print(
                format!("{name}/{size}/{what}"),
                span.nanos_each(self.operations),
            );
        }
        for (what, span) in [("alloc", alloc), ("free", free)] {
            print(
                format!("{name}/{size}/{what}/cycles"),
                span.cycles_each(self.operations),
            );
        }
    }
}

/// Allocates `scale.count` objects, frees them, and so on.
pub(crate) fn batch(allocator: &impl Allocator, size: usize, how: How, scale: &Scale) -> Batch {
    let mut objects = Vec::with_capacity(scale.count);
    let mut repetition = || {
        if how.cool {
            allocator.cool();
        }
        let start = Clock::Own.start();
        for _ in 0..scale.count {
            let object = allocator.alloc(size);
            if how.touch {
                touch(object);
            }
            objects.push(object);
        }
        let alloc = start.elapsed();
        let start = Clock::Own.start();
        for object in objects.drain(..) {
            // SAFETY: B2.
            unsafe { allocator.free(object, size) };
        }
        (alloc, start.elapsed())
    };
    repetition();
    let (mut alloc, mut free, mut repetitions) = (Span::default(), Span::default(), 0.0);
    while (alloc + free).time < scale.slice || repetitions < 2.0 {
        let one = repetition();
        alloc += one.0;
        free += one.1;
        repetitions += 1.0;
    }
    Batch {
        alloc,
        free,
        operations: repetitions * scale.count as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::ByCall;

    #[test]
    fn every_work_has_its_turn() {
        let (mut one, mut two) = (0, 0);
        by_turns([&mut |n| one += n, &mut |n| two += n], Duration::ZERO);
        assert_eq!((one, two), (4 * CHUNK, 4 * CHUNK));
    }

    #[test]
    fn a_batch_counts_what_it_measured() {
        let glibc = ByCall::new(libc::malloc, libc::free);
        let scale = Scale {
            slice: Duration::ZERO,
            count: 50,
            ..Scale::DEFAULT
        };
        let batch = batch(
            &glibc,
            64,
            How {
                touch: true,
                cool: true,
            },
            &scale,
        );
        assert!((batch.operations - 100.0).abs() < 0.1);
        let mut printed = Vec::new();
        batch.print("x", 64, &mut |metric, value| {
            assert!(value >= 0.0);
            printed.push(metric);
        });
        let wanted = ["alloc", "free", "both", "alloc/cycles", "free/cycles"];
        assert_eq!(printed, wanted.map(|what| format!("x/64/{what}")));
    }
}
