//! The states of the pages that a workload looks at (T1 to T3): what each must say while contexts change them side by side.

use crate::spin::Spin;
use flagstone_pgtable::format::Access;
use flagstone_types::PhysAddr;

/// How many slots there are.
pub(crate) const SLOTS: usize = 13;

/// What must be at a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Nobody can say: changes overlapped.
    Unknown,
    /// Nothing.
    Empty,
    /// This page with this access.
    Page(PhysAddr, Access),
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    state: State,
    /// Changes under way.
    changing: u32,
    /// Counts beginnings and ends of changes.
    changes: u64,
    /// Disturbances under way.
    disturbed: u32,
    /// Counts beginnings and ends of disturbances.
    disturbances: u64,
}

/// How a slot was when something began.
#[derive(Clone, Copy, Debug, Default)]
struct Before {
    alone: bool,
    changes: u64,
    calm: bool,
    disturbances: u64,
}

impl Before {
    /// What has happened at the slot since.
    fn moment(&self, slot: &Slot) -> Moment {
        Moment {
            alone: self.alone && slot.changes == self.changes,
            calm: self.calm && slot.disturbances == self.disturbances,
        }
    }
}

/// A change, a disturbance, or an access that has begun at the slots `first..first + count`.
#[derive(Debug)]
pub(crate) struct Begun {
    first: usize,
    count: usize,
    before: [Before; SLOTS],
}

/// The slots.
#[derive(Debug)]
pub(crate) struct Slots(Spin<[Slot; SLOTS]>);

impl Slots {
    pub(crate) const fn new() -> Self {
        Self(Spin::new(
            [Slot {
                state: State::Empty,
                changing: 0,
                changes: 0,
                disturbed: 0,
                disturbances: 0,
            }; SLOTS],
        ))
    }

    /// Something begins: `change` is called for each slot, then the slot is written down.
    fn begin(&self, first: usize, count: usize, note: impl Fn(&mut Slot)) -> Begun {
        let mut slots = self.0.lock();
        let mut before = [Before::default(); SLOTS];
        for (slot, before) in slots[first..first + count].iter_mut().zip(&mut before) {
            *before = Before {
                alone: slot.changing == 0,
                changes: slot.changes,
                calm: slot.disturbed == 0,
                disturbances: slot.disturbances,
            };
            note(slot);
        }
        Begun {
            first,
            count,
            before,
        }
    }

    /// A change begins.
    pub(crate) fn change(&self, first: usize, count: usize) -> Begun {
        let mut begun = self.begin(first, count, |slot| {
            slot.changing += 1;
            slot.changes += 1;
        });
        // Its own beginning does not count.
        begun
            .before
            .iter_mut()
            .for_each(|before| before.changes += 1);
        begun
    }

    /// A disturbance begins.
    pub(crate) fn disturb(&self, first: usize, count: usize) -> Begun {
        let mut begun = self.begin(first, count, |slot| {
            slot.disturbed += 1;
            slot.disturbances += 1;
        });
        begun
            .before
            .iter_mut()
            .for_each(|before| before.disturbances += 1);
        begun
    }

    /// An access begins.
    pub(crate) fn access(&self, slot: usize) -> Begun {
        self.begin(slot, 1, |_| {})
    }

    /// A change ends. `next` is asked for every slot: its number, its state if that is known and no other change overlapped, and what overlapped; it says the new
    /// state, which stays unknown if another change overlapped. Says whether nothing overlapped at any of the slots.
    pub(crate) fn changed(
        &self,
        begun: &Begun,
        mut next: impl FnMut(usize, State, Moment) -> State,
    ) -> bool {
        let mut slots = self.0.lock();
        let last = begun.first + begun.count;
        let quiet = slots[begun.first..last]
            .iter()
            .zip(&begun.before)
            .all(|(slot, before)| before.moment(slot).is_quiet());
        for n in 0..begun.count {
            let (slot, before) = (&mut slots[begun.first + n], &begun.before[n]);
            let moment = before.moment(slot);
            let state = if moment.alone {
                slot.state
            } else {
                State::Unknown
            };
            slot.state = next(begun.first + n, state, moment);
            if !moment.alone {
                slot.state = State::Unknown;
            }
            slot.changing -= 1;
            slot.changes += 1;
        }
        quiet
    }

    /// Whether nothing has overlapped a change so far, at all of its slots.
    pub(crate) fn is_quiet(&self, begun: &Begun) -> bool {
        let slots = self.0.lock();
        (0..begun.count).all(|n| begun.before[n].moment(&slots[begun.first + n]).is_quiet())
    }

    /// A disturbance ends; whether nothing else happened at any of its slots meanwhile.
    pub(crate) fn disturbed(&self, begun: &Begun) -> bool {
        let mut slots = self.0.lock();
        let mut quiet = true;
        for n in 0..begun.count {
            let (slot, before) = (&mut slots[begun.first + n], &begun.before[n]);
            quiet &= before.moment(slot).is_quiet();
            slot.disturbed -= 1;
            slot.disturbances += 1;
        }
        quiet
    }

    /// An access ends: the state that its slot had all the time, and whether nothing disturbed it.
    pub(crate) fn accessed(&self, begun: &Begun) -> (State, Moment) {
        let slots = self.0.lock();
        let (slot, before) = (&slots[begun.first], &begun.before[0]);
        let moment = before.moment(slot);
        let state = if moment.alone {
            slot.state
        } else {
            State::Unknown
        };
        (state, moment)
    }

    /// The state now.
    pub(crate) fn state(&self, slot: usize) -> State {
        self.0.lock()[slot].state
    }
}

/// What happened at a slot beside something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    /// No change overlapped.
    pub(crate) alone: bool,
    /// No disturbance overlapped.
    pub(crate) calm: bool,
}

impl Moment {
    pub(crate) const fn is_quiet(self) -> bool {
        self.alone && self.calm
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: State = State::Page(PhysAddr(0x1000), Access::READ);

    #[test]
    fn changes_that_overlap_leave_an_unknown_state_and_one_alone_ends_that() {
        let slots = Slots::new();
        let one = slots.change(0, 2);
        let two = slots.change(1, 1);
        slots.changed(&one, |_, _, _| PAGE);
        slots.changed(&two, |_, _, _| PAGE);
        assert_eq!((slots.state(0), slots.state(1)), (PAGE, State::Unknown));
        let three = slots.change(1, 1);
        slots.changed(&three, |_, state, moment| {
            assert!(state == State::Unknown && moment.alone);
            State::Empty
        });
        assert_eq!(slots.state(1), State::Empty);
    }

    #[test]
    fn an_access_knows_what_overlapped_it() {
        let slots = Slots::new();
        let access = slots.access(0);
        let disturbance = slots.disturb(0, 1);
        assert!(slots.disturbed(&disturbance));
        let (state, moment) = slots.accessed(&access);
        assert!(state == State::Empty && moment.alone && !moment.calm);
        let access = slots.access(0);
        let change = slots.change(0, 1);
        slots.changed(&change, |_, _, _| PAGE);
        assert_eq!(slots.accessed(&access).0, State::Unknown);
        let access = slots.access(0);
        assert_eq!(slots.accessed(&access).0, PAGE);
    }
}
