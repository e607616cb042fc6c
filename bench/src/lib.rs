//! Measurements inside one process: what can not be seen by preloading a library.
//!
//! ```text
//!   Job ──► subjects        who is measured: allocators linked in, forms of arrays, stages of the growth path …
//!    │
//!    ├─ malloc        rivals by crate, glibc, Flagstone by call and inlined      allocator
//!    ├─ known         object caches with the class known, array forms, the floor  arrays · thread_local_array
//!    ├─ stages        all CPUs at once, one published improvement after another   caches · processors
//!    ├─ steps         the same on eight simulated CPUs: locks taken, steps under them
//!    ├─ placement · index     what the place and the form of the free-object index cost
//!    ├─ order         randomised free lists
//!    ├─ mapping       page tables beside those of other crates                    mapper · board
//!    └─ invalidations how many an operation on page tables takes                  board
//! ```
//!
//! A process can have one set of caches only, so a subject has a process to itself: the command `flagstone` starts one
//! for each turn, interleaved. [`Job::run`] is what it does there. `MODEL.md` has the invariants.

mod allocator;
mod arrays;
mod board;
mod caches;
mod clock;
mod error;
mod index;
mod invalidations;
mod known;
mod loops;
mod malloc;
mod mapper;
mod mapping;
mod order;
mod placement;
mod processors;
mod stages;
mod steps;
mod thread_local_array;

pub use error::Error;
pub use invalidations::OPERATIONS;
pub use mapping::{MAPPING_OPERATIONS, RUNS};
use std::time::Duration;

/// Sizes of pairs, in bytes.
pub const PAIR_SIZES: &[usize] = &[16, 64, 256, 1024, 4096, 16384];
/// Sizes of N allocations, then N frees, in bytes.
pub const BATCH_SIZES: &[usize] = &[8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384];
/// Sizes with which the published work measured contention and layouts, in bytes.
pub const SHORT_SIZES: &[usize] = &[32, 64, 128, 256, 512, 1024, 2048, 4096];

/// The same, and between them sizes that leave room in a page for more than one colour, in bytes.
pub const STEP_SIZES: &[usize] = &[32, 64, 128, 192, 256, 320, 512, 704, 1024, 2048, 4096];

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// How long one size is measured.
    pub slice: Duration,
    /// How many objects are alive at once where many are allocated before many are freed.
    pub count: usize,
    /// Seed of the simulated machine's schedule.
    pub seed: u64,
}

impl Scale {
    /// What a measurement takes when nothing else is said.
    pub const DEFAULT: Self = Self {
        slice: Duration::from_millis(10),
        count: 10_000,
        seed: 1,
    };
}

/// Takes a metric's name and its value.
pub type Print<'a> = dyn FnMut(String, f64) + 'a;

/// One measurement, the same for each of its subjects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// `linked-pair/SIZE` in nanoseconds: one object allocated and freed.
    Pair,
    /// `linked-batch/SIZE/alloc`, `…/free`, `…/both` in nanoseconds: N allocated, then N freed.
    Batch,
    /// `linked-touched/SIZE/…`: the same, and each object written to.
    Touched,
    /// `known/…` in nanoseconds: an object cache whose class is known, its array alone, a thread-local array.
    Known,
    /// `stages/SIZE/alloc|free`, in nanoseconds, and `…/cycles`: all CPUs at once.
    Stages,
    /// `exchange/SIZE` in nanoseconds: allocated on one CPU, freed on another.
    Exchange,
    /// `steps/SIZE/locks|steps|waits|all-locks|slabs` per 1,000 operations on eight simulated CPUs.
    Steps,
    /// `placement/SIZE/alloc|free` in nanoseconds, and `…/cycles`.
    Placement,
    /// `index/SIZE/alloc|free` in nanoseconds: the index of free objects by itself.
    Index,
    /// `fresh/SIZE/alloc|free|both` in nanoseconds, and `…/cycles`: N allocated from new slabs, then freed.
    OrderFresh,
    /// `again/SIZE/…`: the same from slabs that are there already.
    OrderAgain,
    /// `written/SIZE/…`: from new slabs, and each object written to.
    OrderWritten,
    /// `pgtable/PAGES/map|walk|protect|unmap` in nanoseconds for each page, in calls for so many pages.
    Mapping,
    /// `used/PAGES/…`: the same, and the unit has set the accessed and the dirty bit of each page since it was mapped.
    MappingUsed,
    /// `tlb/OPERATION/requests|local|remote`: invalidations asked for, those on this CPU, interrupts of others.
    Invalidations,
}

impl Job {
    /// Every job.
    pub const ALL: &[Self] = &[
        Self::Pair,
        Self::Batch,
        Self::Touched,
        Self::Known,
        Self::Stages,
        Self::Exchange,
        Self::Steps,
        Self::Placement,
        Self::Index,
        Self::OrderFresh,
        Self::OrderAgain,
        Self::OrderWritten,
        Self::Mapping,
        Self::MappingUsed,
        Self::Invalidations,
    ];

    /// Its name on a command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pair => "pair",
            Self::Batch => "batch",
            Self::Touched => "touched",
            Self::Known => "known",
            Self::Stages => "stages",
            Self::Exchange => "exchange",
            Self::Steps => "steps",
            Self::Placement => "placement",
            Self::Index => "index",
            Self::OrderFresh => "fresh",
            Self::OrderAgain => "again",
            Self::OrderWritten => "written",
            Self::Mapping => "pgtable",
            Self::MappingUsed => "used",
            Self::Invalidations => "tlb",
        }
    }

    /// The job with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|job| job.name() == name)
    }

    /// Whom it measures.
    #[must_use]
    pub const fn subjects(self) -> &'static [&'static str] {
        match self {
            Self::Pair | Self::Batch | Self::Touched => malloc::SUBJECTS,
            Self::Known => known::SUBJECTS,
            Self::Stages | Self::Exchange => stages::SUBJECTS,
            Self::Steps => steps::SUBJECTS,
            Self::Placement => placement::SUBJECTS,
            Self::Index => index::SUBJECTS,
            Self::OrderFresh | Self::OrderAgain | Self::OrderWritten => order::SUBJECTS,
            Self::Mapping | Self::MappingUsed => mapping::SUBJECTS,
            Self::Invalidations => invalidations::SUBJECTS,
        }
    }

    /// Whom it could measure if they had been built in.
    #[must_use]
    pub const fn not_built(self) -> &'static [&'static str] {
        match self {
            Self::Pair | Self::Batch | Self::Touched => malloc::NOT_BUILT,
            _ => &[],
        }
    }

    /// Measures one subject. Once in a process.
    ///
    /// # Errors
    /// [`Error::NoSubject`] for a name that is not among the subjects; [`Error::Taken`] in a process that has measured already;
    /// otherwise what the machine refused.
    pub fn run(self, subject: &str, scale: &Scale, print: &mut Print<'_>) -> Result<(), Error> {
        if !self.subjects().contains(&subject) {
            return Err(Error::NoSubject {
                job: self.name(),
                subject: subject.into(),
            });
        }
        match self {
            Self::Pair => malloc::pairs(subject, scale, print),
            Self::Batch => malloc::batches(subject, false, scale, print),
            Self::Touched => malloc::batches(subject, true, scale, print),
            Self::Known => known::measure(subject, scale, print),
            Self::Stages => stages::contend(subject, scale, print),
            Self::Exchange => stages::exchange(subject, scale, print),
            Self::Steps => steps::count(subject, scale, print),
            Self::Placement => placement::measure(subject, scale, print),
            Self::Index => index::measure(subject, scale, print),
            Self::OrderFresh => order::measure("fresh", subject, scale, print),
            Self::OrderAgain => order::measure("again", subject, scale, print),
            Self::OrderWritten => order::measure("written", subject, scale, print),
            Self::Mapping => mapping::measure("pgtable", subject, scale, print),
            Self::MappingUsed => mapping::measure("used", subject, scale, print),
            Self::Invalidations => invalidations::count(subject, print),
        }
    }
}
