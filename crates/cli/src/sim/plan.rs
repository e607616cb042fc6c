//! Which machines to run on, what to run there, and the command that runs one of them again.

use crate::args::ConformanceOptions;
use anyhow::{Context, Result, bail};
use flagstone_conformance::sim::{Setup, Variant};
use flagstone_conformance::{Mix, cases};
use flagstone_pgtable::format::Arch;

/// Seeds that a named case is run with, at most: most cases do the same under each, in another order.
const CASE_SEEDS: u64 = 20;

/// A kind of machine.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) arch: Arch,
    pub(super) variant: Variant,
    pub(super) cpus: usize,
    /// Operations of each CPU.
    pub(super) ops: usize,
    /// The first seed.
    pub(super) seed: u64,
}

/// What is run on a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Operations drawn from the seed.
    Random(Mix),
    /// A named case.
    Case(&'static str),
}

const MIXES: [(&str, Mix); 4] = [
    ("all", Mix::All),
    ("walkers", Mix::Walkers),
    ("bits", Mix::Bits),
    ("pages", Mix::Pages),
];

impl Work {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Random(mix) => MIXES
                .iter()
                .find(|(_, other)| other == mix)
                .map_or("all", |(name, _)| name),
            Self::Case(name) => name,
        }
    }

    /// How many of `seeds` it is run with.
    pub(super) fn seeds(&self, seeds: u64) -> u64 {
        match self {
            Self::Random(_) => seeds,
            Self::Case(_) => seeds.min(CASE_SEEDS),
        }
    }
}

impl Plan {
    /// How a table calls it.
    pub(super) fn name(&self) -> String {
        match self.variant {
            Variant::Usual => self.arch.to_string(),
            other => format!("{} {}", self.arch, other.name()),
        }
    }

    /// The command that runs `work` under one seed.
    pub(super) fn command(&self, work: &Work, seed: u64) -> String {
        let what = match work {
            Work::Random(_) => format!("--ops {} --mix {}", self.ops, work.name()),
            Work::Case(name) => format!("--case {name}"),
        };
        let variant = match self.variant {
            Variant::Usual => String::new(),
            other => format!(" --variant {}", other.name()),
        };
        format!(
            "flagstone sim conformance --arch {}{variant} --cpus {} {what} --seed {seed:#x}",
            self.arch, self.cpus
        )
    }

    /// The machine of a seed.
    pub(super) fn setup(&self, work: &Work, seed: u64) -> Setup {
        let mut setup = Setup::new(self.arch, self.cpus, seed).variant(self.variant);
        setup.replay = Some(self.command(work, seed));
        setup
    }
}

/// Every machine that the options name.
pub(super) fn plans(options: &ConformanceOptions) -> Result<Vec<Plan>> {
    let mut arches = Vec::new();
    for name in &options.arch {
        if name == "all" {
            arches.extend(Arch::ALL);
        } else {
            arches.push(name.parse::<Arch>().with_context(|| format!("{name:?}"))?);
        }
    }
    let mut plans = Vec::new();
    for arch in arches {
        for name in &options.variant {
            let variants = match Variant::named(name) {
                Some(variant) => vec![variant],
                None if name == "all" => Variant::ALL.to_vec(),
                None => {
                    let known = Variant::ALL.map(Variant::name).join(", ");
                    bail!("{name}: no such variant; there are {known}, all");
                }
            };
            let all = name == "all";
            for variant in variants {
                if variant.exists(arch) {
                    plans.push(Plan {
                        arch,
                        variant,
                        cpus: options.cpus,
                        ops: options.ops,
                        seed: options.seed.unwrap_or(1),
                    });
                } else if !all && options.arch.len() == 1 && options.arch[0] != "all" {
                    bail!("there are no {} machines of {arch}", variant.name());
                }
            }
        }
    }
    if plans.is_empty() {
        bail!("there are no such machines");
    }
    Ok(plans)
}

/// Everything to run on each of them.
pub(super) fn works(options: &ConformanceOptions) -> Result<Vec<Work>> {
    let mut works = Vec::new();
    for name in &options.case {
        match cases().iter().find(|case| case.name == name) {
            Some(case) => works.push(Work::Case(case.name)),
            None if name == "all" => works.extend(cases().iter().map(|case| Work::Case(case.name))),
            None => bail!("{name}: no such case; `flagstone sim conformance --list` names them"),
        }
    }
    for name in &options.mix {
        match MIXES.iter().find(|(known, _)| known == name) {
            Some((_, mix)) => works.push(Work::Random(*mix)),
            None => bail!("{name}: no such mix; there are all, walkers, bits, pages"),
        }
    }
    if works.is_empty() {
        works.extend(cases().iter().map(|case| Work::Case(case.name)));
        works.extend(MIXES.map(|(_, mix)| Work::Random(mix)));
    }
    Ok(works)
}
