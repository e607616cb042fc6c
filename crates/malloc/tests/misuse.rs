//! What happens to a program that frees what it must not: every program in `tests/misuse` makes one mistake, and the
//! table below says what the default mode makes of it.
//!
//! A caught mistake ends the program by SIGABRT after a message on stderr that names the pointer and says what it is.
//! A mistake that is documented as not caught in the default mode may pass or be caught all the same, but the
//! program must neither crash otherwise nor hang. On the C library alone the tests only prove that each program gets
//! as far as its mistake.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};

mod harness;

use harness::{
    Compiler, DEFAULT, Ending, Finished, HARDENED, HARDENED_OTHERWISE, Library, Mode, NO_RSEQ, Run,
};

const SIGABRT: i32 = 6;

/// What the default mode makes of a mistake.
#[derive(Clone, Copy, Debug)]
enum Expected {
    /// Abort, with a message that has one of these words beside the pointer.
    Caught(&'static [&'static str]),
    /// The same, and the program's handler of SIGABRT, which uses the heap and forks, came to its end.
    Handled(&'static [&'static str]),
    /// Documented as not caught in the default mode.
    NotCaught,
}

impl Expected {
    /// What hardening makes of it: whatever is given up has to be a live object.
    fn hardened(self, name: &str) -> Self {
        match self {
            // It frees nothing.
            Self::NotCaught if name == "usable_size_foreign" => self,
            Self::NotCaught => Self::Caught(&["double free", "invalid free"]),
            caught => caught,
        }
    }
}

/// Words for memory that the heap never gave out.
const FOREIGN: Expected = Expected::Caught(&[
    "not allocated",
    "foreign",
    "not from",
    "outside",
    "not part",
    "unknown",
    "never",
]);

/// Words for a pointer into the middle of a block.
const INTERIOR: Expected = Expected::Caught(INSIDE);

const INSIDE: &[&str] = &[
    "interior",
    "inside",
    "middle",
    "not the start",
    "not at the start",
];

/// Words for a block that was freed before.
const FREED: Expected = Expected::Caught(&["double free", "already free", "is free", "freed"]);

/// A block with a mapping of its own leaves nothing behind when it is freed, so both descriptions are right.
const GONE: Expected = Expected::Caught(&[
    "double free",
    "already free",
    "is free",
    "freed",
    "not allocated",
    "foreign",
    "not from",
    "outside",
    "not part",
    "unknown",
    "never",
]);

const MISTAKES: &[(&str, Expected)] = &[
    ("abort_handler_allocates", Expected::Handled(INSIDE)),
    ("abort_handler_in_trim", Expected::Handled(INSIDE)),
    ("double_free", FREED),
    ("double_free_aligned", FREED),
    ("double_free_between", Expected::NotCaught),
    ("double_free_huge", GONE),
    ("double_free_much_later", GONE),
    ("double_free_other_thread", Expected::NotCaught),
    ("double_free_page", FREED),
    ("double_free_pages", FREED),
    ("double_free_pages_between", FREED),
    ("double_free_smallest", FREED),
    ("free_code", FOREIGN),
    ("free_high_address", FOREIGN),
    ("free_interior_16", Expected::NotCaught),
    ("free_interior_8", Expected::NotCaught),
    ("free_interior_of_aligned", Expected::NotCaught),
    ("free_interior_of_huge", INTERIOR),
    ("free_interior_of_pages", INTERIOR),
    ("free_interior_of_pages_4096", INTERIOR),
    ("free_low_address", FOREIGN),
    ("free_mapping", FOREIGN),
    ("free_mapping_start", FOREIGN),
    ("free_never_allocated", GONE),
    ("free_plus_1", Expected::NotCaught),
    ("free_sized_twice", FREED),
    ("free_stack", FOREIGN),
    ("free_static", FOREIGN),
    ("realloc_foreign", FOREIGN),
    ("realloc_freed", FREED),
    ("realloc_freed_pages", FREED),
    ("realloc_interior_of_pages", INTERIOR),
    ("usable_size_foreign", Expected::NotCaught),
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
    // Warnings are off: the compiler sees most of these mistakes.
    let compiler = Compiler::new("misuse").argument("-w");
    let sources = compiler.sources(".c")?;
    let listed: Vec<String> = MISTAKES
        .iter()
        .map(|(name, _)| format!("{name}.c"))
        .collect();
    if sources != listed {
        return Err(format!(
            "the table and the folder differ:\ntable:  {listed:?}\nfolder: {sources:?}"
        ));
    }
    let programs = compiler.compile_all(&sources)?;
    let mut trials = Vec::new();
    for (program, &(name, expected)) in programs.into_iter().zip(MISTAKES) {
        for mode in [DEFAULT, NO_RSEQ, HARDENED, HARDENED_OTHERWISE] {
            let expected = if mode.name.starts_with("hardened") {
                expected.hardened(name)
            } else {
                expected
            };
            let (program, library) = (program.clone(), Arc::clone(&library));
            trials.push(Trial::test(format!("{}/{name}", mode.name), move || {
                make_mistake(&program, &library, mode, expected)
            }));
        }
    }
    Ok(trials)
}

fn make_mistake(
    program: &Path,
    library: &Library,
    mode: Mode,
    expected: Expected,
) -> Result<(), Failed> {
    let finished = Run::new(program, library, mode)
        .limit(Duration::from_secs(30))
        .finish()?;
    let pointer = finished
        .stdout
        .lines()
        .find_map(|line| line.strip_prefix("misuse "))
        .ok_or_else(|| {
            format!(
                "the program did not get as far as its mistake: {}",
                finished.describe()
            )
        })?;
    if library.path().is_none() {
        return Ok(());
    }
    let result = match expected {
        Expected::Caught(words) => check_report(&finished, pointer, words),
        Expected::Handled(words) => check_report(&finished, pointer, words).and_then(|()| {
            if finished.stdout.ends_with("\nhandled\n") {
                Ok(())
            } else {
                Err("the handler did not come to its end".into())
            }
        }),
        Expected::NotCaught if finished.ending == Ending::Exited(0) => check_survival(&finished),
        Expected::NotCaught => check_report(&finished, pointer, &[""]),
    };
    result.map_err(|what| format!("{what}: {}", finished.describe()).into())
}

fn check_report(finished: &Finished, pointer: &str, words: &[&str]) -> Result<(), String> {
    if finished.ending != Ending::Killed(SIGABRT) {
        return Err("the program was not aborted".into());
    }
    let Some(line) = finished.stderr.lines().find(|line| line.contains(pointer)) else {
        return Err(format!("no line names {pointer}"));
    };
    if !line.starts_with("flagstone: ") {
        return Err("the message does not say whose it is".into());
    }
    if !words.iter().any(|word| line.contains(word)) {
        return Err(format!("the message has none of {words:?}"));
    }
    Ok(())
}

fn check_survival(finished: &Finished) -> Result<(), String> {
    if finished.stdout.ends_with("survived\n") {
        Ok(())
    } else {
        Err("the program ended early".into())
    }
}
