//! The debugged heap (`FLAGSTONE_DEBUG`): each mistake is reported once, in the words of SLUB, with who allocated the object, and the program goes on.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};

mod harness;

use harness::{Compiler, Ending, Library, Mode, Run};

const ALL: Mode = Mode {
    name: "all",
    variables: &[("FLAGSTONE_DEBUG", "FZPU")],
};

const NO_RSEQ: Mode = Mode {
    name: "all_no_rseq",
    variables: &[
        ("FLAGSTONE_DEBUG", "FZPU"),
        ("GLIBC_TUNABLES", "glibc.pthread.rseq=0"),
    ],
};

const FOUR_NODES: Mode = Mode {
    name: "all_four_nodes",
    variables: &[("FLAGSTONE_DEBUG", "FZPU"), ("FLAGSTONE_FAKE_NODES", "4")],
};

/// What the report is titled, and what it says of the address that the program names (`{}`).
const MISTAKES: &[(&str, &str, &str)] = &[
    (
        "over_1",
        "kmalloc Redzone overwritten",
        "INFO: {}-{} @offset=",
    ),
    (
        "over_8",
        "Right Redzone overwritten",
        "INFO: {}-{} @offset=",
    ),
    (
        "under_1",
        "Left Redzone overwritten",
        "INFO: {}-{} @offset=",
    ),
    (
        "under_8",
        "Left Redzone overwritten",
        "INFO: {}-{} @offset=",
    ),
    (
        "aligned_over",
        "kmalloc Redzone overwritten",
        "INFO: {}-{} @offset=",
    ),
    ("write_freed", "Poison overwritten", "INFO: {}-{} @offset="),
    (
        "double_free",
        "Object already free",
        "Object at {} not freed",
    ),
    ("realloc_old", "Poison overwritten", "INFO: {}-{} @offset="),
    (
        "in_child",
        "kmalloc Redzone overwritten",
        "INFO: {}-{} @offset=",
    ),
    ("patterns", "", ""),
    ("none", "", ""),
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
    let program = Compiler::new("debug")
        .argument("-w")
        .compile("mistakes.c")?;
    let mut trials = Vec::new();
    for mode in [ALL, NO_RSEQ, FOUR_NODES] {
        for &(name, title, line) in MISTAKES {
            let (program, library) = (program.clone(), Arc::clone(&library));
            trials.push(Trial::test(format!("{}/{name}", mode.name), move || {
                if library.path().is_none() {
                    return Ok(());
                }
                let finished = Run::new(&program, &library, mode)
                    .argument(name)
                    .limit(Duration::from_secs(60))
                    .finish()?;
                let fail =
                    |what: &str| Err(Failed::from(format!("{what}: {}", finished.describe())));
                if finished.ending != Ending::Exited(0) || !finished.stdout.ends_with("went on\n") {
                    return fail("the program did not go on");
                }
                let titles: Vec<_> = finished
                    .stderr
                    .lines()
                    .filter(|line| line.starts_with("BUG "))
                    .collect();
                if title.is_empty() {
                    return if titles.is_empty() && finished.stderr.is_empty() {
                        Ok(())
                    } else {
                        fail("reported without reason")
                    };
                }
                if titles.len() != 1 || !titles[0].ends_with(title) {
                    return fail("not reported once by its name");
                }
                let address = finished
                    .stdout
                    .lines()
                    .find_map(|line| line.strip_prefix("at "))
                    .ok_or("no address printed")?;
                for wanted in [
                    &line.replace("{}", address),
                    "INFO: Allocated in 0x",
                    "FIX malloc-",
                ] {
                    if !finished.stderr.contains(wanted) {
                        return fail(&format!("{wanted:?} is missing"));
                    }
                }
                Ok(())
            }));
        }
    }
    Ok(trials)
}
