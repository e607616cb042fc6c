//! The command line, as clap reads it. Help texts, completions and manual pages come from here.

use crate::bench::worker::Work;
use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use flagstone_pgtable::format::Arch;
use flagstone_types::PhysAddr;
use std::ffi::OsString;
use std::path::PathBuf;

/// A memory manager in the Linux tradition, under any program.
#[derive(Debug, Parser)]
#[command(name = "flagstone", version, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(RunOptions),
    Slabinfo(SlabinfoOptions),
    Guard(GuardOptions),
    Ptdump(PtdumpOptions),
    /// Tell the frames of a report by function, file and line
    Symbolize {
        /// The report; standard input without it
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: Option<PathBuf>,
    },
    /// Measure Flagstone beside its rivals, interleaved, in one run
    Bench {
        #[command(subcommand)]
        experiment: Experiment,
    },
    /// One contestant's part of a benchmark; started by `bench`
    #[command(hide = true)]
    BenchWorker {
        work: Work,
    },
    /// One subject's part of a benchmark inside one process; started by `bench`
    #[command(hide = true)]
    BenchInside(InsideOptions),
    /// Run page tables on simulated machines under many seeds
    Sim {
        #[command(subcommand)]
        what: Simulation,
    },
    /// Unpack the shared library and print its path, for use in LD_PRELOAD by hand
    Library,
    /// Print shell completions
    Completions {
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write all of them into a folder
    Man {
        /// Where to write one file for each command
        #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
        folder: Option<PathBuf>,
    },
}

/// Show what a process's sampled guard pages have met, or switch the sampling.
///
/// The process was started by `flagstone run --guard`. While it is off no allocation is sampled; objects that have guard pages
/// already keep them.
#[derive(Args, Debug)]
pub(crate) struct GuardOptions {
    /// The process
    #[arg(value_name = "PID")]
    pub(crate) pid: u32,
    /// Sample allocations, or do not; without it, what was met so far is shown
    #[arg(value_enum)]
    pub(crate) switch: Option<Switch>,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    /// Sample
    On,
    /// Do not sample
    Off,
}

/// Show the page tables in an image of a machine's memory, as ranges with flags.
///
/// An image is an ELF core whose segments have physical addresses: what `flagstone_sim::Machine::write_image` and QEMU's
/// `dump-guest-memory` write. Both say where page tables begin; for other cores give --arch and --root.
#[derive(Args, Debug)]
pub(crate) struct PtdumpOptions {
    /// The image
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) image: PathBuf,
    /// Show only the page table with this name
    #[arg(long, value_name = "NAME", conflicts_with = "root")]
    pub(crate) space: Option<String>,
    /// The format of the page table: x86_64, x86_64-la57, x86-pae, arm64-4k, … (an unknown name lists them all)
    #[arg(long, value_parser = crate::ptdump::arch)]
    pub(crate) arch: Option<Arch>,
    /// The physical address of a page table that the image does not name
    #[arg(long, value_name = "ADDRESS", value_parser = crate::ptdump::address)]
    pub(crate) root: Option<PhysAddr>,
    /// The table is that of the upper half, where the architecture has two
    #[arg(long)]
    pub(crate) upper: bool,
    /// Tell accessed and dirty pages from others
    #[arg(long)]
    pub(crate) young_dirty: bool,
    /// Show where the memory is
    #[arg(long)]
    pub(crate) physical: bool,
    /// Show only what may be both written and executed
    #[arg(long)]
    pub(crate) wx: bool,
    /// Report an access to this address that faulted: the entry at every level
    #[arg(long, value_name = "ADDRESS", value_parser = crate::ptdump::address, conflicts_with = "wx")]
    pub(crate) fault: Option<PhysAddr>,
    /// The error code of that fault, in x86's bits
    #[arg(long, value_name = "N", default_value_t = 0, requires = "fault")]
    pub(crate) code: u32,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Run a program with its heap on Flagstone's object caches.
///
/// The program becomes this process: its exit status and signals are its own. Where reports are
/// shown with functions and lines (--reports, --debug and the like) it is a child, and this process
/// ends as it does. LD_PRELOAD and the settings are inherited by the programs that it starts.
///
/// Exit status: 127 if there is no such program; 126 if it can not be executed, or if preloading
/// can not apply to it (static, set-user-ID, set-group-ID or with file capabilities, another
/// architecture or C library, neither ELF nor script); 125 if flagstone itself fails.
#[derive(Args, Debug)]
pub(crate) struct RunOptions {
    /// Report at exit where the memory went: as text or JSON on standard error, or into FILE (as
    /// JSON if its name ends in .json; %p in the name becomes the process id)
    #[arg(long, value_name = "FILE|json", num_args = 0..=1, require_equals = true, default_missing_value = "text")]
    pub(crate) stats: Option<OsString>,

    /// Debug the heap's objects: red zones, poison, who allocated and freed them, checks at each allocation and free. OPTIONS are as
    /// those of Linux's slub_debug: letters F (checks), Z (red zones), P (poison), U (users), then names of caches (FZ,malloc-64)
    #[arg(long, value_name = "OPTIONS", num_args = 0..=1, require_equals = true, default_missing_value = "FZPU")]
    pub(crate) debug: Option<OsString>,

    /// Give an allocation now and then pages of its own that can not be overrun or used after free unnoticed: one in each interval
    /// (100 ms), among so many objects at most (255)
    #[arg(long, value_name = "interval=MS,objects=N", num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    pub(crate) guard: Option<OsString>,

    /// Show reports of bugs with functions, files and lines. The program is a child then
    #[arg(long)]
    pub(crate) reports: bool,

    /// Exit with this status if there were reports of bugs; implies --reports
    #[arg(long, value_name = "N")]
    pub(crate) error_exit: Option<u8>,

    /// Append each report of a bug to FILE, as a line of JSON; implies --reports
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) json_reports: Option<PathBuf>,

    /// Harden the heap: by all there is, or by those named of random, guards, zero_free, zero_alloc, check_free, canary, encode
    /// and usercopy
    #[arg(long, value_name = "NAME,…", num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    pub(crate) harden: Option<OsString>,

    /// Set a variable in the program's environment; may be repeated
    #[arg(long = "env", value_name = "NAME=VALUE")]
    pub(crate) variables: Vec<OsString>,

    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_names = ["PROGRAM", "ARGUMENT"],
        value_hint = ValueHint::CommandWithArguments
    )]
    pub(crate) command: Vec<OsString>,
}

/// Show the object caches of a process, or of a saved report.
#[derive(Args, Debug)]
pub(crate) struct SlabinfoOptions {
    /// The id of a process under `flagstone run`, or a file: a report in JSON, or /proc/slabinfo
    #[arg(value_name = "PID|FILE")]
    pub(crate) source: OsString,

    /// Count the caches of each layout of the free-object index instead
    #[arg(long)]
    pub(crate) layouts: bool,

    /// Order of the caches
    #[arg(long, value_name = "KEY", value_enum, default_value_t = SortKey::Listed)]
    pub(crate) sort: SortKey,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What to sort caches by. All but `name` and `listed` begin with the largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SortKey {
    /// As the source lists them
    Listed,
    /// By name
    Name,
    /// By size of one object
    Size,
    /// By objects in use
    Active,
    /// By objects, used and free
    Total,
    /// By bytes in slabs
    Bytes,
    /// By bytes in slabs that no object in use needs
    Free,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Experiment {
    /// malloc and free alone: pairs, 10,000 then 10,000, between threads; object caches and forms of arrays
    Fastpath(Plan),
    /// All CPUs at once: N allocations each, then N frees each; what each improvement of the growth path buys
    Contention(Plan),
    /// Where slabs keep the index of their free objects, and what it costs in memory and time
    Layouts(Plan),
    /// What it costs that slabs hand out their objects in random order
    Randomisation(Plan),
    /// Real programs whole: time and peak resident memory
    Programs(Plan),
    /// Page tables beside those of other crates: map, walk, protect and unmap for each page
    Pgtable(PgtablePlan),
    /// How many invalidations operations on page tables take; counted, not timed
    Tlb(Plan),
}

/// What `bench pgtable` can be told.
#[derive(Args, Debug)]
pub(crate) struct PgtablePlan {
    #[command(flatten)]
    pub(crate) plan: Plan,

    /// Show what a kernel counted as well: guest instructions for each page, from a file in JSON
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) guest: Option<PathBuf>,
}

/// What every experiment can be told.
#[derive(Args, Debug)]
pub(crate) struct Plan {
    /// Repetitions; in each of them every contestant has its turn
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,

    /// Write every sample to FILE as JSON
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) json: Option<PathBuf>,

    /// Measure only this part of the experiment; may be repeated
    #[arg(long, value_name = "PART")]
    pub(crate) only: Vec<String>,

    /// Another contestant: a shared library that provides malloc; may be repeated
    #[arg(long = "rival", value_name = "NAME=LIBRARY")]
    pub(crate) rivals: Vec<String>,

    /// Leave a contestant out; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) without: Vec<String>,

    /// Milliseconds that one size is measured for in one turn, where it is measured inside one process
    #[arg(long, value_name = "MS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(..=60_000))]
    pub(crate) slice: u64,

    /// Objects that are alive at once, where it is measured inside one process
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(crate) objects: u32,
}

/// What a process is told that measures one subject.
#[derive(Args, Debug)]
pub(crate) struct InsideOptions {
    pub(crate) job: String,
    pub(crate) subject: String,
    #[arg(long)]
    pub(crate) slice: u64,
    #[arg(long)]
    pub(crate) objects: u32,
    #[arg(long)]
    pub(crate) seed: u64,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Simulation {
    Conformance(ConformanceOptions),
}

/// A seed: decimal, or hexadecimal with 0x.
fn seed(text: &str) -> Result<u64, std::num::ParseIntError> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    }
}

/// Run the conformance suite: named cases and random operations on simulated machines, each access held against what must be there.
///
/// Each seed is a machine of its own whose CPUs, units and schedule the seed decides. Without --case and --mix everything is run; cases with at
/// most 20 seeds. The first failure ends the run: it is printed with the history of the entries that led there and the command that
/// replays it, and the exit status is 1.
#[derive(Args, Debug)]
pub(crate) struct ConformanceOptions {
    /// Formats of page tables, with commas between; `all` for every one
    #[arg(
        long,
        value_name = "ARCH",
        value_delimiter = ',',
        default_value = "x86_64"
    )]
    pub(crate) arch: Vec<String>,

    /// What is special about the machines: usual, software (no accessed and dirty bits), half-software, paravirtual, knights-landing, plain (no huge leaves), or all
    #[arg(
        long,
        value_name = "VARIANT",
        value_delimiter = ',',
        default_value = "usual"
    )]
    pub(crate) variant: Vec<String>,

    /// CPUs of each machine
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=64))]
    pub(crate) cpus: usize,

    /// How many seeds [default: 1000; 1 with --seed]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seeds: Option<u64>,

    /// The first seed, decimal or with 0x
    #[arg(long, value_name = "SEED", value_parser = seed)]
    pub(crate) seed: Option<u64>,

    /// Random operations of each CPU
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=100_000))]
    pub(crate) ops: usize,

    /// What random operations are drawn by: all, walkers (readers against collapse, split and unmap), bits, pages; may be repeated
    #[arg(long, value_name = "MIX", value_delimiter = ',')]
    pub(crate) mix: Vec<String>,

    /// Run this case, or `all`; may be repeated
    #[arg(long, value_name = "CASE", value_delimiter = ',')]
    pub(crate) case: Vec<String>,

    /// Say what the cases are
    #[arg(long)]
    pub(crate) list: bool,

    /// Make a workload that fails as small as possible
    #[arg(long)]
    pub(crate) shrink: bool,

    /// Threads [default: one for each CPU of this computer]
    #[arg(long, value_name = "N", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1024))]
    pub(crate) jobs: Option<usize>,
}
