//! Secret words in objects: behind what was asked for while an object is live, at both ends while it is free.
//!
//! ```text
//!   fresh  │ zero │ …                                                │   zero │     the slab was zero when it was made
//!   live   │ what was asked for        │ pad, 16 bytes of it known │ … │ canary │
//!   freed  │ mark │ (zeroes)                                         │   mark │
//! ```
//!
//! So an object says by itself which of the three it is, without a table that would have to be fetched into the cache beside it. The canary has the number of padding bytes
//! in its upper 16 bits, so what was asked for is known without a header. All words depend on secrets of the process
//! and on the object's address: none can be made from another. The lowest byte of a canary and each of the pad is never zero, so that a string that is one byte too long
//! is noticed.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::fork;

/// Bytes that a canary takes.
pub(super) const BYTES: usize = 8;

/// Objects up to this size are zeroed in whole, and looked at in whole when they leave the free state.
pub(super) const LOOKED_THROUGH: usize = 256;

const SLACK_SHIFT: u32 = 48;
const LOW_BITS: u64 = (1 << SLACK_SHIFT) - 1;
/// Makes marks of freed objects differ from canaries.
const FREED: u64 = 0x5a5a_0f0f_3c3c_9696;

static SECRET: AtomicU64 = AtomicU64::new(0);
static FACTOR: AtomicU64 = AtomicU64::new(1);
static PAD: AtomicU64 = AtomicU64::new(0);

pub(super) fn start(secret: u64, factor: u64) {
    SECRET.store(secret, Ordering::Relaxed);
    FACTOR.store(factor | 1, Ordering::Relaxed);
    let pad = (secret ^ factor.rotate_left(32))
        .to_ne_bytes()
        .map(|b| b | 1);
    PAD.store(u64::from_ne_bytes(pad), Ordering::Relaxed);
}

/// The object's own secret; odd.
#[inline(always)]
fn word(address: usize) -> u64 {
    let product = (address as u64 ^ SECRET.load(Ordering::Relaxed))
        .wrapping_mul(FACTOR.load(Ordering::Relaxed));
    (product ^ (product >> 29)) | 1
}

/// The marks of a freed object: of its first and of its last word.
#[inline(always)]
fn marks(address: usize) -> (u64, u64) {
    let mark = word(address) ^ FREED;
    (mark, mark.rotate_left(32))
}

/// The last word of an object.
///
/// # Safety
/// `bytes` bytes from `object` can be read and written, and end aligned to 8.
#[inline(always)]
unsafe fn last(object: *mut u8, bytes: usize) -> &'static AtomicU64 {
    // SAFETY: as promised; whoever may write it at the same time goes by atomic operations (D2).
    unsafe { &*object.add(bytes - BYTES).cast::<AtomicU64>() }
}

/// Seals a live object of `bytes` bytes of which `size` were asked for.
///
/// # Safety
/// The object is the caller's; `size + BYTES <= bytes`, and there are at least 16.
#[inline(always)]
pub(super) unsafe fn seal(object: *mut u8, size: usize, bytes: usize) {
    let slack = bytes - BYTES - size;
    let pad = PAD.load(Ordering::Relaxed);
    // SAFETY: as promised: a word behind `size` ends at or before the object's end, and a second one if there are more than 8 bytes of padding.
    unsafe {
        object.add(size).cast::<u64>().write_unaligned(pad);
        if slack > 8 {
            object.add(size + 8).cast::<u64>().write_unaligned(pad);
        }
        let canary = word(object.addr()) ^ ((slack as u64) << SLACK_SHIFT);
        last(object, bytes).store(canary, Ordering::Relaxed);
    }
}

/// How many bytes were asked for and the canary; `None` if what is behind them is not as it was sealed.
///
/// # Safety
/// `bytes` bytes from `object` can be read.
#[inline(always)]
pub(super) unsafe fn open(object: *mut u8, bytes: usize) -> Option<(usize, u64)> {
    // SAFETY: as promised.
    let canary = unsafe { last(object, bytes) }.load(Ordering::Relaxed);
    let found = canary ^ word(object.addr());
    let slack = (found >> SLACK_SHIFT) as usize;
    if found & LOW_BITS != 0 || slack > bytes - BYTES {
        return None;
    }
    let size = bytes - BYTES - slack;
    let pad = PAD.load(Ordering::Relaxed);
    // Of a word, the bytes that are padding.
    let wrong = |n: usize, found: u64| n > 0 && (found ^ pad) << (64 - 8 * n.min(8)) != 0;
    // SAFETY: as in `seal`.
    unsafe {
        if wrong(slack, object.add(size).cast::<u64>().read_unaligned())
            || slack > 8
                && wrong(
                    slack - 8,
                    object.add(size + 8).cast::<u64>().read_unaligned(),
                )
        {
            return None;
        }
    }
    Some((size, canary))
}

/// Moves the last word from the canary that [`open`] saw to the mark: of several threads that free one object exactly one succeeds.
///
/// # Safety
/// As [`open`].
#[inline(always)]
pub(super) unsafe fn close(object: *mut u8, bytes: usize, canary: u64) -> bool {
    let mark = marks(object.addr()).1;
    // SAFETY: as promised.
    let last = unsafe { last(object, bytes) };
    if fork::is_only_thread() {
        // Nobody to race with: half the price.
        last.store(mark, Ordering::Relaxed);
        return true;
    }
    last.compare_exchange(canary, mark, Ordering::AcqRel, Ordering::Relaxed)
        .is_ok()
}

/// Marks the first word of an object that was closed.
///
/// # Safety
/// The object is the caller's.
#[inline(always)]
pub(super) unsafe fn mark(object: *mut u8) {
    // SAFETY: as promised; an object has 16 bytes or more.
    unsafe { object.cast::<u64>().write(marks(object.addr()).0) };
}

/// Whether the last word is the mark of a freed object, or the first one is.
///
/// # Safety
/// As [`open`].
pub(super) unsafe fn is_marked(object: *mut u8, bytes: usize) -> bool {
    let (first_mark, last_mark) = marks(object.addr());
    // SAFETY: as promised.
    unsafe {
        last(object, bytes).load(Ordering::Relaxed) == last_mark
            || object.cast::<u64>().read() == first_mark
    }
}

/// Whether both words are zero, as those of an object that was never handed out.
///
/// # Safety
/// As [`open`].
pub(super) unsafe fn is_fresh(object: *mut u8, bytes: usize) -> bool {
    // SAFETY: as promised.
    unsafe { last(object, bytes).load(Ordering::Relaxed) == 0 && object.cast::<u64>().read() == 0 }
}

/// Takes the marks off an object that is about to be handed out; the offset of a word that is not as a freed or fresh object has it.
///
/// # Safety
/// The object is the caller's, of `bytes` bytes. `zeroed`: free objects are zero between their marks.
#[inline(always)]
pub(super) unsafe fn unmark(object: *mut u8, bytes: usize, zeroed: bool) -> Result<(), usize> {
    let (first_mark, last_mark) = marks(object.addr());
    // SAFETY: as promised.
    unsafe {
        let first = object.cast::<u64>().read();
        let last = last(object, bytes).load(Ordering::Relaxed);
        if first != first_mark || last != last_mark {
            if first | last != 0 {
                return Err(if first == first_mark || last != last_mark && first == 0 {
                    bytes - BYTES
                } else {
                    0
                });
            }
        } else {
            object.cast::<u64>().write(0);
        }
        if zeroed && bytes <= LOOKED_THROUGH {
            let words = core::slice::from_raw_parts(object.cast::<u64>().add(1), bytes / 8 - 2);
            if words.iter().fold(0, |all, word| all | word) != 0 {
                let at = words.iter().position(|word| *word != 0).unwrap_or(0);
                return Err(8 * (at + 1));
            }
        }
    }
    Ok(())
}

/// Makes an object that was a structure of the core look fresh.
///
/// # Safety
/// The object is the caller's, of `bytes` bytes.
pub(super) unsafe fn freshen(object: *mut u8, bytes: usize) {
    // SAFETY: as promised.
    unsafe { object.write_bytes(0, bytes) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(16))]
    struct Object([u8; 512]);

    #[test]
    fn each_byte_behind_what_was_asked_for_is_watched_up_to_sixteen_and_the_word_at_the_end() {
        start(0x1234_5678_9abc_def0, 0x0fed_cba9_8765_4321);
        for bytes in [16, 32, 48, 256, 512] {
            for size in (0..=bytes - BYTES).rev().take(40) {
                let mut object = Object([7; 512]);
                let at = object.0.as_mut_ptr();
                // SAFETY: the object has 512 bytes, each `bytes` of which are sealed and looked at.
                unsafe {
                    seal(at, size, bytes);
                    let opened = |at| open(at, bytes).map(|found| found.0);
                    assert_eq!(opened(at), Some(size), "{size} of {bytes}");
                    assert!((0..size).all(|n| at.add(n).read() == 7));
                    assert!(at.add(size).read() != 0, "a string's end is noticed");
                    for wrong in (size..bytes).filter(|n| *n < size + 16 || *n >= bytes - 8) {
                        let was = at.add(wrong).read();
                        at.add(wrong).write(was ^ 0x41);
                        assert_ne!(opened(at), Some(size), "{wrong} of {size} of {bytes}");
                        at.add(wrong).write(was);
                    }
                }
            }
        }
    }

    #[test]
    fn a_write_to_a_freed_object_is_found() {
        start(1, 3);
        let mut object = Object([0; 512]);
        let at = object.0.as_mut_ptr();
        // SAFETY: the object has 512 bytes.
        unsafe {
            assert_eq!(unmark(at, 128, true), Ok(()), "a fresh one");
            for wrong in [
                None,
                Some(0),
                Some(7),
                Some(8),
                Some(64),
                Some(119),
                Some(120),
                Some(127),
            ] {
                at.write_bytes(0, 128);
                seal(at, 100, 128);
                let (size, canary) = open(at, 128).unwrap();
                assert_eq!(size, 100);
                assert!(close(at, 128, canary) && is_marked(at, 128));
                assert_eq!(open(at, 128), None, "it is live no more");
                at.write_bytes(0, 120);
                mark(at);
                if let Some(wrong) = wrong {
                    at.add(wrong).write(at.add(wrong).read() ^ 1);
                }
                let expected = wrong.map_or(Ok(()), |wrong| Err(wrong & !7));
                assert_eq!(unmark(at, 128, true), expected, "{wrong:?}");
            }
        }
    }
}
