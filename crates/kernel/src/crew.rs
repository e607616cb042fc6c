//! Work for all CPUs at once: the first hands a function to every other, takes part itself, and waits for all.

use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::per_cpu::Area;
use crate::{apic, interrupts, trap};

/// What every CPU runs, with the CPU's number.
type Work = fn(usize);

static WORK: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());
static ROUND: AtomicU32 = AtomicU32::new(0);
static READY: AtomicU32 = AtomicU32::new(0);

/// How many CPUs take part.
pub(crate) fn size() -> usize {
    Area::others().count() + 1
}

/// Runs `work` on every CPU. Called by the first.
pub(crate) fn run(work: Work) {
    let others = size() as u32 - 1;
    READY.store(0, Ordering::Relaxed);
    WORK.store(work as *mut (), Ordering::Relaxed);
    ROUND.fetch_add(1, Ordering::SeqCst);
    for area in Area::others() {
        // Any interrupt wakes it.
        apic::send(area.apic_id, trap::BARRIER);
    }
    work(Area::current().id.index());
    while READY.load(Ordering::Acquire) != others {
        core::hint::spin_loop();
    }
}

/// The life of every other CPU.
pub(crate) fn work() -> ! {
    let mut seen = 0;
    loop {
        let round = ROUND.load(Ordering::SeqCst);
        if round == seen {
            interrupts::idle_unless(|| ROUND.load(Ordering::SeqCst) != seen);
            continue;
        }
        seen = round;
        // SAFETY: `run` stored a function of this type before it began the round.
        let work = unsafe { core::mem::transmute::<*mut (), Work>(WORK.load(Ordering::Relaxed)) };
        work(Area::current().id.index());
        READY.fetch_add(1, Ordering::Release);
    }
}
