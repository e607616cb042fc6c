//! Random workloads of page-table operations on simulated machines, and how many schedules a second there are.
//!
//! The long form, for as many schedules as an hour gives:
//! `FLAGSTONE_SEEDS=1000000 cargo test --release -p flagstone-sim --test conformance_random -- --nocapture`.

use flagstone_conformance::sim::{Setup, Variant, random, run, shrink};
use flagstone_conformance::{Mix, Op};
use flagstone_pgtable::format::{Access, Arch};
use flagstone_sim::{Rng, for_each_seed};

/// Runs a workload; if it fails, says what is left of it when it is made small.
fn check(setup: &Setup, mix: Mix, each: usize) {
    let Err(failed) = random(setup, mix, each) else {
        return;
    };
    let shrunk = shrink(setup, mix, each, 300);
    panic!("{failed}\nmade small: {shrunk:#?}");
}

/// Walkers against collapse, retract, split, unmapping and freeing of tables on 8 CPUs, a few operations each.
fn walkers(arch: Arch, seeds: u64) {
    for_each_seed(seeds, |seed| {
        check(&Setup::new(arch, 8, seed), Mix::Walkers, 6);
    });
}

/// Everything, on up to 64 CPUs and on machines of every kind.
fn everything(arch: Arch, seeds: u64) {
    for_each_seed(seeds, |seed| {
        let rng = Rng::new(seed);
        let mix = rng.pick(&[Mix::All, Mix::Pages, Mix::Bits, Mix::Walkers]);
        let cpus = rng.pick(&[1, 2, 3, 4, 8, 8, 16, 64]);
        let there: Vec<_> = Variant::ALL
            .into_iter()
            .filter(|v| v.exists(arch))
            .collect();
        let setup = Setup::new(arch, cpus, seed).variant(rng.pick(&there));
        check(&setup, mix, if cpus > 8 { 4 } else { 12 });
    });
}

macro_rules! formats {
    ($($module:ident: $arch:ident, $walkers:literal, $everything:literal;)*) => {$(
        mod $module {
            #[test]
            fn walkers() {
                super::walkers(super::Arch::$arch, $walkers);
            }

            #[test]
            fn everything() {
                super::everything(super::Arch::$arch, $everything);
            }
        }
    )*};
}

formats! {
    x86_64: X86_64, 300, 100;
    x86_64_la57: X86_64La57, 100, 40;
    x86_pae: X86Pae, 150, 60;
    arm64_4k: Arm64K4, 150, 60;
    arm64_16k: Arm64K16, 30, 10;
    arm64_64k: Arm64K64, 15, 6;
    ppc64_4k: Ppc64K4, 100, 40;
    ppc64_64k: Ppc64K64, 200, 80;
    riscv64_sv39: Riscv64Sv39, 100, 40;
    riscv64_sv48: Riscv64Sv48, 100, 40;
}

#[test]
fn most_accesses_have_an_outcome_that_the_books_know() {
    let mut sum = flagstone_conformance::Tally::default();
    for_each_seed(50, |seed| {
        for mix in [Mix::All, Mix::Walkers, Mix::Bits, Mix::Pages] {
            let tally = random(&Setup::new(Arch::X86_64, 4, seed), mix, 12).unwrap();
            sum.ops += tally.ops;
            sum.allowed += tally.allowed;
            sum.refused += tally.refused;
            sum.exact += tally.exact;
        }
    });
    eprintln!("{sum:?}");
    assert!(sum.allowed * 4 > sum.refused, "{sum:?}");
    assert!(sum.exact * 2 > sum.allowed + sum.refused, "{sum:?}");
}

#[test]
fn a_seed_replays() {
    let setup = Setup::new(Arch::X86_64, 8, 77);
    let first = random(&setup, Mix::All, 12);
    assert_eq!(first, random(&setup, Mix::All, 12));
}

/// The same for the forms for one page.
#[test]
fn a_single_page_beside_a_collapse_is_unmapped_or_protected() {
    let write = Access::READ | Access::WRITE | Access::USER;
    let workload = [
        vec![Op::Fill(2, write), Op::Collapse(2, false)],
        vec![Op::Poll, Op::UnmapOne(6), Op::Read(6)],
        vec![Op::Poll, Op::ProtectOne(7, Access::READ), Op::Write(7)],
    ];
    for_each_seed(200, |seed| {
        let setup = Setup::new(Arch::Ppc64K64, 3, seed);
        if let Err(failed) = run(&setup, &workload) {
            panic!("{failed}");
        }
    });
}

/// While a leaf is split, and wherever an entry is broken for a moment, its place reads as nothing; an unmapping that believed it would leave the pages behind.
#[test]
fn an_unmapping_beside_a_split_leaves_nothing_behind() {
    let write = Access::READ | Access::WRITE | Access::USER;
    let workload = [
        vec![Op::MapHuge(2, write), Op::Split(2)],
        vec![Op::Poll, Op::UnmapRegion(2, true)],
        vec![Op::Read(6), Op::Retract(2), Op::Read(6)],
    ];
    for_each_seed(200, |seed| {
        let setup = Setup::new(Arch::X86_64, 3, seed);
        if let Err(failed) = run(&setup, &workload) {
            panic!("{failed}");
        }
    });
}
