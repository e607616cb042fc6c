//! Making every CPU pass a trap (B1, B2).

use core::sync::atomic::{AtomicU64, Ordering};

use crate::per_cpu::Area;
use crate::{apic, interrupts, trap};

/// The newest number that was drawn.
static DRAWN: AtomicU64 = AtomicU64::new(0);

/// Waits until every other running CPU has taken an interrupt that began after this call. Called with interrupts open.
pub(crate) fn wait() {
    assert!(
        interrupts::are_open(),
        "a barrier with interrupts blocked could wait for another one for ever"
    );
    let number = DRAWN.fetch_add(1, Ordering::SeqCst) + 1;
    for area in Area::others() {
        apic::send(area.apic_id, trap::BARRIER);
    }
    for area in Area::others() {
        while area.barrier.load(Ordering::Acquire) < number {
            core::hint::spin_loop();
        }
    }
}

/// The interrupt of a barrier, on the CPU that `area` belongs to.
pub(crate) fn pass(area: &Area) {
    area.barrier
        .store(DRAWN.load(Ordering::SeqCst), Ordering::Release);
}
