//! A locked table: what a caller holds who works on several entries of one table, one by one.
//!
//! Getting one can fail, because the table may be gone or may have become a huge leaf: the caller skips it or tries again.

use crate::error::Error;
use crate::format::{Entry, Format, Level};
use crate::gather::{Gather, Owner};
use crate::level::{Raw, TableAt, TableLevel};
use crate::mode::{Mode, Section};
use crate::ops::{Ops, Place, Stop, Visit};
use crate::replace::{Become, Replace};
use crate::span::{index_of, reach_of};
use crate::table::TableHost;
use crate::words::{Locked, Table};
use core::fmt;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use flagstone_types::{PhysAddr, VirtAddr};

/// A table of level `L` with its lock held: it is linked, and stays so (D4). While it is held no gather of this context may be finished or make room, nothing
/// allocated, and no other table of the same or a higher level locked.
pub struct TableGuard<'t, 'f, H: TableHost, F: Format, M: Mode, L: TableLevel> {
    ops: Ops<'t, 'f, H, F, M>,
    locked: ManuallyDrop<Locked<'t, H, F, L, M>>,
    /// The offset of its first entry.
    start: u64,
}

impl<H: TableHost, F: Format, M: Mode, L: TableLevel> fmt::Debug
    for TableGuard<'_, '_, H, F, M, L>
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TableGuard")
            .field("start", &self.start())
            .field("level", &L::LEVEL)
            .finish_non_exhaustive()
    }
}

/// Locks the table of level `T` and leaves it locked.
struct Open<T>(PhantomData<T>);

impl<H: TableHost, F: Format, M: Mode, T: TableLevel> Visit<H, F, M> for Open<T> {
    const FLOOR: Level = T::LEVEL;
    type Out = PhysAddr;

    fn at<'s, L: TableLevel>(
        &mut self,
        ops: &Ops<'s, '_, H, F, M>,
        place: Place<'s, H, F, L>,
        seen: Raw<F, L>,
    ) -> Result<PhysAddr, Stop> {
        if L::LEVEL != T::LEVEL {
            return Err(if seen.is_none() {
                Error::NotMapped(ops.address(place.offset)).into()
            } else {
                ops.occupied(place.start(), seen).into()
            });
        }
        let locked = ops.lock(&place)?;
        let at = locked.at().0;
        // The guard unlocks it.
        core::mem::forget(locked);
        Ok(at)
    }
}

impl<'t, 'f, H: TableHost, F: Format, M: Mode> Ops<'t, 'f, H, F, M> {
    /// Locks the table of level `L` that translates `at`.
    ///
    /// # Errors
    /// [`Error::NotMapped`] if there is no such table; [`Error::Occupied`] if a larger leaf is there instead; [`Error::NotCanonical`].
    pub fn lock_entries<L: TableLevel>(
        &self,
        at: VirtAddr,
    ) -> Result<TableGuard<'t, 'f, H, F, M, L>, Error> {
        let offset = self.table.addresses.offset(at)?;
        let at = self.visit(offset, &mut Open(PhantomData::<L>))?;
        // SAFETY: D4: the lock is held, so the table stays linked.
        let table: Table<'t, H, F, L> = unsafe { Table::new(self.host(), TableAt::new(at)) };
        let record = self
            .table
            .record(at)
            .filter(|_| M::SHARED)
            .map(|(_, record)| record);
        // SAFETY: `Open` locked it, or the page table is the caller's alone (E1).
        let locked = unsafe { Locked::already(table, record) };
        let reach = F::shift(L::LEVEL) + F::INDEX_BITS[L::LEVEL.index()];
        Ok(TableGuard {
            ops: Ops::new(self.table),
            locked: ManuallyDrop::new(locked),
            start: offset >> reach << reach,
        })
    }
}

impl<'t, 'f, H: TableHost, F: Format, M: Mode, L: TableLevel> TableGuard<'t, 'f, H, F, M, L> {
    /// How many entries it has.
    #[must_use]
    pub fn entries(&self) -> usize {
        F::entries(L::LEVEL)
    }

    /// The first address that its first entry translates.
    #[must_use]
    pub fn start(&self) -> VirtAddr {
        self.ops.address(self.start)
    }

    /// The index of the entry that translates `at`, if it is one of this table.
    #[must_use]
    pub fn index(&self, at: VirtAddr) -> Option<usize> {
        let offset = self.ops.table.addresses.offset(at).ok()?;
        let reach = reach_of::<F>(L::LEVEL) * self.entries() as u64;
        (offset.wrapping_sub(self.start) < reach).then(|| index_of::<F>(L::LEVEL, offset))
    }

    /// What an entry says now; accessed and dirty may change at any time. [`Error::BadLength`] for an index that the table does not have.
    ///
    /// # Errors
    /// As said.
    pub fn entry(&self, index: usize) -> Result<Entry, Error> {
        self.check(index)?;
        let raw = self.locked.load(index);
        Ok(if raw.is_none() {
            Entry::None
        } else {
            raw.decode()
        })
    }

    /// As [`Ops::replace`], for an entry of this table.
    ///
    /// # Errors
    /// As [`Ops::replace`]; [`Error::BadLength`] for an index that the table does not have.
    pub fn replace<O: Owner>(
        &mut self,
        index: usize,
        gather: &mut Gather<'t, 'f, H, F, M, O>,
        decide: impl FnMut(Entry) -> Become,
    ) -> Result<Entry, Error> {
        self.check(index)?;
        let start = self.start + index as u64 * reach_of::<F>(L::LEVEL);
        let seen = self.locked.load(index);
        if seen.is_table() {
            return Err(self.ops.occupied(start, seen));
        }
        if !F::LEAF[L::LEVEL.index()] {
            return Err(Error::NoSuchEntry(L::LEVEL));
        }
        let quiet = self.ops.is_quiet();
        let mut replace: Replace<'_, 't, 'f, H, F, M, O, _, L> =
            Replace::new(gather, decide, quiet);
        let old = replace.change(&self.ops, &self.locked, index, start)?;
        Ok(if old.is_none() {
            Entry::None
        } else {
            old.decode()
        })
    }

    fn check(&self, index: usize) -> Result<(), Error> {
        if index < self.entries() {
            Ok(())
        } else {
            Err(Error::BadLength(index))
        }
    }
}

impl<H: TableHost, F: Format, M: Mode, L: TableLevel> Drop for TableGuard<'_, '_, H, F, M, L> {
    fn drop(&mut self) {
        // D6: whoever gets the lock next may free the table while this context is still unlocking it.
        let section = Section::<H>::begin::<M>(self.ops.host());
        // SAFETY: it is not used again.
        unsafe { ManuallyDrop::drop(&mut self.locked) };
        drop(section);
    }
}
