//! `flagstone guard`: shows what a running process's sampled guard pages have met, and switches the sampling off and on.
//!
//! Both go through the process's live file: the report says what was met, and a word of the head, which the process looks at before
//! each sample, switches.

use crate::args::{GuardOptions, Switch};
use crate::live;
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

/// Where the word is in a live file, and its bit for "off".
const CONTROL: u64 = 20;
const OFF: u32 = 1;

#[derive(Debug, Deserialize)]
struct Report {
    program: String,
    guard: Option<Guard>,
}

/// As in the report of a process.
#[derive(Debug, Deserialize)]
struct Guard {
    interval_ns: u64,
    objects: u64,
    allocated: u64,
    total_allocations: u64,
    total_frees: u64,
    total_bugs: u64,
    skipped_full: u64,
    skipped_covered: u64,
}

/// Shows, or switches.
pub(crate) fn guard(options: &GuardOptions) -> Result<()> {
    let pid = options.pid;
    let file = live::file_of(pid).with_context(|| {
        format!("process {pid} has no live file: is it one of `flagstone run`?")
    })?;
    let text = live::read(&file, Some(pid)).with_context(|| format!("{}", file.display()))?;
    let report: Report =
        serde_json::from_str(&text).with_context(|| format!("{}", file.display()))?;
    let Some(guard) = report.guard else {
        bail!(
            "process {pid} ({}) was started without --guard",
            report.program
        );
    };
    if let Some(switch) = options.switch {
        let word = if switch == Switch::Off { OFF } else { 0 };
        return OpenOptions::new()
            .write(true)
            .open(&file)
            .and_then(|file| file.write_all_at(&word.to_ne_bytes(), CONTROL))
            .with_context(|| format!("{}", file.display()));
    }
    println!("{} (process {pid})", report.program);
    for (what, value) in [
        ("objects in the pool", guard.objects),
        ("  of them allocated", guard.allocated),
        ("allocations sampled", guard.total_allocations),
        ("  of them freed", guard.total_frees),
        ("let pass: pool full", guard.skipped_full),
        ("let pass: stack is there", guard.skipped_covered),
        ("errors reported", guard.total_bugs),
    ] {
        println!("  {what:<26}{value:>10}");
    }
    println!(
        "  {:<26}{:>10}",
        "interval, ms",
        guard.interval_ns / 1_000_000
    );
    Ok(())
}
