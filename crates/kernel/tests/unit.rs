//! Boots the image under QEMU to try the memory management unit: tables of 4 and of 5 levels, on 1, 2 and 4 CPUs.

mod machine;

use machine::{Run, boot};

/// Runs the trials of the unit on a machine; `None` if there is no QEMU.
fn tried(cpus: u32, levels: u32) -> Option<Run> {
    let run = boot(cpus, 128, &format!("levels={levels} trials=unit"))?;
    run.assert_passed(cpus, &["unit"]);
    let text = &run.text;
    assert!(
        text.contains(&format!("tables of {levels} levels\n")),
        "{text}"
    );
    let stale = run.number("stale translations before invalidation: ");
    assert!(
        cpus == 1 || stale > 0,
        "no CPU had a stale translation, so that none could be missed:\n{text}"
    );
    Some(run)
}

#[test]
fn four_levels_on_one_two_and_four_cpus() {
    for cpus in [1, 2, 4] {
        tried(cpus, 4);
    }
}

#[test]
fn five_levels_on_one_two_and_four_cpus() {
    for cpus in [1, 2, 4] {
        tried(cpus, 5);
    }
}
