//! Builds the shared libraries and hands them to the command, which carries them inside.
//!
//! The library is built by a nested cargo, because it needs another profile than the command
//! (`panic = "abort"`, whole-program optimisation) whatever profile the command is built in. The
//! nested cargo has a target folder of its own inside `OUT_DIR`, so the two never wait for each
//! other's lock. It sees none of the outer build's flags and wrappers: the library that is shipped
//! is the same under `cargo build`, `clippy`, a coverage run or `cargo install`.

use std::collections::BTreeSet;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is built: the package, its library without prefix and ending, and what the command calls it.
const LIBRARIES: &[(&str, &str, &str)] = &[
    ("flagstone-preload", "flagstone_preload", "MALLOC"),
    ("flagstone-usercopy", "flagstone_usercopy", "USERCOPY"),
];
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Variables of the outer cargo that the nested one keeps: where things are, how to reach the
/// network, how many jobs may run. Every other `CARGO_…` variable describes the outer build.
const KEPT: &[&str] = &[
    "CARGO_HOME",
    "CARGO_HTTP_",
    "CARGO_MAKEFLAGS",
    "CARGO_NET_",
    "CARGO_REGISTR",
    "CARGO_TERM_",
];

/// Variables that change how rustc is called.
const DROPPED: &[&str] = &[
    "CLIPPY_",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTC_WRAPPER",
    "RUSTDOCFLAGS",
    "RUSTFLAGS",
];

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let crate_dir =
        PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let workspace = crate_dir
        .join("../..")
        .canonicalize()
        .expect("the workspace is two folders up");
    println!("cargo::rerun-if-changed=build.rs");

    let target_dir = out.join("preload");
    build(&workspace, &target_dir);

    let release = target_dir.join(TARGET).join("release");
    // A file rather than variables for rustc: cargo shows those to the programs that it runs as well.
    let mut embedded = String::new();
    for (_, name, constant) in LIBRARIES {
        let library = release.join(format!("lib{name}.so"));
        let bytes =
            std::fs::read(&library).unwrap_or_else(|e| panic!("{}: {e}", library.display()));
        for source in sources(&release.join(format!("lib{name}.d")), &workspace) {
            println!("cargo::rerun-if-changed={}", source.display());
        }
        let file = match *constant {
            "MALLOC" => format!("libflagstone-{:016x}.so", fnv1a(&bytes)),
            other => format!(
                "libflagstone-{}-{:016x}.so",
                other.to_lowercase(),
                fnv1a(&bytes)
            ),
        };
        embedded += &format!(
            "pub(crate) static {constant}: Embedded = Embedded {{ bytes: include_bytes!({library:?}), name: {file:?} }};\n"
        );
    }
    std::fs::write(out.join("embedded.rs"), embedded)
        .unwrap_or_else(|e| panic!("embedded.rs: {e}"));
}

fn build(workspace: &Path, target_dir: &Path) {
    let mut cargo = Command::new(env::var_os("CARGO").expect("cargo sets CARGO"));
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        let starts_with = |list: &[&str]| list.iter().any(|prefix| text.starts_with(prefix));
        if (text.starts_with("CARGO_") && !starts_with(KEPT)) || starts_with(DROPPED) {
            cargo.env_remove(&name);
        }
    }
    let status = cargo
        .current_dir(workspace)
        .args(["build", "--release", "--target", TARGET])
        .args(
            LIBRARIES
                .iter()
                .flat_map(|(package, ..)| ["--package", package]),
        )
        .args([
            "--config",
            "profile.release.panic=\"abort\"",
            "--config",
            "profile.release.lto=\"fat\"",
        ])
        .arg("--target-dir")
        .arg(target_dir)
        .status()
        .unwrap_or_else(|e| panic!("cargo can not be started: {e}"));
    assert!(
        status.success(),
        "the shared libraries do not build: {status}"
    );
}

/// Every file in the workspace that the library was made from, by rustc's own account, and the
/// manifests that lead to them.
fn sources(dep_info: &Path, workspace: &Path) -> BTreeSet<PathBuf> {
    let text =
        std::fs::read_to_string(dep_info).unwrap_or_else(|e| panic!("{}: {e}", dep_info.display()));
    let mut found = BTreeSet::from([workspace.join("Cargo.toml"), workspace.join("Cargo.lock")]);
    // Spaces inside a path are escaped by a backslash.
    let marked = text.replace("\\ ", "\0");
    for word in marked
        .split_whitespace()
        .filter(|word| !word.ends_with(':'))
    {
        let source = PathBuf::from(word.replace('\0', " "));
        if !source.starts_with(workspace) {
            continue;
        }
        if let Some(manifest) = source
            .ancestors()
            .map(|dir| dir.join("Cargo.toml"))
            .find(|file| file.is_file())
        {
            found.insert(manifest);
        }
        found.insert(source);
    }
    found
}

/// Names one build of the library in a file name; what is unpacked is compared byte by byte.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
