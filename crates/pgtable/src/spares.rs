//! Tables that were allocated before anything is linked, so that running out of memory changes nothing.
//!
//! They are private: chained by their first word, which is cleared again when one is taken.

use crate::format::{Format, Level};
use crate::level::{P4d, Pmd, Pte, Pud, TableAt, TableLevel};
use crate::table::{PageTable, TableHost};
use flagstone_types::{AllocError, PhysAddr};

/// Private tables by level. Given back when dropped, which is with no lock held and in no section.
pub(crate) struct Spares<'t, 'f, H: TableHost, F: Format> {
    table: &'t PageTable<'f, H, F>,
    first: [Option<PhysAddr>; 6],
}

impl<'t, 'f, H: TableHost, F: Format> Spares<'t, 'f, H, F> {
    pub(crate) fn new(table: &'t PageTable<'f, H, F>) -> Self {
        Self {
            table,
            first: [None; 6],
        }
    }

    /// Adds one of level `L`.
    pub(crate) fn add<L: TableLevel>(&mut self) -> Result<(), AllocError> {
        let table = self.table.new_table::<L>()?;
        let next = self.first[L::LEVEL.index()].map_or(0, |next| next.0);
        // SAFETY: the table is private.
        unsafe { self.table.host.store_entry(table.0, next) };
        self.first[L::LEVEL.index()] = Some(table.0);
        Ok(())
    }

    /// Adds one of a level that is known at run time.
    pub(crate) fn add_of(&mut self, level: Level) -> Result<(), AllocError> {
        match level.get() {
            1 => self.add::<Pte>(),
            2 => self.add::<Pmd>(),
            3 => self.add::<Pud>(),
            _ => self.add::<P4d>(),
        }
    }

    /// Adds so many of each level.
    pub(crate) fn add_all(&mut self, counts: &[usize; 6]) -> Result<(), AllocError> {
        for level in (1..6).filter_map(Level::new) {
            for _ in 0..counts[level.index()] {
                self.add_of(level)?;
            }
        }
        Ok(())
    }

    /// Takes one of level `L`, all zero.
    pub(crate) fn take<L: TableLevel>(&mut self) -> Option<TableAt<F, L>> {
        let at = self.first[L::LEVEL.index()].take()?;
        // SAFETY: the table is private.
        let next = unsafe { self.table.host.load_entry(at) };
        // SAFETY: as above.
        unsafe { self.table.host.store_entry(at, 0) };
        self.first[L::LEVEL.index()] = (next != 0).then_some(PhysAddr(next));
        Some(TableAt::new(at))
    }

    /// Puts back one that was taken and not linked.
    pub(crate) fn put<L: TableLevel>(&mut self, table: TableAt<F, L>) {
        let next = self.first[L::LEVEL.index()].map_or(0, |next| next.0);
        // SAFETY: the table is private.
        unsafe { self.table.host.store_entry(table.0, next) };
        self.first[L::LEVEL.index()] = Some(table.0);
    }

    fn give_back<L: TableLevel>(&mut self) {
        while let Some(table) = self.take::<L>() {
            self.table.free_private(table);
        }
    }
}

impl<H: TableHost, F: Format> Drop for Spares<'_, '_, H, F> {
    fn drop(&mut self) {
        self.give_back::<Pte>();
        self.give_back::<Pmd>();
        self.give_back::<Pud>();
        self.give_back::<P4d>();
    }
}
