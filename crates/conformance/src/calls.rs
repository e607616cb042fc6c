//! The library's operations, each compiled once for a platform.
//!
//! Every case calls them, often with a closure of its own; a walk through five levels for each closure of each format would take a compiler
//! minutes. So they are called through functions that are not inlined and take closures by reference.

use crate::ledger::Releasing;
use crate::platform::{Platform, Table};
use flagstone_pgtable::format::{Access, Entry, Leaf, Level, Marks};
use flagstone_pgtable::{
    Become, Error, Found, Gather, MapError, Ops, Pte, Shared, TableLevel, VirtRange,
};
use flagstone_types::{PhysAddr, VirtAddr};

/// A gather whose owner is the ledger.
pub(crate) type Gathering<'s, 'p, P> =
    Gather<'s, 'p, <P as Platform>::Host, <P as Platform>::Format, Shared, Releasing<'s, P>>;

/// See the module; the operations have the library's names and meaning.
pub(crate) struct Calls<'s, 'p, P: Platform>(Ops<'s, 'p, P::Host, P::Format, Shared>);

macro_rules! called {
    ($($name:ident<$($level:ident)?>($($argument:ident: $type:ty),*) -> $result:ty;)*) => {$(
        #[inline(never)]
        pub(crate) fn $name$(<$level: TableLevel>)?(&self, $($argument: $type),*) -> $result {
            self.0.$name$(::<$level>)?($($argument),*)
        }
    )*};
}

impl<'s, 'p, P: Platform> Calls<'s, 'p, P> {
    pub(crate) fn new(table: &'s Table<'p, P>) -> Self {
        Self(table.shared())
    }

    called! {
        lookup<>(at: VirtAddr) -> Result<Found, Error>;
        physical<>(at: VirtAddr) -> Option<PhysAddr>;
        map_one<L>(at: VirtAddr, leaf: &Leaf) -> Result<(), Error>;
        protect_one<L>(at: VirtAddr, access: Access) -> Result<(), Error>;
        map<L>(at: VirtAddr, leaf: &Leaf, count: usize) -> Result<(), MapError>;
        split<>(at: VirtAddr) -> Result<(), Error>;
        split_at<>(at: VirtAddr) -> Result<(), Error>;
        split_in_place<>(at: VirtAddr) -> Result<(), Error>;
        collapse<L>(at: VirtAddr) -> Result<(), Error>;
        collapse_in_place<L>(at: VirtAddr) -> Result<(), Error>;
    }

    #[inline(never)]
    pub(crate) fn unmap_one<L: TableLevel>(&self, at: VirtAddr) -> Result<Entry, Error> {
        self.0.unmap_one::<L>(at).map(|raw| raw.decode())
    }

    #[inline(never)]
    pub(crate) fn gather(&self, owner: Releasing<'s, P>) -> Gathering<'s, 'p, P> {
        self.0.gather(owner)
    }

    #[inline(never)]
    pub(crate) fn finish(gather: Gathering<'s, 'p, P>) {
        gather.finish();
    }

    #[inline(never)]
    pub(crate) fn unmap(
        &self,
        range: VirtRange,
        gather: &mut Gathering<'s, 'p, P>,
    ) -> Result<(), Error> {
        self.0.unmap(range, gather)
    }

    #[inline(never)]
    pub(crate) fn free_tables(
        &self,
        range: VirtRange,
        gather: &mut Gathering<'s, 'p, P>,
    ) -> Result<(), Error> {
        self.0.free_tables(range, gather)
    }

    #[inline(never)]
    pub(crate) fn retract(
        &self,
        at: VirtAddr,
        gather: &mut Gathering<'s, 'p, P>,
    ) -> Result<(), Error> {
        self.0.retract(at, gather)
    }

    #[inline(never)]
    pub(crate) fn protect(
        &self,
        range: VirtRange,
        access: Access,
        gather: &mut Gathering<'s, 'p, P>,
    ) -> Result<(), Error> {
        self.0.protect(range, access, gather)
    }

    #[inline(never)]
    pub(crate) fn write_protect(
        &self,
        range: VirtRange,
        gather: &mut Gathering<'s, 'p, P>,
    ) -> Result<(), Error> {
        self.0.write_protect(range, gather)
    }

    #[inline(never)]
    pub(crate) fn set_marks(
        &self,
        range: VirtRange,
        set: Marks,
        clear: Marks,
        gather: &mut Gathering<'s, 'p, P>,
    ) -> Result<(), Error> {
        self.0.set_marks(range, set, clear, gather)
    }

    pub(crate) fn change_each(
        &self,
        range: VirtRange,
        gather: &mut Gathering<'s, 'p, P>,
        mut new: impl FnMut(VirtAddr, Level, Leaf) -> Leaf,
    ) -> Result<(), Error> {
        self.change_each_by(range, gather, &mut new)
    }

    #[inline(never)]
    fn change_each_by(
        &self,
        range: VirtRange,
        gather: &mut Gathering<'s, 'p, P>,
        new: &mut dyn FnMut(VirtAddr, Level, Leaf) -> Leaf,
    ) -> Result<(), Error> {
        self.0.change_each(range, gather, new)
    }

    pub(crate) fn replace<L: TableLevel>(
        &self,
        at: VirtAddr,
        gather: &mut Gathering<'s, 'p, P>,
        mut decide: impl FnMut(Entry) -> Become,
    ) -> Result<Entry, Error> {
        self.replace_by::<L>(at, gather, &mut decide)
    }

    #[inline(never)]
    fn replace_by<L: TableLevel>(
        &self,
        at: VirtAddr,
        gather: &mut Gathering<'s, 'p, P>,
        decide: &mut dyn FnMut(Entry) -> Become,
    ) -> Result<Entry, Error> {
        self.0.replace::<L, _>(at, gather, decide)
    }

    pub(crate) fn map_each(
        &self,
        at: VirtAddr,
        count: usize,
        leaf: impl Fn(usize) -> Leaf,
    ) -> Result<(), MapError> {
        self.map_each_by(at, count, &leaf)
    }

    #[inline(never)]
    fn map_each_by(
        &self,
        at: VirtAddr,
        count: usize,
        leaf: &dyn Fn(usize) -> Leaf,
    ) -> Result<(), MapError> {
        self.0.map_each::<Pte>(at, count, leaf)
    }

    pub(crate) fn walk(&self, range: VirtRange, mut each: impl FnMut(Found)) -> Result<(), Error> {
        self.walk_by(range, &mut each)
    }

    #[inline(never)]
    fn walk_by(&self, range: VirtRange, each: &mut dyn FnMut(Found)) -> Result<(), Error> {
        self.0.walk(range, each)
    }

    pub(crate) fn test_and_clear_young(
        &self,
        range: VirtRange,
        mut each: impl FnMut(VirtAddr, Level, Leaf),
    ) -> Result<usize, Error> {
        self.young_by(range, &mut each, false)
    }

    pub(crate) fn skim_young(
        &self,
        range: VirtRange,
        mut each: impl FnMut(VirtAddr, Level, Leaf),
    ) -> Result<usize, Error> {
        self.young_by(range, &mut each, true)
    }

    #[inline(never)]
    fn young_by(
        &self,
        range: VirtRange,
        each: &mut dyn FnMut(VirtAddr, Level, Leaf),
        skim: bool,
    ) -> Result<usize, Error> {
        if skim {
            self.0.skim_young(range, each)
        } else {
            self.0.test_and_clear_young(range, each)
        }
    }
}
