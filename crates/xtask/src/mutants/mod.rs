//! `cargo xtask mutants`: whether the suite notices when something is left out.
//!
//! ```text
//!   mutants/*.toml ─ list ─▶ target/mutants/tree: a copy of the sources with every mutant in it, chosen at run time
//!                                 │ one build
//!                                 ▼
//!                     runner and test binaries ─ trial ─▶ each mutant, and none as control
//!                                                              │
//!                                                              ▼ report: what killed it, as a table and as JSON
//! ```
//!
//! The sources of the repository know nothing of it: only the copy has the switch.

pub(crate) mod list;
pub(crate) mod report;
pub(crate) mod trial;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use list::{Kind, Mutant};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use trial::{Binaries, Outcome, Trial};

/// Which mutants, and how long.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// These mutants only
    #[arg(value_name = "MUTANT")]
    only: Vec<String>,
    /// The few that every change is checked with
    #[arg(long)]
    sample: bool,
    /// Seeds within which each must be found
    #[arg(long, default_value_t = 1000)]
    pub(crate) seeds: u64,
    /// Seconds without a sign of life: a seed that does not end has found it
    #[arg(long, default_value_t = 600)]
    limit: u64,
    /// How many at once; the processors there are
    #[arg(long)]
    jobs: Option<usize>,
    /// Write what killed each to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Print the list and do nothing
    #[arg(long)]
    pub(crate) list: bool,
}

/// Runs every mutant that is asked for, then the same seeds without any.
///
/// # Errors
/// A list that does not fit the sources; a copy that does not build; a mutant that lives; something found where no mutant is.
pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let all = list::read(root)?;
    let chosen = chosen(&all, options)?;
    if options.list {
        report::list(&all);
        return Ok(());
    }
    let start = Instant::now();
    let tree = copy(root, &root.join("target/mutants"), |fresh| {
        list::apply(fresh, &all)?;
        let runs = chosen.iter().flat_map(|(_, mutant)| &mutant.runs);
        list::keep_formats(fresh, &runs.map(String::as_str).collect::<Vec<_>>())?;
        let types = fresh.join("crates/types/src/lib.rs");
        let text = std::fs::read_to_string(&types)? + list::SWITCH;
        std::fs::write(&types, text).context("writing the switch")
    })?;
    let binaries = build(root, &tree, &chosen)?;
    println!("built in {:.0} s", start.elapsed().as_secs_f64());

    let trials = chosen.iter().map(|&(number, mutant)| Trial {
        number,
        name: mutant.name.clone(),
        runs: mutant.runs.clone(),
        seeds: options.seeds,
    });
    let outcomes = all_at_once(trials.collect(), &binaries, options);
    let control = all_at_once(controls(&outcomes, options.seeds), &binaries, options);
    report::table(&all, &outcomes, &control);
    if let Some(path) = &options.json {
        report::json(path, &all, &outcomes, &control)?;
    }
    let lived: Vec<_> = outcomes.iter().filter(|(_, o)| !o.is_found()).collect();
    let names: Vec<_> = lived.iter().map(|(t, _)| t.name.as_str()).collect();
    let false_alarms = control.iter().filter(|(_, o)| o.is_found()).count();
    println!(
        "{} of {} found, {false_alarms} findings without a mutant, {:.0} s",
        outcomes.len() - lived.len(),
        outcomes.len(),
        start.elapsed().as_secs_f64()
    );
    ensure!(false_alarms == 0, "something was found without a mutant");
    ensure!(names.is_empty(), "not found: {}", names.join(", "));
    Ok(())
}

/// The mutants that are to be run, with their numbers.
pub(crate) fn chosen<'l>(all: &'l [Mutant], options: &Options) -> Result<Vec<(usize, &'l Mutant)>> {
    for name in &options.only {
        if all.iter().all(|mutant| mutant.name != *name) {
            bail!("no mutant {name}; `--list` names them");
        }
    }
    let wanted = |mutant: &Mutant| {
        mutant.kind == Kind::Suite
            && (!options.sample || mutant.sample)
            && (options.only.is_empty() || options.only.contains(&mutant.name))
    };
    let numbered = all.iter().enumerate().map(|(n, mutant)| (n + 1, mutant));
    Ok(numbered.filter(|(_, mutant)| wanted(mutant)).collect())
}

/// Copies the sources to `tree` in `base`, changed by `edit`. What has not changed keeps its time, so that it is not built again.
pub(crate) fn copy(
    root: &Path,
    base: &Path,
    edit: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let (tree, fresh) = (base.join("tree"), base.join("fresh"));
    if fresh.exists() {
        std::fs::remove_dir_all(&fresh).context("removing an old copy")?;
    }
    let files = Command::new("git")
        .current_dir(root)
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .output()
        .context("git ls-files")?;
    ensure!(files.status.success(), "git ls-files failed");
    let files = String::from_utf8(files.stdout)?;
    let files: Vec<&str> = files.split('\0').filter(|name| !name.is_empty()).collect();
    for name in &files {
        let (from, to) = (root.join(name), fresh.join(name));
        if !from.is_file() {
            continue;
        }
        if let Some(folder) = to.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::copy(&from, &to).with_context(|| format!("copying {name}"))?;
    }
    edit(&fresh)?;
    // Only what differs is written.
    let mut stale = Vec::new();
    walk(&tree, &mut stale)?;
    for path in stale {
        let name = path.strip_prefix(&tree)?;
        if !fresh.join(name).is_file() {
            std::fs::remove_file(&path)?;
        }
    }
    for name in &files {
        let (from, to) = (fresh.join(name), tree.join(name));
        if !from.is_file() {
            continue;
        }
        let new = std::fs::read(&from)?;
        if std::fs::read(&to).is_ok_and(|old| old == new) {
            continue;
        }
        if let Some(folder) = to.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(&to, new).with_context(|| format!("writing {name}"))?;
    }
    std::fs::remove_dir_all(&fresh)?;
    Ok(tree)
}

/// Every file below a folder.
pub(crate) fn walk(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    if !folder.is_dir() {
        return Ok(());
    }
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            walk(&path, found)?;
        } else {
            found.push(path);
        }
    }
    Ok(())
}

/// Runs cargo on a copy and returns what it said.
pub(crate) fn cargo(tree: &Path, target: &Path, args: &[&str]) -> Result<String> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .current_dir(tree)
        .args(args)
        .env("CARGO_TARGET_DIR", target)
        // The copy is full of blocks that nobody would write.
        .env("RUSTFLAGS", "-Awarnings")
        // Panics are caught, and nobody looks at the program itself.
        .env("CARGO_PROFILE_DEV_DEBUG", "false")
        .env("CARGO_INCREMENTAL", "0")
        .stderr(Stdio::inherit())
        .output()
        .context("running cargo")?;
    ensure!(output.status.success(), "cargo {} failed", args.join(" "));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Builds the runner and the test binaries that the mutants name.
fn build(root: &Path, tree: &Path, chosen: &[(usize, &Mutant)]) -> Result<Binaries> {
    let target = root.join("target/mutants/build");
    let cargo = |args: &[&str]| cargo(tree, &target, args);
    let uses = |what: &dyn Fn(&str) -> bool| {
        chosen
            .iter()
            .any(|(_, mutant)| mutant.runs.iter().any(|run| what(run)))
    };
    let mut runner = PathBuf::new();
    if uses(&|run| !run.starts_with("test ")) {
        cargo(&["build", "--quiet", "--package", "flagstone-mutants"])?;
        runner = target.join("debug/flagstone-mutants");
    }
    let mut tests = BTreeMap::new();
    for (package, binary) in [("slab", "concurrency"), ("slab", "shuttle")] {
        let prefix = format!("test {package}::{binary}::");
        if !uses(&|run| run.starts_with(&prefix)) {
            continue;
        }
        let full = format!("flagstone-{package}");
        let args = ["test", "--quiet", "--package", &full, "--test", binary];
        let mut args = args.to_vec();
        args.extend(["--no-run", "--message-format", "json"]);
        let said = cargo(&args)?;
        let path = said
            .lines()
            .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
            .filter(|said| said["target"]["name"] == binary)
            .find_map(|said| said["executable"].as_str().map(PathBuf::from));
        let path = path.with_context(|| format!("no test binary {package}::{binary}"))?;
        tests.insert(format!("{package}::{binary}"), path);
    }
    Ok(Binaries { runner, tests })
}

/// Runs trials on all processors.
pub(crate) fn all_at_once(
    trials: Vec<Trial>,
    binaries: &Binaries,
    options: &Options,
) -> Vec<(Trial, Outcome)> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let limit = Duration::from_secs(options.limit);
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.unwrap_or(cpus).max(1) {
            scope.spawn(|| {
                while let Some(trial) = trials.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = trial.run(binaries, limit);
                    println!("{:<24} {}", trial.name, outcome.line());
                    if let Ok(mut done) = done.lock() {
                        done.push((trial.clone(), outcome));
                    }
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_default();
    done.sort_by_key(|(trial, _)| trial.number);
    done
}

/// What is run without a mutant: of each run, the seeds up to the last that one was found with.
fn controls(outcomes: &[(Trial, Outcome)], seeds: u64) -> Vec<Trial> {
    let mut most: BTreeMap<&str, u64> = BTreeMap::new();
    for (_, outcome) in outcomes {
        if let Some((run, seed)) = outcome.place() {
            let count = most.entry(run).or_default();
            *count = (*count).max(seed.map_or(seeds, |seed| seed + 1));
        }
    }
    most.into_iter()
        .map(|(run, seeds)| Trial {
            number: 0,
            name: "none".into(),
            runs: vec![run.to_owned()],
            seeds,
        })
        .collect()
}
