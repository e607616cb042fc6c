//! Blocking interrupts by count (I2).

use core::arch::asm;
use core::marker::PhantomData;
use core::mem::offset_of;
use core::sync::atomic::Ordering;

use crate::per_cpu::Area;

/// Keeps this CPU's interrupts from running while it exists. Stays on its CPU.
#[derive(Debug)]
#[must_use]
pub struct IrqGuard<'a>(PhantomData<(&'a (), *const ())>);

impl IrqGuard<'_> {
    pub(crate) fn new() -> Self {
        block();
        Self(PhantomData)
    }
}

impl Drop for IrqGuard<'_> {
    fn drop(&mut self) {
        // SAFETY: I2: the guard blocked once.
        unsafe { unblock() };
    }
}

/// Blocks interrupts once more.
#[inline]
pub(crate) fn block() {
    // SAFETY: I2: counts up after `cli`; the counter is in the area (P1).
    unsafe {
        asm!(
            "cli",
            "inc dword ptr gs:[{depth}]",
            depth = const offset_of!(Area, irq_depth),
        );
    }
}

/// Takes one block away, and opens interrupts if it was the last.
///
/// # Safety
/// The caller blocked them, on this CPU, and has not taken it away yet.
#[inline]
pub(crate) unsafe fn unblock() {
    // SAFETY: I2: counts down before `sti`.
    unsafe {
        asm!(
            "dec dword ptr gs:[{depth}]",
            "jnz 2f",
            "sti",
            "2:",
            depth = const offset_of!(Area, irq_depth),
        );
    }
}

/// Stops this CPU until the next interrupt, unless `ready` says that there is work. An interrupt that comes after the look ends the
/// stop at once. Called with interrupts open.
pub(crate) fn idle_unless(ready: impl FnOnce() -> bool) {
    debug_assert!(are_open());
    // I2 holds where it matters: nothing of ours runs between here and the opening but `ready`.
    x86_64::instructions::interrupts::disable();
    if ready() {
        x86_64::instructions::interrupts::enable();
    } else {
        x86_64::instructions::interrupts::enable_and_hlt();
    }
}

/// Whether interrupts of this CPU can run.
pub(crate) fn are_open() -> bool {
    Area::current().irq_depth.load(Ordering::Relaxed) == 0
}

/// Whether this runs in an interrupt.
pub(crate) fn is_inside() -> bool {
    Area::current().interrupts.load(Ordering::Relaxed) != 0
}
