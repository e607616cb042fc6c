//! The C interface, one test per documented behaviour: every case of every program in `tests/c`, by name, in every
//! mode. Test names are `mode/program/case`; each can be run alone by its name. Besides, `harness/…` tests the driver
//! itself, and `settings/…` what is said about settings that mean nothing.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

mod harness;

use harness::{
    Compiler, DEFAULT, Ending, FOUR_NODES, Finished, HARDENED, HARDENED_OTHERWISE, Library, Mode,
    NO_RSEQ, Run,
};

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
        Library::Preloaded(_) => &[DEFAULT, NO_RSEQ, FOUR_NODES, HARDENED, HARDENED_OTHERWISE],
    };
    let programs = programs()?;
    let mut trials = harness_trials(&programs[0]);
    if library.path().is_some() {
        trials.extend(settings_trials(&programs[0], &library));
    }
    for program in programs {
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
                // Slabs whose guards the system does not open again are lost, and this one counts what is used again.
                if mode.name.starts_with("hardened")
                    && case == "a_filter_refuses_every_call_that_gives_memory"
                {
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
fn cases(program: &Path) -> Result<Vec<(String, u32)>, String> {
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
    program: &Path,
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

/// A driver that cannot fail proves nothing.
fn harness_trials(program: &Path) -> Vec<Trial> {
    let program = program.to_owned();
    vec![
        Trial::test("harness/a_program_that_hangs_is_ended", || {
            let finished = Run::new("sh", &Library::None, DEFAULT)
                .argument("-c")
                .argument("sleep 1000 & sleep 1000")
                .limit(Duration::from_millis(200))
                .finish()?;
            expect(finished.ending == Ending::TimedOut, &finished)
        }),
        Trial::test(
            "harness/a_program_that_dies_of_a_signal_is_told_apart",
            || {
                let finished = Run::new("sh", &Library::None, DEFAULT)
                    .argument("-c")
                    .argument("kill -SEGV $$")
                    .finish()?;
                expect(finished.ending == Ending::Killed(11), &finished)
            },
        ),
        Trial::test("harness/an_unknown_case_fails", move || {
            let result = run_case(&program, "no_such_case", &Library::None, DEFAULT);
            match result {
                Err(failed)
                    if failed
                        .message()
                        .is_some_and(|text| text.contains("no case named")) =>
                {
                    Ok(())
                }
                _ => Err("it did not fail".into()),
            }
        }),
    ]
}

/// Settings that are unknown or malformed: reported by name, once, and ignored.
fn settings_trials(program: &Path, library: &Arc<Library>) -> Vec<Trial> {
    [
        ("an_unknown_variable", "FLAGSTONE_NO_SUCH_SETTING", "1"),
        ("a_number_that_is_none", "FLAGSTONE_FAKE_NODES", "many"),
        ("a_number_out_of_range", "FLAGSTONE_FAKE_NODES", "65000"),
        ("an_empty_value", "FLAGSTONE_RETAIN", ""),
        ("a_word_that_is_no_choice", "FLAGSTONE_ARRAY", "magic"),
    ]
    .into_iter()
    .map(|(name, variable, value)| {
        let (program, library) = (program.to_owned(), Arc::clone(library));
        Trial::test(
            format!("settings/{name}_is_reported_and_ignored"),
            move || {
                let finished = Run::new(&program, &library, DEFAULT)
                    .variable(variable, value)
                    .argument("--list")
                    .finish()?;
                let reports = finished
                    .stderr
                    .lines()
                    .filter(|line| line.contains(variable))
                    .count();
                expect(
                    finished.ending == Ending::Exited(0) && reports == 1,
                    &finished,
                )
            },
        )
    })
    .collect()
}

fn expect(condition: bool, finished: &Finished) -> Result<(), Failed> {
    if condition {
        Ok(())
    } else {
        Err(finished.describe().into())
    }
}
