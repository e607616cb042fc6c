//! Builds the image, boots it under QEMU on several machines and reads what it says on the serial port.

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
                "image",
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
struct Run {
    text: String,
    status: Option<i32>,
}

/// Boots the image with so many CPUs and MiB of memory and with these words; `None` if there is no QEMU.
fn boot(cpus: u32, mib: u32, words: &str) -> Option<Run> {
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
    fn number(&self, label: &str) -> u64 {
        let line = self.text.lines().find_map(|line| line.strip_prefix(label));
        let word = line.and_then(|rest| rest.split_whitespace().next());
        word.and_then(|word| word.parse().ok())
            .unwrap_or_else(|| panic!("no number behind {label:?}:\n{}", self.text))
    }

    fn assert_passed(&self, cpus: u32) {
        let text = &self.text;
        assert_eq!(self.status, Some(PASSED), "{text}");
        for line in [
            &format!("flagstone: {cpus} of {cpus} CPUs"),
            "all trials passed",
        ] {
            assert!(text.lines().any(|l| l == line), "no line {line:?}:\n{text}");
        }
        for trial in [
            "registers",
            "unit",
            "stepping",
            "sections",
            "churn",
            "handoff",
            "bulk",
            "lifecycle",
            "collections",
            "grace",
            "exhaustion",
        ] {
            assert!(
                text.contains(&format!("trial {trial}: passed")),
                "{trial}:\n{text}"
            );
        }
        let stale = self.number("stale translations before invalidation: ");
        assert!(
            cpus == 1 || stale > 0,
            "no CPU had a stale translation:\n{text}"
        );
        assert!(self.number("stepping: ") > 100, "{text}");
        assert!(self.number("ticks: ") > 100, "{text}");
        assert!(
            self.number("rewinds: ") > 0,
            "no section was sent back:\n{text}"
        );
        assert!(self.number("allocations in interrupts: ") > 100, "{text}");
        assert!(text.contains("slabinfo - version: 2.1"), "{text}");
        assert!(text.lines().any(|l| l.starts_with("kmalloc-64 ")), "{text}");
        assert!(
            text.lines().any(|l| l.starts_with("Node 0, zone    DMA32")),
            "{text}"
        );
        let free = self.number("frames back: ");
        assert!(
            text.contains(&format!("frames back: {free} of {free}\n")),
            "{text}"
        );
        println!("{text}");
    }
}

#[test]
fn four_cpus_allocate_under_interrupts() {
    if let Some(run) = boot(4, 256, "") {
        run.assert_passed(4);
    }
}

#[test]
fn one_cpu_is_enough() {
    if let Some(run) = boot(1, 64, "") {
        run.assert_passed(1);
    }
}

#[test]
fn objects_of_another_node_go_home() {
    if let Some(run) = boot(4, 256, "nodes=2") {
        run.assert_passed(4);
        assert!(run.text.contains(" pages on node 1"), "{}", run.text);
        assert!(run.number("slab_remote_free ") > 0, "{}", run.text);
    }
}

#[test]
fn five_levels_are_used_where_they_are_asked_for() {
    for cpus in [1, 2] {
        if let Some(run) = boot(cpus, 128, "levels=5") {
            run.assert_passed(cpus);
            assert!(run.text.contains("tables of 5 levels\n"), "{}", run.text);
        }
    }
}
