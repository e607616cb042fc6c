//! Tables that come, go, and change their kind under those who walk through them.

use super::{Outcome, workloads};
use crate::op::Mix;
use crate::platform::Platform;
use crate::space::{RO, RW, Space, reach};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use flagstone_pgtable::format::{Access, Entry, Level};
use flagstone_pgtable::{Become, Pte, VirtRange};
use flagstone_types::VirtAddr;

pub(super) fn walkers<P: Platform>(p: &P) -> Outcome {
    workloads::drawn(p, Mix::Walkers, p.cpus().min(8), 8)
}

pub(super) fn install<P: Platform>(p: &P) -> Outcome {
    let Some(space) = Space::new(p, 256) else {
        return Outcome::Skipped("no memory for a page table");
    };
    let cpus = p.cpus().min(8);
    // Neighbours in one table, the same page for all, and tables of which several levels are missing.
    let far = 2 * reach::<P::Format>(Level::PMD) / Space::<P>::page();
    let range = Space::<P>::pages(p.window(), 2 * far);
    let before = space.table().table_count();
    for round in 0..4 {
        let (won, lost) = (AtomicUsize::new(0), AtomicUsize::new(0));
        space.run(cpus, &|cpu| {
            let own = space.at(cpu + round * far / 4);
            let at = space.map_new(own, RW);
            space.assert_reads(own, at);
            if let Some(memory) = space.memory(Level::PTE) {
                let shared = space.at(far + 1);
                match space.map_piece::<Pte>(shared, memory, RO, 1) {
                    Ok(()) => won.fetch_add(1, Ordering::Relaxed),
                    Err(_) => lost.fetch_add(1, Ordering::Relaxed),
                };
                assert!(space.read(shared).is_ok(), "somebody has mapped it");
            }
            space.assert_reads(own, at);
        });
        assert_eq!(won.load(Ordering::Relaxed), 1, "of {cpus} who map one page");
        p.run(1, &|_| {
            let linked = space.table().table_count() - before;
            let mut leaves = 0;
            let found = space.contents(2 * far);
            for entry in &found {
                leaves += usize::from(entry.leaf().is_some());
            }
            assert_eq!(leaves, cpus + 1);
            space.unmap(range);
            // Those of the lower levels are as many as two regions need, however many contexts wanted them.
            let top = space.table().table_count();
            assert!(top == before, "{linked} tables were linked, {top} are left");
        });
    }
    space.end(&[range]);
    p.check_memory();
    Outcome::Passed
}

pub(super) fn free_tables<P: Platform>(p: &P) -> Outcome {
    let Some(space) = Space::new(p, 512) else {
        return Outcome::Skipped("no memory for a page table");
    };
    let cpus = p.cpus().min(8);
    let size = reach::<P::Format>(Level::PMD);
    let range = VirtRange::new(p.window().0, 2 * size);
    space.run(cpus, &|cpu| {
        // Each has a page of its own next to the others', so that tables become empty now and then.
        let table = cpu % 2 * (size / Space::<P>::page());
        let own = space.at(table + cpu / 2);
        for _ in 0..4 {
            match cpu % 4 {
                3 => {
                    let result = space.gathered(|ops, gather| ops.free_tables(range, gather));
                    assert_eq!(result, Ok(()));
                    let mut leaves = 0;
                    let walked = space.ops().walk(range, |_| leaves += 1);
                    assert_eq!(walked, Ok(()));
                    assert!(leaves <= cpus);
                }
                _ => {
                    let at = space.map_new(own, RW);
                    space.assert_reads(own, at);
                    assert!(space.write(own).is_ok());
                    space.unmap(Space::<P>::pages(own, 1));
                    space.assert_refused(own);
                }
            }
        }
    });
    space.end(&[range]);
    p.check_memory();
    Outcome::Passed
}

/// One page goes from memory to memory, through nothing and without; readers without locks see only those.
pub(super) fn lookups<P: Platform>(p: &P) -> Outcome {
    let Some(space) = Space::new(p, 128) else {
        return Outcome::Skipped("no memory for a page table");
    };
    let va = VirtAddr(p.window().0);
    let range = Space::<P>::pages(va, 1);
    let done = AtomicBool::new(false);
    space.run(p.cpus().min(4), &|cpu| {
        if cpu != 0 {
            while !done.load(Ordering::SeqCst) && !space.findings.any() {
                let found = space.ops().lookup(va);
                let found = found.expect("an address that is translated");
                match found.entry {
                    Entry::None => {}
                    Entry::Leaf(leaf) => {
                        assert!(space.ledger.was_mapped(leaf.at.0), "{leaf:?}");
                        assert!(leaf.access().contains(Access::USER), "{leaf:?}");
                    }
                    Entry::Absent(absent) => assert_eq!(absent, super::absent::SWAPPED),
                    other => panic!("{other:?}"),
                }
            }
            return;
        }
        for n in 0..6 {
            space.map_new(va, [RW, RO][n % 2]);
            space.protect(range, [RO, RW][n % 2]);
            if n % 3 == 0 {
                // As swapping does: nobody unmaps first.
                let old = space.gathered(|ops, gather| {
                    ops.replace::<Pte>(va, gather, |_| Become::Absent(super::absent::SWAPPED))
                });
                let Ok(Entry::Leaf(leaf)) = old else {
                    panic!("{old:?} was mapped");
                };
                super::sharing::take_back(&space, va, leaf);
            }
            space.unmap(range);
        }
        done.store(true, Ordering::SeqCst);
    });
    space.end(&[range]);
    p.check_memory();
    Outcome::Passed
}
