//! Which leaves were used lately.

use crate::edit::Edit;
use crate::error::Error;
use crate::format::{Entry, Format, Leaf, Level};
use crate::level::{Raw, TableLevel};
use crate::mode::Mode;
use crate::ops::{Ops, Place, Stop, Visit};
use crate::span::{Span, VirtRange, reach_of};
use crate::table::TableHost;
use crate::words::Locked;
use flagstone_types::VirtAddr;

struct Clear<C> {
    each: C,
    young: usize,
}

impl<H: TableHost, F: Format, M: Mode, C: FnMut(u64, Level, Leaf)> Edit<H, F, M> for Clear<C> {
    const SHORT: bool = false;

    #[inline]
    fn room(&mut self, wanted: usize) -> usize {
        wanted
    }

    #[inline]
    fn edit<L: TableLevel>(
        &mut self,
        ops: &Ops<'_, '_, H, F, M>,
        locked: &Locked<'_, H, F, L, M>,
        first: usize,
        count: usize,
        offset: u64,
        quiet: bool,
    ) -> usize {
        let size = reach_of::<F>(L::LEVEL);
        for n in 0..count {
            let mut old = locked.load(first + n);
            if old.is_table() {
                return n;
            }
            while old.is_present() && F::is_young(L::LEVEL, old.bits()) {
                let new = Raw::from_bits(F::with_young(L::LEVEL, old.bits(), false));
                if quiet || (old.is_settled() && !ops.table.caps.stray_dirty) {
                    locked.overwrite(first + n, new);
                } else if let Err(now) = locked.update(first + n, old, new) {
                    old = now;
                    continue;
                }
                self.young += 1;
                if let Entry::Leaf(leaf) = old.decode() {
                    (self.each)(offset + n as u64 * size, L::LEVEL, leaf);
                }
                break;
            }
        }
        count
    }
}

/// Tests and clears the young bit of an entry that names a table of the first level.
struct ClearTable;

impl<H: TableHost, F: Format, M: Mode> Visit<H, F, M> for ClearTable {
    const FLOOR: Level = Level::PMD;
    /// Whether the table may hold young leaves, and the offset behind what it translates.
    type Out = (bool, u64);

    fn at<'s, L: TableLevel>(
        &mut self,
        ops: &Ops<'s, '_, H, F, M>,
        place: Place<'s, H, F, L>,
        seen: Raw<F, L>,
    ) -> Result<(bool, u64), Stop> {
        let end = place.start() + reach_of::<F>(L::LEVEL);
        if !seen.is_table() {
            return Ok((!seen.is_none(), end));
        }
        let is_young = |raw: Raw<F, L>| matches!(raw.decode(), Entry::Table { young: true, .. });
        if !is_young(seen) {
            return Ok((false, end));
        }
        let locked = ops.lock(&place)?;
        let mut old = locked.load(place.index);
        while old.is_table() && is_young(old) {
            let new = Raw::from_bits(F::with_young(L::LEVEL, old.bits(), false));
            match locked.update(place.index, old, new) {
                Ok(()) => break,
                Err(now) => old = now,
            }
        }
        Ok((true, end))
    }
}

impl<H: TableHost, F: Format, M: Mode> Ops<'_, '_, H, F, M> {
    /// Clears the young bit of every leaf of a range and tells `each` of those that were young: address, level, the leaf as it was. The table is locked
    /// while `each` runs. Says how many were young. Translations stay where they are cached (I1), so a leaf that is used all the time may look old until its
    /// translation was dropped.
    ///
    /// # Errors
    /// As [`Ops::unmap`].
    #[inline]
    pub fn test_and_clear_young(
        &self,
        range: VirtRange,
        mut each: impl FnMut(VirtAddr, Level, Leaf),
    ) -> Result<usize, Error> {
        let span = self.table.addresses.span(range, Level::PTE)?;
        self.check_end(span)?;
        let addresses = self.table.addresses;
        let each = |offset, level, leaf| each(addresses.address(offset), level, leaf);
        let mut clear = Clear { each, young: 0 };
        self.edit(span, &mut clear)?;
        Ok(clear.young)
    }

    /// Whether [`Ops::skim_young`] can skip anything: entries that name tables have a young bit, the unit sets it, and they may be written.
    #[must_use]
    pub fn can_skip_tables(&self) -> bool {
        let caps = &self.table.caps;
        F::TABLE_YOUNG && caps.accessed_table && !caps.paravirtual && !F::HALVES
    }

    /// As [`Ops::test_and_clear_young`], but tables through which no walk has gone since the last call are skipped, where the
    /// machine knows that ([`Ops::can_skip_tables`]). The young bits of entries that name tables of pages are cleared.
    ///
    /// # Errors
    /// As [`Ops::unmap`].
    pub fn skim_young(
        &self,
        range: VirtRange,
        mut each: impl FnMut(VirtAddr, Level, Leaf),
    ) -> Result<usize, Error> {
        if !self.can_skip_tables() {
            return self.test_and_clear_young(range, each);
        }
        let span = self.table.addresses.span(range, Level::PTE)?;
        self.check_end(span)?;
        let addresses = self.table.addresses;
        let each = |offset, level, leaf| each(addresses.address(offset), level, leaf);
        let mut clear = Clear { each, young: 0 };
        let mut at = span.start;
        while at < span.end {
            let (used, end) = self.visit(at, &mut ClearTable)?;
            let end = end.min(span.end);
            if used {
                self.edit(Span { start: at, end }, &mut clear)?;
            }
            at = end;
        }
        Ok(clear.young)
    }
}
