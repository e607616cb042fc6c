//! Call stacks, each stored once: a stack becomes a handle of 32 bits that an object's metadata have room for.
//!
//! ```text
//!   region │ buckets: u32 each │ records: words of 64 bits, filled from below ──▶ │ unused │
//!                │                  ▲
//!                └──── newest ──────┘ ─ next ─▶ older record of the bucket ─▶ 0
//! ```
//!
//! A record is never changed or removed once a bucket leads to it. Inserting takes no lock: a record is written where nobody else writes,
//! and put in front of its bucket by one compare-exchange. Who loses the race looks whether the winner stored the same stack, and if so
//! leaves its own copy unused. A depot that is full gives no handle, and counts.

mod chain;
#[cfg(test)]
mod orders;
mod region;
#[cfg(test)]
mod tests;

use core::num::NonZeroU32;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use flagstone_types::{AllocError, Bytes};

use crate::stack::{MAX_WORDS, Packed, Stack};
use chain::Inserted;
use region::Region;

/// A stack in the depot; the default is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Handle(pub u32);

impl Handle {
    /// No stack is known.
    pub const NONE: Self = Self(0);

    /// Whether no stack is known.
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// What a depot holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DepotStats {
    /// Different stacks stored.
    pub stacks: u64,
    /// Bytes that buckets and records take.
    pub used: Bytes,
    /// Bytes of the region.
    pub capacity: Bytes,
    /// Stacks that were given no handle because the depot was full.
    pub dropped: u64,
    /// Copies left unused because another context stored the same stack at the same time.
    pub wasted: u64,
}

/// Stores call stacks; see the module.
#[derive(Debug)]
pub struct StackDepot {
    region: Region,
    stacks: AtomicU64,
    dropped: AtomicU64,
    wasted: AtomicU64,
}

impl StackDepot {
    /// A depot in `bytes` bytes at `memory`, of which at most 32 GiB are used. A 64th of them is buckets; pages that no record reached are not touched.
    ///
    /// # Errors
    /// [`AllocError::InvalidArgument`] if `memory` is not a multiple of 8, or there is no room for one stack.
    ///
    /// # Safety
    /// The memory is zero, readable and writable, and nobody else's, for as long as the depot exists (D1).
    pub unsafe fn new(memory: NonNull<u8>, bytes: Bytes) -> Result<Self, AllocError> {
        Ok(Self {
            // SAFETY: D1, promised by the caller.
            region: unsafe { Region::new(memory, bytes)? },
            stacks: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            wasted: AtomicU64::new(0),
        })
    }

    /// The handle of the stack with these return addresses, innermost first; those beyond [`crate::MAX_FRAMES`] are left out. [`Handle::NONE`] if it is
    /// empty or there is no room for it. The same stack has the same handle. Works in any context.
    pub fn insert(&self, frames: &[usize]) -> Handle {
        if frames.is_empty() {
            return Handle::NONE;
        }
        match chain::insert(&self.region, &Packed::new(frames)) {
            Inserted::Found { record, wasted } => {
                if wasted {
                    self.wasted.fetch_add(1, Ordering::Relaxed);
                }
                Handle(record.get())
            }
            Inserted::New(record) => {
                self.stacks.fetch_add(1, Ordering::Relaxed);
                Handle(record.get())
            }
            Inserted::Full => {
                self.dropped.fetch_add(1, Ordering::Relaxed);
                Handle::NONE
            }
        }
    }

    /// The stack of a handle. Empty if it is none of this depot's (D4): a handle may have lain where a broken program wrote.
    #[must_use]
    pub fn get(&self, handle: Handle) -> Stack<'_> {
        let Some(record) = NonZeroU32::new(handle.0) else {
            return Stack::EMPTY;
        };
        let Some(head) = self.region.head_of(record) else {
            return Stack::EMPTY;
        };
        if head.frames == 0
            || head.frames as usize > crate::MAX_FRAMES
            || head.words as usize > MAX_WORDS
        {
            return Stack::EMPTY;
        }
        let Some(words) = self.region.words(record.get() + 1, u32::from(head.words)) else {
            return Stack::EMPTY;
        };
        let stack = Stack::packed(words, head.frames as usize);
        if chain::holds(&self.region, crate::stack::hash(stack), record) {
            stack
        } else {
            Stack::EMPTY
        }
    }

    /// What it holds. The numbers are read one after the other.
    #[must_use]
    pub fn stats(&self) -> DepotStats {
        DepotStats {
            stacks: self.stacks.load(Ordering::Relaxed),
            used: self.region.used(),
            capacity: self.region.capacity(),
            dropped: self.dropped.load(Ordering::Relaxed),
            wasted: self.wasted.load(Ordering::Relaxed),
        }
    }
}
