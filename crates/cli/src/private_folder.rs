//! Folders for files that other programs of this user trust: a library that they load, statistics that are shown.
//!
//! Such a folder belongs to this user, and nobody else may write to it.

use anyhow::{Result, bail};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

/// Makes `folder`, and what is above it, if it is not there, for this user alone.
///
/// # Errors
/// It can not be made, is no folder, belongs to somebody else, or others may write to it.
pub(crate) fn prepare(folder: &Path) -> Result<()> {
    let parent = folder.parent().unwrap_or(folder);
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(parent)?;
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.into()),
        _ => {}
    }
    let metadata = fs::symlink_metadata(folder)?;
    let user = rustix::process::geteuid().as_raw();
    if !metadata.is_dir() {
        bail!("not a folder");
    }
    if metadata.uid() != user {
        bail!("belongs to user {}, not to {user}", metadata.uid());
    }
    if metadata.mode() & 0o022 != 0 {
        bail!(
            "others may write to it (mode {:03o})",
            metadata.mode() & 0o777
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_folder_that_others_may_write_to_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let open = folder.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        let error = prepare(&open).unwrap_err().to_string();
        assert!(error.contains("777"), "{error}");
    }

    #[test]
    fn a_new_folder_is_private() {
        let folder = tempfile::tempdir().unwrap();
        let made = folder.path().join("cache/flagstone");
        prepare(&made).unwrap();
        assert_eq!(fs::metadata(&made).unwrap().mode() & 0o777, 0o700);
    }
}
