//! Levels as types, so that an entry of one level can not be stored in a table of another.
//!
//! A function that is generic over [`TableLevel`] is compiled once per level, and index arithmetic becomes constants.

use crate::format::{Absent, Entry, Format, Leaf, Level};
use core::fmt;
use core::marker::PhantomData;
use flagstone_host::{LockClass, classes};
use flagstone_types::PhysAddr;

mod sealed {
    pub trait Sealed {}
}

/// A level as a type: [`Pte`], [`Pmd`], [`Pud`], [`P4d`], [`Pgd`].
pub trait TableLevel: sealed::Sealed + Copy + fmt::Debug + Default + Send + Sync + 'static {
    /// The level as a value.
    const LEVEL: Level;
    /// The level of the tables that entries of this one name; for [`Pte`], which has none, itself.
    type Below: TableLevel;
    /// The class of the locks of its tables.
    type Class: LockClass;
}

macro_rules! levels {
    ($($(#[$doc:meta])* $name:ident, $value:ident, $below:ident, $class:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name;
        impl sealed::Sealed for $name {}
        impl TableLevel for $name {
            const LEVEL: Level = Level::$value;
            type Below = $below;
            type Class = classes::$class;
        }
    )*};
}

levels! {
    /// Entries of pages.
    Pte, PTE, Pte, Table1;
    /// The second level: tables of pages, or huge leaves.
    Pmd, PMD, Pte, Table2;
    /// The third level.
    Pud, PUD, Pmd, Table3;
    /// The fourth level.
    P4d, P4D, Pud, Table4;
    /// The fifth level.
    Pgd, PGD, P4d, Table5;
}

/// A table of level `L`: where its first byte is.
pub(crate) struct TableAt<F, L>(pub(crate) PhysAddr, PhantomData<(F, L)>);

impl<F, L> TableAt<F, L> {
    pub(crate) const fn new(at: PhysAddr) -> Self {
        Self(at, PhantomData)
    }
}

impl<F, L> Clone for TableAt<F, L> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<F, L> Copy for TableAt<F, L> {}

/// An entry of a table of level `L` in format `F`.
pub struct Raw<F, L>(u64, PhantomData<(F, L)>);

impl<F, L> Clone for Raw<F, L> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<F, L> Copy for Raw<F, L> {}

impl<F, L> PartialEq for Raw<F, L> {
    #[inline(always)]
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}
impl<F, L> Eq for Raw<F, L> {}

impl<F: Format, L: TableLevel> fmt::Debug for Raw<F, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x} = {:?}", self.0, self.decode())
    }
}

impl<F: Format, L: TableLevel> Raw<F, L> {
    /// Nothing.
    pub const NONE: Self = Self(0, PhantomData);

    #[inline(always)]
    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(bits, PhantomData)
    }

    /// The bits as the architecture's manual numbers them.
    #[inline(always)]
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The entry of a leaf; `None` if the format can not say it on this level.
    #[inline(always)]
    #[must_use]
    pub fn leaf(leaf: &Leaf) -> Option<Self> {
        F::can(L::LEVEL, leaf).then(|| Self::from_bits(F::leaf(L::LEVEL, leaf)))
    }

    /// The entry of something absent; `None` if its numbers do not fit.
    #[inline(always)]
    #[must_use]
    pub fn absent(absent: &Absent) -> Option<Self> {
        F::absent(L::LEVEL, absent).map(Self::from_bits)
    }

    #[inline(always)]
    pub(crate) fn table(table: TableAt<F, L::Below>) -> Self {
        Self::from_bits(F::table(L::LEVEL, table.0))
    }

    /// What it says.
    #[inline(always)]
    #[must_use]
    pub fn decode(self) -> Entry {
        F::decode(L::LEVEL, self.0)
    }

    /// Where the memory begins that it maps, if it is a leaf.
    #[inline(always)]
    #[must_use]
    pub fn address(self) -> Option<PhysAddr> {
        F::leaf_address(L::LEVEL, self.0)
    }

    /// Whether it says nothing. Accessed and dirty bits alone are nothing (I6).
    #[inline(always)]
    #[must_use]
    pub fn is_none(self) -> bool {
        self.0 == 0 || (!self.is_present() && self.decode() == Entry::None)
    }

    /// Whether the unit may use it.
    #[inline(always)]
    #[must_use]
    pub fn is_present(self) -> bool {
        F::is_present(L::LEVEL, self.0)
    }

    /// Whether it names a table.
    #[inline(always)]
    #[must_use]
    pub fn is_table(self) -> bool {
        L::LEVEL.get() > 1 && F::is_table(L::LEVEL, self.0)
    }

    /// The table that it names, if it names one.
    #[inline(always)]
    pub(crate) fn child(self) -> Option<TableAt<F, L::Below>> {
        F::child(L::LEVEL, self.0).map(TableAt::new)
    }

    /// The leaf one size of its own further on.
    #[inline(always)]
    pub(crate) fn next(self) -> Self {
        Self::from_bits(F::advance(L::LEVEL, self.0, 1))
    }

    /// Whether the unit has nothing left to change in it: a present leaf that is young and dirty (E2), or something not present.
    #[inline(always)]
    pub(crate) fn is_settled(self) -> bool {
        !self.is_present() || (F::is_young(L::LEVEL, self.0) && F::is_dirty(L::LEVEL, self.0))
    }
}
