//! Lock classes and their order.
//!
//! Every lock of the core belongs to a class, and a class has a [`Rank`]. A context may take a
//! lock only if its rank is higher than those of all locks it holds. Several locks of one class are held only by
//! a fork, which holds the [`classes::Fork`] gate, in any order: nobody else ever waits for a second one, so no cycle can form.
//! `MODEL.md` has the list with reasons; [`classes`] is the list.

use core::fmt::Debug;

/// The place of a lock class in the lock order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(pub u16);

/// A class of locks.
pub trait LockClass: Debug + Send + Sync + 'static {
    /// What reports call it.
    const NAME: &'static str;
    /// Its place in the order.
    const RANK: Rank;
    /// Whether it is also taken in interrupts: a host that has them then blocks them while it is held. Else the holder may sleep.
    const IN_INTERRUPT: bool = true;
}

/// A mutex of class `C` on host `H`.
pub type Mutex<H, C, T> = lock_api::Mutex<<H as crate::Machine>::Lock<C>, T>;
/// The guard of a [`Mutex`].
pub type MutexGuard<'a, H, C, T> = lock_api::MutexGuard<'a, <H as crate::Machine>::Lock<C>, T>;

/// The lock classes of the core, lowest rank (outermost) first.
pub mod classes {
    use super::{LockClass, Rank};

    macro_rules! classes {
        ($($(#[$doc:meta])* $name:ident = $rank:literal, $text:literal, $interrupt:literal;)*) => {
            $(
                $(#[$doc])*
                #[derive(Debug)]
                pub struct $name;
                impl LockClass for $name {
                    const NAME: &'static str = $text;
                    const RANK: Rank = Rank($rank);
                    const IN_INTERRUPT: bool = $interrupt;
                }
            )*
            /// Every class: name and rank, outermost first.
            pub const ALL: &[(&str, Rank)] = &[$(($text, Rank($rank))),*];
        };
    }

    classes! {
        /// The gate of a fork: its holder takes every other lock, several of a class.
        Fork = 5, "fork", false;
        /// The list of caches; held to list, link and unlink them, and to reap.
        CacheList = 10, "cache_list", false;
        /// The growth of the memory that a host has committed.
        Growth = 20, "growth", false;
        /// An alien cache: objects of one remote node waiting to go home.
        Alien = 30, "alien", true;
        /// The slabs on one CPU's lists of one cache; a second one of the class is only tried.
        CpuSlabs = 35, "cpu_slabs", true;
        /// The slab lists and the shared array of one node of one cache.
        SlabNode = 40, "slab_node", true;
        /// One CPU's freed objects in quarantine.
        QuarantineSlot = 44, "quarantine_slot", true;
        /// All CPUs' freed objects in quarantine.
        Quarantine = 45, "quarantine", true;
        /// A page table of the fifth level; may hold the lock of a lower one besides, as all table locks may.
        Table5 = 50, "table5", false;
        /// A page table of the fourth level.
        Table4 = 51, "table4", false;
        /// A page table of the third level (PUD).
        Table3 = 52, "table3", false;
        /// A page table of the second level (PMD).
        Table2 = 53, "table2", false;
        /// A page table of the first level (PTE).
        Table1 = 54, "table1", false;
        /// A per-CPU list of free pages.
        PageList = 60, "page_list", true;
        /// The buddy lists of a zone.
        Zone = 70, "zone", true;
        /// The host's own bookkeeping: ranges, arrays, deferred calls.
        HostInner = 90, "host_inner", true;
    }
}

#[cfg(test)]
mod tests {
    use super::classes::ALL;

    #[test]
    fn classes_are_listed_in_the_order_of_their_ranks() {
        assert!(ALL.windows(2).all(|w| w[0].1 < w[1].1));
    }
}
