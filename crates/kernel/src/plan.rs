//! The plan of memory (M2): which frames the page allocator gets, and where the boot pool lies.
//!
//! The pool is taken from the end of the largest usable region; everything else that is usable, in whole frames, above 1 MiB
//! and above the image, is for the page allocator, cut where zones meet and where nodes do. Nodes are equal slices of the frames, a
//! multiple of the largest block each, so that a machine with one kind of memory can stand for one with several.

use crate::start_info::Region;
use flagstone_host::{META_BYTES, MemRange};
use flagstone_types::{Nid, Pfn, PfnRange, Zone};

pub(crate) const PAGE: u64 = 4096;
/// Bytes of a block of the largest order.
pub(crate) const BLOCK: u64 = PAGE << 10;
const LOWEST: u64 = 1 << 20;
const DMA_END: u64 = 16 << 20;
const DMA32_END: u64 = 4 << 30;

/// Where everything goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The boot pool, aligned to pages.
    pub(crate) pool: Region,
    /// Bytes at the start of the pool that hold metadata.
    pub(crate) metadata: u64,
    /// The first frame above all memory, a multiple of the largest block.
    pub(crate) end: Pfn,
    /// Frames of a node; the last one has what is left.
    pub(crate) node_pages: usize,
    image_end: u64,
}

impl Plan {
    /// Plans for an image that ends at physical address `image_end` and a boot pool of `pool` bytes besides the metadata; `reach`
    /// is the end of what is mapped; memory is cut into `nodes`. `None` if no region is large enough.
    pub(crate) fn new(
        regions: &[Region],
        image_end: u64,
        pool: u64,
        reach: u64,
        nodes: u32,
    ) -> Option<Self> {
        let mut this = Self {
            pool: Region::default(),
            metadata: 0,
            end: Pfn(0),
            node_pages: 0,
            image_end: image_end.max(LOWEST).next_multiple_of(PAGE),
        };
        let usable = |region: &Region| this.usable(*region, reach);
        let end = regions.iter().filter_map(usable).map(|r| r.end).max()?;
        let largest = regions.iter().filter_map(usable).max_by_key(size)?;
        this.end = Pfn((end.next_multiple_of(BLOCK) / PAGE) as usize);
        this.node_pages = this
            .end
            .0
            .div_ceil(nodes.max(1) as usize)
            .next_multiple_of((BLOCK / PAGE) as usize);
        this.metadata = (this.end.0 * META_BYTES) as u64;
        let bytes = this
            .metadata
            .checked_add(pool)?
            .checked_next_multiple_of(PAGE)?;
        if bytes >= size(&largest) {
            return None;
        }
        this.pool = Region {
            start: largest.end - bytes,
            end: largest.end,
        };
        Some(this)
    }

    /// The part of a region that may be used, in whole frames.
    fn usable(&self, region: Region, reach: u64) -> Option<Region> {
        let start = region
            .start
            .max(self.image_end)
            .checked_next_multiple_of(PAGE)?;
        let end = region.end.min(reach) / PAGE * PAGE;
        (start < end).then_some(Region { start, end })
    }

    /// Calls `each` with every range for the page allocator.
    pub(crate) fn ranges(&self, regions: &[Region], reach: u64, each: &mut dyn FnMut(MemRange)) {
        for region in regions.iter().filter_map(|r| self.usable(*r, reach)) {
            // The pool is at the end of its region.
            let end = if region.end == self.pool.end {
                self.pool.start
            } else {
                region.end
            };
            let zones = [
                (0, DMA_END, Zone::Dma),
                (DMA_END, DMA32_END, Zone::Dma32),
                (DMA32_END, u64::MAX, Zone::Normal),
            ];
            for (from, to, zone) in zones {
                let (mut from, to) = (region.start.max(from), end.min(to));
                while from < to {
                    let node = (from / PAGE) as usize / self.node_pages;
                    let node_end = ((node + 1) * self.node_pages) as u64 * PAGE;
                    let upto = to.min(node_end);
                    each(MemRange {
                        frames: PfnRange::new(
                            Pfn((from / PAGE) as usize),
                            ((upto - from) / PAGE) as usize,
                        ),
                        nid: Nid(node as u16),
                        zone,
                    });
                    from = upto;
                }
            }
        }
    }
}

fn size(region: &Region) -> u64 {
    region.end - region.start
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    const MIB: u64 = 1 << 20;

    fn region(start: u64, end: u64) -> Region {
        Region { start, end }
    }

    fn ranges(plan: &Plan, regions: &[Region]) -> Vec<MemRange> {
        let mut all = Vec::new();
        plan.ranges(regions, u64::MAX, &mut |range| all.push(range));
        all
    }

    #[test]
    fn the_pool_lies_at_the_end_of_the_largest_region_and_is_not_handed_out() {
        let regions = [region(0, 0x9fc00), region(MIB, 256 * MIB - 0x20123)];
        let plan = Plan::new(&regions, MIB + 12345, 3 * MIB, u64::MAX, 1).unwrap();
        assert_eq!(plan.end, Pfn(65536));
        assert_eq!(plan.metadata, 4 * MIB);
        assert_eq!(plan.pool.end, 256 * MIB - 0x21000);
        assert_eq!(plan.pool.end - plan.pool.start, 7 * MIB);
        let all = ranges(&plan, &regions);
        let zones: Vec<_> = all.iter().map(|r| r.zone).collect();
        assert_eq!(zones, [Zone::Dma, Zone::Dma32]);
        assert_eq!(all[0].frames.start, Pfn(256 + 4));
        assert_eq!(all[0].frames.end(), all[1].frames.start);
        assert_eq!(all[1].frames.end().0 as u64 * PAGE, plan.pool.start);
    }

    #[test]
    fn memory_above_4_gib_is_normal_and_what_is_not_mapped_is_left() {
        let regions = [
            region(MIB, 3 << 30),
            region(4 << 30, 6 << 30),
            region(1 << 40, 2 << 40),
        ];
        let reach = 512 << 30;
        let plan = Plan::new(&regions, 2 * MIB, MIB, reach, 1).unwrap();
        assert_eq!(plan.end.0 as u64 * PAGE, 6 << 30);
        let mut all = Vec::new();
        plan.ranges(&regions, reach, &mut |range| all.push(range));
        let zones: Vec<_> = all.iter().map(|r| r.zone).collect();
        assert_eq!(zones, [Zone::Dma, Zone::Dma32, Zone::Normal]);
        assert_eq!(plan.pool.end, 3 << 30);
    }

    #[test]
    fn nodes_are_slices_of_whole_blocks() {
        let regions = [region(MIB, 100 * MIB)];
        let plan = Plan::new(&regions, 2 * MIB, MIB, u64::MAX, 3).unwrap();
        assert_eq!(plan.node_pages, 9 * 1024);
        let all = ranges(&plan, &regions);
        let parts: Vec<_> = all.iter().map(|r| (r.nid.0, r.zone)).collect();
        assert_eq!(
            parts,
            [
                (0, Zone::Dma),
                (0, Zone::Dma32),
                (1, Zone::Dma32),
                (2, Zone::Dma32)
            ]
        );
        for next in all.windows(2) {
            assert_eq!(next[0].frames.end(), next[1].frames.start);
        }
        assert!(all.iter().all(|r| r.frames.start.0 / 9216 == r.nid.index()));
    }

    #[test]
    fn too_little_memory_is_no_plan() {
        assert_eq!(Plan::new(&[], MIB, MIB, u64::MAX, 1), None);
        let small = [region(0, MIB), region(MIB, 3 * MIB)];
        assert_eq!(Plan::new(&small, MIB, 2 * MIB, u64::MAX, 1), None);
        assert_eq!(Plan::new(&small, 4 * MIB, 0, u64::MAX, 1), None);
        assert_eq!(Plan::new(&small, MIB, u64::MAX, u64::MAX, 1), None);
    }
}
