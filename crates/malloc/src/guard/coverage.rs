//! Which call stacks are in the pool, roughly: counters by hashes of stacks.
//!
//! A pool that fills up with objects that live for ever would soon hold one kind only. When it is three quarters full, an allocation whose stack
//! is there already is let pass without a guard. Two stacks with one hash cost a sample, nothing else.

/// Counters; a power of two.
const COUNTERS: usize = 1024;
/// Frames of a stack that tell it from others.
const FRAMES: usize = 16;

/// The stacks of the objects in the pool.
#[derive(Debug)]
pub(super) struct Coverage {
    counts: [u16; COUNTERS],
}

/// What stands for a call stack here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StackHash(u32);

impl StackHash {
    pub(super) fn of(frames: &[usize]) -> Self {
        let hash = frames
            .iter()
            .take(FRAMES)
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, frame| {
                (hash ^ *frame as u64).wrapping_mul(0x0100_0000_01b3)
            });
        Self((hash >> 32) as u32 ^ hash as u32)
    }

    const fn place(self) -> usize {
        self.0 as usize % COUNTERS
    }
}

impl Coverage {
    pub(super) const fn new() -> Self {
        Self {
            counts: [0; COUNTERS],
        }
    }

    pub(super) fn add(&mut self, stack: StackHash) {
        self.counts[stack.place()] += 1;
    }

    pub(super) fn remove(&mut self, stack: StackHash) {
        self.counts[stack.place()] -= 1;
    }

    pub(super) fn has(&self, stack: StackHash) -> bool {
        self.counts[stack.place()] > 0
    }
}
