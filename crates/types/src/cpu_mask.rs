//! Sets of CPUs, changed by several of them at once.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::CpuId;

const WORDS: usize = 4;

/// A set of CPUs with ids below [`CpuMask::CPUS`], a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CpuMask([u64; WORDS]);

impl CpuMask {
    /// Ids that fit: `0..CPUS`.
    pub const CPUS: u32 = WORDS as u32 * u64::BITS;

    /// No CPU.
    pub const EMPTY: Self = Self([0; WORDS]);

    /// The CPUs `0..count`; all that fit if there are more.
    #[must_use]
    pub fn first(count: u32) -> Self {
        let mut mask = Self::EMPTY;
        for (n, word) in mask.0.iter_mut().enumerate() {
            let below = count.saturating_sub(n as u32 * u64::BITS);
            *word = if below >= u64::BITS {
                u64::MAX
            } else {
                (1 << below) - 1
            };
        }
        mask
    }

    /// Puts a CPU in. Ids that do not fit are left out.
    pub fn insert(&mut self, cpu: CpuId) {
        if let Some(word) = self.0.get_mut(cpu.index() / 64) {
            *word |= 1 << (cpu.0 % u64::BITS);
        }
    }

    /// Takes a CPU out.
    #[inline]
    pub fn remove(&mut self, cpu: CpuId) {
        if let Some(word) = self.0.get_mut(cpu.index() / 64) {
            *word &= !(1 << (cpu.0 % u64::BITS));
        }
    }

    /// Whether a CPU is in the set.
    #[inline]
    #[must_use]
    pub fn contains(&self, cpu: CpuId) -> bool {
        self.0
            .get(cpu.index() / 64)
            .is_some_and(|word| word >> (cpu.0 % u64::BITS) & 1 != 0)
    }

    /// Whether nobody is in the set.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        // In registers: as a comparison of memory it waits for the words that were just loaded one by one.
        self.0.iter().fold(0, |all, word| all | word) == 0
    }

    /// Whether anybody but `cpu` is in the set.
    #[inline]
    #[must_use]
    pub fn has_others(&self, cpu: CpuId) -> bool {
        let mut others = *self;
        others.remove(cpu);
        !others.is_empty()
    }

    /// How many CPUs are in the set.
    #[inline]
    #[must_use]
    pub fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// Those that are in both sets.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self(core::array::from_fn(|n| self.0[n] & other.0[n]))
    }

    /// Those that are in either set.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        Self(core::array::from_fn(|n| self.0[n] | other.0[n]))
    }

    /// The CPUs of the set, lowest first.
    pub fn iter(&self) -> impl Iterator<Item = CpuId> + '_ {
        self.0.iter().enumerate().flat_map(|(n, &word)| {
            let mut left = word;
            core::iter::from_fn(move || {
                let bit = left.checked_ilog2().map(|_| left.trailing_zeros())?;
                left &= left - 1;
                Some(CpuId(n as u32 * u64::BITS + bit))
            })
        })
    }
}

/// A [`CpuMask`] that CPUs put themselves into and take themselves out of.
#[derive(Debug, Default)]
pub struct AtomicCpuMask([AtomicU64; WORDS]);

impl AtomicCpuMask {
    /// No CPU.
    #[must_use]
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; WORDS])
    }

    /// Puts a CPU in, sequentially consistent; whether it was not in before.
    pub fn insert(&self, cpu: CpuId) -> bool {
        let bit = 1 << (cpu.0 % u64::BITS);
        self.0
            .get(cpu.index() / 64)
            .is_some_and(|word| word.fetch_or(bit, Ordering::SeqCst) & bit == 0)
    }

    /// Takes a CPU out, sequentially consistent; whether it was in.
    pub fn remove(&self, cpu: CpuId) -> bool {
        let bit = 1 << (cpu.0 % u64::BITS);
        self.0
            .get(cpu.index() / 64)
            .is_some_and(|word| word.fetch_and(!bit, Ordering::SeqCst) & bit != 0)
    }

    /// The set as it is now: each word by itself, sequentially consistent.
    #[inline]
    #[must_use]
    pub fn load(&self) -> CpuMask {
        CpuMask(core::array::from_fn(|n| self.0[n].load(Ordering::SeqCst)))
    }
}

#[cfg(test)]
mod tests {
    extern crate alloc;
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn a_set_lists_what_was_put_in_lowest_first() {
        let mut mask = CpuMask::EMPTY;
        for cpu in [255, 0, 63, 64, 200, 256] {
            mask.insert(CpuId(cpu));
        }
        let listed: Vec<_> = mask.iter().map(|cpu| cpu.0).collect();
        assert_eq!(listed, [0, 63, 64, 200, 255]);
        assert_eq!(mask.len(), 5);
        mask.remove(CpuId(63));
        assert!(!mask.contains(CpuId(63)) && mask.contains(CpuId(64)));
        assert!(!mask.contains(CpuId(256)));
    }

    #[test]
    fn the_first_cpus_are_those_below_the_count() {
        for count in [0, 1, 63, 64, 65, 128, 255, 256, 300] {
            let mask = CpuMask::first(count);
            assert_eq!(mask.len(), count.min(CpuMask::CPUS));
            assert!(mask.iter().all(|cpu| cpu.0 < count));
        }
    }

    #[test]
    fn an_atomic_set_tells_who_was_first() {
        let mask = AtomicCpuMask::new();
        assert!(mask.insert(CpuId(70)) && !mask.insert(CpuId(70)));
        assert_eq!(mask.load().iter().next(), Some(CpuId(70)));
        assert!(mask.remove(CpuId(70)) && !mask.remove(CpuId(70)));
        assert!(mask.load().is_empty());
    }
}
