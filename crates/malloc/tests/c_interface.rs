//! The C interface, one test per documented behaviour: every case of every program in `tests/c`, by name, in every
//! mode. Test names are `mode/program/case`; each can be run alone by its name.

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

mod harness;

use harness::{Compiler, DEFAULT, Ending, FOUR_NODES, Library, Mode, NO_RSEQ, Run};

/// Exit status of a case that the machine cannot show.
const SKIPPED: i32 = 77;

/// Bits in the listing of a program, as in `case.h`.
const SLOW: u32 = 1;
const OURS: u32 = 2;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    match trials() {
        Ok(trials) => libtest_mimic::run(&arguments, trials).exit_code(),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn trials() -> Result<Vec<Trial>, String> {
    let library = Arc::new(Library::find()?);
    let modes: &[Mode] = match *library {
        Library::None => &[DEFAULT],
        Library::Preloaded(_) => &[DEFAULT, NO_RSEQ, FOUR_NODES],
    };
    let mut trials = Vec::new();
    for program in programs()? {
        let program_name = program
            .file_name()
            .unwrap_or_default()
            .display()
            .to_string();
        for (case, flags) in cases(&program)? {
            if flags & OURS != 0 && library.path().is_none() {
                continue;
            }
            for &mode in modes {
                if flags & SLOW != 0 && mode.name != DEFAULT.name {
                    continue;
                }
                let (program, case, library) =
                    (program.clone(), case.clone(), Arc::clone(&library));
                trials.push(Trial::ignorable_test(
                    format!("{}/{program_name}/{case}", mode.name),
                    move || run_case(&program, &case, &library, mode),
                ));
            }
        }
    }
    Ok(trials)
}

fn programs() -> Result<Vec<PathBuf>, String> {
    let plugin = Compiler::new("c")
        .argument("-shared")
        .argument("-fPIC")
        .compile("plugin.c")?;
    let compiler = Compiler::new("c").argument(format!("-DPLUGIN=\"{}\"", plugin.display()));
    let mut sources = compiler.sources(".c")?;
    sources.extend(compiler.sources(".cc")?);
    sources.retain(|name| name != "plugin.c");
    compiler.compile_all(&sources)
}

/// The names and flags of a program's cases.
fn cases(program: &PathBuf) -> Result<Vec<(String, u32)>, String> {
    let output = Command::new(program)
        .arg("--list")
        .output()
        .map_err(|error| format!("{}: {error}", program.display()))?;
    let listing = String::from_utf8_lossy(&output.stdout);
    let cases: Option<Vec<_>> = listing
        .lines()
        .map(|line| {
            let (name, flags) = line.split_once(' ')?;
            Some((name.to_owned(), flags.parse().ok()?))
        })
        .collect();
    match cases {
        Some(cases) if !cases.is_empty() && output.status.success() => Ok(cases),
        _ => Err(format!(
            "{} does not list its cases:\n{listing}",
            program.display()
        )),
    }
}

fn run_case(
    program: &PathBuf,
    case: &str,
    library: &Library,
    mode: Mode,
) -> Result<Completion, Failed> {
    let finished = Run::new(program, library, mode)
        .argument(case)
        .limit(Duration::from_secs(90))
        .finish()?;
    match finished.ending {
        Ending::Exited(0) if finished.stdout.is_empty() && finished.stderr.is_empty() => {
            Ok(Completion::Completed)
        }
        Ending::Exited(SKIPPED) => Ok(Completion::ignored_with(finished.stderr.trim_end())),
        _ => Err(finished.describe().into()),
    }
}
