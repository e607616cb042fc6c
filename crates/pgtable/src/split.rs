//! Splitting a huge leaf into a table of leaves one level below.

use crate::error::Error;
use crate::format::{Entry, Format, Level};
use crate::level::{P4d, Pmd, Pud, Raw, TableAt, TableLevel};
use crate::mode::{Exclusive, Mode};
use crate::ops::{Ops, Place, Stop, Visit};
use crate::span::{Span, reach_of};
use crate::spares::Spares;
use crate::stray::take_in_two_steps;
use crate::table::TableHost;
use crate::words::{Locked, Table};
use core::marker::PhantomData;
use core::sync::atomic::Ordering;
use flagstone_host::Event;
use flagstone_types::VirtAddr;

/// Whether the leaf may be gone for a moment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Through nothing and an invalidation (I5).
    Break,
    /// In one step: for mappings that are in use all the time.
    InPlace,
}

struct Split<'s, 't, 'f, H: TableHost, F: Format, T> {
    spares: &'s mut Spares<'t, 'f, H, F>,
    way: Way,
    level: PhantomData<T>,
}

/// Fills a private table with the parts of a leaf, `first` being the first one.
fn fill<H: TableHost, F: Format, L: TableLevel>(host: &H, table: TableAt<F, L>, first: Raw<F, L>) {
    // SAFETY: the table is private.
    let words: Table<'_, H, F, L> = unsafe { Table::new(host, table) };
    // SAFETY: as above.
    let words: Locked<'_, H, F, L, Exclusive> = unsafe { Locked::owned(words) };
    let mut raw = first;
    for index in 0..F::entries(L::LEVEL) {
        words.set(index, raw);
        raw = raw.next();
    }
}

impl<'t, 'f, H: TableHost, F: Format, T: TableLevel> Split<'_, 't, 'f, H, F, T> {
    /// Takes the leaf out, for good: nothing uses it any more and its bits are final.
    fn take_leaf<M: Mode, L: TableLevel>(
        ops: &Ops<'_, '_, H, F, M>,
        locked: &Locked<'_, H, F, L, M>,
        index: usize,
        start: u64,
    ) -> Raw<F, L> {
        if ops.table.caps.stray_dirty {
            let (_, taken) = take_in_two_steps(ops, locked, index, 1, start);
            return taken[0];
        }
        let old = locked.exchange(index, Raw::NONE);
        if old.is_present() {
            let end = start + reach_of::<F>(L::LEVEL);
            let span = Span { start, end };
            let what = ops.table.invalidation(span, F::shift(L::LEVEL), false);
            ops.table.flush(&what);
        }
        old
    }

    /// Puts the table in the place of the leaf in one step, whatever bits the unit sets meanwhile.
    fn exchange_in_place<M: Mode, L: TableLevel>(
        ops: &Ops<'_, '_, H, F, M>,
        locked: &Locked<'_, H, F, L, M>,
        index: usize,
        start: u64,
        child: TableAt<F, L::Below>,
    ) -> Result<(), Error> {
        let mut old = locked.load(index);
        loop {
            fill(ops.host(), child, first_part(ops, old, start)?);
            match locked.update(index, old, Raw::table(child)) {
                Ok(()) => break,
                Err(now) => old = now,
            }
        }
        let end = start + reach_of::<F>(L::LEVEL);
        let what = ops
            .table
            .invalidation(Span { start, end }, F::shift(L::LEVEL), true);
        ops.table.flush(&what);
        Ok(())
    }
}

/// The first part of a leaf, or why it can not be split.
fn first_part<H: TableHost, F: Format, M: Mode, L: TableLevel>(
    ops: &Ops<'_, '_, H, F, M>,
    raw: Raw<F, L>,
    start: u64,
) -> Result<Raw<F, L::Below>, Error> {
    let Entry::Leaf(leaf) = raw.decode() else {
        return Err(Error::NotMapped(ops.address(start)));
    };
    let level = L::Below::LEVEL;
    let part = F::first_part(L::LEVEL, raw.bits()).ok_or(Error::Unsupported { level, leaf })?;
    Ok(Raw::from_bits(part))
}

impl<H: TableHost, F: Format, M: Mode, T: TableLevel> Visit<H, F, M>
    for Split<'_, '_, '_, H, F, T>
{
    const FLOOR: Level = T::LEVEL;
    type Out = ();

    fn at<'s, L: TableLevel>(
        &mut self,
        ops: &Ops<'s, '_, H, F, M>,
        place: Place<'s, H, F, L>,
        seen: Raw<F, L>,
    ) -> Result<(), Stop> {
        let (start, index) = (place.start(), place.index);
        if L::LEVEL != T::LEVEL || !F::LEAF[L::LEVEL.index()] {
            return Err(Error::NotMapped(ops.address(start)).into());
        }
        if seen.is_table() {
            return Ok(());
        }
        let Some(child) = self.spares.take::<L::Below>() else {
            return Err(Error::NoTable(flagstone_types::AllocError::OutOfMemory).into());
        };
        let result = self.split(ops, &place, start, index, child);
        if !matches!(result, Ok(true)) {
            self.spares.put(child);
        }
        result.map(|_| ())
    }
}

impl<'t, 'f, H: TableHost, F: Format, T: TableLevel> Split<'_, 't, 'f, H, F, T> {
    /// Whether `child` was linked: not if the leaf is a table by now.
    fn split<M: Mode, L: TableLevel>(
        &self,
        ops: &Ops<'_, '_, H, F, M>,
        place: &Place<'_, H, F, L>,
        start: u64,
        index: usize,
        child: TableAt<F, L::Below>,
    ) -> Result<bool, Stop> {
        let locked = ops.lock(place)?;
        let seen = locked.load(index);
        if seen.is_table() {
            return Ok(false);
        }
        first_part(ops, seen, start)?;
        if self.way == Way::InPlace {
            Self::exchange_in_place(ops, &locked, index, start, child)?;
        } else {
            let old = Self::take_leaf(ops, &locked, index, start);
            match first_part(ops, old, start) {
                Ok(first) => fill(ops.host(), child, first),
                Err(error) => {
                    // Only bits that the unit sets have changed, so this does not happen; the leaf stays all the same.
                    locked.set(index, old);
                    return Err(error.into());
                }
            }
            locked.link(index, child, ops.table.caps.paravirtual);
        }
        ops.table.linked.fetch_add(1, Ordering::Relaxed);
        drop(locked);
        ops.host().count(Event::PgtableLink, 1);
        match L::LEVEL {
            Level::PMD => ops.host().count(Event::ThpSplitPmd, 1),
            Level::PUD => ops.host().count(Event::ThpSplitPud, 1),
            _ => {}
        }
        Ok(true)
    }
}

impl<H: TableHost, F: Format, M: Mode> Ops<'_, '_, H, F, M> {
    fn split_leaf<T: TableLevel>(&self, offset: u64, way: Way) -> Result<(), Error> {
        let mut spares = Spares::new(self.table);
        spares.add::<T::Below>()?;
        let mut split = Split {
            spares: &mut spares,
            way,
            level: PhantomData::<T>,
        };
        self.visit(offset, &mut split)
    }

    fn split_by(&self, at: VirtAddr, way: Way) -> Result<(), Error> {
        let found = self.lookup(at)?;
        let offset = self.table.addresses.offset(at)?;
        match (found.entry, found.level) {
            (Entry::Leaf(_), Level::PTE) => Ok(()),
            (Entry::Leaf(_), Level::PMD) => self.split_leaf::<Pmd>(offset, way),
            (Entry::Leaf(_), Level::PUD) => self.split_leaf::<Pud>(offset, way),
            (Entry::Leaf(_), Level::P4D) => self.split_leaf::<P4d>(offset, way),
            _ => Err(Error::NotMapped(at)),
        }
    }

    /// Splits the huge leaf that translates an address into leaves of the level below, which say the same, accessed and dirty included. A leaf of a
    /// page stays as it is. Invalidates at once; for a moment nothing is there.
    ///
    /// # Errors
    /// [`Error::NotMapped`]; [`Error::NoTable`]; [`Error::Unsupported`] if the level below can not say it. Nothing has changed.
    pub fn split(&self, at: VirtAddr) -> Result<(), Error> {
        self.split_by(at, Way::Break)
    }

    /// That a table and a leaf may take each other's place in one step.
    pub(crate) fn check_in_place(&self) -> Result<(), Error> {
        let caps = &self.table.caps;
        if F::BREAK_BEFORE_MAKE || caps.paravirtual || caps.stray_dirty {
            return Err(Error::NoSuchEntry(Level::PMD));
        }
        Ok(())
    }

    /// As [`Ops::split`], but the translation is there all the time: for the kernel's own mappings, on architectures that allow it.
    ///
    /// # Errors
    /// As [`Ops::split`]; [`Error::NoSuchEntry`] if the architecture wants it broken first, or a hypervisor or the unit's errata leave no single step.
    pub fn split_in_place(&self, at: VirtAddr) -> Result<(), Error> {
        self.check_in_place()?;
        self.split_by(at, Way::InPlace)
    }

    /// Splits until a leaf ends at an address: what [`Ops::unmap`] and the like want of the ends of a range. Nothing is done where nothing is mapped.
    ///
    /// # Errors
    /// As [`Ops::split`]; leaves of higher levels may be split then. An address that is no multiple of a page.
    pub fn split_at(&self, at: VirtAddr) -> Result<(), Error> {
        let (value, shift) = (at.0 as u64, F::PAGE_SHIFT);
        if value & ((1 << shift) - 1) != 0 {
            return Err(Error::Misaligned { value, shift });
        }
        loop {
            let found = self.lookup(at)?;
            if found.at == at || found.leaf().is_none() {
                return Ok(());
            }
            match self.split(at) {
                // It went away meanwhile: there is nothing to cut.
                Err(Error::NotMapped(_)) => {}
                result => result?,
            }
        }
    }
}
