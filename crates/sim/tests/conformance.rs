//! The conformance suite on simulated machines: every case on every architecture and on every special machine.

use flagstone_conformance::sim::{Setup, Variant, case};
use flagstone_conformance::{Outcome, cases};
use flagstone_pgtable::format::Arch;
use flagstone_sim::{Rng, for_each_seed};

/// Runs every case on the machines of an architecture.
fn suite(arch: Arch, seeds: u64) {
    for_each_seed(seeds, |seed| {
        let rng = Rng::new(seed);
        for variant in Variant::ALL.into_iter().filter(|v| v.exists(arch)) {
            for this in cases() {
                if only().is_some_and(|name| name != this.name) {
                    continue;
                }
                let cpus = rng.pick(&[1, 2, 4, 8]);
                let setup = Setup::new(arch, cpus, rng.bits()).variant(variant);
                match case(&setup, this.name) {
                    Ok(outcome) => assert!(outcome.is_some(), "{} is no case", this.name),
                    Err(failed) => panic!("{}: {failed}", this.name),
                }
            }
        }
    });
}

/// The only case to run, if one is named.
fn only() -> Option<String> {
    std::env::var("FLAGSTONE_CASE").ok()
}

macro_rules! suites {
    ($($name:ident: $arch:ident, $seeds:literal;)*) => {
        $(#[test]
        fn $name() {
            suite(Arch::$arch, $seeds);
        })*
    };
}

suites! {
    x86_64: X86_64, 3;
    x86_64_with_5_levels: X86_64La57, 2;
    x86_pae: X86Pae, 3;
    arm64_with_4k: Arm64K4, 2;
    arm64_with_16k: Arm64K16, 1;
    arm64_with_64k: Arm64K64, 1;
    ppc64_with_4k: Ppc64K4, 2;
    ppc64_with_64k: Ppc64K64, 3;
    riscv64_sv39: Riscv64Sv39, 2;
    riscv64_sv48: Riscv64Sv48, 2;
}

#[test]
fn a_machine_that_has_everything_skips_nothing_but_what_others_are() {
    let skipped: Vec<_> = cases()
        .iter()
        .filter(|this| {
            let setup = Setup::new(Arch::X86_64, 4, 1);
            matches!(case(&setup, this.name), Ok(Some(Outcome::Skipped(_))))
        })
        .map(|this| this.name)
        .collect();
    let others = [
        "five-levels",
        "halves",
        "break-before-make",
        "paravirtual",
        "stray-dirty",
    ];
    assert_eq!(skipped, others);
}
