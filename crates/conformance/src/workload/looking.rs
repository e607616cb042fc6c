//! Accesses and lookups, each held against what the books know.

use super::places::{region_of, slots_of};
use super::{Work, add};
use crate::platform::{Platform, Seen, Touch, Who};
use crate::slots::{SLOTS, State};
use crate::space::{allows, said};
use alloc::format;
use core::sync::atomic::Ordering;
use flagstone_pgtable::format::{Access, Marks};
use flagstone_types::{PhysAddr, VirtAddr};

impl<P: Platform> Work<'_, P> {
    pub(super) fn lookup(&self, slot: usize) {
        let va = self.va(slot);
        let begun = self.slots.access(slot);
        let found = self.space.ops().lookup(va);
        let (state, moment) = self.slots.accessed(&begun);
        let found = match found {
            Ok(found) => found,
            Err(error) => return self.wrong(said("looking up", &error)),
        };
        if let Some(at) = found.physical(va)
            && !self.space.ledger.was_mapped(at.0)
        {
            self.wrong(format!("slot {slot}: {found:?} was never mapped"));
        }
        if let Some(leaf) = found.leaf()
            && leaf.marks().contains(Marks::SHADOW)
        {
            self.wrong(format!("slot {slot} became a shadow stack's: {found:?}"));
        }
        let right = match (state, found.leaf()) {
            (State::Unknown, _) => return,
            (State::Empty, leaf) => leaf.is_none(),
            (State::Page(..), None) => !moment.calm,
            (State::Page(at, access), Some(leaf)) => {
                found.physical(va) == Some(at)
                    && leaf.access().contains(Access::WRITE) == access.contains(Access::WRITE)
            }
        };
        add(&self.counts.exact);
        if !right {
            self.wrong(format!("slot {slot} is {state:?}, and {found:?} was found"));
        }
    }

    pub(super) fn walk(&self) {
        for range in self.everything() {
            let result = self.space.ops().walk(range, |found| {
                let right = found.leaf().is_some_and(|leaf| {
                    self.space.ledger.was_mapped(leaf.at.0) && !leaf.marks().contains(Marks::SHADOW)
                });
                if !right {
                    self.wrong(format!("{found:?} was never mapped"));
                }
            });
            self.space
                .findings
                .check(result.map_err(|e| said("walking", &e)));
        }
    }

    pub(super) fn touch(&self, slot: usize, touch: Touch) {
        let page = self.va(slot);
        let at = match touch {
            Touch::Write(_) => VirtAddr(page.0 + 8),
            _ => page,
        };
        let since = self.space.ledger.now();
        let begun = self.slots.access(slot);
        let result = self.space.touch_beside(at, Who::User, touch, |note| {
            // A unit that sets bits of entries that are gone makes it break the leaf.
            let (first, count) = slots_of(region_of(slot));
            let begun = self.slots.disturb(first, count);
            note();
            self.slots.disturbed(&begun);
        });
        let (state, _) = self.slots.accessed(&begun);
        add(if result.is_ok() {
            &self.counts.allowed
        } else {
            &self.counts.refused
        });
        if state != State::Unknown {
            add(&self.counts.exact);
        }
        if let Ok(seen) = result {
            self.check_seen(slot, touch, seen, state, since);
        } else if let State::Page(leads, access) = state
            && allows(access, Marks::empty(), Who::User, touch)
        {
            self.wrong(format!(
                "slot {slot} leads to {leads:?} with {access:?}, and {touch:?} is refused: {result:?}"
            ));
        }
    }

    /// What an access that was allowed must have seen.
    pub(super) fn check_seen(
        &self,
        slot: usize,
        touch: Touch,
        seen: Seen,
        state: State,
        since: u64,
    ) {
        let word = seen.word.filter(|_| touch == Touch::Read);
        let space = &self.space;
        let known = space.ledger.check_seen(seen.at, word, since);
        space
            .findings
            .check(known.map_err(|text| format!("slot {slot}, {touch:?}: {text}")));
        let State::Page(leads, access) = state else {
            if state == State::Empty {
                self.wrong(format!("slot {slot} is empty, and {touch:?} saw {seen:?}"));
            }
            return;
        };
        let offset = if matches!(touch, Touch::Write(_)) {
            8
        } else {
            0
        };
        let leads = PhysAddr(leads.0 + offset);
        let there = space.platform.word(leads);
        let right = match (word, there) {
            (Some(word), Some(there)) => there.load(Ordering::Relaxed) == word,
            (None, Some(there)) if offset != 0 => there.load(Ordering::Relaxed) != 0,
            _ => true,
        };
        let right = right
            && seen.at.is_none_or(|at| at == leads)
            && allows(access, Marks::empty(), Who::User, touch);
        // The page may have gone since the access, but not if this is still its state.
        if !right && self.slots.state(slot) == state {
            self.wrong(format!(
                "slot {slot} is {state:?}, and {touch:?} saw {seen:?}"
            ));
        }
    }

    /// That library and platform say of every slot what its state is, when all is quiet.
    pub(super) fn check_states(&self) {
        for slot in 0..SLOTS {
            let va = self.va(slot);
            let found = self.space.ops().lookup(va);
            let found = found.map(|found| found.physical(va));
            let right = match self.slots.state(slot) {
                State::Unknown => continue,
                State::Empty => found == Ok(None),
                State::Page(at, _) => found == Ok(Some(at)),
            };
            let state = self.slots.state(slot);
            assert!(right, "slot {slot} is {state:?}, and {found:?} is found");
        }
        let mut seen = [None; SLOTS];
        let has_own = self
            .space
            .platform
            .each_leaf(self.space.table(), &mut |leaf| {
                for (slot, seen) in seen.iter_mut().enumerate() {
                    let offset = self.va(slot).0.wrapping_sub(leaf.va.0);
                    if offset < leaf.bytes.0 {
                        *seen = Some((PhysAddr(leaf.at.0 + offset as u64), leaf.user_writes));
                    }
                }
            });
        for (slot, &seen) in seen.iter().enumerate().filter(|_| has_own) {
            let state = self.slots.state(slot);
            let right = match state {
                State::Unknown => true,
                // A leaf without access may be no leaf to the unit.
                State::Page(_, access) if !access.contains(Access::READ) => true,
                State::Empty => seen.is_none(),
                // Some formats say the right to write and that it was used in one.
                State::Page(at, access) => seen.is_some_and(|(leads, writes)| {
                    leads == at && (!writes || access.contains(Access::WRITE))
                }),
            };
            assert!(
                right,
                "slot {slot} is {state:?}, and the tables say {seen:?}"
            );
        }
    }
}
