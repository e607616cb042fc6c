//! Mapping, walking, protecting and unmapping, for each page, in calls for one page up to several tables of them.
//!
//! All calls of a pass together cover the same pages, whose tables are there already: making tables is none of it, as the
//! other crates never give theirs back. A value is the median over passes, a pass being some microseconds. Before anything is measured the entries are
//! compared with what they have to be.

use crate::board::{Board, X86};
use crate::mapper::{
    ExclusiveForm, Mapper, MultiArch, PAGE, READ_ONLY, SharedForm, WRITABLE, X86Crate,
};
use crate::{Error, Print, Scale, processors};
use core::hint::black_box;
use core::sync::atomic::Ordering;
use flagstone_frames::Frames;
use flagstone_pgtable::{PageTable, Params};
use flagstone_types::{CpuId, Gfp};
use std::time::{Duration, Instant};

/// Flagstone's forms, `unasked` being the shared one whose owner does not ask for accessed and dirty bits, `quiet` the exclusive one with no CPU using the
/// page table; other crates, which ask for no such bits either and change entries by stores.
pub(crate) const SUBJECTS: &[&str] = &[
    "shared",
    "unasked",
    "exclusive",
    "quiet",
    "x86_64",
    "multiarch",
];

/// Pages of one call, and their name. [`EACH`] is single pages with one gather for all of them.
pub const RUNS: &[(&str, usize)] = &[
    ("1", 1),
    (EACH, 1),
    ("8", 8),
    ("64", 64),
    ("512", 512),
    ("4096", 4096),
];
/// One call for each page, one invalidation for all, where that can be said.
const EACH: &str = "each";
/// What is done, in this order.
pub const MAPPING_OPERATIONS: &[&str] = &["map", "walk", "protect", "unmap"];

/// Pages that a pass covers: what eight tables translate, as much as a first-level data cache holds.
const PAGES: usize = 4096;
/// Where they are: at the beginning of a table.
const AT: usize = 0x7f00_0000_0000;
/// What they map: nobody's memory, which nobody touches.
const TO: u64 = 1 << 32;
/// Accessed and dirty.
const UNIT_BITS: u64 = 0b110_0000;
/// Passes at least.
const LEAST: usize = 3;

/// `KIND/PAGES/map|walk|protect|unmap`.
pub(crate) fn measure(
    kind: &'static str,
    subject: &str,
    scale: &Scale,
    print: &mut Print<'_>,
) -> Result<(), Error> {
    processors::stay_on_first()?;
    let board = Board::new(4, 1, X86)?;
    let pass = Passes {
        kind,
        board: &board,
        slice: scale.slice,
    };
    match subject {
        "x86_64" => return pass.measure(&mut X86Crate::new(&board)?, print),
        "multiarch" => return pass.measure(&mut MultiArch::new(&board)?, print),
        _ => {}
    }
    let frames = Frames::new(&board).map_err(Error::memory("frames of a board"))?;
    frames.set_min_free(Some(0));
    let params = Params {
        gfp: Gfp::NOWAIT,
        ..Params::default()
    };
    let table = PageTable::new(&frames, params).map_err(|error| Error::PageTable {
        what: "new",
        error: format!("{error:?}"),
    })?;
    if subject != "quiet" {
        table.enter(CpuId(0));
    }
    if subject == "shared" {
        let mut form = SharedForm::<true>(table);
        pass.measure(&mut form, print)?;
        release(form.0)
    } else if subject == "unasked" {
        let mut form = SharedForm::<false>(table);
        pass.measure(&mut form, print)?;
        release(form.0)
    } else {
        let mut form = ExclusiveForm(table);
        pass.measure(&mut form, print)?;
        release(form.0)
    }
}

type Tables<'f, 'm> = PageTable<'f, &'m Board, flagstone_pgtable::format::X86_64>;

fn release(table: Tables<'_, '_>) -> Result<(), Error> {
    // SAFETY: T6: no CPU translates by it.
    unsafe { table.leave(CpuId(0)) };
    Ok(())
}

struct Passes<'m> {
    kind: &'static str,
    board: &'m Board,
    slice: Duration,
}

/// Looks at a page table after the operation with this number.
type Look<'a, M> = dyn FnMut((&M, usize)) -> Result<(), Error> + 'a;

/// Times of the operations in one pass.
type Times = [Duration; 4];

impl Passes<'_> {
    fn measure(&self, mapper: &mut impl Mapper, print: &mut Print<'_>) -> Result<(), Error> {
        for &(name, run) in RUNS {
            let run = if name == EACH { 0 } else { run };
            self.check(mapper, run)?;
            let mut passes: [Vec<Duration>; 4] = Default::default();
            let begin = Instant::now();
            while passes[0].len() < LEAST || begin.elapsed() < self.slice {
                let times = self.pass(mapper, run, &mut |_| Ok(()))?;
                for (all, time) in passes.iter_mut().zip(times) {
                    all.push(time);
                }
            }
            for (operation, mut all) in MAPPING_OPERATIONS.iter().zip(passes) {
                all.sort_unstable();
                let nanos = all[all.len() / 2].as_secs_f64() * 1e9 / PAGES as f64;
                print(format!("{}/{name}/{operation}", self.kind), nanos);
            }
        }
        Ok(())
    }

    /// One pass in calls for `run` pages, 0 for [`EACH`], and `look` after each operation, which is told its number.
    #[inline(never)]
    fn pass<M: Mapper>(
        &self,
        mapper: &mut M,
        run: usize,
        look: &mut Look<'_, M>,
    ) -> Result<Times, Error> {
        let mut times = Times::default();
        // The compiler is not to know how many pages a call has.
        let pages = black_box(run.max(1));
        let places = || {
            (0..PAGES)
                .step_by(pages)
                .map(|n| (AT + n * PAGE, TO + (n * PAGE) as u64))
        };
        let start = Instant::now();
        for (at, to) in places() {
            mapper.map(at, to, pages)?;
        }
        times[0] = start.elapsed();
        if self.kind == "used" {
            self.use_pages(mapper)?;
        }
        look((mapper, 0))?;
        let mut sum = 0;
        let start = Instant::now();
        for (at, _) in places() {
            sum += mapper.walk(at, pages)?;
        }
        times[1] = start.elapsed();
        let expected = (0..PAGES as u64).map(|n| TO + n * PAGE as u64).sum::<u64>();
        if sum != expected {
            return Err(different("walk", format!("{sum:#x}, not {expected:#x}")));
        }
        look((mapper, 1))?;
        let start = Instant::now();
        if run == 0 {
            mapper.protect_each(AT, PAGES)?;
        } else {
            for (at, _) in places() {
                mapper.protect(at, pages)?;
            }
        }
        times[2] = start.elapsed();
        look((mapper, 2))?;
        let start = Instant::now();
        if run == 0 {
            sum = sum.wrapping_add(mapper.unmap_each(AT, PAGES)?);
        } else {
            for (at, _) in places() {
                sum = sum.wrapping_add(mapper.unmap(at, pages)?);
            }
        }
        times[3] = start.elapsed();
        black_box(sum);
        look((mapper, 3))?;
        Ok(times)
    }

    /// What a unit does when a program writes to every page.
    fn use_pages(&self, mapper: &impl Mapper) -> Result<(), Error> {
        for n in 0..PAGES {
            self.board
                .entry(mapper.root(), AT + n * PAGE)
                .ok_or_else(|| different("map", "no table".into()))?
                .fetch_or(UNIT_BITS, Ordering::Relaxed);
        }
        Ok(())
    }

    /// A pass in which every entry is looked at after each operation; makes the tables.
    fn check<M: Mapper>(&self, mapper: &mut M, run: usize) -> Result<(), Error> {
        let check = &mut |(mapper, done): (&M, usize)| {
            for n in 0..PAGES {
                let to = TO + (n * PAGE) as u64;
                let expected = [to | WRITABLE, to | WRITABLE, to | READ_ONLY, 0][done];
                let found = self
                    .board
                    .entry(mapper.root(), AT + n * PAGE)
                    .map_or(0, |entry| entry.load(Ordering::Relaxed));
                // What is left of accessed and dirty is everybody's own affair, saved-dirty included.
                let own = if done == 3 { 0 } else { UNIT_BITS | SOFTWARE };
                if (found ^ expected) & !own != 0 {
                    let text = format!("{found:#x}, not {expected:#x} in calls for {run} pages");
                    return Err(different(MAPPING_OPERATIONS[done], text));
                }
            }
            Ok(())
        };
        self.pass(mapper, run, check).map(|_| ())
    }
}

/// Bits that are left to software.
const SOFTWARE: u64 = 0x07f0_0000_0000_0e00;

fn different(what: &'static str, error: String) -> Error {
    Error::PageTable { what, error }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn everybody_writes_the_same_entries() {
        let scale = Scale {
            slice: Duration::ZERO,
            ..Scale::DEFAULT
        };
        for subject in SUBJECTS {
            for kind in ["pgtable", "used"] {
                let mut metrics = BTreeMap::new();
                measure(kind, subject, &scale, &mut |metric, value| {
                    metrics.insert(metric, value);
                })
                .unwrap();
                assert_eq!(metrics.len(), RUNS.len() * MAPPING_OPERATIONS.len());
                assert!(metrics.values().all(|nanos| *nanos > 0.0), "{subject}");
            }
        }
    }
}
