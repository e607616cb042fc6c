//! What was written to words of page tables, by whom and from where: the evidence of every report.
//!
//! A bounded ring; the records of one word are chained, newest first. *Events* order everything that the unit sees: each read of an
//! entry, each write, each invalidation has its own number, also where no step lies between them.

use core::fmt;
use core::hash::{BuildHasherDefault, Hasher};
use core::panic::Location;
use std::collections::HashMap;

/// How a word was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Writer {
    /// A plain store.
    Store,
    /// A store of one half.
    HalfStore,
    /// An exchange.
    Exchange,
    /// A compare-exchange.
    CompareExchange,
    /// A call to the hypervisor.
    Hypercall,
    /// The unit set the accessed bit.
    UnitAccessed,
    /// The unit set the dirty bit.
    UnitDirty,
    /// The unit set bits in an entry that was no longer present (Knights Landing).
    UnitStray,
}

impl Writer {
    /// Whether the unit wrote.
    #[must_use]
    pub const fn is_unit(self) -> bool {
        matches!(self, Self::UnitAccessed | Self::UnitDirty | Self::UnitStray)
    }

    /// Whether software wrote without learning what was there before.
    pub(crate) const fn is_blind(self) -> bool {
        matches!(self, Self::Store | Self::HalfStore | Self::Hypercall)
    }
}

/// One write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    /// Before.
    pub(crate) old: u64,
    /// After.
    pub(crate) new: u64,
    /// Its place in the order of events.
    pub(crate) event: u64,
    /// The step of the machine.
    pub(crate) step: u64,
    /// On this CPU.
    pub(crate) cpu: u32,
    /// By this context; 0 is the code outside of a run.
    pub(crate) context: usize,
    /// How.
    pub(crate) by: Writer,
    /// The caller, if software wrote.
    pub(crate) place: Option<&'static Location<'static>>,
    previous: Option<u64>,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "step {:>6} CPU {:>2} {:?} {:#x} -> {:#x}",
            self.step, self.cpu, self.by, self.old, self.new
        )?;
        if self.context > 0 {
            write!(f, " task {}", self.context - 1)?;
        }
        match self.place {
            Some(place) => write!(f, " at {}:{}", place.file(), place.line()),
            None => Ok(()),
        }
    }
}

/// Spreads addresses; nothing depends on its order, since maps that use it are never walked.
#[derive(Default, Debug, Clone, Copy)]
pub(crate) struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, n: u64) {
        let mixed = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 29;
    }

    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }
}

/// A map from addresses or frame numbers that is only looked up in.
pub(crate) type AddressMap<T> = HashMap<u64, T, BuildHasherDefault<AddressHasher>>;

/// Records that are kept: the newest so many.
const KEPT: u64 = 1 << 15;

/// The writes of one machine.
#[derive(Debug, Default)]
pub(crate) struct History {
    records: Vec<Record>,
    next: u64,
    last: AddressMap<u64>,
}

impl History {
    #[allow(
        clippy::too_many_arguments,
        reason = "the fields of a record, said once"
    )]
    pub(crate) fn push(
        &mut self,
        at: u64,
        (old, new): (u64, u64),
        (event, step): (u64, u64),
        cpu: u32,
        context: usize,
        by: Writer,
        place: Option<&'static Location<'static>>,
    ) {
        let sequence = self.next;
        self.next += 1;
        let record = Record {
            old,
            new,
            event,
            step,
            cpu,
            context,
            by,
            place,
            previous: self.last.insert(at, sequence),
        };
        let slot = (sequence % KEPT) as usize;
        if slot < self.records.len() {
            self.records[slot] = record;
        } else {
            self.records.push(record);
        }
    }

    fn get(&self, sequence: u64) -> Option<&Record> {
        if sequence + KEPT < self.next {
            return None;
        }
        self.records.get((sequence % KEPT) as usize)
    }

    /// The writes to the word at `at`, newest first, as far as they are kept.
    pub(crate) fn of(&self, at: u64) -> impl Iterator<Item = &Record> {
        let mut next = self.last.get(&at).copied();
        core::iter::from_fn(move || {
            let record = self.get(next?)?;
            next = record.previous;
            Some(record)
        })
    }

    /// What the word at `at` held at `event`, given what it holds now.
    pub(crate) fn value_at(&self, at: u64, event: u64, now: u64) -> u64 {
        let mut value = now;
        for record in self.of(at) {
            if record.event <= event {
                return record.new;
            }
            value = record.old;
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_the_past_are_found_and_old_records_make_room() {
        let mut history = History::default();
        for n in 0..3 * KEPT {
            let at = 8 * (n % 3);
            history.push(at, (n, n + 3), (n, n), 0, 0, Writer::Store, None);
        }
        assert_eq!(history.records.len() as u64, KEPT);
        let newest = history.of(0).next().unwrap().event;
        assert_eq!(newest, 3 * KEPT - 3);
        assert_eq!(history.value_at(0, newest, 99), newest + 3);
        assert_eq!(history.value_at(0, newest - 1, 99), newest);
        assert_eq!(history.of(0).count() as u64, KEPT / 3);
        assert_eq!(history.of(1).count(), 0);
    }
}
