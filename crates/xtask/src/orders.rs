//! `cargo xtask orders`: whether a model finds each order of memory that is weaker than written.
//!
//! ```text
//!   mutants/orders.toml ─▶ target/orders/tree: a copy of the sources whose atomics are those of `flagstone-weak`, with every weaker order in it
//!                                │ one build
//!                                ▼
//!                          flagstone-orders ─▶ each order, and none as control: which model finds it, and what
//! ```
//!
//! Besides orders the list has *probes*: marks of ordinary accesses that go into the copy only, so that a race on what an order protects is seen.

use crate::mutants::list::{self, Edit, Mutant};
use crate::mutants::trial::{Binaries, Outcome, Trial};
use crate::mutants::{self, Options};
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

/// Crates whose atomics the models look at.
const CRATES: [&str; 4] = ["types", "frames", "slab", "pgtable"];
/// Files of other crates that models have from their sources.
const PARTS: [&str; 2] = [
    "crates/malloc/src/process/grace.rs",
    "crates/malloc/src/process/lock.rs",
];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    probe: Vec<Probe>,
    mutant: Vec<Mutant>,
}

/// A mark of an ordinary access.
#[derive(Debug, Deserialize)]
struct Probe {
    file: String,
    #[serde(flatten)]
    edit: Edit,
}

fn read(root: &Path) -> Result<File> {
    let path = root.join("mutants/orders.toml");
    let text =
        std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let file: File =
        toml::from_str(&text).with_context(|| format!("reading {}", path.display()))?;
    list::check(&file.mutant)?;
    Ok(file)
}

/// Builds the models, runs them without a mutant, then with each order.
///
/// # Errors
/// A list that does not fit the sources; a copy that does not build; an order that no model finds; something found where nothing is weaker.
pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let file = read(root)?;
    let all = &file.mutant;
    let chosen = mutants::chosen(all, options)?;
    if options.list {
        mutants::report::list(all);
        return Ok(());
    }
    let start = Instant::now();
    let base = root.join("target/orders");
    let tree = mutants::copy(root, &base, |fresh| {
        list::apply(fresh, all)?;
        for probe in &file.probe {
            let path = fresh.join(&probe.file);
            let text = std::fs::read_to_string(&path)?;
            let text = probe
                .edit
                .applied(&text)
                .with_context(|| format!("a probe of {}", probe.file))?;
            std::fs::write(&path, text)?;
        }
        weaken(fresh)
    })?;
    mutants::cargo(
        &tree,
        &base.join("build"),
        &["build", "--quiet", "--package", "flagstone-orders"],
    )?;
    println!("built in {:.0} s", start.elapsed().as_secs_f64());
    let binaries = Binaries {
        runner: base.join("build/debug/flagstone-orders"),
        tests: BTreeMap::new(),
    };
    let mut models: Vec<&String> = all.iter().flat_map(|mutant| &mutant.runs).collect();
    models.sort_unstable();
    models.dedup();
    let trial = |number, name: &str, runs: Vec<String>| Trial {
        number,
        name: name.into(),
        runs,
        seeds: options.seeds,
    };
    let controls = models
        .iter()
        .map(|model| trial(0, "none", vec![(*model).clone()]));
    let control = mutants::all_at_once(controls.collect(), &binaries, options);
    let trials = chosen
        .iter()
        .map(|&(n, mutant)| trial(n, &mutant.name, mutant.runs.clone()));
    let outcomes = mutants::all_at_once(trials.collect(), &binaries, options);
    mutants::report::table(all, &outcomes, &control);
    if let Some(path) = &options.json {
        mutants::report::json(path, all, &outcomes, &control)?;
    }
    let found =
        |outcomes: &[(Trial, Outcome)]| outcomes.iter().filter(|(_, o)| o.is_found()).count();
    println!(
        "{} of {} found, {} findings where nothing is weaker, {:.0} s",
        found(&outcomes),
        outcomes.len(),
        found(&control),
        start.elapsed().as_secs_f64()
    );
    ensure!(
        found(&control) == 0,
        "something was found where nothing is weaker"
    );
    let lived: Vec<_> = outcomes
        .iter()
        .filter(|(_, outcome)| !outcome.is_found())
        .map(|(trial, _)| trial.name.as_str())
        .collect();
    ensure!(lived.is_empty(), "not found: {}", lived.join(", "));
    Ok(())
}

/// Gives the copy the atomics of the model of weak memory.
fn weaken(fresh: &Path) -> Result<()> {
    let mut sources: Vec<_> = PARTS.iter().map(|part| fresh.join(part)).collect();
    for name in CRATES {
        let folder = fresh.join("crates").join(name);
        let manifest = folder.join("Cargo.toml");
        let text = std::fs::read_to_string(&manifest)?;
        let text = text.replacen(
            "[dependencies]",
            "[dependencies]\nflagstone-weak.workspace = true",
            1,
        );
        std::fs::write(&manifest, text)?;
        mutants::walk(&folder.join("src"), &mut sources)?;
    }
    for path in sources {
        let text = std::fs::read_to_string(&path)?;
        let weak = text.replace("core::sync::atomic", "flagstone_weak::atomic");
        if weak != text {
            std::fs::write(&path, weak)?;
        }
    }
    // The switch of the copy is no part of the models.
    let types = fresh.join("crates/types/src/lib.rs");
    let text = std::fs::read_to_string(&types)? + list::SWITCH;
    std::fs::write(&types, text).context("writing the switch")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_fits_the_sources() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .ancestors()
            .nth(2)
            .unwrap();
        let file = read(root).unwrap();
        list::check_places(root, &file.mutant).unwrap();
        for probe in &file.probe {
            let text = std::fs::read_to_string(root.join(&probe.file)).unwrap();
            let applied = probe.edit.applied(&text);
            assert!(applied.is_ok(), "{}: {:?}", probe.file, applied.err());
        }
    }
}
