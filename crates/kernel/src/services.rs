//! CPUs, counters and random bytes.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::clock;
use crate::interrupts::IrqGuard;
use crate::kernel::Kernel;
use crate::memory;
use crate::per_cpu::Area;
use flagstone_host::{Backtrace, Count, Cpus, Entropy, Event};
use flagstone_types::{CpuId, Nid};

impl Cpus for Kernel {
    type IrqGuard<'a> = IrqGuard<'a>;

    fn possible_cpus(&self) -> u32 {
        Area::count()
    }

    fn is_online(&self, cpu: CpuId) -> bool {
        Area::of(cpu).is_some_and(|area| area.online.load(Ordering::Acquire))
    }

    #[inline]
    fn current_cpu(&self) -> CpuId {
        Area::current().id
    }

    #[inline]
    fn nodes(&self) -> u32 {
        memory::nodes()
    }

    /// CPUs are dealt out to the nodes in turn.
    #[inline]
    fn node_of(&self, cpu: CpuId) -> Nid {
        Nid((cpu.0 % memory::nodes()) as u16)
    }

    fn distance(&self, from: Nid, to: Nid) -> u32 {
        if from == to { 10 } else { 20 }
    }

    fn irq_guard(&self) -> IrqGuard<'_> {
        IrqGuard::new()
    }

    fn relax(&self, _spins: u32) {
        core::hint::spin_loop();
    }
}

impl Count for Kernel {
    #[inline]
    fn count(&self, event: Event, n: u64) {
        Area::count_event(event, n);
    }

    fn counted(&self, event: Event) -> u64 {
        Area::all()
            .map(|area| area.counts[event.index()].load(Ordering::Relaxed))
            .sum()
    }
}

/// Steps of the generator; each caller takes one.
static STEPS: AtomicU64 = AtomicU64::new(0);

/// Makes random numbers follow from this one, which is not 0. Called by the first CPU before others run.
pub(crate) fn seed(seed: u64) {
    SEED.store(seed, Ordering::Relaxed);
}

/// What random numbers follow from; 0 for the hardware.
static SEED: AtomicU64 = AtomicU64::new(0);

impl Entropy for Kernel {
    /// The CPU's generator where it has one, mixed with the time-stamp counter; a sequence where a seed was given.
    fn random(&self) -> u64 {
        let step = STEPS.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let seed = SEED.load(Ordering::Relaxed);
        if seed != 0 {
            return mix(step ^ mix(seed));
        }
        let hardware = x86_64::instructions::random::RdRand::new()
            .and_then(x86_64::instructions::random::RdRand::get_u64)
            .unwrap_or(0);
        mix(step ^ clock::ticks() ^ hardware)
    }
}

/// Spreads every bit over all others.
pub(crate) const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Backtrace for Kernel {}
