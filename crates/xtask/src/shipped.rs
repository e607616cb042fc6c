//! The libraries as users get them: built by the pipeline of the command, never by one of our own.

use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The shared library that the command carries: builds the command and lets it unpack what is inside.
///
/// # Errors
/// The command does not build, or can not unpack its library.
pub(crate) fn shared_library(root: &Path) -> Result<PathBuf> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")))
        .current_dir(root)
        .args(["run", "--quiet", "--package", "flagstone-cli", "--bin"])
        .args(["flagstone", "--", "library"])
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("cargo")?;
    if !output.status.success() {
        bail!("`flagstone library` failed: {}", output.status);
    }
    let path = String::from_utf8(output.stdout).context("the path of the library")?;
    Ok(PathBuf::from(path.trim_end_matches('\n')))
}
