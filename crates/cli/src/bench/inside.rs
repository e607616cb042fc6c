//! Parts of an experiment that run inside one process: `flagstone bench-inside JOB SUBJECT`, one process for each turn.
//!
//! What is measured there is in `flagstone-bench`. Here are the rounds, and the tables of subjects.

use super::contestants::{Absent, Contestant, Field};
use super::rounds::{self, Part, Results};
use super::statistics::geometric_mean;
use super::table::{Table, number};
use super::worker;
use crate::args::{InsideOptions, Plan};
use anyhow::{Context, Result, bail};
use flagstone_bench::{Job, Scale};
use std::cell::Cell;
use std::time::Duration;

/// What a process does that was started for one turn.
pub(crate) fn work(options: &InsideOptions) -> Result<()> {
    let job = Job::named(&options.job).with_context(|| format!("no job {}", options.job))?;
    let scale = Scale {
        slice: Duration::from_millis(options.slice),
        count: options.objects as usize,
        seed: options.seed,
    };
    let mut lines = String::new();
    job.run(&options.subject, &scale, &mut |metric, value| {
        lines += &format!("{metric}\t{value}\n");
    })?;
    print!("{lines}");
    Ok(())
}

/// Subjects and their samples.
#[derive(Debug)]
pub(crate) struct Inside {
    pub(crate) field: Field,
    pub(crate) results: Results,
}

/// What a ratio compares.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ratio {
    /// The head of its column.
    pub(crate) head: &'static str,
    /// Whose median is divided,
    pub(crate) of: &'static str,
    /// by the best median of these.
    pub(crate) by: &'static [&'static str],
}

/// Measures every subject of `jobs`, which have the same ones.
///
/// # Errors
/// Everybody was left out.
pub(crate) fn measure(plan: &Plan, jobs: &[Job]) -> Result<Inside> {
    let first = jobs.first().context("no job")?;
    let contestants: Vec<_> = first
        .subjects()
        .iter()
        .filter(|name| !plan.without.iter().any(|without| without == *name))
        .map(|name| Contestant {
            name: (*name).into(),
            library: None,
        })
        .collect();
    if contestants.is_empty() {
        bail!("nobody to measure in {}", first.name());
    }
    let absent = first.not_built().iter().map(|name| Absent {
        name: format!("{name}, linked in"),
        reason: "cargo run --release --features rivals".into(),
    });
    let field = Field {
        absent: absent.collect(),
        contestants,
    };
    let parts: Vec<Part> = jobs.iter().map(|job| Part { name: job.name() }).collect();
    // The simulated machine gets another schedule in each round, and every subject the same ones.
    let turns = Cell::new(0);
    let per_round = (parts.len() * field.contestants.len()) as u64;
    let results = rounds::interleave(plan.rounds, &parts, &field.contestants, |part, subject| {
        let seed = 1 + turns.get() / per_round;
        turns.set(turns.get() + 1);
        let mut command = worker::command_of("bench-inside")?;
        command
            .args([part.name, &subject.name])
            .args(["--slice", &plan.slice.to_string()])
            .args(["--objects", &plan.objects.to_string()])
            .args(["--seed", &seed.to_string()])
            // Everybody is linked in; a library that is preloaded would only be in the way.
            .env_remove("LD_PRELOAD");
        worker::samples(&worker::output_of(command)?)
    })?;
    Ok(Inside { field, results })
}

impl Inside {
    fn place(&self, name: &str) -> Option<usize> {
        self.field.contestants.iter().position(|c| c.name == name)
    }

    /// The median of a subject, if it took part.
    pub(crate) fn median(&self, metric: &str, subject: &str) -> Option<f64> {
        self.results.median(metric, self.place(subject)?)
    }

    fn ratio(&self, ratio: &Ratio, median: impl Fn(usize) -> Option<f64>) -> Option<f64> {
        let by = ratio.by.iter().filter_map(|name| median(self.place(name)?));
        let best = by.min_by(f64::total_cmp)?;
        Some(median(self.place(ratio.of)?)? / best)
    }

    /// One row for each metric, minimum/median for each subject, then ratios.
    pub(crate) fn rows(
        &self,
        title: &str,
        head: &str,
        rows: &[(String, String)],
        ratios: &[Ratio],
    ) -> Table {
        let contestants = &self.field.contestants;
        let heads = std::iter::once(head.to_owned())
            .chain(contestants.iter().map(|c| c.name.clone()))
            .chain(ratios.iter().map(|ratio| ratio.head.to_owned()));
        let mut table = Table::new(title, heads);
        let places = || 0..contestants.len();
        for (label, metric) in rows {
            let mut cells = vec![label.clone()];
            cells.extend(places().map(|who| {
                match (
                    self.results.minimum(metric, who),
                    self.results.median(metric, who),
                ) {
                    (minimum, Some(median)) => {
                        format!("{}/{}", number(minimum), number(Some(median)))
                    }
                    _ => "-".into(),
                }
            }));
            let of = |ratio| number(self.ratio(ratio, |who| self.results.median(metric, who)));
            cells.extend(ratios.iter().map(of));
            table.row(cells);
        }
        table
    }

    /// The same, and below it geometric means over those metrics that everybody has.
    pub(crate) fn table(
        &self,
        title: &str,
        head: &str,
        rows: &[(String, String)],
        ratios: &[Ratio],
    ) -> Table {
        let mut table = self.rows(title, head, rows, ratios);
        let places = || 0..self.field.contestants.len();
        let shared = rows
            .iter()
            .filter(|(_, metric)| places().all(|who| self.results.median(metric, who).is_some()));
        let shared: Vec<&str> = shared.map(|(_, metric)| metric.as_str()).collect();
        let mean = |who: usize| {
            let medians = shared
                .iter()
                .filter_map(|metric| self.results.median(metric, who));
            geometric_mean(&medians.collect::<Vec<_>>())
        };
        let mut cells = vec!["geom. mean".to_owned()];
        cells.extend(places().map(|who| number(mean(who))));
        cells.extend(ratios.iter().map(|ratio| number(self.ratio(ratio, mean))));
        table.row(cells);
        table
    }

    /// `alloc/free` of a subject in cycles: the medians under `metric/alloc/cycles` and `metric/free/cycles`.
    pub(crate) fn cycles(&self, metric: &str, subject: &str) -> String {
        let of = |what| self.median(&format!("{metric}/{what}/cycles"), subject);
        match (of("alloc"), of("free")) {
            (Some(alloc), Some(free)) => format!("{alloc:.0}/{free:.0}"),
            _ => "-".into(),
        }
    }
}

/// Rows of a table by size: the label and the metric `kind/SIZE` or `kind/SIZE/what`.
pub(crate) fn by_size(sizes: &[usize], kind: &str, what: &str) -> Vec<(String, String)> {
    let end = if what.is_empty() {
        String::new()
    } else {
        format!("/{what}")
    };
    sizes
        .iter()
        .map(|size| (size.to_string(), format!("{kind}/{size}{end}")))
        .collect()
}
