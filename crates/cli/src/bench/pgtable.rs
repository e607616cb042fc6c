//! `bench pgtable`: mapping, walking, protecting and unmapping for each page, beside the page tables of other crates.
//!
//! In process: tables are memory like any other, and an invalidation is a counter. What the same work takes in guest instructions is counted by a kernel
//! under an emulator: `cargo xtask kernel run --release --icount trials=costs > FILE`, read with `--guest FILE` ([`Guest`]).

use super::inside::{self, Inside, Ratio};
use super::rounds::Part;
use super::table::{Table, number};
use super::{chosen, finish};
use crate::args::PgtablePlan;
use anyhow::{Context, Result, bail};
use flagstone_bench::{Job, MAPPING_OPERATIONS, RUNS};
use serde::Deserialize;
use std::path::Path;

const JOBS: &[Job] = &[Job::Mapping, Job::MappingUsed];
const PARTS: &[Part] = &[Part { name: "pgtable" }, Part { name: "used" }];

const RIVALS: &[&str] = &["x86_64", "multiarch"];
const RATIOS: &[Ratio] = &[
    Ratio {
        head: "shared/best",
        of: "shared",
        by: RIVALS,
    },
    Ratio {
        head: "unasked/best",
        of: "unasked",
        by: RIVALS,
    },
    Ratio {
        head: "excl./best",
        of: "exclusive",
        by: RIVALS,
    },
];

/// Measures and prints.
pub(crate) fn pgtable(plan: &PgtablePlan) -> Result<()> {
    let guest = plan.guest.as_deref().map(Guest::read).transpose()?;
    let plan = &plan.plan;
    let parts = chosen(plan, PARTS, |part| part.name)?;
    let has = |job: &&Job| parts.iter().any(|part| part.name == job.name());
    let jobs: Vec<Job> = JOBS.iter().filter(has).copied().collect();
    let tables = inside::measure(plan, &jobs)?;
    println!(
        "x86-64 with 4 levels. Nanoseconds for each page, minimum/median of {} rounds;",
        plan.rounds
    );
    println!("a ratio is by the better of the other crates.");
    println!("`quiet`: exclusive, and no CPU uses the table.");
    println!("`unasked`: shared, nobody asks for accessed and dirty, as in other crates.");
    println!("`each`: a call for each page, one invalidation for all of them.");
    println!("Wanted: on ranges of 512 at most 0.33; on one page exclusive 1, shared 2.\n");
    for job in &jobs {
        for operation in MAPPING_OPERATIONS {
            println!("{}", table(&tables, *job, operation));
        }
    }
    if let Some(guest) = &guest {
        println!("{}", guest.table());
    }
    let units = "nanoseconds per page";
    finish(plan, "pgtable", &[(&tables.field, &tables.results)], units)
}

fn table(tables: &Inside, job: Job, operation: &str) -> Table {
    let kind = job.name();
    let rows: Vec<_> = RUNS
        .iter()
        .map(|(pages, _)| ((*pages).to_owned(), format!("{kind}/{pages}/{operation}")))
        .collect();
    let title = match job {
        Job::MappingUsed => format!("{operation}, pages that were written to"),
        _ => format!("{operation}, pages that nobody has used"),
    };
    tables.rows(&title, "pages", &rows, RATIOS)
}

/// What Flagstone's kernel says of one form and one number of pages in its trial `costs`: a line of JSON on its serial port.
#[derive(Debug, Deserialize)]
struct Line {
    costs: String,
    format: String,
    form: String,
    /// Whether a CPU uses the page table.
    active: bool,
    pages: usize,
    map: f64,
    walk: f64,
    lookup: f64,
    protect: f64,
    unmap: f64,
}

impl Line {
    fn cost(&self, operation: &str) -> f64 {
        match operation {
            "map" => self.map,
            // One page is looked up.
            "walk" if self.pages == 1 => self.lookup,
            "walk" => self.walk,
            "protect" => self.protect,
            _ => self.unmap,
        }
    }

    /// The name of this form in the tables in process.
    fn subject(&self) -> &str {
        match (self.form.as_str(), self.active) {
            ("exclusive", false) => "quiet",
            ("shared", false) => "shared, quiet",
            (form, _) => form,
        }
    }
}

/// Guest instructions for each page, from what a kernel under an emulator wrote to its serial port.
#[derive(Debug)]
struct Guest(Vec<Line>);

impl Guest {
    fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let guest = Self::parse(&text);
        if guest.0.is_empty() {
            bail!("{}: no costs of page tables of x86_64", path.display());
        }
        Ok(guest)
    }

    /// The lines that are meant; the kernel says other things besides.
    fn parse(text: &str) -> Self {
        let lines = text.lines().filter_map(|line| {
            let line: Line = serde_json::from_str(line.trim()).ok()?;
            (line.costs == "pgtable" && line.format == "x86_64").then_some(line)
        });
        Self(lines.collect())
    }

    fn table(&self) -> Table {
        let (mut subjects, mut runs) = (Vec::new(), Vec::new());
        for line in &self.0 {
            if !subjects.contains(&line.subject()) {
                subjects.push(line.subject());
            }
            if !runs.contains(&line.pages) {
                runs.push(line.pages);
            }
        }
        let heads = std::iter::once("pages/operation").chain(subjects.iter().copied());
        let title = "In a kernel, guest instructions for each page";
        let mut table = Table::new(title, heads.map(String::from));
        for operation in MAPPING_OPERATIONS {
            for pages in &runs {
                let cells = subjects.iter().map(|subject| {
                    let of = |line: &&Line| line.pages == *pages && line.subject() == *subject;
                    number(self.0.iter().find(of).map(|line| line.cost(operation)))
                });
                table.row(std::iter::once(format!("{pages} {operation}")).chain(cells));
            }
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_kernel_counted_is_read_and_shown() {
        let text = r#"flagstone kernel: 2 CPUs
{"costs":"pgtable","unit":"ticks per page","format":"x86_64","form":"exclusive","active":true,"pages":512,"map":3.25,"walk":9.00,"lookup":50.10,"protect":8.00,"unmap":7.00}
{"costs":"pgtable","unit":"ticks per page","format":"x86_64","form":"exclusive","active":false,"pages":1,"map":40.25,"walk":99.00,"lookup":51.10,"protect":8.00,"unmap":7.00}
"#;
        let table = Guest::parse(text).table().to_string();
        let row = |label: &str| {
            let line = table.lines().find(|line| line.starts_with(label)).unwrap();
            line[label.len()..]
                .split_whitespace()
                .map(String::from)
                .collect::<Vec<_>>()
        };
        assert_eq!(row("512 map"), ["3.25", "-"]);
        assert_eq!(row("1 walk"), ["-", "51.1"]);
    }
}
