//! The image on a machine of QEMU: built once, booted, and what it says on the serial port.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError, mpsc};
use std::time::Duration;

const QEMU: &str = "qemu-system-x86_64";
/// `isa-debug-exit` makes the image's 0x10 this exit status.
const PASSED: i32 = 0x10 << 1 | 1;
/// A run takes a few seconds; a busy machine is slower.
const PATIENCE: Duration = Duration::from_secs(120);

/// Builds the image, which needs a panic strategy that the workspace's profiles do not have, in a target folder of its own.
fn image() -> &'static Path {
    static IMAGE: OnceLock<PathBuf> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("image");
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo
            .args([
                "build",
                "--quiet",
                "--package",
                "flagstone-kernel",
                "--features",
                "conformance",
            ])
            .arg("--target-dir")
            .arg(&target)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env("CARGO_PROFILE_DEV_PANIC", "abort")
            // What instruments or wraps the build of tests has no place in an image without a C library.
            .env("RUSTFLAGS", "")
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .env_remove("CARGO_BUILD_TARGET")
            .env_remove("RUSTC_WORKSPACE_WRAPPER");
        let status = cargo.status().expect("cargo can be started");
        assert!(status.success(), "the image was not built: {status}");
        target.join("debug/flagstone-kernel")
    })
}

/// What a run said, and how it ended.
pub(crate) struct Run {
    pub(crate) text: String,
    status: Option<i32>,
}

/// Boots the image with so many CPUs and MiB of memory and with these words; `None` if there is no QEMU.
pub(crate) fn boot(cpus: u32, mib: u32, words: &str) -> Option<Run> {
    if Command::new(QEMU).arg("--version").output().is_err() {
        eprintln!("skipped: {QEMU} is not installed");
        return None;
    }
    let image = image();
    // One machine at a time: simulated CPUs that wait for each other are slow when they share few real ones.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut qemu = Command::new(QEMU)
        .args(["-accel", "tcg,thread=multi", "-cpu", "max"])
        .args(["-smp", &cpus.to_string(), "-m", &mib.to_string()])
        .args([
            "-nodefaults",
            "-no-reboot",
            "-display",
            "none",
            "-serial",
            "stdio",
        ])
        .args(["-device", "isa-debug-exit,iobase=0xf4,iosize=4"])
        .arg("-kernel")
        .arg(image)
        .args(["-append", words])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("QEMU can be started");
    let mut serial = qemu.stdout.take().expect("a pipe");
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = serial.read_to_end(&mut bytes);
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    let text = receiver.recv_timeout(PATIENCE).unwrap_or_else(|_| {
        let _ = qemu.kill();
        let text = receiver.recv().unwrap_or_default();
        panic!("no end after {PATIENCE:?}:\n{text}");
    });
    let status = qemu.wait().expect("QEMU ends").code();
    Some(Run { text, status })
}

impl Run {
    /// The number behind `label`.
    pub(crate) fn number(&self, label: &str) -> u64 {
        let line = self.text.lines().find_map(|line| line.strip_prefix(label));
        let word = line.and_then(|rest| rest.split_whitespace().next());
        word.and_then(|word| word.parse().ok())
            .unwrap_or_else(|| panic!("no number behind {label:?}:\n{}", self.text))
    }

    /// That the image itself said that something is wrong.
    #[allow(dead_code, reason = "one of the programs boots nothing that fails")]
    pub(crate) fn assert_failed(&self) {
        assert_eq!(self.status, Some(PASSED + 2), "{}", self.text);
    }

    /// That all CPUs came up, these trials ran and nothing was wrong, and every frame came back.
    pub(crate) fn assert_passed(&self, cpus: u32, trials: &[&str]) {
        let text = &self.text;
        assert_eq!(self.status, Some(PASSED), "{text}");
        for line in [
            &format!("flagstone: {cpus} of {cpus} CPUs"),
            "all trials passed",
        ] {
            assert!(text.lines().any(|l| l == line), "no line {line:?}:\n{text}");
        }
        for trial in trials {
            assert!(
                text.contains(&format!("trial {trial}: passed")),
                "{trial}:\n{text}"
            );
        }
        let free = self.number("frames back: ");
        assert!(
            text.contains(&format!("frames back: {free} of {free}\n")),
            "{text}"
        );
        println!("{text}");
    }
}
