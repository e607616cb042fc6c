//! Runs parts of the conformance suite on simulated machines, seed by seed, until something is found.
//!
//! ```text
//!   flagstone-mutants FIRST COUNT RUN…       RUN = WHAT@ARCH[/VARIANT][*CPUS]
//! ```
//!
//! `WHAT` is the name of a case, or of a mix of operations with a `:` behind it and how many each CPU does (`walkers:8`). `ARCH` is an
//! architecture, or `any`: then the seed chooses architecture and variant. Each seed does every run once. Before each, a line `at SEED RUN`
//! is printed, so that whoever started this knows where it was if it dies; what is found is printed as `found SEED RUN` and the text in one line.

use flagstone_conformance::Mix;
use flagstone_conformance::sim::{self, Setup, Variant};
use flagstone_pgtable::format::Arch;
use std::io::Write;
use std::process::ExitCode;

/// Every architecture that has a simulator.
const ARCHS: [Arch; 10] = [
    Arch::X86_64,
    Arch::X86_64La57,
    Arch::X86Pae,
    Arch::Arm64K4,
    Arch::Arm64K16,
    Arch::Arm64K64,
    Arch::Ppc64K4,
    Arch::Ppc64K64,
    Arch::Riscv64Sv39,
    Arch::Riscv64Sv48,
];

enum What {
    Case(String),
    Random(Mix, usize),
}

/// A part of the suite, and the machine that it runs on.
struct Run {
    text: String,
    what: What,
    /// None: the seed chooses.
    machine: Option<(Arch, Variant)>,
    cpus: usize,
}

impl Run {
    fn parse(text: &str) -> Option<Self> {
        let (what, machine) = text.split_once('@')?;
        let (machine, cpus) = match machine.split_once('*') {
            Some((machine, cpus)) => (machine, cpus.parse().ok()?),
            None => (machine, 4),
        };
        let (arch, variant) = machine.split_once('/').unwrap_or((machine, "usual"));
        let machine = match arch {
            "any" => None,
            name => {
                let arch = ARCHS.into_iter().find(|arch| arch.to_string() == name)?;
                Some((arch, Variant::named(variant)?))
            }
        };
        let what = match what.split_once(':') {
            None => {
                let known = flagstone_conformance::cases()
                    .iter()
                    .any(|case| case.name == what);
                if !known {
                    return None;
                }
                What::Case(what.to_owned())
            }
            Some((mix, each)) => What::Random(
                match mix {
                    "all" => Mix::All,
                    "walkers" => Mix::Walkers,
                    "bits" => Mix::Bits,
                    "pages" => Mix::Pages,
                    _ => return None,
                },
                each.parse().ok()?,
            ),
        };
        Some(Self {
            text: text.to_owned(),
            what,
            machine,
            cpus,
        })
    }

    fn setup(&self, seed: u64) -> Setup {
        let (arch, variant) = self.machine.unwrap_or_else(|| {
            let arch = ARCHS[(seed % 10) as usize];
            let wanted = Variant::ALL[(seed / 10 % 6) as usize];
            let exists = wanted.exists(arch);
            (arch, if exists { wanted } else { Variant::Usual })
        });
        Setup::new(arch, self.cpus, seed).variant(variant)
    }

    fn once(&self, seed: u64) -> Result<(), String> {
        let setup = self.setup(seed);
        let result = match &self.what {
            What::Case(name) => sim::case(&setup, name).map(|_| ()),
            What::Random(mix, each) => sim::random(&setup, *mix, *each).map(|_| ()),
        };
        result.map_err(|failed| failed.text)
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Vec<u64> = args.iter().take(2).filter_map(|a| a.parse().ok()).collect();
    let runs: Option<Vec<Run>> = args.iter().skip(2).map(|text| Run::parse(text)).collect();
    let ([first, count], Some(runs)) = (&numbers[..], runs) else {
        eprintln!("usage: flagstone-mutants FIRST COUNT WHAT@ARCH[/VARIANT][*CPUS]…");
        return ExitCode::from(2);
    };
    let mut out = std::io::stdout();
    for seed in *first..first + count {
        for run in &runs {
            // A closed pipe is no reason to stop.
            _ = writeln!(out, "at {seed} {}", run.text);
            if let Err(text) = run.once(seed) {
                let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
                _ = writeln!(out, "found {seed} {}\n{line}", run.text);
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
