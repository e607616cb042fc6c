//! Failures that a test orders: the n-th call, every call from the n-th, or some calls by chance.

use crate::rng::Rng;
use core::cell::Cell;

/// A host call that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// `PhysMem::boot_alloc`: out of memory.
    BootAlloc,
    /// `Backing::commit`: out of memory, nothing committed.
    Commit,
    /// `Backing::release`: refused, contents kept.
    Release,
    /// `Host::new_array`: out of memory.
    NewArray,
    /// `Host::stop_arrays`: `None`.
    StopArrays,
    /// `VirtualMemmap::map_memmap`: out of memory, nothing mapped.
    MapMemmap,
}

const CALLS: usize = 6;

/// Which calls fail. Calls are counted from 1, from the moment of the order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// None.
    #[default]
    Never,
    /// This one call.
    Nth(u64),
    /// This call and all that follow.
    From(u64),
    /// So many of 256, by the seed.
    Chance(u32),
}

/// The orders in force.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    orders: [Cell<(Fault, u64)>; CALLS],
}

impl Faults {
    pub(crate) fn order(&self, call: Call, fault: Fault) {
        self.orders[call as usize].set((fault, 0));
    }

    /// Counts a call and says whether it is to fail.
    pub(crate) fn fails(&self, call: Call, rng: &Rng) -> bool {
        let order = &self.orders[call as usize];
        let (fault, calls) = order.get();
        order.set((fault, calls + 1));
        match fault {
            Fault::Never => false,
            Fault::Nth(n) => calls + 1 == n,
            Fault::From(n) => calls + 1 >= n,
            Fault::Chance(of_256) => rng.chance(of_256),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_count_from_their_own_moment() {
        let (faults, rng) = (Faults::default(), Rng::new(1));
        assert!(!faults.fails(Call::Commit, &rng));
        faults.order(Call::Commit, Fault::Nth(2));
        let seen: Vec<bool> = (0..4).map(|_| faults.fails(Call::Commit, &rng)).collect();
        assert_eq!(seen, [false, true, false, false]);
        faults.order(Call::Commit, Fault::From(2));
        let seen: Vec<bool> = (0..4).map(|_| faults.fails(Call::Commit, &rng)).collect();
        assert_eq!(seen, [false, true, true, true]);
        assert!(!faults.fails(Call::NewArray, &rng));
    }
}
