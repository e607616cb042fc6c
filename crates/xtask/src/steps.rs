//! The steps of `cargo xtask ci`, in the order of the table: what is quick and often wrong comes first.

use anyhow::{Result, bail};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// One step.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    /// Arguments of cargo.
    cargo: &'static [&'static str],
    /// Variables that cargo gets besides.
    variables: &'static [(&'static str, &'static str)],
    /// Whether it runs programs of the system, which have to be there.
    pub(crate) runs_programs: bool,
}

const STEPS: &[Step] = &[
    Step {
        name: "format",
        cargo: &["fmt", "--all", "--check"],
        variables: &[],
        runs_programs: false,
    },
    Step {
        name: "links",
        cargo: &["xtask", "links"],
        variables: &[],
        runs_programs: false,
    },
    Step {
        name: "header",
        cargo: &["xtask", "header"],
        variables: &[],
        runs_programs: false,
    },
    Step {
        name: "clippy",
        cargo: &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--features",
            "flagstone-cli/rivals",
            "--",
            "-D",
            "warnings",
        ],
        variables: &[],
        runs_programs: false,
    },
    // What is in the kernel image only.
    Step {
        name: "clippy-image",
        cargo: &[
            "clippy",
            "--package",
            "flagstone-kernel",
            "--features",
            "conformance",
            "--",
            "-D",
            "warnings",
        ],
        variables: &[("CARGO_PROFILE_DEV_PANIC", "abort")],
        runs_programs: false,
    },
    Step {
        name: "documentation",
        cargo: &[
            "doc",
            "--workspace",
            "--no-deps",
            "--document-private-items",
        ],
        variables: &[("RUSTDOCFLAGS", "-D rustdoc::broken_intra_doc_links")],
        runs_programs: false,
    },
    Step {
        name: "golden",
        cargo: &["xtask", "golden"],
        variables: &[],
        runs_programs: false,
    },
    // Binaries as well as libraries; doc tests have a step of their own, because --all-targets leaves them out.
    Step {
        name: "tests",
        cargo: &[
            "test",
            "--workspace",
            "--exclude",
            "flagstone-kernel",
            "--all-targets",
            "--no-fail-fast",
        ],
        variables: &[],
        runs_programs: true,
    },
    // A few of the list: `cargo xtask mutants` runs all of it.
    Step {
        name: "mutants",
        cargo: &["xtask", "mutants", "--sample"],
        variables: &[],
        runs_programs: false,
    },
    Step {
        name: "orders",
        cargo: &["xtask", "orders", "--seeds", "10000"],
        variables: &[],
        runs_programs: false,
    },
    Step {
        name: "kernel",
        cargo: &["xtask", "kernel", "test"],
        variables: &[],
        runs_programs: true,
    },
    Step {
        name: "documentation-tests",
        cargo: &["test", "--workspace", "--doc"],
        variables: &[],
        runs_programs: true,
    },
];

/// Prints the table.
pub(crate) fn list() {
    for step in STEPS {
        println!("{:<20} cargo {}", step.name, step.cargo.join(" "));
    }
}

/// The steps that `only` names; all of them if it names none.
///
/// # Errors
/// A name that is no step's.
pub(crate) fn chosen(only: &[String]) -> Result<Vec<&'static Step>> {
    if let Some(unknown) = only
        .iter()
        .find(|name| STEPS.iter().all(|step| step.name != **name))
    {
        let names: Vec<_> = STEPS.iter().map(|step| step.name).collect();
        bail!("no step {unknown}; there are: {}", names.join(", "));
    }
    Ok(STEPS
        .iter()
        .filter(|step| only.is_empty() || only.iter().any(|name| name == step.name))
        .collect())
}

/// Runs `steps` and prints how long each took.
///
/// # Errors
/// The names of those that failed; the first of them ends the run unless `keep_going`.
pub(crate) fn run(root: &Path, steps: &[&Step], keep_going: bool) -> Result<()> {
    let mut times: Vec<(&str, Duration, bool)> = Vec::new();
    for step in steps {
        println!("── {}: cargo {}", step.name, step.cargo.join(" "));
        let start = Instant::now();
        let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .current_dir(root)
            .args(step.cargo)
            .envs(step.variables.iter().copied())
            .status()?;
        times.push((step.name, start.elapsed(), status.success()));
        if !status.success() && !keep_going {
            break;
        }
    }
    println!("── time");
    for (name, time, passed) in &times {
        println!(
            "{name:<20} {:>8.1} s  {}",
            time.as_secs_f64(),
            if *passed { "passed" } else { "FAILED" }
        );
    }
    let failed: Vec<_> = times
        .iter()
        .filter(|time| !time.2)
        .map(|time| time.0)
        .collect();
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_chosen_by_name_in_the_order_of_the_table() {
        let names = |only: &[&str]| {
            let only: Vec<String> = only.iter().map(|name| (*name).into()).collect();
            chosen(&only).map(|steps| steps.iter().map(|step| step.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&[]).unwrap().len(), STEPS.len());
        assert_eq!(names(&["tests", "format"]).unwrap(), ["format", "tests"]);
        assert!(
            names(&["nothing"])
                .unwrap_err()
                .to_string()
                .contains("documentation-tests")
        );
    }
}
