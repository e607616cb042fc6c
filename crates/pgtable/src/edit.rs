//! Changing the entries of a range: one lock and one validation for the run of entries that stand in one table.

use crate::error::Error;
use crate::format::{Format, Level};
use crate::level::{Raw, TableLevel};
use crate::mode::Mode;
use crate::ops::{Ops, Place, Stop, Visit};
use crate::span::{Span, reach_of};
use crate::table::TableHost;
use crate::words::Locked;

/// What an operation does with the entries of a run.
pub(crate) trait Edit<H: TableHost, F: Format, M: Mode> {
    /// Whether it is short and calls nothing that is not known, so that it may be a quiet run.
    const SHORT: bool;

    /// How many entries it can take at once. Called with no lock held and in no section.
    fn room(&mut self, wanted: usize) -> usize;

    /// Works on `count` entries of a locked table from `first` on, the first one at `offset`; they reach nowhere beyond the range. Stops before one
    /// that names a table. `quiet`: no unit uses the page table meanwhile. Says how many it has done.
    fn edit<L: TableLevel>(
        &mut self,
        ops: &Ops<'_, '_, H, F, M>,
        locked: &Locked<'_, H, F, L, M>,
        first: usize,
        count: usize,
        offset: u64,
        quiet: bool,
    ) -> usize;
}

struct Run<'e, E> {
    end: u64,
    room: usize,
    edit: &'e mut E,
}

impl<H: TableHost, F: Format, M: Mode, E: Edit<H, F, M>> Visit<H, F, M> for Run<'_, E> {
    const FLOOR: Level = Level::PTE;
    /// The offset behind what was done.
    type Out = u64;

    #[inline]
    fn at<'s, L: TableLevel>(
        &mut self,
        ops: &Ops<'s, '_, H, F, M>,
        place: Place<'s, H, F, L>,
        seen: Raw<F, L>,
    ) -> Result<u64, Stop> {
        let size = reach_of::<F>(L::LEVEL);
        let start = place.start();
        if seen.is_none() {
            return match ops.nothing_from(&place, self.end)? {
                0 => Err(Stop::Again),
                nothing => Ok(start + size * nothing as u64),
            };
        }
        if !F::LEAF[L::LEVEL.index()] {
            // There is nothing here but tables.
            return Err(ops.corrupt(&place, seen).into());
        }
        // Entries that begin and end within the range.
        let whole = ((self.end - start) / size) as usize;
        if L::LEVEL != Level::PTE && (whole == 0 || start != place.offset) {
            return Err(cut(ops, &place, seen));
        }
        let count = place.count_to(self.end).min(whole).min(self.room);
        let locked = ops.lock(&place)?;
        let run = ops.begin_quiet(if E::SHORT { count } else { 0 });
        let quiet = run.is_quiet();
        let done = self
            .edit
            .edit(ops, &locked, place.index, count, start, quiet);
        drop(run);
        drop(locked);
        if done == 0 {
            return Err(Stop::Again);
        }
        Ok(start + size * done as u64)
    }
}

#[cold]
fn cut<H: TableHost, F: Format, M: Mode, L: TableLevel>(
    ops: &Ops<'_, '_, H, F, M>,
    place: &Place<'_, H, F, L>,
    seen: Raw<F, L>,
) -> Stop {
    if matches!(seen.decode(), crate::format::Entry::Bad(_)) {
        return ops.corrupt(place, seen).into();
    }
    Stop::Fail(Error::CutsHuge {
        at: ops.address(place.start()),
        level: L::LEVEL,
    })
}

impl<H: TableHost, F: Format, M: Mode> Ops<'_, '_, H, F, M> {
    /// How many entries say nothing, from a place on. Where leaves may stand that is asked under the lock: its holder may have broken a leaf for a moment (I8).
    #[inline]
    pub(crate) fn nothing_from<L: TableLevel>(
        &self,
        place: &Place<'_, H, F, L>,
        end: u64,
    ) -> Result<usize, Stop> {
        let locked = if F::LEAF[L::LEVEL.index()] {
            Some(self.lock(place)?)
        } else {
            None
        };
        let count = place.count_to(end);
        let mut n = 0;
        while n < count && place.table.load(place.index + n).is_none() {
            n += 1;
        }
        drop(locked);
        Ok(n)
    }

    /// Does `edit` to every entry of a span. Stops at an error; what came before it is done.
    #[inline]
    pub(crate) fn edit<E: Edit<H, F, M>>(&self, span: Span, edit: &mut E) -> Result<(), Error> {
        let mut at = span.start;
        while at < span.end {
            let left = ((span.end - at) >> F::PAGE_SHIFT) as usize;
            let wanted = left.min(F::entries(Level::PTE));
            let mut run = Run {
                end: span.end,
                room: edit.room(wanted),
                edit,
            };
            at = self.visit(at, &mut run)?;
        }
        Ok(())
    }
}
