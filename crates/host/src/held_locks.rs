//! The lock-order checker: which locks one context holds, and whether it may take another.
//!
//! A host that checks keeps one [`HeldLocks`] per context (simulated CPU, thread) and tells it
//! of each lock taken and released.

use crate::lock::{LockClass, Rank, classes};

#[derive(Clone, Copy, Debug)]
struct Held {
    address: usize,
    rank: Rank,
    name: &'static str,
}

/// A broken lock order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderViolation {
    /// The class that was to be taken (or released).
    pub wanted: &'static str,
    /// The class held that forbids it; the same as `wanted` if that was held already,
    /// or was released without being held.
    pub held: &'static str,
}

impl core::fmt::Display for OrderViolation {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "lock order: {} taken while holding {}",
            self.wanted, self.held
        )
    }
}

impl core::error::Error for OrderViolation {}

/// The locks that one context holds, at most `N`.
#[derive(Debug)]
pub struct HeldLocks<const N: usize = 32> {
    held: [Held; N],
    depth: usize,
}

impl<const N: usize> Default for HeldLocks<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> HeldLocks<N> {
    /// A context without locks.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            held: [Held {
                address: 0,
                rank: Rank(0),
                name: "",
            }; N],
            depth: 0,
        }
    }

    /// How many locks are held.
    #[must_use]
    pub const fn depth(&self) -> usize {
        self.depth
    }

    /// Notes that the lock at `address` is to be taken, or was taken by trying (`tried`), which may be
    /// out of order, since it can not wait. The holder of the fork gate may take several of a class.
    ///
    /// # Errors
    /// Says which held lock forbids it; the lock is noted all the same, unless there are too many.
    pub fn acquire<C: LockClass>(
        &mut self,
        address: usize,
        tried: bool,
    ) -> Result<(), OrderViolation> {
        let mut result = Ok(());
        let gate = self.held[..self.depth]
            .iter()
            .any(|h| h.rank == classes::Fork::RANK);
        for held in &self.held[..self.depth] {
            let wrong = held.address == address
                || (!tried && (held.rank > C::RANK || (held.rank == C::RANK && !gate)));
            if wrong {
                result = Err(OrderViolation {
                    wanted: C::NAME,
                    held: held.name,
                });
            }
        }
        if self.depth == N {
            return Err(OrderViolation {
                wanted: C::NAME,
                held: "too many locks",
            });
        }
        self.held[self.depth] = Held {
            address,
            rank: C::RANK,
            name: C::NAME,
        };
        self.depth += 1;
        result
    }

    /// Notes that the lock at `address` was released, in any order.
    ///
    /// # Errors
    /// If it was not held.
    pub fn release<C: LockClass>(&mut self, address: usize) -> Result<(), OrderViolation> {
        let Some(at) = self.held[..self.depth]
            .iter()
            .rposition(|h| h.address == address)
        else {
            return Err(OrderViolation {
                wanted: C::NAME,
                held: C::NAME,
            });
        };
        self.held.copy_within(at + 1..self.depth, at);
        self.depth -= 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classes::{CacheList, Fork, SlabNode, Zone};

    #[test]
    fn ascending_ranks_are_in_order() {
        let mut held = HeldLocks::<8>::new();
        held.acquire::<CacheList>(1, false).unwrap();
        held.acquire::<SlabNode>(2, false).unwrap();
        held.acquire::<Zone>(3, false).unwrap();
        held.release::<SlabNode>(2).unwrap();
        held.release::<Zone>(3).unwrap();
        held.release::<CacheList>(1).unwrap();
        assert_eq!(held.depth(), 0);
    }

    #[test]
    fn a_lower_rank_is_refused_unless_it_was_tried() {
        let mut held = HeldLocks::<8>::new();
        held.acquire::<Zone>(1, false).unwrap();
        let wrong = held.acquire::<SlabNode>(2, false).unwrap_err();
        assert_eq!((wrong.wanted, wrong.held), ("slab_node", "zone"));
        held.release::<SlabNode>(2).unwrap();
        held.acquire::<SlabNode>(2, true).unwrap();
    }

    #[test]
    fn two_of_a_class_are_held_only_behind_the_fork_gate() {
        let mut held = HeldLocks::<8>::new();
        held.acquire::<SlabNode>(10, false).unwrap();
        assert!(held.acquire::<SlabNode>(20, false).is_err());
        let mut held = HeldLocks::<8>::new();
        held.acquire::<Fork>(1, false).unwrap();
        held.acquire::<SlabNode>(20, false).unwrap();
        held.acquire::<SlabNode>(10, false).unwrap();
        assert!(held.acquire::<CacheList>(30, false).is_err());
    }

    #[test]
    fn a_lock_is_not_taken_twice_nor_released_unheld() {
        let mut held = HeldLocks::<8>::new();
        held.acquire::<SlabNode>(10, false).unwrap();
        assert!(held.acquire::<SlabNode>(10, true).is_err());
        assert!(HeldLocks::<8>::new().release::<Zone>(5).is_err());
    }

    #[test]
    fn too_many_locks_are_a_violation() {
        let mut held = HeldLocks::<1>::new();
        held.acquire::<CacheList>(10, false).unwrap();
        assert_eq!(
            held.acquire::<Zone>(20, false).unwrap_err().held,
            "too many locks"
        );
    }
}
