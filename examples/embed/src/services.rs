//! The small services: one CPU and one node, a clock that counts how often it was asked, random numbers from a generator, messages
//! to standard error, counters.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::Board;
use flagstone_host::{Backtrace, Clock, Count, Cpus, Entropy, Event, Level, Log};
use flagstone_types::{CpuId, Nanos, Nid};

impl Cpus for Board {
    type IrqGuard<'a> = ();

    fn possible_cpus(&self) -> u32 {
        1
    }

    fn is_online(&self, cpu: CpuId) -> bool {
        cpu == CpuId(0)
    }

    fn current_cpu(&self) -> CpuId {
        CpuId(0)
    }

    fn nodes(&self) -> u32 {
        1
    }

    fn node_of(&self, _cpu: CpuId) -> Nid {
        Nid(0)
    }

    fn distance(&self, _from: Nid, _to: Nid) -> u32 {
        10
    }

    fn irq_guard(&self) {}

    fn relax(&self, _spins: u32) {}
}

static TIME: AtomicU64 = AtomicU64::new(0);

impl Clock for Board {
    /// A real board reads a timer.
    fn now(&self) -> Nanos {
        Nanos(TIME.fetch_add(1000, Relaxed))
    }
}

static STEPS: AtomicU64 = AtomicU64::new(0);

impl Entropy for Board {
    /// A real board has a better source than the address that the program was loaded at.
    fn random(&self) -> u64 {
        let start = (&raw const STEPS).addr() as u64;
        let x = start ^ STEPS.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed);
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x ^ (x >> 31)
    }
}

impl Log for Board {
    fn log(&self, _level: Level, message: fmt::Arguments<'_>) {
        eprintln!("{message}");
    }
}

impl Backtrace for Board {}

static COUNTS: [AtomicU64; Event::COUNT] = [const { AtomicU64::new(0) }; Event::COUNT];

impl Count for Board {
    fn count(&self, event: Event, n: u64) {
        COUNTS[event.index()].fetch_add(n, Relaxed);
    }

    fn counted(&self, event: Event) -> u64 {
        COUNTS[event.index()].load(Relaxed)
    }
}
