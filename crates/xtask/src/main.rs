//! `cargo xtask`: what is done to the repository as a whole.
//!
//! ```text
//!   ci       installs or names what is missing (packages), then runs the table of steps (steps);
//!            one of the steps follows the links between the documents
//!   links    only that step
//!   golden   the fast paths in the library as shipped (shipped, disassembly) are those of golden/fastpath.txt
//!   header   include/flagstone.h is what the sources say
//!   mutants  whether the tests notice when a lock, a flush, a look is left out (mutants)
//!   orders   whether a model notices when an order of memory is weaker (orders)
//!   kernel   the kernel image under QEMU: its tests, and one run
//! ```

mod disassembly;
mod golden;
mod header;
mod kernel;
mod links;
mod mutants;
mod orders;
mod packages;
mod shipped;
mod steps;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What is done to the repository as a whole.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run everything that has to pass before a change is accepted
    Ci {
        /// Run these steps only
        #[arg(value_name = "STEP")]
        only: Vec<String>,
        /// Go on after a step that fails
        #[arg(long)]
        keep_going: bool,
        /// Print the steps and do nothing
        #[arg(long)]
        list: bool,
    },
    /// Check that the links between the documents lead somewhere
    Links,
    /// Check the instructions of malloc and free in the library as shipped
    Golden {
        /// Write golden/fastpath.txt instead of comparing with it
        #[arg(long)]
        update: bool,
        /// Look at this shared library instead of the one that is shipped
        #[arg(long, value_name = "FILE")]
        library: Option<PathBuf>,
    },
    /// Check that the suite finds each mutant on the list within 1,000 seeds
    Mutants(mutants::Options),
    /// Check that a model finds each order of memory that is weaker than written
    Orders(mutants::Options),
    /// Boot the kernel image under QEMU
    Kernel {
        #[command(subcommand)]
        what: kernel::Kernel,
    },
    /// Check that the C header is what the sources say
    Header {
        /// Write include/flagstone.h instead of comparing with it
        #[arg(long)]
        update: bool,
    },
}

fn main() -> ExitCode {
    let root = root();
    let outcome = match Cli::parse().command {
        Command::Ci { list: true, .. } => {
            steps::list();
            Ok(())
        }
        Command::Ci {
            only, keep_going, ..
        } => ci(&root, &only, keep_going),
        Command::Links => links::check(&root),
        Command::Golden { update, library } => golden::run(&root, library, update),
        Command::Header { update } => header::run(&root, update),
        Command::Mutants(options) => mutants::run(&root, &options),
        Command::Orders(options) => orders::run(&root, &options),
        Command::Kernel { what } => kernel::run(&root, &what),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn ci(root: &Path, only: &[String], keep_going: bool) -> Result<()> {
    let chosen = steps::chosen(only)?;
    if chosen.iter().any(|step| step.runs_programs) {
        packages::provide()?;
    }
    steps::run(root, &chosen, keep_going)
}

/// The folder of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("this crate is two folders below the root")
        .to_owned()
}
