//! Pages of two page tables, and pages that move.

use super::Outcome;
use crate::platform::Platform;
use crate::space::{RW, Space};
use core::sync::atomic::{AtomicBool, Ordering};
use flagstone_pgtable::format::{Access, Entry, Format, Leaf, Level, Marks};
use flagstone_pgtable::{Become, Pte, Taken};
use flagstone_types::{PhysAddr, VirtAddr};

const PAGES: usize = 6;

/// Gives a page back that was taken out of a table by hand.
pub(super) fn take_back<P: Platform>(space: &Space<'_, P>, va: VirtAddr, leaf: Leaf) {
    let taken = Taken {
        at: va,
        level: Level::PTE,
        entry: Entry::Leaf(leaf),
        pages: 1,
    };
    space
        .findings
        .check(space.ledger.release(space.platform, &taken));
}

/// Puts another page in the place of one; gives what was there.
fn exchange<P: Platform>(space: &Space<'_, P>, va: VirtAddr, new: Leaf) -> Leaf {
    let old = space.gathered(|ops, gather| ops.replace::<Pte>(va, gather, |_| Become::Leaf(new)));
    match old {
        Ok(Entry::Leaf(leaf)) => leaf,
        other => panic!("{other:?} is at {va:?}"),
    }
}

pub(super) fn fork<P: Platform>(p: &P) -> Outcome {
    let (Some(parent), Some(child)) = (Space::new(p, 32), Space::new(p, 32)) else {
        return Outcome::Skipped("no memory for two page tables");
    };
    let range = Space::<P>::pages(p.window(), PAGES);
    let others = p.cpus().min(3);
    let special = Leaf::new(
        PhysAddr(0),
        RW,
        flagstone_pgtable::shadow::Mapping::Ordinary,
    )
    .mark(Marks::SPECIAL);
    if !P::Format::can(Level::PTE, &special) {
        return Outcome::Skipped("the format has no mark for pages that are not owned");
    }
    parent.run(1, &|_| {
        for n in 0..PAGES {
            parent.map_new(parent.at(n), RW);
            assert!(parent.write(parent.at(n)).is_ok());
        }
    });
    // The copy: write-protected on both sides; the parent's pages are not the child's to give back.
    parent.run(others, &|cpu| {
        if cpu != 0 {
            for n in 0..2 * PAGES {
                assert!(parent.read(parent.at(n % PAGES)).is_ok());
            }
            return;
        }
        let protected = parent.gathered(|ops, gather| ops.write_protect(range, gather));
        assert_eq!(protected, Ok(()));
        for n in 0..PAGES {
            let leaf = parent.leaf_at(parent.at(n));
            assert!(!leaf.is_writable() && leaf.marks().contains(Marks::DIRTY));
            let copy = leaf
                .mark(Marks::SPECIAL)
                .unmark(Marks::YOUNG | Marks::DIRTY);
            assert_eq!(child.ops().map::<Pte>(child.at(n), &copy, 1), Ok(()));
        }
    });
    for space in [&parent, &child] {
        p.check_settled(space.table(), range);
    }
    // Both read the same memory, and neither stores to it.
    let words = [0; PAGES].map(|_| core::sync::atomic::AtomicU64::new(0));
    parent.run(1, &|_| {
        for (n, word) in words.iter().enumerate() {
            let seen = parent.read(parent.at(n)).expect("a page that is mapped");
            word.store(seen.word.unwrap_or(0), Ordering::Relaxed);
            assert!(parent.write(parent.at(n)).is_err());
        }
    });
    child.run(1, &|_| {
        for (n, word) in words.iter().enumerate() {
            let seen = child.read(child.at(n)).expect("a page that is mapped");
            assert_eq!(seen.word.unwrap_or(0), word.load(Ordering::Relaxed));
            assert!(child.write(child.at(n)).is_err());
        }
        // The first stores: the child gets pages of its own, the parent its own back.
        for n in 0..PAGES / 2 {
            let Some((piece, at)) = child.memory(Level::PTE) else {
                continue;
            };
            child.findings.check(child.ledger.put_out(piece, 0, 1));
            let old = exchange(&child, child.at(n), Space::<P>::leaf(at, RW));
            assert!(old.marks().contains(Marks::SPECIAL), "{old:?}");
            assert!(child.write(child.at(n)).is_ok());
            child.assert_reads(child.at(n), at);
        }
    });
    parent.run(1, &|_| {
        parent.protect(range, RW);
        for (n, word) in words.iter().enumerate() {
            assert!(parent.write(parent.at(n)).is_ok());
            let seen = parent.read(parent.at(n)).expect("a page that is mapped");
            let word = word.load(Ordering::Relaxed);
            assert_eq!(seen.word.unwrap_or(0), word, "the parent's page {n}");
        }
    });
    child.end(&[range]);
    parent.end(&[range]);
    p.check_memory();
    Outcome::Passed
}

pub(super) fn replace<P: Platform>(p: &P) -> Outcome {
    let Some(space) = Space::new(p, 64) else {
        return Outcome::Skipped("no memory for a page table");
    };
    let va = p.window();
    let range = Space::<P>::pages(va, 1);
    let done = AtomicBool::new(false);
    p.run(1, &|_| {
        space.map_new(va, RW);
    });
    space.run(p.cpus().min(4), &|cpu| {
        if cpu != 0 {
            while !done.load(Ordering::SeqCst) && !space.findings.any() {
                let since = space.ledger.now();
                if let Ok(seen) = space.read(va) {
                    let known = space.ledger.check_seen(seen.at, seen.word, since);
                    space.findings.check(known);
                }
                // Refused while the page is on its way.
                let _ = space.write(va);
            }
            return;
        }
        for _ in 0..6 {
            let Some((piece, at)) = space.memory(Level::PTE) else {
                break;
            };
            // As migration does: nobody stores to the page from the protection on, so that it can be copied.
            space.protect(range, Access::READ | Access::USER);
            let old = space.leaf_at(va).at;
            if let (Some(from), Some(to)) = (word(&space, old), word(&space, at)) {
                let data = from.load(Ordering::Relaxed);
                to.store(data, Ordering::Relaxed);
                // What the ledger asks at the end is whether stores since the copy were noted.
                space.ledger.begin_with(piece, data);
            }
            space.findings.check(space.ledger.put_out(piece, 0, 1));
            let leaf = exchange(&space, va, Space::<P>::leaf(at, RW));
            assert_eq!(leaf.at, old);
            take_back(&space, va, leaf);
        }
        done.store(true, Ordering::SeqCst);
    });
    space.end(&[range]);
    p.check_memory();
    Outcome::Passed
}

/// The second word of a page.
fn word<'s, P: Platform>(
    space: &Space<'s, P>,
    page: PhysAddr,
) -> Option<&'s core::sync::atomic::AtomicU64> {
    space.platform.word(PhysAddr(page.0 + 8))
}
