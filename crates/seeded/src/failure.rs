//! What went wrong in a run, with the seed that replays it.

use core::fmt;

/// The kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureKind {
    /// A task panicked.
    Panic,
    /// Every task that has not ended waits for a lock.
    Deadlock,
    /// A lock was taken out of order, taken twice, or released without being held.
    LockOrder,
    /// The rules of read-side sections and deferred calls were broken.
    Grace,
    /// Memory was used against the rules of commit, take and release.
    Memory,
    /// The run took more steps than allowed: tasks wait for something that does not come.
    StepLimit,
    /// A task ended while it held a lock, a read-side section or an interrupt block.
    Leftover,
    /// The host was asked for something that it can not mean, such as a CPU that does not exist.
    Usage,
    /// A rule of a larger machine around this one was broken ([`crate::Hooks::violate`]).
    Violation,
}

/// A failure of a run. Its text form names the seed and how to replay it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The seed of the machine.
    pub seed: u64,
    /// What kind of failure it is.
    pub kind: FailureKind,
    /// Who did what.
    pub text: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "SEED={:#018x} {:?}: {}\nreplay this seed alone with FLAGSTONE_SEED={:#x}",
            self.seed, self.kind, self.text, self.seed
        )
    }
}

impl core::error::Error for Failure {}
