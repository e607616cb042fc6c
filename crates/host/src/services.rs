//! Small services of a host: time, random bytes, messages, call stacks.

use core::fmt;
use flagstone_types::Nanos;

/// Time.
pub trait Clock {
    /// Monotonic time since some moment before the start of the machine.
    fn now(&self) -> Nanos;
}

/// Random bytes.
pub trait Entropy {
    /// A random number. Early at start it may come from a weaker source (time, addresses),
    /// never from a constant.
    fn random(&self) -> u64;
}

/// How urgent a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Something is wrong in the program or in us.
    Error,
    /// Something is probably wrong.
    Warning,
    /// Worth knowing.
    Info,
}

/// Leveled messages.
pub trait Log {
    /// Writes one message; a line end is added. Does not allocate from the layers above.
    fn log(&self, level: Level, message: fmt::Arguments<'_>);
}

/// Call stacks.
pub trait Backtrace {
    /// Fills `into` with return addresses of the callers, innermost first, and returns how
    /// many. 0 where that can not be told.
    fn backtrace(&self, into: &mut [usize]) -> usize {
        let _ = into;
        0
    }
}
