//! Operations that put memory into the table, take it out, or give it another access.

use super::Work;
use super::places::{slots_of, table_pages};
use crate::ledger::PieceId;
use crate::op::Run;
use crate::platform::Platform;
use crate::slots::{Begun, State};
use crate::space::{Space, said};
use alloc::format;
use alloc::vec::Vec;
use flagstone_pgtable::format::{Access, Entry, Level, Marks};
use flagstone_pgtable::{Become, Error, Pmd, Pte, Pud, Taken, VirtRange};
use flagstone_types::PhysAddr;

impl<P: Platform> Work<'_, P> {
    /// Ends a change of which nothing is known but its outcome: the state of each slot if it went well; else they stay, if nothing overlapped.
    pub(super) fn end(
        &self,
        begun: &Begun,
        range: VirtRange,
        went_well: bool,
        next: impl Fn(usize, State) -> State,
    ) {
        let quiet = self.slots.is_quiet(begun);
        self.slots.changed(begun, |slot, state, _| {
            if went_well {
                next(slot, state)
            } else if quiet {
                state
            } else {
                State::Unknown
            }
        });
        if quiet {
            let platform = self.space.platform;
            platform.check_settled(self.space.table(), range);
        }
    }

    pub(super) fn map(&self, run: Run, access: Access) {
        let mut pieces: Vec<(PieceId, PhysAddr)> = Vec::with_capacity(run.count.into());
        for _ in 0..run.count {
            let Some(memory) = self.space.memory(Level::PTE) else {
                break;
            };
            pieces.push(memory);
        }
        if pieces.is_empty() {
            return;
        }
        let first = usize::from(run.first);
        let begun = self.slots.change(first, pieces.len());
        let result = self.space.map_pages(self.va(first), &pieces, access);
        let quiet = self.slots.is_quiet(&begun);
        let empty = (first..first + pieces.len()).all(|n| self.slots.state(n) == State::Empty);
        let mapped = match &result {
            Ok(()) => pieces.len(),
            Err(stopped) => stopped.mapped,
        };
        if let Err(stopped) = &result
            && quiet
            && empty
            && !matches!(stopped.error, Error::NoTable(_))
        {
            self.wrong(format!("mapping {run:?} where nothing is: {stopped}"));
        }
        let range = Space::<P>::pages(self.va(first), pieces.len());
        self.slots.changed(&begun, |slot, state, _| {
            if slot - first >= mapped {
                return state;
            }
            if let State::Page(..) = state {
                self.wrong(format!("slot {slot} was mapped over {state:?}"));
            }
            State::Page(pieces[slot - first].1, access)
        });
        if quiet {
            let platform = self.space.platform;
            platform.check_settled(self.space.table(), range);
        }
    }

    /// Maps a piece onto a region: one huge leaf, or pages.
    pub(super) fn map_region(&self, region: u8, access: Access, fill: bool) {
        let level = if self.is_large(region) && !fill {
            Level::PUD
        } else {
            Level::PMD
        };
        if !fill && !self.space.table().has_leaf(level) {
            return;
        }
        let Some(memory) = self.space.memory(level) else {
            return;
        };
        let (first, count) = slots_of(region);
        let va = self.region(region);
        let begun = self.slots.change(first, count);
        let result = match (fill, level) {
            (true, _) => {
                let pages = table_pages::<P>();
                self.space.map_piece::<Pte>(va, memory, access, pages)
            }
            (_, Level::PUD) => self.space.map_piece::<Pud>(va, memory, access, 1),
            _ => self.space.map_piece::<Pmd>(va, memory, access, 1),
        };
        let mapped = match (&result, fill) {
            (Ok(()), _) => usize::MAX,
            (Err(stopped), true) => stopped.mapped,
            (Err(_), false) => 0,
        };
        self.slots.changed(&begun, |slot, state, _| {
            let page = Self::page_of(slot);
            if page >= mapped {
                return state;
            }
            if let State::Page(..) = state {
                self.wrong(format!("slot {slot} was mapped over {state:?}"));
            }
            let at = memory.1.0 + (page * Self::page()) as u64;
            State::Page(PhysAddr(at), access)
        });
    }

    pub(super) fn unmap(&self, first: usize, count: usize, range: VirtRange, tables: bool) {
        let begun = self.slots.change(first, count);
        let result = self.space.gathered(|ops, gather| {
            let result = ops.unmap(range, gather);
            if tables && let Err(error) = ops.free_tables(range, gather) {
                self.wrong(said("freeing tables", &error));
            }
            result
        });
        self.expect(&result, |error| matches!(error, Error::CutsHuge { .. }));
        self.end(&begun, range, result.is_ok(), |_, _| State::Empty);
    }

    pub(super) fn unmap_back(&self, run: Run) {
        let (first, count) = (usize::from(run.first), usize::from(run.count));
        let begun = self.slots.change(first, count);
        let result = self.space.gathered(|ops, gather| {
            let mut slots = (first..first + count).rev();
            slots.try_for_each(|slot| ops.unmap(Space::<P>::pages(self.va(slot), 1), gather))
        });
        self.expect(&result, |error| matches!(error, Error::CutsHuge { .. }));
        // One of several may have been refused after others had gone.
        let known = result.is_ok();
        let range = self.range(run);
        self.end(&begun, range, true, |_, _| {
            if known { State::Empty } else { State::Unknown }
        });
    }

    pub(super) fn protect(&self, first: usize, count: usize, range: VirtRange, access: Access) {
        let begun = self.slots.change(first, count);
        let result = self
            .space
            .gathered(|ops, gather| ops.protect(range, access, gather));
        self.expect(&result, |error| matches!(error, Error::CutsHuge { .. }));
        self.end(&begun, range, result.is_ok(), |_, state| match state {
            State::Page(at, _) => State::Page(at, access),
            other => other,
        });
    }

    pub(super) fn replace(&self, slot: usize) {
        let Some((piece, new)) = self.space.memory(Level::PTE) else {
            return;
        };
        let begun = self.slots.change(slot, 1);
        let (space, va) = (&self.space, self.va(slot));
        space.findings.check(space.ledger.put_out(piece, 0, 1));
        let decide = |entry| match entry {
            Entry::Leaf(leaf) => Become::Leaf(leaf.moved(new).unmark(Marks::YOUNG | Marks::DIRTY)),
            _ => Become::Same,
        };
        let result = space.gathered(|ops, gather| ops.replace::<Pte>(va, gather, decide));
        let old = match result {
            Ok(Entry::Leaf(leaf)) => Some(leaf),
            Ok(_) | Err(Error::NotMapped(_) | Error::Occupied { .. }) => None,
            Err(error) => {
                self.wrong(said("replacing", &error));
                None
            }
        };
        // What did not get into the table, or what was in it before.
        let out = Taken {
            at: va,
            level: Level::PTE,
            entry: Entry::Leaf(old.unwrap_or(Space::<P>::leaf(new, Access::READ))),
            pages: 1,
        };
        space
            .findings
            .check(space.ledger.release(space.platform, &out));
        let range = Space::<P>::pages(va, 1);
        self.end(&begun, range, true, |_, state| match (state, old) {
            (State::Page(at, access), Some(leaf)) => {
                if leaf.at != at {
                    self.wrong(format!("slot {slot}: {leaf:?} was replaced, not {at:?}"));
                }
                State::Page(new, access)
            }
            (State::Empty, Some(leaf)) => {
                self.wrong(format!(
                    "slot {slot}: {leaf:?} was replaced where nothing was"
                ));
                State::Unknown
            }
            (State::Unknown, Some(_)) => State::Unknown,
            (state, None) => state,
        });
    }
}
