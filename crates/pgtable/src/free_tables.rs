//! Taking empty tables out of the tree, bottom-up (D3).

use crate::error::Error;
use crate::format::{Format, Level};
use crate::gather::{Gather, Owner};
use crate::level::{P4d, Pgd, Pmd, Pud, Raw, TableLevel};
use crate::mode::Mode;
use crate::ops::{Ops, Place, Stop, Visit};
use crate::span::{Span, VirtRange, reach_of};
use crate::table::TableHost;
use core::marker::PhantomData;
use core::sync::atomic::Ordering;
use flagstone_host::Event;

/// Takes out the table that an entry of level `T` names, if it is empty.
struct Unlink<'g, 't, 'f, H: TableHost, F: Format, M: Mode, O: Owner, T> {
    gather: &'g mut Gather<'t, 'f, H, F, M, O>,
    level: PhantomData<T>,
}

impl<H: TableHost, F: Format, M: Mode, O: Owner, T: TableLevel> Visit<H, F, M>
    for Unlink<'_, '_, '_, H, F, M, O, T>
{
    const FLOOR: Level = T::LEVEL;
    /// The offset behind what the entry translates.
    type Out = u64;

    fn at<'s, L: TableLevel>(
        &mut self,
        ops: &Ops<'s, '_, H, F, M>,
        place: Place<'s, H, F, L>,
        seen: Raw<F, L>,
    ) -> Result<u64, Stop> {
        let start = place.start();
        let end = start + reach_of::<F>(L::LEVEL);
        if L::LEVEL != T::LEVEL || !seen.is_table() {
            return Ok(end);
        }
        let parent = ops.lock(&place)?;
        let Some(child) = parent.load(place.index).child() else {
            return Ok(end);
        };
        let table = ops.lock_child(&place, child)?;
        if !table.is_empty() {
            return Ok(end);
        }
        parent.unlink(place.index, ops.table.caps.paravirtual);
        drop(table);
        drop(parent);
        ops.table.linked.fetch_sub(1, Ordering::Relaxed);
        ops.host().count(Event::PgtableUnlink, 1);
        self.gather.own_table(child.0, start, end, L::LEVEL);
        Ok(end)
    }
}

impl<'t, 'f, H: TableHost, F: Format, M: Mode> Ops<'t, 'f, H, F, M> {
    /// Takes every empty table out that translates part of a range. They are freed when `gather` is finished and a grace period has passed.
    ///
    /// # Errors
    /// A range that is unaligned or not translated here.
    pub fn free_tables<O: Owner>(
        &self,
        range: VirtRange,
        gather: &mut Gather<'t, 'f, H, F, M, O>,
    ) -> Result<(), Error> {
        let span = self.table.addresses.span(range, Level::PTE)?;
        self.free_tables_of(span, gather)
    }

    pub(crate) fn free_tables_of<O: Owner>(
        &self,
        span: Span,
        gather: &mut Gather<'t, 'f, H, F, M, O>,
    ) -> Result<(), Error> {
        self.free_named_by::<Pmd, O>(span, gather)?;
        self.free_named_by::<Pud, O>(span, gather)?;
        self.free_named_by::<P4d, O>(span, gather)?;
        self.free_named_by::<Pgd, O>(span, gather)
    }

    /// Takes out what entries of level `T` name.
    fn free_named_by<T: TableLevel, O: Owner>(
        &self,
        span: Span,
        gather: &mut Gather<'t, 'f, H, F, M, O>,
    ) -> Result<(), Error> {
        // D9: what is lent stays.
        if T::LEVEL > F::TOP || (T::LEVEL == F::TOP && self.table.lends()) {
            return Ok(());
        }
        let mut at = span.start;
        while at < span.end {
            gather.reserve(1);
            let mut unlink = Unlink {
                gather,
                level: PhantomData::<T>,
            };
            at = self.visit(at, &mut unlink)?;
        }
        Ok(())
    }
}
