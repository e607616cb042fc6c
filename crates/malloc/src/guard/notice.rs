//! What is reported about an object of the pool: the wording and order that readers of KFENCE's reports know.

use core::fmt;

use flagstone_types::Nanos;

use super::pool::{Slot, State, Trace, pattern};
use crate::spool::{self, Account, CallTrace, Frame, JsonString};

/// What went wrong.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cause {
    /// An access to the page before or behind an object's.
    OutOfBounds { address: usize, is_write: bool },
    /// An access to an object that was freed.
    UseAfterFree { address: usize, is_write: bool },
    /// An access to a page that no object was in, or whose object is no reason for a fault.
    Wild { address: usize, is_write: bool },
    /// Bytes beside an object were written to. The first of them, and what is there.
    Corruption {
        address: usize,
        bytes: [u8; 16],
        count: usize,
    },
    /// A pointer was freed that is no allocated object's.
    InvalidFree { address: usize },
}

/// One report: all that it says, by value, so that it is written with no lock held.
#[derive(Clone, Copy, Debug)]
pub(super) struct Notice {
    pub(super) number: u32,
    pub(super) slot: Slot,
    pub(super) cause: Cause,
    pub(super) now: Trace,
}

impl Notice {
    /// Sends it where reports go.
    pub(super) fn send(&self) {
        spool::send(self);
    }
}

impl Account for Notice {
    fn write_text(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        write!(out, "{self}")
    }

    fn write_json(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        write!(
            out,
            "{{\"bug\":\"KFENCE\",\"pid\":{},\"object\":\"{:#x}\",\"message\":{},\"stack\":",
            crate::report::pid(),
            self.slot.address,
            JsonString(self)
        )?;
        CallTrace(self.now.frames()).write_json(out)?;
        out.write_char('}')
    }
}

const RULE: &str = "==================================================================";

fn access(is_write: bool) -> (&'static str, &'static str) {
    if is_write {
        ("write", "Write")
    } else {
        ("read", "Read")
    }
}

struct Stack<'a>(&'a Trace);

impl fmt::Display for Stack<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.frames().is_empty() {
            return f.write_str(" (no call stack)\n");
        }
        self.0
            .frames()
            .iter()
            .try_for_each(|frame| writeln!(f, " {}", Frame(*frame)))
    }
}

/// Seconds with six decimals.
struct Seconds(Nanos);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.0 / 1000;
        write!(f, "{}.{:06}s", micros / 1_000_000, micros % 1_000_000)
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{RULE}")?;
        let place = self.now.frames().first().copied();
        let kind = match self.cause {
            Cause::OutOfBounds { is_write, .. } => ("out-of-bounds ", access(is_write).0),
            Cause::UseAfterFree { is_write, .. } => ("use-after-free ", access(is_write).0),
            Cause::Wild { is_write, .. } => ("invalid ", access(is_write).0),
            Cause::Corruption { .. } => ("memory corruption", ""),
            Cause::InvalidFree { .. } => ("invalid free", ""),
        };
        write!(f, "BUG: KFENCE: {}{}", kind.0, kind.1)?;
        match place {
            Some(frame) => writeln!(f, " in {}\n", Frame(frame))?,
            None => f.write_str("\n\n")?,
        }
        self.cause(f)?;
        write!(f, "{}", Stack(&self.now))?;
        self.object(f)?;
        writeln!(
            f,
            "\nCPU: {} PID: {} TID: {}",
            self.now.cpu,
            crate::report::pid(),
            self.now.thread
        )?;
        writeln!(f, "{RULE}")
    }
}

impl Notice {
    fn cause(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.number;
        match self.cause {
            Cause::OutOfBounds { address, is_write } => {
                let kind = access(is_write).0;
                let (distance, side) = if address < self.slot.address {
                    (self.slot.address - address, "left")
                } else {
                    (address - self.slot.address - self.slot.size, "right")
                };
                writeln!(
                    f,
                    "Out-of-bounds {kind} at {address:#018x} ({distance}B {side} of kfence-#{number}):"
                )
            }
            Cause::UseAfterFree { address, is_write } => writeln!(
                f,
                "Use-after-free {} at {address:#018x} (in kfence-#{number}):",
                access(is_write).0
            ),
            Cause::Wild { address, is_write } => {
                writeln!(f, "Invalid {} at {address:#018x}:", access(is_write).0)
            }
            Cause::Corruption {
                address,
                bytes,
                count,
            } => {
                write!(f, "Corrupted memory at {address:#018x} [ ")?;
                for (k, byte) in bytes[..count].iter().enumerate() {
                    if *byte == pattern(address + k) {
                        f.write_str(". ")?;
                    } else {
                        write!(f, "{byte:#04x} ")?;
                    }
                }
                writeln!(f, "] (in kfence-#{number}):")
            }
            Cause::InvalidFree { address } => {
                writeln!(f, "Invalid free of {address:#018x} (in kfence-#{number}):")
            }
        }
    }

    fn object(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slot = &self.slot;
        if slot.state == State::Unused {
            return writeln!(f, "\nkfence-#{} unused", self.number);
        }
        writeln!(
            f,
            "\nkfence-#{}: {:#018x}-{:#018x}, size={}, cache=malloc",
            self.number,
            slot.address,
            slot.address + slot.size.max(1) - 1,
            slot.size
        )?;
        self.track(f, "\nallocated", &slot.allocated)?;
        if slot.state == State::Freed {
            self.track(f, "\nfreed", &slot.freed)?;
        }
        Ok(())
    }

    fn track(&self, f: &mut fmt::Formatter<'_>, what: &str, trace: &Trace) -> fmt::Result {
        writeln!(
            f,
            "{what} by task {} on cpu {} at {}:",
            trace.thread,
            trace.cpu,
            Seconds(trace.when)
        )?;
        write!(f, "{}", Stack(trace))
    }
}
