//! Programs in C and C++ that are linked with the library instead of having it preloaded: with the archive, with the shared library,
//! and as wholly static programs; each also without restartable sequences and on several nodes.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// How a program gets the library.
#[derive(Clone, Copy, Debug)]
enum Linking {
    /// The archive, in a program that loads the C library.
    Archive,
    /// The shared library, found by the loader.
    Shared,
    /// The archive, in a program without a loader.
    Static,
}

/// Settings that every program is run under.
const SETTINGS: &[&[(&str, &str)]] = &[
    &[],
    &[("GLIBC_TUNABLES", "glibc.pthread.rseq=0")],
    &[("FLAGSTONE_FAKE_NODES", "3")],
];

/// The folder of the libraries, built as they are shipped, in a target folder of their own, since the outer cargo may hold
/// the lock of the usual one.
fn libraries() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libraries");
        let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .args(["build", "--release", "--package", "flagstone-preload"])
            .args(["--config", "profile.release.panic=\"abort\""])
            .args(["--config", "profile.release.lto=\"fat\""])
            .arg("--target-dir")
            .arg(&target)
            .env_remove("RUSTC_WORKSPACE_WRAPPER")
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        target.join("release")
    })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Compiles `tests/c/<source>` with warnings as errors.
fn compile(compiler: &str, flags: &[&str], source: &str, linking: Linking, name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{linking:?}"));
    let folder = libraries();
    let mut command = Command::new(compiler);
    command
        .args([
            "-O1",
            "-g",
            "-fno-builtin",
            "-Wall",
            "-Wextra",
            "-pedantic",
            "-Werror",
        ])
        .args(flags)
        .arg("-I")
        .arg(root.join("../../include"))
        .arg(root.join("tests/c").join(source))
        .args(["-x", "none", "-o"])
        .arg(&program);
    match linking {
        Linking::Archive => command.arg(folder.join("libflagstone_preload.a")),
        Linking::Static => command
            .arg("-static")
            .arg(folder.join("libflagstone_preload.a")),
        Linking::Shared => command
            .arg("-L")
            .arg(folder)
            .arg("-lflagstone_preload")
            .arg(format!("-Wl,-rpath,{}", folder.display())),
    };
    let output = command.args(["-lpthread", "-ldl"]).output().unwrap();
    assert!(
        output.status.success(),
        "{compiler} {source}: {}",
        text(&output.stderr)
    );
    program
}

fn run(program: &Path, settings: &[(&str, &str)]) -> Output {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FLAGSTONE_") {
            command.env_remove(name);
        }
    }
    command.envs(settings.iter().copied()).output().unwrap()
}

/// Every way to run the program ends well and says nothing; and asked for a report, the library gives it.
fn runs_well(program: &Path) {
    for settings in SETTINGS {
        let output = run(program, settings);
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{} {settings:?}: {}\n{}",
            program.display(),
            output.status,
            text(&output.stderr)
        );
    }
    let reported = run(program, &[("FLAGSTONE_STATS", "text")]);
    assert!(
        text(&reported.stderr).contains("malloc-112"),
        "no report of {}: {}",
        program.display(),
        text(&reported.stderr)
    );
}

fn c_program(linking: Linking) {
    runs_well(&compile("gcc", &["-std=gnu11"], "caches.c", linking, "c"));
}

fn cxx_programs(linking: Linking) {
    let flags = ["-std=gnu++17"];
    runs_well(&compile(
        "g++",
        &flags,
        "containers.cc",
        linking,
        "containers",
    ));
    let flags = ["-std=gnu++17", "-x", "c++"];
    runs_well(&compile("g++", &flags, "caches.c", linking, "cxx"));
}

#[test]
fn a_c_program_with_the_archive() {
    c_program(Linking::Archive);
}

#[test]
fn a_c_program_with_the_shared_library() {
    c_program(Linking::Shared);
}

#[test]
fn a_static_c_program() {
    c_program(Linking::Static);
}

#[test]
fn cxx_programs_with_the_archive() {
    cxx_programs(Linking::Archive);
}

#[test]
fn cxx_programs_with_the_shared_library() {
    cxx_programs(Linking::Shared);
}

#[test]
fn static_cxx_programs() {
    cxx_programs(Linking::Static);
}

/// The header alone, as the oldest C that has what it needs, and as C++.
#[test]
fn the_header_stands_alone() {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include/flagstone.h");
    for (compiler, flags) in [
        ("gcc", ["-std=c90", "-xc"]),
        ("g++", ["-std=c++98", "-xc++"]),
    ] {
        let output = Command::new(compiler)
            .args(["-fsyntax-only", "-Wall", "-Wextra", "-pedantic", "-Werror"])
            .args(flags)
            .arg("-include")
            .arg(&header)
            .arg("/dev/null")
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{compiler}: {}",
            text(&output.stderr)
        );
    }
}
