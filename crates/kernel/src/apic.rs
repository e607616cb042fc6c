//! The local interrupt controller of a CPU: interrupts to other CPUs, the timer.
//!
//! Registers as in Intel's manual, volume 3, chapter 11, at their address after reset.

use crate::direct;
use crate::interrupts::IrqGuard;
use crate::trap;
use x86_64::instructions::port::Port;

const BASE: u64 = 0xfee0_0000;

/// Offsets of registers in bytes.
const ID: u64 = 0x20;
const END_OF_INTERRUPT: u64 = 0xb0;
const SPURIOUS: u64 = 0xf0;
const COMMAND: u64 = 0x300;
const COMMAND_TO: u64 = 0x310;
const TIMER: u64 = 0x320;
const TIMER_START: u64 = 0x380;
const TIMER_NOW: u64 = 0x390;
const TIMER_DIVIDE: u64 = 0x3e0;

const ENABLED: u32 = 0x100;
const PERIODIC: u32 = 1 << 17;
const MASKED: u32 = 1 << 16;
const BY_16: u32 = 0b0011;
const PENDING: u32 = 1 << 12;
/// The level bit, which every command but a de-assertion has.
const ASSERT: u32 = 1 << 14;
const INIT: u32 = 0x500;
const START_UP: u32 = 0x600;

fn read(register: u64) -> u32 {
    // SAFETY: M1: the controller is mapped, uncached; reading these registers has no effect.
    unsafe {
        direct::pointer(BASE + register)
            .cast::<u32>()
            .read_volatile()
    }
}

fn write(register: u64, value: u32) {
    // SAFETY: M1: as above; what the callers write raises interrupts, which every CPU with open interrupts is ready for.
    unsafe {
        direct::pointer(BASE + register)
            .cast::<u32>()
            .write_volatile(value);
    }
}

/// The number of this CPU's controller.
pub(crate) fn id() -> u8 {
    (read(ID) >> 24) as u8
}

/// Lets this CPU's controller deliver interrupts.
pub(crate) fn enable() {
    write(SPURIOUS, ENABLED | u32::from(trap::SPURIOUS));
}

/// Silences the board's old interrupt controllers, whose vectors are those of exceptions as the firmware leaves them.
pub(crate) fn silence_board() {
    // SAFETY: the mask registers of the two controllers; what they would raise has no handler.
    unsafe {
        Port::<u8>::new(0x21).write(0xff);
        Port::<u8>::new(0xa1).write(0xff);
    }
}

/// Ends the interrupt that is being handled.
pub(crate) fn acknowledge() {
    write(END_OF_INTERRUPT, 0);
}

fn command(to: u8, what: u32) {
    // The two halves belong together.
    let _guard = IrqGuard::new();
    write(COMMAND_TO, u32::from(to) << 24);
    write(COMMAND, what);
    while read(COMMAND) & PENDING != 0 {
        core::hint::spin_loop();
    }
}

/// Raises interrupt `vector` on the CPU with controller `to`.
pub(crate) fn send(to: u8, vector: u8) {
    command(to, ASSERT | u32::from(vector));
}

/// Resets the CPU with controller `to`.
pub(crate) fn send_init(to: u8) {
    command(to, ASSERT | INIT);
}

/// Starts the CPU with controller `to`, after a reset, in real mode at `page * 4096`.
pub(crate) fn send_start_up(to: u8, page: u8) {
    command(to, ASSERT | START_UP | u32::from(page));
}

/// Begins to count down from the highest number, without interrupts.
pub(crate) fn begin_count() {
    write(TIMER_DIVIDE, BY_16);
    write(TIMER, MASKED);
    write(TIMER_START, u32::MAX);
}

/// How far the timer has counted since [`begin_count`].
pub(crate) fn counted() -> u32 {
    u32::MAX - read(TIMER_NOW)
}

/// Raises the timer interrupt on this CPU each `period` counts; never, if that is 0.
pub(crate) fn set_timer(period: u32) {
    write(TIMER_DIVIDE, BY_16);
    if period == 0 {
        write(TIMER, MASKED);
    } else {
        write(TIMER, PERIODIC | u32::from(trap::TIMER));
    }
    write(TIMER_START, period);
}
