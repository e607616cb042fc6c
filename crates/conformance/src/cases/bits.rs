//! Accessed and dirty bits, by the unit or by faults.

use super::Outcome;
use crate::op::Mix;
use crate::platform::Platform;
use crate::space::{RW, Space, reach};
use core::cell::RefCell;
use flagstone_pgtable::format::{Format, Level, Marks};
use flagstone_pgtable::{Pmd, Pte, TableLevel, VirtRange};
use flagstone_types::VirtAddr;

fn has<P: Platform>(space: &Space<'_, P>, va: VirtAddr, marks: Marks) -> bool {
    space.leaf_at(va).marks().contains(marks)
}

/// Clears marks of a range, and drops what CPUs hold of it.
fn clear<P: Platform>(space: &Space<'_, P>, range: VirtRange, marks: Marks) {
    let result = space.gathered(|ops, gather| ops.set_marks(range, Marks::empty(), marks, gather));
    assert_eq!(result, Ok(()));
}

fn on_level<L: TableLevel, P: Platform>(space: &Space<'_, P>) {
    if !space.table().has_leaf(L::LEVEL) {
        return;
    }
    let va = space.platform.window();
    let size = reach::<P::Format>(L::LEVEL);
    let range = VirtRange::new(va.0, size);
    space.map_new_at::<L>(va, RW);
    // A unit may look at what nobody asked for, and set the accessed bit for it; never the dirty bit.
    assert!(!has(space, va, Marks::DIRTY));
    assert!(space.read(va).is_ok());
    assert!(has(space, va, Marks::YOUNG) && !has(space, va, Marks::DIRTY));
    assert!(space.write(va).is_ok());
    assert!(has(space, va, Marks::YOUNG | Marks::DIRTY));

    let seen = RefCell::new(None);
    let young = space.ops().test_and_clear_young(range, |at, level, leaf| {
        seen.replace(Some((at, level, leaf.marks())));
    });
    assert_eq!(young, Ok(1));
    let seen = seen.into_inner().expect("one young leaf");
    assert_eq!((seen.0, seen.1), (va, L::LEVEL));
    assert!(seen.2.contains(Marks::YOUNG | Marks::DIRTY));
    // Nothing was invalidated, so the leaf may look old for as long as its translation is held.
    space.invalidate_here(va);
    assert!(space.read(va).is_ok());
    assert!(has(space, va, Marks::YOUNG), "use makes it young again");

    clear(space, range, Marks::DIRTY);
    space.platform.check_settled(space.table(), range);
    assert!(!has(space, va, Marks::DIRTY));
    assert!(space.read(va).is_ok());
    assert!(!has(space, va, Marks::DIRTY), "a load made a leaf dirty");
    assert!(space.write(va).is_ok());
    assert!(
        has(space, va, Marks::DIRTY),
        "a store after cleaning was not noted"
    );

    // What trackers note stays through protection and use.
    let tracked = Marks::SOFT_DIRTY;
    if P::Format::can(L::LEVEL, &space.leaf_at(va).mark(tracked)) {
        let result =
            space.gathered(|ops, gather| ops.set_marks(range, tracked, Marks::empty(), gather));
        assert_eq!(result, Ok(()));
        space.protect(range, crate::space::RO);
        assert!(space.read(va).is_ok() && space.write(va).is_err());
        assert!(has(space, va, tracked | Marks::DIRTY));
        space.protect(range, RW);
        assert!(has(space, va, tracked | Marks::DIRTY));
    }
    space.unmap(range);
}

pub(super) fn set_by_use<P: Platform>(p: &P) -> Outcome {
    let Some(space) = Space::new(p, 16) else {
        return Outcome::Skipped("no memory for a page table");
    };
    space.run(1, &|_| {
        on_level::<Pte, P>(&space);
        if let Some(probe) = p.alloc(Level::PMD) {
            p.free(probe, Level::PMD);
            on_level::<Pmd, P>(&space);
        }
    });
    space.end(&[]);
    p.check_memory();
    Outcome::Passed
}

pub(super) fn races<P: Platform>(p: &P) -> Outcome {
    super::workloads::drawn(p, Mix::Bits, p.cpus().min(8), 16)
}

pub(super) fn skim<P: Platform>(p: &P) -> Outcome {
    let Some(space) = Space::new(p, 16) else {
        return Outcome::Skipped("no memory for a page table");
    };
    let table = reach::<P::Format>(Level::PMD);
    let places = [0, table, 2 * table].map(|offset| VirtAddr(p.window().0 + offset));
    let range = VirtRange::new(p.window().0, 3 * table);
    space.run(1, &|_| {
        for va in places {
            space.map_new(va, RW);
            assert!(space.read(va).is_ok());
        }
        let skim = |space: &Space<'_, P>| {
            let young = space.ops().skim_young(range, |_, _, _| ());
            young.expect("a range that is aligned")
        };
        assert_eq!(skim(&space), 3);
        for va in places {
            space.invalidate_here(va);
        }
        // The unit may have guessed since. What was used is young whatever was skipped.
        for va in places {
            clear(&space, range, Marks::YOUNG);
            let _ = skim(&space);
            for va in places {
                space.invalidate_here(va);
            }
            // Cached tables would hide from the unit that it goes through them.
            space.leave();
            space.enter();
            assert!(space.read(va).is_ok());
            let young = skim(&space);
            assert!(
                (1..=3).contains(&young),
                "{young} young leaves after use of one"
            );
        }
    });
    space.end(&[range]);
    p.check_memory();
    Outcome::Passed
}
