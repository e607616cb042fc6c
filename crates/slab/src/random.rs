//! Randomised free lists: new slabs hand out their objects in an order that can not be guessed (S10).
//!
//! One random permutation per cache is computed when randomisation is first wanted; each new slab
//! starts at a random place in it and goes round. Before the permutation
//! exists, or where there is no memory for it, an order is computed on the fly: a random start and a random stride
//! that has no common divisor with the number of objects.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

/// A permutation of a cache's object numbers, once it exists.
pub(crate) struct Sequence {
    entries: AtomicPtr<u16>,
    /// The seed of the next slab's order; 0 until the host's randomness gave the first.
    seed: AtomicU64,
    /// Whether some context computes it or has done so.
    begun: AtomicBool,
}

/// The step of the generator.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A small generator (splitmix64) for one shuffle, seeded by the host.
pub(crate) struct Shuffle(u64);

impl Shuffle {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, by multiplication; the bias is below `n / 2^64`.
    fn below(&mut self, n: u32) -> u32 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u32
    }
}

impl Sequence {
    pub(crate) const fn none() -> Self {
        Self {
            entries: AtomicPtr::new(null_mut()),
            seed: AtomicU64::new(0),
            begun: AtomicBool::new(false),
        }
    }

    /// Claims the right to compute the sequence; `false` if it is taken.
    pub(crate) fn begin(&self) -> bool {
        !self.begun.swap(true, Ordering::Relaxed)
    }

    /// Gives the right up.
    pub(crate) fn abandon(&self) {
        self.begun.store(false, Ordering::Relaxed);
    }

    pub(crate) fn exists(&self) -> bool {
        !self.entries.load(Ordering::Relaxed).is_null()
    }

    /// Writes a permutation of `0..num` into `memory` and publishes it.
    ///
    /// # Safety
    /// The caller has the right from [`Sequence::begin`]; `memory` has room for `num` entries and lives as long as the cache.
    pub(crate) unsafe fn publish(&self, memory: *mut u16, num: u32, seed: u64) {
        let mut shuffle = Shuffle::new(seed);
        // SAFETY: room for `num` entries, not shared yet.
        let entries = unsafe { core::slice::from_raw_parts_mut(memory, num as usize) };
        for (i, e) in entries.iter_mut().enumerate() {
            *e = i as u16;
        }
        for i in (1..num).rev() {
            entries.swap(i as usize, shuffle.below(i + 1) as usize);
        }
        self.entries.store(memory, Ordering::Release);
    }

    /// The memory of the permutation, taken out.
    pub(crate) fn retract(&mut self) -> *mut u16 {
        core::mem::replace(self.entries.get_mut(), null_mut())
    }

    /// The seed of one slab's order: the host's randomness is asked for once, then a generator goes on from it.
    pub(crate) fn next_seed(&self, random: impl FnOnce() -> u64) -> u64 {
        if self.seed.load(Ordering::Relaxed) == 0 {
            let first = random() | 1;
            let _ = self
                .seed
                .compare_exchange(0, first, Ordering::Relaxed, Ordering::Relaxed);
        }
        self.seed.fetch_add(STEP, Ordering::Relaxed)
    }

    /// Where a slab of `num` objects begins in the permutation, once that exists.
    pub(crate) fn start(num: u32, seed: u64) -> u16 {
        // At most 2^16 - 1, which is `IN_ORDER`: then the last but one.
        (Shuffle::new(seed).below(num) as u16).min(IN_ORDER - 1)
    }

    /// What the entries of a slab's index that were never stored stand for.
    #[inline]
    pub(crate) fn implied(&self, num: u32, start: u16) -> Implied {
        if start == IN_ORDER {
            return Implied {
                entries: core::ptr::null(),
                num,
                start: 0,
            };
        }
        Implied {
            entries: self.entries.load(Ordering::Acquire),
            num,
            start: u32::from(start),
        }
    }

    /// The order of one new slab of `num` objects.
    pub(crate) fn order(&self, num: u32, seed: u64) -> Order {
        let entries = self.entries.load(Ordering::Acquire);
        let mut shuffle = Shuffle::new(seed);
        let start = shuffle.below(num);
        let mut stride = 1;
        if entries.is_null() && num > 2 {
            stride = 1 + shuffle.below(num - 1);
            while gcd(stride, num) != 1 {
                stride = stride % (num - 1) + 1;
            }
        }
        Order {
            entries,
            num,
            stride,
            next: start,
            left: num,
        }
    }
}

/// The start of a slab whose objects are handed out in order.
pub(crate) const IN_ORDER: u16 = u16::MAX;

/// What index entries stand for that were never stored: the permutation (without one, the numbers in order) from a slab's start
/// on, going round.
#[derive(Clone, Copy)]
pub(crate) struct Implied {
    entries: *const u16,
    num: u32,
    start: u32,
}

impl Implied {
    /// The object number of entry `at`, below `num`.
    #[inline]
    pub(crate) fn number(self, at: u32) -> u32 {
        debug_assert!(at < self.num && self.start < self.num);
        let at = at + self.start;
        let at = if at >= self.num { at - self.num } else { at };
        if self.entries.is_null() {
            return at;
        }
        // SAFETY: a published permutation has `num` entries and lives as long as the cache; `at < num`.
        u32::from(unsafe { self.entries.add(at as usize).read() })
    }
}

impl Implied {
    /// Calls `each(i, number)` with the object numbers of the entries `from + i` for all `i < n`; `from + n ≤ num`.
    #[inline(always)]
    pub(crate) fn each(self, from: u32, n: u32, mut each: impl FnMut(usize, u32)) {
        // Up to where it goes round, and the rest.
        let straight = n.min(self.num.saturating_sub(self.start + from));
        for (begin, end) in [(0, straight), (straight, n)] {
            if begin == end {
                continue;
            }
            let mut at = self.start + from + begin;
            if at >= self.num {
                at -= self.num;
            }
            if self.entries.is_null() {
                (begin..end).for_each(|i| each(i as usize, at + (i - begin)));
                continue;
            }
            // SAFETY: a published permutation has `num` entries and lives as long as the cache; the part ends at or before `num`.
            let part = unsafe {
                core::slice::from_raw_parts(self.entries.add(at as usize), (end - begin) as usize)
            };
            for (i, &number) in part.iter().enumerate() {
                each(begin as usize + i, u32::from(number));
            }
        }
    }
}

/// The numbers of a slab's objects in the order in which they are handed out.
pub(crate) struct Order {
    entries: *const u16,
    num: u32,
    stride: u32,
    next: u32,
    left: u32,
}

impl Order {
    fn number(&self, at: u32) -> u32 {
        if self.entries.is_null() {
            at
        } else {
            // SAFETY: a published permutation has `num` entries and lives as long as the cache; `at < num`.
            u32::from(unsafe { self.entries.add(at as usize).read() })
        }
    }

    /// The number that comes last; for an order not yet begun.
    pub(crate) fn final_number(&self) -> u32 {
        // One stride before the first, going round.
        self.number((self.next + self.num - self.stride % self.num) % self.num)
    }
}

impl Iterator for Order {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        let at = self.next;
        self.next = at + self.stride;
        if self.next >= self.num {
            self.next -= self.num;
        }
        Some(self.number(at))
    }
}

const fn gcd(mut a: u32, mut b: u32) -> u32 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    fn is_permutation(order: &[u32]) -> bool {
        let mut sorted = order.to_vec();
        sorted.sort_unstable();
        sorted.iter().enumerate().all(|(i, &v)| v == i as u32)
    }

    #[test]
    fn every_order_is_a_permutation_with_and_without_a_sequence() {
        for num in [1, 2, 3, 4, 7, 64, 255, 256, 1000, 4096] {
            let mut memory = std::vec![0u16; num as usize];
            let sequence = Sequence::none();
            for seed in 0..20 {
                let order: Vec<u32> = sequence.order(num, seed).collect();
                assert_eq!(
                    sequence.order(num, seed).final_number(),
                    order[num as usize - 1]
                );
                assert!(is_permutation(&order), "on the fly {num} {seed}");
            }
            // SAFETY: the vector outlives the sequence's use here.
            unsafe { sequence.publish(memory.as_mut_ptr(), num, 42) };
            for seed in 0..20 {
                let order: Vec<u32> = sequence.order(num, seed).collect();
                assert_eq!(
                    sequence.order(num, seed).final_number(),
                    order[num as usize - 1]
                );
                assert!(is_permutation(&order), "from the sequence {num} {seed}");
            }
        }
    }

    #[test]
    fn slabs_differ_and_only_one_context_computes_the_sequence() {
        let mut memory = std::vec![0u16; 64];
        let mut sequence = Sequence::none();
        assert!(sequence.begin() && !sequence.begin());
        // SAFETY: the vector outlives the sequence's use here.
        unsafe { sequence.publish(memory.as_mut_ptr(), 64, 1) };
        let first: Vec<u32> = sequence.order(64, 7).collect();
        let second: Vec<u32> = sequence.order(64, 8).collect();
        assert_ne!(first, second);
        assert_ne!(first, (0..64).collect::<Vec<_>>());
        assert_eq!(sequence.retract(), memory.as_mut_ptr());
        assert!(!sequence.exists());
    }
}
