//! One mutant: its runs, seed by seed, in a process of its own until something is found.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What was built.
#[derive(Debug)]
pub(crate) struct Binaries {
    pub(crate) runner: PathBuf,
    /// Test binaries, as `crate::binary`.
    pub(crate) tests: BTreeMap<String, PathBuf>,
}

/// A mutant, or none (number 0), and what is to find it.
#[derive(Clone, Debug)]
pub(crate) struct Trial {
    pub(crate) number: usize,
    pub(crate) name: String,
    pub(crate) runs: Vec<String>,
    pub(crate) seeds: u64,
}

/// What came of it.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// What was found, in one line.
    pub(crate) found: Option<String>,
    /// The run that found it.
    pub(crate) run: Option<String>,
    /// The number of the seed, or the seed itself, as it is to be given to who replays it.
    pub(crate) seed: Option<String>,
    /// How many seeds came before, where that is known.
    before: Option<u64>,
    pub(crate) time: Duration,
}

impl Outcome {
    pub(crate) fn is_found(&self) -> bool {
        self.found.is_some()
    }

    /// Which run found it, after how many seeds.
    pub(crate) fn place(&self) -> Option<(&str, Option<u64>)> {
        Some((self.run.as_deref()?, self.before))
    }

    pub(crate) fn line(&self) -> String {
        let time = self.time.as_secs_f64();
        match &self.found {
            Some(text) => {
                let seed = self.seed.as_deref().unwrap_or("?");
                let run = self.run.as_deref().unwrap_or("?");
                let short: String = text.chars().take(300).collect();
                format!("seed {seed} of {run}, {time:.1} s: {short}")
            }
            None => format!("nothing, {time:.1} s"),
        }
    }
}

/// How a process ended.
enum End {
    Well,
    Found,
    Died(String),
    Late,
}

fn finish(mut command: Command, limit: Duration) -> (End, String, String) {
    let spawned = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => return (End::Died(error.to_string()), String::new(), String::new()),
    };
    // Read beside it, so that it never waits for a full pipe. The runner says where it is before each seed: one that is slow is told from one that hangs.
    let start = Instant::now();
    let heard = Arc::new(AtomicU64::new(0));
    let read = |pipe: Option<Box<dyn Read + Send>>| {
        let heard = heard.clone();
        std::thread::spawn(move || {
            let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
            if let Some(mut pipe) = pipe {
                while let Ok(n @ 1..) = pipe.read(&mut piece) {
                    bytes.extend_from_slice(&piece[..n]);
                    heard.store(start.elapsed().as_millis() as u64, Ordering::Relaxed);
                }
            }
            String::from_utf8_lossy(&bytes).into_owned()
        })
    };
    let out = read(child.stdout.take().map(|pipe| Box::new(pipe) as _));
    let err = read(child.stderr.take().map(|pipe| Box::new(pipe) as _));
    let late = || {
        let heard = Duration::from_millis(heard.load(Ordering::Relaxed));
        start.elapsed().saturating_sub(heard) > limit
    };
    let end = loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => break End::Well,
            Ok(Some(status)) if status.code().is_some_and(|code| code == 1 || code == 101) => {
                break End::Found;
            }
            Ok(Some(status)) => break End::Died(status.to_string()),
            Ok(None) if late() => {
                _ = child.kill();
                _ = child.wait();
                break End::Late;
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(10)),
            Err(error) => break End::Died(error.to_string()),
        }
    };
    let text = |thread: std::thread::JoinHandle<String>| thread.join().unwrap_or_default();
    (end, text(out), text(err))
}

impl Trial {
    /// Runs it; a seed (of a test: all seeds) that does not end within `limit` has found it.
    pub(crate) fn run(&self, binaries: &Binaries, limit: Duration) -> Outcome {
        let start = Instant::now();
        let (tests, runs): (Vec<_>, Vec<_>) =
            self.runs.iter().partition(|run| run.starts_with("test "));
        let mut outcome = None;
        if !runs.is_empty() {
            outcome = self.suite(binaries, &runs, limit);
        }
        for test in tests {
            outcome = outcome.or_else(|| self.test(binaries, test, limit));
        }
        let mut outcome = outcome.unwrap_or(Outcome {
            found: None,
            run: None,
            seed: None,
            before: None,
            time: Duration::ZERO,
        });
        outcome.time = start.elapsed();
        outcome
    }

    fn suite(&self, binaries: &Binaries, runs: &[&String], limit: Duration) -> Option<Outcome> {
        let mut command = Command::new(&binaries.runner);
        command
            .args(["0", &self.seeds.to_string()])
            .args(runs)
            .env("FLAGSTONE_MUTANT", self.number.to_string());
        let (end, out, err) = finish(command, limit);
        // The last place that it was at, and what it found there.
        let place = out
            .lines()
            .rev()
            .find_map(|line| line.strip_prefix("at ")?.split_once(' '));
        let text = match end {
            End::Well => return None,
            End::Found => {
                let text = out.lines().last().unwrap_or_default();
                text.to_owned()
            }
            End::Died(how) => {
                let said = err.lines().last().unwrap_or_default();
                format!("the program died: {how} {said}")
            }
            End::Late => "deadlock or limit: the program did not end".into(),
        };
        Some(Outcome {
            found: Some(text),
            run: place.map(|(_, run)| run.to_owned()),
            seed: place.map(|(seed, _)| seed.to_owned()),
            before: place.and_then(|(seed, _)| seed.parse().ok()),
            time: Duration::ZERO,
        })
    }

    fn test(&self, binaries: &Binaries, run: &str, limit: Duration) -> Option<Outcome> {
        let path = run.trim_start_matches("test ");
        let (binary, name, file) = binaries.tests.iter().find_map(|(binary, file)| {
            let name = path.strip_prefix(binary.as_str())?.strip_prefix("::")?;
            Some((binary, name, file))
        })?;
        let mut command = Command::new(file);
        command
            .args([name, "--exact", "--test-threads", "1", "--nocapture"])
            .env("FLAGSTONE_MUTANT", self.number.to_string())
            .env("FLAGSTONE_SEEDS", self.seeds.to_string())
            .env("FLAGSTONE_SHUTTLE", self.seeds.to_string());
        let (end, _, err) = finish(command, limit);
        let panic = err
            .lines()
            .skip_while(|line| !line.contains("panicked at"))
            .nth(1)
            .unwrap_or_else(|| err.lines().last().unwrap_or_default());
        let seed = err
            .lines()
            .find_map(|line| line.strip_prefix("SEED="))
            .and_then(|line| line.split_whitespace().next());
        let text = match end {
            End::Well => return None,
            End::Found => panic.to_owned(),
            End::Died(how) => format!("the program died: {how} {panic}"),
            End::Late => "deadlock or limit: the test did not end".into(),
        };
        Some(Outcome {
            found: Some(text),
            run: Some(format!("test {binary}::{name}")),
            seed: seed.map(str::to_owned),
            before: None,
            time: Duration::ZERO,
        })
    }
}
