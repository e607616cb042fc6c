//! Per-CPU stacks of object pointers: the fast path of an object cache.
//!
//! The CPU is read inside the section that uses it, so a caller needs no guard
//! and may migrate at any moment. How a section is made indivisible is the
//! host's: restartable sequences, interrupt-restarted sections, an exchange
//! lock, a transaction id with double-width compare-exchange, or nothing at all
//! where there is one CPU and no preemption.

use core::mem::MaybeUninit;
use core::ptr::NonNull;
use flagstone_types::CpuId;

/// What an array is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrayParams {
    /// Slots per CPU. A limit can never be set above it.
    pub capacity: u32,
    /// Where in a free object a form that links objects may keep its link, in
    /// bytes from the object's start; a multiple of 8.
    pub link_offset: u32,
}

/// What became of a pushed pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Push {
    /// The stack holds `limit` pointers already, or is stopped; the pointer is still the caller's.
    Full = 0,
    /// The pointer is in the stack.
    Done = 1,
    /// The pointer is on top of the stack already: it was freed twice. Nothing has changed. Takes
    /// precedence over `Full` (A10).
    OnTop = 2,
}

/// A stack of pointers on each CPU.
///
/// # Safety
/// An implementation promises clauses A1 to A11 of `MODEL.md`, first of all:
/// - **A1** a pointer is handed out by `pop`/`pop_n`/`drain` exactly as often as it was
///   accepted by `push`/`push_n`;
/// - **A2** a section that is interrupted, migrated or stopped before its
///   commit has no effect;
/// - **A3** what a CPU wrote to an object before it pushed its pointer is seen by who pops it.
pub unsafe trait CpuCache: Send + Sync {
    /// Whether a pop may read the eight bytes at `link_offset` of an object that has left the stack already (A4). Pages of
    /// such a cache stay readable.
    const READS_STALE_LINKS: bool = false;

    /// Takes the pointer on top of the current CPU's stack; `None` if it is empty
    /// or stopped.
    fn pop(&self) -> Option<NonNull<u8>>;

    /// Puts a pointer on the current CPU's stack.
    ///
    /// # Safety
    /// The caller owns `object`; its eight bytes at `link_offset` are aligned and writable.
    unsafe fn push(&self, object: NonNull<u8>) -> Push;

    /// Takes up to `into.len()` pointers from the top of the current CPU's
    /// stack and returns how many; they fill `into` from its start, the deepest first.
    fn pop_n(&self, into: &mut [MaybeUninit<NonNull<u8>>]) -> usize;

    /// Puts as many of `objects` as there is room for, from its end, on the current CPU's
    /// stack, and returns how many it took: the last that many. The last one is on top.
    ///
    /// # Safety
    /// As for [`CpuCache::push`], for each.
    unsafe fn push_n(&self, objects: &[NonNull<u8>]) -> usize;

    /// Sets how many pointers `cpu`'s stack may hold for a push to succeed, at
    /// most the capacity. Binds sections that begin after it (A6). Pointers above a lowered limit stay until they are popped or drained.
    fn set_limit(&self, cpu: CpuId, limit: u32);

    /// The limit of `cpu`'s stack.
    fn limit(&self, cpu: CpuId) -> u32;

    /// How many pointers `cpu`'s stack holds; out of date at once.
    fn len(&self, cpu: CpuId) -> u32;

    /// A number that names this array among those of its host, never 0; the
    /// core hands it to [`PhysMem::tag`](crate::PhysMem::tag) for the pages whose objects belong here.
    fn tag(&self) -> u16;
}
