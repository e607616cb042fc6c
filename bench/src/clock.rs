//! Time in nanoseconds, and in cycles of the time-stamp counter, which is what published tables count.
//!
//! Where one thread works alone, the time is what the system gave that thread, in user and system mode: other programs that
//! had its CPU meanwhile are not in it. Where threads meet, waiting is part of the matter, and the time is that of the clock on the
//! wall. The counter ticks at a constant rate, not at the rate the core happens to run at.

use rustix::time::{ClockId, clock_gettime};
use std::ops::{Add, AddAssign};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Whose time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// Of this thread.
    Own,
    /// Of everybody.
    Wall,
}

impl Clock {
    /// Time since some moment.
    fn read(self) -> Duration {
        let id = match self {
            Self::Own => ClockId::ThreadCPUTime,
            Self::Wall => ClockId::Monotonic,
        };
        let now = clock_gettime(id);
        Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
    }

    pub(crate) fn start(self) -> Start {
        Start {
            clock: self,
            at: self.read(),
        }
    }
}

/// A moment by one of the clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    clock: Clock,
    at: Duration,
}

impl Start {
    pub(crate) fn elapsed(self) -> Span {
        Span {
            time: self.clock.read().saturating_sub(self.at),
        }
    }
}

/// Time that has passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) time: Duration,
}

impl Span {
    /// Nanoseconds of one of so many operations.
    pub(crate) fn nanos_each(self, operations: f64) -> f64 {
        self.time.as_secs_f64() * 1e9 / operations
    }

    /// Cycles of one of so many operations.
    pub(crate) fn cycles_each(self, operations: f64) -> f64 {
        self.nanos_each(operations) * cycles_per_nano()
    }
}

impl Add for Span {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            time: self.time + other.time,
        }
    }
}

impl AddAssign for Span {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

fn counter() -> u64 {
    // SAFETY: B6.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The rate of the time-stamp counter, found once.
fn cycles_per_nano() -> f64 {
    const LONG_ENOUGH: Duration = Duration::from_millis(5);
    static RATE: OnceLock<f64> = OnceLock::new();
    *RATE.get_or_init(|| {
        let (start, cycles) = (Instant::now(), counter());
        std::thread::sleep(LONG_ENOUGH);
        let (time, end) = (start.elapsed(), counter());
        end.wrapping_sub(cycles) as f64 / (time.as_secs_f64() * 1e9)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_sleeps_has_no_time_of_its_own() {
        let (own, wall) = (Clock::Own.start(), Clock::Wall.start());
        std::thread::sleep(Duration::from_millis(20));
        assert!(wall.elapsed().time >= Duration::from_millis(20));
        assert!(own.elapsed().time < Duration::from_millis(10));
    }

    #[test]
    fn spans_add_up_and_the_counter_runs_at_a_rate_of_this_world() {
        let span = Span {
            time: Duration::from_micros(3),
        };
        assert!(((span + span).nanos_each(2000.0) - 3.0).abs() < 1e-9);
        let cycles = span.cycles_each(3000.0);
        assert!(
            (0.3..10.0).contains(&cycles),
            "{cycles} cycles per nanosecond"
        );
    }
}
