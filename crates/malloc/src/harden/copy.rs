//! Copies that must not span objects: what `flagstone_check_copy` asks (S11).

use core::ptr::NonNull;

use flagstone_host::PageMap;
use flagstone_slab::{Cache, Caches, Found};
use flagstone_types::FreeError;

use super::places::place_at;
use super::{Features, canary, features};
use crate::heap::{caches, usable_at};
use crate::misuse;
use crate::process::Process;

/// What becomes of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// They leave the object.
    From,
    /// They are overwritten.
    To,
}

/// Checks that `length` bytes from `buffer` lie within one live object, in the part of it that may be copied, or in no object of the heap. Ends the process with a
/// report otherwise. Nothing is looked at unless `usercopy` is among the features.
#[inline]
pub fn check(buffer: *const u8, length: usize, direction: Direction) {
    if length == 0 || !features().contains(Features::USERCOPY) {
        return;
    }
    let Some(at) = NonNull::new(buffer.cast_mut()) else {
        return;
    };
    let place = place_at(buffer.addr());
    if place == 0 {
        // Runs of frames are whole frames, few enough to be passed over here: what lies in no slab has no neighbour within its frame.
        return;
    }
    if let Some(caches) = caches() {
        check_object(caches, at, length, direction, usable_at(place));
    }
}

fn check_object(
    caches: &Caches<Process>,
    at: NonNull<u8>,
    length: usize,
    direction: Direction,
    bytes: usize,
) {
    let (start, offset) = match caches.find(at) {
        Ok(_) => (at, 0),
        Err(FreeError::Interior { offset }) => {
            let start = at.as_ptr().wrapping_sub(offset);
            (NonNull::new(start).unwrap_or(at), offset)
        }
        // Between the objects and the end of the slab.
        Err(_) => {
            return report(
                direction,
                "",
                at.addr().get() & (Process::PAGE_SIZE - 1),
                length,
            );
        }
    };
    let Ok(Found::Object(cache)) = caches.find(start) else {
        return;
    };
    let (from, end) = match cache.usercopy() {
        // Of a class all may be copied, as far as it was asked for.
        region if region.size != 0 && bytes == 0 => (
            region.offset as usize,
            (region.offset + region.size) as usize,
        ),
        _ => (0, asked_for(cache, start, bytes)),
    };
    if offset < from || offset >= end || length > end - offset {
        report(direction, cache.name(), offset, length);
    }
}

/// How many bytes of an object its owner may use; those of a freed one are none.
fn asked_for(cache: &Cache<Process>, start: NonNull<u8>, bytes: usize) -> usize {
    if bytes == 0 {
        return cache.object_size();
    }
    // SAFETY: an object of a class starts here, as the caches say.
    unsafe {
        match canary::open(start.as_ptr(), bytes) {
            Some((size, _)) => size,
            None if canary::is_marked(start.as_ptr(), bytes) => 0,
            // Its free will tell.
            None => bytes,
        }
    }
}

#[cold]
#[inline(never)]
fn report(direction: Direction, cache: &str, offset: usize, length: usize) {
    let (what, side) = match direction {
        Direction::From => ("exposure", "from"),
        Direction::To => ("overwrite", "to"),
    };
    let quote = if cache.is_empty() { "" } else { " '" };
    let unquote = if cache.is_empty() { "" } else { "'" };
    misuse::fatal(format_args!(
        "usercopy: Kernel memory {what} attempt detected {side} SLUB object{quote}{cache}{unquote} (offset {offset}, size {length})!"
    ))
}
