//! The serial port, where all messages go, and the end of a run.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, Ordering};

use crate::interrupts::IrqGuard;
use crate::kernel::Kernel;
use flagstone_host::{Level, Log};
use x86_64::instructions::port::Port;

const DATA: u16 = 0x3f8;
const STATUS: u16 = DATA + 5;
const READY: u8 = 0x20;

/// Set while somebody writes (R1).
static BUSY: AtomicBool = AtomicBool::new(false);

struct Wire;

impl Write for Wire {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            // SAFETY: ports of the serial line only.
            unsafe {
                while Port::<u8>::new(STATUS).read() & READY == 0 {}
                Port::new(DATA).write(byte);
            }
        }
        Ok(())
    }
}

/// Sets the line up: no interrupts, eight bits.
pub(crate) fn begin() {
    // SAFETY: ports of the serial line only.
    unsafe {
        Port::<u8>::new(DATA + 1).write(0);
        Port::<u8>::new(DATA + 3).write(3);
        Port::<u8>::new(DATA + 4).write(3);
    }
}

/// Writes one line, without those of other CPUs in between.
pub(crate) fn line(message: fmt::Arguments<'_>) {
    let _guard = IrqGuard::new();
    while BUSY.swap(true, Ordering::Acquire) {
        core::hint::spin_loop();
    }
    let _ = writeln!(Wire, "{message}");
    BUSY.store(false, Ordering::Release);
}

/// Writes one line whatever is going on: for a CPU that is about to end the run, or is not set up.
pub(crate) fn last_line(message: fmt::Arguments<'_>) {
    let _ = writeln!(Wire, "{message}");
}

impl Log for Kernel {
    fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        let level = match level {
            Level::Error => "error",
            Level::Warning => "warning",
            Level::Info => "info",
        };
        line(format_args!("{level}: {message}"));
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Outcome {
    Passed = 0x10,
    Failed = 0x11,
}

/// Ends the run: QEMU's `isa-debug-exit` at port 0xf4 makes the outcome `n` the exit status `2 n + 1`. Stops this CPU where
/// there is no such device.
pub(crate) fn exit(outcome: Outcome) -> ! {
    // SAFETY: a port of that device, or of none.
    unsafe { Port::new(0xf4).write(outcome as u32) };
    loop {
        x86_64::instructions::interrupts::disable();
        x86_64::instructions::hlt();
    }
}
