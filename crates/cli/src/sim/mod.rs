//! `flagstone sim`: page tables on simulated machines, as many as one likes.
//!
//! Seed number `n` of a run is `--seed` plus `n`; each seed is a machine of its own, so that it can be replayed alone and seeds are shared out to threads. The first failure
//! ends everything: it is printed with what led there and the command that replays it.

mod plan;
mod row;

use crate::args::ConformanceOptions;
use crate::bench::table::Table;
use anyhow::{Result, bail};
use flagstone_conformance::{Outcome, Tally, cases, sim};
use indicatif::{ProgressBar, ProgressStyle};
use plan::{Plan, Work};
use row::Row;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A failure, and where it was.
struct Found {
    plan: Plan,
    work: Work,
    seed: u64,
    text: String,
}

/// Takes its panic messages from the suite while it lives: it tells of failures by value.
struct Silence;

impl Silence {
    fn new() -> Self {
        std::panic::set_hook(Box::new(|_| {}));
        Self
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        drop(std::panic::take_hook());
    }
}

/// Runs one seed. `Ok(None)`: the machine has not what the case is about.
fn once(plan: &Plan, work: &Work, seed: u64) -> Result<Option<Tally>, sim::Failed> {
    let setup = plan.setup(work, seed);
    match work {
        Work::Random(mix) => sim::random(&setup, *mix, plan.ops).map(Some),
        Work::Case(name) => sim::case(&setup, name).map(|outcome| match outcome {
            Some(Outcome::Passed) => Some(Tally::default()),
            Some(Outcome::Skipped(_)) | None => None,
        }),
    }
}

/// Runs the seeds of a plan on all threads.
fn run(
    plan: &Plan,
    work: &Work,
    seeds: u64,
    jobs: usize,
    bar: &ProgressBar,
) -> (Row, Option<Found>) {
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let shared = Mutex::new((Row::default(), None::<Found>));
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                let mut row = Row::default();
                while !stop.load(Ordering::Relaxed) {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= seeds {
                        break;
                    }
                    let seed = plan.seed.wrapping_add(number);
                    match once(plan, work, seed) {
                        Ok(tally) => row.add(tally),
                        Err(failed) => {
                            stop.store(true, Ordering::Relaxed);
                            let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
                            let earlier = shared.1.as_ref().is_some_and(|found| found.seed < seed);
                            if !earlier {
                                shared.1 = Some(Found {
                                    plan: plan.clone(),
                                    work: work.clone(),
                                    seed,
                                    text: failed.text,
                                });
                            }
                        }
                    }
                    bar.inc(1);
                }
                shared
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .0
                    .merge(&row);
            });
        }
    });
    let (mut row, found) = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
    row.elapsed = start.elapsed();
    (row, found)
}

fn report(found: &Found, shrink: bool) -> String {
    let mut text = found.text.clone();
    let command = found.plan.command(&found.work, found.seed);
    if !text.contains(&command) {
        text += &format!("\nreplay: {command}");
    }
    if let (true, Work::Random(mix)) = (shrink, &found.work) {
        eprintln!("making the workload smaller …");
        let setup = found.plan.setup(&found.work, found.seed);
        if let Some(small) = sim::shrink(&setup, *mix, found.plan.ops, 5_000) {
            text += &format!(
                "\n\nsmallest workload that still fails (seed {:#x}, {} runs):",
                small.seed, small.runs
            );
            for (cpu, ops) in small.workload.iter().enumerate() {
                text += &format!("\n  CPU {cpu}:");
                for op in ops {
                    text += &format!("\n    {op:?}");
                }
            }
            text += &format!("\nit fails so: {}", small.failure);
        }
    }
    text
}

/// The command.
pub(crate) fn conformance(options: &ConformanceOptions) -> Result<()> {
    if options.list {
        for case in cases() {
            println!("{:<18} {}", case.name, case.shows);
        }
        return Ok(());
    }
    let plans = plan::plans(options)?;
    let works = plan::works(options)?;
    let seeds = if options.seed.is_some() && options.seeds.is_none() {
        1
    } else {
        options.seeds.unwrap_or(1_000)
    };
    let jobs = options
        .jobs
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let bar =
        ProgressBar::new(plans.len() as u64 * works.iter().map(|w| w.seeds(seeds)).sum::<u64>());
    bar.set_style(ProgressStyle::with_template(
        "{elapsed_precise} {bar:30} {pos}/{len} {wide_msg}",
    )?);
    bar.enable_steady_tick(Duration::from_millis(500));
    let silence = Silence::new();
    let mut table = Table::new(
        format!(
            "page tables on simulated machines: {} CPUs, {} operations each, seeds from {:#x}",
            options.cpus, options.ops, plans[0].seed
        ),
        Row::heads(),
    );
    let mut failure = None;
    for plan in &plans {
        let mut row = Row::default();
        for work in &works {
            bar.set_message(format!("{} {}", plan.name(), work.name()));
            let (part, found) = run(plan, work, work.seeds(seeds), jobs, &bar);
            row.append(work, &part);
            failure = failure.or(found);
            if failure.is_some() {
                break;
            }
        }
        table.row(row.cells(&plan.name(), failure.is_none()));
        if failure.is_some() {
            break;
        }
    }
    bar.finish_and_clear();
    print!("{table}");
    let text = failure.map(|found| report(&found, options.shrink));
    drop(silence);
    match text {
        None => Ok(()),
        Some(text) => bail!("{text}"),
    }
}
