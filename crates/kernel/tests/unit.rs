//! Boots the image under QEMU to try the memory management unit and page tables on it: of 4 and of 5 levels, on 1, 2 and 4 CPUs.

mod machine;

use machine::{Run, boot};

/// The trials of the unit.
const TRIALS: [&str; 4] = ["places", "unit", "spaces", "kernel_map"];

/// Runs them on a machine; `None` if there is no QEMU.
fn tried(cpus: u32, levels: u32) -> Option<Run> {
    let words = format!("levels={levels} trials={}", TRIALS.join(","));
    let run = boot(cpus, 128, &words)?;
    run.assert_passed(cpus, &TRIALS);
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
    assert!(run.number("spaces: ") > 100, "{text}");
    Some(run)
}

/// Where the entry areas of a machine with two CPUs are.
fn places(words: &str) -> Option<Vec<u64>> {
    let run = boot(2, 64, &format!("trials=places {words}"))?;
    run.assert_passed(2, &["places"]);
    let places = run.text.lines().filter_map(|line| {
        let line = line.strip_prefix("entry area of CPU ")?;
        u64::from_str_radix(line.split_once(": 0x")?.1, 16).ok()
    });
    let places: Vec<_> = places.collect();
    assert_eq!(places.len(), 2, "{}", run.text);
    assert_ne!(places[0], places[1]);
    Some(places)
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

#[test]
fn entry_areas_are_elsewhere_at_each_boot_unless_a_seed_says_where() {
    let (Some(one), Some(other)) = (places(""), places("")) else {
        return;
    };
    assert!(one.iter().all(|place| !other.contains(place)));
    let seeded = places("seed=7");
    assert_eq!(seeded, places("seed=7"));
    assert_ne!(seeded, places("seed=8"));
}

#[test]
fn a_bad_access_is_reported_with_the_entry_at_every_level() {
    let Some(run) = boot(1, 64, "trials=bad_access") else {
        return;
    };
    run.assert_failed();
    let text = &run.text;
    assert!(
        text.contains("bad supervisor write access at address 0xfffffe8000000000"),
        "{text}"
    );
    assert!(text.contains("permissions violation"), "{text}");
    for level in ["pgd ", "pud ", "pmd ", "pte "] {
        assert!(
            text.lines().any(|l| l.starts_with(level)),
            "{level}:\n{text}"
        );
    }
}

#[test]
fn costs_are_said_as_lines_of_json() {
    let Some(run) = boot(1, 64, "trials=costs") else {
        return;
    };
    run.assert_passed(1, &["costs"]);
    let lines = run.text.lines().filter(|l| l.starts_with("{\"costs\""));
    assert_eq!(lines.count(), 12, "{}", run.text);
}

#[test]
fn the_conformance_suite_passes_on_the_real_unit() {
    for (cpus, levels) in [(1, 4), (2, 5), (4, 4)] {
        let words = format!("levels={levels} trials=conformance");
        let Some(run) = boot(cpus, 256, &words) else {
            return;
        };
        run.assert_passed(cpus, &["conformance"]);
        // What this unit does not have (halves, break-before-make, shadow stacks, …) is skipped with the reason.
        assert!(run.number("conformance: ") >= 24, "{}", run.text);
    }
}
