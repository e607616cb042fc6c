//! `flagstone run`: becomes the program, with the shared library preloaded.
//!
//! Nothing of this process stays, so exit status, signals, standard streams and process id are the
//! program's own. Where reports of bugs are to be shown with functions and lines it stays, and ends as the program did (`supervise.rs`). The report of `--stats` is written by the library when the program ends.

use crate::args::RunOptions;
use crate::supervise::{self, Ending, Wishes};
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
    match start(options) {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            eprintln!("flagstone: {}", failure.message);
            ExitCode::from(failure.status)
        }
    }
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

fn start(options: &RunOptions) -> Result<u8, Failure> {
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
    let mut preload = of_program("LD_PRELOAD");
    if options.harden.as_deref().is_some_and(checks_copies) {
        let checks = library::unpack_one(&library::USERCOPY)
            .map_err(|error| Failure::own(format!("{error:#}")))?;
        preload = Some(library::preload_list(&checks, preload.as_deref()));
    }
    command.env(
        "LD_PRELOAD",
        library::preload_list(&library, preload.as_deref()),
    );
    if let Some(stats) = &options.stats {
        command.env("FLAGSTONE_STATS", stats_setting(stats)?);
    }
    let flags = flags(options);
    command.envs(
        flags
            .iter()
            .filter_map(|flag| Some((flag.variable, flag.value?))),
    );
    if of_program("FLAGSTONE_LIVE").is_none()
        && let Some(folder) = live::folder_for_programs()
    {
        command.env("FLAGSTONE_LIVE", folder);
    }
    let is_watched = options.reports
        || options.error_exit.is_some()
        || options.json_reports.is_some()
        || flags
            .iter()
            .any(|flag| flag.value.is_some() && flag.reports);
    let error = if is_watched {
        let wishes = Wishes {
            error_exit: options.error_exit,
            json: options.json_reports.as_deref(),
        };
        match supervise::supervise(&mut command, wishes) {
            Ok(Ending::Exit(status)) => return Ok(status),
            Ok(Ending::NotStarted(error)) => error,
            Err(error) => return Err(Failure::own(format!("{error:#}"))),
        }
    } else {
        command.exec()
    };
    Err(Failure {
        status: program::status_of(&error),
        message: format!("{}: {error}", name.display()),
    })
}

/// An option that becomes a setting of the library.
struct Flag<'a> {
    variable: &'static str,
    /// What was given; `None` if the option was not.
    value: Option<&'a OsStr>,
    /// Whether its reports are to be shown with functions and lines, by a process that stays.
    reports: bool,
}

impl<'a> Flag<'a> {
    fn new(variable: &'static str, value: &'a Option<OsString>, reports: bool) -> Self {
        Self {
            variable,
            value: value.as_deref(),
            reports,
        }
    }
}

/// Whether a value of `--harden` has the checks of copies, which are a library of their own.
fn checks_copies(value: &OsStr) -> bool {
    let mut names = value.as_bytes().split(|byte| *byte == b',');
    names.any(|name| name == b"1" || name == b"usercopy")
}

/// The options that become settings: a line for each.
fn flags(options: &RunOptions) -> Vec<Flag<'_>> {
    vec![
        Flag::new("FLAGSTONE_GUARD", &options.guard, false),
        Flag::new("FLAGSTONE_HARDEN", &options.harden, false),
        Flag::new("FLAGSTONE_DEBUG", &options.debug, true),
    ]
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
