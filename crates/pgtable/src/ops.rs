//! Walking: from an address down to the table whose entries are to change, then its lock and its validation.
//!
//! Every operation is a [`Visit`] that [`Ops::visit`] brings to the right table. The walk itself takes no lock; a visit that wants to
//! write asks for [`Ops::lock`], and begins again from the root if the table has gone meanwhile (D4).

use crate::error::Error;
use crate::format::{Entry, Format, Leaf, Level};
use crate::level::{P4d, Pgd, Pmd, Pud, Raw, TableAt, TableLevel};
use crate::mode::{Mode, Section, Shared};
use crate::span::{Span, index_of, reach_of};
use crate::table::{PageTable, TableHost};
use crate::words::{Locked, Table, names_table};
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU32, Ordering};
use flagstone_types::{PhysAddr, VirtAddr};

/// Operations on a page table, in the form that `M` says.
pub struct Ops<'t, 'f, H: TableHost, F: Format, M: Mode> {
    pub(crate) table: &'t PageTable<'f, H, F>,
    mode: PhantomData<M>,
}

impl<H: TableHost, F: Format, M: Mode> core::fmt::Debug for Ops<'_, '_, H, F, M> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Ops<{}>({:?})", core::any::type_name::<M>(), self.table)
    }
}

/// A run of changes; see [`Ops::begin_quiet`].
pub(crate) struct QuietRun<'t, H: TableHost + 't> {
    editors: Option<(&'t AtomicU32, H::IrqGuard<'t>)>,
    quiet: bool,
}

impl<H: TableHost> QuietRun<'_, H> {
    /// Fewer entries are changed sooner by exchanges.
    const WORTH: usize = 8;

    #[inline(always)]
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }
}

impl<'t, H: TableHost + 't> Drop for QuietRun<'t, H> {
    #[inline]
    fn drop(&mut self) {
        if let Some((editors, _irq)) = self.editors.take() {
            editors.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Why a visit has no result yet, or has none.
pub(crate) enum Stop {
    /// The table went away or changed its kind: the walk begins again.
    Again,
    Fail(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Fail(error)
    }
}

/// An entry that a walk has come to.
pub(crate) struct Place<'s, H, F, L> {
    pub(crate) table: Table<'s, H, F, L>,
    pub(crate) index: usize,
    /// The entry one level up that named the table; none for the root.
    pub(crate) parent: Option<PhysAddr>,
    /// The offset of the address that is walked to.
    pub(crate) offset: u64,
}

impl<H: TableHost, F: Format, L: TableLevel> Place<'_, H, F, L> {
    /// The offset of the first address that the entry translates.
    #[inline(always)]
    pub(crate) fn start(&self) -> u64 {
        self.offset & !(reach_of::<F>(L::LEVEL) - 1)
    }

    /// How many entries of this table, from this one on, begin before `end`.
    #[inline(always)]
    pub(crate) fn count_to(&self, end: u64) -> usize {
        let left = (end - self.start()).div_ceil(reach_of::<F>(L::LEVEL));
        left.min((F::entries(L::LEVEL) - self.index) as u64) as usize
    }
}

/// What is to be done where a walk ends: at the first entry that names no table, but not below level `FLOOR`.
pub(crate) trait Visit<H: TableHost, F: Format, M: Mode> {
    /// The lowest level to go to.
    const FLOOR: Level;
    type Out;

    /// At an entry that was read without a lock.
    fn at<'s, L: TableLevel>(
        &mut self,
        ops: &Ops<'s, '_, H, F, M>,
        place: Place<'s, H, F, L>,
        seen: Raw<F, L>,
    ) -> Result<Self::Out, Stop>;
}

impl<'t, 'f, H: TableHost, F: Format> Ops<'t, 'f, H, F, Shared> {
    /// The page table. Who has it alone gets no reference to it besides (E1).
    #[must_use]
    pub fn table(&self) -> &'t PageTable<'f, H, F> {
        self.table
    }
}

impl<'t, 'f, H: TableHost, F: Format, M: Mode> Ops<'t, 'f, H, F, M> {
    #[inline]
    pub(crate) fn new(table: &'t PageTable<'f, H, F>) -> Self {
        Self {
            table,
            mode: PhantomData,
        }
    }

    /// Tables that are linked, the root included: see [`PageTable::table_count`].
    #[must_use]
    pub fn table_count(&self) -> usize {
        self.table.table_count()
    }

    #[inline(always)]
    pub(crate) fn host(&self) -> &'t H {
        &self.table.host
    }

    /// Begins a run on a locked table during which, if it says so, no unit uses the page table (E1, E3). Short: without waiting, and without calls to code
    /// that is not known.
    #[inline]
    pub(crate) fn begin_quiet(&self, count: usize) -> QuietRun<'t, H> {
        if !M::SHARED || count < QuietRun::<H>::WORTH || self.table.caps.stray_dirty {
            return QuietRun {
                editors: None,
                quiet: self.is_quiet(),
            };
        }
        if !self.table.cpus.load().is_empty() {
            return QuietRun {
                editors: None,
                quiet: false,
            };
        }
        let irq = self.host().irq_guard();
        self.table.editors.fetch_add(1, Ordering::SeqCst);
        QuietRun {
            editors: Some((&self.table.editors, irq)),
            quiet: self.table.cpus.load().is_empty(),
        }
    }

    /// Whether no unit uses the page table, and none can begin to (E1).
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        !M::SHARED && !self.table.caps.stray_dirty && self.table.cpus.load().is_empty()
    }

    #[inline(always)]
    pub(crate) fn address(&self, offset: u64) -> VirtAddr {
        self.table.addresses.address(offset)
    }

    /// Walks to `offset` and visits, again and again until the table found there stays.
    #[inline]
    pub(crate) fn visit<V: Visit<H, F, M>>(
        &self,
        offset: u64,
        visit: &mut V,
    ) -> Result<V::Out, Error> {
        let mut spins = 0;
        loop {
            let section = Section::<H>::begin::<M>(self.host());
            let result = self.walk_once(offset, visit);
            drop(section);
            match result {
                Ok(out) => return Ok(out),
                Err(Stop::Fail(error)) => return Err(error),
                Err(Stop::Again) => {
                    self.host().relax(spins);
                    spins = spins.saturating_add(1);
                }
            }
        }
    }

    /// One walk. The caller is in a section.
    #[inline]
    fn walk_once<V: Visit<H, F, M>>(&self, offset: u64, visit: &mut V) -> Result<V::Out, Stop> {
        let root = self.table;
        match F::TOP.get() {
            2 => self.down::<Pmd, V>(root.root_table(), None, offset, visit),
            3 => self.down::<Pud, V>(root.root_table(), None, offset, visit),
            4 => self.down::<P4d, V>(root.root_table(), None, offset, visit),
            _ => self.down::<Pgd, V>(root.root_table(), None, offset, visit),
        }
    }

    #[inline]
    fn down<L: TableLevel, V: Visit<H, F, M>>(
        &self,
        table: TableAt<F, L>,
        parent: Option<PhysAddr>,
        offset: u64,
        visit: &mut V,
    ) -> Result<V::Out, Stop> {
        // SAFETY: D5 for the root; D6 for a table that an entry named within this section, E1 without one.
        let table: Table<'t, H, F, L> = unsafe { Table::new(self.host(), table) };
        let index = index_of::<F>(L::LEVEL, offset);
        let seen = table.load(index);
        if L::LEVEL > V::FLOOR
            && let Some(child) = seen.child()
        {
            let entry = Some(table.slot(index));
            return self.down_to::<L::Below, V>(child, entry, offset, visit);
        }
        let place = Place {
            table,
            index,
            parent,
            offset,
        };
        visit.at(self, place, seen)
    }

    /// Breaks the recursion of types at the lowest level.
    #[inline]
    fn down_to<L: TableLevel, V: Visit<H, F, M>>(
        &self,
        table: TableAt<F, L>,
        parent: Option<PhysAddr>,
        offset: u64,
        visit: &mut V,
    ) -> Result<V::Out, Stop> {
        self.down::<L, V>(table, parent, offset, visit)
    }

    /// Locks the table of a place and makes sure that it is still linked (D4).
    #[inline]
    pub(crate) fn lock<'s, L: TableLevel>(
        &self,
        place: &Place<'s, H, F, L>,
    ) -> Result<Locked<'s, H, F, L, M>, Stop> {
        if !M::SHARED {
            // SAFETY: E1: the page table is the caller's alone.
            return Ok(unsafe { Locked::owned(place.table) });
        }
        let locked = self.lock_table(place.table, place)?;
        if !self.is_linked(place) {
            return Err(Stop::Again);
        }
        Ok(locked)
    }

    /// Locks a table that was found from `place`: its own, or one that it names.
    #[inline]
    fn lock_table<'s, L: TableLevel, K: TableLevel>(
        &self,
        table: Table<'s, H, F, L>,
        place: &Place<'s, H, F, K>,
    ) -> Result<Locked<'s, H, F, L, M>, Stop> {
        let Some((_, record)) = self.table.record(table.at().0) else {
            return Err(self.corrupt(place, place.table.load(place.index)).into());
        };
        // SAFETY: D6: the table was found by walking within this section, so its record stays.
        Ok(unsafe { Locked::acquire(table, record) })
    }

    /// Whether the table of a place, which is locked, is still linked (D4, D5).
    #[inline]
    fn is_linked<L: TableLevel>(&self, place: &Place<'_, H, F, L>) -> bool {
        // SAFETY: D6: the parent was found by walking within this section.
        unsafe { names_table::<H, F, L>(self.host(), place.parent, place.table.at()) }
    }

    /// Locks the table that an entry of a locked table names: it can not go away meanwhile, because that takes the lock that is held (D3).
    #[inline]
    pub(crate) fn lock_child<'s, L: TableLevel>(
        &self,
        place: &Place<'s, H, F, L>,
        child: TableAt<F, L::Below>,
    ) -> Result<Locked<'s, H, F, L::Below, M>, Stop> {
        // SAFETY: D3: linked, and stays so while the parent is locked; its memory for the section.
        let child: Table<'s, H, F, L::Below> = unsafe { Table::new(place.table.host(), child) };
        if !M::SHARED {
            // SAFETY: E1: the page table is the caller's alone.
            return Ok(unsafe { Locked::owned(child) });
        }
        self.lock_table(child, place)
    }

    #[cold]
    pub(crate) fn corrupt<L: TableLevel>(
        &self,
        place: &Place<'_, H, F, L>,
        raw: Raw<F, L>,
    ) -> Error {
        Error::Corrupt {
            at: self.address(place.start()),
            level: L::LEVEL,
            raw: raw.bits(),
        }
    }

    /// What is in the way of an operation that wants nothing here.
    #[cold]
    pub(crate) fn occupied<L: TableLevel>(&self, start: u64, raw: Raw<F, L>) -> Error {
        let at = self.address(start);
        match raw.decode() {
            Entry::Bad(raw) => Error::Corrupt {
                at,
                level: L::LEVEL,
                raw,
            },
            entry => Error::Occupied {
                at,
                level: L::LEVEL,
                entry,
            },
        }
    }

    /// Checks that leaves `leaf`, `leaf + size`, … can stand on level `L`, `count` of them.
    #[inline]
    pub(crate) fn check_leaf<L: TableLevel>(&self, leaf: &Leaf, count: usize) -> Result<(), Error> {
        let level = L::LEVEL;
        let size = reach_of::<F>(level);
        if leaf.at.0 & (size - 1) != 0 {
            let (value, shift) = (leaf.at.0, F::shift(level));
            return Err(Error::Misaligned { value, shift });
        }
        let end = (count as u64)
            .checked_mul(size)
            .and_then(|bytes| leaf.at.0.checked_add(bytes));
        match end {
            Some(end) if (end - 1).unbounded_shr(self.table.phys_bits()) == 0 => {}
            _ => return Err(Error::BeyondPhysical(leaf.at)),
        }
        let shadow = leaf.marks().contains(crate::format::Marks::SHADOW);
        if !self.table.has_leaf(level)
            || !F::can(level, leaf)
            || (shadow && !self.table.caps.shadow_stack)
        {
            return Err(Error::Unsupported { level, leaf: *leaf });
        }
        Ok(())
    }

    /// That no leaf reaches across the end of a span. One that reaches across its start is found before anything has changed.
    #[inline]
    pub(crate) fn check_end(&self, span: Span) -> Result<(), Error> {
        let shift = F::shift(Level::PMD);
        if span.end & ((1 << shift) - 1) == 0 || span.start >> shift == (span.end - 1) >> shift {
            // Nothing can, or what does is what reaches across the start.
            return Ok(());
        }
        self.visit(span.end, &mut NoCut)
    }
}

/// Finds a huge leaf that reaches across the offset it is brought to.
struct NoCut;

impl<H: TableHost, F: Format, M: Mode> Visit<H, F, M> for NoCut {
    const FLOOR: Level = Level::PMD;
    type Out = ();

    #[inline]
    fn at<'s, L: TableLevel>(
        &mut self,
        ops: &Ops<'s, '_, H, F, M>,
        place: Place<'s, H, F, L>,
        seen: Raw<F, L>,
    ) -> Result<(), Stop> {
        if seen.is_none() || seen.is_table() || place.start() == place.offset {
            return Ok(());
        }
        if matches!(seen.decode(), Entry::Leaf(_) | Entry::Absent(_)) {
            return Err(Stop::Fail(Error::CutsHuge {
                at: ops.address(place.start()),
                level: L::LEVEL,
            }));
        }
        Ok(())
    }
}
