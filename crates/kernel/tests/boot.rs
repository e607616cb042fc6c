//! Boots the image under QEMU on several machines: the allocators under load, with interrupts that allocate.

mod machine;

use machine::{Run, boot};

/// The trials of the allocators, all in one boot.
const TRIALS: [&str; 10] = [
    "registers",
    "stepping",
    "sections",
    "churn",
    "handoff",
    "bulk",
    "lifecycle",
    "collections",
    "grace",
    "exhaustion",
];

/// The word that chooses them.
fn words() -> String {
    format!("trials={}", TRIALS.join(","))
}

fn assert_passed(run: &Run, cpus: u32) {
    run.assert_passed(cpus, &TRIALS);
    let text = &run.text;
    assert!(run.number("stepping: ") > 100, "{text}");
    assert!(run.number("ticks: ") > 100, "{text}");
    assert!(
        run.number("rewinds: ") > 0,
        "no section was sent back:\n{text}"
    );
    assert!(run.number("allocations in interrupts: ") > 100, "{text}");
    assert!(text.contains("slabinfo - version: 2.1"), "{text}");
    assert!(text.lines().any(|l| l.starts_with("kmalloc-64 ")), "{text}");
    assert!(
        text.lines().any(|l| l.starts_with("Node 0, zone    DMA32")),
        "{text}"
    );
}

#[test]
fn four_cpus_allocate_under_interrupts() {
    if let Some(run) = boot(4, 256, &words()) {
        assert_passed(&run, 4);
    }
}

#[test]
fn one_cpu_is_enough() {
    if let Some(run) = boot(1, 64, &words()) {
        assert_passed(&run, 1);
    }
}

#[test]
fn objects_of_another_node_go_home() {
    if let Some(run) = boot(4, 256, &(words() + " nodes=2")) {
        assert_passed(&run, 4);
        assert!(run.text.contains(" pages on node 1"), "{}", run.text);
        assert!(run.number("slab_remote_free ") > 0, "{}", run.text);
    }
}
