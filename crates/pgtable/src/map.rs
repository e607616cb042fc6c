//! Mapping: leaves where nothing was, with the tables that they need.

use crate::error::{Error, MapError};
use crate::format::{Format, Leaf, Level};
use crate::level::{Raw, TableLevel};
use crate::mode::Mode;
use crate::ops::{Ops, Place, Stop, Visit};
use crate::span::{Span, VirtRange, reach_of};
use crate::spares::Spares;
use crate::table::TableHost;
use crate::words::Locked;
use core::marker::PhantomData;
use core::sync::atomic::Ordering;
use flagstone_host::Event;
use flagstone_types::VirtAddr;

/// Where the entries come from that are stored.
pub(crate) trait Source<F, L> {
    /// Gives the entries `from..from + count` to `store`, with their number behind `from`.
    fn fill(&self, from: usize, count: usize, store: impl FnMut(usize, Raw<F, L>));
}

/// Leaves of contiguous memory.
pub(crate) struct Contiguous(pub(crate) Leaf);

impl<F: Format, L: TableLevel> Source<F, L> for Contiguous {
    #[inline]
    fn fill(&self, from: usize, count: usize, mut store: impl FnMut(usize, Raw<F, L>)) {
        let first = F::leaf(L::LEVEL, &self.0);
        let mut raw = Raw::<F, L>::from_bits(F::advance(L::LEVEL, first, from as u64));
        if raw.is_present() {
            // None is beyond the last address: that was checked.
            for n in 0..count {
                store(n, raw);
                raw = raw.following();
            }
        } else {
            for n in 0..count {
                store(n, raw);
                raw = raw.next();
            }
        }
    }
}

/// Leaves that a caller's function gives one by one.
struct Each<C>(C);

impl<F: Format, L: TableLevel, C: Fn(usize) -> Leaf> Source<F, L> for Each<C> {
    #[inline]
    fn fill(&self, from: usize, count: usize, mut store: impl FnMut(usize, Raw<F, L>)) {
        for n in 0..count {
            let raw = F::leaf(L::LEVEL, &(self.0)(from + n));
            store(n, Raw::from_bits(raw));
        }
    }
}

/// What a step of mapping came to.
enum Step {
    /// So many entries were stored.
    Stored(usize),
    /// A table was linked.
    Linked,
    /// A table of this level is missing, and there is no spare one.
    Missing(Level),
}

struct MapRun<'s, 't, 'f, H: TableHost, F: Format, T, S> {
    span: Span,
    /// None: a missing table is reported.
    spares: Option<&'s mut Spares<'t, 'f, H, F>>,
    source: &'s S,
    level: PhantomData<T>,
}

impl<H: TableHost, F: Format, M: Mode, T: TableLevel, S: Source<F, T>> Visit<H, F, M>
    for MapRun<'_, '_, '_, H, F, T, S>
{
    const FLOOR: Level = T::LEVEL;
    type Out = Step;

    #[inline]
    fn at<'s, L: TableLevel>(
        &mut self,
        ops: &Ops<'s, '_, H, F, M>,
        place: Place<'s, H, F, L>,
        seen: Raw<F, L>,
    ) -> Result<Step, Stop> {
        if L::LEVEL == T::LEVEL && F::LEAF[L::LEVEL.index()] {
            return self.store(ops, &place);
        }
        if !seen.is_none() {
            return Err(ops.occupied(place.start(), seen).into());
        }
        self.link(ops, &place)
    }
}

impl<'t, 'f, H: TableHost, F: Format, T: TableLevel, S: Source<F, T>>
    MapRun<'_, 't, 'f, H, F, T, S>
{
    /// Stores the entries of the span that stand in the table of a place, if nothing is there.
    #[inline]
    fn store<M: Mode, L: TableLevel>(
        &mut self,
        ops: &Ops<'_, '_, H, F, M>,
        place: &Place<'_, H, F, L>,
    ) -> Result<Step, Stop> {
        let size = reach_of::<F>(L::LEVEL);
        let count = place.count_to(self.span.end);
        let locked = ops.lock(place)?;
        for n in 0..count {
            let seen = locked.load(place.index + n);
            if !seen.is_none() {
                let at = place.offset + n as u64 * size;
                return Err(ops.occupied(at, seen).into());
            }
        }
        let end = place.offset + count as u64 * size;
        ops.break_before_make(place.offset, end, L::LEVEL);
        let from = ((place.offset - self.span.start) / size) as usize;
        let index = place.index;
        // `L` is `T` (checked by `at`): the same bits under the other name.
        self.source.fill(from, count, |n, raw: Raw<F, T>| {
            locked.set(index + n, Raw::from_bits(raw.bits()));
        });
        Ok(Step::Stored(count))
    }

    /// Links a spare table at a place, if nothing is there.
    #[cold]
    #[inline(never)]
    fn link<M: Mode, L: TableLevel>(
        &mut self,
        ops: &Ops<'_, '_, H, F, M>,
        place: &Place<'_, H, F, L>,
    ) -> Result<Step, Stop> {
        let missing = Step::Missing(L::Below::LEVEL);
        let Some(spares) = &mut self.spares else {
            return Ok(missing);
        };
        let Some(spare) = spares.take::<L::Below>() else {
            return Ok(missing);
        };
        let linked = ops.link(place, spare);
        if !matches!(linked, Ok(true)) {
            spares.put(spare);
        }
        linked.map(|_| Step::Linked)
    }
}

/// Counts the tables that a span lacks, and finds what is in the way. Reads without locks.
struct Survey<T> {
    span: Span,
    missing: [usize; 6],
    level: PhantomData<T>,
}

impl<H: TableHost, F: Format, M: Mode, T: TableLevel> Visit<H, F, M> for Survey<T> {
    const FLOOR: Level = T::LEVEL;
    /// The offset behind what was looked at.
    type Out = u64;

    #[inline]
    fn at<'s, L: TableLevel>(
        &mut self,
        ops: &Ops<'s, '_, H, F, M>,
        place: Place<'s, H, F, L>,
        seen: Raw<F, L>,
    ) -> Result<u64, Stop> {
        let size = reach_of::<F>(L::LEVEL);
        if L::LEVEL == T::LEVEL {
            let count = place.count_to(self.span.end);
            for n in 0..count {
                let seen = place.table.load(place.index + n);
                if !seen.is_none() {
                    let at = place.offset + n as u64 * size;
                    return Err(ops.occupied(at, seen).into());
                }
            }
            return Ok(place.offset + count as u64 * size);
        }
        if !seen.is_none() {
            return Err(ops.occupied(place.start(), seen).into());
        }
        let end = (place.start() + size).min(self.span.end);
        let mut level = L::LEVEL;
        while let Some(below) = level.below().filter(|&below| below >= T::LEVEL) {
            let shift = F::shift(level);
            let tables = ((end - 1) >> shift) - (place.offset >> shift) + 1;
            self.missing[below.index()] += tables as usize;
            level = below;
        }
        Ok(end)
    }
}

impl<'t, 'f, H: TableHost, F: Format, M: Mode> Ops<'t, 'f, H, F, M> {
    /// Invalidates what a gather may have taken out of `start..end` and not yet invalidated, where the architecture asks for it (I5). The table is locked.
    #[inline]
    pub(crate) fn break_before_make(&self, start: u64, end: u64, level: Level) {
        if F::BREAK_BEFORE_MAKE && self.table.is_gathering() {
            let span = Span { start, end };
            let what = self.table.invalidation(span, F::shift(level), true);
            self.table.flush(&what);
        }
    }

    /// Links a private table at a place; false if something is there already.
    pub(crate) fn link<L: TableLevel>(
        &self,
        place: &Place<'_, H, F, L>,
        child: crate::level::TableAt<F, L::Below>,
    ) -> Result<bool, Stop> {
        let locked: Locked<'_, H, F, L, M> = self.lock(place)?;
        if !locked.load(place.index).is_none() {
            return Ok(false);
        }
        let (start, size) = (place.start(), reach_of::<F>(L::LEVEL));
        self.break_before_make(start, start + size, L::LEVEL);
        locked.link(place.index, child, self.table.caps.paravirtual);
        if F::HALVES && L::LEVEL == F::TOP {
            // H3: units of 32-bit machines hold the root's entries, those that say nothing too.
            self.table.flush(&self.table.invalidation_of_all());
        }
        self.table.linked.fetch_add(1, Ordering::Relaxed);
        drop(locked);
        self.host().count(Event::PgtableLink, 1);
        Ok(true)
    }

    /// Maps contiguous memory: `count` leaves of level `L` from `at` on, the first one `leaf`, each of the others one size further on. Nothing may be there.
    /// The table owns what the leaves stand for from now on.
    ///
    /// # Errors
    /// See [`MapError`]; the leaves that were not mapped are still the caller's. [`Error::Occupied`], [`Error::NoTable`],
    /// or an argument that is not possible. Nothing has changed, unless other contexts work on the same range meanwhile.
    #[inline]
    pub fn map<L: TableLevel>(
        &self,
        at: VirtAddr,
        leaf: &Leaf,
        count: usize,
    ) -> Result<(), MapError> {
        let span = self.entries::<L>(at, count)?;
        self.check_leaf::<L>(leaf, count)?;
        self.map_from::<L, _>(span, &Contiguous(*leaf))
    }

    /// Maps `count` leaves of level `L` from `at` on: number `n` is `leaf(n)`, which must be the same each time it is asked for.
    ///
    /// # Errors
    /// As [`Ops::map`].
    pub fn map_each<L: TableLevel>(
        &self,
        at: VirtAddr,
        count: usize,
        leaf: impl Fn(usize) -> Leaf,
    ) -> Result<(), MapError> {
        let span = self.entries::<L>(at, count)?;
        for n in 0..count {
            self.check_leaf::<L>(&leaf(n), 1)?;
        }
        self.map_from::<L, _>(span, &Each(leaf))
    }

    /// The span of `count` entries of level `L` from `at` on.
    #[inline]
    fn entries<L: TableLevel>(&self, at: VirtAddr, count: usize) -> Result<Span, Error> {
        let bytes = count
            .checked_mul(reach_of::<F>(L::LEVEL) as usize)
            .ok_or(Error::BadLength(count))?;
        let range = VirtRange::new(at.0, bytes);
        self.table.addresses.span(range, L::LEVEL)
    }

    #[inline]
    fn map_from<L: TableLevel, S: Source<F, L>>(
        &self,
        span: Span,
        source: &S,
    ) -> Result<(), MapError> {
        let table = F::shift(L::LEVEL) + F::INDEX_BITS[L::LEVEL.index()];
        if span.start >> table == (span.end - 1) >> table {
            // One table: nothing is changed before everything was looked at.
            let mut run = MapRun {
                span,
                spares: None,
                source,
                level: PhantomData::<L>,
            };
            match self.visit(span.start, &mut run)? {
                Step::Stored(_) => return Ok(()),
                Step::Linked | Step::Missing(_) => {}
            }
        }
        self.map_with_tables(span, source)
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn map_with_tables<L: TableLevel, S: Source<F, L>>(
        &self,
        span: Span,
        source: &S,
    ) -> Result<(), MapError> {
        let mut spares = Spares::new(self.table);
        spares.add_all(&self.survey::<L>(span)?)?;
        let size = reach_of::<F>(L::LEVEL);
        let mut at = span.start;
        while at < span.end {
            let mut run = MapRun {
                span,
                spares: Some(&mut spares),
                source,
                level: PhantomData::<L>,
            };
            let step = self.visit(at, &mut run);
            let step = match step {
                // Another context has freed a table since the survey.
                Ok(Step::Missing(level)) => spares.add_of(level).map_err(Error::from),
                Ok(Step::Linked) => Ok(()),
                Ok(Step::Stored(count)) => {
                    at += count as u64 * size;
                    Ok(())
                }
                Err(error) => Err(error),
            };
            if let Err(error) = step {
                let mapped = ((at - span.start) / size) as usize;
                return Err(MapError { error, mapped });
            }
        }
        Ok(())
    }

    /// How many tables of each level a span lacks for leaves of level `L`.
    fn survey<L: TableLevel>(&self, span: Span) -> Result<[usize; 6], Error> {
        let mut survey = Survey {
            span,
            missing: [0; 6],
            level: PhantomData::<L>,
        };
        let mut at = span.start;
        while at < span.end {
            at = self.visit(at, &mut survey)?;
        }
        Ok(survey.missing)
    }
}
