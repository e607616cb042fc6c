//! Entries that are no translation and say why.

use super::Outcome;
use super::sharing::take_back;
use crate::platform::Platform;
use crate::space::{RW, Space};
use core::sync::atomic::Ordering;
use flagstone_pgtable::format::{Absent, Entry, Marks};
use flagstone_pgtable::{Become, Error, Pte};

/// A page that is swapped out.
pub(super) const SWAPPED: Absent = Absent::Swap {
    area: 3,
    offset: 0x1234,
    exclusive: true,
    marks: Marks::empty(),
};

const ALL: [Absent; 5] = [
    SWAPPED,
    Absent::Swap {
        area: 0,
        offset: 0,
        exclusive: false,
        marks: Marks::empty(),
    },
    Absent::Migration {
        frame: 0x321,
        write: true,
        marks: Marks::YOUNG.union(Marks::DIRTY),
    },
    Absent::Device {
        frame: 0x456,
        write: false,
    },
    Absent::Marker { payload: 1 },
];

pub(super) fn entries<P: Platform>(p: &P) -> Outcome {
    let Some(space) = Space::new(p, 32) else {
        return Outcome::Skipped("no memory for a page table");
    };
    let va = p.window();
    let range = Space::<P>::pages(va, 1);
    let all = p.cpus().min(4);
    p.run(all, &|_| space.enter());
    for absent in ALL {
        p.run(1, &|_| {
            space.map_new(va, RW);
            assert!(space.write(va).is_ok());
        });
        p.run(all, &|_| assert!(space.read(va).is_ok()));
        p.run(1, &|_| {
            let old = space
                .gathered(|ops, gather| ops.replace::<Pte>(va, gather, |_| Become::Absent(absent)));
            match old {
                Ok(Entry::Leaf(leaf)) => {
                    assert!(leaf.marks().contains(Marks::DIRTY), "{leaf:?}");
                    take_back(&space, va, leaf);
                }
                // The format has no room for such numbers.
                Err(Error::NoSuchEntry(_)) => {}
                other => panic!("{other:?}"),
            }
            p.check_settled(space.table(), range);
        });
        let found = space.ops().lookup(va).expect("an address of the window");
        if found.leaf().is_some() {
            p.run(1, &|_| space.unmap(range));
            continue;
        }
        assert_eq!(found.entry, Entry::Absent(absent));
        p.run(all, &|_| space.assert_refused(va));
        p.run(1, &|_| {
            // Nothing but the owner takes it away.
            let Some(memory) = space.memory(flagstone_pgtable::format::Level::PTE) else {
                return;
            };
            let mapped = space.map_piece::<Pte>(va, memory, RW, 1);
            let error = mapped.map_err(|stopped| stopped.error);
            assert!(matches!(error, Err(Error::Occupied { .. })), "{error:?}");
            let back = space.absent.load(Ordering::Relaxed);
            space.unmap(range);
            assert_eq!(space.absent.load(Ordering::Relaxed), back + 1);
            space.map_new(va, RW);
        });
        p.run(all, &|_| assert!(space.read(va).is_ok()));
        p.run(1, &|_| space.unmap(range));
    }
    p.run(all, &|_| space.leave());
    space.end(&[range]);
    p.check_memory();
    Outcome::Passed
}
