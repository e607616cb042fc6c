//! The command `flagstone`.
//!
//! ```text
//!   run        sets LD_PRELOAD to the shared library that this binary carries, and becomes PROGRAM
//!   slabinfo   shows the object caches of a process or of a saved report
//!   guard      shows and switches the sampled guard pages of a process
//!   ptdump     shows the page tables in an image of a machine's memory
//!   sim        runs page tables on simulated machines
//!   symbolize  tells the frames of a report by function, file and line
//!   bench      measures Flagstone beside its rivals
//!   library, completions, man
//! ```
//!
//! Exit status: what PROGRAM returns; 127 if there is no such program; 126 if it can not be
//! executed or preloading can not apply to it; 125 if `run` itself fails; 1 for every other
//! failure; 2 for a wrong command line.

mod args;
mod bench;
mod guard;
mod library;
mod live;
mod manuals;
mod private_folder;
mod program;
mod ptdump;
mod run;
mod sim;
mod slabinfo;
mod stats_file;
mod supervise;
mod symbols;

use args::{Cli, Command, Simulation};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Run(options) => return run::run(&options),
        Command::Slabinfo(options) => slabinfo::slabinfo(&options),
        Command::Guard(options) => guard::guard(&options),
        Command::Ptdump(options) => ptdump::ptdump(&options),
        Command::Symbolize { file } => symbols::filter(file.as_deref()),
        Command::Bench { experiment } => bench::bench(&experiment),
        Command::Sim {
            what: Simulation::Conformance(options),
        } => sim::conformance(&options),
        Command::BenchWorker { work } => bench::worker::work(&work),
        Command::BenchInside(options) => bench::inside::work(&options),
        Command::Library => library::print_path(),
        Command::Completions { shell } => manuals::completions(shell),
        Command::Man { folder } => manuals::manual_pages(folder.as_deref()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of a pipe may stop reading; that is no failure of ours.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("flagstone: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
