//! Where the hardened path finds the array of a freed object: what the default fast path reads, out of its reach.
//!
//! While hardening is on, the default path of frees believes that range 0 has no frames, so that every free comes to the slow path's door (D1).

use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use crate::process::fast::FAST;

const FRAME_SHIFT: u32 = 16;

/// As the fields of [`Fast`](crate::process::fast::Fast) of these names.
#[repr(C, align(64))]
struct Places {
    first: AtomicUsize,
    frames: AtomicUsize,
    map: AtomicPtr<AtomicU32>,
}

static PLACES: Places = Places {
    first: AtomicUsize::new(0),
    frames: AtomicUsize::new(0),
    map: AtomicPtr::new(null_mut()),
};

/// Turns the fast path of frees away. Called once, before the first object is handed out.
pub(super) fn start() {
    let of = |word: &AtomicUsize| word.load(Ordering::Relaxed);
    PLACES.first.store(of(&FAST.first), Ordering::Relaxed);
    PLACES
        .map
        .store(FAST.map.load(Ordering::Relaxed), Ordering::Relaxed);
    PLACES.frames.store(of(&FAST.frames), Ordering::Release);
    FAST.frames.store(0, Ordering::Release);
}

/// Told that range 0 has only so many frames from now on. `true` if the fast path is not to be told.
pub(crate) fn shrink(frames: usize) -> bool {
    if !super::is_on() {
        return false;
    }
    PLACES.frames.store(frames, Ordering::Relaxed);
    true
}

/// The map's entry for the frame that `address` lies in; 0 if it has none or is outside range 0.
#[inline(always)]
pub(super) fn place_at(address: usize) -> u32 {
    let frame = address >> FRAME_SHIFT;
    if frame.wrapping_sub(PLACES.first.load(Ordering::Relaxed))
        >= PLACES.frames.load(Ordering::Relaxed)
    {
        return 0;
    }
    // SAFETY: P7, the map may be read for every frame of range 0.
    unsafe { (*PLACES.map.load(Ordering::Relaxed).wrapping_add(frame)).load(Ordering::Relaxed) }
}
