//! Time by two clocks at once: nanoseconds, and cycles of the time-stamp counter, which is what published tables count.
//!
//! The counter ticks at a constant rate, not at the rate the core happens to run at.

use std::ops::{Add, AddAssign};
use std::time::{Duration, Instant};

/// A moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    time: Instant,
    cycles: u64,
}

/// Time that has passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) time: Duration,
    pub(crate) cycles: u64,
}

fn cycles() -> u64 {
    // SAFETY: B6.
    unsafe { core::arch::x86_64::_rdtsc() }
}

impl Moment {
    pub(crate) fn now() -> Self {
        Self {
            time: Instant::now(),
            cycles: cycles(),
        }
    }

    pub(crate) fn elapsed(self) -> Span {
        Span {
            time: self.time.elapsed(),
            cycles: cycles().saturating_sub(self.cycles),
        }
    }
}

impl Span {
    /// Nanoseconds of one of so many operations.
    pub(crate) fn nanos_each(self, operations: f64) -> f64 {
        self.time.as_secs_f64() * 1e9 / operations
    }

    /// Cycles of one of so many operations.
    pub(crate) fn cycles_each(self, operations: f64) -> f64 {
        self.cycles as f64 / operations
    }
}

impl Add for Span {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            time: self.time + other.time,
            cycles: self.cycles + other.cycles,
        }
    }
}

impl AddAssign for Span {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_clocks_go_on_and_spans_add_up() {
        let start = Moment::now();
        std::thread::sleep(Duration::from_millis(2));
        let span = start.elapsed();
        assert!(span.time >= Duration::from_millis(2) && span.cycles > 0);
        let twice = span + span;
        assert!((twice.nanos_each(2.0) - span.nanos_each(1.0)).abs() < 1.0);
        assert!((twice.cycles_each(2.0) - span.cycles_each(1.0)).abs() < 1.0);
    }
}
