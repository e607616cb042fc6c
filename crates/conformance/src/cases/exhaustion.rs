//! Every operation that allocates, with every number of pages that there may be left.

use super::Outcome;
use crate::ledger::PieceId;
use crate::platform::Platform;
use crate::space::{RW, Space, reach};
use alloc::vec::Vec;
use flagstone_frames::PageBlock;
use flagstone_pgtable::format::Level;
use flagstone_pgtable::{Error, Found, Pmd, VirtRange};
use flagstone_types::{Gfp, Order, PhysAddr, VirtAddr};

/// Most pages that an operation of this case may want.
const MOST: usize = 24;

/// All free memory of a platform, until it is dropped.
struct Hoard<'p, P: Platform> {
    platform: &'p P,
    blocks: Vec<PageBlock>,
}

impl<'p, P: Platform> Hoard<'p, P> {
    /// Takes everything. The room for what is taken is made first.
    fn new(platform: &'p P) -> Self {
        use flagstone_host::Cpus;
        let frames = platform.frames();
        let nodes = frames.host().nodes();
        let count: usize = (0..nodes)
            .map(|nid| frames.managed_count(flagstone_types::Nid(nid as u16)))
            .sum();
        let mut blocks = Vec::with_capacity(count);
        frames.drain_page_lists();
        while let Ok(block) = frames.alloc_pages(Gfp::NOWAIT | Gfp::NOWARN, Order::ZERO, None) {
            blocks.push(block);
        }
        Self { platform, blocks }
    }

    /// Gives so many pages back.
    fn leave(&mut self, pages: usize) {
        for block in self.blocks.drain(self.blocks.len() - pages..) {
            self.platform.frames().free_pages(block);
        }
    }
}

impl<P: Platform> Drop for Hoard<'_, P> {
    fn drop(&mut self) {
        for block in self.blocks.drain(..) {
            self.platform.frames().free_pages(block);
        }
        self.platform.frames().drain_page_lists();
    }
}

/// What a page table is like.
#[derive(Debug, PartialEq, Eq)]
struct Likeness {
    tables: usize,
    found: Vec<Found>,
    out: u64,
}

fn likeness<P: Platform>(space: &Space<'_, P>, pages: usize) -> Likeness {
    Likeness {
        tables: space.table().table_count(),
        found: space.contents(pages),
        out: space.ledger.pages_out(),
    }
}

/// Does an operation with 0, 1, 2, … pages left, until it succeeds.
fn until_it_works<P: Platform>(
    space: &Space<'_, P>,
    pages: usize,
    what: &str,
    operation: impl Fn() -> Result<(), Error>,
) {
    for left in 0..MOST {
        let before = likeness(space, pages);
        let mut hoard = Hoard::new(space.platform);
        hoard.leave(left);
        let result = operation();
        drop(hoard);
        match result {
            Ok(()) => return,
            Err(Error::NoTable(_)) => {
                assert_eq!(
                    likeness(space, pages),
                    before,
                    "{what} with {left} pages left"
                );
            }
            Err(error) => panic!("{what} with {left} pages left: {error}"),
        }
    }
    panic!("{what} does not work with {MOST} pages");
}

pub(super) fn at_every_point<P: Platform>(p: &P) -> Outcome {
    if !p.may_exhaust() {
        return Outcome::Skipped("others need the memory of the machine");
    }
    let Some(space) = Space::new(p, 64) else {
        return Outcome::Skipped("no memory for a page table");
    };
    let size = reach::<P::Format>(Level::PMD);
    let page = Space::<P>::page();
    let per_table = size / page;
    let pages = 3 * per_table;
    // Two pages at the end of a table and two at the beginning of the next one: several tables on several levels.
    let edge = VirtAddr(p.window().0 + size - 2 * page);
    let pieces: Vec<(PieceId, PhysAddr)> = (0..4)
        .filter_map(|_| {
            let at = p.alloc(Level::PTE)?;
            Some((space.ledger.enter(p, at, Level::PTE)?, at))
        })
        .collect();
    // Who maps keeps what was not mapped, so that it can try again.
    let leaf = |n: usize| Space::<P>::leaf(pieces[n].1, RW);
    until_it_works(&space, pages, "mapping four pages", || {
        let mapped = space.ops().map_each(edge, pieces.len(), leaf);
        if let Err(stopped) = &mapped {
            assert_eq!(stopped.mapped, 0);
        }
        Ok(mapped?)
    });
    for (piece, _) in &pieces {
        space.findings.check(space.ledger.put_out(*piece, 0, 1));
    }
    space.run(1, &|_| {
        for (n, (_, at)) in pieces.iter().enumerate() {
            space.assert_reads(VirtAddr(edge.0 + n * page), *at);
        }
    });
    let third = VirtAddr(p.window().0 + 2 * size);
    if space.table().has_leaf(Level::PMD)
        && let Some(memory) = space.memory(Level::PMD)
    {
        assert_eq!(space.map_piece::<Pmd>(third, memory, RW, 1), Ok(()));
        until_it_works(&space, pages, "splitting", || space.ops().split(third));
        space.run(1, &|_| space.assert_reads(third, memory.1));
        let hoard = Hoard::new(p);
        assert_eq!(
            space.ops().collapse::<Pmd>(third),
            Ok(()),
            "joining needs no memory"
        );
        drop(hoard);
    }
    // Taking away never fails, however much there is to remember.
    let hoard = Hoard::new(p);
    let whole = VirtRange::new(p.window().0, 3 * size);
    let result = space.gathered(|ops, gather| {
        ops.unmap(whole, gather)?;
        ops.free_tables(whole, gather)
    });
    assert_eq!(result, Ok(()), "unmapping without memory");
    drop(hoard);
    space.findings.assert_none();
    space.end(&[]);
    p.check_memory();
    Outcome::Passed
}
