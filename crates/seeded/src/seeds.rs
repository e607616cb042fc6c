//! Many seeds in one test, one seed in a replay.
//!
//! `FLAGSTONE_SEED` (decimal, or hexadecimal with `0x`) runs that seed alone; `FLAGSTONE_SEEDS` says how many
//! to run instead of the test's own number.

use crate::rng::Rng;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;

fn parse(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(parse(&text).unwrap_or_else(|| panic!("{name}={text}: not a number")))
}

/// Runs `test` with `default_count` seeds (or as the environment says) and prints how many seeds a second
/// it did. A seed whose test panics is printed with the way to replay it, and the panic goes on.
///
/// # Panics
/// If `test` does, or if one of the environment variables is not a number.
pub fn for_each_seed(default_count: u64, mut test: impl FnMut(u64)) {
    let one = variable("FLAGSTONE_SEED");
    let count = if one.is_some() {
        1
    } else {
        variable("FLAGSTONE_SEEDS").unwrap_or(default_count)
    };
    let seeds = Rng::new(0);
    let start = Instant::now();
    for _ in 0..count {
        let seed = one.unwrap_or_else(|| seeds.bits());
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| test(seed))) {
            eprintln!(
                "SEED={seed:#018x} failed; replay this seed alone with FLAGSTONE_SEED={seed:#x}"
            );
            resume_unwind(panic);
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    eprintln!(
        "{count} seeds in {seconds:.3} s: {:.0} seeds/s",
        count as f64 / seconds.max(1e-9)
    );
}

#[cfg(test)]
mod tests {
    #[test]
    fn numbers_are_decimal_or_hexadecimal() {
        assert_eq!(super::parse("0xfF"), Some(255));
        assert_eq!(super::parse("12"), Some(12));
        assert_eq!(super::parse("x"), None);
    }

    #[test]
    fn seeds_differ() {
        let mut seen = std::collections::HashSet::new();
        super::for_each_seed(50, |seed| assert!(seen.insert(seed)));
    }
}
