//! Sampled guard pages: with an interval of 0 every allocation that the pool can hold has them, so that each mistake below is caught at
//! the access (or at the free), is reported once with the object's history, and the program goes on.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};

mod harness;

use harness::{Compiler, Ending, Library, Mode, Run};

const SIGSEGV: i32 = 11;

const EVERY: Mode = Mode {
    name: "every",
    variables: &[("FLAGSTONE_GUARD", "interval=0,objects=50")],
};

const EVERY_NO_RSEQ: Mode = Mode {
    name: "every_no_rseq",
    variables: &[
        ("FLAGSTONE_GUARD", "interval=0,objects=50"),
        ("GLIBC_TUNABLES", "glibc.pthread.rseq=0"),
    ],
};

/// What the first line of the report says, and the line about the access; `{}` stands for the address.
const MISTAKES: &[(&str, &str, &str)] = &[
    (
        "read_right",
        "out-of-bounds read",
        "Out-of-bounds read at {} (0B right of kfence-#",
    ),
    (
        "write_right_later",
        "out-of-bounds write",
        "Out-of-bounds write at {} (100B right of kfence-#",
    ),
    (
        "read_left",
        "out-of-bounds read",
        "Out-of-bounds read at {} (1B left of kfence-#",
    ),
    (
        "write_left_8",
        "out-of-bounds write",
        "Out-of-bounds write at {} (8B left of kfence-#",
    ),
    (
        "corrupt_inside_page",
        "memory corruption",
        "Corrupted memory at {} [ 0x01 . . . . . . . . . . . . . . . ] (in kfence-#",
    ),
    (
        "write_freed",
        "use-after-free write",
        "Use-after-free write at {} (in kfence-#",
    ),
    ("read_freed_much_later", "", ""),
    (
        "double_free",
        "invalid free",
        "Invalid free of {} (in kfence-#",
    ),
    (
        "free_interior",
        "invalid free",
        "Invalid free of {} (in kfence-#",
    ),
    (
        "free_guard_page",
        "invalid free",
        "Invalid free of {} (in kfence-#",
    ),
    (
        "realloc_freed_use",
        "use-after-free read",
        "Use-after-free read at {} (in kfence-#",
    ),
    (
        "in_child",
        "use-after-free read",
        "Use-after-free read at {} (in kfence-#",
    ),
    ("none", "", ""),
    ("own_faults", "", ""),
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
    let program = Compiler::new("guard")
        .argument("-w")
        .compile("mistakes.c")?;
    let mut trials = Vec::new();
    for mode in [EVERY, EVERY_NO_RSEQ] {
        for &(name, kind, line) in MISTAKES {
            let (program, library) = (program.clone(), Arc::clone(&library));
            trials.push(Trial::test(format!("{}/{name}", mode.name), move || {
                let finished = Run::new(&program, &library, mode)
                    .argument(name)
                    .limit(Duration::from_secs(30))
                    .finish()?;
                let fail =
                    |what: &str| Err(Failed::from(format!("{what}: {}", finished.describe())));
                if finished.ending != Ending::Exited(0) || !finished.stdout.ends_with("went on\n") {
                    return fail("the program did not go on");
                }
                if library.path().is_none() || name == "read_freed_much_later" {
                    return Ok(());
                }
                let reports = finished.stderr.matches("BUG: KFENCE:").count();
                if kind.is_empty() {
                    return if reports == 0 && finished.stderr.is_empty() {
                        Ok(())
                    } else {
                        fail("reported without reason")
                    };
                }
                if reports != 1 {
                    return fail("not reported once");
                }
                let address = finished
                    .stdout
                    .lines()
                    .find_map(|line| line.strip_prefix("at 0x"))
                    .and_then(|digits| usize::from_str_radix(digits, 16).ok())
                    .ok_or("no address printed")?;
                let line = line.replace("{}", &format!("{address:#018x}"));
                for wanted in [&format!("BUG: KFENCE: {kind}"), &line, "allocated by task "] {
                    if !finished.stderr.contains(wanted) {
                        return fail(&format!("{wanted:?} is missing"));
                    }
                }
                Ok(())
            }));
        }
        let (program, library) = (program.clone(), Arc::clone(&library));
        trials.push(Trial::test(format!("{}/dies", mode.name), move || {
            let finished = Run::new(&program, &library, mode)
                .argument("dies")
                .limit(Duration::from_secs(30))
                .finish()?;
            if finished.ending == Ending::Killed(SIGSEGV) && finished.stderr.is_empty() {
                Ok(())
            } else {
                Err(format!("not the program's own end: {}", finished.describe()).into())
            }
        }));
    }
    Ok(trials)
}
