//! The forms for one entry: they invalidate at once, and rely on nobody's gather.

use super::Outcome;
use super::sharing::take_back;
use crate::platform::Platform;
use crate::space::{RO, RW, Space, reach};
use flagstone_pgtable::format::{Entry, Level};
use flagstone_pgtable::{Error, Pmd, Pte, TableLevel, VirtRange};
use flagstone_types::{PhysAddr, VirtAddr};

/// Maps a new leaf by itself.
fn map_one<L: TableLevel, P: Platform>(space: &Space<'_, P>, va: VirtAddr) -> Option<PhysAddr> {
    let (piece, at) = space.memory(L::LEVEL)?;
    let pages = (reach::<P::Format>(L::LEVEL) / Space::<P>::page()) as u64;
    space.findings.check(space.ledger.put_out(piece, 0, pages));
    let result = space.ops().map_one::<L>(va, &Space::<P>::leaf(at, RW));
    assert_eq!(result, Ok(()), "mapping {va:?}");
    Some(at)
}

fn on_level<L: TableLevel, P: Platform>(space: &Space<'_, P>, all: usize) {
    let p = space.platform;
    if !space.table().has_leaf(L::LEVEL) {
        return;
    }
    let va = p.window();
    let inside = VirtAddr(va.0 + reach::<P::Format>(L::LEVEL) / 2 + 8);
    let range = VirtRange::new(va.0, reach::<P::Format>(L::LEVEL));
    let mut place = None;
    let taken = crate::spin::Spin::new(None);
    p.run(1, &|_| *taken.lock() = map_one::<L, P>(space, va));
    core::mem::swap(&mut place, &mut taken.lock());
    let Some(at) = place else {
        return;
    };
    p.run(all, &|_| {
        space.assert_reads(va, at);
        assert!(space.write(va).is_ok());
    });
    p.run(1, &|_| {
        let expected = PhysAddr(at.0 + (inside.0 - va.0) as u64);
        assert_eq!(space.ops().physical(inside), Some(expected));
        // What is there is in the way, and stays.
        let leaf = Space::<P>::leaf(at, RW);
        let twice = space.ops().map_one::<L>(va, &leaf);
        assert!(matches!(twice, Err(Error::Occupied { .. })), "{twice:?}");
        assert_eq!(space.ops().protect_one::<L>(va, RO), Ok(()));
    });
    p.check_all_settled(space.table());
    p.run(all, &|_| {
        assert!(space.write(va).is_err(), "a store after protection");
        space.assert_reads(va, at);
    });
    p.run(1, &|_| {
        let old = space.ops().unmap_one::<L>(va);
        p.check_all_settled(space.table());
        let Ok(Entry::Leaf(leaf)) = old else {
            panic!("{old:?} was mapped");
        };
        assert_eq!(leaf.at, at);
        let taken = flagstone_pgtable::Taken {
            at: va,
            level: L::LEVEL,
            entry: Entry::Leaf(leaf),
            pages: 1,
        };
        space.findings.check(space.ledger.release(p, &taken));
        assert_eq!(space.ops().unmap_one::<L>(va), Ok(Entry::None));
        assert_eq!(space.ops().physical(inside), None);
    });
    p.run(all, &|_| space.assert_refused(va));
    p.run(1, &|_| space.unmap(range));
}

pub(super) fn entries<P: Platform>(p: &P) -> Outcome {
    let Some(space) = Space::new(p, 16) else {
        return Outcome::Skipped("no memory for a page table");
    };
    let all = p.cpus().min(4);
    p.run(all, &|_| space.enter());
    on_level::<Pte, P>(&space, all);
    on_level::<Pmd, P>(&space, all);
    p.run(all, &|_| space.leave());
    space.end(&[]);
    p.check_memory();
    Outcome::Passed
}

/// Each CPU works on pages that it shares with another one, in tables that come and go.
pub(super) fn races<P: Platform>(p: &P) -> Outcome {
    let Some(space) = Space::new(p, 256) else {
        return Outcome::Skipped("no memory for a page table");
    };
    let size = reach::<P::Format>(Level::PMD);
    let range = VirtRange::new(p.window().0, 2 * size);
    let pages = size / Space::<P>::page();
    space.run(p.cpus().min(8), &|cpu| {
        // One page each, and one for two of them.
        let own = space.at(cpu % 2 * pages + 1 + cpu / 2);
        let shared = space.at(cpu % 2 * pages);
        for n in 0..3 {
            if let Some(at) = map_one::<Pte, P>(&space, own) {
                space.assert_reads(own, at);
                assert!(space.write(own).is_ok());
                if cpu % 4 == 3 {
                    space.protect(Space::<P>::pages(own, 1), RO);
                } else {
                    assert_eq!(space.ops().protect_one::<Pte>(own, RO), Ok(()));
                }
                assert!(space.write(own).is_err(), "a store after protection");
                assert_eq!(space.ops().physical(own), Some(at));
            }
            match cpu % 4 {
                // Both may find it, and one of them gets it.
                0 | 1 => {
                    if let Some((piece, at)) = space.memory(Level::PTE) {
                        space.findings.check(space.ledger.put_out(piece, 0, 1));
                        let leaf = Space::<P>::leaf(at, RW);
                        match space.ops().map_one::<Pte>(shared, &leaf) {
                            Ok(()) => {}
                            Err(Error::Occupied { .. }) => space.unmapped(at),
                            Err(error) => panic!("mapping {shared:?}: {error}"),
                        }
                    }
                }
                2 => {
                    let result = space.gathered(|ops, gather| {
                        ops.unmap(Space::<P>::pages(shared, 1), gather)?;
                        ops.free_tables(range, gather)
                    });
                    assert_eq!(result, Ok(()));
                }
                _ => {
                    assert_eq!(
                        space.ops().protect_one::<Pte>(shared, [RO, RW][n % 2]),
                        Ok(())
                    );
                }
            }
            let _ = space.read(shared);
            match space.ops().unmap_one::<Pte>(shared) {
                Ok(Entry::Leaf(leaf)) => take_back(&space, shared, leaf),
                Ok(Entry::None) => {}
                other => panic!("{other:?} was at {shared:?}"),
            }
            // Whoever took it out, it was invalidated or the one who did is not done: then this call has invalidated.
            match space.ops().unmap_one::<Pte>(own) {
                Ok(Entry::Leaf(leaf)) => take_back(&space, own, leaf),
                other => panic!("{other:?} was at {own:?}"),
            }
            space.assert_refused(own);
        }
    });
    space.end(&[range]);
    p.check_memory();
    Outcome::Passed
}
