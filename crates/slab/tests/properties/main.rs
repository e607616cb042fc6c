//! Random operations on random machines, compared with an independent record of who owns which bytes.
//!
//! One context runs here, so that every answer is known; `concurrency.rs` has the interleavings.

#[path = "../ledger/mod.rs"]
mod ledger;

mod operations;
mod world;

use flagstone_host::PageMap;
use flagstone_seeded::Machine;
use ledger::{Flavour, Ledger};
use operations::Op;
use proptest::prelude::*;
use std::sync::atomic::AtomicU32;
use world::World;

/// What a test machine is.
#[derive(Clone, Debug)]
struct Setup {
    seed: u64,
    cpus: usize,
    nodes: usize,
    pages: usize,
    form: usize,
    flavour: Flavour,
    random: bool,
    improvements: u8,
}

fn setup() -> impl Strategy<Value = Setup> {
    let cpus = prop_oneof![Just(1usize), Just(2), 1usize..9, Just(64)];
    let nodes = prop_oneof![2 => Just(1usize), 1 => Just(2), 1 => 1usize..9];
    (
        any::<u64>(),
        cpus,
        nodes,
        prop_oneof![Just(128usize), Just(320)],
        0usize..5,
        (0usize..4).prop_map(|n| Flavour::ALL[n]),
        prop::bool::weighted(0.25),
        any::<u8>(),
    )
        .prop_map(
            |(seed, cpus, nodes, pages, form, flavour, random, improvements)| Setup {
                seed,
                cpus,
                nodes,
                pages,
                form,
                flavour,
                random,
                improvements,
            },
        )
}

fn holds<const SHIFT: u32, const ORDER: u32>(setup: &Setup, ops: &[Op]) {
    let machine = flagstone_seeded::Builder::<SHIFT, ORDER>::new()
        .seed(setup.seed)
        .cpus(setup.cpus)
        .nodes(setup.nodes)
        .memory(setup.pages)
        .form(ledger::form(setup.form))
        .build();
    assert_eq!(<&Machine<SHIFT, ORDER> as PageMap>::PAGE_SHIFT, SHIFT);
    let caches = ledger::boot(&machine, setup.flavour.policy());
    let switches = caches.improvements();
    switches.set_random_freelist(setup.random);
    switches.set_lockless_look(setup.improvements & 1 == 0);
    switches.set_refill_first(setup.improvements & 2 == 0);
    switches.set_lockless_colour(setup.improvements & 4 == 0);
    switches.set_release_once(setup.improvements & 8 == 0);
    switches.set_cpu_slabs(setup.improvements & 0x30 == 0);
    let before = ledger::used_pages(caches);
    let mut world = World {
        machine: &machine,
        caches,
        made: Vec::new(),
        lumps: Vec::new(),
        ledger: Ledger::default(),
        turn: AtomicU32::new(0),
    };
    for op in ops {
        world.apply(op);
    }
    world.check();
    world.end();
    let exact = setup.flavour == Flavour::Unshared;
    ledger::expect_nothing_left(caches, before, exact, setup.random);
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(any::<Op>(), 1..250)
}

/// `PROPTEST_CASES` says how many.
fn config() -> ProptestConfig {
    let mut config = ProptestConfig::default();
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = 150;
    }
    config.failure_persistence = None;
    config
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn pages_of_4_kib(setup in setup(), ops in ops()) {
        holds::<12, 6>(&setup, &ops);
    }

    #[test]
    fn pages_of_16_kib(setup in setup(), ops in ops()) {
        holds::<14, 5>(&setup, &ops);
    }

    #[test]
    fn pages_of_64_kib(setup in setup(), ops in ops()) {
        holds::<16, 4>(&setup, &ops);
    }
}
