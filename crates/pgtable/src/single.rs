//! Single entries: a straight walk to one entry, one lock, one change, and its invalidation at once.
//!
//! What the operations on ranges do with a gather is done here under the lock of the table: nobody sees a changed entry before no CPU uses the old one, so
//! nothing is counted, owned or noted (I9). For one page that is the quicker form; for several, one invalidation each is the slower one.

use crate::change::{Protect, Rule};
use crate::error::Error;
use crate::flush;
use crate::format::{Access, Entry, Format, Leaf, Level};
use crate::gather::NotOwned;
use crate::level::{Raw, TableAt, TableLevel};
use crate::lookup::Found;
use crate::map::Contiguous;
use crate::mode::{Mode, Section};
use crate::ops::{Ops, Place, Stop, Visit};
use crate::span::{Span, VirtRange, index_of, reach_of};
use crate::stray::take_in_two_steps;
use crate::table::TableHost;
use crate::words::{Locked, Table, load_word};
use core::marker::PhantomData;
use flagstone_types::{PhysAddr, VirtAddr};

/// An entry that a walk ended at above the level that it was to come to.
#[derive(Clone, Copy)]
struct Above {
    level: Level,
    raw: u64,
}

/// Why no entry of the level was worked on: a word each, so that the way on which nothing is missed carries no errors.
enum Miss {
    Above(Above),
    /// What is there is in the way.
    There(u64),
    /// There is no frame under the table.
    Lost,
}

/// A walk that is under way.
struct Way {
    at: PhysAddr,
    /// The entry that named the table.
    parent: Option<PhysAddr>,
}

/// Looks whether nothing stands above the level that an operation on one entry was to come to. It is asked under the lock where leaves may stand (I8): a
/// split or a collapse has broken one for a moment, perhaps.
struct NothingAbove<T>(PhantomData<T>);

impl<H: TableHost, F: Format, M: Mode, T: TableLevel> Visit<H, F, M> for NothingAbove<T> {
    const FLOOR: Level = T::LEVEL;
    type Out = bool;

    fn at<'s, L: TableLevel>(
        &mut self,
        ops: &Ops<'s, '_, H, F, M>,
        place: Place<'s, H, F, L>,
        seen: Raw<F, L>,
    ) -> Result<bool, Stop> {
        if L::LEVEL == T::LEVEL || !seen.is_none() {
            return Ok(false);
        }
        match ops.nothing_from(&place, place.offset + 1)? {
            0 => Err(Stop::Again),
            _ => Ok(true),
        }
    }
}

impl<'t, H: TableHost, F: Format, M: Mode> Ops<'t, '_, H, F, M> {
    /// From the table of `level` to the one below, if the format has the level and the walk is to go below it.
    #[inline(always)]
    fn step<T: TableLevel>(
        host: &H,
        level: Level,
        way: &mut Way,
        offset: u64,
    ) -> Result<(), Above> {
        if level > F::TOP || level <= T::LEVEL {
            return Ok(());
        }
        let index = index_of::<F>(level, offset);
        let slot = PhysAddr(way.at.0 + (index * size_of::<u64>()) as u64);
        // SAFETY: D5 for the root; D6 for a table that an entry named within the caller's section, E1 without one.
        let raw = unsafe { load_word::<H, F>(host, slot) };
        let Some(child) = F::child(level, raw) else {
            return Err(Above { level, raw });
        };
        *way = Way {
            at: child,
            parent: Some(slot),
        };
        Ok(())
    }

    /// The entry of level `T` that translates an offset. The caller is in a section.
    #[inline(always)]
    fn entry_of<T: TableLevel>(&self, offset: u64) -> Result<Place<'t, H, F, T>, Above> {
        // A copy: a load that acquires is followed by loads of everything that others could change.
        let host = *self.host();
        let mut way = Way {
            at: self.table.root(),
            parent: None,
        };
        for level in [Level::PGD, Level::P4D, Level::PUD, Level::PMD] {
            Self::step::<T>(&host, level, &mut way, offset)?;
        }
        Ok(Place {
            // SAFETY: as in `step`.
            table: unsafe { Table::new(self.host(), TableAt::new(way.at)) },
            index: index_of::<F>(T::LEVEL, offset),
            parent: way.parent,
            offset,
        })
    }

    /// Does `work` to the entry of level `T` that translates an offset, with its table locked; it is told the entry's index.
    #[inline(always)]
    fn at_entry<T: TableLevel, R>(
        &self,
        offset: u64,
        mut work: impl FnMut(&Locked<'t, H, F, T, M>, usize) -> Result<R, Miss>,
    ) -> Result<R, Miss> {
        let mut spins = 0;
        loop {
            let section = Section::<H>::begin::<M>(self.host());
            let place = self.entry_of::<T>(offset).map_err(Miss::Above)?;
            match self.lock(&place) {
                Ok(locked) => return work(&locked, place.index),
                Err(Stop::Fail(_)) => return Err(Miss::Lost),
                Err(Stop::Again) => {}
            }
            drop(section);
            self.host().relax(spins);
            spins = spins.saturating_add(1);
        }
    }

    /// The offset of an address where an entry of level `T` begins.
    #[inline(always)]
    fn entry_offset<T: TableLevel>(&self, at: VirtAddr) -> Result<u64, Error> {
        let (value, shift) = (at.0 as u64, F::shift(T::LEVEL));
        if value & (reach_of::<F>(T::LEVEL) - 1) != 0 {
            return Err(Error::Misaligned { value, shift });
        }
        if !F::LEAF[T::LEVEL.index()] {
            return Err(Error::NoSuchEntry(T::LEVEL));
        }
        self.table.addresses.offset(at)
    }

    /// What is wrong at an offset; `Ok` if nothing is there, which is nothing wrong for who wants it away or changed: false if that was so for a moment only, so
    /// that the walk begins again (I8).
    #[cold]
    #[inline(never)]
    fn missed<T: TableLevel>(&self, offset: u64, miss: Miss) -> Result<bool, Error> {
        let Above { level, raw } = match miss {
            Miss::Above(above) => above,
            Miss::There(raw) => return Err(self.occupied::<T>(offset, Raw::from_bits(raw))),
            Miss::Lost => Above {
                level: T::LEVEL,
                raw: 0,
            },
        };
        let at = self.address(offset & !(reach_of::<F>(level) - 1));
        match F::decode(level, raw) {
            Entry::None if level > T::LEVEL => {
                if !self.visit(offset, &mut NothingAbove(PhantomData::<T>))? {
                    return Ok(false);
                }
                if self.table.is_gathering() {
                    // I4: who took a table out may not have invalidated yet.
                    self.table.flush(&self.table.invalidation_of_all());
                }
                Ok(true)
            }
            Entry::Leaf(_) | Entry::Absent(_) => Err(Error::CutsHuge { at, level }),
            _ => Err(Error::Corrupt { at, level, raw }),
        }
    }

    /// Invalidates an entry that was `old` and is `new`, under its table's lock; and what a gather of others may have changed there and left (I4, I9).
    #[inline(always)]
    fn settle_entry<T: TableLevel>(
        &self,
        offset: u64,
        old: Raw<F, T>,
        new: Raw<F, T>,
        exchanged: bool,
    ) {
        if self.table.is_gathering() {
            self.table.flush(&self.table.invalidation_of_all());
        } else if old != new && flush::is_needed(old, new) {
            let end = offset + reach_of::<F>(T::LEVEL);
            self.table
                .flush_entry::<M>(Span { start: offset, end }, T::LEVEL, exchanged);
        }
    }

    /// Whether an entry is changed by a store: no unit may be changing it, and there is no fence to be had from an exchange (I3).
    #[inline(always)]
    fn by_store<T: TableLevel>(&self, old: Raw<F, T>, quiet: bool) -> bool {
        !M::SHARED && (quiet || old.is_settled())
    }

    /// Maps one leaf of level `L` at `at`, where nothing may be: [`Ops::map`] of one. The table owns what the leaf stands for from now on.
    ///
    /// # Errors
    /// As [`Ops::map`]; the leaf is still the caller's.
    #[inline(always)]
    pub fn map_one<L: TableLevel>(&self, at: VirtAddr, leaf: &Leaf) -> Result<(), Error> {
        let offset = self.entry_offset::<L>(at)?;
        self.check_leaf::<L>(leaf, 1)?;
        let raw = F::leaf(L::LEVEL, leaf);
        let end = offset + reach_of::<F>(L::LEVEL);
        let mapped = self.at_entry::<L, ()>(offset, |locked, index| {
            let seen = locked.load(index);
            if !seen.is_none() {
                return Err(Miss::There(seen.bits()));
            }
            self.break_before_make(offset, end, L::LEVEL);
            locked.set(index, Raw::from_bits(raw));
            Ok(())
        });
        match mapped {
            Ok(()) => Ok(()),
            Err(Miss::Above(_)) => {
                self.map_one_with_tables::<L>(Span { start: offset, end }, *leaf)
            }
            Err(miss) => self.missed::<L>(offset, miss).map(|_| ()),
        }
    }

    /// Where a table is missing, or something is in the way.
    #[cold]
    #[inline(never)]
    fn map_one_with_tables<L: TableLevel>(&self, span: Span, leaf: Leaf) -> Result<(), Error> {
        self.map_with_tables::<L, _>(span, &Contiguous(leaf))
            .map_err(|error| error.error)
    }

    /// Takes the leaf or absent entry of level `L` at `at` out and invalidates it at once, under the lock of its table; says what it was, accessed and dirty
    /// included: nothing, perhaps. [`Raw::decode`] tells what that means. What it stood for is the caller's, unless it is marked [`SPECIAL`](crate::format::Marks::SPECIAL), and no CPU uses it any more. Invalidates
    /// everything while a gather of this page table is under way.
    ///
    /// # Errors
    /// An address that is unaligned or not translated here; [`Error::CutsHuge`] if a larger leaf is there, [`Error::Occupied`] if a table is;
    /// [`Error::NoSuchEntry`] for a level without leaves. Nothing has changed.
    #[inline(always)]
    pub fn unmap_one<L: TableLevel>(&self, at: VirtAddr) -> Result<Raw<F, L>, Error> {
        let offset = self.entry_offset::<L>(at)?;
        let quiet = self.is_quiet();
        loop {
            let taken = self.at_entry::<L, _>(offset, |locked, index| {
                let seen = locked.load(index);
                if seen.is_table() {
                    return Err(Miss::There(seen.bits()));
                }
                if self.table.caps.stray_dirty && seen.is_present() {
                    let old = take_in_two_steps(self, locked, index, 1, offset).1[0];
                    self.settle_entry::<L>(offset, Raw::NONE, Raw::NONE, false);
                    return Ok(old);
                }
                let plain = self.by_store(seen, quiet);
                let old = if plain {
                    locked.overwrite(index, Raw::NONE);
                    seen
                } else {
                    locked.exchange(index, Raw::NONE)
                };
                if !quiet {
                    self.settle_entry(offset, old, Raw::NONE, !plain);
                }
                Ok(old)
            });
            match taken {
                Ok(old) => return Ok(old),
                Err(miss) => {
                    if self.missed::<L>(offset, miss)? {
                        return Ok(Raw::NONE);
                    }
                }
            }
        }
    }

    /// Gives the leaf of level `L` at `at`, if there is one, this access, and invalidates at once if that is needed, under the lock of its table: [`Ops::protect`] of
    /// one. Invalidates everything while a gather of this page table is under way.
    ///
    /// # Errors
    /// As [`Ops::unmap_one`].
    #[inline(always)]
    pub fn protect_one<L: TableLevel>(&self, at: VirtAddr, access: Access) -> Result<(), Error> {
        let offset = self.entry_offset::<L>(at)?;
        if self.table.caps.stray_dirty {
            return self.protect_one_in_two_steps::<L>(at, access);
        }
        let quiet = self.is_quiet();
        loop {
            let done = self.at_entry::<L, ()>(offset, |locked, index| {
                let mut old = locked.load(index);
                if old.is_table() {
                    return Err(Miss::There(old.bits()));
                }
                loop {
                    let new = if old.is_none() {
                        old
                    } else {
                        Protect(access).apply(old, offset)
                    };
                    let plain = new == old || self.by_store(old, quiet);
                    if !plain {
                        if let Err(now) = locked.update(index, old, new) {
                            old = now;
                            continue;
                        }
                    } else if new != old {
                        locked.overwrite(index, new);
                    }
                    if !quiet {
                        self.settle_entry(offset, old, new, !plain);
                    }
                    return Ok(());
                }
            });
            match done {
                Ok(()) => return Ok(()),
                Err(miss) => {
                    if self.missed::<L>(offset, miss)? {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// On a unit that sets the dirty bit of entries that have gone (I6).
    #[cold]
    #[inline(never)]
    fn protect_one_in_two_steps<L: TableLevel>(
        &self,
        at: VirtAddr,
        access: Access,
    ) -> Result<(), Error> {
        let mut gather = self.gather(NotOwned);
        let range = VirtRange::new(at.0, reach_of::<F>(L::LEVEL) as usize);
        let done = self.protect(range, access, &mut gather);
        gather.finish();
        done
    }

    /// What is at an address, read without locks: it was there at some moment since the call began, and may be gone. What a value can not be
    /// torn between, and what it can, is in `MODEL.md` (H2).
    ///
    /// # Errors
    /// [`Error::NotCanonical`].
    #[inline]
    pub fn lookup(&self, at: VirtAddr) -> Result<Found, Error> {
        let offset = self.table.addresses.offset(at)?;
        let section = Section::<H>::begin::<M>(self.host());
        let above = match self.entry_of::<crate::Pte>(offset) {
            Ok(place) => Above {
                level: Level::PTE,
                raw: place.table.load(place.index).bits(),
            },
            Err(above) => above,
        };
        drop(section);
        Ok(self.found(offset, above))
    }

    /// Where an address is in physical memory, read without locks as [`Ops::lookup`] does; `None` if no leaf is there, or if it is no address of this page table.
    #[inline(always)]
    #[must_use]
    pub fn physical(&self, at: VirtAddr) -> Option<PhysAddr> {
        let offset = self.table.addresses.offset(at).ok()?;
        let section = Section::<H>::begin::<M>(self.host());
        let place = match self.entry_of::<crate::Pte>(offset) {
            Ok(place) => place,
            Err(above) => return self.physical_above(offset, above),
        };
        let raw = place.table.load(place.index);
        drop(section);
        let within = offset & (reach_of::<F>(Level::PTE) - 1);
        raw.address().map(|first| PhysAddr(first.0 + within))
    }

    #[inline(always)]
    fn found(&self, offset: u64, Above { level, raw }: Above) -> Found {
        Found {
            at: self.address(offset & !(reach_of::<F>(level) - 1)),
            level,
            entry: F::decode(level, raw),
        }
    }

    /// In a huge leaf, if there is one.
    #[inline(never)]
    fn physical_above(&self, offset: u64, Above { level, raw }: Above) -> Option<PhysAddr> {
        let within = offset & (reach_of::<F>(level) - 1);
        F::leaf_address(level, raw).map(|first| PhysAddr(first.0 + within))
    }
}
