//! The program that is to be run: where it is, and whether preloading can apply to it.
//!
//! The rules are those of `execve` and of the dynamic loader. `LD_PRELOAD` is read by glibc's loader,
//! so the file that the kernel executes (for a script its interpreter, for an interpreter that is a
//! script *its* interpreter) must be an ELF file of this machine that names that loader; and the loader
//! ignores `LD_PRELOAD` in a program that gains privileges. A program that we refuse would otherwise run on its
//! own malloc while its user believes that it runs on ours.

use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, ReadCache, elf};
use rustix::fs::{Access, StatVfsMountFlags};
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// How many interpreters of interpreters the kernel follows.
const MAX_INTERPRETERS: usize = 5;
/// How many bytes of a script's first line the kernel reads.
const SCRIPT_LINE: usize = 256;

/// Why a program can not be run with the library preloaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("no such program in PATH")]
    NotInPath,
    #[error("{0}")]
    System(#[from] io::Error),
    #[error("a folder can not be executed")]
    Folder,
    #[error("its interpreter {} can not be used: {refusal}", path.display())]
    Interpreter {
        path: PathBuf,
        refusal: Box<Refusal>,
    },
    #[error("the file is empty")]
    Empty,
    #[error("neither an ELF program nor a script that names its interpreter")]
    UnknownFormat,
    #[error("a script whose first line names no interpreter")]
    NoInterpreter,
    #[error("more than {MAX_INTERPRETERS} scripts that interpret each other")]
    TooManyInterpreters,
    #[error("a damaged ELF file: {0}")]
    Damaged(#[from] object::Error),
    #[error("a 32-bit program; preloading needs an x86-64 one")]
    Class32,
    #[error("a program for another architecture (ELF machine {0}); preloading needs an x86-64 one")]
    Machine(u16),
    #[error("an ELF file that is not a program (ELF type {0})")]
    NotExecutable(u16),
    #[error("a statically linked program: no dynamic loader reads LD_PRELOAD")]
    Static,
    #[error("a program for another C library, with the loader {}; preloading needs glibc's", .0.display())]
    Loader(PathBuf),
    #[error(
        "set-user-ID to user {0}: the dynamic loader ignores LD_PRELOAD where privileges change"
    )]
    SetUser(u32),
    #[error(
        "set-group-ID to group {0}: the dynamic loader ignores LD_PRELOAD where privileges change"
    )]
    SetGroup(u32),
    #[error("has file capabilities: the dynamic loader ignores LD_PRELOAD where privileges change")]
    Capabilities,
}

impl Refusal {
    /// 127 if there is no such program, 126 if there is one that can not be executed or preloaded.
    pub(crate) fn exit_status(&self) -> u8 {
        match self {
            Self::NotInPath => 127,
            Self::System(error) => status_of(error),
            _ => 126,
        }
    }
}

/// The exit status for an error of `execve`.
pub(crate) fn status_of(error: &io::Error) -> u8 {
    if error.kind() == io::ErrorKind::NotFound {
        127
    } else {
        126
    }
}

/// The file that `name` means: itself if it has a slash, else the first executable one in `path`.
///
/// # Errors
/// [`Refusal::NotInPath`]; a system's error if there are only files that may not be executed.
pub(crate) fn find(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, Refusal> {
    if name.as_bytes().contains(&b'/') {
        return Ok(PathBuf::from(name));
    }
    let mut denied = None;
    for folder in std::env::split_paths(path.unwrap_or(OsStr::new("/bin:/usr/bin"))) {
        // An empty entry is the current folder; with a slash in it, nobody searches PATH again.
        let folder = if folder.as_os_str().is_empty() {
            PathBuf::from(".")
        } else {
            folder
        };
        let candidate = folder.join(name);
        match executable(&candidate) {
            Ok(_) if !name.is_empty() => return Ok(candidate),
            // A file that is there; not a folder of PATH that may not be searched.
            Err(Refusal::System(error))
                if error.kind() == io::ErrorKind::PermissionDenied && candidate.is_file() =>
            {
                denied.get_or_insert(error);
            }
            _ => {}
        }
    }
    Err(denied.map_or(Refusal::NotInPath, Refusal::System))
}

fn executable(path: &Path) -> Result<Metadata, Refusal> {
    let metadata = std::fs::metadata(path)?;
    if metadata.is_dir() {
        return Err(Refusal::Folder);
    }
    rustix::fs::access(path, Access::EXEC_OK).map_err(io::Error::from)?;
    Ok(metadata)
}

/// Checks that preloading applies to what the kernel executes for `path`.
///
/// # Errors
/// The reason why it does not.
pub(crate) fn check(path: &Path) -> Result<(), Refusal> {
    check_nested(path, 0)
}

fn check_nested(path: &Path, depth: usize) -> Result<(), Refusal> {
    let metadata = executable(path)?;
    let mut file = match File::open(path) {
        Ok(file) => file,
        // A file that may be executed but not read; its kind can not be known.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let mut start = Vec::with_capacity(SCRIPT_LINE);
    file.by_ref()
        .take(SCRIPT_LINE as u64)
        .read_to_end(&mut start)?;
    if start.is_empty() {
        return Err(Refusal::Empty);
    }
    if let Some(line) = start.strip_prefix(b"#!") {
        if depth == MAX_INTERPRETERS {
            return Err(Refusal::TooManyInterpreters);
        }
        let interpreter = PathBuf::from(interpreter_of(line).ok_or(Refusal::NoInterpreter)?);
        return check_nested(&interpreter, depth + 1).map_err(|refusal| match refusal {
            Refusal::TooManyInterpreters | Refusal::Interpreter { .. } => refusal,
            refusal => Refusal::Interpreter {
                path: interpreter,
                refusal: Box::new(refusal),
            },
        });
    }
    if !start.starts_with(&elf::ELFMAG) {
        return Err(Refusal::UnknownFormat);
    }
    check_elf(file, &start)?;
    check_privileges(&FileRights::of(path, &metadata), &Caller::this())
}

/// The interpreter that a script's first line (without `#!`) names.
fn interpreter_of(line: &[u8]) -> Option<OsString> {
    let line = line.split(|byte| *byte == b'\n').next()?;
    let word = line
        .split(|byte| matches!(byte, b' ' | b'\t' | 0))
        .find(|word| !word.is_empty())?;
    Some(OsStr::from_bytes(word).to_owned())
}

fn check_elf(file: File, start: &[u8]) -> Result<(), Refusal> {
    match start.get(4) {
        Some(&elf::ELFCLASS64) => {}
        Some(&elf::ELFCLASS32) => return Err(Refusal::Class32),
        _ => return Err(Refusal::UnknownFormat),
    }
    let data = ReadCache::new(file);
    let header = elf::FileHeader64::<Endianness>::parse(&data)?;
    let endian = header.endian()?;
    let machine = header.e_machine(endian);
    if machine != elf::EM_X86_64 {
        return Err(Refusal::Machine(machine));
    }
    let kind = header.e_type(endian);
    if kind != elf::ET_EXEC && kind != elf::ET_DYN {
        return Err(Refusal::NotExecutable(kind));
    }
    for segment in header.program_headers(endian, &data)? {
        if let Some(loader) = segment.interpreter(endian, &data)? {
            let loader = Path::new(OsStr::from_bytes(loader));
            let name = loader.file_name().unwrap_or_default().as_bytes();
            let glibc =
                name.starts_with(b"ld-linux") || name.starts_with(b"ld-2.") || name == b"ld.so";
            return if glibc {
                Ok(())
            } else {
                Err(Refusal::Loader(loader.to_owned()))
            };
        }
    }
    Err(Refusal::Static)
}

/// What a file does to the privileges of who executes it.
#[derive(Debug)]
struct FileRights {
    mode: u32,
    owner: u32,
    group: u32,
    capabilities: bool,
    /// The file system is mounted so that none of that is heeded.
    nosuid: bool,
}

impl FileRights {
    fn of(path: &Path, metadata: &Metadata) -> Self {
        Self {
            mode: metadata.mode(),
            owner: metadata.uid(),
            group: metadata.gid(),
            capabilities: rustix::fs::getxattr(path, "security.capability", &mut [0_u8; 64])
                .is_ok_and(|len| len > 0),
            nosuid: rustix::fs::statvfs(path)
                .is_ok_and(|fs| fs.f_flag.contains(StatVfsMountFlags::NOSUID)),
        }
    }
}

/// Who executes it.
#[derive(Debug)]
struct Caller {
    user: u32,
    group: u32,
    no_new_privileges: bool,
}

impl Caller {
    fn this() -> Self {
        Self {
            user: rustix::process::getuid().as_raw(),
            group: rustix::process::getgid().as_raw(),
            no_new_privileges: rustix::thread::no_new_privs().unwrap_or(false),
        }
    }
}

fn check_privileges(file: &FileRights, caller: &Caller) -> Result<(), Refusal> {
    const SET_USER: u32 = 0o4000;
    /// Without the group's execute bit it once meant mandatory locking, and is not heeded.
    const SET_GROUP: u32 = 0o2010;
    if file.nosuid || caller.no_new_privileges {
        return Ok(());
    }
    if file.mode & SET_USER != 0 && file.owner != caller.user {
        return Err(Refusal::SetUser(file.owner));
    }
    if file.mode & SET_GROUP == SET_GROUP && file.group != caller.group {
        return Err(Refusal::SetGroup(file.group));
    }
    // Root has every capability already.
    if file.capabilities && caller.user != 0 {
        return Err(Refusal::Capabilities);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
