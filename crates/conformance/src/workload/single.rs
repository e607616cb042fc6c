//! Operations on single pages by the forms of their own, which invalidate at once and gather nothing.

use super::{Work, add};
use crate::platform::Platform;
use crate::slots::State;
use crate::space::Space;
use alloc::format;
use flagstone_pgtable::format::{Access, Entry, Level};
use flagstone_pgtable::{Error, Pte, Taken};
use flagstone_types::VirtAddr;

impl<P: Platform> Work<'_, P> {
    pub(super) fn map_one(&self, slot: usize, access: Access) {
        let space = &self.space;
        let Some((piece, at)) = space.memory(Level::PTE) else {
            return;
        };
        let va = self.va(slot);
        let begun = self.slots.change(slot, 1);
        space.findings.check(space.ledger.put_out(piece, 0, 1));
        let leaf = Space::<P>::leaf(at, access);
        let result = space.ops().map_one::<Pte>(va, &leaf);
        if result.is_err() {
            space.unmapped(at);
        }
        let was = self.slots.state(slot);
        if let Err(error) = &result
            && self.slots.is_quiet(&begun)
            && was == State::Empty
            && !matches!(error, Error::NoTable(_))
        {
            self.wrong(format!("mapping slot {slot} where nothing is: {error}"));
        }
        let range = Space::<P>::pages(va, 1);
        self.end(&begun, range, result.is_ok(), |slot, state| {
            if let State::Page(..) = state {
                self.wrong(format!("slot {slot} was mapped over {state:?}"));
            }
            State::Page(at, access)
        });
    }

    pub(super) fn unmap_one(&self, slot: usize) {
        let (space, va) = (&self.space, self.va(slot));
        let begun = self.slots.change(slot, 1);
        let result = space.ops().unmap_one::<Pte>(va);
        let went_well = result.is_ok();
        let mut was = None;
        match result {
            Ok(entry @ Entry::Leaf(leaf)) => {
                was = Some(leaf.at);
                let taken = Taken {
                    at: va,
                    level: Level::PTE,
                    entry,
                    pages: 1,
                };
                // No CPU uses it any more: it is given back at once.
                let released = space.ledger.release(space.platform, &taken);
                space.findings.check(released);
            }
            Ok(Entry::None) => {}
            Ok(other) => self.wrong(format!("slot {slot}: {other:?} was taken out")),
            Err(error) => self.expect(&Err(error), |e| matches!(e, Error::CutsHuge { .. })),
        }
        let range = Space::<P>::pages(va, 1);
        self.end(&begun, range, went_well, |_, state| {
            match state {
                State::Page(at, _) if was != Some(at) => {
                    self.wrong(format!("slot {slot} is {state:?}, and {was:?} was taken"));
                }
                State::Empty if was.is_some() => {
                    self.wrong(format!("slot {slot} is empty, and {was:?} was taken"));
                }
                _ => {}
            }
            State::Empty
        });
    }

    pub(super) fn protect_one(&self, slot: usize, access: Access) {
        let va = self.va(slot);
        let begun = self.slots.change(slot, 1);
        let result = self.space.ops().protect_one::<Pte>(va, access);
        self.expect(&result, |error| matches!(error, Error::CutsHuge { .. }));
        let range = Space::<P>::pages(va, 1);
        self.end(&begun, range, result.is_ok(), |_, state| match state {
            State::Page(at, _) => State::Page(at, access),
            other => other,
        });
    }

    pub(super) fn physical(&self, slot: usize) {
        let within = 24;
        let va = VirtAddr(self.va(slot).0 + within);
        let begun = self.slots.access(slot);
        let found = self.space.ops().physical(va);
        let (state, moment) = self.slots.accessed(&begun);
        if let Some(at) = found
            && !self.space.ledger.was_mapped(at.0)
        {
            self.wrong(format!("slot {slot} is at {at:?}, which was never mapped"));
        }
        let right = match state {
            State::Unknown => return,
            State::Empty => found.is_none(),
            State::Page(at, _) => match found {
                Some(found) => found.0 == at.0 + within as u64,
                None => !moment.calm,
            },
        };
        add(&self.counts.exact);
        if !right {
            self.wrong(format!("slot {slot} is {state:?}, and is at {found:?}"));
        }
    }
}
