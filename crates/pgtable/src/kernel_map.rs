//! Mappings of the kernel: what may be done with ranges that are in use all the time.
//!
//! A kernel maps memory more than once: a linear map of everything, and mappings of its own text, modules and data over some of it. Whoever makes a range read-only
//! wants its aliases read-only too. No-execute is different: a module's text is executable where it is run and nowhere else, so changes of it never
//! spread. Huge leaves are split only where a range needs it and put together again when their parts are equal.

use crate::error::Error;
use crate::format::{Access, Format, Leaf, Level};
use crate::gather::NotOwned;
use crate::level::{Pmd, Pud};
use crate::mode::Shared;
use crate::ops::Ops;
use crate::span::{VirtRange, reach_of};
use crate::table::{PageTable, TableHost};
use flagstone_types::{Bytes, PhysAddr, VirtAddr};

/// A linear mapping: `range` maps the memory from `to` on, one to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alias {
    /// Where.
    pub range: VirtRange,
    /// What its first byte maps.
    pub to: PhysAddr,
}

impl Alias {
    /// The part that maps some of the `bytes` from `at` on.
    fn part(&self, at: PhysAddr, bytes: u64) -> Option<VirtRange> {
        let from = at.0.max(self.to.0);
        let to =
            at.0.saturating_add(bytes)
                .min(self.to.0.saturating_add(self.range.len.0 as u64));
        let start = self
            .range
            .start
            .0
            .wrapping_add((from.wrapping_sub(self.to.0)) as usize);
        (from < to).then(|| VirtRange::new(start, (to - from) as usize))
    }
}

/// What is to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted {
    write: Option<bool>,
    exec: Option<bool>,
}

impl Wanted {
    fn of(self, leaf: Leaf) -> Leaf {
        let leaf = match self.write {
            Some(true) => leaf.mkwrite_kernel(),
            Some(false) => leaf.wrprotect(),
            None => leaf,
        };
        match self.exec {
            Some(true) => leaf.readable(leaf.access().union(Access::EXEC)),
            Some(false) => leaf.readable(leaf.access().difference(Access::EXEC)),
            None => leaf,
        }
    }

    /// What of it is to change where the same memory is mapped again.
    fn for_aliases(self) -> Option<Self> {
        self.write?;
        Some(Self { exec: None, ..self })
    }
}

/// The kernel's page table with the linear mappings that it has.
#[derive(Clone, Copy, Debug)]
pub struct KernelMap<'k, 'f, H: TableHost, F: Format> {
    table: &'k PageTable<'f, H, F>,
    aliases: &'k [Alias],
}

impl<'k, 'f, H: TableHost, F: Format> KernelMap<'k, 'f, H, F> {
    /// For a page table whose linear mappings are `aliases`.
    ///
    /// # Safety
    /// The kernel runs on this page table: who changes a range by the value's methods must be its owner, that is: nobody relies on an access that is
    /// taken away, and nothing is executed or written that was not meant to be.
    #[must_use]
    pub unsafe fn new(table: &'k PageTable<'f, H, F>, aliases: &'k [Alias]) -> Self {
        Self { table, aliases }
    }

    fn ops(&self) -> Ops<'k, 'f, H, F, Shared> {
        self.table.shared()
    }

    /// Makes a range read-only, and its aliases.
    ///
    /// # Errors
    /// [`Error::NotMapped`] with the first address that has no leaf; [`Error::NoTable`] if a huge leaf can not be split; [`Error::NoSuchEntry`] if it must be split and this
    /// architecture or machine can not do that in place; an unaligned range. No access has changed then.
    pub fn set_memory_ro(&self, range: VirtRange) -> Result<(), Error> {
        self.set(range, Some(false), None)
    }

    /// Makes a range writable, and its aliases.
    ///
    /// # Errors
    /// As [`KernelMap::set_memory_ro`].
    pub fn set_memory_rw(&self, range: VirtRange) -> Result<(), Error> {
        self.set(range, Some(true), None)
    }

    /// Makes a range executable; aliases stay.
    ///
    /// # Errors
    /// As [`KernelMap::set_memory_ro`].
    pub fn set_memory_x(&self, range: VirtRange) -> Result<(), Error> {
        self.set(range, None, Some(true))
    }

    /// Makes a range not executable; aliases stay.
    ///
    /// # Errors
    /// As [`KernelMap::set_memory_ro`].
    pub fn set_memory_nx(&self, range: VirtRange) -> Result<(), Error> {
        self.set(range, None, Some(false))
    }

    /// Makes a range read-only and executable in one step, so that it is never writable and executable; its aliases read-only.
    ///
    /// # Errors
    /// As [`KernelMap::set_memory_ro`].
    pub fn set_memory_rox(&self, range: VirtRange) -> Result<(), Error> {
        self.set(range, Some(false), Some(true))
    }

    /// Splits every huge leaf of a range into pages, for who will change single pages later without being able to allocate.
    ///
    /// # Errors
    /// As [`KernelMap::set_memory_ro`]; what was split stays so.
    pub fn force_split(&self, range: VirtRange) -> Result<(), Error> {
        self.check_mapped(range)?;
        let page = reach_of::<F>(Level::PTE) as usize;
        let mut done = 0;
        while done < range.len.0 {
            let at = VirtAddr(range.start.0.wrapping_add(done));
            let found = self.ops().lookup(at)?;
            if found.level == Level::PTE {
                done += page;
            } else {
                self.ops().split_in_place(at)?;
            }
        }
        Ok(())
    }

    fn set(&self, range: VirtRange, write: Option<bool>, exec: Option<bool>) -> Result<(), Error> {
        self.check_mapped(range)?;
        let wanted = Wanted { write, exec };
        // Everything that can fail comes first.
        self.split_edges(range)?;
        if let Some(wanted) = wanted.for_aliases() {
            self.each_alias(range, |part| self.split_edges(part))?;
            self.each_alias(range, |part| self.change(part, wanted))?;
        }
        self.change(range, wanted)?;
        self.rejoin(range);
        self.each_alias(range, |part| {
            self.rejoin(part);
            Ok(())
        })
    }

    /// That every page of a range is a leaf's.
    fn check_mapped(&self, range: VirtRange) -> Result<(), Error> {
        let mut next = range.start.0;
        let mut hole = None;
        self.ops().walk(range, |found| {
            if found.leaf().is_none() || found.at.0 > next {
                hole.get_or_insert(VirtAddr(next.max(range.start.0)));
            }
            next = found.at.0.wrapping_add(reach_of::<F>(found.level) as usize);
        })?;
        let end = range.start.0.wrapping_add(range.len.0);
        if next.wrapping_sub(range.start.0) < range.len.0 && next != end {
            hole.get_or_insert(VirtAddr(next));
        }
        hole.map_or(Ok(()), |at| Err(Error::NotMapped(at)))
    }

    /// Splits leaves that reach across the ends of a range. Nothing is done at an end where nothing is mapped.
    fn split_edges(&self, range: VirtRange) -> Result<(), Error> {
        let end = range.start.0.wrapping_add(range.len.0);
        for edge in [range.start.0, end] {
            loop {
                let found = match self.ops().lookup(VirtAddr(edge)) {
                    // The range ends with the address space, or with its lower half.
                    Err(_) => break,
                    Ok(found) => found,
                };
                if found.at.0 == edge || found.leaf().is_none() {
                    break;
                }
                self.ops().split_in_place(VirtAddr(edge))?;
            }
        }
        Ok(())
    }

    /// Changes a range. Another context may put leaves together again that were split for it: then they are split once more.
    fn change(&self, range: VirtRange, wanted: Wanted) -> Result<(), Error> {
        loop {
            let mut gather = self.ops().gather(NotOwned);
            let result = self
                .ops()
                .change_each(range, &mut gather, |_, _, leaf| wanted.of(leaf));
            gather.finish();
            match result {
                Err(Error::CutsHuge { .. }) => self.split_edges(range)?,
                result => return result,
            }
        }
    }

    /// Tells `each` of every part of a linear mapping that maps memory of a range at another place.
    fn each_alias(
        &self,
        range: VirtRange,
        mut each: impl FnMut(VirtRange) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut done = 0;
        while done < range.len.0 && !self.aliases.is_empty() {
            let (at, bytes, left) = self.contiguous(range, done)?;
            let start = VirtAddr(range.start.0.wrapping_add(done));
            for alias in self.aliases {
                if let Some(part) = alias.part(at, bytes as u64)
                    && part.start != start
                    && self.is_mapped(part)
                {
                    each(part)?;
                }
            }
            done = range.len.0 - left;
        }
        Ok(())
    }

    fn is_mapped(&self, range: VirtRange) -> bool {
        self.check_mapped(range).is_ok()
    }

    /// The contiguous memory that a range maps from its byte `done` on: where, how much, and how much of the range is left behind it.
    fn contiguous(&self, range: VirtRange, done: usize) -> Result<(PhysAddr, usize, usize), Error> {
        let mut at = VirtAddr(range.start.0.wrapping_add(done));
        let mut left = range.len.0 - done;
        let mut first: Option<PhysAddr> = None;
        let mut bytes = 0;
        while left > 0 {
            let found = self.ops().lookup(at)?;
            let to = found.physical(at).ok_or(Error::NotMapped(at))?;
            let first = *first.get_or_insert(to);
            if to.0 != first.0 + bytes as u64 {
                break;
            }
            let inside = at.0.wrapping_sub(found.at.0);
            let step = (reach_of::<F>(found.level) as usize - inside).min(left);
            (bytes, left) = (bytes + step, left - step);
            at = VirtAddr(at.0.wrapping_add(step));
        }
        let first = first.ok_or(Error::BadLength(range.len.0))?;
        Ok((first, bytes, left))
    }

    /// Puts leaves of a range together again where they are equal. Where they are not, or it is not possible, they stay.
    fn rejoin(&self, range: VirtRange) {
        let end = range.start.0.wrapping_add(range.len.0 - 1);
        let each = |level: Level, join: &dyn Fn(VirtAddr)| {
            let size = reach_of::<F>(level) as usize;
            let (mut at, last) = (range.start.0 & !(size - 1), end & !(size - 1));
            loop {
                join(VirtAddr(at));
                if at == last {
                    break;
                }
                at = at.wrapping_add(size);
            }
        };
        // An error says that they are not equal, or that there is no such leaf: both are no matter.
        each(Level::PMD, &|at| {
            _ = self.ops().collapse_in_place::<Pmd>(at)
        });
        if F::TOP > Level::PMD {
            each(Level::PUD, &|at| {
                _ = self.ops().collapse_in_place::<Pud>(at)
            });
        }
    }

    /// How many bytes of a range are mapped by leaves of each level: what [`Level::index`] says.
    ///
    /// # Errors
    /// An unaligned range, or one that is not translated here.
    pub fn bytes_by_level(&self, range: VirtRange) -> Result<[Bytes; 6], Error> {
        let mut bytes = [Bytes(0); 6];
        self.ops().walk(range, |found| {
            if found.leaf().is_some() {
                bytes[found.level.index()].0 += reach_of::<F>(found.level) as usize;
            }
        })?;
        Ok(bytes)
    }
}
