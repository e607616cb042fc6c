//! The memory of a depot: buckets in front, words behind them.
//!
//! Words are counted from the start of the region, buckets included, so that no record has number 0. All are atomics: a handle that a broken program
//! wrote may name a word that is being written, and reading it must be harmless.

use core::num::NonZeroU32;
use core::ptr::NonNull;
use core::slice;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use flagstone_types::{AllocError, Bytes};

use super::chain::{Arena, Head};

const WORD: usize = size_of::<u64>();
/// Words of the region for each bucket: about what two records take.
const WORDS_PER_BUCKET: usize = 32;
/// Beyond that, more buckets make chains no shorter that are short already, and touch more pages.
const MAX_BUCKETS: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Region {
    memory: NonNull<u8>,
    buckets: u32,
    words: u32,
    /// The first word that nobody has.
    top: AtomicU32,
}

// SAFETY: D1: the memory is the depot's alone; it is reached through atomics only.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// # Safety
    /// D1.
    pub(super) unsafe fn new(memory: NonNull<u8>, bytes: Bytes) -> Result<Self, AllocError> {
        let words = (bytes.0 / WORD).min(u32::MAX as usize);
        if !memory.addr().get().is_multiple_of(WORD) || words < 4 {
            return Err(AllocError::InvalidArgument);
        }
        let wanted = (words / WORDS_PER_BUCKET).clamp(2, MAX_BUCKETS);
        let buckets = 1 << wanted.ilog2();
        Ok(Self {
            memory,
            buckets,
            words: words as u32,
            top: AtomicU32::new(buckets / 2),
        })
    }

    fn all_buckets(&self) -> &[AtomicU32] {
        // SAFETY: D1: the region begins with so many zeroed buckets, aligned, reached as atomics only.
        unsafe { slice::from_raw_parts(self.memory.cast().as_ptr(), self.buckets as usize) }
    }

    /// Words `[from, from + count)`, if they are all behind the buckets and below what was ever reserved.
    pub(super) fn words(&self, from: u32, count: u32) -> Option<&[AtomicU64]> {
        let end = from.checked_add(count)?;
        if from < self.buckets / 2 || end > self.top.load(Ordering::Relaxed) {
            return None;
        }
        // SAFETY: D1, D3: `top` never passes the end of the region; aligned, and reached as atomics only behind the buckets.
        Some(unsafe {
            slice::from_raw_parts(
                self.memory.cast::<AtomicU64>().as_ptr().add(from as usize),
                count as usize,
            )
        })
    }

    fn word(&self, at: u32) -> &AtomicU64 {
        debug_assert!(at >= self.buckets / 2 && at < self.words);
        // SAFETY: D1, D3: records are reserved behind the buckets and within the region, and links lead to records (D2).
        unsafe { self.memory.cast::<AtomicU64>().add(at as usize).as_ref() }
    }

    pub(super) fn head_of(&self, record: NonZeroU32) -> Option<Head> {
        let word = self.words(record.get(), 1)?.first()?;
        Some(Head::from_word(word.load(Ordering::Relaxed)))
    }

    pub(super) fn used(&self) -> Bytes {
        Bytes(self.top.load(Ordering::Relaxed) as usize * WORD)
    }

    pub(super) fn capacity(&self) -> Bytes {
        Bytes(self.words as usize * WORD)
    }
}

impl Arena for Region {
    fn buckets(&self) -> u32 {
        self.buckets
    }

    fn newest(&self, bucket: u32) -> u32 {
        self.all_buckets()[bucket as usize].load(Ordering::Acquire)
    }

    fn publish(&self, bucket: u32, newest: u32, record: NonZeroU32) -> Result<(), u32> {
        self.all_buckets()[bucket as usize]
            .compare_exchange(newest, record.get(), Ordering::Release, Ordering::Acquire)
            .map(|_| ())
    }

    fn reserve(&self, words: u32) -> Option<NonZeroU32> {
        let from = self
            .top
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |top| {
                top.checked_add(words).filter(|end| *end <= self.words)
            })
            .ok()?;
        NonZeroU32::new(from)
    }

    fn read(&self, word: u32) -> u64 {
        self.word(word).load(Ordering::Relaxed)
    }

    fn write(&self, word: u32, value: u64) {
        self.word(word).store(value, Ordering::Relaxed);
    }
}
