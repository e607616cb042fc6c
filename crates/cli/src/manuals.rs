//! Shell completions and manual pages, made from the command line's definition.

use crate::args::Cli;
use anyhow::{Context, Result};
use clap::CommandFactory;
use std::io::{self, Write};
use std::path::Path;

/// Prints the completions for `shell`.
pub(crate) fn completions(shell: clap_complete::Shell) -> Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "flagstone", &mut text);
    io::stdout().write_all(&text)?;
    Ok(())
}

/// Writes `flagstone.1`, `flagstone-run.1`, … into `folder`; prints the first without one.
pub(crate) fn manual_pages(folder: Option<&Path>) -> Result<()> {
    match folder {
        Some(folder) => {
            std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
            clap_mangen::generate_to(Cli::command(), folder)
                .with_context(|| folder.display().to_string())
        }
        None => {
            let mut text = Vec::new();
            clap_mangen::Man::new(Cli::command()).render(&mut text)?;
            io::stdout().write_all(&text)?;
            Ok(())
        }
    }
}
