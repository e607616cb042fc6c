//! Time: the time-stamp counter, measured once against the interval timer of the board.

use core::arch::x86_64::_rdtsc;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::apic;
use crate::kernel::Kernel;
use flagstone_host::Clock;
use flagstone_types::Nanos;
use x86_64::instructions::port::Port;

/// Nanoseconds per tick of the counter, times 2^32.
static NANOS_PER_TICK: AtomicU64 = AtomicU64::new(0);
/// Counts of the local APIC's timer in a millisecond.
static COUNTS_PER_MILLI: AtomicU32 = AtomicU32::new(0);

/// How long is measured, in milliseconds.
const MEASURED: u64 = 10;
/// Ticks of the interval timer in a second.
const INTERVAL_HZ: u64 = 1_193_182;

/// Ticks since some moment.
pub(crate) fn ticks() -> u64 {
    // SAFETY: every CPU that runs 64-bit code has the counter.
    unsafe { _rdtsc() }
}

/// Measures both counters. Called by the first CPU while it is alone: waiting on a port keeps others of an emulator from running.
pub(crate) fn calibrate() {
    let mut control = Port::<u8>::new(0x61);
    let mut mode = Port::<u8>::new(0x43);
    let mut channel = Port::<u8>::new(0x42);
    let latch = (INTERVAL_HZ * MEASURED / 1000) as u16;
    // SAFETY: ports of the interval timer's channel 2, which only drives the loudspeaker: gate on, speaker off, one countdown
    // (mode 0), whose end shows in bit 5.
    let ticks = unsafe {
        let gate = control.read() & !0b11;
        control.write(gate);
        mode.write(0b1011_0000);
        channel.write(latch as u8);
        channel.write((latch >> 8) as u8);
        apic::begin_count();
        let start = ticks();
        control.write(gate | 1);
        while control.read() & 0x20 == 0 {}
        let end = ticks();
        control.write(gate);
        end - start
    };
    let counts = apic::counted() / MEASURED as u32;
    NANOS_PER_TICK.store(
        ((MEASURED * 1_000_000) << 32) / ticks.max(1),
        Ordering::Relaxed,
    );
    COUNTS_PER_MILLI.store(counts.max(1), Ordering::Relaxed);
}

/// Counts of the local APIC's timer in so many microseconds.
pub(crate) fn timer_counts(micros: u32) -> u32 {
    let counts = u64::from(COUNTS_PER_MILLI.load(Ordering::Relaxed)) * u64::from(micros) / 1000;
    counts.clamp(1, u64::from(u32::MAX)) as u32
}

/// Waits without interrupts.
pub(crate) fn pause(nanos: u64) {
    let start = Kernel.now();
    while Kernel.now().since(start).0 < nanos {
        core::hint::spin_loop();
    }
}

impl Clock for Kernel {
    fn now(&self) -> Nanos {
        let product = u128::from(ticks()) * u128::from(NANOS_PER_TICK.load(Ordering::Relaxed));
        Nanos((product >> 32) as u64)
    }
}
