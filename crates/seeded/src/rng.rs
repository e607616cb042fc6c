//! Random numbers from a seed: the splitmix64 sequence (Steele, Lea and Flood, 2014).
//!
//! Small, quick and the same everywhere. Every choice that a machine makes comes from one of these, so that a
//! seed replays a run.

use core::cell::Cell;

/// A sequence of random numbers that a seed decides.
#[derive(Clone, Debug)]
pub struct Rng(Cell<u64>);

impl Rng {
    /// The sequence of `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(Cell::new(seed))
    }

    /// The next 64 bits.
    #[inline]
    pub fn bits(&self) -> u64 {
        let state = self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.0.set(state);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 if `end` is 0.
    #[inline]
    pub fn below(&self, end: usize) -> usize {
        ((u128::from(self.bits()) * end as u128) >> 64) as usize
    }

    /// True in `of_256` of 256 cases.
    #[inline]
    pub fn chance(&self, of_256: u32) -> bool {
        (self.bits() >> 56) < u64::from(of_256)
    }

    /// One of `choices`, which are not empty.
    pub fn pick<T: Copy>(&self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::Rng;

    #[test]
    fn a_seed_decides_the_sequence_and_below_stays_below() {
        let (a, b) = (Rng::new(7), Rng::new(7));
        for end in 1..200 {
            let n = a.below(end);
            assert!(n < end);
            assert_eq!(n, b.below(end));
        }
        assert_eq!(a.below(0), 0);
        assert!(a.chance(256) && !a.chance(0));
    }
}
