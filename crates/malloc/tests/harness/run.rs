//! Runs a program under the library, in a process group of its own so that nothing it started outlives it.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::{Library, Mode};

/// A program about to run.
#[derive(Debug)]
pub(crate) struct Run {
    command: Command,
    limit: Duration,
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It exited with this status.
    Exited(i32),
    /// It died of this signal.
    Killed(i32),
    /// It was still running at its time limit.
    TimedOut,
}

/// A program that has ended, with what it printed.
#[derive(Clone, Debug)]
pub(crate) struct Finished {
    pub(crate) ending: Ending,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Finished {
    /// The ending and what was printed, for a failure message.
    pub(crate) fn describe(&self) -> String {
        format!(
            "{:?}\nstdout: {}\nstderr: {}",
            self.ending,
            last_part(&self.stdout),
            last_part(&self.stderr)
        )
    }
}

impl Run {
    /// A run of `program` on `library`, without any `FLAGSTONE_*` setting of the caller.
    pub(crate) fn new(program: impl AsRef<OsStr>, library: &Library, mode: Mode) -> Self {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("FLAGSTONE_") {
                command.env_remove(name);
            }
        }
        if let Some(path) = library.path() {
            command
                .env("LD_PRELOAD", path)
                .env("EXPECTED_LIBRARY", path);
        }
        command.envs(mode.variables.iter().copied());
        Self {
            command,
            limit: Duration::from_secs(60),
        }
    }

    pub(crate) fn argument(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    pub(crate) fn variable(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn folder(mut self, folder: &Path) -> Self {
        self.command.current_dir(folder);
        self
    }

    pub(crate) fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Runs to the end or to the time limit; fails only if the program cannot be started.
    pub(crate) fn finish(mut self) -> Result<Finished, String> {
        let mut child = self
            .command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|error| format!("{}: {error}", self.command.get_program().display()))?;
        let group = Pid::from_child(&child);
        let stdout = collect(child.stdout.take());
        let stderr = collect(child.stderr.take());
        let status = wait(&mut child, self.limit)?;
        // Also after a good end: a process left behind would hold the pipes open. An error means that none is left.
        let _ = kill_process_group(group, Signal::KILL);
        let ending = match status {
            Some(status) => ending_of(status),
            None => {
                child.wait().map_err(|error| error.to_string())?;
                Ending::TimedOut
            }
        };
        Ok(Finished {
            ending,
            stdout: stdout.join().map_err(|_| "reading stdout failed")?,
            stderr: stderr.join().map_err(|_| "reading stderr failed")?,
        })
    }
}

/// Waits for the child alone; `None` at the time limit.
fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>, String> {
    let end = Instant::now() + limit;
    let mut pause = Duration::from_micros(500);
    loop {
        if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
            return Ok(Some(status));
        }
        if Instant::now() >= end {
            return Ok(None);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

fn collect(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // What was read before an error is kept and shown.
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn ending_of(status: ExitStatus) -> Ending {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ending::Exited(code),
        (None, signal) => Ending::Killed(signal.unwrap_or(0)),
    }
}

fn last_part(text: &str) -> &str {
    let start = text.len().saturating_sub(3000);
    let start = (start..=text.len())
        .find(|&at| text.is_char_boundary(at))
        .unwrap_or(text.len());
    &text[start..]
}
