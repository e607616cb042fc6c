//! Operations that leave what is mapped as it is: the size of leaves changes, and bits of use.

use super::Work;
use super::places::slots_of;
use crate::ledger::PieceId;
use crate::op::Run;
use crate::platform::Platform;
use crate::slots::{SLOTS, State};
use crate::space::reach;
use core::cell::Cell;
use core::sync::atomic::Ordering;
use flagstone_pgtable::format::{Level, Marks};
use flagstone_pgtable::{Error, Pmd, Pud, VirtRange};
use flagstone_types::PhysAddr;

impl<P: Platform> Work<'_, P> {
    pub(super) fn clean(&self, run: Run) {
        let first = usize::from(run.first);
        let begun = self.slots.disturb(first, run.count.into());
        let pieces = [const { Cell::new(None::<PieceId>) }; SLOTS];
        let used = Cell::new(0);
        let range = self.range(run);
        let result = self.space.gathered(|ops, gather| {
            ops.change_each(range, gather, |_, _, leaf| {
                if leaf.marks().contains(Marks::DIRTY) && used.get() < SLOTS {
                    pieces[used.get()].set(self.space.ledger.cleaning(leaf.at.0));
                    used.set(used.get() + 1);
                    return leaf.unmark(Marks::DIRTY);
                }
                leaf
            })
        });
        for piece in pieces.iter().filter_map(Cell::get) {
            self.space.ledger.cleaned(piece, |at| {
                let word = self.space.platform.word(PhysAddr(at))?;
                Some(word.load(Ordering::Relaxed))
            });
        }
        self.expect(&result, |error| matches!(error, Error::CutsHuge { .. }));
        self.slots.disturbed(&begun);
    }

    pub(super) fn split(&self, region: u8) {
        let (first, count) = slots_of(region);
        let begun = self.slots.disturb(first, count);
        let result = self.space.ops().split(self.region(region));
        self.expect(&result, |error| {
            matches!(
                error,
                Error::NotMapped(_) | Error::NoTable(_) | Error::Unsupported { .. }
            )
        });
        if self.slots.disturbed(&begun) {
            let platform = self.space.platform;
            platform.check_settled(self.space.table(), self.region_range(region));
        }
    }

    pub(super) fn collapse(&self, region: u8, in_place: bool) {
        let (first, count) = slots_of(region);
        let begun = self.slots.disturb(first, count);
        let (ops, va) = (self.space.ops(), self.region(region));
        let result = match (self.is_large(region), in_place) {
            (true, false) => ops.collapse::<Pud>(va),
            (true, true) => ops.collapse_in_place::<Pud>(va),
            (false, false) => ops.collapse::<Pmd>(va),
            (false, true) => ops.collapse_in_place::<Pmd>(va),
        };
        self.expect(&result, |error| {
            matches!(
                error,
                Error::NotMapped(_)
                    | Error::NotUniform(_)
                    | Error::NoSuchEntry(_)
                    | Error::Unsupported { .. }
            )
        });
        if self.slots.disturbed(&begun) {
            let platform = self.space.platform;
            platform.check_settled(self.space.table(), self.region_range(region));
        }
    }

    pub(super) fn retract(&self, region: u8) {
        let (first, count) = slots_of(region);
        let begun = self.slots.change(first, count);
        let va = self.region(region);
        let result = self.space.gathered(|ops, gather| ops.retract(va, gather));
        self.expect(&result, |error| {
            matches!(error, Error::Occupied { .. } | Error::NoTable(_))
        });
        let range = VirtRange::new(va.0, reach::<P::Format>(Level::PMD));
        self.end(&begun, range, result.is_ok(), |_, _| State::Empty);
    }
}
