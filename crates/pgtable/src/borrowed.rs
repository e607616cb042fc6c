//! The kernel's half of every address space: one set of tables, named by the root of every page table.
//!
//! The lender has a table below every entry of the half that it lends, before anybody borrows, and keeps them for good: so a copy of the root's entries never
//! gets out of date. The borrower reaches the lower half only (D9).

use crate::error::Error;
use crate::format::{Canonical, Format, Level};
use crate::level::{P4d, Pgd, Pmd, Pud, Raw, TableLevel};
use crate::mode::{Exclusive, Mode, Shared};
use crate::ops::{Ops, Place, Stop, Visit};
use crate::span::{Reach, reach_of};
use crate::spares::Spares;
use crate::table::{PageTable, TableHost};
use crate::words::{Locked, Table};
use core::sync::atomic::Ordering;
use flagstone_types::AllocError;

/// Links a table at an entry of the root where there is nothing.
struct Fill<'s, 't, 'f, H: TableHost, F: Format>(&'s mut Spares<'t, 'f, H, F>);

impl<H: TableHost, F: Format, M: Mode> Visit<H, F, M> for Fill<'_, '_, '_, H, F> {
    const FLOOR: Level = F::TOP;
    type Out = ();

    fn at<'s, L: TableLevel>(
        &mut self,
        ops: &Ops<'s, '_, H, F, M>,
        place: Place<'s, H, F, L>,
        seen: Raw<F, L>,
    ) -> Result<(), Stop> {
        if seen.is_table() {
            return Ok(());
        }
        if !seen.is_none() {
            return Err(ops.occupied(place.start(), seen).into());
        }
        let Some(spare) = self.0.take::<L::Below>() else {
            return Err(Error::NoTable(AllocError::OutOfMemory).into());
        };
        let linked = ops.link(&place, spare);
        if !matches!(linked, Ok(true)) {
            self.0.put(spare);
        }
        linked.map(|_| ())
    }
}

impl<'f, H: TableHost, F: Format> PageTable<'f, H, F> {
    /// Makes a table below every entry of the root's upper half, which stays from now on, so that others can borrow it.
    ///
    /// # Errors
    /// [`Error::NoSuchEntry`] where the format has a root of its own for the upper half, or none; [`Error::NoTable`]: then what was made stays, empty;
    /// [`Error::Occupied`] if a leaf stands in the root.
    pub fn lend_upper_half(&self) -> Result<(), Error> {
        if !matches!(F::CANONICAL, Canonical::SignExtended) || self.reach() == Reach::Lower {
            return Err(Error::NoSuchEntry(F::TOP));
        }
        self.lends.store(true, Ordering::SeqCst);
        let ops: Ops<'_, 'f, H, F, Shared> = self.shared();
        let below = F::TOP.below().ok_or(Error::NoSuchEntry(F::TOP))?;
        let mut spares = Spares::new(self);
        let entries = F::entries(F::TOP);
        for index in entries / 2..entries {
            spares.add_of(below)?;
            let offset = index as u64 * reach_of::<F>(F::TOP);
            ops.visit(offset, &mut Fill(&mut spares))?;
        }
        Ok(())
    }

    /// Names the tables of another page table's upper half in this one's root.
    ///
    /// # Errors
    /// [`Error::NoSuchEntry`] unless this page table reaches the lower half only and the other lends its upper half.
    ///
    /// # Safety
    /// `lender` is dropped after this page table, and CPUs that this one is active on are in the lender's set ([`PageTable::enter`]).
    pub unsafe fn borrow_upper_half(&mut self, lender: &Self) -> Result<(), Error> {
        let fits = matches!(F::CANONICAL, Canonical::SignExtended)
            && self.reach() == Reach::Lower
            && lender.lends();
        if !fits {
            return Err(Error::NoSuchEntry(F::TOP));
        }
        match F::TOP.get() {
            2 => self.copy_upper_half::<Pmd>(lender),
            3 => self.copy_upper_half::<Pud>(lender),
            4 => self.copy_upper_half::<P4d>(lender),
            _ => self.copy_upper_half::<Pgd>(lender),
        }
        Ok(())
    }

    fn copy_upper_half<L: TableLevel>(&mut self, lender: &Self) {
        // SAFETY: D5: roots stay.
        let (from, to): (Table<'_, H, F, L>, Table<'_, H, F, L>) = unsafe {
            (
                Table::new(&lender.host, lender.root_table()),
                Table::new(&self.host, self.root_table()),
            )
        };
        // SAFETY: E1: the page table is borrowed mutably.
        let to: Locked<'_, H, F, L, Exclusive> = unsafe { Locked::owned(to) };
        let entries = F::entries(L::LEVEL);
        for index in entries / 2..entries {
            if let Some(child) = from.load(index).child() {
                to.link(index, child, self.caps.paravirtual);
            }
        }
    }

    /// Whether its upper half is lent: the tables that the root names stay.
    pub(crate) fn lends(&self) -> bool {
        self.lends.load(Ordering::SeqCst)
    }
}
