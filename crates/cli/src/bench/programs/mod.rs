//! `bench programs`: real programs whole, their time and their peak resident memory.
//!
//! The output of a program under a contestant is compared with its output under the first contestant (glibc,
//! unless it was left out): a malloc under which a program computes something else is no contestant.

mod child;
mod redis;
mod whole;
mod workloads;

use super::contestants::{Absent, Contestant, Field, GLIBC};
use super::rounds::{self, Part, Results, Sample};
use super::statistics::geometric_mean;
use super::table::{Table, number};
use super::{chosen, finish, heads};
use crate::args::Plan;
use anyhow::{Result, bail};
use std::collections::HashMap;
use std::path::Path;

/// What one run of a program took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    /// Seconds from its start to its end; of a server, seconds its client was busy.
    seconds: f64,
    /// Largest resident memory of one of its processes, in KiB.
    peak_kib: f64,
    /// A hash of what it computed.
    digest: u64,
}

/// A program with its input ready.
trait Program {
    /// Runs it once.
    fn run(&self, contestant: &Contestant) -> Result<Outcome>;
}

/// A program that can be measured: its name, and how to make its input in a folder.
struct Entry {
    name: &'static str,
    /// Fails with the reason if the program is not installed.
    prepare: fn(&Path) -> Result<Box<dyn Program>>,
}

const PROGRAMS: &[Entry] = &[
    Entry {
        name: "cfrac",
        prepare: workloads::cfrac,
    },
    Entry {
        name: "larson",
        prepare: workloads::larson,
    },
    Entry {
        name: "python3",
        prepare: workloads::python,
    },
    Entry {
        name: "python3-malloc",
        prepare: workloads::python_on_malloc,
    },
    Entry {
        name: "sqlite3",
        prepare: workloads::sqlite,
    },
    Entry {
        name: "redis",
        prepare: redis::redis,
    },
    Entry {
        name: "gcc",
        prepare: workloads::gcc,
    },
];

/// Measures and prints.
pub(crate) fn programs(plan: &Plan) -> Result<()> {
    let entries = chosen(plan, PROGRAMS, |entry| entry.name)?;
    let mut field = Field::gather(plan)?;
    let folder = tempfile::tempdir()?;
    let mut ready: HashMap<&str, Box<dyn Program>> = HashMap::new();
    let mut parts = Vec::new();
    for entry in entries {
        match (entry.prepare)(folder.path()) {
            Ok(program) => {
                ready.insert(entry.name, program);
                parts.push(Part { name: entry.name });
            }
            Err(error) => field.absent.push(Absent {
                name: entry.name.into(),
                reason: format!("{error:#}"),
            }),
        }
    }

    let mut digests: HashMap<&str, (u64, String)> = HashMap::new();
    let results = rounds::interleave(
        plan.rounds,
        &parts,
        &field.contestants,
        |part, contestant| {
            let outcome = ready[part.name].run(contestant)?;
            let (digest, of) = digests
                .entry(part.name)
                .or_insert_with(|| (outcome.digest, contestant.name.clone()));
            if *digest != outcome.digest {
                bail!("it computed something else than under {of}");
            }
            Ok(vec![
                Sample {
                    metric: format!("{}/seconds", part.name),
                    value: outcome.seconds,
                },
                Sample {
                    metric: format!("{}/peak", part.name),
                    value: outcome.peak_kib / 1024.0,
                },
            ])
        },
    )?;

    let (base, base_name) = match field
        .contestants
        .iter()
        .position(|contestant| contestant.name == GLIBC)
    {
        Some(place) => (place, GLIBC),
        None => (0, field.contestants[0].name.as_str()),
    };
    let rounds = plan.rounds;
    let title = format!("Seconds, median of {rounds} rounds (as a multiple of {base_name}'s)");
    println!(
        "{}",
        table(&title, "seconds", base, &parts, &field, &results)
    );
    let title =
        format!("Peak resident MiB, median of {rounds} rounds (as a multiple of {base_name}'s)");
    println!("{}", table(&title, "peak", base, &parts, &field, &results));
    print!("{}", judgement(base, base_name, &parts, &field, &results));
    finish(
        plan,
        "programs",
        &[(&field, &results)],
        "seconds; peak in MiB",
    )
}

fn table(
    title: &str,
    what: &str,
    base: usize,
    parts: &[Part],
    field: &Field,
    results: &Results,
) -> Table {
    let mut table = Table::new(
        title,
        ["".to_owned()].into_iter().chain(heads(&field.contestants)),
    );
    for part in parts {
        let metric = format!("{}/{what}", part.name);
        let mut cells = vec![part.name.to_owned()];
        cells.extend(
            (0..field.contestants.len()).map(|who| match results.median(&metric, who) {
                Some(median) => {
                    let ratio = results.median(&metric, base).map(|base| median / base);
                    format!("{} ({})", number(Some(median)), number(ratio))
                }
                None => "-".into(),
            }),
        );
        table.row(cells);
    }
    let mut cells = vec!["geom. mean".to_owned()];
    cells.extend(
        (0..field.contestants.len()).map(|who| number(mean_ratio(what, who, base, parts, results))),
    );
    table.row(cells);
    table
}

/// Geometric mean over the programs of a contestant's medians, as multiples of `base`'s. None if one is missing.
fn mean_ratio(
    what: &str,
    who: usize,
    base: usize,
    parts: &[Part],
    results: &Results,
) -> Option<f64> {
    let ratios: Option<Vec<f64>> = parts
        .iter()
        .map(|part| {
            let metric = format!("{}/{what}", part.name);
            Some(results.median(&metric, who)? / results.median(&metric, base)?)
        })
        .collect();
    geometric_mean(&ratios?)
}

/// Flagstone's mean against the best rival's, and the programs in which it takes more memory than it may: more than
/// a tenth and more than 2 MiB above the base.
fn judgement(
    base: usize,
    base_name: &str,
    parts: &[Part],
    field: &Field,
    results: &Results,
) -> String {
    let Some(own) = field.flagstone() else {
        return String::new();
    };
    let mut text = String::new();
    let mean = |who| mean_ratio("seconds", who, base, parts, results);
    let best = field
        .rivals()
        .filter_map(|who| Some((mean(who)?, who)))
        .min_by(|a, b| a.0.total_cmp(&b.0));
    if let (Some(mine), Some((theirs, who))) = (mean(own), best) {
        text += &format!(
            "Flagstone's time is {:.3} of the best rival's ({}).\n",
            mine / theirs,
            field.contestants[who].name
        );
    }
    for part in parts {
        let metric = format!("{}/peak", part.name);
        if let (Some(mine), Some(theirs)) =
            (results.median(&metric, own), results.median(&metric, base))
            && mine > (theirs * 1.1).max(theirs + 2.0)
        {
            text += &format!(
                "{}: peak {mine:.1} MiB, {base_name} {theirs:.1} MiB\n",
                part.name
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field() -> Field {
        let contestant = |name: &str| Contestant {
            name: name.into(),
            library: None,
        };
        Field {
            contestants: vec![
                contestant("glibc"),
                contestant("rival"),
                contestant("flagstone"),
            ],
            absent: Vec::new(),
        }
    }

    /// Every contestant takes `seconds` and `peak` of its own for a program.
    fn results(parts: &[Part], seconds: [f64; 3], peak: [f64; 3]) -> Results {
        let field = field();
        let place = |name: &str| {
            field
                .contestants
                .iter()
                .position(|c| c.name == name)
                .unwrap()
        };
        rounds::interleave(5, parts, &field.contestants, |part, contestant| {
            let place = place(&contestant.name);
            Ok(vec![
                Sample {
                    metric: format!("{}/seconds", part.name),
                    value: seconds[place],
                },
                Sample {
                    metric: format!("{}/peak", part.name),
                    value: peak[place],
                },
            ])
        })
        .unwrap()
    }

    #[test]
    fn flagstone_is_judged_against_the_best_rival_and_the_memory_of_the_base() {
        let parts = [Part { name: "x" }, Part { name: "y" }];
        let text = judgement(
            0,
            GLIBC,
            &parts,
            &field(),
            &results(&parts, [4.0, 2.0, 1.0], [10.0, 30.0, 13.0]),
        );
        assert!(text.contains("0.500 of the best rival's (rival)"), "{text}");
        assert!(text.contains("x: peak 13.0 MiB, glibc 10.0 MiB"), "{text}");
    }

    #[test]
    fn a_tenth_or_two_mebibytes_more_are_allowed() {
        let parts = [Part { name: "x" }];
        let peaks = |base, own| {
            judgement(
                0,
                GLIBC,
                &parts,
                &field(),
                &results(&parts, [1.0; 3], [base, 1.0, own]),
            )
        };
        assert!(!peaks(10.0, 11.9).contains("peak"));
        assert!(peaks(10.0, 12.1).contains("peak"));
        assert!(!peaks(100.0, 109.0).contains("peak"));
        assert!(peaks(100.0, 111.0).contains("peak"));
    }

    #[test]
    fn the_table_fits_a_terminal_and_ends_with_the_means() {
        let parts = [Part {
            name: "python3-malloc",
        }];
        let table = table(
            "title",
            "seconds",
            0,
            &parts,
            &field(),
            &results(&parts, [4.0, 2.0, 1.0], [1.0; 3]),
        )
        .to_string();
        assert!(
            table.contains("4.00 (1.00)  2.00 (0.50)  1.00 (0.25)"),
            "{table}"
        );
        assert!(table.trim_end().ends_with("0.25"), "{table}");
    }
}
