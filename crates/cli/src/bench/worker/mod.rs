//! What runs under a contestant: `flagstone bench-worker WORK`, in a process of its own.
//!
//! A worker prints one line per measurement, `metric<TAB>value`. The parent starts it with a contestant's library
//! preloaded and reads the lines. Its own bookkeeping is allocated before it starts its clock.

mod cmalloc;
mod continued_fraction;
mod exchange;
mod single;

pub(crate) use exchange::CONTENTION_SIZES;
pub(crate) use single::{BATCH_SIZES, PAIR_SIZES};

use super::contestants::Contestant;
use super::rounds::Sample;
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// What a worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Work {
    /// Says which library provides malloc
    Provider,
    /// Allocates one object and frees it
    Pair,
    /// Allocates 10,000 objects, then frees them
    Batch,
    /// The same, and writes to each object
    BatchTouched,
    /// One thread allocates, another frees
    Ring,
    /// Threads replace each other's objects
    Larson,
    /// All CPUs allocate at once, then all free
    Contention,
    /// Larson's server as a whole program: more threads, one number less
    LarsonProgram,
    /// Factors an integer by continued fractions, every number on the heap
    Cfrac,
}

/// Does the work and prints what it measured.
pub(crate) fn work(work: &Work) -> Result<()> {
    let mut lines = String::new();
    let mut print = |metric: String, value: f64| lines += &format!("{metric}\t{value}\n");
    match work {
        Work::Provider => lines += &format!("{}\n", cmalloc::provider()?.display()),
        Work::Pair => single::pairs(&mut print)?,
        Work::Batch => single::batches(false, &mut print)?,
        Work::BatchTouched => single::batches(true, &mut print)?,
        Work::Ring => exchange::ring(&mut print)?,
        Work::Larson => exchange::larson(exchange::LARSON_SHORT, &mut print)?,
        Work::Contention => exchange::contention(&mut print)?,
        Work::LarsonProgram => exchange::larson(exchange::LARSON_LONG, &mut |_, _| {})?,
        Work::Cfrac => lines += &continued_fraction::factor_the_example()?,
    }
    print!("{lines}");
    Ok(())
}

/// The command that does `work` in a process of its own, without a contestant yet.
pub(crate) fn command(work: &str) -> Result<Command> {
    let mut command = command_of("bench-worker")?;
    command.arg(work);
    Ok(command)
}

/// This command with a subcommand of its own, in a process of its own.
pub(crate) fn command_of(subcommand: &str) -> Result<Command> {
    let this = std::env::current_exe().context("the path of this command")?;
    let mut command = Command::new(this);
    command.arg(subcommand).stdin(Stdio::null());
    Ok(command)
}

/// Lets a worker under `contestant` measure.
///
/// # Errors
/// It could not be started, crashed, or printed something else.
pub(crate) fn ask(contestant: &Contestant, work: &str) -> Result<Vec<Sample>> {
    samples(&output(contestant, work)?)
}

/// The measurements that a worker printed.
///
/// # Errors
/// A line that is none, by its text.
pub(crate) fn samples(lines: &str) -> Result<Vec<Sample>> {
    lines
        .lines()
        .map(|line| {
            let (metric, value) = line
                .split_once('\t')
                .with_context(|| format!("a worker printed {line:?}"))?;
            Ok(Sample {
                metric: metric.into(),
                value: value
                    .parse()
                    .with_context(|| format!("a worker printed {line:?}"))?,
            })
        })
        .collect()
}

/// The library that a program under `contestant` gets its malloc from.
pub(crate) fn provider(contestant: &Contestant) -> Result<PathBuf> {
    Ok(PathBuf::from(output(contestant, "provider")?.trim_end()))
}

fn output(contestant: &Contestant, work: &str) -> Result<String> {
    let mut command = command(work)?;
    contestant.apply(&mut command);
    output_of(command)
}

/// What a worker printed.
///
/// # Errors
/// It could not be started, or did not end well.
pub(crate) fn output_of(mut command: Command) -> Result<String> {
    let output = command.output().context("starting a worker")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!(
            "a worker ended with {}: {}",
            output.status,
            said.lines().last().unwrap_or("(no message)")
        );
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Pseudo-random numbers (xorshift64*), the same in every run.
#[derive(Debug)]
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`.
    fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }
}
