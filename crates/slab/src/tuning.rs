//! What a host chooses: the floor of slab orders, the sizes of arrays, the
//! classes of `kmalloc`, and the switches that keep published behaviour at hand.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};
use flagstone_types::FreeError;

use crate::debug::DebugPolicy;

/// How slabs are cut; see [`crate::layout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutPolicy {
    /// The smallest order a slab may have: 0 in a kernel.
    pub min_order: u32,
    /// The order above which little waste is no longer looked for (Linux: 1 on machines with more
    /// than 32 MiB).
    pub max_order: u32,
    /// Objects that a slab should have, even if fewer would waste little, as far as `max_order` allows: 1 in a kernel. More of
    /// them make slabs come and go less often.
    pub min_objects: u32,
    /// Cache line size in bytes: the least colour step.
    pub cache_line: usize,
    /// Whether slabs of 64 objects and fewer keep their index in their record instead of by the published rule.
    pub in_record: bool,
    /// Whether the index may lie in a free object. Where it does, a program that writes to what it freed overwrites it.
    pub in_object: bool,
    /// Whether the memory of a new slab is to be zero. The core writes to no object unless it has an index in it.
    pub zeroed: bool,
    /// Bytes at the end of every slab that hold nothing, for a host that makes them inaccessible (`PhysMem::tag` tells it of the
    /// frames); a multiple of 8, 0 for none.
    pub tail: usize,
}

/// The arrays of a cache, in objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrayTuning {
    /// The most a CPU's array may ever hold.
    pub capacity: u32,
    /// What it may hold to begin with.
    pub limit: u32,
    /// How many move at once between a CPU's array and its node.
    pub batch: u32,
    /// The most the shared array of a node may ever hold; 0 for none.
    pub shared_capacity: u32,
    /// What it may hold to begin with.
    pub shared_limit: u32,
}

impl ArrayTuning {
    /// Linux's figures for an object of `size` bytes where a page has `page_size`.
    #[must_use]
    pub const fn linux(size: usize, page_size: usize, cpus: u32) -> Self {
        let limit: u32 = if size > 131_072 {
            1
        } else if size > page_size {
            8
        } else if size > 1024 {
            24
        } else if size > 256 {
            54
        } else {
            120
        };
        let batch = limit.div_ceil(2);
        let shared = if cpus > 1 && size <= page_size {
            8 * batch
        } else {
            0
        };
        Self {
            capacity: limit,
            limit,
            batch,
            shared_capacity: shared,
            shared_limit: shared,
        }
    }
}

/// A pointer that was freed and is not an allocated object of its cache.
#[derive(Clone, Copy, Debug)]
pub struct BadFree<'a> {
    /// The pointer.
    pub object: NonNull<u8>,
    /// What is wrong with it.
    pub error: FreeError,
    /// The cache it was freed to.
    pub cache: &'a str,
}

/// The choices of a host.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// How slabs are cut.
    pub layout: LayoutPolicy,
    /// The arrays for objects of a size in bytes.
    pub arrays: fn(size: usize) -> ArrayTuning,
    /// Slots of an alien cache (Linux: 12).
    pub alien_limit: u32,
    /// Whether a cache's limits grow with use and shrink when idle.
    pub adaptive: bool,
    /// Told of a freed pointer that is no allocated object. May not return
    /// (a process aborts); if it does, the pointer is dropped. Called with no lock of the core held, by who freed the pointer or by whoever
    /// held the list of caches then; it may come while arrays are stopped.
    pub bad_free: fn(&BadFree<'_>),
    /// Which caches are debugged, and where what is found goes.
    pub debug: DebugPolicy,
}

/// Published improvements of the slow paths, each of which can be switched off
/// to see what it is worth, free-list randomisation, and the rival form of caches.
#[derive(Debug)]
pub struct Improvements(AtomicU32);

macro_rules! switches {
    ($($(#[$doc:meta])* $bit:ident $get:ident $set:ident = $n:literal;)*) => {
        impl Improvements {
            $(
                const $bit: u32 = 1 << $n;
                $(#[$doc])*
                #[must_use]
                pub fn $get(&self) -> bool {
                    self.0.load(Ordering::Relaxed) & Self::$bit != 0
                }
                /// Switches it on or off.
                pub fn $set(&self, on: bool) {
                    if on {
                        self.0.fetch_or(Self::$bit, Ordering::Relaxed);
                    } else {
                        self.0.fetch_and(!Self::$bit, Ordering::Relaxed);
                    }
                }
            )*
        }
    };
}

switches! {
    /// Whether there are free objects is looked up without the node's lock.
    LOCKLESS_LOOK lockless_look set_lockless_look = 0;
    /// A new slab fills the CPU's array before it is linked.
    REFILL_FIRST refill_first set_refill_first = 1;
    /// The next colour is taken without the node's lock.
    LOCKLESS_COLOUR lockless_colour set_lockless_colour = 2;
    /// How many free slabs to release is decided once after a batch of frees.
    RELEASE_ONCE release_once set_release_once = 3;
    /// New slabs hand out their objects in random order.
    RANDOM_FREELIST random_freelist set_random_freelist = 4;
    /// Caches that are made from now on have CPU slabs, with the published limits, unless they are told otherwise.
    CPU_SLABS cpu_slabs set_cpu_slabs = 5;
    /// Caches that are made from now on may share the slabs of another of the same shape.
    MERGE merge set_merge = 6;
}

impl Default for Improvements {
    fn default() -> Self {
        Self(AtomicU32::new(
            Self::LOCKLESS_LOOK
                | Self::REFILL_FIRST
                | Self::LOCKLESS_COLOUR
                | Self::RELEASE_ONCE
                | Self::MERGE,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linux_limits_follow_the_object_size() {
        let limits: [u32; 5] =
            [64, 512, 2048, 8192, 262_144].map(|s| ArrayTuning::linux(s, 4096, 2).limit);
        assert_eq!(limits, [120, 54, 24, 8, 1]);
        assert_eq!(ArrayTuning::linux(64, 4096, 2).shared_limit, 480);
        assert_eq!(ArrayTuning::linux(64, 4096, 1).shared_limit, 0);
    }

    #[test]
    fn each_improvement_switches_by_itself() {
        let i = Improvements::default();
        assert!(i.refill_first() && !i.random_freelist());
        i.set_refill_first(false);
        i.set_random_freelist(true);
        assert!(!i.refill_first() && i.random_freelist() && i.lockless_look());
    }
}
