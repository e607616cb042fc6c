//! `flagstone sim conformance` as a user calls it.

use std::process::{Command, Output};

fn conformance(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_flagstone"))
        .args(["sim", "conformance"])
        .args(arguments)
        .output()
        .unwrap()
}

#[test]
fn every_format_has_a_row_that_fits_a_terminal() {
    let output = conformance(&["--arch", "all", "--seeds", "2"]);
    let text = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{text}\n{said}");
    for arch in flagstone_pgtable::format::Arch::ALL {
        let row = |line: &str| line.split_whitespace().next() == Some(arch.name());
        assert!(text.lines().any(row), "{arch}: {text}");
    }
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
}

#[test]
fn an_unknown_format_is_named() {
    let output = conformance(&["--arch", "vax", "--seeds", "1"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("vax"), "{said}");
}
