//! The operations of a workload, as values: drawn from a seed, made fewer by a shrinker, run by any platform.
//!
//! A workload works on a few *regions*, each the reach of one table of pages, and looks at *slots*, pages on both sides of the borders of tables.

use alloc::vec::Vec;
use flagstone_pgtable::format::Access;

use crate::space::{RO, RW, RWX, RX};

/// The contiguous slots: the end of region 0 and the beginning of region 1, then regions 2, 3 and 4.
pub(crate) const GROUPS: [(usize, usize); 4] = [(0, 6), (6, 3), (9, 2), (11, 2)];

/// A run of slots that stand one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first slot.
    pub first: u8,
    /// How many.
    pub count: u8,
}

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Maps new pages.
    Map(Run, Access),
    /// Maps a new huge leaf onto a region.
    MapHuge(u8, Access),
    /// Fills a region with the pages of one piece of memory.
    Fill(u8, Access),
    /// Unmaps pages; and frees tables that are empty then.
    Unmap(Run, bool),
    /// Unmaps pages one by one, the last one first, and invalidates once.
    UnmapBack(Run),
    /// Maps one new page by itself.
    MapOne(u8, Access),
    /// Unmaps one page by itself.
    UnmapOne(u8),
    /// Gives one page another access by itself.
    ProtectOne(u8, Access),
    /// Asks where a slot is in memory, without locks.
    Physical(u8),
    /// Unmaps a region; and frees tables that are empty then.
    UnmapRegion(u8, bool),
    /// Gives pages another access.
    Protect(Run, Access),
    /// Gives a region another access.
    ProtectRegion(u8, Access),
    /// Tests and clears young bits.
    Age(Run),
    /// Clears dirty bits.
    Clean(Run),
    /// Splits the huge leaf of a region.
    Split(u8),
    /// Makes one leaf of a region; in place.
    Collapse(u8, bool),
    /// Takes the whole table of a region out.
    Retract(u8),
    /// Puts a new page in the place of the one in a slot.
    Replace(u8),
    /// Frees what tables are empty.
    FreeTables,
    /// Looks a slot up without locks.
    Lookup(u8),
    /// Looks at everything without locks.
    Walk,
    /// Loads.
    Read(u8),
    /// Stores.
    Write(u8),
    /// Fetches.
    Exec(u8),
    /// Leaves the page table and comes back.
    Switch,
    /// Runs deferred calls that are due.
    Poll,
}

/// What a workload is drawn by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// Everything.
    All,
    /// Readers against collapse, retract, split, unmap and freeing of tables: the first half of the CPUs changes, the others look and touch.
    Walkers,
    /// Stores against clearing of bits and changes of access.
    Bits,
    /// Single pages and their tables only: the smallest.
    Pages,
}

/// A sequence of random numbers (splitmix64: Steele, Lea and Flood, 2014).
#[derive(Clone, Debug)]
pub struct Draw(u64);

impl Draw {
    /// The sequence of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.bits()) * end as u128) >> 64) as usize
    }

    fn run(&mut self) -> Run {
        let (first, count) = GROUPS[self.below(GROUPS.len())];
        let skip = self.below(count);
        let most = count - skip;
        let count = if self.below(3) == 0 {
            most
        } else {
            1 + self.below(most)
        };
        Run {
            first: (first + skip) as u8,
            count: count as u8,
        }
    }

    fn slot(&mut self) -> u8 {
        self.run().first
    }

    /// A region that is large or small; the last one is the reach of a table of the second level.
    fn region(&mut self) -> u8 {
        [1, 1, 2, 2, 2, 3, 4][self.below(7)]
    }

    fn access(&mut self) -> Access {
        let user = Access::USER;
        [RW, RW, RW, RO, RO, RX, RWX, user][self.below(8)]
    }

    /// What only looks and touches.
    fn look(&mut self) -> Op {
        match self.below(12) {
            0..=3 => Op::Read(self.slot()),
            4..=6 => Op::Write(self.slot()),
            7 => Op::Exec(self.slot()),
            8 | 9 => Op::Lookup(self.slot()),
            10 if self.below(2) == 0 => Op::Walk,
            10 => Op::Physical(self.slot()),
            _ => Op::Poll,
        }
    }

    fn bits_op(&mut self) -> Op {
        match self.below(14) {
            0 | 1 => Op::Map(self.run(), self.access()),
            2 => Op::Unmap(self.run(), false),
            3 if self.below(2) == 0 => Op::ProtectOne(self.slot(), self.access()),
            3 | 4 => Op::Protect(self.run(), self.access()),
            5 | 6 => Op::Age(self.run()),
            7..=9 => Op::Clean(self.run()),
            10 => Op::Read(self.slot()),
            _ => Op::Write(self.slot()),
        }
    }

    fn page_op(&mut self) -> Op {
        match self.below(20) {
            0..=2 => Op::Map(self.run(), self.access()),
            3 | 4 => Op::Unmap(self.run(), true),
            5 => Op::Unmap(self.run(), false),
            6 => Op::FreeTables,
            16 => Op::UnmapBack(self.run()),
            17 => Op::MapOne(self.slot(), self.access()),
            18 => Op::UnmapOne(self.slot()),
            19 => Op::ProtectOne(self.slot(), self.access()),
            7 | 8 => Op::Protect(self.run(), self.access()),
            9 => Op::Age(self.run()),
            10 => Op::Clean(self.run()),
            11 => Op::Replace(self.slot()),
            12 => Op::Switch,
            _ => self.look(),
        }
    }

    /// What changes tables.
    fn shape(&mut self) -> Op {
        match self.below(20) {
            0 | 1 => Op::Map(self.run(), self.access()),
            2..=5 => Op::MapHuge(self.region(), self.access()),
            6 => Op::Fill(1 + self.below(2) as u8, self.access()),
            7 => Op::Unmap(self.run(), true),
            8..=10 => Op::UnmapRegion(self.region(), self.below(2) == 0),
            11..=13 => Op::Split(self.region()),
            14 | 15 => Op::Collapse(self.region(), self.below(3) == 0),
            16 => Op::Retract(self.region()),
            17 => Op::FreeTables,
            18 => Op::ProtectRegion(self.region(), self.access()),
            _ => Op::Protect(self.run(), self.access()),
        }
    }

    fn any(&mut self) -> Op {
        match self.below(4) {
            0 => self.shape(),
            1 => self.page_op(),
            2 => self.bits_op(),
            _ => self.look(),
        }
    }
}

/// A workload: the operations of each CPU.
#[must_use]
pub fn workload(seed: u64, mix: Mix, cpus: usize, each: usize) -> Vec<Vec<Op>> {
    let mut draw = Draw::new(seed);
    let mut of_cpu = |cpu: usize| {
        let mut ops = Vec::with_capacity(each);
        for n in 0..each {
            ops.push(match mix {
                // Something is there to begin with.
                _ if n == 0 && cpu < 4 => match (mix, cpu) {
                    (Mix::All | Mix::Walkers, 1 | 2) => Op::MapHuge(draw.region(), draw.access()),
                    (Mix::All, 3) => Op::Fill(2, RW),
                    _ => {
                        let (first, count) = GROUPS[cpu];
                        let (first, count) = (first as u8, count as u8);
                        Op::Map(Run { first, count }, RW)
                    }
                },
                Mix::All => draw.any(),
                Mix::Walkers if cpu * 2 < cpus => draw.shape(),
                Mix::Walkers => draw.look(),
                Mix::Bits => draw.bits_op(),
                Mix::Pages => draw.page_op(),
            });
        }
        ops
    };
    (0..cpus).map(&mut of_cpu).collect()
}
