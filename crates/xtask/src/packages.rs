//! What the tests need of the system: programs and libraries, the packages they are in, and why.

use anyhow::{Result, bail};
use std::path::Path;
use std::process::Command;

/// A need of the tests.
struct Need {
    /// Debian's package.
    package: &'static str,
    /// A program in PATH, or the file name of a library.
    file: &'static str,
    /// What it is needed for.
    #[allow(dead_code, reason = "the reason is for who reads the table")]
    why: &'static str,
}

const fn need(package: &'static str, file: &'static str, why: &'static str) -> Need {
    Need { package, file, why }
}

const NEEDS: &[Need] = &[
    need(
        "gcc",
        "gcc",
        "compiles the C tests; is itself run on Flagstone",
    ),
    need(
        "g++",
        "g++",
        "compiles the C++ tests: new and delete in all forms, threads",
    ),
    need(
        "binutils",
        "objdump",
        "links programs; objdump is run on Flagstone",
    ),
    need("git", "git", "is run on Flagstone: many short processes"),
    need(
        "libjemalloc2",
        "libjemalloc.so.2",
        "a rival in the benchmarks",
    ),
    need(
        "libmimalloc2.0",
        "libmimalloc.so.2.0",
        "a rival in the benchmarks",
    ),
    need(
        "libtcmalloc-minimal4",
        "libtcmalloc_minimal.so.4",
        "a rival in the benchmarks",
    ),
    need(
        "nodejs",
        "node",
        "is run on Flagstone: many threads, its own page mappings",
    ),
    need(
        "perl",
        "perl",
        "is run on Flagstone: very many small objects",
    ),
    need(
        "python3",
        "python3",
        "is run on Flagstone, with its own regression tests",
    ),
    need(
        "qemu-system-x86",
        "qemu-system-x86_64",
        "boots the kernel image",
    ),
    need(
        "redis-server",
        "redis-server",
        "is run on Flagstone: forks while it serves",
    ),
    need("redis-tools", "redis-benchmark", "drives redis-server"),
    need("sqlite3", "sqlite3", "is run on Flagstone"),
    need(
        "strace",
        "strace",
        "counts the system calls that give memory back",
    ),
];

/// Where libraries are.
const LIBRARY_FOLDERS: &[&str] = &[
    "/usr/lib/x86_64-linux-gnu",
    "/lib/x86_64-linux-gnu",
    "/usr/local/lib",
];

/// Installs what is missing if this is root, and otherwise says in one line what is missing.
///
/// # Errors
/// Something is missing and is not, or could not be, installed.
pub(crate) fn provide() -> Result<()> {
    let absent = || {
        NEEDS
            .iter()
            .filter(|need| !is_there(need.file))
            .map(|need| need.package)
            .collect::<Vec<_>>()
    };
    let missing = absent();
    if missing.is_empty() {
        return Ok(());
    }
    if is_root() {
        println!("── installing: {}", missing.join(" "));
        let apt = |arguments: &[&str]| {
            Command::new("apt-get")
                .args(arguments)
                .env("DEBIAN_FRONTEND", "noninteractive")
                .status()
        };
        apt(&["update", "-qq"])?;
        let install = [
            &["install", "-y", "-qq", "--no-install-recommends"],
            &missing[..],
        ]
        .concat();
        apt(&install)?;
    }
    match absent() {
        missing if missing.is_empty() => Ok(()),
        missing => bail!("missing: apt-get install {}", missing.join(" ")),
    }
}

fn is_root() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| {
        status
            .lines()
            .filter_map(|line| line.strip_prefix("Uid:"))
            .any(|ids| ids.split_whitespace().nth(1) == Some("0"))
    })
}

fn is_there(file: &str) -> bool {
    let in_path = || {
        std::env::var_os("PATH")
            .is_some_and(|path| std::env::split_paths(&path).any(|f| f.join(file).is_file()))
    };
    if file.contains(".so") {
        LIBRARY_FOLDERS
            .iter()
            .any(|folder| Path::new(folder).join(file).is_file())
    } else {
        in_path()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_looked_for_in_the_path_and_libraries_where_the_loader_looks() {
        assert!(is_there("sh"));
        assert!(!is_there("no-such-program"));
        assert!(is_there("libc.so.6"));
        assert!(!is_there("libnosuch.so.1"));
    }

    #[test]
    fn every_need_has_a_reason_and_is_named_once() {
        for (number, need) in NEEDS.iter().enumerate() {
            assert!(!need.why.is_empty());
            assert!(
                NEEDS[..number].iter().all(|other| other.file != need.file),
                "{}",
                need.file
            );
        }
    }
}
