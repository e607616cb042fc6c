//! Page tables of x86-64 with 4 levels that take part: Flagstone's in its forms, and those of other crates, all on a [`Board`].
//!
//! Everybody writes the same entries into tables in the same memory, and everybody's invalidations are a counter. The others have no range that they would
//! treat as one: they are called for each page, as their documentation has it, or by their own loop over a region.

use crate::Error;
use crate::board::Board;
use core::sync::atomic::{AtomicUsize, Ordering};
use flagstone_pgtable::format::{Access, Entry, Leaf, X86_64};
use flagstone_pgtable::shadow::Mapping;
use flagstone_pgtable::{Mode, NotOwned, Ops, Owner, PageTable, Pte, Taken, UseUnasked, VirtRange};
use flagstone_types::{PhysAddr, VirtAddr};
use page_table_multiarch::x86_64::X64PageTable;
use page_table_multiarch::{MappingFlags, PageSize, PagingHandler};
use std::sync::{Mutex, MutexGuard, PoisonError};
use x86_64::structures::paging::mapper::{OffsetPageTable, Translate, TranslateResult};
use x86_64::structures::paging::{
    FrameAllocator, Mapper as _, Page, PageTableFlags, PhysFrame, Size4KiB,
};

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;
/// What a leaf that may be read and written by user programs says beside its address, and one that may only be read.
pub(crate) const WRITABLE: u64 = 1 << 63 | 0b111;
pub(crate) const READ_ONLY: u64 = 1 << 63 | 0b101;

/// A page table; `pages` of 4 KiB from `at` on are one call, where there is one.
pub(crate) trait Mapper {
    /// Maps contiguous memory, readable and writable by user programs.
    fn map(&mut self, at: usize, to: u64, pages: usize) -> Result<(), Error>;
    /// The sum of the physical addresses of all pages.
    fn walk(&mut self, at: usize, pages: usize) -> Result<u64, Error>;
    /// Takes the right to write.
    fn protect(&mut self, at: usize, pages: usize) -> Result<(), Error>;
    /// As [`Mapper::protect`], page by page, with one invalidation for all where that can be said.
    fn protect_each(&mut self, at: usize, pages: usize) -> Result<(), Error> {
        (0..pages).try_for_each(|n| self.protect(at + n * PAGE, 1))
    }
    /// As [`Mapper::unmap`], in the same way.
    fn unmap_each(&mut self, at: usize, pages: usize) -> Result<u64, Error> {
        (0..pages).try_fold(0, |sum: u64, n| {
            Ok(sum.wrapping_add(self.unmap(at + n * PAGE, 1)?))
        })
    }
    /// Takes everything out; the sum of the physical addresses that begin a piece.
    fn unmap(&mut self, at: usize, pages: usize) -> Result<u64, Error>;
    /// The table of the highest level.
    fn root(&self) -> PhysAddr;
}

#[cold]
fn refused(what: &'static str) -> impl Fn(&dyn core::fmt::Debug) -> Error {
    move |error| Error::PageTable {
        what,
        error: format!("{error:?}"),
    }
}

/// `map_err` without the closure in every place.
trait OrRefused<T> {
    fn or_refused(self, what: &'static str) -> Result<T, Error>;
}

impl<T, E: core::fmt::Debug> OrRefused<T> for Result<T, E> {
    #[inline(always)]
    fn or_refused(self, what: &'static str) -> Result<T, Error> {
        self.map_err(|error| refused(what)(&error))
    }
}

/// Adds up where the pieces begin that come out.
struct Sum(u64);

// SAFETY: pgtable O1: nothing is owned.
unsafe impl Owner for Sum {
    #[inline]
    fn release(&mut self, taken: Taken) {
        if let Entry::Leaf(leaf) = taken.entry {
            self.0 += leaf.at.0;
        }
    }
}

type Tables<'f, 'm> = PageTable<'f, &'m Board, X86_64>;
type Forms<'t, 'f, 'm, M> = Ops<'t, 'f, &'m Board, X86_64, M>;

#[inline(always)]
fn map<M: Mode>(ops: &Forms<'_, '_, '_, M>, at: usize, to: u64, pages: usize) -> Result<(), Error> {
    let access = Access::READ.union(Access::WRITE).union(Access::USER);
    let leaf = Leaf::new(PhysAddr(to), access, Mapping::Ordinary);
    if pages == 1 {
        return ops
            .map_one::<Pte>(VirtAddr(at), &leaf)
            .or_refused("map_one");
    }
    ops.map::<Pte>(VirtAddr(at), &leaf, pages).or_refused("map")
}

#[inline(always)]
fn walk<M: Mode>(ops: &Forms<'_, '_, '_, M>, at: usize, pages: usize) -> Result<u64, Error> {
    if pages == 1 {
        let nothing = || refused("physical")(&at);
        return ops
            .physical(VirtAddr(at))
            .map(|to| to.0)
            .ok_or_else(nothing);
    }
    let mut sum = 0;
    ops.walk(VirtRange::new(at, pages * PAGE), |found| {
        if let Some(leaf) = found.leaf() {
            sum += leaf.at.0;
        }
    })
    .or_refused("walk")?;
    Ok(sum)
}

#[inline(always)]
fn protect<const ASKS: bool, M: Mode>(
    ops: &Forms<'_, '_, '_, M>,
    at: usize,
    pages: usize,
) -> Result<(), Error> {
    let access = Access::READ.union(Access::USER);
    if pages == 1 {
        let done = ops.protect_one::<Pte>(VirtAddr(at), access);
        return done.or_refused("protect_one");
    }
    let range = VirtRange::new(at, pages * PAGE);
    let done = if ASKS {
        let mut gather = ops.gather(NotOwned);
        let done = ops.protect(range, access, &mut gather);
        gather.finish();
        done
    } else {
        let mut gather = ops.gather(UseUnasked(NotOwned));
        let done = ops.protect(range, access, &mut gather);
        gather.finish();
        done
    };
    done.or_refused("protect")
}

#[inline(always)]
fn unmap<const ASKS: bool, M: Mode>(
    ops: &Forms<'_, '_, '_, M>,
    at: usize,
    pages: usize,
) -> Result<u64, Error> {
    if pages == 1 {
        let taken = ops.unmap_one::<Pte>(VirtAddr(at)).or_refused("unmap_one")?;
        return Ok(taken.address().map_or(0, |to| to.0));
    }
    let mut sum = Sum(0);
    let range = VirtRange::new(at, pages * PAGE);
    let done = if ASKS {
        let mut gather = ops.gather(&mut sum);
        let done = ops.unmap(range, &mut gather);
        gather.finish();
        done
    } else {
        let mut gather = ops.gather(UseUnasked(&mut sum));
        let done = ops.unmap(range, &mut gather);
        gather.finish();
        done
    };
    done.or_refused("unmap")?;
    Ok(sum.0)
}

#[inline(always)]
fn protect_each<M: Mode>(ops: &Forms<'_, '_, '_, M>, at: usize, pages: usize) -> Result<(), Error> {
    let mut gather = ops.gather(NotOwned);
    let access = Access::READ.union(Access::USER);
    let done = (0..pages)
        .try_for_each(|n| ops.protect(VirtRange::new(at + n * PAGE, PAGE), access, &mut gather));
    gather.finish();
    done.or_refused("protect")
}

#[inline(always)]
fn unmap_each<M: Mode>(ops: &Forms<'_, '_, '_, M>, at: usize, pages: usize) -> Result<u64, Error> {
    let mut sum = Sum(0);
    let mut gather = ops.gather(&mut sum);
    let done =
        (0..pages).try_for_each(|n| ops.unmap(VirtRange::new(at + n * PAGE, PAGE), &mut gather));
    gather.finish();
    done.or_refused("unmap")?;
    Ok(sum.0)
}

/// Flagstone's shared form; `ASKS`: somebody asks whether pages were accessed or written ([`Owner::ASKS_USE`]).
pub(crate) struct SharedForm<'f, 'm, const ASKS: bool>(pub(crate) Tables<'f, 'm>);

impl<const ASKS: bool> Mapper for SharedForm<'_, '_, ASKS> {
    #[inline(always)]
    fn map(&mut self, at: usize, to: u64, pages: usize) -> Result<(), Error> {
        map(&self.0.shared(), at, to, pages)
    }
    #[inline(always)]
    fn walk(&mut self, at: usize, pages: usize) -> Result<u64, Error> {
        walk(&self.0.shared(), at, pages)
    }
    #[inline(always)]
    fn protect(&mut self, at: usize, pages: usize) -> Result<(), Error> {
        protect::<ASKS, _>(&self.0.shared(), at, pages)
    }
    #[inline(always)]
    fn unmap(&mut self, at: usize, pages: usize) -> Result<u64, Error> {
        unmap::<ASKS, _>(&self.0.shared(), at, pages)
    }
    #[inline(always)]
    fn protect_each(&mut self, at: usize, pages: usize) -> Result<(), Error> {
        protect_each(&self.0.shared(), at, pages)
    }
    #[inline(always)]
    fn unmap_each(&mut self, at: usize, pages: usize) -> Result<u64, Error> {
        unmap_each(&self.0.shared(), at, pages)
    }
    fn root(&self) -> PhysAddr {
        self.0.root()
    }
}

/// Flagstone's exclusive form.
pub(crate) struct ExclusiveForm<'f, 'm>(pub(crate) Tables<'f, 'm>);

impl Mapper for ExclusiveForm<'_, '_> {
    #[inline(always)]
    fn map(&mut self, at: usize, to: u64, pages: usize) -> Result<(), Error> {
        map(&self.0.exclusive(), at, to, pages)
    }
    #[inline(always)]
    fn walk(&mut self, at: usize, pages: usize) -> Result<u64, Error> {
        walk(&self.0.exclusive(), at, pages)
    }
    #[inline(always)]
    fn protect(&mut self, at: usize, pages: usize) -> Result<(), Error> {
        protect::<true, _>(&self.0.exclusive(), at, pages)
    }
    #[inline(always)]
    fn unmap(&mut self, at: usize, pages: usize) -> Result<u64, Error> {
        unmap::<true, _>(&self.0.exclusive(), at, pages)
    }
    #[inline(always)]
    fn protect_each(&mut self, at: usize, pages: usize) -> Result<(), Error> {
        protect_each(&self.0.exclusive(), at, pages)
    }
    #[inline(always)]
    fn unmap_each(&mut self, at: usize, pages: usize) -> Result<u64, Error> {
        unmap_each(&self.0.exclusive(), at, pages)
    }
    fn root(&self) -> PhysAddr {
        self.0.root()
    }
}

/// The mapper of the crate `x86_64`, which has everything behind an offset as Flagstone has.
pub(crate) struct X86Crate<'m> {
    board: &'m Board,
    root: PhysAddr,
    table: OffsetPageTable<'m>,
}

/// Frames for its tables.
struct TakePages<'m>(&'m Board);

// SAFETY: B10: pages that nobody else has.
unsafe impl FrameAllocator<Size4KiB> for TakePages<'_> {
    fn allocate_frame(&mut self) -> Option<PhysFrame> {
        let at = self.0.take_page()?;
        Some(PhysFrame::containing_address(x86_64::PhysAddr::new(at.0)))
    }
}

impl<'m> X86Crate<'m> {
    /// An empty one on a board whose memory nobody has.
    pub(crate) fn new(board: &'m Board) -> Result<Self, Error> {
        let none = || Error::memory("a root")(flagstone_types::AllocError::OutOfMemory);
        let root = board.take_page().ok_or_else(none)?;
        let offset = board.offset();
        let table = core::ptr::with_exposed_provenance_mut(root.0 as usize + offset);
        // SAFETY: B10: a zeroed page of this table alone, and everything physical is behind the offset.
        let table =
            unsafe { OffsetPageTable::new(&mut *table, x86_64::VirtAddr::new(offset as u64)) };
        Ok(Self { board, root, table })
    }

    #[inline(always)]
    fn pages(at: usize, pages: usize) -> impl Iterator<Item = Page<Size4KiB>> {
        let first = Page::containing_address(x86_64::VirtAddr::new(at as u64));
        Page::range(first, first + pages as u64)
    }
}

const CRATE_WRITABLE: PageTableFlags = PageTableFlags::from_bits_truncate(WRITABLE);
const CRATE_READ_ONLY: PageTableFlags = PageTableFlags::from_bits_truncate(READ_ONLY);

impl Mapper for X86Crate<'_> {
    #[inline(always)]
    fn map(&mut self, at: usize, to: u64, pages: usize) -> Result<(), Error> {
        let mut allocator = TakePages(self.board);
        let first = PhysFrame::containing_address(x86_64::PhysAddr::new(to));
        let frames = PhysFrame::range(first, first + pages as u64);
        for (page, frame) in Self::pages(at, pages).zip(frames) {
            // SAFETY: nothing translates by these tables.
            let flush = unsafe {
                self.table
                    .map_to(page, frame, CRATE_WRITABLE, &mut allocator)
            };
            // Where nothing was there is nothing to invalidate, which its caller knows.
            flush.or_refused("map_to")?.ignore();
        }
        Ok(())
    }
    #[inline(always)]
    fn walk(&mut self, at: usize, pages: usize) -> Result<u64, Error> {
        let mut sum = 0;
        for page in Self::pages(at, pages) {
            match self.table.translate(page.start_address()) {
                TranslateResult::Mapped { frame, .. } => sum += frame.start_address().as_u64(),
                other => return Err(refused("translate")(&other)),
            }
        }
        Ok(sum)
    }
    #[inline(always)]
    fn protect(&mut self, at: usize, pages: usize) -> Result<(), Error> {
        for page in Self::pages(at, pages) {
            // SAFETY: nothing translates by these tables.
            let flush = unsafe { self.table.update_flags(page, CRATE_READ_ONLY) };
            flush.or_refused("update_flags")?.ignore();
            self.board.invalidated();
        }
        Ok(())
    }
    #[inline(always)]
    fn unmap(&mut self, at: usize, pages: usize) -> Result<u64, Error> {
        let mut sum = 0;
        for page in Self::pages(at, pages) {
            let (frame, flush) = self.table.unmap(page).or_refused("unmap")?;
            flush.ignore();
            self.board.invalidated();
            sum += frame.start_address().as_u64();
        }
        Ok(sum)
    }
    fn root(&self) -> PhysAddr {
        self.root
    }
}

/// What the crate `page_table_multiarch` adds to a physical address: its functions have no argument for it.
static OFFSET: AtomicUsize = AtomicUsize::new(0);
/// Where its tables are from; locked by who has a page table of it, so that there is one.
static SUPPLY: Mutex<Vec<usize>> = Mutex::new(Vec::new());
static ALONE: Mutex<()> = Mutex::new(());
/// Tables that it gets.
const TABLES: usize = 64;

/// The services that the crate asks for.
struct Services;

impl PagingHandler for Services {
    fn alloc_frames(count: usize, _: usize) -> Option<memory_addr::PhysAddr> {
        let mut supply = SUPPLY.lock().ok().filter(|_| count == 1)?;
        supply.pop().map(memory_addr::PhysAddr::from)
    }
    fn dealloc_frames(_: memory_addr::PhysAddr, _: usize) {}
    #[inline(always)]
    fn phys_to_virt(at: memory_addr::PhysAddr) -> memory_addr::VirtAddr {
        memory_addr::VirtAddr::from(at.as_usize() + OFFSET.load(Ordering::Relaxed))
    }
}

/// The page table of the crate `page_table_multiarch`. It collects addresses to invalidate in its cursor, and invalidates nothing outside of a kernel.
pub(crate) struct MultiArch<'m> {
    board: &'m Board,
    table: X64PageTable<Services>,
    _alone: MutexGuard<'static, ()>,
}

impl<'m> MultiArch<'m> {
    /// An empty one on a board whose memory nobody has.
    pub(crate) fn new(board: &'m Board) -> Result<Self, Error> {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        OFFSET.store(board.offset(), Ordering::Relaxed);
        let pages = (0..TABLES).map_while(|_| board.take_page());
        *SUPPLY.lock().unwrap_or_else(PoisonError::into_inner) =
            pages.map(|at| at.0 as usize).collect();
        Ok(Self {
            board,
            table: X64PageTable::try_new().or_refused("try_new")?,
            _alone: alone,
        })
    }
}

impl Mapper for MultiArch<'_> {
    #[inline(always)]
    fn map(&mut self, at: usize, to: u64, pages: usize) -> Result<(), Error> {
        let flags = MappingFlags::READ | MappingFlags::WRITE | MappingFlags::USER;
        let mut cursor = self.table.cursor();
        if pages == 1 {
            let result = cursor.map(at.into(), (to as usize).into(), PageSize::Size4K, flags);
            return result.or_refused("map");
        }
        let to_of = |va: memory_addr::VirtAddr| (to as usize + (va.as_usize() - at)).into();
        let result = cursor.map_region(at.into(), to_of, pages * PAGE, flags, false);
        result.or_refused("map_region")
    }
    #[inline(always)]
    fn walk(&mut self, at: usize, pages: usize) -> Result<u64, Error> {
        let mut sum = 0;
        for n in 0..pages {
            let (to, _, _) = self
                .table
                .query((at + n * PAGE).into())
                .or_refused("query")?;
            sum += to.as_usize() as u64;
        }
        Ok(sum)
    }
    #[inline(always)]
    fn protect(&mut self, at: usize, pages: usize) -> Result<(), Error> {
        let flags = MappingFlags::READ | MappingFlags::USER;
        let mut cursor = self.table.cursor();
        let result = if pages == 1 {
            cursor.protect(at.into(), flags).map(|_| ())
        } else {
            cursor.protect_region(at.into(), pages * PAGE, flags)
        };
        drop(cursor);
        self.board.invalidated();
        result.or_refused("protect")
    }
    #[inline(always)]
    fn unmap(&mut self, at: usize, pages: usize) -> Result<u64, Error> {
        let mut cursor = self.table.cursor();
        let result = if pages == 1 {
            cursor
                .unmap(at.into())
                .map(|(to, _, _)| to.as_usize() as u64)
        } else {
            cursor.unmap_region(at.into(), pages * PAGE).map(|()| 0)
        };
        drop(cursor);
        self.board.invalidated();
        result.or_refused("unmap")
    }
    fn root(&self) -> PhysAddr {
        PhysAddr(self.table.root_paddr().as_usize() as u64)
    }
}
