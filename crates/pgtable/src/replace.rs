//! One entry under its lock: look at it, and decide what becomes of it. What faults, migration and swapping are made of.

use crate::error::Error;
use crate::flush;
use crate::format::{Absent, Entry, Format, Leaf, Level};
use crate::gather::{Gather, Owner};
use crate::level::{Raw, TableLevel};
use crate::mode::Mode;
use crate::ops::{Ops, Place, Stop, Visit};
use crate::span::{Span, VirtRange, reach_of};
use crate::stray::take_in_two_steps;
use crate::table::TableHost;
use crate::words::Locked;
use core::marker::PhantomData;
use flagstone_types::VirtAddr;

/// What becomes of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Become {
    /// It stays.
    Same,
    /// Nothing.
    Nothing,
    /// A leaf.
    Leaf(Leaf),
    /// Something absent.
    Absent(Absent),
}

pub(crate) struct Replace<'g, 't, 'f, H: TableHost, F: Format, M: Mode, O: Owner, D, T> {
    gather: &'g mut Gather<'t, 'f, H, F, M, O>,
    decide: D,
    quiet: bool,
    level: PhantomData<T>,
}

impl<'g, 't, 'f, H, F, M, O, D, T> Replace<'g, 't, 'f, H, F, M, O, D, T>
where
    H: TableHost,
    F: Format,
    M: Mode,
    O: Owner,
    D: FnMut(Entry) -> Become,
    T: TableLevel,
{
    pub(crate) fn new(gather: &'g mut Gather<'t, 'f, H, F, M, O>, decide: D, quiet: bool) -> Self {
        Self {
            gather,
            decide,
            quiet,
            level: PhantomData,
        }
    }

    fn new_entry<L: TableLevel>(
        &mut self,
        ops: &Ops<'_, '_, H, F, M>,
        old: Raw<F, L>,
    ) -> Result<Raw<F, L>, Error> {
        let entry = if old.is_none() {
            Entry::None
        } else {
            old.decode()
        };
        match (self.decide)(entry) {
            Become::Same => Ok(old),
            Become::Nothing => Ok(Raw::NONE),
            Become::Leaf(leaf) => {
                ops.check_leaf::<L>(&leaf, 1)?;
                Raw::leaf(&leaf).ok_or(Error::NoSuchEntry(L::LEVEL))
            }
            Become::Absent(absent) => Raw::absent(&absent).ok_or(Error::NoSuchEntry(L::LEVEL)),
        }
    }

    /// Whether the architecture wants `old` to be gone and invalidated before `new` may be there (I5).
    fn must_break<L: TableLevel>(old: Raw<F, L>, new: Raw<F, L>) -> bool {
        if !F::BREAK_BEFORE_MAKE || !old.is_present() || !new.is_present() {
            return false;
        }
        match (old.decode(), new.decode()) {
            (Entry::Leaf(old), Entry::Leaf(new)) => old.at != new.at || old.memory != new.memory,
            _ => true,
        }
    }

    /// Changes the entry; says what it was in the end.
    pub(crate) fn change<L: TableLevel>(
        &mut self,
        ops: &Ops<'_, '_, H, F, M>,
        locked: &Locked<'_, H, F, L, M>,
        index: usize,
        start: u64,
    ) -> Result<Raw<F, L>, Error> {
        let end = start + reach_of::<F>(L::LEVEL);
        let mut old = locked.load(index);
        loop {
            let new = self.new_entry(ops, old)?;
            if new == old {
                return Ok(old);
            }
            if old.is_present() && (ops.table.caps.stray_dirty || Self::must_break(old, new)) {
                let last = self.break_entry(ops, locked, index, start);
                // What the unit has set in the meantime is the caller's to keep or to drop, as below.
                let new = if last == old {
                    Ok(new)
                } else {
                    self.new_entry(ops, last)
                };
                locked.set(index, *new.as_ref().unwrap_or(&last));
                return new.map(|_| last);
            }
            if !old.is_present() && new.is_present() {
                ops.break_before_make(start, end, L::LEVEL);
            }
            if self.quiet || old.is_settled() {
                locked.overwrite(index, new);
            } else if let Err(now) = locked.update(index, old, new) {
                old = now;
                continue;
            }
            if flush::is_needed(old, new) {
                self.gather.note(start, end, L::LEVEL);
            }
            return Ok(old);
        }
    }

    /// Takes the entry out and invalidates at once.
    #[cold]
    fn break_entry<L: TableLevel>(
        &self,
        ops: &Ops<'_, '_, H, F, M>,
        locked: &Locked<'_, H, F, L, M>,
        index: usize,
        start: u64,
    ) -> Raw<F, L> {
        if ops.table.caps.stray_dirty {
            return take_in_two_steps(ops, locked, index, 1, start).1[0];
        }
        let old = locked.exchange(index, Raw::NONE);
        let end = start + reach_of::<F>(L::LEVEL);
        let what = ops
            .table
            .invalidation(Span { start, end }, F::shift(L::LEVEL), false);
        ops.table.flush(&what);
        old
    }
}

impl<H: TableHost, F: Format, M: Mode, O: Owner, D: FnMut(Entry) -> Become, T: TableLevel>
    Visit<H, F, M> for Replace<'_, '_, '_, H, F, M, O, D, T>
{
    const FLOOR: Level = T::LEVEL;
    type Out = Entry;

    fn at<'s, L: TableLevel>(
        &mut self,
        ops: &Ops<'s, '_, H, F, M>,
        place: Place<'s, H, F, L>,
        seen: Raw<F, L>,
    ) -> Result<Entry, Stop> {
        let (start, index) = (place.start(), place.index);
        if L::LEVEL != T::LEVEL {
            return Err(if seen.is_none() {
                Error::NotMapped(ops.address(place.offset)).into()
            } else {
                ops.occupied(start, seen).into()
            });
        }
        if !F::LEAF[L::LEVEL.index()] {
            return Err(Error::NoSuchEntry(L::LEVEL).into());
        }
        let locked = ops.lock(&place)?;
        let now = locked.load(index);
        if now.is_table() {
            return Err(ops.occupied(start, now).into());
        }
        let old = self.change(ops, &locked, index, start)?;
        Ok(if old.is_none() {
            Entry::None
        } else {
            old.decode()
        })
    }
}

impl<'t, 'f, H: TableHost, F: Format, M: Mode> Ops<'t, 'f, H, F, M> {
    /// Shows `decide` the entry of level `L` that translates `at`, under its lock, and makes of it what is decided; says what it was in the end, accessed and
    /// dirty included. `decide` may be asked several times: the unit sets bits meanwhile. What the old entry stood for is the caller's from now on, but CPUs
    /// may use it until `gather` is finished; what the new one stands for is the table's.
    ///
    /// # Errors
    /// [`Error::NotMapped`] if there is no table for it (map something, or use [`Ops::map`]); [`Error::Occupied`] if a table or a larger leaf
    /// is there; what [`Ops::map`] says of a leaf. Nothing has changed.
    pub fn replace<L: TableLevel, O: Owner>(
        &self,
        at: VirtAddr,
        gather: &mut Gather<'t, 'f, H, F, M, O>,
        decide: impl FnMut(Entry) -> Become,
    ) -> Result<Entry, Error> {
        let range = VirtRange::new(at.0, reach_of::<F>(L::LEVEL) as usize);
        let span = self.table.addresses.span(range, L::LEVEL)?;
        let mut replace: Replace<'_, 't, 'f, H, F, M, O, _, L> =
            Replace::new(gather, decide, self.is_quiet());
        self.visit(span.start, &mut replace)
    }
}
