//! Touched bits: which frames may have contents, and giving the memory of frames back.
//!
//! A clear bit means that the frame is zero (P8). Bits are set when frames are handed out and cleared when the system has taken
//! their memory; both is done by the owner of the frames, and bits of one word may have several owners.

use core::sync::atomic::{AtomicU64, Ordering};

use flagstone_types::PfnRange;

use super::reservation::{FRAME_SHIFT, covers, place};
use super::syscall;

/// Calls `each` with the touched bits of the frames, a word and a mask at a time. `false` if not all the frames have memory.
fn touched_words(frames: PfnRange, each: &mut dyn FnMut(&AtomicU64, u64)) -> bool {
    let Some(place) = place(frames.start).filter(|p| covers(p, frames.pages)) else {
        return false;
    };
    let bits = place.range.bits.load(Ordering::Relaxed) as *const AtomicU64;
    let (mut at, end) = (place.index, place.index + frames.pages);
    while at < end {
        let stop = end.min((at | 63) + 1);
        let mask = (!0u64 >> (64 - (stop - at))) << (at & 63);
        // SAFETY: P6, the bits of frames below `ready` can be read and written.
        each(unsafe { &*bits.add(at / 64) }, mask);
        at = stop;
    }
    true
}

/// Marks frames as touched and returns whether all of them were known to be zero.
pub(super) fn take(frames: PfnRange) -> bool {
    let mut zero = true;
    let known = touched_words(frames, &mut |word, mask| {
        zero &= word.load(Ordering::Relaxed) & mask == 0;
        if word.load(Ordering::Relaxed) & mask != mask {
            word.fetch_or(mask, Ordering::Relaxed);
        }
    });
    known && zero
}

/// How many of the frames may have contents.
pub(super) fn touched(frames: PfnRange) -> usize {
    let mut touched = 0;
    touched_words(frames, &mut |word, mask| {
        touched += (word.load(Ordering::Relaxed) & mask).count_ones() as usize;
    });
    touched
}

/// Has the system make pages for frames that read as zero. Where it can not, they come one by one as they are touched.
pub(super) fn populate(frames: PfnRange) {
    let (at, length) = (frames.start.0 << FRAME_SHIFT, frames.pages << FRAME_SHIFT);
    let _ = syscall::populate(at, length);
}

/// Gives the memory of frames back to the system. The caller owns them.
pub(super) fn release(frames: PfnRange) -> bool {
    if !place(frames.start).is_some_and(|p| covers(&p, frames.pages)) {
        return false;
    }
    let (at, length) = (frames.start.0 << FRAME_SHIFT, frames.pages << FRAME_SHIFT);
    // SAFETY: P6, these are frames of a range, and the caller owns them.
    if unsafe { syscall::advise(at, length, libc::MADV_DONTNEED) }.is_err() {
        return false;
    }
    touched_words(frames, &mut |word, mask| {
        word.fetch_and(!mask, Ordering::Relaxed);
    })
}
