//! The gate: which allocation is sampled.
//!
//! When the interval is over, some slow path notices and *opens* the gate: the table in which fast paths look up the array of a size says
//! "none" for every size. So the next allocation, of whatever size and by whatever thread, comes to the slow path, and there closes the
//! gate again and is sampled. The fast path has no test, and is left at most once in an interval; which allocation it is depends on
//! when the interval ended, and on nothing in the heap.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use flagstone_types::Nanos;

use crate::heap;

/// Nothing is waited for (W5).
const CLOSED: u32 = 0;
/// Somebody clears or fills the table.
const TURNING: u32 = 1;
/// The next allocation is sampled.
const OPEN: u32 = 2;

static STATE: AtomicU32 = AtomicU32::new(CLOSED);
/// When the next sample is due, by the host's clock; the end of time while there is no sampling.
static DUE: AtomicU64 = AtomicU64::new(u64::MAX);
static INTERVAL: AtomicU64 = AtomicU64::new(u64::MAX);

/// Begins to sample, `interval` from one to the next.
pub(super) fn begin(interval: Nanos) {
    INTERVAL.store(interval.0, Ordering::Relaxed);
    DUE.store(0, Ordering::Relaxed);
}

/// Opens the gate if it is time to. Called from slow paths.
#[inline]
pub(crate) fn tick(now: Nanos) {
    let due = DUE.load(Ordering::Relaxed);
    if now.0 >= due {
        open(now, due);
    }
}

#[cold]
#[inline(never)]
fn open(now: Nanos, due: u64) {
    let next = now.0.saturating_add(INTERVAL.load(Ordering::Relaxed));
    if DUE
        .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
        .is_err()
        || crate::live::is_guard_off()
        || !turn(CLOSED)
    {
        return;
    }
    heap::withdraw_places();
    STATE.store(OPEN, Ordering::Release);
}

/// Takes the right to change the table (W5).
fn turn(from: u32) -> bool {
    STATE
        .compare_exchange(from, TURNING, Ordering::Acquire, Ordering::Relaxed)
        .is_ok()
}

/// Whether an allocation on the slow path should ask to be sampled.
#[inline]
pub(crate) fn is_armed() -> bool {
    STATE.load(Ordering::Relaxed) == OPEN
}

/// Closes the gate behind the one allocation that passes it: `true` for that one. With an interval of 0 the gate stays open.
pub(super) fn pass() -> bool {
    if INTERVAL.load(Ordering::Relaxed) == 0 && !crate::live::is_guard_off() {
        return is_armed();
    }
    if !turn(OPEN) {
        return false;
    }
    heap::restore_places();
    STATE.store(CLOSED, Ordering::Release);
    true
}

/// A thread that the child does not have may have held the right to turn.
pub(super) fn after_fork() {
    if STATE.load(Ordering::Relaxed) == TURNING {
        heap::restore_places();
        STATE.store(CLOSED, Ordering::Release);
    }
}
