//! Gathering: what was taken out of a page table is owned here until no CPU can use it any more.
//!
//! Operations add to a [`Gather`] what they change; [`Gather::finish`] invalidates once for the union of all changes and only then releases leaves to
//! their owner and tables to a grace period (I1, I2). What does not fit is invalidated and released in between: a gather never fails.

use crate::format::{Entry, Format, Leaf, Level};
use crate::mode::Mode;
use crate::ops::Ops;
use crate::span::{Span, reach_of};
use crate::table::{PageTable, TableHost};
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::panic::Location;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use flagstone_frames::PageBlock;
use flagstone_host::Level as LogLevel;
use flagstone_types::{Gfp, Order, PhysAddr, VirtAddr};

/// Entries that were taken out and that no CPU can use any more: a run of equal ones, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The address that the first one translated.
    pub at: VirtAddr,
    /// The level that they were on.
    pub level: Level,
    /// The first one, with accessed and dirty as they were in the end: a leaf, or something absent.
    pub entry: Entry,
    /// How many: leaves map memory that is contiguous, `pages` times the size of one.
    pub pages: usize,
}

impl Taken {
    /// The leaf number `n` of the run, if it is one of leaves.
    #[must_use]
    pub fn leaf<F: Format>(&self, n: usize) -> Option<Leaf> {
        match self.entry {
            Entry::Leaf(leaf) if n < self.pages => {
                let bytes = n as u64 * reach_of::<F>(self.level);
                Some(leaf.moved(PhysAddr(leaf.at.0 + bytes)))
            }
            _ => None,
        }
    }
}

/// Who owns what leaves and absent entries of a page table stand for.
///
/// # Safety
/// **O1**: what an implementation does with [`Owner::release`] is right if each leaf that was mapped (and not marked `SPECIAL`) is released at
/// most once, when no CPU can use it. So who maps a leaf gives up what it stands for.
pub unsafe trait Owner {
    /// Whether anybody asks if what it owns was accessed or written. Otherwise entries are changed and taken out by stores while units use them, and a bit
    /// that a unit sets at that moment may be lost (E4).
    const ASKS_USE: bool = true;

    /// Takes back what the entries stood for.
    fn release(&mut self, taken: Taken);
}

/// An owner that keeps nothing: the memory belongs to somebody who knows when it is unmapped.
#[derive(Clone, Copy, Debug, Default)]
pub struct NotOwned;

// SAFETY: O1: it does nothing.
unsafe impl Owner for NotOwned {
    fn release(&mut self, _: Taken) {}
}

/// An owner of memory of which nobody asks whether it was accessed or written, like pages that are freed as they are unmapped: see [`Owner::ASKS_USE`].
#[derive(Clone, Copy, Debug, Default)]
pub struct UseUnasked<O>(pub O);

// SAFETY: O1: as the owner within.
unsafe impl<O: Owner> Owner for UseUnasked<O> {
    const ASKS_USE: bool = false;

    fn release(&mut self, taken: Taken) {
        self.0.release(taken);
    }
}

// SAFETY: O1: as the owner that is borrowed.
unsafe impl<O: Owner> Owner for &mut O {
    const ASKS_USE: bool = O::ASKS_USE;

    fn release(&mut self, taken: Taken) {
        (**self).release(taken);
    }
}

/// Something that a gather owns.
#[derive(Clone, Copy)]
struct Run {
    /// The entry of the first one; of a table, where it is.
    word: u64,
    /// From bit 0: the level, 0 for a table; from bit 3: how many; from bit 18: the offset in pages.
    rest: u64,
}

impl Run {
    const PAGES: u32 = 3;
    const OFFSET: u32 = 18;

    #[inline(always)]
    fn new<F: Format>(word: u64, offset: u64, pages: usize, level: u8) -> Self {
        debug_assert!(pages < 1 << (Self::OFFSET - Self::PAGES) && level < 1 << Self::PAGES);
        let rest = u64::from(level)
            | (pages as u64) << Self::PAGES
            | offset >> F::PAGE_SHIFT << Self::OFFSET;
        Self { word, rest }
    }

    fn level(self) -> u8 {
        (self.rest & ((1 << Self::PAGES) - 1)) as u8
    }

    fn pages(self) -> usize {
        (self.rest >> Self::PAGES) as usize & ((1 << (Self::OFFSET - Self::PAGES)) - 1)
    }

    fn offset<F: Format>(self) -> u64 {
        self.rest >> Self::OFFSET << F::PAGE_SHIFT
    }
}

/// Runs that a gather holds without memory of its own: few, because a gather is moved when it is finished.
const INLINE: usize = 4;

/// A page full of runs.
#[repr(C)]
struct BatchHead {
    /// The batch that was filled before.
    before: Option<NonNull<BatchHead>>,
    block: Option<PageBlock>,
    len: usize,
}

/// The token that owns what was taken out of a page table; see the module.
///
/// Must be finished: one that is dropped finishes itself, and in debug builds reports where it was made if it still owned something. While
/// several gathers of one page table are under way, each invalidates the whole address space (I4).
#[must_use = "what was taken out is used by CPUs until the gather is finished"]
pub struct Gather<'t, 'f, H: TableHost, F: Format, M: Mode, O: Owner> {
    table: &'t PageTable<'f, H, F>,
    owner: O,
    ended: bool,
    /// The union of what needs an invalidation; empty if `start >= end`.
    span: Span,
    stride: u8,
    tables: bool,
    inline: [MaybeUninit<Run>; INLINE],
    inline_len: u8,
    last: Option<NonNull<BatchHead>>,
    /// Empty batches, chained by `before`, ready to be the next `last`.
    spare: Option<NonNull<BatchHead>>,
    /// How many spare ones there are.
    spares: u16,
    made: &'static Location<'static>,
    mode: PhantomData<M>,
}

impl<H: TableHost, F: Format, M: Mode, O: Owner> core::fmt::Debug for Gather<'_, '_, H, F, M, O> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Gather")
            .field("span", &self.span)
            .field("stride", &self.stride)
            .field("tables", &self.tables)
            .field("made", &self.made)
            .finish_non_exhaustive()
    }
}

const EMPTY: Span = Span {
    start: u64::MAX,
    end: 0,
};

impl<'t, 'f, H: TableHost, F: Format, M: Mode> Ops<'t, 'f, H, F, M> {
    /// Begins to gather. `owner` gets what leaves and absent entries stood for.
    #[inline]
    #[track_caller]
    pub fn gather<O: Owner>(&self, owner: O) -> Gather<'t, 'f, H, F, M, O> {
        // I4: before the first change.
        self.table.count_gather::<M>(1);
        Gather {
            table: self.table,
            owner,
            ended: false,
            span: EMPTY,
            stride: u8::MAX,
            tables: false,
            inline: [MaybeUninit::uninit(); INLINE],
            inline_len: 0,
            last: None,
            spare: None,
            spares: 0,
            made: Location::caller(),
            mode: PhantomData,
        }
    }
}

impl<'f, H: TableHost, F: Format, M: Mode, O: Owner> Gather<'_, 'f, H, F, M, O> {
    /// Runs that a batch has room for.
    const BATCH: usize = (H::PAGE_SIZE - size_of::<BatchHead>()) / size_of::<Run>();

    /// Notes that entries of `level` in `start..end` were changed and need an invalidation.
    #[inline]
    pub(crate) fn note(&mut self, start: u64, end: u64, level: Level) {
        self.span.start = self.span.start.min(start);
        self.span.end = self.span.end.max(end);
        self.stride = self.stride.min(F::shift(level) as u8);
    }

    /// Whether nothing is noted that needs an invalidation.
    pub(crate) fn needs_nothing(&self) -> bool {
        self.span.start >= self.span.end
    }

    /// Owns `pages` entries of `level` from now on, of which `word` is the first, at `offset`. There is room ([`Gather::reserve`]).
    #[inline]
    pub(crate) fn own(&mut self, word: u64, offset: u64, pages: usize, level: Level) {
        self.push(Run::new::<F>(word, offset, pages, level.get()));
    }

    /// Owns a table that was unlinked, named by an entry of level `above` that translated `start..end`. There is room.
    pub(crate) fn own_table(&mut self, at: PhysAddr, start: u64, end: u64, above: Level) {
        self.note(start, end, above);
        self.tables = true;
        self.push(Run::new::<F>(at.0, start, 1, 0));
    }

    fn push(&mut self, run: Run) {
        if usize::from(self.inline_len) < INLINE {
            self.inline[usize::from(self.inline_len)].write(run);
            self.inline_len += 1;
            return;
        }
        if let Some(batch) = self.last.filter(|batch| {
            // SAFETY: a batch of this gather.
            unsafe { batch.as_ref() }.len < Self::BATCH
        }) {
            // SAFETY: as above, and it has room.
            unsafe { Self::push_to(batch, run) };
        } else if let Some(spare) = self.take_spare() {
            // SAFETY: an empty batch of this gather.
            unsafe {
                (*spare.as_ptr()).before = self.last;
                Self::push_to(spare, run);
            }
            self.last = Some(spare);
        } else {
            debug_assert!(false, "a gather has no room for what it is to own");
        }
    }

    fn take_spare(&mut self) -> Option<NonNull<BatchHead>> {
        let spare = self.spare?;
        // SAFETY: an empty batch of this gather.
        self.spare = unsafe { spare.as_ref() }.before;
        self.spares -= 1;
        Some(spare)
    }

    /// # Safety
    /// A batch of this gather with room.
    unsafe fn push_to(batch: NonNull<BatchHead>, run: Run) {
        // SAFETY: the caller's promise: slots begin behind the head, and `len` of them are used.
        unsafe {
            let len = (*batch.as_ptr()).len;
            batch.add(1).cast::<Run>().add(len).write(run);
            (*batch.as_ptr()).len = len + 1;
        }
    }

    /// How many runs it has room for.
    fn room(&self) -> usize {
        let inline = INLINE - usize::from(self.inline_len);
        let last = self.last.map_or(0, |batch| {
            // SAFETY: a batch of this gather.
            Self::BATCH - unsafe { batch.as_ref() }.len
        });
        inline + last + usize::from(self.spares) * Self::BATCH
    }

    /// Makes room for up to `wanted` runs and says for how many there is room, at least one. Called with no lock held and in no section; may invalidate and release.
    #[inline]
    pub(crate) fn reserve(&mut self, wanted: usize) -> usize {
        let room = self.room();
        if room >= wanted {
            return room;
        }
        self.make_room(wanted)
    }

    #[cold]
    #[inline(never)]
    fn make_room(&mut self, wanted: usize) -> usize {
        if self.spare.is_none() {
            self.grow();
        }
        if self.room() < wanted.min(INLINE) {
            self.settle();
        }
        self.room()
    }

    /// Gets another batch; false if there is no memory. Called with no lock held and in no section.
    pub(crate) fn grow(&mut self) -> bool {
        let Some(batch) = self.new_batch() else {
            return false;
        };
        // SAFETY: the batch is this gather's.
        unsafe { (*batch.as_ptr()).before = self.spare };
        self.spare = Some(batch);
        self.spares += 1;
        true
    }

    fn new_batch(&self) -> Option<NonNull<BatchHead>> {
        let frames = self.table.frames();
        let block = frames
            .alloc_pages(Gfp::NOWAIT.union(Gfp::NOWARN), Order::ZERO, None)
            .ok()?;
        let batch = self.table.host.frame_ptr(block.pfn()).cast::<BatchHead>();
        // SAFETY: F1: the page is this gather's; M1: it is aligned to its size.
        unsafe {
            batch.write(BatchHead {
                before: None,
                block: Some(block),
                len: 0,
            });
        }
        Some(batch)
    }

    fn free_batch(&self, batch: NonNull<BatchHead>) {
        // SAFETY: a batch of this gather, which is not used again.
        if let Some(block) = unsafe { (*batch.as_ptr()).block.take() } {
            self.table.frames().free_pages(block);
        }
    }

    /// Invalidates what was changed so far.
    fn flush_changes(&mut self, others: bool) {
        if others {
            self.table.flush(&self.table.invalidation_of_all());
        } else if !self.needs_nothing() && (M::SHARED || self.table.is_used()) {
            let what = self
                .table
                .invalidation(self.span, u32::from(self.stride), self.tables);
            self.table.flush(&what);
        }
        (self.span, self.stride, self.tables) = (EMPTY, u8::MAX, false);
    }

    /// Whether other gathers may have changed what this one relies on (I4).
    fn sees_others(&self) -> bool {
        self.table.gathering.load(Ordering::SeqCst) > 1
    }

    /// Invalidates, then releases everything that is owned.
    #[inline]
    fn settle(&mut self) {
        let others = self.sees_others();
        self.flush_changes(others);
        self.release_all();
    }

    fn release_all(&mut self) {
        let inline = core::mem::take(&mut self.inline_len);
        for n in 0..usize::from(inline) {
            // SAFETY: `push` wrote the first `inline_len`.
            let run = unsafe { self.inline[n].assume_init() };
            self.release_run(run);
        }
        while let Some(batch) = self.last {
            // SAFETY: a batch of this gather.
            let (before, len) = unsafe { (batch.as_ref().before, batch.as_ref().len) };
            for n in 0..len {
                // SAFETY: `push_to` wrote the first `len` slots behind the head.
                let run = unsafe { batch.add(1).cast::<Run>().add(n).read() };
                self.release_run(run);
            }
            self.last = before;
            self.free_batch(batch);
        }
    }

    fn release_run(&mut self, run: Run) {
        let Some(level) = Level::new(run.level()) else {
            // SAFETY: I2: unlinked by who gave it here, and invalidated with `tables` by now.
            unsafe { self.table.retire::<M>(PhysAddr(run.word)) };
            return;
        };
        let taken = Taken {
            at: self.table.addresses.address(run.offset::<F>()),
            level,
            entry: F::decode(level, run.word),
            pages: run.pages(),
        };
        self.owner.release(taken);
    }

    fn is_idle(&self) -> bool {
        self.needs_nothing() && self.inline_len == 0 && self.last.is_none()
    }

    #[inline]
    fn end(&mut self) {
        self.settle();
        while let Some(spare) = self.take_spare() {
            self.free_batch(spare);
        }
        // I4: after the last invalidation.
        self.table.count_gather::<M>(-1);
    }

    /// Invalidates on every CPU that may hold what was changed, then releases what was taken out. Called with no lock held and in no read-side section.
    #[inline]
    pub fn finish(mut self) {
        self.ended = true;
        self.end();
    }
}

impl<H: TableHost, F: Format, M: Mode, O: Owner> Drop for Gather<'_, '_, H, F, M, O> {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        if cfg!(debug_assertions) && !self.is_idle() {
            let message = format_args!("a gather made at {} was not finished", self.made);
            self.table.host.log(LogLevel::Error, message);
        }
        self.end();
    }
}
