//! The programs and their inputs. Inputs are made here, the same in every run.

use super::Program;
use super::whole::Whole;
use crate::bench::worker;
use crate::program;
use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The path of an installed program that can be preloaded.
///
/// # Errors
/// It is not installed (with the name of its package), or preloading can not apply to it.
pub(super) fn installed(name: &str, package: &str) -> Result<PathBuf> {
    let Ok(path) = program::find(OsStr::new(name), std::env::var_os("PATH").as_deref()) else {
        bail!("{name} is not installed (package {package})");
    };
    program::check(&path).with_context(|| path.display().to_string())?;
    Ok(path)
}

fn own_worker(folder: &Path, work: &str) -> Result<Box<dyn Program>> {
    let command = worker::command(work)?;
    Ok(Box::new(Whole {
        program: command.get_program().into(),
        arguments: command.get_args().map(Into::into).collect(),
        variables: Vec::new(),
        input: None,
        output: folder.join("output"),
        result: None,
    }))
}

/// Factoring by continued fractions.
pub(super) fn cfrac(folder: &Path) -> Result<Box<dyn Program>> {
    own_worker(folder, "cfrac")
}

/// Larson's server.
pub(super) fn larson(folder: &Path) -> Result<Box<dyn Program>> {
    own_worker(folder, "larson-program")
}

/// Python as it comes: objects up to 512 bytes are on its own allocator.
pub(super) fn python(folder: &Path) -> Result<Box<dyn Program>> {
    python_with(folder, Vec::new())
}

/// Python with every object on malloc.
pub(super) fn python_on_malloc(folder: &Path) -> Result<Box<dyn Program>> {
    python_with(folder, vec![("PYTHONMALLOC", "malloc")])
}

fn python_with(
    folder: &Path,
    mut variables: Vec<(&'static str, &'static str)>,
) -> Result<Box<dyn Program>> {
    let found = installed("python3", "python3")?;
    // What is in PATH may be a script that starts the interpreter; the interpreter is to be measured.
    let answer = Command::new(&found)
        .args(["-c", "import sys; print(sys.executable)"])
        .output()?;
    let interpreter = PathBuf::from(String::from_utf8(answer.stdout)?.trim_end());
    program::check(&interpreter).with_context(|| interpreter.display().to_string())?;
    let script = folder.join("workload.py");
    fs::write(&script, include_str!("workload.py"))?;
    // The same order of sets and dictionaries in every run.
    variables.push(("PYTHONHASHSEED", "1"));
    Ok(Box::new(Whole {
        program: interpreter,
        arguments: vec!["-S".into(), "-B".into(), script.into()],
        variables,
        input: None,
        output: folder.join("output"),
        result: None,
    }))
}

/// sqlite3 with a database in memory: inserting, indexing, joining, deleting.
pub(super) fn sqlite(folder: &Path) -> Result<Box<dyn Program>> {
    let script = folder.join("workload.sql");
    fs::write(&script, include_str!("workload.sql"))?;
    Ok(Box::new(Whole {
        program: installed("sqlite3", "sqlite3")?,
        arguments: vec![
            "-batch".into(),
            "-init".into(),
            "/dev/null".into(),
            ":memory:".into(),
        ],
        variables: Vec::new(),
        input: Some(script),
        output: folder.join("output"),
        result: None,
    }))
}

/// gcc compiling one large file to an object.
pub(super) fn gcc(folder: &Path) -> Result<Box<dyn Program>> {
    let source = folder.join("large.c");
    fs::write(&source, c_source(110))?;
    let object = folder.join("large.o");
    Ok(Box::new(Whole {
        program: installed("gcc", "gcc")?,
        arguments: vec![
            "-O2".into(),
            "-w".into(),
            "-c".into(),
            source.into(),
            "-o".into(),
            object.clone().into(),
        ],
        variables: Vec::new(),
        input: None,
        output: folder.join("output"),
        result: Some(object),
    }))
}

/// A C file with `functions` functions of loops, switches and calls of each other.
fn c_source(functions: usize) -> String {
    let mut text = String::from(
        "struct node { long key, weight; struct node *left, *right; char name[24]; };\n",
    );
    for f in 0..functions {
        let _ = writeln!(text, "static const int table{f}[] = {{");
        for i in 0..40 {
            let _ = write!(text, "{},", (f * 7919 + i * 104_729) % 65_521);
        }
        let _ = writeln!(
            text,
            "}};\nlong work{f}(struct node *n, const char *s, long a, long b) {{\n  long sum = {f};"
        );
        let _ = writeln!(
            text,
            "  for (long i = 0; i < b; i++) {{ sum += table{f}[(i * a) % 40] ^ (sum << {}); }}",
            f % 7 + 1
        );
        let _ = writeln!(
            text,
            "  for (; n; n = (n->key > a) ? n->left : n->right) {{\n    switch ((n->weight + sum) & 15) {{"
        );
        for case in 0..12 {
            let _ = writeln!(
                text,
                "    case {case}: sum = sum * {} + n->name[{case}] - (s ? s[sum & {}] : {case}); {} break;",
                case * 2 + 3,
                case + 1,
                if f > 0 && case % 4 == 0 {
                    format!(
                        "if (a > {case}) sum += work{}(n->left, s, b - 1, a / 2);",
                        f * 31 % f
                    )
                } else {
                    String::from("n->weight ^= sum;")
                },
            );
        }
        let _ = writeln!(
            text,
            "    default: sum ^= n->key * {}; }}\n  }}\n  return sum;\n}}",
            f + 11
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_installed_is_named_with_its_package() {
        let error = installed("no-such-program", "no-such-package")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("no-such-program") && error.contains("no-such-package"),
            "{error}"
        );
    }

    #[test]
    fn the_c_source_is_the_same_each_time_and_grows() {
        assert_eq!(c_source(3), c_source(3));
        assert!(c_source(20).len() > 5 * c_source(2).len());
    }
}
