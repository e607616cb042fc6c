//! One store beside one change: what a CPU has stored to is dirty afterwards, wherever between the steps of the change the store came.
//!
//! Each CPU stores once only, because a second store would set again what the first one lost.

use super::Outcome;
use super::absent::SWAPPED;
use super::sharing::take_back;
use crate::op::Draw;
use crate::platform::Platform;
use crate::space::{RW, RWX, Space, reach};
use core::sync::atomic::{AtomicBool, Ordering};
use flagstone_pgtable::format::{Access, Entry, Leaf, Level, Marks};
use flagstone_pgtable::{Become, Error, Pmd, Pte, VirtRange};
use flagstone_types::VirtAddr;

/// Pages that are stored to, in the table of a round.
const SPOTS: usize = 4;

/// A round: the changer is CPU 0, and CPU n stores to spot n.
struct Round<'s, 'p, P: Platform> {
    space: &'s Space<'p, P>,
    spots: [VirtAddr; SPOTS],
    stored: [AtomicBool; SPOTS],
    cpus: usize,
    /// Whether one CPU only stores.
    one: bool,
}

impl<'s, 'p, P: Platform> Round<'s, 'p, P> {
    fn new(space: &'s Space<'p, P>, spots: [VirtAddr; SPOTS]) -> Self {
        Self {
            space,
            spots,
            stored: [const { AtomicBool::new(false) }; SPOTS],
            cpus: space.platform.cpus().min(SPOTS),
            one: !space.platform.random().is_multiple_of(4),
        }
    }

    /// Takes a few steps.
    fn wait(&self, steps: usize) {
        for _ in 0..steps {
            // What is found does not matter.
            let _ = self.space.ops().physical(self.spots[0]);
        }
    }

    /// Runs `change` on CPU 0 while the others store once each, some of them with a translation at hand and some without; one does `other` instead, if there
    /// is such a thing.
    fn run(&self, change: &(dyn Fn() + Sync), other: Option<&(dyn Fn() + Sync)>) {
        let seed = self.space.platform.random();
        // Where one has stored already, what another one's store loses is not seen.
        let last = 1 + (seed as usize % 3) % (SPOTS - 1);
        let last = if self.one { self.cpus - 1 } else { last };
        let first = if self.one { last } else { 1 };
        self.space.run(self.cpus, &|cpu| {
            let mut draw = Draw::new(seed ^ cpu as u64);
            if cpu == 0 {
                self.wait(draw.below(6));
                return change();
            }
            if let (1, Some(other)) = (cpu, other) {
                return other();
            }
            let spot = self.spots[cpu];
            if !(first..=last).contains(&cpu) {
                let _ = self.space.read(spot);
                return;
            }
            if draw.below(3) != 0 {
                let _ = self.space.read(spot);
            }
            self.wait(draw.below(8));
            let went = self.space.write(spot).is_ok();
            self.stored[cpu].store(went, Ordering::SeqCst);
        });
    }

    /// That the leaves of all spots that were stored to say so.
    fn check_dirty(&self, after: &str) {
        for (spot, stored) in self.spots.iter().zip(&self.stored) {
            if stored.load(Ordering::SeqCst) {
                let leaf = self.space.leaf_at(*spot);
                assert!(
                    leaf.marks().contains(Marks::DIRTY) && !leaf.marks().contains(Marks::SHADOW),
                    "{leaf:?} at {spot:?} after {after} beside a store"
                );
            }
        }
    }
}

/// Takes dirty and young from everything in a range.
fn clean<P: Platform>(space: &Space<'_, P>, range: VirtRange) {
    let result = space.gathered(|ops, gather| {
        ops.set_marks(range, Marks::empty(), Marks::DIRTY | Marks::YOUNG, gather)
    });
    assert_eq!(result, Ok(()));
}

/// Leaves change their size.
pub(super) fn beside_splits<P: Platform>(p: &P) -> Outcome {
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
    let (va, size) = (p.window(), reach::<P::Format>(Level::PMD));
    let range = VirtRange::new(va.0, size);
    p.run(1, &|_| {
        assert_eq!(space.map_piece::<Pmd>(va, memory, RW, 1), Ok(()));
    });
    let in_place = space.ops().split_in_place(va).is_ok();
    let page = Space::<P>::page();
    // The first pages that a collapse looks at are those that it has looked at for the longest time.
    let spots = [0, 0, size / 2, size - page].map(|offset| VirtAddr(va.0 + offset));
    let mut is_split = in_place;
    for _ in 0..4 {
        p.run(1, &|_| clean(&space, range));
        let round = Round::new(&space, spots);
        let by = in_place && p.random().is_multiple_of(2);
        let what = match (is_split, by) {
            (false, false) => "a split",
            (false, true) => "a split in place",
            (true, false) => "a collapse",
            (true, true) => "a collapse in place",
        };
        round.run(
            &|| {
                let result = match (is_split, by) {
                    (false, false) => space.ops().split(va),
                    (false, true) => space.ops().split_in_place(va),
                    (true, false) => space.ops().collapse::<Pmd>(va),
                    (true, true) => space.ops().collapse_in_place::<Pmd>(va),
                };
                assert_eq!(result, Ok(()), "{what}");
            },
            None,
        );
        is_split = !is_split;
        p.run(1, &|_| round.check_dirty(what));
    }
    space.end(&[range]);
    p.check_memory();
    Outcome::Passed
}

/// What is done to pages.
#[derive(Clone, Copy, Debug)]
enum Change {
    Protect,
    ProtectOne,
    /// No access at all, which is an entry that is not present.
    Hide,
    HideOne,
    Age,
    /// By `replace`, as a fault handler sets bits.
    Mark,
    /// Another page.
    Move,
    Unmap,
    UnmapOne,
    SwapOut,
    /// No access, by `replace`.
    HideByReplace,
    /// Unmapped by one, and another puts something absent there before that has ended.
    Refill,
}

const CHANGES: [Change; 15] = [
    Change::Protect,
    Change::ProtectOne,
    Change::Hide,
    Change::Hide,
    Change::HideOne,
    Change::Age,
    Change::Mark,
    Change::Mark,
    Change::Move,
    Change::Unmap,
    Change::UnmapOne,
    Change::SwapOut,
    Change::HideByReplace,
    Change::HideByReplace,
    Change::Refill,
];

fn change_page<P: Platform>(space: &Space<'_, P>, va: VirtAddr, change: Change) {
    let range = Space::<P>::pages(va, 1);
    let none = Access::USER;
    let by_replace = |new: &dyn Fn(Leaf) -> Become| {
        let old = space.gathered(|ops, gather| {
            ops.replace::<Pte>(va, gather, |entry| match entry {
                Entry::Leaf(leaf) => new(leaf),
                _ => Become::Same,
            })
        });
        match old {
            Ok(Entry::Leaf(leaf)) => leaf,
            other => panic!("{other:?} is at {va:?}"),
        }
    };
    match change {
        Change::Protect => space.protect(range, RWX),
        Change::ProtectOne => assert_eq!(space.ops().protect_one::<Pte>(va, RWX), Ok(())),
        Change::Hide => space.protect(range, none),
        Change::HideOne => assert_eq!(space.ops().protect_one::<Pte>(va, none), Ok(())),
        Change::Age => {
            let aged = space.ops().test_and_clear_young(range, |_, _, _| ());
            assert!(aged.is_ok(), "{aged:?}");
        }
        Change::Mark => {
            by_replace(&|leaf| Become::Leaf(leaf.mark(Marks::YOUNG)));
        }
        Change::HideByReplace => {
            by_replace(&|leaf| {
                let hidden = Space::<P>::leaf(leaf.at, none);
                Become::Leaf(hidden.mark(leaf.marks() & (Marks::YOUNG | Marks::DIRTY)))
            });
        }
        Change::Move => {
            if let Some((piece, at)) = space.memory(Level::PTE) {
                space.findings.check(space.ledger.put_out(piece, 0, 1));
                let old = by_replace(&|_| Become::Leaf(Space::<P>::leaf(at, RW)));
                take_back(space, va, old);
            }
        }
        Change::Unmap | Change::Refill => space.unmap(range),
        Change::UnmapOne => match space.ops().unmap_one::<Pte>(va) {
            Ok(Entry::Leaf(leaf)) => take_back(space, va, leaf),
            other => panic!("{other:?} was at {va:?}"),
        },
        Change::SwapOut => take_back(space, va, by_replace(&|_| Become::Absent(SWAPPED))),
    }
}

/// Puts something absent where nothing is, as soon as nothing is there.
fn fill<P: Platform>(space: &Space<'_, P>, va: VirtAddr) -> bool {
    for _ in 0..40 {
        let old = space.gathered(|ops, gather| {
            ops.replace::<Pte>(va, gather, |entry| match entry {
                Entry::None => Become::Absent(SWAPPED),
                _ => Become::Same,
            })
        });
        match old {
            Ok(Entry::None) => return true,
            Ok(Entry::Leaf(_)) => {}
            // The table went with its last page.
            Err(Error::NotMapped(_)) => return false,
            other => panic!("{other:?} is at {va:?}"),
        }
    }
    false
}

/// Pages change what they say, or go.
pub(super) fn beside_changes<P: Platform>(p: &P) -> Outcome {
    let Some(space) = Space::new(p, 64) else {
        return Outcome::Skipped("no memory for a page table");
    };
    // All store to the page that is changed; its neighbour keeps the table.
    let va = p.window();
    let range = Space::<P>::pages(va, 2);
    p.run(1, &|_| {
        space.map_new(space.at(1), RW);
    });
    for _ in 0..6 {
        let change = CHANGES[(p.random() % CHANGES.len() as u64) as usize];
        p.run(1, &|_| {
            space.map_new(va, RW);
        });
        let round = Round::new(&space, [va; SPOTS]);
        let filled = AtomicBool::new(false);
        let fills = matches!(change, Change::Refill) && round.cpus > 2;
        let fill: &(dyn Fn() + Sync) = &|| filled.store(fill(&space, va), Ordering::SeqCst);
        round.run(&|| change_page(&space, va, change), fills.then_some(fill));
        space.run(1, &|_| {
            check_page(&round, change, filled.load(Ordering::SeqCst))
        });
    }
    space.end(&[range]);
    p.check_memory();
    Outcome::Passed
}

/// Looks at what a change has left, and takes it away.
fn check_page<P: Platform>(round: &Round<'_, '_, P>, change: Change, filled: bool) {
    let (space, va) = (round.space, round.spots[0]);
    match change {
        Change::Protect | Change::ProtectOne | Change::Age | Change::Mark => {
            round.check_dirty("a change");
            assert!(space.write(va).is_ok(), "a store after {change:?}");
        }
        Change::Hide | Change::HideOne | Change::HideByReplace => {
            round.check_dirty("a change");
            space.assert_refused(va);
            let leaf = space.leaf_at(va);
            assert!(!leaf.marks().contains(Marks::SHADOW), "{leaf:?}");
            space.protect(Space::<P>::pages(va, 1), RW);
            assert!(space.write(va).is_ok(), "a store to what was hidden");
        }
        // Stores were made to the one or the other, and the ledger asks both.
        Change::Move => assert!(space.read(va).is_ok()),
        Change::Unmap | Change::UnmapOne => space.assert_refused(va),
        Change::SwapOut | Change::Refill => {
            space.assert_refused(va);
            let found = space.ops().lookup(va);
            let entry = found.map(|found| found.entry);
            let expected = match change {
                Change::Refill if !filled => Entry::None,
                _ => Entry::Absent(SWAPPED),
            };
            assert_eq!(entry, Ok(expected), "after {change:?}");
        }
    }
    space.unmap(Space::<P>::pages(va, 1));
}
