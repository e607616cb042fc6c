//! `bench tlb`: how many invalidations operations on page tables take, beside the same work one page at a time.
//!
//! Counted, not timed: a second run, and another machine, count the same.

use super::inside::{self, Inside};
use super::rounds::Part;
use super::table::Table;
use super::{chosen, finish};
use crate::args::Plan;
use anyhow::Result;
use flagstone_bench::{Job, OPERATIONS};

const PARTS: &[Part] = &[Part { name: "tlb" }];

/// Counts and prints.
pub(crate) fn tlb(plan: &Plan) -> Result<()> {
    chosen(plan, PARTS, |part| part.name)?;
    let counts = inside::measure(plan, &[Job::Invalidations])?;
    println!("Invalidations on x86-64 with 4 levels, four CPUs using the page table:");
    println!("asked for; on the CPU that asks; interrupts of the three others. Counted.\n");
    println!("{}", table(&counts));
    let units = "events per operation";
    finish(plan, "tlb", &[(&counts.field, &counts.results)], units)
}

fn table(counts: &Inside) -> Table {
    let subjects = &counts.field.contestants;
    let heads = std::iter::once("asked for/here/others".to_owned())
        .chain(subjects.iter().map(|subject| subject.name.clone()));
    let mut table = Table::new("One operation", heads);
    for (name, text) in OPERATIONS {
        let cells = subjects.iter().map(|subject| {
            let of = |what| counts.median(&format!("tlb/{name}/{what}"), &subject.name);
            match (of("requests"), of("local"), of("remote")) {
                (Some(requests), Some(local), Some(remote)) => {
                    format!("{requests}/{local}/{remote}")
                }
                _ => "-".into(),
            }
        });
        table.row(std::iter::once((*text).to_owned()).chain(cells));
    }
    table
}
