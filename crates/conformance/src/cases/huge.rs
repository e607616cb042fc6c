//! Huge leaves: mapped, split, joined, taken away.

use super::Outcome;
use crate::platform::Platform;
use crate::space::{RO, RW, Space, reach};
use core::sync::atomic::{AtomicBool, Ordering};
use flagstone_pgtable::format::{Level, Marks};
use flagstone_pgtable::{Error, Pmd, Pud, TableLevel, VirtRange};
use flagstone_types::{PhysAddr, VirtAddr};

/// Addresses all over a leaf, page-aligned.
fn spots<P: Platform>(size: usize) -> [usize; 5] {
    let page = Space::<P>::page();
    let middle = size / 2;
    [0, page, middle - page, middle, size - page]
}

fn on_level<L: TableLevel, P: Platform>(p: &P) -> Outcome {
    let Some(space) = Space::new(p, 16) else {
        return Outcome::Skipped("no memory for a page table");
    };
    if !space.table().has_leaf(L::LEVEL) {
        space.end(&[]);
        return Outcome::Skipped("no leaves on this level");
    }
    let Some(memory) = space.memory(L::LEVEL) else {
        space.end(&[]);
        return Outcome::Skipped("no memory for such leaves");
    };
    let size = reach::<P::Format>(L::LEVEL);
    let (va, at) = (p.window(), memory.1);
    let range = VirtRange::new(va.0, size);
    let below = reach::<P::Format>(L::Below::LEVEL);
    space.run(1, &|_| {
        assert_eq!(space.map_piece::<L>(va, memory, RW, 1), Ok(()));
        let tables = space.table().table_count();
        let check = |what: &str| {
            for spot in spots::<P>(size) {
                space.assert_reads(VirtAddr(va.0 + spot), PhysAddr(at.0 + spot as u64));
            }
            p.check_settled(space.table(), range);
            space.findings.assert_none();
            let level = space.ops().lookup(va).map(|found| found.level);
            assert!(level.is_ok(), "{what}: {level:?}");
            level.unwrap_or(Level::PTE)
        };
        assert_eq!(check("mapped"), L::LEVEL);

        // What a part of it is used for is not known of each part, so all are as the whole was.
        assert!(space.write(va).is_ok());
        assert_eq!(space.ops().split(VirtAddr(va.0 + size - 1)), Ok(()));
        assert_eq!(check("split"), L::Below::LEVEL);
        assert_eq!(space.table().table_count(), tables + 1);
        let last = VirtAddr(va.0 + size - below);
        for place in [va, last] {
            let marks = space.leaf_at(place).marks();
            assert!(
                marks.contains(Marks::DIRTY | Marks::YOUNG),
                "{marks:?} after a split"
            );
        }
        // Parts are protected one by one, so it is no longer uniform.
        let part = VirtRange::new(last.0, below);
        space.protect(part, RO);
        assert!(space.write(last).is_err() && space.write(va).is_ok());
        assert_eq!(space.ops().collapse::<L>(va), Err(Error::NotUniform(last)));
        assert_eq!(check("not joined"), L::Below::LEVEL);
        space.protect(part, RW);

        // Dirty in one part is dirty as a whole.
        let clean = space.gathered(|ops, gather| {
            ops.set_marks(range, Marks::empty(), Marks::DIRTY | Marks::YOUNG, gather)
        });
        assert_eq!(clean, Ok(()));
        assert!(space.write(last).is_ok());
        assert_eq!(space.ops().collapse::<L>(va), Ok(()));
        assert_eq!(check("joined"), L::LEVEL);
        assert_eq!(space.table().table_count(), tables);
        assert!(
            space
                .leaf_at(va)
                .marks()
                .contains(Marks::DIRTY | Marks::YOUNG)
        );

        // A range that cuts through it is refused, until it is split there.
        let half = VirtRange::new(va.0, size / 2);
        let cut = Err(Error::CutsHuge {
            at: va,
            level: L::LEVEL,
        });
        let unmapped = space.gathered(|ops, gather| ops.unmap(half, gather));
        assert_eq!(unmapped, cut);
        let protected = space.gathered(|ops, gather| ops.protect(half, RO, gather));
        assert_eq!(protected, cut);
        assert_eq!(check("refused"), L::LEVEL);
        assert_eq!(space.ops().split_at(VirtAddr(va.0 + size / 2)), Ok(()));
        space.unmap(half);
        space.assert_refused(va);
        let rest = size / 2;
        space.assert_reads(VirtAddr(va.0 + rest), PhysAddr(at.0 + rest as u64));
    });
    space.end(&[range]);
    p.check_memory();
    Outcome::Passed
}

pub(super) fn pmd<P: Platform>(p: &P) -> Outcome {
    on_level::<Pmd, P>(p)
}

pub(super) fn pud<P: Platform>(p: &P) -> Outcome {
    on_level::<Pud, P>(p)
}

pub(super) fn retract<P: Platform>(p: &P) -> Outcome {
    let Some(space) = Space::new(p, 32) else {
        return Outcome::Skipped("no memory for a page table");
    };
    let size = reach::<P::Format>(Level::PMD);
    let pages = size / Space::<P>::page();
    let range = VirtRange::new(p.window().0, size);
    space.run(1, &|_| {
        let before = space.table().table_count();
        for n in [0, 1, pages / 2, pages - 1] {
            space.map_new(space.at(n), RW);
            assert!(space.write(space.at(n)).is_ok());
        }
        let with = space.table().table_count();
        let result = space.gathered(|ops, gather| ops.retract(p.window(), gather));
        assert_eq!(result, Ok(()));
        assert_eq!(space.table().table_count(), with - 1);
        assert_eq!(space.ledger.pages_out(), 0);
        p.check_settled(space.table(), range);
        for n in [0, 1, pages / 2, pages - 1] {
            space.assert_refused(space.at(n));
        }
        // Nothing is there: nothing happens.
        let result = space.gathered(|ops, gather| ops.retract(p.window(), gather));
        assert_eq!(result, Ok(()));
        if let Some(memory) = space.memory(Level::PMD) {
            if space.table().has_leaf(Level::PMD) {
                assert_eq!(space.map_piece::<Pmd>(p.window(), memory, RW, 1), Ok(()));
                let result = space.gathered(|ops, gather| ops.retract(p.window(), gather));
                assert!(matches!(result, Err(Error::Occupied { .. })), "{result:?}");
                space.assert_reads(p.window(), memory.1);
            } else {
                space.ledger.give(p, memory.1.0, Level::PMD);
            }
        }
        space.unmap(range);
        assert_eq!(space.table().table_count(), before);
    });
    space.end(&[range]);
    p.check_memory();
    Outcome::Passed
}

pub(super) fn in_place<P: Platform>(p: &P) -> Outcome {
    let Some(space) = Space::new(p, 16) else {
        return Outcome::Skipped("no memory for a page table");
    };
    if !space.table().has_leaf(Level::PMD) {
        space.end(&[]);
        return Outcome::Skipped("no leaves on this level");
    }
    let Some(memory) = space.memory(Level::PMD) else {
        space.end(&[]);
        return Outcome::Skipped("no memory for huge leaves");
    };
    let size = reach::<P::Format>(Level::PMD);
    let (va, at) = (p.window(), memory.1);
    let range = VirtRange::new(va.0, size);
    p.run(1, &|_| {
        assert_eq!(space.map_piece::<Pmd>(va, memory, RW, 1), Ok(()))
    });
    if let Err(error) = space.ops().split_in_place(va) {
        assert!(matches!(error, Error::NoSuchEntry(_)), "{error}");
        space.end(&[range]);
        return Outcome::Skipped("the machine wants entries broken first");
    }
    let done = AtomicBool::new(false);
    space.run(p.cpus().min(4), &|cpu| {
        if cpu == 0 {
            for _ in 0..2 {
                assert_eq!(space.ops().collapse_in_place::<Pmd>(va), Ok(()));
                assert_eq!(space.ops().split_in_place(va), Ok(()));
            }
            done.store(true, Ordering::SeqCst);
            return;
        }
        for n in cpu.. {
            if done.load(Ordering::SeqCst) || space.findings.any() {
                break;
            }
            let spot = spots::<P>(size)[n % 5];
            space.assert_reads(VirtAddr(va.0 + spot), PhysAddr(at.0 + spot as u64));
            assert!(space.write(VirtAddr(va.0 + spot)).is_ok());
            let found = space.ops().lookup(VirtAddr(va.0 + spot));
            assert!(found.is_ok_and(|found| found.leaf().is_some()), "{found:?}");
        }
    });
    let marks = space.leaf_at(va).marks();
    assert!(
        p.cpus() == 1 || marks.contains(Marks::DIRTY),
        "{marks:?} after stores"
    );
    space.end(&[range]);
    p.check_memory();
    Outcome::Passed
}
