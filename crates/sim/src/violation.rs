//! What page-table code can do wrong, and how it is told.

use core::fmt;

/// A rule that was broken. `MODEL.md` has each as a clause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Rule {
    /// A frame went back to its allocator while a CPU could still use a translation of it (V1).
    FrameReachable,
    /// A page table was freed, or its frame is something else, while a CPU could still walk it (V2).
    TableReachable,
    /// After a settled change a CPU still grants more than the tables do (V3).
    NotSettled,
    /// A translation was used that an invalidation which has ended should have removed (V4).
    StaleUse,
    /// A plain store lost an accessed or dirty bit that the unit had set (V5).
    LostUpdate,
    /// A valid entry became another valid one without being invalid, and invalidated, in between (V6).
    BreakBeforeMake,
    /// An entry above the last level was written without the hypervisor (V7).
    PlainTableWrite,
    /// A table was made active without `fresh` although the unit has translations of another one, or stale ones, under its id (V8).
    AsidReuse,
    /// Who shoots has interrupts blocked, or whoever invalidates can be moved to another CPU meanwhile (V9).
    ShootBlocked,
    /// An entry names a table where there is no memory (V10).
    WildTable,
    /// Software reads or writes a word of a table in a frame that its allocator owns again (V11).
    FreedTable,
    /// A plain store replaces a leaf whose accessed or dirty bit a unit may set at that moment (V12).
    RacingStore,
    /// A shootdown leaves a CPU out that translated by the tables before they were changed (V13).
    CpuLeftOut,
    /// Software reads a table that may be freed beside it (V14).
    UnprotectedWalk,
}

/// A broken rule with its evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which rule.
    pub rule: Rule,
    /// Who, where, and the history of the entries that led there.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.text)
    }
}

impl core::error::Error for Violation {}

/// Boxed, because it is rare and large.
pub(crate) type Checked<T = ()> = Result<T, Box<Violation>>;

/// A violation as an error.
pub(crate) fn broken<T>(rule: Rule, text: String) -> Checked<T> {
    Err(Box::new(Violation { rule, text }))
}
