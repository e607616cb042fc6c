//! What killed each mutant, as a table of 80 columns and as JSON.

use super::list::{Kind, Mutant};
use super::trial::{Outcome, Trial};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::path::Path;

/// What is left of a text in so many columns.
fn fit(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.to_owned();
    }
    let short: String = text.chars().take(columns - 1).collect();
    format!("{short}…")
}

/// A text without what comes before its first violation: the machine, its seed.
fn essence(text: &str) -> &str {
    let marks = ["seed 0x", "panicked at"];
    let start = marks.iter().find_map(|mark| {
        let at = text.find(mark)?;
        text[at..].find(": ").map(|colon| at + colon + 2)
    });
    &text[start.unwrap_or(0)..]
}

/// Prints every mutant and what it leaves out.
pub(crate) fn list(all: &[Mutant]) {
    for mutant in all {
        let kind = match mutant.kind {
            Kind::Suite if mutant.sample => "sample",
            Kind::Suite => "",
            Kind::Equivalent => "equivalent",
            Kind::Unseen => "unseen",
        };
        println!("{:<24} {:<4} {kind}", mutant.name, mutant.rule);
        println!("    without {}", mutant.what);
    }
}

/// Prints what killed each.
pub(crate) fn table(all: &[Mutant], outcomes: &[(Trial, Outcome)], control: &[(Trial, Outcome)]) {
    println!("{:<24} {:<4} {:<18} found by", "mutant", "rule", "seed");
    for (trial, outcome) in outcomes {
        let Some(mutant) = all.get(trial.number - 1) else {
            continue;
        };
        let seed = outcome.seed.as_deref().unwrap_or("-");
        let run = outcome.run.as_deref().unwrap_or("NOTHING");
        let run = run.rsplit("::").next().unwrap_or(run);
        println!(
            "{:<24} {:<4} {seed:<18} {}",
            fit(&mutant.name, 24),
            mutant.rule,
            fit(run, 31)
        );
        println!("    {}", fit(&format!("without {}", mutant.what), 76));
        if let Some(text) = &outcome.found {
            println!("    {}", fit(essence(text), 76));
        }
    }
    for mutant in all.iter().filter(|mutant| mutant.kind != Kind::Suite) {
        let how = match mutant.kind {
            Kind::Equivalent => "no difference",
            _ => "not seen here",
        };
        println!("{:<24} {:<4} {how}", fit(&mutant.name, 24), mutant.rule);
        println!("    {}", fit(&format!("without {}", mutant.what), 76));
        println!("    {}", fit(mutant.reason.as_deref().unwrap_or("-"), 76));
    }
    for (trial, outcome) in control {
        let run = fit(trial.runs.first().map_or("-", String::as_str), 50);
        let said = if outcome.is_found() {
            "FOUND"
        } else {
            "nothing"
        };
        println!("no mutant, {:>4} seeds: {said:<8} {run}", trial.seeds);
    }
}

/// Writes the same as JSON.
pub(crate) fn json(
    path: &Path,
    all: &[Mutant],
    outcomes: &[(Trial, Outcome)],
    control: &[(Trial, Outcome)],
) -> Result<()> {
    let of = |outcome: &Outcome| {
        json!({
            "found": outcome.found,
            "run": outcome.run,
            "seed": outcome.seed,
            "seconds": outcome.time.as_secs_f64(),
        })
    };
    let mutants: Vec<Value> = all
        .iter()
        .enumerate()
        .map(|(n, mutant)| {
            let mut value = json!({
                "name": mutant.name,
                "without": mutant.what,
                "rule": mutant.rule,
                "reason": mutant.reason,
                "kind": format!("{:?}", mutant.kind).to_lowercase(),
            });
            let outcome = outcomes.iter().find(|(trial, _)| trial.number == n + 1);
            value["outcome"] = outcome.map_or(Value::Null, |(_, outcome)| of(outcome));
            value
        })
        .collect();
    let control: Vec<Value> = control
        .iter()
        .map(|(trial, outcome)| {
            json!({"runs": trial.runs, "seeds": trial.seeds, "outcome": of(outcome)})
        })
        .collect();
    let text = serde_json::to_string_pretty(&json!({"mutants": mutants, "control": control}))?;
    std::fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))
}
