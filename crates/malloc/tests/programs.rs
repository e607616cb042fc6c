//! Real programs, unmodified, under the library: each prints something that depends on everything it did, and prints
//! the same as without the library, in each mode. The scripts are in `tests/programs`.
//!
//! Without a library (`FLAGSTONE_PRELOAD=none`) every program runs twice, which proves that its output can be compared.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};

mod harness;

use harness::{
    Compiler, DEFAULT, Ending, HARDENED, HARDENED_OTHERWISE, Library, Mode, NO_RSEQ, Run,
    source_folder,
};

/// One program to run.
struct Program {
    /// Its name in test names.
    name: &'static str,
    /// The command; `{}` stands for the folder of scripts.
    command: &'static [&'static str],
    /// Programs that must be there, each with the Debian package it comes in.
    needs: &'static [(&'static str, &'static str)],
    /// Environment variables.
    variables: &'static [(&'static str, &'static str)],
}

/// Makes every object of Python an allocation of its own, not a part of its pools.
const PYTHON_ON_MALLOC: &[(&str, &str)] = &[("PYTHONMALLOC", "malloc"), ("PYTHONHASHSEED", "0")];

const PROGRAMS: &[Program] = &[
    Program {
        name: "python_regression_tests",
        command: &["python3", "{}/regression.py"],
        needs: &[],
        variables: PYTHON_ON_MALLOC,
    },
    Program {
        name: "python_workload",
        command: &["python3", "{}/workload.py"],
        needs: &[],
        variables: PYTHON_ON_MALLOC,
    },
    Program {
        name: "python_workload_on_its_own_pools",
        command: &["python3", "{}/workload.py"],
        needs: &[],
        variables: &[("PYTHONHASHSEED", "0")],
    },
    Program {
        name: "sqlite3",
        command: &["sqlite3", "-batch", "test.db", ".read {}/database.sql"],
        needs: &[("sqlite3", "sqlite3")],
        variables: &[],
    },
    Program {
        name: "redis",
        command: &["sh", "{}/redis.sh"],
        needs: &[
            ("redis-server", "redis-server"),
            ("redis-benchmark", "redis-tools"),
            ("redis-cli", "redis-tools"),
        ],
        variables: &[],
    },
    Program {
        name: "git",
        command: &["sh", "{}/git.sh"],
        needs: &[("git", "git"), ("awk", "mawk")],
        variables: &[],
    },
    Program {
        name: "gcc",
        command: &["sh", "{}/compile.sh"],
        needs: &[
            ("gcc", "gcc"),
            ("g++", "g++"),
            ("ar", "binutils"),
            ("objdump", "binutils"),
            ("awk", "mawk"),
        ],
        variables: &[],
    },
    Program {
        name: "perl",
        command: &["perl", "{}/workload.pl"],
        needs: &[("perl", "perl")],
        variables: &[("PERL_HASH_SEED", "0")],
    },
    Program {
        name: "node",
        command: &["node", "{}/workload.js"],
        needs: &[("node", "nodejs")],
        variables: &[],
    },
    Program {
        name: "cxx_threads",
        command: &["threads.cc"],
        needs: &[],
        variables: &[],
    },
];

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
    let mut trials = Vec::new();
    for program in PROGRAMS {
        // The first mode to run finds out what the program prints without the library.
        let without: Arc<OnceLock<Result<String, String>>> = Arc::default();
        for mode in [DEFAULT, NO_RSEQ, HARDENED, HARDENED_OTHERWISE] {
            let (library, without) = (Arc::clone(&library), Arc::clone(&without));
            trials.push(Trial::test(
                format!("{}/{}", mode.name, program.name),
                move || {
                    let expected = without
                        .get_or_init(|| run(program, &Library::None, DEFAULT, "without"))
                        .as_ref()
                        .map_err(|error| format!("without the library: {error}"))?;
                    let printed = run(program, &library, mode, mode.name)?;
                    compare(expected, &printed)
                },
            ));
        }
    }
    Ok(trials)
}

/// Runs a program in a new folder and returns what it printed on stdout; anything but exit status 0 is an error.
fn run(program: &Program, library: &Library, mode: Mode, folder: &str) -> Result<String, String> {
    for (needed, package) in program.needs {
        if on_path(needed).is_none() {
            return Err(format!(
                "{needed} is not installed (Debian package {package})"
            ));
        }
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("runs")
        .join(program.name)
        .join(folder);
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;

    let scripts = source_folder("programs").display().to_string();
    let (command, arguments) = program.command.split_first().ok_or("no command")?;
    let command = match *command {
        "python3" => python()?,
        source if source.ends_with(".cc") => Compiler::new("programs").compile(source)?,
        name => PathBuf::from(name),
    };
    let mut run = Run::new(command, library, mode)
        .folder(&folder)
        .limit(Duration::from_secs(180));
    for argument in arguments {
        run = run.argument(argument.replace("{}", &scripts));
    }
    for (name, value) in program.variables {
        run = run.variable(name, value);
    }
    let finished = run.finish()?;
    if finished.ending != Ending::Exited(0) {
        return Err(finished.describe());
    }
    // What the loader says about a library it cannot preload, and what the library says when something is wrong.
    for complaint in ["cannot be preloaded", "flagstone: "] {
        if finished.stderr.contains(complaint) {
            return Err(finished.describe());
        }
    }
    Ok(finished.stdout)
}

fn compare(expected: &str, printed: &str) -> Result<(), Failed> {
    if expected.trim().is_empty() {
        return Err("the program prints nothing to compare".into());
    }
    if expected == printed {
        return Ok(());
    }
    let mut differences = String::new();
    let (mut left, mut right) = (expected.lines(), printed.lines());
    for line in 1.. {
        let pair = (left.next(), right.next());
        match pair {
            (None, None) => break,
            (without, with) if without != with => {
                let (without, with) = (without.unwrap_or("(nothing)"), with.unwrap_or("(nothing)"));
                differences += &format!(
                    "line {line} without: {without:.300}\nline {line} with:    {with:.300}\n"
                );
                if differences.len() > 3000 {
                    break;
                }
            }
            _ => {}
        }
    }
    Err(format!("the output differs:\n{differences}").into())
}

/// A Python with its regression tests. The real interpreter, since what is found first may be a script that chooses one.
fn python() -> Result<PathBuf, String> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOUND
        .get_or_init(|| {
            ["python3", "/usr/bin/python3"]
                .into_iter()
                .find_map(|candidate| {
                    let output = Command::new(candidate)
                        .args(["-c", "import sys, test.test_list; print(sys.executable)"])
                        .output()
                        .ok()?;
                    let path = String::from_utf8(output.stdout).ok()?;
                    output.status.success().then(|| PathBuf::from(path.trim()))
                })
        })
        .clone()
        .ok_or_else(|| {
            "no python3 with its regression tests (Debian package libpython3-testsuite)".into()
        })
}

fn on_path(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}
