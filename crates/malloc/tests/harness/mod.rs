//! What the drivers of this folder share: finding the library under test, compiling C, running a program to its end or
//! to a time limit.
//!
//! `FLAGSTONE_PRELOAD` says what is tested: the path of a shared library, or `none` for the C library's own malloc,
//! which is how the tests themselves are tested. Unset, the library is built from this workspace.

// Each driver is a crate of its own and uses a part of this.
#![allow(dead_code, unused_imports)]

mod compile;
mod library;
mod run;

pub(crate) use compile::{Compiler, source_folder};
pub(crate) use library::Library;
pub(crate) use run::{Ending, Finished, Run};

/// A way to run every program: extra environment variables, and the name it has in test names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mode {
    pub(crate) name: &'static str,
    pub(crate) variables: &'static [(&'static str, &'static str)],
}

/// The mode that users get.
pub(crate) const DEFAULT: Mode = Mode {
    name: "default",
    variables: &[],
};

/// Threads have no restartable sequences, as under old C libraries and some emulators.
pub(crate) const NO_RSEQ: Mode = Mode {
    name: "no_rseq",
    variables: &[("GLIBC_TUNABLES", "glibc.pthread.rseq=0")],
};

/// The machine's memory and processors are split, so that frees meet objects of another node.
pub(crate) const FOUR_NODES: Mode = Mode {
    name: "four_nodes",
    variables: &[("FLAGSTONE_FAKE_NODES", "4")],
};

/// Every object is checked when it changes hands.
pub(crate) const HARDENED: Mode = Mode {
    name: "hardened",
    variables: &[("FLAGSTONE_HARDEN", "1")],
};

/// The same where arrays are locked, by the other way of zeroing, in four nodes.
pub(crate) const HARDENED_OTHERWISE: Mode = Mode {
    name: "hardened_otherwise",
    variables: &[
        (
            "FLAGSTONE_HARDEN",
            "random,guards,zero_alloc,check_free,encode",
        ),
        ("GLIBC_TUNABLES", "glibc.pthread.rseq=0"),
        ("FLAGSTONE_FAKE_NODES", "4"),
    ],
};
