//! Giving back reserved address space, for a program that lowers its own limit of it.
//!
//! Only what has never been used goes: the upper ends of slices, their records, and the parts of the arrays' region that are not
//! committed. What is left grows as before, and further ranges are reserved where there is room.

use core::sync::atomic::Ordering;

use flagstone_host::META_BYTES;

use super::fast::FAST;
use super::reservation::{
    BLOCK_FRAMES, FRAME, FRAME_SHIFT, MEMORY, PAGE, RANGES, RANGES_IN_USE, Range, SLICES, Slice,
};
use super::topology::MOST_NODES;
use super::{room, syscall};

/// Every slice with its range and the frames before it in the range, from the last to the first.
fn slices_backwards() -> impl Iterator<Item = (&'static Range, usize, &'static Slice)> {
    let count = RANGES_IN_USE.load(Ordering::Relaxed);
    let further = RANGES[..count]
        .iter()
        .skip(1)
        .rev()
        .map(|r| (r, 0, &r.slice));
    let shift = RANGES[0].slice_shift.load(Ordering::Relaxed);
    let own = SLICES.iter().enumerate().rev().map(move |(n, slice)| {
        (
            &RANGES[0],
            if n == 0 {
                0
            } else {
                n.checked_shl(shift).unwrap_or(0)
            },
            slice,
        )
    });
    further.chain(own.take(if count == 0 { 0 } else { MOST_NODES }))
}

/// Gives back reserved address space so that the process can live with `limit` bytes of it: of what we do not use,
/// at most half of the rest is kept.
pub(super) fn shrink(limit: usize) {
    let Some(in_use) = syscall::address_space_used() else {
        return;
    };
    if in_use <= limit / 2 {
        return;
    }
    room::shrink();
    let _held = MEMORY.lock();
    let idle = |slice: &Slice| {
        slice
            .end
            .load(Ordering::Relaxed)
            .saturating_sub(slice.used.load(Ordering::Relaxed))
    };
    let unused: usize = slices_backwards()
        .map(|(_, _, slice)| idle(slice) << FRAME_SHIFT)
        .sum();
    let others = in_use.saturating_sub(unused);
    let keep = limit.saturating_sub(others) / 2;
    // The lowest slices are kept first, since they are the ones used first.
    let mut excess = unused.saturating_sub(keep);
    for (range, before, slice) in slices_backwards() {
        let (used, end) = (
            slice.used.load(Ordering::Relaxed),
            slice.end.load(Ordering::Relaxed),
        );
        let cut = (excess.div_ceil(FRAME)).min(end.saturating_sub(used));
        if cut == 0 {
            continue;
        }
        let stop = end - cut;
        let first = range.first.load(Ordering::Relaxed) + before;
        slice.end.store(stop, Ordering::Relaxed);
        let is_single = range.slice_shift.load(Ordering::Relaxed) == 63;
        if core::ptr::eq(range, &raw const RANGES[0]) && is_single {
            // With hardening the fast path has no frames.
            if !crate::harden::shrink(stop) {
                FAST.frames.store(stop, Ordering::Relaxed);
            }
        }
        // SAFETY: P6, frames from `used` on are used by nobody, and `end` keeps them from being carved.
        let _ = unsafe { syscall::unmap((first + stop) << FRAME_SHIFT, cut << FRAME_SHIFT) };
        let ready = slice
            .ready
            .load(Ordering::Relaxed)
            .max(stop.next_multiple_of(BLOCK_FRAMES));
        if ready < end {
            let records = range.records.load(Ordering::Relaxed);
            let from = (records + (before + ready) * META_BYTES).next_multiple_of(PAGE);
            let to = (records + (before + end) * META_BYTES) & !(PAGE - 1);
            // SAFETY: P6, nobody reads records beyond `ready`, which can not grow beyond `end` in whole blocks.
            let _ = unsafe { syscall::unmap(from, to.saturating_sub(from)) };
        }
        excess = excess.saturating_sub(cut << FRAME_SHIFT);
    }
}
