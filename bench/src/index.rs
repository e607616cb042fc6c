//! The index of a slab's free objects by itself, in two forms, without arrays, locks or lists of slabs around it.
//!
//! `array` is the one that slabs have: a stack of the numbers of free objects, side by side. `linked` is the variant that the published work
//! tried and rejected: each free object holds the number of the next one, so that nothing is set aside, and every
//! allocation and free touches the object itself.

use crate::clock::{Clock, Span};
use crate::{Error, Print, SHORT_SIZES, Scale, processors};
use std::hint::black_box;

/// The forms of the index.
pub(crate) const SUBJECTS: &[&str] = &["array", "linked"];

/// Bytes of a slab: the smallest of a process.
const SLAB: usize = 64 << 10;
const END: u16 = u16::MAX;

/// A slab with an index: hands out the numbers of its objects.
trait Slab {
    fn new(objects: u16, size: usize) -> Self;
    /// A free object; `None` if all are in use.
    fn take(&mut self) -> Option<u16>;
    fn give(&mut self, object: u16);
}

/// Numbers of free objects from `active` on.
struct Stack {
    index: Box<[u16]>,
    active: usize,
}

impl Slab for Stack {
    fn new(objects: u16, _size: usize) -> Self {
        Self {
            index: (0..objects).collect(),
            active: 0,
        }
    }

    fn take(&mut self) -> Option<u16> {
        let object = *self.index.get(self.active)?;
        self.active += 1;
        Some(object)
    }

    fn give(&mut self, object: u16) {
        self.active -= 1;
        self.index[self.active] = object;
    }
}

/// Objects whose first two bytes, while they are free, are the number of the next free one.
struct Linked {
    memory: Box<[u8]>,
    size: usize,
    first: u16,
}

impl Linked {
    fn link(&mut self, object: u16) -> &mut [u8; 2] {
        let at = usize::from(object) * self.size;
        let bytes: &mut [u8] = &mut self.memory[at..at + 2];
        bytes.try_into().expect("two bytes")
    }
}

impl Slab for Linked {
    fn new(objects: u16, size: usize) -> Self {
        let memory = vec![0; usize::from(objects) * size].into_boxed_slice();
        let mut slab = Self {
            memory,
            size,
            first: END,
        };
        (0..objects).rev().for_each(|object| slab.give(object));
        slab
    }

    fn take(&mut self) -> Option<u16> {
        if self.first == END {
            return None;
        }
        let object = self.first;
        self.first = u16::from_ne_bytes(*self.link(object));
        Some(object)
    }

    fn give(&mut self, object: u16) {
        *self.link(object) = self.first.to_ne_bytes();
        self.first = object;
    }
}

/// `index/SIZE/alloc|free`: nanoseconds, and cycles.
pub(crate) fn measure(subject: &str, scale: &Scale, print: &mut Print<'_>) -> Result<(), Error> {
    processors::stay_on_first()?;
    for &size in SHORT_SIZES {
        let (alloc, free, operations) = if subject == "array" {
            repeat::<Stack>(size, scale)
        } else {
            repeat::<Linked>(size, scale)
        };
        for (what, span) in [("alloc", alloc), ("free", free)] {
            print(format!("index/{size}/{what}"), span.nanos_each(operations));
            print(
                format!("index/{size}/{what}/cycles"),
                span.cycles_each(operations),
            );
        }
    }
    Ok(())
}

/// Takes every object of as many slabs as hold `scale.count`, gives all of them back in another order, and so on.
fn repeat<S: Slab>(size: usize, scale: &Scale) -> (Span, Span, f64) {
    let objects = (SLAB / size) as u16;
    let count = scale.count.max(1).next_multiple_of(usize::from(objects));
    let mut slabs: Vec<S> = (0..count / usize::from(objects))
        .map(|_| S::new(objects, size))
        .collect();
    // Objects go back as a program's do: not in the order in which they came. A stride without a divisor in common
    // with the count visits each once.
    let stride = (count * 5 / 8..)
        .find(|stride| gcd(*stride, count) == 1)
        .unwrap_or(1);
    let mut held: Vec<(u32, u16)> = Vec::with_capacity(count);
    let mut repetition = || {
        let start = Clock::Own.start();
        for (number, slab) in (0_u32..).zip(slabs.iter_mut()) {
            while let Some(object) = slab.take() {
                held.push((number, object));
            }
        }
        let alloc = start.elapsed();
        let held_now = black_box(&mut held);
        let start = Clock::Own.start();
        let mut at = 0;
        for _ in 0..held_now.len() {
            let (number, object) = held_now[at];
            slabs[number as usize].give(object);
            at += stride;
            if at >= count {
                at %= count;
            }
        }
        let free = start.elapsed();
        held.clear();
        (alloc, free)
    };
    repetition();
    let (mut alloc, mut free, mut operations) = (Span::default(), Span::default(), 0.0);
    while (alloc + free).time < scale.slice || operations == 0.0 {
        let one = repetition();
        alloc += one.0;
        free += one.1;
        operations += count as f64;
    }
    (alloc, free, operations)
}

const fn gcd(mut a: usize, mut b: usize) -> usize {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn hands_out_each_once<S: Slab>() {
        let mut slab = S::new(100, 32);
        for _ in 0..3 {
            let taken: Vec<u16> = std::iter::from_fn(|| slab.take()).collect();
            assert_eq!(taken.iter().collect::<BTreeSet<_>>().len(), 100);
            assert_eq!(taken.len(), 100);
            taken
                .iter()
                .step_by(2)
                .for_each(|object| slab.give(*object));
            taken
                .iter()
                .skip(1)
                .step_by(2)
                .for_each(|object| slab.give(*object));
        }
    }

    #[test]
    fn both_forms_hand_out_each_object_once() {
        hands_out_each_once::<Stack>();
        hands_out_each_once::<Linked>();
    }

    #[test]
    fn every_repetition_gives_everything_back() {
        let scale = Scale {
            slice: std::time::Duration::ZERO,
            count: 1000,
            ..Scale::DEFAULT
        };
        let (_, _, operations) = repeat::<Linked>(4096, &scale);
        assert!((operations - 1008.0).abs() < 0.1, "{operations}");
    }
}
