//! How many invalidations an operation takes, with everything gathered, and the same work one page at a time.
//!
//! Counted on a [`Board`] with [`CPUS`] CPUs that all use the page table. Nothing is timed, and nothing depends on the machine: the counts are exact, and
//! the tests say what they are.

use crate::board::{Board, KNIGHTS_LANDING, X86};
use crate::{Error, Print};
use flagstone_frames::Frames;
use flagstone_host::MmuCaps;
use flagstone_pgtable::format::{Access, Leaf, Marks, X86_64};
use flagstone_pgtable::shadow::Mapping;
use flagstone_pgtable::{
    Gather, NotOwned, Ops, PageTable, Params, Pmd, Pte, Shared, TableLevel, VirtRange,
};
use flagstone_types::{CpuId, Gfp, PhysAddr, VirtAddr};

/// As Flagstone does it; and with a gather of its own for each page, or for each huge one.
pub(crate) const SUBJECTS: &[&str] = &["gathered", "one by one"];

/// CPUs that use the page table: this one and others.
const CPUS: u32 = 4;
/// Memory of the board in MiB: for tables of 1 GiB, and for what a gather notes of as many scattered pages.
const MEMORY: usize = 32;

const PAGE: usize = 4096;
const HUGE: usize = 2 << 20;
const AT: usize = 0x7f00_0000_0000;
const TO: u64 = 1 << 32;

type Tables<'t, 'f, 'm> = Ops<'t, 'f, &'m Board, X86_64, Shared>;
type Gathered<'t, 'f, 'm> = Gather<'t, 'f, &'m Board, X86_64, Shared, NotOwned>;
type Outcome = Result<(), flagstone_pgtable::Error>;

/// Something that is done to a range.
struct Operation {
    name: &'static str,
    text: &'static str,
    caps: MmuCaps,
    /// What is mapped before.
    before: Before,
    /// Where it is done: from so far behind the first address, and how long.
    from: usize,
    len: usize,
    /// What is done to a range, into a gather.
    work: for<'t, 'f, 'm> fn(&Tables<'t, 'f, 'm>, VirtRange, &mut Gathered<'t, 'f, 'm>) -> Outcome,
    /// What is done instead one by one, if it is not the same for each page.
    instead: Option<for<'t, 'f, 'm> fn(&Tables<'t, 'f, 'm>, VirtRange) -> Outcome>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    /// Huge leaves.
    Huge,
    /// Pages in a row.
    Pages,
    /// Pages here and there, so that no two of them are one piece.
    Scattered,
}

const ALL: &[Operation] = &[
    Operation {
        name: "protect-huge",
        text: "protect a huge page",
        caps: X86,
        before: Before::Huge,
        from: 0,
        len: HUGE,
        work: read_only,
        instead: None,
    },
    Operation {
        name: "protect-huge-stray",
        text: "the same on a Knights Landing",
        caps: KNIGHTS_LANDING,
        before: Before::Huge,
        from: 0,
        len: HUGE,
        work: read_only,
        instead: None,
    },
    Operation {
        name: "protect",
        text: "protect 512 pages",
        caps: X86,
        before: Before::Pages,
        from: 0,
        len: HUGE,
        work: read_only,
        instead: None,
    },
    Operation {
        name: "protect-stray",
        text: "the same on a Knights Landing",
        caps: KNIGHTS_LANDING,
        before: Before::Pages,
        from: 0,
        len: HUGE,
        work: read_only,
        instead: None,
    },
    Operation {
        name: "fork",
        text: "write-protect 8192, as fork does",
        caps: X86,
        before: Before::Pages,
        from: 0,
        len: 16 * HUGE,
        work: |ops, range, gather| ops.write_protect(range, gather),
        instead: None,
    },
    Operation {
        name: "young",
        text: "test and clear young, 512 pages",
        caps: X86,
        before: Before::Pages,
        from: 0,
        len: HUGE,
        work: |ops, range, _| {
            ops.test_and_clear_young(range, |_, _, _| {})
                .map(|young| debug_assert!(young > 0))
        },
        instead: None,
    },
    Operation {
        name: "unmap",
        text: "unmap 512 pages",
        caps: X86,
        before: Before::Pages,
        from: 0,
        len: HUGE,
        work: |ops, range, gather| ops.unmap(range, gather),
        instead: None,
    },
    Operation {
        name: "unmap-across",
        text: "unmap 512 pages of two tables",
        caps: X86,
        before: Before::Scattered,
        from: HUGE / 2,
        len: HUGE,
        work: |ops, range, gather| ops.unmap(range, gather),
        instead: None,
    },
    Operation {
        name: "munmap",
        text: "unmap 1 GiB and free its tables",
        caps: X86,
        before: Before::Scattered,
        from: 0,
        len: 512 * HUGE,
        work: |ops, range, gather| {
            ops.unmap(range, gather)?;
            ops.free_tables(range, gather)
        },
        instead: None,
    },
    Operation {
        name: "collapse",
        text: "collapse 512 pages",
        caps: X86,
        before: Before::Pages,
        from: 0,
        len: HUGE,
        work: |ops, range, _| ops.collapse::<Pmd>(range.start),
        instead: Some(replace_by_huge),
    },
    Operation {
        name: "split",
        text: "split a huge page",
        caps: X86,
        before: Before::Huge,
        from: 0,
        len: HUGE,
        work: |ops, range, _| ops.split(range.start),
        instead: Some(replace_by_pages),
    },
];

/// Name and text of each operation.
pub const OPERATIONS: &[(&str, &str)] = &{
    let mut all = [("", ""); ALL.len()];
    let mut n = 0;
    while n < ALL.len() {
        all[n] = (ALL[n].name, ALL[n].text);
        n += 1;
    }
    all
};

fn read_only<'t, 'f, 'm>(
    ops: &Tables<'t, 'f, 'm>,
    range: VirtRange,
    gather: &mut Gathered<'t, 'f, 'm>,
) -> Outcome {
    ops.protect(range, Access::READ.union(Access::USER), gather)
}

/// A writable leaf that was used.
fn leaf(to: u64) -> Leaf {
    let access = Access::READ.union(Access::WRITE).union(Access::USER);
    Leaf::new(PhysAddr(to), access, Mapping::Ordinary).mark(Marks::YOUNG.union(Marks::DIRTY))
}

fn map<L: TableLevel>(ops: &Tables<'_, '_, '_>, at: VirtAddr, to: u64, count: usize) -> Outcome {
    ops.map::<L>(at, &leaf(to), count)
        .map_err(|error| error.error)
}

fn by_pages(range: VirtRange, page: usize) -> impl Iterator<Item = VirtRange> {
    let pages = (0..range.len.0).step_by(page);
    pages.map(move |n| VirtRange::new(range.start.0 + n, page))
}

/// A collapse without a collapse: every page out, the table, the huge page in.
fn replace_by_huge(ops: &Tables<'_, '_, '_>, range: VirtRange) -> Outcome {
    for page in by_pages(range, PAGE) {
        let mut gather = ops.gather(NotOwned);
        ops.unmap(page, &mut gather)?;
        gather.finish();
    }
    let mut gather = ops.gather(NotOwned);
    ops.free_tables(range, &mut gather)?;
    gather.finish();
    map::<Pmd>(ops, range.start, TO, 1)
}

/// A split without a split.
fn replace_by_pages(ops: &Tables<'_, '_, '_>, range: VirtRange) -> Outcome {
    let mut gather = ops.gather(NotOwned);
    ops.unmap(range, &mut gather)?;
    gather.finish();
    for (n, page) in by_pages(range, PAGE).enumerate() {
        map::<Pte>(ops, page.start, TO + (n * PAGE) as u64, 1)?;
    }
    Ok(())
}

impl Operation {
    fn prepare(&self, ops: &Tables<'_, '_, '_>) -> Outcome {
        let bytes = (self.from + self.len).next_multiple_of(HUGE);
        let (pages, at) = (bytes / PAGE, VirtAddr(AT));
        match self.before {
            Before::Huge => map::<Pmd>(ops, at, TO, bytes / HUGE),
            Before::Pages => map::<Pte>(ops, at, TO, pages),
            Before::Scattered => ops
                .map_each::<Pte>(at, pages, |n| leaf(TO + (n * 7919 % pages * PAGE) as u64))
                .map_err(|error| error.error),
        }
    }

    fn run(&self, ops: &Tables<'_, '_, '_>, one_by_one: bool) -> Outcome {
        let range = VirtRange::new(AT + self.from, self.len);
        if let (true, Some(instead)) = (one_by_one, self.instead) {
            return instead(ops, range);
        }
        let page = match (one_by_one, self.before) {
            (false, _) => self.len,
            (true, Before::Huge) => HUGE,
            (true, _) => PAGE,
        };
        for range in by_pages(range, page) {
            let mut gather = ops.gather(NotOwned);
            (self.work)(ops, range, &mut gather)?;
            gather.finish();
        }
        Ok(())
    }
}

/// `tlb/OPERATION/requests|local|remote`.
pub(crate) fn count(subject: &str, print: &mut Print<'_>) -> Result<(), Error> {
    for operation in ALL {
        let refused = |error: flagstone_pgtable::Error| Error::PageTable {
            what: operation.name,
            error: error.to_string(),
        };
        let board = Board::new(MEMORY, CPUS, operation.caps)?;
        let frames = Frames::new(&board).map_err(Error::memory("frames of a board"))?;
        frames.set_min_free(Some(0));
        let params = Params {
            gfp: Gfp::NOWAIT,
            ..Params::default()
        };
        let table = PageTable::new(&frames, params).map_err(refused)?;
        (0..CPUS).for_each(|cpu| table.enter(CpuId(cpu)));
        let ops = table.shared();
        operation.prepare(&ops).map_err(refused)?;
        let before = board.asked();
        let done = operation.run(&ops, subject == "one by one");
        done.map_err(refused)?;
        let after = board.asked();
        // SAFETY: T6: no CPU translates by it.
        (0..CPUS).for_each(|cpu| unsafe { table.leave(CpuId(cpu)) });
        for (what, n) in [
            ("requests", after.requests - before.requests),
            ("local", after.local - before.local),
            ("remote", after.remote - before.remote),
        ] {
            print(format!("tlb/{}/{what}", operation.name), n as f64);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn counted(subject: &str) -> BTreeMap<String, u64> {
        let mut metrics = BTreeMap::new();
        count(subject, &mut |metric, value| {
            metrics.insert(metric, value as u64);
        })
        .unwrap();
        metrics
    }

    #[test]
    fn every_operation_takes_as_many_as_it_must() {
        // Gathered, and one by one.
        let expected = [
            ("protect-huge", 1, 1),
            ("protect-huge-stray", 2, 2),
            ("protect", 1, 512),
            ("protect-stray", 9, 1024),
            ("fork", 1, 8192),
            ("young", 0, 0),
            ("unmap", 1, 512),
            ("unmap-across", 1, 512),
            ("munmap", 1, 262_144),
            ("collapse", 1, 513),
            ("split", 1, 1),
        ];
        let (gathered, one_by_one) = (counted("gathered"), counted("one by one"));
        assert_eq!(gathered.len(), 3 * expected.len());
        for (name, few, many) in expected {
            for (counts, n) in [(&gathered, few), (&one_by_one, many)] {
                assert_eq!(counts[&format!("tlb/{name}/requests")], n, "{name}");
                assert_eq!(counts[&format!("tlb/{name}/local")], n, "{name}");
                assert_eq!(counts[&format!("tlb/{name}/remote")], 3 * n, "{name}");
            }
        }
    }
}
