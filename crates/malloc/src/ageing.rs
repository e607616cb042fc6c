//! Memory goes back to the system by age: what was idle for a while, without a thread of our own.
//!
//! [`tick`] is called from slow paths, and by a free whose thread slept since its last one (the kernel
//! tells by clearing a word of the thread's), so that a program of light activity, which never leaves the
//! fast paths otherwise, gives memory back too. A look at the clock is all that it does most of the time.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use flagstone_frames::ReleasePolicy;
use flagstone_host::{Clock, PageMap};
use flagstone_slab::Caches;
use flagstone_types::{Bytes, Nanos, Nid};

use crate::process::Process;

const MILLISECOND: u64 = 1_000_000;

/// How often something is looked after.
const STEP: Nanos = Nanos(250 * MILLISECOND);
/// Memory goes back that was free for at least so long.
const INTERVAL: Nanos = Nanos(1000 * MILLISECOND);
/// Steps between two rounds of the reaper.
const REAP_STEPS: u32 = 4;
/// Of those rounds, every so many empties the CPUs' arrays as well.
const ARRAY_ROUNDS: u32 = 4;
/// How many calls of the system one step may make.
const MOST_CALLS: usize = 32;

/// Free memory that stays at hand in bytes, at least and at most, as a share of the heap in between.
const KEEP: (usize, usize) = (4 << 20, 32 << 20);
const KEEP_SHARE: usize = 16;

static NEXT: AtomicU64 = AtomicU64::new(0);
static STEPS: AtomicU32 = AtomicU32::new(0);

/// Looks after ageing if it is time to.
#[inline]
pub(crate) fn tick(caches: &Caches<Process>) {
    let now = caches.host().now();
    crate::guard::tick(now);
    let next = NEXT.load(Ordering::Relaxed);
    if now.0 >= next
        && NEXT
            .compare_exchange(next, now.0 + STEP.0, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    {
        step(caches, now);
    }
}

#[cold]
#[inline(never)]
fn step(caches: &Caches<Process>, now: Nanos) {
    let step = STEPS.fetch_add(1, Ordering::Relaxed);
    if step % REAP_STEPS == REAP_STEPS - 1 {
        caches.reap((step / REAP_STEPS) % ARRAY_ROUNDS == ARRAY_ROUNDS - 1);
    }
    let policy = ReleasePolicy {
        keep: keep(caches) / Process::PAGE_SIZE,
        interval: INTERVAL,
        max_calls: MOST_CALLS,
    };
    caches.frames().release_idle(now, &policy);
    crate::live::publish(caches, now);
}

/// Bytes of free memory that stay at hand.
fn keep(caches: &Caches<Process>) -> usize {
    let host = caches.host();
    if let Some(Bytes(bytes)) = host.settings().retain {
        return bytes;
    }
    let nodes = flagstone_host::Cpus::nodes(&host);
    let heap: usize = (0..nodes as u16)
        .map(|nid| {
            let nid = Nid(nid);
            caches
                .frames()
                .managed_count(nid)
                .saturating_sub(caches.frames().free_count(nid))
        })
        .sum();
    (heap * Process::PAGE_SIZE / KEEP_SHARE).clamp(KEEP.0, KEEP.1)
}

/// Gives all free memory back at once but for `pad` bytes; whether any was given.
pub fn trim(caches: &Caches<Process>, pad: usize) -> bool {
    caches.shrink_all();
    caches.frames().release_now(pad / Process::PAGE_SIZE).pages > 0
}
