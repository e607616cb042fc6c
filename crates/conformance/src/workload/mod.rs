//! Running a workload: every CPU does its operations, and what it sees is held against the states of the slots and the ledger.

use crate::ledger::PieceId;
use crate::op::{GROUPS, Op, Run};
use crate::platform::{Platform, Seen, Touch, Who};
use crate::slots::{Begun, SLOTS, Slots, State};
use crate::space::{Space, allows, reach, said};
use alloc::format;
use alloc::vec::Vec;
use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};
use flagstone_host::Grace;
use flagstone_pgtable::format::{Access, Entry, Format, Level, Marks};
use flagstone_pgtable::{Become, Error, Pmd, Pte, Pud, Taken, VirtRange};
use flagstone_types::{PhysAddr, VirtAddr};

/// What a workload did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Operations.
    pub ops: u64,
    /// Accesses that were allowed.
    pub allowed: u64,
    /// Accesses that were refused.
    pub refused: u64,
    /// Accesses and lookups whose outcome the books knew exactly.
    pub exact: u64,
}

#[derive(Debug, Default)]
struct Counts {
    ops: AtomicU64,
    allowed: AtomicU64,
    refused: AtomicU64,
    exact: AtomicU64,
}

fn add(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

/// A workload under way.
struct Work<'p, P: Platform> {
    space: Space<'p, P>,
    slots: Slots,
    counts: Counts,
}

/// Slots of a region: first and how many.
const fn slots_of(region: u8) -> (usize, usize) {
    match region {
        0 => (0, 3),
        1 => (3, 3),
        2 => (6, 3),
        3 => (9, 2),
        _ => (11, 2),
    }
}

/// The region of a slot.
const fn region_of(slot: usize) -> u8 {
    match slot {
        0..=2 => 0,
        3..=5 => 1,
        6..=8 => 2,
        9 | 10 => 3,
        _ => 4,
    }
}

/// The pages of one leaf of the second level, in pages.
fn table_pages<P: Platform>() -> usize {
    reach::<P::Format>(Level::PMD) / reach::<P::Format>(Level::PTE)
}

impl<'p, P: Platform> Work<'p, P> {
    fn page() -> usize {
        Space::<P>::page()
    }

    /// The first address of a region.
    fn region(&self, region: u8) -> VirtAddr {
        let window = self.space.platform.window().0;
        let top = P::Format::TOP;
        let far = if top > Level::PUD { top } else { Level::PUD };
        VirtAddr(match region {
            0..=2 => window + region as usize * reach::<P::Format>(Level::PMD),
            3 => window + reach::<P::Format>(far),
            _ => window + 2 * reach::<P::Format>(Level::PUD),
        })
    }

    /// Whether a region is mapped by leaves of the third level.
    fn is_large(&self, region: u8) -> bool {
        region == 4 && self.space.table().has_leaf(Level::PUD)
    }

    fn region_range(&self, region: u8) -> VirtRange {
        let level = if region == 4 { Level::PUD } else { Level::PMD };
        VirtRange::new(self.region(region).0, reach::<P::Format>(level))
    }

    /// Which page of its region a slot is.
    fn page_of(slot: usize) -> usize {
        match region_of(slot) {
            0 => table_pages::<P>() - 3 + slot,
            2 => table_pages::<P>() / 2 + slot - 6,
            region => slot - slots_of(region).0,
        }
    }

    fn va(&self, slot: usize) -> VirtAddr {
        let offset = Self::page_of(slot) * Self::page();
        VirtAddr(self.region(region_of(slot)).0 + offset)
    }

    fn range(&self, run: Run) -> VirtRange {
        Space::<P>::pages(self.va(run.first.into()), run.count.into())
    }

    /// Everything that a workload maps.
    fn everything(&self) -> [VirtRange; 3] {
        let near = reach::<P::Format>(Level::PMD) * 3;
        [
            VirtRange::new(self.region(0).0, near),
            self.region_range(3),
            self.region_range(4),
        ]
    }

    fn wrong(&self, text: alloc::string::String) {
        self.space.findings.add(text);
    }

    /// Ends a change of which nothing is known but its outcome: the state of each slot if it went well; else they stay, if nothing overlapped.
    fn end(
        &self,
        begun: &Begun,
        range: VirtRange,
        went_well: bool,
        next: impl Fn(usize, State) -> State,
    ) {
        let quiet = self.slots.is_quiet(begun);
        self.slots.changed(begun, |slot, state, _| {
            if went_well {
                next(slot, state)
            } else if quiet {
                state
            } else {
                State::Unknown
            }
        });
        if quiet {
            let platform = self.space.platform;
            platform.check_settled(self.space.table(), range);
        }
    }

    fn map(&self, run: Run, access: Access) {
        let mut pieces: Vec<(PieceId, PhysAddr)> = Vec::with_capacity(run.count.into());
        for _ in 0..run.count {
            let Some(memory) = self.space.memory(Level::PTE) else {
                break;
            };
            pieces.push(memory);
        }
        if pieces.is_empty() {
            return;
        }
        let first = usize::from(run.first);
        let begun = self.slots.change(first, pieces.len());
        let result = self.space.map_pages(self.va(first), &pieces, access);
        let quiet = self.slots.is_quiet(&begun);
        let empty = (first..first + pieces.len()).all(|n| self.slots.state(n) == State::Empty);
        let mapped = match &result {
            Ok(()) => pieces.len(),
            Err(stopped) => stopped.mapped,
        };
        if let Err(stopped) = &result
            && quiet
            && empty
            && !matches!(stopped.error, Error::NoTable(_))
        {
            self.wrong(format!("mapping {run:?} where nothing is: {stopped}"));
        }
        let range = Space::<P>::pages(self.va(first), pieces.len());
        self.slots.changed(&begun, |slot, state, _| {
            if slot - first >= mapped {
                return state;
            }
            if let State::Page(..) = state {
                self.wrong(format!("slot {slot} was mapped over {state:?}"));
            }
            State::Page(pieces[slot - first].1, access)
        });
        if quiet {
            let platform = self.space.platform;
            platform.check_settled(self.space.table(), range);
        }
    }

    /// Maps a piece onto a region: one huge leaf, or pages.
    fn map_region(&self, region: u8, access: Access, fill: bool) {
        let level = if self.is_large(region) && !fill {
            Level::PUD
        } else {
            Level::PMD
        };
        if !fill && !self.space.table().has_leaf(level) {
            return;
        }
        let Some(memory) = self.space.memory(level) else {
            return;
        };
        let (first, count) = slots_of(region);
        let va = self.region(region);
        let begun = self.slots.change(first, count);
        let result = match (fill, level) {
            (true, _) => {
                let pages = table_pages::<P>();
                self.space.map_piece::<Pte>(va, memory, access, pages)
            }
            (_, Level::PUD) => self.space.map_piece::<Pud>(va, memory, access, 1),
            _ => self.space.map_piece::<Pmd>(va, memory, access, 1),
        };
        let mapped = match (&result, fill) {
            (Ok(()), _) => usize::MAX,
            (Err(stopped), true) => stopped.mapped,
            (Err(_), false) => 0,
        };
        self.slots.changed(&begun, |slot, state, _| {
            let page = Self::page_of(slot);
            if page >= mapped {
                return state;
            }
            if let State::Page(..) = state {
                self.wrong(format!("slot {slot} was mapped over {state:?}"));
            }
            let at = memory.1.0 + (page * Self::page()) as u64;
            State::Page(PhysAddr(at), access)
        });
    }

    fn unmap(&self, first: usize, count: usize, range: VirtRange, tables: bool) {
        let begun = self.slots.change(first, count);
        let result = self.space.gathered(|ops, gather| {
            let result = ops.unmap(range, gather);
            if tables && let Err(error) = ops.free_tables(range, gather) {
                self.wrong(said("freeing tables", &error));
            }
            result
        });
        self.expect(&result, |error| matches!(error, Error::CutsHuge { .. }));
        self.end(&begun, range, result.is_ok(), |_, _| State::Empty);
    }

    fn protect(&self, first: usize, count: usize, range: VirtRange, access: Access) {
        let begun = self.slots.change(first, count);
        let result = self
            .space
            .gathered(|ops, gather| ops.protect(range, access, gather));
        self.expect(&result, |error| matches!(error, Error::CutsHuge { .. }));
        self.end(&begun, range, result.is_ok(), |_, state| match state {
            State::Page(at, _) => State::Page(at, access),
            other => other,
        });
    }

    /// That an error is one that may be.
    fn expect(&self, result: &Result<(), Error>, may_be: impl Fn(&Error) -> bool) {
        if let Err(error) = result
            && !may_be(error)
        {
            self.wrong(said("an operation", error));
        }
    }

    fn clean(&self, run: Run) {
        let first = usize::from(run.first);
        let begun = self.slots.disturb(first, run.count.into());
        let pieces = [const { Cell::new(None::<PieceId>) }; SLOTS];
        let used = Cell::new(0);
        let range = self.range(run);
        let result = self.space.gathered(|ops, gather| {
            ops.change_each(range, gather, |_, _, leaf| {
                if leaf.marks().contains(Marks::DIRTY) && used.get() < SLOTS {
                    pieces[used.get()].set(self.space.ledger.cleaning(leaf.at.0));
                    used.set(used.get() + 1);
                    return leaf.unmark(Marks::DIRTY);
                }
                leaf
            })
        });
        for piece in pieces.iter().filter_map(Cell::get) {
            self.space.ledger.cleaned(piece, |at| {
                let word = self.space.platform.word(PhysAddr(at))?;
                Some(word.load(Ordering::Relaxed))
            });
        }
        self.expect(&result, |error| matches!(error, Error::CutsHuge { .. }));
        self.slots.disturbed(&begun);
    }

    fn split(&self, region: u8) {
        let (first, count) = slots_of(region);
        let begun = self.slots.disturb(first, count);
        let result = self.space.ops().split(self.region(region));
        self.expect(&result, |error| {
            matches!(
                error,
                Error::NotMapped(_) | Error::NoTable(_) | Error::Unsupported { .. }
            )
        });
        if self.slots.disturbed(&begun) {
            let platform = self.space.platform;
            platform.check_settled(self.space.table(), self.region_range(region));
        }
    }

    fn collapse(&self, region: u8, in_place: bool) {
        let (first, count) = slots_of(region);
        let begun = self.slots.disturb(first, count);
        let (ops, va) = (self.space.ops(), self.region(region));
        let result = match (self.is_large(region), in_place) {
            (true, false) => ops.collapse::<Pud>(va),
            (true, true) => ops.collapse_in_place::<Pud>(va),
            (false, false) => ops.collapse::<Pmd>(va),
            (false, true) => ops.collapse_in_place::<Pmd>(va),
        };
        self.expect(&result, |error| {
            matches!(
                error,
                Error::NotMapped(_)
                    | Error::NotUniform(_)
                    | Error::NoSuchEntry(_)
                    | Error::Unsupported { .. }
            )
        });
        if self.slots.disturbed(&begun) {
            let platform = self.space.platform;
            platform.check_settled(self.space.table(), self.region_range(region));
        }
    }

    fn retract(&self, region: u8) {
        let (first, count) = slots_of(region);
        let begun = self.slots.change(first, count);
        let va = self.region(region);
        let result = self.space.gathered(|ops, gather| ops.retract(va, gather));
        self.expect(&result, |error| {
            matches!(error, Error::Occupied { .. } | Error::NoTable(_))
        });
        let range = VirtRange::new(va.0, reach::<P::Format>(Level::PMD));
        self.end(&begun, range, result.is_ok(), |_, _| State::Empty);
    }

    fn replace(&self, slot: usize) {
        let Some((piece, new)) = self.space.memory(Level::PTE) else {
            return;
        };
        let begun = self.slots.change(slot, 1);
        let (space, va) = (&self.space, self.va(slot));
        space.findings.check(space.ledger.put_out(piece, 0, 1));
        let decide = |entry| match entry {
            Entry::Leaf(leaf) => Become::Leaf(leaf.moved(new).unmark(Marks::YOUNG | Marks::DIRTY)),
            _ => Become::Same,
        };
        let result = space.gathered(|ops, gather| ops.replace::<Pte>(va, gather, decide));
        let old = match result {
            Ok(Entry::Leaf(leaf)) => Some(leaf),
            Ok(_) | Err(Error::NotMapped(_) | Error::Occupied { .. }) => None,
            Err(error) => {
                self.wrong(said("replacing", &error));
                None
            }
        };
        // What did not get into the table, or what was in it before.
        let out = Taken {
            at: va,
            level: Level::PTE,
            entry: Entry::Leaf(old.unwrap_or(Space::<P>::leaf(new, Access::READ))),
            pages: 1,
        };
        space
            .findings
            .check(space.ledger.release(space.platform, &out));
        let range = Space::<P>::pages(va, 1);
        self.end(&begun, range, true, |_, state| match (state, old) {
            (State::Page(at, access), Some(leaf)) => {
                if leaf.at != at {
                    self.wrong(format!("slot {slot}: {leaf:?} was replaced, not {at:?}"));
                }
                State::Page(new, access)
            }
            (State::Empty, Some(leaf)) => {
                self.wrong(format!(
                    "slot {slot}: {leaf:?} was replaced where nothing was"
                ));
                State::Unknown
            }
            (State::Unknown, Some(_)) => State::Unknown,
            (state, None) => state,
        });
    }

    fn lookup(&self, slot: usize) {
        let va = self.va(slot);
        let begun = self.slots.access(slot);
        let found = self.space.ops().lookup(va);
        let (state, moment) = self.slots.accessed(&begun);
        let found = match found {
            Ok(found) => found,
            Err(error) => return self.wrong(said("looking up", &error)),
        };
        if let Some(at) = found.physical(va)
            && !self.space.ledger.was_mapped(at.0)
        {
            self.wrong(format!("slot {slot}: {found:?} was never mapped"));
        }
        let right = match (state, found.leaf()) {
            (State::Unknown, _) => return,
            (State::Empty, leaf) => leaf.is_none(),
            (State::Page(..), None) => !moment.calm,
            (State::Page(at, access), Some(leaf)) => {
                found.physical(va) == Some(at)
                    && leaf.access().contains(Access::WRITE) == access.contains(Access::WRITE)
            }
        };
        add(&self.counts.exact);
        if !right {
            self.wrong(format!("slot {slot} is {state:?}, and {found:?} was found"));
        }
    }

    fn walk(&self) {
        for range in self.everything() {
            let result = self.space.ops().walk(range, |found| {
                if let Some(leaf) = found.leaf()
                    && !self.space.ledger.was_mapped(leaf.at.0)
                {
                    self.wrong(format!("{found:?} was never mapped"));
                }
            });
            self.space
                .findings
                .check(result.map_err(|e| said("walking", &e)));
        }
    }

    fn touch(&self, slot: usize, touch: Touch) {
        let page = self.va(slot);
        let at = match touch {
            Touch::Write(_) => VirtAddr(page.0 + 8),
            _ => page,
        };
        let since = self.space.ledger.now();
        let begun = self.slots.access(slot);
        let result = self.space.touch_beside(at, Who::User, touch, |note| {
            // A unit that sets bits of entries that are gone makes it break the leaf.
            let (first, count) = slots_of(region_of(slot));
            let begun = self.slots.disturb(first, count);
            note();
            self.slots.disturbed(&begun);
        });
        let (state, _) = self.slots.accessed(&begun);
        add(if result.is_ok() {
            &self.counts.allowed
        } else {
            &self.counts.refused
        });
        if state != State::Unknown {
            add(&self.counts.exact);
        }
        if let Ok(seen) = result {
            self.check_seen(slot, touch, seen, state, since);
        } else if let State::Page(leads, access) = state
            && allows(access, Marks::empty(), Who::User, touch)
        {
            self.wrong(format!(
                "slot {slot} leads to {leads:?} with {access:?}, and {touch:?} is refused: {result:?}"
            ));
        }
    }

    /// What an access that was allowed must have seen.
    fn check_seen(&self, slot: usize, touch: Touch, seen: Seen, state: State, since: u64) {
        let word = seen.word.filter(|_| touch == Touch::Read);
        let space = &self.space;
        let known = space.ledger.check_seen(seen.at, word, since);
        space
            .findings
            .check(known.map_err(|text| format!("slot {slot}, {touch:?}: {text}")));
        let State::Page(leads, access) = state else {
            if state == State::Empty {
                self.wrong(format!("slot {slot} is empty, and {touch:?} saw {seen:?}"));
            }
            return;
        };
        let offset = if matches!(touch, Touch::Write(_)) {
            8
        } else {
            0
        };
        let leads = PhysAddr(leads.0 + offset);
        let there = space.platform.word(leads);
        let right = match (word, there) {
            (Some(word), Some(there)) => there.load(Ordering::Relaxed) == word,
            (None, Some(there)) if offset != 0 => there.load(Ordering::Relaxed) != 0,
            _ => true,
        };
        let right = right
            && seen.at.is_none_or(|at| at == leads)
            && allows(access, Marks::empty(), Who::User, touch);
        // The page may have gone since the access, but not if this is still its state.
        if !right && self.slots.state(slot) == state {
            self.wrong(format!(
                "slot {slot} is {state:?}, and {touch:?} saw {seen:?}"
            ));
        }
    }

    fn perform(&self, op: Op) {
        let region = |region: u8| {
            let (first, count) = slots_of(region);
            (first, count, self.region_range(region))
        };
        match op {
            Op::Map(run, access) => self.map(run, access),
            Op::MapHuge(region, access) => self.map_region(region, access, false),
            Op::Fill(region, access) => self.map_region(region, access, true),
            Op::Unmap(run, tables) => {
                let (first, count) = (run.first.into(), run.count.into());
                self.unmap(first, count, self.range(run), tables);
            }
            Op::UnmapRegion(n, tables) => {
                let (first, count, range) = region(n);
                self.unmap(first, count, range, tables);
            }
            Op::Protect(run, access) => {
                let (first, count) = (run.first.into(), run.count.into());
                self.protect(first, count, self.range(run), access);
            }
            Op::ProtectRegion(n, access) => {
                let (first, count, range) = region(n);
                self.protect(first, count, range, access);
            }
            Op::Age(run) => {
                let ops = self.space.ops();
                let result = ops.test_and_clear_young(self.range(run), |_, _, _| ());
                self.expect(&result.map(|_| ()), |error| {
                    matches!(error, Error::CutsHuge { .. })
                });
            }
            Op::Clean(run) => self.clean(run),
            Op::Split(region) => self.split(region),
            Op::Collapse(region, in_place) => self.collapse(region, in_place),
            Op::Retract(region) => self.retract(region),
            Op::Replace(slot) => self.replace(slot.into()),
            Op::FreeTables => {
                for range in self.everything() {
                    let result = self
                        .space
                        .gathered(|ops, gather| ops.free_tables(range, gather));
                    self.expect(&result, |_| false);
                }
            }
            Op::Lookup(slot) => self.lookup(slot.into()),
            Op::Walk => self.walk(),
            Op::Read(slot) => self.touch(slot.into(), Touch::Read),
            Op::Write(slot) => {
                let word = self.space.new_word();
                self.touch(slot.into(), Touch::Write(word));
            }
            Op::Exec(slot) => self.touch(slot.into(), Touch::Exec),
            Op::Switch => {
                self.space.leave();
                self.space.enter();
            }
            Op::Poll => {
                self.space.host().poll();
            }
        }
        add(&self.counts.ops);
    }

    /// That library and platform say of every slot what its state is, when all is quiet.
    fn check_states(&self) {
        for slot in 0..SLOTS {
            let va = self.va(slot);
            let found = self.space.ops().lookup(va);
            let found = found.map(|found| found.physical(va));
            let right = match self.slots.state(slot) {
                State::Unknown => continue,
                State::Empty => found == Ok(None),
                State::Page(at, _) => found == Ok(Some(at)),
            };
            let state = self.slots.state(slot);
            assert!(right, "slot {slot} is {state:?}, and {found:?} is found");
        }
        let mut seen = [None; SLOTS];
        let has_own = self
            .space
            .platform
            .each_leaf(self.space.table(), &mut |leaf| {
                for (slot, seen) in seen.iter_mut().enumerate() {
                    let offset = self.va(slot).0.wrapping_sub(leaf.va.0);
                    if offset < leaf.bytes.0 {
                        *seen = Some((PhysAddr(leaf.at.0 + offset as u64), leaf.user_writes));
                    }
                }
            });
        for (slot, &seen) in seen.iter().enumerate().filter(|_| has_own) {
            let state = self.slots.state(slot);
            let right = match state {
                State::Unknown => true,
                // A leaf without access may be no leaf to the unit.
                State::Page(_, access) if !access.contains(Access::READ) => true,
                State::Empty => seen.is_none(),
                // Some formats say the right to write and that it was used in one.
                State::Page(at, access) => seen.is_some_and(|(leads, writes)| {
                    leads == at && (!writes || access.contains(Access::WRITE))
                }),
            };
            assert!(
                right,
                "slot {slot} is {state:?}, and the tables say {seen:?}"
            );
        }
    }
}

/// Runs a workload on a platform, CPU by CPU side by side, and looks at everything that is left. As many CPUs as the platform has take part. `None` if there is no memory for a page table.
///
/// # Panics
/// If something is wrong.
pub fn run_workload<P: Platform>(platform: &P, workload: &[Vec<Op>]) -> Option<Tally> {
    let cpus = workload.len().min(platform.cpus());
    let ops: usize = workload.iter().map(Vec::len).sum();
    let work = Work {
        space: Space::new(platform, ops * 6 + 16)?,
        slots: Slots::new(),
        counts: Counts::default(),
    };
    work.space.run(cpus, &|cpu| {
        for op in &workload[cpu] {
            if work.space.findings.any() {
                break;
            }
            work.perform(*op);
        }
    });
    work.check_states();
    let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let tally = Tally {
        ops: count(&work.counts.ops),
        allowed: count(&work.counts.allowed),
        refused: count(&work.counts.refused),
        exact: count(&work.counts.exact),
    };
    let everything = work.everything();
    work.space.end(&everything);
    Some(tally)
}

const _: () = {
    let mut slots = 0;
    let mut n = 0;
    while n < GROUPS.len() {
        slots += GROUPS[n].1;
        n += 1;
    }
    assert!(slots == SLOTS);
};
