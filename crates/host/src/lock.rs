//! Lock classes and their order.
//!
//! Every lock of the core belongs to a class, and a class has a [`Rank`]. A context may take a
//! lock only if its rank is higher than those of all locks it holds; a class that says so may be taken
//! several times, in ascending order of address (the nodes of one cache when it is destroyed, all
//! of them at a fork). `MODEL.md` has the list with reasons; [`classes`] is the list.

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
    /// Whether one context may hold several of this class.
    const NESTS: bool = false;
}

/// A mutex of class `C` on host `H`.
pub type Mutex<H, C, T> = lock_api::Mutex<<H as crate::Host>::Lock<C>, T>;
/// The guard of a [`Mutex`].
pub type MutexGuard<'a, H, C, T> = lock_api::MutexGuard<'a, <H as crate::Host>::Lock<C>, T>;

/// The lock classes of the core, lowest rank (outermost) first.
pub mod classes {
    use super::{LockClass, Rank};

    macro_rules! classes {
        ($($(#[$doc:meta])* $name:ident = $rank:literal, $text:literal $(, $nests:ident)?;)*) => {
            $(
                $(#[$doc])*
                #[derive(Debug)]
                pub struct $name;
                impl LockClass for $name {
                    const NAME: &'static str = $text;
                    const RANK: Rank = Rank($rank);
                    $(const NESTS: bool = { let $nests = true; $nests };)?
                }
            )*
            /// Every class: name and rank, outermost first.
            pub const ALL: &[(&str, Rank)] = &[$(($text, Rank($rank))),*];
        };
    }

    classes! {
        /// The list of caches; held to create, destroy, reap and list them.
        CacheList = 10, "cache_list";
        /// The growth of the memory that a host has committed.
        Growth = 20, "growth";
        /// An alien cache: objects of one remote node waiting to go home.
        Alien = 30, "alien", nests;
        /// The slab lists and the shared array of one node of one cache.
        SlabNode = 40, "slab_node", nests;
        /// A per-CPU list of free pages.
        PageList = 60, "page_list", nests;
        /// The buddy lists of a zone.
        Zone = 70, "zone", nests;
        /// The host's own bookkeeping: ranges, arrays, deferred calls.
        HostInner = 90, "host_inner", nests;
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
