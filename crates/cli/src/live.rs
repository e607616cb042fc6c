//! Live statistics: where the processes of a user keep them, and how a file of them is read.
//!
//! `run` names a folder in `FLAGSTONE_LIVE`. The library in each process maps the file PID in it, and writes its report there
//! about once a second. Whoever may read the file can show the report; no right to trace the process is needed.
//!
//! ```text
//!   u64 "FLAGSTN1"   u32 sequence   u32 length   u32 pid   u32 -   then `length` bytes of JSON
//! ```
//!
//! The sequence is odd while the text is being written; a reader that sees it odd, or changed after it has read, reads again.
//! A process leaves its file behind, so that `run` removes those of processes that are gone.

use crate::private_folder;
use anyhow::Result;
use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const MAGIC: [u8; 8] = *b"FLAGSTN1";
const HEADER: usize = 24;
/// No report is longer; a larger length is a damaged file.
const LONGEST: usize = 16 << 20;
/// How often a text that changes under the reader is read again, and how long it waits in between.
const ATTEMPTS: u32 = 200;
const PAUSE: Duration = Duration::from_millis(2);

/// Why a live file says nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LiveError {
    #[error(transparent)]
    System(#[from] io::Error),
    #[error("not a file of live statistics")]
    Foreign,
    #[error("nothing has been written to it yet")]
    Empty,
    #[error("it is of another process ({0})")]
    OtherProcess(u32),
    #[error("its writer ended in the middle of a report")]
    Torn,
}

/// The folders that may hold the live files of `user`, best first: in memory rather than on a disk.
fn folders(user: u32) -> [PathBuf; 3] {
    [
        PathBuf::from(format!("/run/user/{user}/flagstone")),
        PathBuf::from(format!("/dev/shm/flagstone-{user}")),
        PathBuf::from(format!("/tmp/flagstone-{user}/live")),
    ]
}

/// The folder for the files of programs that this user runs, with files of processes that are gone removed; none if no folder
/// can be trusted.
pub(crate) fn folder_for_programs() -> Option<PathBuf> {
    let folder = folders(rustix::process::geteuid().as_raw())
        .into_iter()
        .find(|folder| {
            // Of the folders above it only our own may be made.
            let parent_is_there = folder
                .parent()
                .is_some_and(|parent| parent.is_dir() || parent.starts_with("/tmp"));
            parent_is_there && private_folder::prepare(folder).is_ok()
        })?;
    sweep(&folder, Path::new("/proc"));
    Some(folder)
}

fn sweep(folder: &Path, processes: &Path) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for name in entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()) {
        if name.bytes().all(|byte| byte.is_ascii_digit()) && !processes.join(&name).exists() {
            let _ = fs::remove_file(folder.join(name));
        }
    }
}

/// The live file of a process, if it has one: it belongs to the process's user and is not older than the process.
pub(crate) fn file_of(pid: u32) -> Option<PathBuf> {
    let user = fs::metadata(format!("/proc/{pid}")).ok()?.uid();
    let started = started(pid)?;
    folders(user)
        .into_iter()
        .map(|folder| folder.join(pid.to_string()))
        .find(|file| {
            fs::symlink_metadata(file).is_ok_and(|metadata| {
                // The clock of files is a tick behind the one that processes are dated by.
                let slack = Duration::from_secs(1);
                metadata.is_file()
                    && metadata.uid() == user
                    && metadata.modified().is_ok_and(|at| at + slack >= started)
            })
        })
}

/// When a process was started.
fn started(pid: u32) -> Option<SystemTime> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may have spaces and parentheses; the start is the 20th field after it, in ticks since boot.
    let ticks: u64 = stat
        .rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(19)?
        .parse()
        .ok()?;
    let boot: u64 = fs::read_to_string("/proc/stat")
        .ok()?
        .lines()
        .find_map(|line| line.strip_prefix("btime "))?
        .trim()
        .parse()
        .ok()?;
    let since_boot = Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second());
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs(boot) + since_boot)
}

/// The JSON text in a live file, of `pid` if one is given.
pub(crate) fn read(path: &Path, pid: Option<u32>) -> Result<String, LiveError> {
    let mut file = File::open(path)?;
    for _ in 0..ATTEMPTS {
        let header = header(&mut file)?;
        if let Some(pid) = pid
            && header.pid != pid
        {
            return Err(LiveError::OtherProcess(header.pid));
        }
        if header.sequence % 2 == 0 {
            let mut text = vec![0; header.length];
            file.read_exact(&mut text)?;
            if self::header(&mut file)?.sequence == header.sequence {
                return String::from_utf8(text).map_err(|_| LiveError::Foreign);
            }
        }
        std::thread::sleep(PAUSE);
    }
    Err(LiveError::Torn)
}

struct Header {
    sequence: u32,
    length: usize,
    pid: u32,
}

fn header(file: &mut File) -> Result<Header, LiveError> {
    let mut bytes = [0; HEADER];
    file.rewind()?;
    file.read_exact(&mut bytes)
        .map_err(|_| LiveError::Foreign)?;
    let number =
        |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let header = Header {
        sequence: number(8),
        length: number(12) as usize,
        pid: number(16),
    };
    if bytes[..8] == [0; 8] || (bytes[..8] == MAGIC && header.length == 0) {
        return Err(LiveError::Empty);
    }
    if bytes[..8] != MAGIC || header.length > LONGEST {
        return Err(LiveError::Foreign);
    }
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live(sequence: u32, pid: u32, text: &str) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        for number in [sequence, text.len() as u32, pid, 0] {
            bytes.extend(number.to_ne_bytes());
        }
        bytes.extend(text.as_bytes());
        bytes.resize(4096, 0);
        bytes
    }

    fn read_bytes(bytes: &[u8], pid: Option<u32>) -> Result<String, LiveError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1");
        fs::write(&path, bytes).unwrap();
        read(&path, pid)
    }

    #[test]
    fn the_text_is_read_by_its_length() {
        assert_eq!(read_bytes(&live(4, 7, "{}"), Some(7)).unwrap(), "{}");
        assert_eq!(read_bytes(&live(4, 7, "{}"), None).unwrap(), "{}");
        assert!(matches!(
            read_bytes(&live(4, 7, "{}"), Some(8)),
            Err(LiveError::OtherProcess(7))
        ));
    }

    #[test]
    fn what_is_no_report_is_told_from_an_unfinished_one() {
        assert!(matches!(
            read_bytes(b"{\"caches\":[]}", None),
            Err(LiveError::Foreign)
        ));
        assert!(matches!(
            read_bytes(&[b'x'; 100], None),
            Err(LiveError::Foreign)
        ));
        assert!(matches!(read_bytes(&[0; 100], None), Err(LiveError::Empty)));
        assert!(matches!(
            read_bytes(&live(2, 7, ""), None),
            Err(LiveError::Empty)
        ));
        assert!(matches!(
            read_bytes(&live(3, 7, "{}"), None),
            Err(LiveError::Torn)
        ));
    }

    #[test]
    fn a_text_that_is_rewritten_all_the_time_is_never_mixed() {
        use std::os::unix::fs::FileExt;
        use std::sync::atomic::{AtomicBool, Ordering};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1");
        let texts = ["a", "b"].map(|letter| letter.repeat(3000));
        fs::write(&path, live(0, 7, &texts[0])).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let file = File::options().write(true).open(&path).unwrap();
                let mut sequence = 0_u32;
                while !stop.load(Ordering::Relaxed) {
                    for text in &texts {
                        file.write_all_at(&(sequence + 1).to_ne_bytes(), 8).unwrap();
                        file.write_all_at(text.as_bytes(), HEADER as u64).unwrap();
                        sequence += 2;
                        file.write_all_at(&sequence.to_ne_bytes(), 8).unwrap();
                        std::thread::sleep(Duration::from_micros(300));
                    }
                }
            });
            for _ in 0..200 {
                let text = read(&path, Some(7)).unwrap();
                assert!(texts.contains(&text));
            }
            stop.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn files_of_processes_that_are_gone_are_removed() {
        let (folder, processes) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for name in ["1", "2", "other"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        fs::create_dir(processes.path().join("2")).unwrap();
        sweep(folder.path(), processes.path());
        let left = |name: &str| folder.path().join(name).exists();
        assert_eq!((left("1"), left("2"), left("other")), (false, true, true));
    }

    #[test]
    fn a_process_has_started_in_the_past() {
        let started = started(std::process::id()).unwrap();
        let now = SystemTime::now();
        assert!(
            started < now + Duration::from_secs(2) && started + Duration::from_secs(86_400) > now
        );
    }
}
