//! The shared libraries inside this binary, and the files they are unpacked to.
//!
//! The dynamic loader wants a file, so the library is unpacked to a per-user cache under a name that
//! contains a hash of its contents. Whatever file is there is compared with the embedded bytes before
//! it is used, and a wrong one is replaced by a rename, so that two commands started at once, or a
//! process that has the old file mapped, never see half a file.
//!
//! A folder is used only if it belongs to this user and nobody else may write to it (a library that
//! somebody else can replace is his to run code in our programs), if files in it may be executed, and if
//! its path has no character that separates entries of `LD_PRELOAD`.

use crate::private_folder;
use anyhow::{Context, Result, bail};
use rustix::fs::StatVfsMountFlags;
use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A shared library as built with this command.
#[derive(Debug)]
pub(crate) struct Embedded {
    bytes: &'static [u8],
    /// The name of its file.
    name: &'static str,
}

// MALLOC: the one that programs run on; USERCOPY: the one that checks copies.
include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

/// Puts the library where the loader can find it.
///
/// # Errors
/// Every folder that could hold it, with the reason why it can not.
pub(crate) fn unpack() -> Result<PathBuf> {
    unpack_one(&MALLOC)
}

/// The same of one of them.
///
/// # Errors
/// As [`unpack`].
pub(crate) fn unpack_one(library: &Embedded) -> Result<PathBuf> {
    let mut refusals = Vec::new();
    for folder in folders(|name| std::env::var_os(name).map(PathBuf::from)) {
        match prepare(&folder).and_then(|()| place(&folder, library.name, library.bytes)) {
            Ok(path) => return Ok(path),
            Err(error) => refusals.push(format!("{}: {error:#}", folder.display())),
        }
    }
    bail!(
        "the shared library can not be unpacked:\n  {}",
        refusals.join("\n  ")
    )
}

/// Prints where the library is.
pub(crate) fn print_path() -> Result<()> {
    let mut line = unpack()?.into_os_string();
    line.push("\n");
    io::stdout().write_all(line.as_bytes())?;
    Ok(())
}

/// The folders that may hold the library, best first.
fn folders(variable: impl Fn(&str) -> Option<PathBuf>) -> Vec<PathBuf> {
    let absolute = |name| variable(name).filter(|path| path.is_absolute());
    let cache =
        absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
    let user = rustix::process::geteuid().as_raw();
    cache
        .map(|cache| cache.join("flagstone"))
        .into_iter()
        .chain([PathBuf::from(format!("/tmp/flagstone-{user}"))])
        .collect()
}

/// Makes `folder` if it is not there, and checks that the loader can take a library from it.
fn prepare(folder: &Path) -> Result<()> {
    if folder
        .as_os_str()
        .as_bytes()
        .iter()
        .any(|byte| byte.is_ascii_whitespace() || *byte == b':')
    {
        bail!("a space or colon in the path separates entries of LD_PRELOAD");
    }
    private_folder::prepare(folder)?;
    if rustix::fs::statvfs(folder)?
        .f_flag
        .contains(StatVfsMountFlags::NOEXEC)
    {
        bail!("is on a file system mounted noexec");
    }
    Ok(())
}

/// Makes sure that `folder/name` holds exactly `bytes`, with mode 0755.
fn place(folder: &Path, name: &str, bytes: &[u8]) -> Result<PathBuf> {
    let path = folder.join(name);
    if holds(&path, bytes) {
        return Ok(path);
    }
    let temporary = folder.join(format!(".{name}.{}", std::process::id()));
    // Left over from an interrupted command that had the same process id.
    let _ = fs::remove_file(&temporary);
    let written = write_new(&temporary, bytes).and_then(|()| fs::rename(&temporary, &path));
    if let Err(error) = written {
        let _ = fs::remove_file(&temporary);
        return Err(error).with_context(|| format!("writing {name}"));
    }
    Ok(path)
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o700)
        .open(path)?;
    file.write_all(bytes)?;
    // Independent of the umask.
    file.set_permissions(fs::Permissions::from_mode(0o755))
}

fn holds(path: &Path, bytes: &[u8]) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| {
        metadata.is_file()
            && metadata.mode() & 0o7777 == 0o755
            && metadata.uid() == rustix::process::geteuid().as_raw()
            && metadata.len() == bytes.len() as u64
    }) && fs::read(path).is_ok_and(|found| found == bytes)
}

/// `LD_PRELOAD` with `library` as its first entry; the entries that were there stay behind it.
pub(crate) fn preload_list(library: &Path, existing: Option<&OsStr>) -> std::ffi::OsString {
    let mut list = library.as_os_str().to_owned();
    for entry in existing
        .unwrap_or_default()
        .as_bytes()
        .split(|byte| *byte == b':' || byte.is_ascii_whitespace())
    {
        if !entry.is_empty() && entry != library.as_os_str().as_bytes() {
            list.push(":");
            list.push(OsStr::from_bytes(entry));
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_placed_once_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = place(folder.path(), "lib.so", b"contents").unwrap();
        let first = fs::metadata(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"contents");
        assert_eq!(first.mode() & 0o7777, 0o755);
        place(folder.path(), "lib.so", b"contents").unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().ino(),
            first.ino(),
            "a good file is not written again"
        );
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            1,
            "no temporary file stays"
        );
    }

    #[test]
    fn a_wrong_file_is_replaced_by_a_new_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = place(folder.path(), "lib.so", b"contents").unwrap();
        let before = fs::metadata(&path).unwrap().ino();
        let mapped = fs::File::open(&path).unwrap();
        fs::write(&path, b"c0ntents").unwrap();
        place(folder.path(), "lib.so", b"contents").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"contents");
        assert_ne!(
            fs::metadata(&path).unwrap().ino(),
            before,
            "a user of the old file keeps the old file"
        );
        assert_eq!(mapped.metadata().unwrap().ino(), before);
    }

    #[test]
    fn a_link_in_place_of_the_file_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let elsewhere = folder.path().join("elsewhere");
        fs::write(&elsewhere, b"contents").unwrap();
        fs::set_permissions(&elsewhere, fs::Permissions::from_mode(0o755)).unwrap();
        std::os::unix::fs::symlink(&elsewhere, folder.path().join("lib.so")).unwrap();
        let path = place(folder.path(), "lib.so", b"contents").unwrap();
        assert!(fs::symlink_metadata(path).unwrap().is_file());
    }

    #[test]
    fn many_at_once_all_find_the_whole_file() {
        let folder = tempfile::tempdir().unwrap();
        let bytes = vec![7; 1 << 20];
        // Threads share a process id, so that they meet on one temporary name as well: each of them may
        // fail to place the file, but what is at the final name is whole.
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let _ = place(folder.path(), "lib.so", &bytes);
                        if let Ok(found) = fs::read(folder.path().join("lib.so")) {
                            assert_eq!(found.len(), bytes.len());
                        }
                    }
                });
            }
        });
        let path = place(folder.path(), "lib.so", &bytes).unwrap();
        assert!(fs::read(path).unwrap() == bytes);
    }

    #[test]
    fn a_path_that_the_loader_would_split_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert!(prepare(&folder.path().join("with space")).is_err());
        assert!(prepare(&folder.path().join("with:colon")).is_err());
    }

    #[test]
    fn relative_cache_homes_are_ignored() {
        let of = |pairs: &'static [(&str, &str)]| {
            folders(move |name| {
                pairs
                    .iter()
                    .find(|pair| pair.0 == name)
                    .map(|pair| PathBuf::from(pair.1))
            })
        };
        assert_eq!(
            of(&[("XDG_CACHE_HOME", "/x"), ("HOME", "/h")])[0],
            Path::new("/x/flagstone")
        );
        assert_eq!(
            of(&[("XDG_CACHE_HOME", "x"), ("HOME", "/h")])[0],
            Path::new("/h/.cache/flagstone")
        );
        assert_eq!(of(&[("XDG_CACHE_HOME", "x")]).len(), 1);
    }

    #[test]
    fn the_library_comes_first_and_once() {
        let list = |existing: &str| {
            preload_list(Path::new("/f.so"), Some(OsStr::new(existing)))
                .into_string()
                .unwrap()
        };
        assert_eq!(list(""), "/f.so");
        assert_eq!(list("/a.so b.so"), "/f.so:/a.so:b.so");
        assert_eq!(list("/a.so:/f.so"), "/f.so:/a.so");
        assert_eq!(preload_list(Path::new("/f.so"), None), "/f.so");
    }
}
