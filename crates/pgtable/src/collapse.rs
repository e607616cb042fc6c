//! A table of leaves becomes one huge leaf, or goes away with everything in it.
//!
//! Both happen with the lock of the table and of its parent held. For a collapse the parent's entry is cleared and invalidated first: only then are the
//! accessed and dirty bits of the leaves final, because no unit can reach them any more.

use crate::edit::Edit;
use crate::error::Error;
use crate::format::{Entry, Format, Leaf, Level, Marks};
use crate::gather::{Gather, Owner};
use crate::level::{Raw, TableAt, TableLevel};
use crate::mode::Mode;
use crate::ops::{Ops, Place, Stop, Visit};
use crate::span::{Span, VirtRange, reach_of};
use crate::split::Way;
use crate::table::TableHost;
use crate::unmap::Unmap;
use crate::words::{Locked, Table};
use core::marker::PhantomData;
use core::sync::atomic::Ordering;
use flagstone_host::Event;
use flagstone_types::{AllocError, PhysAddr, VirtAddr};

/// What the unit sets by itself.
const SET_BY_UNIT: Marks = Marks::YOUNG.union(Marks::DIRTY);

/// The leaf that says what all leaves of a table say, or the index of the first that does not fit. Young or dirty if one of them is.
fn uniform<H: TableHost, F: Format, L: TableLevel>(
    table: &Table<'_, H, F, L>,
) -> Result<Leaf, usize> {
    let size = reach_of::<F>(L::LEVEL);
    let mut set = Marks::empty();
    let mut first: Option<Leaf> = None;
    for n in 0..F::entries(L::LEVEL) {
        let Entry::Leaf(leaf) = table.load(n).decode() else {
            return Err(n);
        };
        set |= leaf.marks().intersection(SET_BY_UNIT);
        let bare = leaf
            .found_in_place()
            .moved(PhysAddr(leaf.at.0.wrapping_sub(n as u64 * size)));
        // A shadow stack is always dirty, and does not become something else.
        let bare = if bare.marks().contains(Marks::SHADOW) {
            bare.unmark(Marks::YOUNG)
        } else {
            bare.unmark(SET_BY_UNIT)
        };
        if *first.get_or_insert(bare) != bare {
            return Err(n);
        }
    }
    first.map(|leaf| leaf.mark(set)).ok_or(0)
}

struct Collapse<T> {
    way: Way,
    level: PhantomData<T>,
}

impl<T: TableLevel> Collapse<T> {
    /// Takes the entry that names a table out, so that no unit can reach the table any more.
    fn break_table<H: TableHost, F: Format, M: Mode, L: TableLevel>(
        ops: &Ops<'_, '_, H, F, M>,
        parent: &Locked<'_, H, F, L, M>,
        index: usize,
        start: u64,
    ) {
        parent.unlink(index, ops.table.caps.paravirtual);
        let end = start + reach_of::<F>(L::LEVEL);
        let what = ops
            .table
            .invalidation(Span { start, end }, F::shift(L::Below::LEVEL), true);
        ops.table.flush(&what);
    }
}

impl<T: TableLevel> Collapse<T> {
    /// Puts the leaf in the place of the table in one step. What the unit sets in the table until the invalidation is over would be lost, so the leaf says
    /// young, and dirty if it may be written, from the beginning.
    fn exchange_in_place<H: TableHost, F: Format, M: Mode, L: TableLevel>(
        ops: &Ops<'_, '_, H, F, M>,
        parent: &Locked<'_, H, F, L, M>,
        index: usize,
        start: u64,
        leaf: &Leaf,
    ) -> Result<(), Error> {
        let set = if leaf.is_writable() {
            SET_BY_UNIT
        } else {
            Marks::YOUNG
        };
        let raw = Raw::leaf(&leaf.mark(set)).ok_or(Error::NoSuchEntry(L::LEVEL))?;
        parent.exchange(index, raw);
        let end = start + reach_of::<F>(L::LEVEL);
        let what = ops
            .table
            .invalidation(Span { start, end }, F::shift(L::Below::LEVEL), true);
        ops.table.flush(&what);
        Ok(())
    }
}

impl<H: TableHost, F: Format, M: Mode, T: TableLevel> Visit<H, F, M> for Collapse<T> {
    const FLOOR: Level = T::LEVEL;
    type Out = ();

    fn at<'s, L: TableLevel>(
        &mut self,
        ops: &Ops<'s, '_, H, F, M>,
        place: Place<'s, H, F, L>,
        _: Raw<F, L>,
    ) -> Result<(), Stop> {
        let (start, index) = (place.start(), place.index);
        let not_mapped = Stop::Fail(Error::NotMapped(ops.address(start)));
        if L::LEVEL != T::LEVEL || !F::LEAF[L::LEVEL.index()] {
            return Err(not_mapped);
        }
        let parent = ops.lock(&place)?;
        let seen = parent.load(index);
        let Some(child) = seen.child() else {
            return match seen.decode() {
                Entry::Leaf(_) => Ok(()),
                _ => Err(not_mapped),
            };
        };
        let table = ops.lock_child(&place, child)?;
        let leaf = uniform(&table).map_err(|n| {
            let at = start + n as u64 * reach_of::<F>(L::Below::LEVEL);
            Error::NotUniform(ops.address(at))
        })?;
        if leaf.at.0 & (reach_of::<F>(L::LEVEL) - 1) != 0 {
            return Err(Error::NotUniform(ops.address(start)).into());
        }
        ops.check_leaf::<L>(&leaf, 1)?;
        if self.way == Way::InPlace {
            Self::exchange_in_place(ops, &parent, index, start, &leaf)?;
        } else {
            Self::break_table(ops, &parent, index, start);
            // The bits are final now; nothing else has changed under the locks.
            let last = uniform(&table).ok().and_then(|leaf| Raw::leaf(&leaf));
            let Some(raw) = last else {
                debug_assert!(false, "{leaf:?} became something else under its lock");
                parent.link(index, child, ops.table.caps.paravirtual);
                return Err(not_mapped);
            };
            parent.set(index, raw);
        }
        drop(table);
        drop(parent);
        ops.table.linked.fetch_sub(1, Ordering::Relaxed);
        ops.host().count(Event::PgtableUnlink, 1);
        ops.host().count(Event::ThpCollapse, 1);
        // SAFETY: D3: unlinked above, and invalidated with `tables` since.
        unsafe { ops.table.retire::<M>(child.0) };
        Ok(())
    }
}

struct Retract<'g, 't, 'f, H: TableHost, F: Format, M: Mode, O: Owner, T> {
    unmap: Unmap<'g, 't, 'f, H, F, M, O>,
    level: PhantomData<T>,
}

impl<H: TableHost, F: Format, M: Mode, O: Owner, T: TableLevel> Visit<H, F, M>
    for Retract<'_, '_, '_, H, F, M, O, T>
{
    const FLOOR: Level = T::LEVEL;
    /// The table that went.
    type Out = Option<PhysAddr>;

    fn at<'s, L: TableLevel>(
        &mut self,
        ops: &Ops<'s, '_, H, F, M>,
        place: Place<'s, H, F, L>,
        seen: Raw<F, L>,
    ) -> Result<Option<PhysAddr>, Stop> {
        let (start, index) = (place.start(), place.index);
        if L::LEVEL != T::LEVEL {
            return if !seen.is_none() {
                Err(ops.occupied(start, seen).into())
            } else if ops.nothing_from(&place, place.offset + 1)? == 0 {
                Err(Stop::Again)
            } else {
                Ok(None)
            };
        }
        // Nothing is believed under the lock only (I8).
        let parent = ops.lock(&place)?;
        let seen = parent.load(index);
        let Some(child): Option<TableAt<F, L::Below>> = seen.child() else {
            return if seen.is_none() {
                Ok(None)
            } else {
                Err(ops.occupied(start, seen).into())
            };
        };
        let table = ops.lock_child(&place, child)?;
        let entries = F::entries(L::Below::LEVEL);
        let quiet = ops.is_quiet();
        let mut done = 0;
        while done < entries {
            let at = start + done as u64 * reach_of::<F>(L::Below::LEVEL);
            let n = self
                .unmap
                .edit(ops, &table, done, entries - done, at, quiet);
            if n == 0 {
                // A table below: not one of leaves.
                return Err(ops.occupied(start, seen).into());
            }
            done += n;
        }
        parent.unlink(index, ops.table.caps.paravirtual);
        drop(table);
        drop(parent);
        ops.table.linked.fetch_sub(1, Ordering::Relaxed);
        ops.host().count(Event::PgtableUnlink, 1);
        Ok(Some(child.0))
    }
}

impl<'t, 'f, H: TableHost, F: Format, M: Mode> Ops<'t, 'f, H, F, M> {
    /// Makes one huge leaf of level `L` of the table of leaves that translates `at`, if they map contiguous memory in one way. It is young or dirty if
    /// one of them was. A leaf of level `L` stays as it is. Invalidates at once; for a moment nothing is there. What the leaves stood for stays the table's.
    ///
    /// # Errors
    /// [`Error::NotMapped`]; [`Error::NotUniform`] with the first address that does not fit; [`Error::Unsupported`] if there are no such leaves. Nothing has changed.
    pub fn collapse<L: TableLevel>(&self, at: VirtAddr) -> Result<(), Error> {
        self.collapse_by::<L>(at, Way::Break)
    }

    /// As [`Ops::collapse`], but the translation is there all the time; the leaf is young, and dirty if it may be written.
    ///
    /// # Errors
    /// As [`Ops::collapse`], and [`Error::NoSuchEntry`] as [`Ops::split_in_place`] says.
    pub fn collapse_in_place<L: TableLevel>(&self, at: VirtAddr) -> Result<(), Error> {
        self.check_in_place()?;
        self.collapse_by::<L>(at, Way::InPlace)
    }

    fn collapse_by<L: TableLevel>(&self, at: VirtAddr, way: Way) -> Result<(), Error> {
        let offset = self.aligned::<L>(at)?;
        if L::LEVEL == Level::PTE || L::LEVEL > F::TOP {
            return Err(Error::NoSuchEntry(L::LEVEL));
        }
        let mut collapse = Collapse {
            way,
            level: PhantomData::<L>,
        };
        self.visit(offset, &mut collapse)
    }

    /// Takes the whole table of pages that translates `at` out with everything in it, in one step: nobody can put something in between. Both go to the gather.
    ///
    /// # Errors
    /// [`Error::Occupied`] if a huge leaf is there; [`Error::NoTable`] if the gather finds no memory for what a table can hold. Nothing has changed.
    pub fn retract<O: Owner>(
        &self,
        at: VirtAddr,
        gather: &mut Gather<'t, 'f, H, F, M, O>,
    ) -> Result<(), Error> {
        let offset = self.aligned::<crate::Pmd>(at)?;
        let entries = F::entries(Level::PTE);
        while gather.reserve(entries + 1) <= entries {
            if !gather.grow() {
                return Err(Error::NoTable(AllocError::OutOfMemory));
            }
        }
        let mut retract = Retract {
            unmap: Unmap::new(gather, entries),
            level: PhantomData::<crate::Pmd>,
        };
        if let Some(table) = self.visit(offset, &mut retract)? {
            let end = offset + reach_of::<F>(Level::PMD);
            gather.own_table(table, offset, end, Level::PMD);
        }
        Ok(())
    }

    /// The offset of an address that must be a multiple of what an entry of level `L` reaches.
    fn aligned<L: TableLevel>(&self, at: VirtAddr) -> Result<u64, Error> {
        let range = VirtRange::new(at.0, reach_of::<F>(L::LEVEL) as usize);
        Ok(self.table.addresses.span(range, L::LEVEL)?.start)
    }
}
