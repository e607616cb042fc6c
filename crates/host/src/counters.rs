//! Event counters under vmstat's names.

macro_rules! events {
    ($($(#[$doc:meta])* $variant:ident => $name:literal;)*) => {
        /// Something that is counted. The names are those of `/proc/vmstat` where
        /// it has them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Event {
            $($(#[$doc])* $variant,)*
        }

        impl Event {
            /// Every event in the order of [`Event::index`].
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];
            /// How many events there are.
            pub const COUNT: usize = Self::ALL.len();

            /// The name in vmstat.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The event as an index.
            #[must_use]
            pub const fn index(self) -> usize {
                self as usize
            }
        }
    };
}

events! {
    /// Pages allocated from the DMA zone.
    PgallocDma => "pgalloc_dma";
    /// Pages allocated from the DMA32 zone.
    PgallocDma32 => "pgalloc_dma32";
    /// Pages allocated from the Normal zone.
    PgallocNormal => "pgalloc_normal";
    /// Pages allocated from the Movable zone.
    PgallocMovable => "pgalloc_movable";
    /// Pages allocated from the Device zone.
    PgallocDevice => "pgalloc_device";
    /// Pages freed.
    Pgfree => "pgfree";
    /// Times a caller had to reclaim before it could get pages.
    Allocstall => "allocstall";
    /// Times an allocation fell back to another migrate type's free list.
    PgmigratetypeFallback => "pgmigratetype_fallback";
    /// Allocations served by the node that was asked.
    NumaHit => "numa_hit";
    /// Allocations served by another node than the one preferred.
    NumaMiss => "numa_miss";
    /// Slabs taken from the page allocator.
    SlabGrow => "slab_grow";
    /// Slabs given back to the page allocator.
    SlabShrink => "slab_shrink";
    /// Refills of a per-CPU array.
    SlabRefill => "slab_refill";
    /// Flushes of a per-CPU array.
    SlabFlush => "slab_flush";
    /// Times a node's slab lists were locked.
    SlabNodeLock => "slab_node_lock";
    /// Slab list operations done under a node's lock.
    SlabNodeSteps => "slab_node_steps";
    /// Objects freed on another node than theirs.
    SlabRemoteFree => "slab_remote_free";
    /// Objects that a full alien cache sent home.
    SlabAlienFlush => "slab_alien_flush";
    /// Drains of arrays from outside their CPU.
    SlabDrain => "slab_drain";
    /// Pages whose memory was given back to the owner.
    BackingRelease => "backing_release";
    /// Times the owner was asked to take memory back.
    BackingReleaseCalls => "backing_release_calls";
    /// Pages that the owner committed.
    BackingCommit => "backing_commit";
    /// Invalidations that other CPUs were asked for.
    NrTlbRemoteFlush => "nr_tlb_remote_flush";
    /// Invalidations that this CPU did for another one; counted by the host.
    NrTlbRemoteFlushReceived => "nr_tlb_remote_flush_received";
    /// Invalidations of a whole address space on the CPU that changed it.
    NrTlbLocalFlushAll => "nr_tlb_local_flush_all";
    /// Single invalidations (one address each) on the CPU that changed it.
    NrTlbLocalFlushOne => "nr_tlb_local_flush_one";
    /// Invalidations of ranges that were asked for, on whatever CPUs.
    TlbFlushRange => "tlb_flush_range";
    /// Invalidations of whole address spaces that were asked for, on whatever CPUs.
    TlbFlushAll => "tlb_flush_all";
    /// Page tables linked into a tree.
    PgtableLink => "pgtable_link";
    /// Page tables taken out of a tree.
    PgtableUnlink => "pgtable_unlink";
    /// Huge leaves of the second level that were split.
    ThpSplitPmd => "thp_split_pmd";
    /// Huge leaves of the third level that were split.
    ThpSplitPud => "thp_split_pud";
    /// Tables that became a huge leaf.
    ThpCollapse => "pgtable_collapse";
}

/// Counts events; cheap, per CPU where that is cheaper, never on a fast path.
pub trait Count {
    /// Adds `n` to an event.
    fn count(&self, event: Event, n: u64);

    /// The sum over all CPUs; out of date at once.
    fn counted(&self, event: Event) -> u64;
}

#[cfg(test)]
mod tests {
    extern crate alloc;
    use super::Event;

    #[test]
    fn names_are_unique_and_indices_are_positions() {
        let mut names: alloc::vec::Vec<_> = Event::ALL.iter().map(|e| e.name()).collect();
        for (i, e) in Event::ALL.iter().enumerate() {
            assert_eq!(e.index(), i);
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Event::COUNT);
    }
}
