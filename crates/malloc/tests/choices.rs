//! Settings that the layers below carry out, seen from an unmodified program: what fails on purpose, and where memory comes from.

use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Trial};

mod harness;

use harness::{Compiler, Ending, Library, Mode, Run};

/// A name, settings, what the program prints, and what is said on standard error.
type Case = (
    &'static str,
    &'static [(&'static str, &'static str)],
    &'static str,
    &'static str,
);

const CASES: &[Case] = &[
    ("nothing", &[], "0 0\n", ""),
    (
        "every_tenth_object",
        &[(
            "FLAGSTONE_INJECT",
            "failslab:probability=100,interval=10,times=-1,verbose=0,cache=malloc-*",
        )],
        "100 0\n",
        "",
    ),
    (
        "objects_after_some_bytes_and_not_often",
        &[(
            "FLAGSTONE_INJECT",
            "failslab:probability=100,space=5000,times=3,cache=malloc-112",
        )],
        "3 0\n",
        "FAULT_INJECTION: forcing a failure. name failslab",
    ),
    (
        "one_run_and_one_object",
        &[(
            "FLAGSTONE_INJECT",
            "fail_page_alloc:nth=50,min-order=2,verbose=0;failslab:nth=7,verbose=0",
        )],
        "1 1\n",
        "",
    ),
    (
        "what_is_wrong_is_named",
        &[("FLAGSTONE_INJECT", "failslab:probabilty=100")],
        "0 0\n",
        "setting FLAGSTONE_INJECT is not understood (failslab: fault injection: probabilty=100 is no attribute), ignored",
    ),
    (
        "interleaved",
        &[
            ("FLAGSTONE_FAKE_NODES", "4"),
            ("FLAGSTONE_NUMA", "interleave:0-3"),
        ],
        "0 0\n",
        "",
    ),
    (
        "bound",
        &[("FLAGSTONE_FAKE_NODES", "4"), ("FLAGSTONE_NUMA", "bind:2")],
        "0 0\n",
        "",
    ),
    (
        "no_such_node",
        &[("FLAGSTONE_FAKE_NODES", "4"), ("FLAGSTONE_NUMA", "bind:4")],
        "0 0\n",
        "setting FLAGSTONE_NUMA is not",
    ),
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
    let program = Compiler::new("choices")
        .argument("-fno-builtin")
        .compile("count.c")?;
    let trial = |&(name, variables, printed, said): &'static Case| {
        let (program, library) = (program.clone(), Arc::clone(&library));
        Trial::test(name, move || {
            let mode = Mode { name, variables };
            let finished = Run::new(&program, &library, mode).finish()?;
            if library.path().is_none() {
                return Ok(());
            }
            let as_said = if said.is_empty() {
                finished.stderr.is_empty()
            } else {
                finished.stderr.contains(said)
            };
            if finished.ending == Ending::Exited(0) && finished.stdout == printed && as_said {
                Ok(())
            } else {
                Err(format!("not {printed:?} and {said:?}: {}", finished.describe()).into())
            }
        })
    };
    Ok(CASES.iter().map(trial).collect())
}
