//! The chains of the depot: finding and inserting, over any words that can be read and published.
//!
//! It is generic so that the model checker runs this very code over its own atomics.

use core::num::NonZeroU32;

use crate::stack::Packed;

/// The first word of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// The next older record of the bucket, 0 if there is none.
    pub(super) next: u32,
    /// Sixteen bits of the hash that did not choose the bucket: most other stacks of the bucket are told apart by them.
    pub(super) check: u16,
    /// How many frames.
    pub(super) frames: u8,
    /// How many words of packed frames follow.
    pub(super) words: u8,
}

impl Head {
    pub(super) const fn to_word(self) -> u64 {
        self.next as u64
            | (self.check as u64) << 32
            | (self.frames as u64) << 48
            | (self.words as u64) << 56
    }

    pub(super) const fn from_word(word: u64) -> Self {
        Self {
            next: word as u32,
            check: (word >> 32) as u16,
            frames: (word >> 48) as u8,
            words: (word >> 56) as u8,
        }
    }
}

/// Buckets and words.
pub(super) trait Arena {
    /// How many buckets: a power of two.
    fn buckets(&self) -> u32;
    /// The newest record of a bucket, or 0. What was written before it was published is visible.
    fn newest(&self, bucket: u32) -> u32;
    /// Puts `record` in front of the bucket if `newest` still is, else says what is.
    fn publish(&self, bucket: u32, newest: u32, record: NonZeroU32) -> Result<(), u32>;
    /// So many words that nobody else gets (D3).
    fn reserve(&self, words: u32) -> Option<NonZeroU32>;
    /// A word of a published record, or of one reserved by the caller.
    fn read(&self, word: u32) -> u64;
    /// Writes a word of a record that the caller reserved and did not publish.
    fn write(&self, word: u32, value: u64);
}

/// What became of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inserted {
    /// It was there; `wasted` if a copy was written in vain.
    Found { record: NonZeroU32, wasted: bool },
    /// It is there now.
    New(NonZeroU32),
    /// There is no room.
    Full,
}

fn bucket_of(arena: &impl Arena, hash: u64) -> u32 {
    hash as u32 & (arena.buckets() - 1)
}

fn check_of(hash: u64) -> u16 {
    (hash >> 48) as u16
}

/// Looks for `stack` from the record `from` to the record `until`, which is left out.
fn find(arena: &impl Arena, stack: &Packed, mut from: u32, until: u32) -> Option<NonZeroU32> {
    let words = stack.words();
    while from != until {
        let record = NonZeroU32::new(from)?;
        let head = Head::from_word(arena.read(from));
        if head.check == check_of(stack.hash())
            && usize::from(head.frames) == stack.frames()
            && usize::from(head.words) == words.len()
            && words
                .iter()
                .zip(from + 1..)
                .all(|(word, at)| arena.read(at) == *word)
        {
            return Some(record);
        }
        from = head.next;
    }
    None
}

/// The record of `stack`, a new one if there is none.
pub(super) fn insert(arena: &impl Arena, stack: &Packed) -> Inserted {
    let bucket = bucket_of(arena, stack.hash());
    let mut newest = arena.newest(bucket);
    if let Some(record) = find(arena, stack, newest, 0) {
        return Inserted::Found {
            record,
            wasted: false,
        };
    }
    let words = stack.words();
    let Some(record) = arena.reserve(1 + words.len() as u32) else {
        return Inserted::Full;
    };
    for (word, at) in words.iter().zip(record.get() + 1..) {
        arena.write(at, *word);
    }
    loop {
        let head = Head {
            next: newest,
            check: check_of(stack.hash()),
            frames: stack.frames() as u8,
            words: words.len() as u8,
        };
        arena.write(record.get(), head.to_word());
        match arena.publish(bucket, newest, record) {
            Ok(()) => return Inserted::New(record),
            // Only what came in front since is new to us.
            Err(now) => {
                if let Some(record) = find(arena, stack, now, newest) {
                    return Inserted::Found {
                        record,
                        wasted: true,
                    };
                }
                newest = now;
            }
        }
    }
}

/// Whether `record` is in the chain of the bucket of `hash`.
pub(super) fn holds(arena: &impl Arena, hash: u64, record: NonZeroU32) -> bool {
    let mut at = arena.newest(bucket_of(arena, hash));
    while at != 0 {
        if at == record.get() {
            return true;
        }
        at = Head::from_word(arena.read(at)).next;
    }
    false
}
