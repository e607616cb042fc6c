//! A measured child process: started, waited for, and asked what it used.

use anyhow::{Context, Result, bail};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// A child that runs.
#[derive(Debug)]
pub(super) struct Running {
    child: Child,
    started: Instant,
}

/// What a child used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage {
    pub(super) elapsed: Duration,
    /// Largest resident memory of the child or one of its own children, in KiB.
    pub(super) peak_kib: f64,
}

/// Starts `command`.
pub(super) fn start(mut command: Command) -> Result<Running> {
    // Until it executes the program, a child counts this process's memory as its own: all of it if made by vfork, only
    // its private memory, a few MiB, if made by fork. Anything to do between fork and exec makes it a fork.
    // SAFETY: P2.
    unsafe { command.pre_exec(|| Ok(())) };
    let started = Instant::now();
    let child = command
        .spawn()
        .with_context(|| command.get_program().display().to_string())?;
    Ok(Running { child, started })
}

impl Running {
    /// Whether the child still runs. Leaves it to be waited for.
    pub(super) fn is_running(&self) -> bool {
        let pid = rustix::process::Pid::from_child(&self.child);
        let options = rustix::process::WaitIdOptions::EXITED
            | rustix::process::WaitIdOptions::NOHANG
            | rustix::process::WaitIdOptions::NOWAIT;
        matches!(
            rustix::process::waitid(rustix::process::WaitId::Pid(pid), options),
            Ok(None)
        )
    }

    /// Kills the child, which did not become ready, and waits for it.
    pub(super) fn abandon(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits until the child ends.
    ///
    /// # Errors
    /// It did not end with status 0.
    pub(super) fn wait(self) -> Result<Usage> {
        let pid = i32::try_from(self.child.id())?;
        let (mut status, mut usage) = (0, MaybeUninit::<libc::rusage>::zeroed());
        loop {
            // SAFETY: P1. `self` is taken, so that nobody waits for the child again.
            let waited = unsafe { libc::wait4(pid, &mut status, 0, usage.as_mut_ptr()) };
            if waited == pid {
                break;
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error.into());
            }
        }
        let elapsed = self.started.elapsed();
        // SAFETY: P1. wait4 has filled it in, and zeros are a value as well.
        let usage = unsafe { usage.assume_init() };
        let status = ExitStatus::from_raw(status);
        if !status.success() {
            bail!("it ended with {status}");
        }
        Ok(Usage {
            elapsed,
            peak_kib: usage.ru_maxrss as f64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Running {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        start(command).unwrap()
    }

    #[test]
    fn the_peak_has_the_memory_of_children_of_the_child() {
        let usage =
            shell("sh -c 'x=$(head -c 40000000 /dev/zero | tr \"\\\\0\" x); exit 0'; exit 0")
                .wait()
                .unwrap();
        assert!(usage.peak_kib > 40e6 / 1024.0, "{usage:?}");
    }

    #[test]
    fn a_failure_is_reported_with_its_status() {
        assert!(
            shell("exit 3")
                .wait()
                .unwrap_err()
                .to_string()
                .contains('3')
        );
        assert!(
            shell("kill -9 $$")
                .wait()
                .unwrap_err()
                .to_string()
                .contains("signal")
        );
    }

    #[test]
    fn asking_whether_it_runs_leaves_it_to_be_waited_for() {
        let child = shell("exit 0");
        while child.is_running() {
            std::thread::sleep(Duration::from_millis(1));
        }
        child.wait().unwrap();
    }
}
