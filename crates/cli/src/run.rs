//! `flagstone run`: becomes the program, with the shared library preloaded.
//!
//! Nothing of this process stays, so exit status, signals, standard streams and process id are the
//! program's own. The report of `--stats` is written by the library when the program ends.

use crate::args::RunOptions;
use crate::{library, live, program};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

/// `run` itself failed; the program was not looked at or not started.
const OWN_FAILURE: u8 = 125;

/// Becomes the program, or returns the exit status that says why not.
pub(crate) fn run(options: &RunOptions) -> ExitCode {
    let Err(failure) = start(options);
    eprintln!("flagstone: {}", failure.message);
    ExitCode::from(failure.status)
}

struct Failure {
    status: u8,
    message: String,
}

impl Failure {
    fn own(message: impl Into<String>) -> Self {
        Self {
            status: OWN_FAILURE,
            message: message.into(),
        }
    }
}

fn start(options: &RunOptions) -> Result<std::convert::Infallible, Failure> {
    let (name, arguments) = options
        .command
        .split_first()
        .expect("clap requires a program");
    let variables = options
        .variables
        .iter()
        .map(|text| variable(text))
        .collect::<Result<Vec<_>, _>>()?;
    let of_program = |wanted: &str| {
        let set = variables
            .iter()
            .rev()
            .find(|(name, _)| *name == wanted)
            .map(|(_, value)| value.to_os_string());
        set.or_else(|| std::env::var_os(wanted))
    };

    let path = program::find(name, of_program("PATH").as_deref())
        .and_then(|path| program::check(&path).map(|()| path))
        .map_err(|refusal| Failure {
            status: refusal.exit_status(),
            message: format!("{}: {refusal}", name.display()),
        })?;
    let library = library::unpack().map_err(|error| Failure::own(format!("{error:#}")))?;

    let mut command = Command::new(&path);
    command
        .arg0(name)
        .args(arguments)
        .envs(variables.iter().copied());
    command.env(
        "LD_PRELOAD",
        library::preload_list(&library, of_program("LD_PRELOAD").as_deref()),
    );
    if let Some(stats) = &options.stats {
        command.env("FLAGSTONE_STATS", stats_setting(stats)?);
    }
    if let Some(guard) = &options.guard {
        command.env("FLAGSTONE_GUARD", guard);
    }
    if of_program("FLAGSTONE_LIVE").is_none()
        && let Some(folder) = live::folder_for_programs()
    {
        command.env("FLAGSTONE_LIVE", folder);
    }
    let error = command.exec();
    Err(Failure {
        status: program::status_of(&error),
        message: format!("{}: {error}", name.display()),
    })
}

fn variable(text: &OsStr) -> Result<(&OsStr, &OsStr), Failure> {
    let bytes = text.as_bytes();
    match bytes.iter().position(|byte| *byte == b'=') {
        Some(at) if at > 0 => Ok((
            OsStr::from_bytes(&bytes[..at]),
            OsStr::from_bytes(&bytes[at + 1..]),
        )),
        _ => Err(Failure::own(format!(
            "--env {}: not of the form NAME=VALUE",
            text.display()
        ))),
    }
}

/// `text`, `json` or the absolute path of a file: the program may change its folder before it ends.
fn stats_setting(stats: &OsStr) -> Result<OsString, Failure> {
    if stats == "text" || stats == "json" {
        return Ok(stats.to_owned());
    }
    std::path::absolute(Path::new(stats))
        .map(OsString::from)
        .map_err(|error| Failure::own(format!("--stats={}: {error}", stats.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_split_at_the_first_equals_sign() {
        let split = |text: &'static str| variable(OsStr::new(text)).ok();
        assert_eq!(split("A=b=c"), Some((OsStr::new("A"), OsStr::new("b=c"))));
        assert_eq!(split("A="), Some((OsStr::new("A"), OsStr::new(""))));
        assert_eq!(split("A"), None);
        assert_eq!(split("=b"), None);
    }

    #[test]
    fn a_report_file_gets_an_absolute_path() {
        let setting = |text: &str| stats_setting(OsStr::new(text)).ok().unwrap();
        assert_eq!(setting("text"), "text");
        assert_eq!(setting("json"), "json");
        assert_eq!(setting("/a/b"), "/a/b");
        assert!(Path::new(&setting("b")).is_absolute());
    }
}
