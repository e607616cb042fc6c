//! The published figures that are printed beside ours.
//!
//! They were taken on the machines of their time, in cycles or nanoseconds inside a kernel. What can be compared is the
//! change from one column to the next, not the numbers themselves.

use serde::Deserialize;
use std::sync::LazyLock;

/// Cycles by size: `(size, alloc, free)`.
pub(crate) type Cycles = Vec<(usize, u64, u64)>;

/// The tables that an experiment here repeats.
#[derive(Debug, Deserialize)]
pub(crate) struct Published {
    /// A pair of allocation and free, in nanoseconds.
    pub(crate) fastpath_ns: Fastpath,
    /// All CPUs at once, one stage per improvement.
    pub(crate) contention_cycles: Contention,
    /// N allocations, then N frees, alone, before and after randomisation.
    pub(crate) randomisation_array_cache_cycles: Randomisation,
    /// The same in the rival form of cache.
    pub(crate) randomisation_in_object_list_cycles: Randomisation,
    /// N allocations, then N frees, with the index elsewhere and in a free object.
    pub(crate) in_object_index_cycles: Alone,
    /// Caches by place of the index.
    pub(crate) layout_counts: LayoutCounts,
    /// Objects and bytes with the index at a slab's end.
    pub(crate) index_at_end_bytes: IndexAtEnd,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Fastpath {
    pub(crate) pair_before: u64,
    pub(crate) pair_after: u64,
    pub(crate) rival_in_object_list: u64,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Contention {
    pub(crate) stages: Vec<Stage>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Stage {
    pub(crate) rows: Cycles,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Alone {
    pub(crate) before: Cycles,
    pub(crate) after: Cycles,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Randomisation {
    pub(crate) before: Cycles,
    pub(crate) after: Cycles,
    /// Cycles of a pair by size.
    pub(crate) pair_before: Vec<(usize, u64)>,
    pub(crate) pair_after: Vec<(usize, u64)>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct LayoutCounts {
    pub(crate) columns: Vec<String>,
    pub(crate) before: Vec<u64>,
    pub(crate) after: Vec<u64>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct IndexAtEnd {
    /// Size, alignment, objects, bytes before, bytes after.
    pub(crate) rows: Vec<[usize; 5]>,
}

/// The published figures.
pub(crate) static PUBLISHED: LazyLock<Published> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../../data/published.json"))
        .expect("data/published.json has these tables")
});

/// `alloc/free` in cycles for `size`, or a dash.
pub(crate) fn cell(rows: &Cycles, size: usize) -> String {
    rows.iter()
        .find(|row| row.0 == size)
        .map_or_else(|| "-".into(), |(_, alloc, free)| format!("{alloc}/{free}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_there() {
        assert_eq!(PUBLISHED.fastpath_ns.pair_after, 21);
        assert_eq!(PUBLISHED.contention_cycles.stages.len(), 4);
        assert_eq!(
            cell(&PUBLISHED.contention_cycles.stages[0].rows, 64),
            "452/690"
        );
        assert_eq!(
            cell(&PUBLISHED.randomisation_array_cache_cycles.before, 3),
            "-"
        );
    }
}
