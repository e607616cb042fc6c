//! A program that starts, computes and ends: one command, one result.

use super::{Outcome, Program, child};
use crate::bench::contestants::Contestant;
use anyhow::{Context, Result};
use std::ffi::OsString;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The command and where its result is.
#[derive(Debug)]
pub(super) struct Whole {
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<OsString>,
    pub(super) variables: Vec<(&'static str, &'static str)>,
    pub(super) input: Option<PathBuf>,
    /// Where its standard output goes.
    pub(super) output: PathBuf,
    /// A file it writes; its standard output if there is none.
    pub(super) result: Option<PathBuf>,
}

impl Program for Whole {
    fn run(&self, contestant: &Contestant) -> Result<Outcome> {
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .envs(self.variables.iter().copied());
        command.stdin(match &self.input {
            Some(path) => {
                Stdio::from(File::open(path).with_context(|| path.display().to_string())?)
            }
            None => Stdio::null(),
        });
        command
            .stdout(File::create(&self.output).with_context(|| self.output.display().to_string())?);
        contestant.apply(&mut command);
        let usage = child::start(command)?.wait()?;
        let result = self.result.as_ref().unwrap_or(&self.output);
        let mut hasher = DefaultHasher::new();
        hasher.write(&fs::read(result).with_context(|| result.display().to_string())?);
        Ok(Outcome {
            seconds: usage.elapsed.as_secs_f64(),
            peak_kib: usage.peak_kib,
            digest: hasher.finish(),
        })
    }
}
