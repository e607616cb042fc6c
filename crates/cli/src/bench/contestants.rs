//! Who is measured: glibc, the rivals that are installed, and Flagstone.
//!
//! A contestant is a library to preload. Before anything is measured, each has to prove in a worker
//! of its own that it is really its `malloc` that a program gets; one that can not is left out, and the report
//! says so.

use super::worker;
use crate::args::Plan;
use crate::library;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The name of our own contestant.
pub(crate) const FLAGSTONE: &str = "flagstone";
/// The name of the one that others are compared with.
pub(crate) const GLIBC: &str = "glibc";

/// Rivals that Debian packages: name, file names, package.
const RIVALS: &[(&str, &[&str], &str)] = &[
    ("jemalloc", &["libjemalloc.so.2"], "libjemalloc2"),
    (
        "mimalloc",
        &["libmimalloc.so.3", "libmimalloc.so.2", "libmimalloc.so.2.0"],
        "libmimalloc2.0",
    ),
    (
        "tcmalloc",
        &["libtcmalloc_minimal.so.4"],
        "libtcmalloc-minimal4",
    ),
];

/// Where the dynamic loader of a 64-bit system finds libraries.
const FOLDERS: &[&str] = &[
    "/usr/local/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
];

/// One malloc.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Contestant {
    pub(crate) name: String,
    /// The library to preload; none for the C library's own malloc.
    pub(crate) library: Option<PathBuf>,
}

impl Contestant {
    /// Makes `command` run on this malloc.
    pub(crate) fn apply(&self, command: &mut Command) {
        match &self.library {
            Some(library) => command.env("LD_PRELOAD", library),
            None => command.env_remove("LD_PRELOAD"),
        };
    }
}

/// A contestant that does not take part.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct Absent {
    pub(crate) name: String,
    pub(crate) reason: String,
}

/// Who takes part and who does not.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) contestants: Vec<Contestant>,
    pub(crate) absent: Vec<Absent>,
}

impl Field {
    /// Finds the contestants and lets each prove that it is what it says.
    ///
    /// # Errors
    /// A malformed or unreadable `--rival`, an unknown `--without`, or nobody left.
    pub(crate) fn gather(plan: &Plan) -> Result<Self> {
        Self::gather_beside(plan, &[])
    }

    /// The same for an experiment that has subjects of these names as well, which may be left out too.
    ///
    /// # Errors
    /// As [`Field::gather`].
    pub(crate) fn gather_beside(plan: &Plan, subjects: &[&str]) -> Result<Self> {
        let mut field = Self {
            contestants: Vec::new(),
            absent: Vec::new(),
        };
        let mut candidates = vec![Contestant {
            name: GLIBC.into(),
            library: None,
        }];
        for (name, files, package) in RIVALS {
            match installed(files) {
                Some(library) => candidates.push(Contestant {
                    name: (*name).into(),
                    library: Some(library),
                }),
                None => field.absent.push(Absent {
                    name: (*name).into(),
                    reason: format!(
                        "{} is not installed (package {package})",
                        files[files.len() - 1]
                    ),
                }),
            }
        }
        for rival in &plan.rivals {
            candidates.push(named_rival(rival)?);
        }
        candidates.push(Contestant {
            name: FLAGSTONE.into(),
            library: Some(library::unpack()?),
        });

        let known = |name: &String| {
            candidates.iter().any(|c| c.name == *name)
                || subjects.contains(&name.as_str())
                || field.absent.iter().any(|absent| absent.name == *name)
        };
        if let Some(unknown) = plan.without.iter().find(|name| !known(name)) {
            bail!("--without {unknown}: no such contestant");
        }
        candidates.retain(|candidate| !plan.without.contains(&candidate.name));
        for candidate in candidates {
            match prove(&candidate) {
                Ok(()) => field.contestants.push(candidate),
                Err(error) => field.absent.push(Absent {
                    name: candidate.name,
                    reason: format!("{error:#}"),
                }),
            }
        }
        if field.contestants.is_empty() {
            bail!(
                "nobody to measure: {}",
                field
                    .absent
                    .iter()
                    .map(|a| a.reason.as_str())
                    .collect::<Vec<_>>()
                    .join("; ")
            );
        }
        Ok(field)
    }

    /// Our own place in the field, if we take part.
    pub(crate) fn flagstone(&self) -> Option<usize> {
        self.contestants
            .iter()
            .position(|contestant| contestant.name == FLAGSTONE)
    }

    /// The places of all others.
    pub(crate) fn rivals(&self) -> impl Iterator<Item = usize> {
        (0..self.contestants.len()).filter(|&index| Some(index) != self.flagstone())
    }
}

fn installed(files: &[&str]) -> Option<PathBuf> {
    files
        .iter()
        .flat_map(|file| {
            FOLDERS
                .iter()
                .map(move |folder| Path::new(folder).join(file))
        })
        .find(|path| path.is_file())
}

fn named_rival(text: &str) -> Result<Contestant> {
    let Some((name, path)) = text
        .split_once('=')
        .filter(|(name, path)| !name.is_empty() && !path.is_empty())
    else {
        bail!("--rival {text}: not of the form NAME=LIBRARY");
    };
    let path = fs::canonicalize(path).with_context(|| format!("--rival {text}"))?;
    Ok(Contestant {
        name: name.into(),
        library: Some(path),
    })
}

/// Checks that a program under this contestant gets its malloc from it.
fn prove(contestant: &Contestant) -> Result<()> {
    let provider = worker::provider(contestant)?;
    let same = |library: &Path| fs::canonicalize(library).ok() == fs::canonicalize(&provider).ok();
    match &contestant.library {
        Some(library) if !same(library) => {
            bail!(
                "{} does not provide malloc: a program gets it from {}",
                library.display(),
                provider.display()
            )
        }
        None if !provider
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("libc.so")) =>
        {
            bail!("a program gets its malloc from {}", provider.display())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rival_needs_a_name_and_a_library() {
        for wrong in ["x", "=x", "x=", "x=/no/such/file"] {
            assert!(named_rival(wrong).unwrap_err().to_string().contains(wrong));
        }
        let this = std::env::current_exe().unwrap();
        assert_eq!(
            named_rival(&format!("mine={}", this.display()))
                .unwrap()
                .name,
            "mine"
        );
    }

    #[test]
    fn a_rival_that_is_not_installed_is_not_found() {
        assert_eq!(installed(&["libnosuchmalloc.so.1"]), None);
    }
}
