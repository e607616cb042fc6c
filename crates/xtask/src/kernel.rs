//! The kernel image under QEMU: its tests, and one run for a person to look at.

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use std::path::{Path, PathBuf};
use std::process::Command;

const QEMU: &str = "qemu-system-x86_64";
/// `isa-debug-exit` makes the image's 0x10 this exit status.
const PASSED: i32 = 0x10 << 1 | 1;

/// What is done with the image.
#[derive(Debug, Subcommand)]
pub(crate) enum Kernel {
    /// Boot the image on machines with 1, 2 and 4 CPUs and tables of 4 and 5 levels, and run its trials
    Test,
    /// Boot the image once and show what it says
    Run {
        /// CPUs of the machine
        #[arg(long, default_value_t = 2)]
        cpus: u32,
        /// Memory of the machine, in MiB
        #[arg(long, default_value_t = 256, value_name = "MIB")]
        memory: u32,
        /// Count guest instructions instead of time: one instruction takes one nanosecond
        #[arg(long)]
        icount: bool,
        /// Build it as benchmarks want it: without debug assertions
        #[arg(long)]
        release: bool,
        /// Words for the image: `levels=5`, `nodes=2`, `seed=7`, `trials=unit,grace`
        #[arg(value_name = "WORD")]
        words: Vec<String>,
    },
}

/// Does it.
///
/// # Errors
/// There is no QEMU, the image can not be built, or a trial failed.
pub(crate) fn run(root: &Path, what: &Kernel) -> Result<()> {
    if Command::new(QEMU).arg("--version").output().is_err() {
        bail!("{QEMU} is not installed (Debian: qemu-system-x86)");
    }
    match what {
        Kernel::Test => test(root),
        Kernel::Run {
            cpus,
            memory,
            icount,
            release,
            words,
        } => boot(
            &image(root, *release)?,
            *cpus,
            *memory,
            *icount,
            &words.join(" "),
        ),
    }
}

fn cargo(root: &Path) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root);
    cargo
}

/// The tests of the package: those that run in a process, and those that boot the image.
fn test(root: &Path) -> Result<()> {
    let status = cargo(root)
        .args(["test", "--package", "flagstone-kernel", "--all-targets"])
        .arg("--no-fail-fast")
        .status()?;
    if !status.success() {
        bail!("the kernel's tests failed");
    }
    Ok(())
}

/// Builds the image: with a panic strategy that the workspace's profiles do not have, so in a folder of its own.
fn image(root: &Path, release: bool) -> Result<PathBuf> {
    let (profile, folder) = if release {
        ("release", "release")
    } else {
        ("dev", "debug")
    };
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root.join("target"), PathBuf::from)
        .join("image");
    let status = cargo(root)
        .args(["build", "--quiet", "--package", "flagstone-kernel"])
        .args(["--features", "image", "--profile", profile])
        .arg("--target-dir")
        .arg(&target)
        .env("CARGO_PROFILE_DEV_PANIC", "abort")
        .env("CARGO_PROFILE_RELEASE_PANIC", "abort")
        .env("RUSTFLAGS", "")
        .status()?;
    if !status.success() {
        bail!("the image was not built");
    }
    Ok(target.join(folder).join("flagstone-kernel"))
}

/// Boots the image; its serial port is this program's output.
fn boot(image: &Path, cpus: u32, memory: u32, icount: bool, words: &str) -> Result<()> {
    let mut qemu = Command::new(QEMU);
    if icount {
        // One CPU after the other; string instructions are emulated element by element.
        qemu.args(["-accel", "tcg", "-cpu", "max,-erms"])
            .args(["-icount", "shift=0,sleep=off"]);
    } else {
        qemu.args(["-accel", "tcg,thread=multi", "-cpu", "max"]);
    }
    let status = qemu
        .args(["-smp", &cpus.to_string(), "-m", &memory.to_string()])
        .args(["-nodefaults", "-no-reboot", "-display", "none"])
        .args(["-serial", "stdio"])
        .args(["-device", "isa-debug-exit,iobase=0xf4,iosize=4"])
        .arg("-kernel")
        .arg(image)
        .args(["-append", words])
        .status()
        .context("QEMU can not be started")?;
    match status.code() {
        Some(PASSED) => Ok(()),
        Some(code) => bail!("the run failed: QEMU ended with status {code}"),
        None => bail!("QEMU was killed"),
    }
}
