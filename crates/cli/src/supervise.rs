//! A program run as a child, whose reports are shown as they come.
//!
//! The child gets a private folder for its reports (`FLAGSTONE_REPORTS`). This process reads them, tells their frames by function, file and line, and
//! ends as the child did: with its status, or by its signal. Signals that were sent to this process alone are handed on; those of
//! a terminal reach the child by themselves.

use crate::symbols::Symbolizer;
use anyhow::{Context, Result};
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

/// What a report in a text file begins with.
const RECORD: char = '\x1e';

/// The longest wait for a report or the child's end.
const PAUSE: Duration = Duration::from_millis(20);

/// What is to be done with reports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wishes<'a> {
    /// The exit status if there were any.
    pub(crate) error_exit: Option<u8>,
    /// A file to which each is appended as a line of JSON.
    pub(crate) json: Option<&'a Path>,
}

/// What became of the child.
pub(crate) enum Ending {
    /// It could not be started.
    NotStarted(std::io::Error),
    /// This process is to exit with this status.
    Exit(u8),
}

/// Runs the child to its end.
///
/// # Errors
/// There is no folder for reports, or no file for their JSON.
pub(crate) fn supervise(command: &mut Command, wishes: Wishes<'_>) -> Result<Ending> {
    let json = wishes
        .json
        .map(|path| {
            let file = File::options().append(true).create(true).open(path);
            file.with_context(|| path.display().to_string())
        })
        .transpose()?;
    let folder = tempfile::Builder::new()
        .prefix("flagstone-reports-")
        .tempdir()
        .context("a folder for reports")?;
    let format = if json.is_some() { "both" } else { "text" };
    command
        .env("FLAGSTONE_REPORTS", folder.path())
        .env("FLAGSTONE_REPORT_FORMAT", format);

    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Ok(Ending::NotStarted(error)),
    };
    hand_signals_on(child.id());
    let mut spool = Spool::new(folder.path(), json);
    let mut pause = Duration::from_millis(1);
    let status = loop {
        if let Some(status) = child.try_wait().context("waiting for the program")? {
            break status;
        }
        std::thread::sleep(pause);
        pause = if spool.show() {
            Duration::from_millis(1)
        } else {
            PAUSE.min(pause * 2)
        };
    };
    CHILD.store(0, Ordering::Relaxed);
    spool.show();
    spool.show_rest();
    Ok(Ending::Exit(match wishes.error_exit {
        Some(status) if spool.reports > 0 => status,
        _ => end_like(status),
    }))
}

/// The exit status of the child; ends this process by the signal that ended the child.
fn end_like(status: ExitStatus) -> u8 {
    if let Some(signal) = status.signal() {
        // The child has left a core if one was wanted.
        let none = rustix::process::Rlimit {
            current: Some(0),
            maximum: Some(0),
        };
        let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
        // SAFETY: S2, the default is the program's end.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
        // A signal that ends no process.
        return 128 + signal as u8;
    }
    status.code().unwrap_or_default() as u8
}

/// The child that signals are handed on to; 0 if there is none.
static CHILD: AtomicI32 = AtomicI32::new(0);

extern "C" fn hand_on(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let child = CHILD.load(Ordering::Relaxed);
    // SAFETY: S1, the kernel passes a record. What the kernel sends itself, as for a key of the terminal, has a positive code.
    if child > 0 && unsafe { (*info).si_code } <= 0 {
        // SAFETY: S1, kill is one of the functions that a handler may call.
        unsafe { libc::kill(child, signal) };
    }
}

fn hand_signals_on(child: u32) {
    CHILD.store(child as i32, Ordering::Relaxed);
    for signal in [
        libc::SIGHUP,
        libc::SIGINT,
        libc::SIGQUIT,
        libc::SIGTERM,
        libc::SIGUSR1,
        libc::SIGUSR2,
    ] {
        // SAFETY: S1, a structure of plain numbers, and a handler of the type that SA_SIGINFO asks for.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = hand_on as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}

/// The folder that reports arrive in.
struct Spool<'a> {
    folder: &'a Path,
    json: Option<File>,
    /// How far each file was read, and what was read but not shown yet.
    read: HashMap<PathBuf, (u64, Vec<u8>)>,
    symbolizer: Symbolizer,
    reports: usize,
}

impl<'a> Spool<'a> {
    fn new(folder: &'a Path, json: Option<File>) -> Self {
        Self {
            folder,
            json,
            read: HashMap::new(),
            symbolizer: Symbolizer::default(),
            reports: 0,
        }
    }

    /// Shows what has come since; returns whether anything has. Each report is written by one call and so is read whole, up to what its last line end is.
    fn show(&mut self) -> bool {
        let Ok(entries) = std::fs::read_dir(self.folder) else {
            return false;
        };
        let mut paths: Vec<_> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .collect();
        paths.sort();
        let mut is_any = false;
        for path in paths {
            let (at, pending) = self.read.entry(path.clone()).or_default();
            let before = *at;
            if let Ok(mut file) = File::open(&path)
                && file.seek(SeekFrom::Start(*at)).is_ok()
                && let Ok(length) = file.read_to_end(pending)
            {
                *at += length as u64;
            }
            is_any |= *at > before;
            if let Some(end) = pending.iter().rposition(|byte| *byte == b'\n') {
                let rest = pending.split_off(end + 1);
                let whole = std::mem::replace(pending, rest);
                self.print(&path, &whole);
            }
        }
        is_any
    }

    /// Shows what has no line end: a text that was cut.
    fn show_rest(&mut self) {
        for (path, (_, pending)) in std::mem::take(&mut self.read) {
            if !pending.is_empty() {
                self.print(&path, &pending);
            }
        }
    }

    fn print(&mut self, path: &Path, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        let mut out = String::new();
        let is_json = path.extension().is_some_and(|ending| ending == "json");
        for line in text.lines() {
            if is_json {
                if let Ok(mut report) = serde_json::from_str(line) {
                    self.symbolizer.json(&mut report);
                    out.push_str(&format!("{report}\n"));
                }
                continue;
            }
            self.reports += line.matches(RECORD).count();
            out.push_str(&self.symbolizer.line(&line.replace(RECORD, "")));
            out.push('\n');
        }
        // Nobody is left to be told that it can not be written.
        let _ = match &mut self.json {
            Some(file) if is_json => file.write_all(out.as_bytes()),
            _ => std::io::stderr().lock().write_all(out.as_bytes()),
        };
    }
}
