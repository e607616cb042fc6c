//! Taking leaves and absent entries out.

use crate::edit::Edit;
use crate::error::Error;
use crate::format::{Entry, Format, Level, Marks};
use crate::gather::{Gather, Owner};
use crate::level::{Raw, TableLevel};
use crate::mode::Mode;
use crate::ops::Ops;
use crate::span::{Span, VirtRange, reach_of};
use crate::stray::{CHUNK, take_in_two_steps};
use crate::table::TableHost;
use crate::words::Locked;

pub(crate) struct Unmap<'g, 't, 'f, H: TableHost, F: Format, M: Mode, O: Owner> {
    gather: &'g mut Gather<'t, 'f, H, F, M, O>,
    /// Runs that the gather has room for.
    room: usize,
}

impl<'g, 't, 'f, H: TableHost, F: Format, M: Mode, O: Owner> Unmap<'g, 't, 'f, H, F, M, O> {
    /// Takes out into `gather`, which has room for `room` runs.
    pub(crate) fn new(gather: &'g mut Gather<'t, 'f, H, F, M, O>, room: usize) -> Self {
        Self { gather, room }
    }
}

/// Leaves that were taken out one after the other and map contiguous memory.
struct Contiguous<F, L> {
    first: Raw<F, L>,
    offset: u64,
    pages: usize,
    /// What the next one would be.
    next: Raw<F, L>,
}

impl<F: Format, L: TableLevel> Contiguous<F, L> {
    const NONE: Self = Self {
        first: Raw::NONE,
        offset: 0,
        pages: 0,
        next: Raw::NONE,
    };

    /// Nothing goes on with it: an entry was left out.
    #[inline(always)]
    fn cut(&mut self) {
        self.next = Raw::NONE;
    }
}

impl<H: TableHost, F: Format, M: Mode, O: Owner> Unmap<'_, '_, '_, H, F, M, O> {
    /// Hands a run to the gather, unless nobody owns it.
    #[inline]
    fn own<L: TableLevel>(&mut self, run: &Contiguous<F, L>) {
        if run.pages == 0 {
            return;
        }
        let special = matches!(run.first.decode(), Entry::Leaf(leaf) if leaf.marks().contains(Marks::SPECIAL));
        if !special {
            let Contiguous {
                first,
                offset,
                pages,
                ..
            } = *run;
            self.gather.own(first.bits(), offset, pages, L::LEVEL);
        }
    }

    /// Adds an entry that was taken out.
    #[inline]
    fn add<L: TableLevel>(&mut self, run: &mut Contiguous<F, L>, raw: Raw<F, L>, offset: u64) {
        if raw == run.next {
            run.pages += 1;
            run.next = raw.following();
            return;
        }
        self.own(run);
        self.room = self.room.saturating_sub(1);
        let next = if raw.is_present() {
            raw.following()
        } else {
            Raw::NONE
        };
        *run = Contiguous {
            first: raw,
            offset,
            pages: 1,
            next,
        };
    }
}

impl<H: TableHost, F: Format, M: Mode, O: Owner> Edit<H, F, M> for Unmap<'_, '_, '_, H, F, M, O> {
    const SHORT: bool = true;

    #[inline]
    fn room(&mut self, wanted: usize) -> usize {
        self.room = self.gather.reserve(1);
        wanted
    }

    #[inline]
    fn edit<L: TableLevel>(
        &mut self,
        ops: &Ops<'_, '_, H, F, M>,
        locked: &Locked<'_, H, F, L, M>,
        first: usize,
        count: usize,
        offset: u64,
        quiet: bool,
    ) -> usize {
        if ops.table.caps.stray_dirty {
            let count = count.min(CHUNK).min(self.room);
            return self.edit_in_two_steps(ops, locked, first, count, offset);
        }
        // E4: what the unit sets meanwhile is asked for by nobody.
        let quiet = quiet || (!O::ASKS_USE && !F::HALVES);
        let size = reach_of::<F>(L::LEVEL);
        let mut run = Contiguous::NONE;
        let (mut from, mut to) = (u64::MAX, 0);
        let mut n = 0;
        while n < count {
            let seen = locked.load(first + n);
            if seen.is_table() {
                break;
            }
            if seen.is_none() {
                run.cut();
                n += 1;
                continue;
            }
            // It may begin a run of its own, whatever it looks like before it is taken.
            if self.room == 0 {
                break;
            }
            let old = locked.take(first + n, seen, quiet);
            self.add(&mut run, old, offset + n as u64 * size);
            n += 1;
            if old.is_present() {
                from = from.min(offset + (n - 1) as u64 * size);
                let plain = quiet || seen.is_settled();
                n = self.take_run(locked, first, n..count, offset, &mut run, plain);
                to = offset + n as u64 * size;
            }
        }
        let done = n;
        if from < to {
            self.gather.note(from, to, L::LEVEL);
        }
        self.own(&run);
        done
    }
}

impl<H: TableHost, F: Format, M: Mode, O: Owner> Unmap<'_, '_, '_, H, F, M, O> {
    /// Takes out the entries that go on with `run`, by stores if that is enough (E1, E2); says where it stopped.
    #[inline(always)]
    fn take_run<L: TableLevel>(
        &mut self,
        locked: &Locked<'_, H, F, L, M>,
        first: usize,
        entries: core::ops::Range<usize>,
        offset: u64,
        run: &mut Contiguous<F, L>,
        plain: bool,
    ) -> usize {
        let (mut n, mut next) = (entries.start, run.next);
        let mut surprise = None;
        while n < entries.end && (plain || self.room > 0) && locked.load(first + n) == next {
            if plain {
                locked.overwrite(first + n, Raw::NONE);
            } else {
                let old = locked.exchange(first + n, Raw::NONE);
                if old != next {
                    surprise = Some(old);
                    break;
                }
            }
            next = next.following();
            n += 1;
        }
        run.pages += n - entries.start;
        run.next = next;
        if let Some(old) = surprise {
            // The unit has set a bit a moment ago.
            self.add(run, old, offset + n as u64 * reach_of::<F>(L::LEVEL));
            n += 1;
        }
        n
    }

    /// As `edit`, on a unit that sets the dirty bit of entries that have gone (I6).
    #[cold]
    fn edit_in_two_steps<L: TableLevel>(
        &mut self,
        ops: &Ops<'_, '_, H, F, M>,
        locked: &Locked<'_, H, F, L, M>,
        first: usize,
        count: usize,
        offset: u64,
    ) -> usize {
        let size = reach_of::<F>(L::LEVEL);
        let (done, taken) = take_in_two_steps(ops, locked, first, count, offset);
        let mut run = Contiguous::NONE;
        for (n, &raw) in taken.iter().enumerate().take(done) {
            if !raw.is_none() {
                if !raw.is_present() {
                    locked.overwrite(first + n, Raw::NONE);
                }
                self.add(&mut run, raw, offset + n as u64 * size);
            } else {
                run.cut();
            }
        }
        self.own(&run);
        done
    }
}

impl<'t, 'f, H: TableHost, F: Format, M: Mode> Ops<'t, 'f, H, F, M> {
    /// Takes every leaf and absent entry of a range out. `gather` owns them and invalidates when it is finished. Tables stay: see [`Ops::free_tables`].
    ///
    /// # Errors
    /// A range that is unaligned or not translated here; [`Error::CutsHuge`]: one of its ends lies within a huge leaf; nothing has changed. Only where
    /// other contexts change the same range it may stop with an error when part of it is unmapped.
    #[inline]
    pub fn unmap<O: Owner>(
        &self,
        range: VirtRange,
        gather: &mut Gather<'t, 'f, H, F, M, O>,
    ) -> Result<(), Error> {
        let span = self.table.addresses.span(range, Level::PTE)?;
        self.check_end(span)?;
        self.unmap_span(span, gather)
    }

    #[inline]
    pub(crate) fn unmap_span<O: Owner>(
        &self,
        span: Span,
        gather: &mut Gather<'t, 'f, H, F, M, O>,
    ) -> Result<(), Error> {
        let mut unmap = Unmap::new(gather, 0);
        self.edit(span, &mut unmap)
    }
}
