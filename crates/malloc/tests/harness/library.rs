//! The library under test.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What stands between a program and the C library's own malloc.
#[derive(Clone, Debug)]
pub(crate) enum Library {
    /// Nothing: the tests are run on the C library, to prove the tests.
    None,
    /// This shared library is preloaded.
    Preloaded(PathBuf),
}

impl Library {
    /// The library that `FLAGSTONE_PRELOAD` names, or else one built from this workspace.
    pub(crate) fn find() -> Result<Self, String> {
        match std::env::var_os("FLAGSTONE_PRELOAD") {
            None => Self::build().map(Self::Preloaded),
            Some(name) if name == "none" => Ok(Self::None),
            Some(name) => Path::new(&name)
                .canonicalize()
                .map(Self::Preloaded)
                .map_err(|error| format!("FLAGSTONE_PRELOAD={}: {error}", name.display())),
        }
    }

    /// The path to preload, if any.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Self::None => None,
            Self::Preloaded(path) => Some(path),
        }
    }

    /// Builds the library as it is shipped, in a target folder of its own, since the outer cargo may hold the lock
    /// of the usual one.
    fn build() -> Result<PathBuf, String> {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("preload");
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
        let output = Command::new(cargo)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .args([
                "build",
                "--release",
                "--package",
                "flagstone-preload",
                "--config",
            ])
            .args(["profile.release.panic=\"abort\"", "--target-dir"])
            .arg(&target)
            .env_remove("RUSTC_WORKSPACE_WRAPPER")
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .output()
            .map_err(|error| format!("cargo: {error}"))?;
        if !output.status.success() {
            return Err(format!(
                "the library does not build (FLAGSTONE_PRELOAD=none runs the tests on the C library):\n{}",
                String::from_utf8_lossy(&output.stderr)
            ));
        }
        let release = target.join("release");
        std::fs::read_dir(&release)
            .map_err(|error| format!("{}: {error}", release.display()))?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| path.extension().is_some_and(|ending| ending == "so"))
            .ok_or_else(|| format!("no shared library in {}", release.display()))?
            .canonicalize()
            .map_err(|error| format!("{}: {error}", release.display()))
    }
}
