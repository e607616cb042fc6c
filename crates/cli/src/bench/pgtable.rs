//! `bench pgtable`: mapping, walking, protecting and unmapping for each page, beside the page tables of other crates.
//!
//! In process: tables are memory like any other, and an invalidation is a counter. What the same work takes in guest instructions is counted by a kernel
//! under an emulator; its answer is read from a file ([`Guest`]).

use super::inside::{self, Inside, Ratio};
use super::rounds::Part;
use super::table::{Table, number};
use super::{chosen, finish};
use crate::args::PgtablePlan;
use anyhow::{Context, Result};
use flagstone_bench::{Job, MAPPING_OPERATIONS, RUNS};
use serde::Deserialize;
use std::collections::BTreeMap;
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
        "x86-64 with 4 levels. Nanoseconds for each page, minimum/median of {} rounds; a ratio",
        plan.rounds
    );
    println!(
        "is by the better of the other crates. `quiet`: exclusive, and no CPU uses the table."
    );
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
        .map(|pages| (pages.to_string(), format!("{kind}/{pages}/{operation}")))
        .collect();
    let title = match job {
        Job::MappingUsed => format!("{operation}, pages that were written to"),
        _ => format!("{operation}, pages that nobody has used"),
    };
    tables.rows(&title, "pages", &rows, RATIOS)
}

/// Guest instructions for each page, as a kernel counted them: `{"metrics": {"pgtable/PAGES/OPERATION": {"SUBJECT": INSTRUCTIONS}}}`, with the names of
/// metrics and subjects that the samples in process have.
#[derive(Debug, Deserialize)]
struct Guest {
    metrics: BTreeMap<String, BTreeMap<String, f64>>,
}

impl Guest {
    fn read(path: &Path) -> Result<Self> {
        let context = || path.display().to_string();
        let text = std::fs::read_to_string(path).with_context(context)?;
        serde_json::from_str(&text).with_context(context)
    }

    fn table(&self) -> Table {
        let mut subjects: Vec<&String> = self.metrics.values().flat_map(BTreeMap::keys).collect();
        subjects.sort_unstable();
        subjects.dedup();
        let heads = std::iter::once("pages/operation".to_owned())
            .chain(subjects.iter().map(|&name| name.clone()));
        let mut table = Table::new("In a kernel, guest instructions for each page", heads);
        for operation in MAPPING_OPERATIONS {
            for pages in RUNS {
                if let Some(all) = self.metrics.get(&format!("pgtable/{pages}/{operation}")) {
                    let cells = subjects.iter().map(|&name| number(all.get(name).copied()));
                    let label = format!("{pages} {operation}");
                    table.row(std::iter::once(label).chain(cells));
                }
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
        let text = r#"{"metrics": {"pgtable/512/map": {"shared": 3.25, "x86_64": 40}}}"#;
        let guest: Guest = serde_json::from_str(text).unwrap();
        let table = guest.table().to_string();
        assert!(table.contains("512 map") && table.contains("3.25") && table.contains("40.0"));
    }
}
