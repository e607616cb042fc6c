//! Allocation and free with checks: between the program and this CPU's array.

use core::ptr::{NonNull, null_mut};

use flagstone_host::PageMap;
use flagstone_slab::{Caches, Found};
use flagstone_types::{FreeError, Gfp};

use super::places::place_at;
use super::{Features, canary, features};
use crate::classes::{self, SIZES};
use crate::heap::{caches, class_place, usable_at};
use crate::process::{Process, fast};
use crate::{ageing, misuse};

/// Bytes that an object has beyond those asked for.
#[inline(always)]
pub(crate) fn extra_bytes() -> usize {
    if features().intersects(Features::WORDS) {
        canary::BYTES
    } else {
        0
    }
}

/// An object for `size` bytes, which with [`extra_bytes`] are those of a class at most; null if there is no memory.
#[inline]
pub(crate) fn allocate(caches: &Caches<Process>, size: usize) -> *mut u8 {
    allocate_class(caches, classes::class_of(size + extra_bytes()), size)
}

/// The same of a class that is large enough.
#[inline]
pub(crate) fn allocate_class(caches: &Caches<Process>, class: usize, size: usize) -> *mut u8 {
    // SAFETY: places are those of arrays, or 0 (P11).
    let mut object = unsafe { fast::pop(fast::stack_at(class_place(class))) };
    if object.is_null() {
        object = refill(caches, class);
        if object.is_null() {
            return null_mut();
        }
    }
    // SAFETY: D1, the object came out of the array or the slab and is ours.
    unsafe { hand_out(object, size, SIZES[class] as usize) };
    object
}

#[cold]
#[inline(never)]
fn refill(caches: &Caches<Process>, class: usize) -> *mut u8 {
    ageing::tick(caches);
    caches
        .class_cache(class)
        .and_then(|cache| caches.alloc(cache, Gfp::KERNEL | Gfp::NOWARN).ok())
        .map_or(null_mut(), NonNull::as_ptr)
}

/// From free to live.
///
/// # Safety
/// The object, of `bytes` bytes, is the caller's.
#[inline(always)]
unsafe fn hand_out(object: *mut u8, size: usize, bytes: usize) {
    let features = features();
    // SAFETY: as promised; D3, free objects are fresh or as `retire` left them; the class has room for the canary.
    unsafe {
        if features.intersects(Features::WORDS) {
            let zeroed = features.contains(Features::ZERO_FREE | Features::CANARY);
            if let Err(offset) = canary::unmark(object, bytes, zeroed) {
                written_after_free(object, bytes, offset);
            }
            canary::seal(object, size, bytes);
        }
        if features.contains(Features::ZERO_ALLOC) {
            object.write_bytes(0, size);
        }
    }
}

/// Bytes at the end of a frame that may be a guard's.
const GUARDED: usize = super::GUARD;
const FRAME: usize = <Process as PageMap>::PAGE_SIZE;

/// Whether the end of what would be an object lies in the frame where it begins and before a guard, so that its last word can be read if it is none. Few objects
/// are not so, and looked up first.
#[inline(always)]
const fn ends_within(address: usize, bytes: usize) -> bool {
    (address & (FRAME - 1)) + bytes <= FRAME - GUARDED
}

/// Looks at what is behind an object and leaves it as a freed one.
///
/// # Safety
/// What is at `object` is nobody else's, if it is a live object of `bytes` bytes; it can be read and written.
#[inline(always)]
unsafe fn retire(object: *mut u8, bytes: usize) {
    let features = features();
    let mut size = bytes;
    // SAFETY: as promised.
    unsafe {
        if features.intersects(Features::WORDS) {
            prefetch(object);
            let Some((found, canary)) = canary::open(object, bytes) else {
                refuse(object, bytes);
            };
            size = found;
            if !canary::close(object, bytes, canary) {
                refuse(object, bytes);
            }
        }
        if features.contains(Features::ZERO_FREE) {
            let zeroed = match features.intersects(Features::WORDS) {
                true if bytes <= canary::LOOKED_THROUGH => bytes - canary::BYTES,
                true => size,
                false => bytes,
            };
            wipe(object, zeroed);
        }
        if features.intersects(Features::WORDS) {
            canary::mark(object);
        }
    }
}

/// Zeroes an object, rounded up to a word. By stores of its own: the library's `memset` may be the one that checks copies, and the object is with nobody.
///
/// # Safety
/// The object has so many bytes and is the caller's.
#[inline(always)]
unsafe fn wipe(object: *mut u8, length: usize) {
    let (pairs, words) = (length / 16, length.div_ceil(8));
    // SAFETY: as promised; objects are aligned to 16, and their sizes multiples of 8.
    unsafe {
        for n in 0..pairs {
            object
                .cast::<core::arch::x86_64::__m128i>()
                .add(n)
                .write_volatile(core::arch::x86_64::_mm_setzero_si128());
        }
        for n in 2 * pairs..words {
            object.cast::<u64>().add(n).write_volatile(0);
        }
    }
}

/// Has the processor fetch a line to write to.
#[inline(always)]
fn prefetch(object: *mut u8) {
    // SAFETY: a hint, of which nothing is read or written.
    unsafe {
        core::arch::asm!("prefetchw byte ptr [{}]", in(reg) object, options(nostack, preserves_flags, readonly));
    }
}

/// Retires an object of a class that is not in range 0. For an object of another cache nothing is done.
///
/// # Safety
/// As [`free`]; a cache with this place has an object there.
pub(crate) unsafe fn give_up(object: NonNull<u8>, place: u32) {
    let bytes = usable_at(place);
    if bytes != 0 {
        // SAFETY: as promised.
        unsafe { retire(object.as_ptr(), bytes) };
    }
}

/// Told that the core is about to free a structure of its own, an object of a class.
pub(crate) fn returned(object: NonNull<u8>, bytes: usize) {
    if features().intersects(Features::WORDS) {
        // SAFETY: D3, the core has done with it.
        unsafe { canary::freshen(object.as_ptr(), bytes) };
    }
}

/// Frees an object of a class in range 0; `false` if this is none, and nothing was done.
///
/// # Safety
/// Nobody uses the memory any more.
#[inline]
pub(crate) unsafe fn free(caches: &Caches<Process>, object: NonNull<u8>) -> bool {
    let address = object.addr().get();
    let place = place_at(address);
    let bytes = usable_at(place);
    if bytes == 0 {
        return false;
    }
    if !address.is_multiple_of(classes::GRANULE) || !ends_within(address, bytes) {
        look_up(caches, object);
    }
    // SAFETY: D1, the object is live or refused; the entry is one of the map.
    unsafe {
        retire(object.as_ptr(), bytes);
        if fast::slept() || fast::push_home(place, object.as_ptr()) <= 0 {
            free_slowly(caches, object);
        }
    }
    true
}

/// # Safety
/// As [`free`].
#[cold]
#[inline(never)]
unsafe fn free_slowly(caches: &Caches<Process>, object: NonNull<u8>) {
    match caches.find(object) {
        // SAFETY: as promised.
        Ok(Found::Object(cache)) => unsafe { caches.free(cache, object) },
        Ok(_) => misuse::invalid(object, FreeError::NotAllocated),
        Err(error) => misuse::invalid(object, error),
    }
    ageing::tick(caches);
}

/// Ends the process if no object starts here.
#[cold]
#[inline(never)]
fn look_up(caches: &Caches<Process>, object: NonNull<u8>) {
    if let Err(error) = caches.find(object) {
        misuse::invalid(object, error);
    }
}

/// The bytes that the program may use of a live object of a class; `None` if this is none of range 0.
#[inline]
pub(crate) fn usable_size(caches: &Caches<Process>, object: NonNull<u8>) -> Option<usize> {
    let address = object.addr().get();
    let bytes = usable_at(place_at(address));
    if bytes == 0 {
        return None;
    }
    if !features().intersects(Features::WORDS) {
        return Some(bytes);
    }
    if !address.is_multiple_of(classes::GRANULE) || !ends_within(address, bytes) {
        look_up(caches, object);
    }
    // SAFETY: D1, the words of an object of a class, or of what can be read as one.
    match unsafe { canary::open(object.as_ptr(), bytes) } {
        Some((size, _)) => Some(size),
        None => refuse(object.as_ptr(), bytes),
    }
}

/// Makes a live object one for `size` bytes, if its class is the right one for so many: `Ok`. Otherwise how many bytes it has, or `None` if it is no object of a class in range 0.
pub(crate) fn reallocate(
    caches: &Caches<Process>,
    object: NonNull<u8>,
    size: usize,
    fits: impl Fn(usize, usize) -> bool,
) -> Option<Result<(), usize>> {
    let have = usable_size(caches, object)?;
    let bytes = usable_at(place_at(object.addr().get()));
    let extra = extra_bytes();
    if size > bytes - extra || !fits(size + extra, bytes) {
        return Some(Err(have));
    }
    if extra != 0 {
        // SAFETY: D1, a live object, whose owner calls; the class has room for the canary.
        unsafe { canary::seal(object.as_ptr(), size, bytes) };
    }
    Some(Ok(()))
}

/// What is given up is no live object, or what is behind it was overwritten. `object` is aligned, and `bytes` bytes from there can be read.
#[cold]
#[inline(never)]
fn refuse(object: *mut u8, bytes: usize) -> ! {
    let pointer = NonNull::new(object).unwrap_or(NonNull::dangling());
    if let Some(caches) = caches()
        && let Err(error) = caches.find(pointer)
    {
        misuse::invalid(pointer, error);
    }
    // SAFETY: an object of a class starts here, or can be read as one.
    unsafe {
        if canary::is_marked(object, bytes) {
            misuse::invalid(pointer, FreeError::AlreadyFree);
        }
        if canary::is_fresh(object, bytes) {
            misuse::invalid(pointer, FreeError::NotAllocated);
        }
    }
    misuse::fatal(format_args!(
        "heap overflow: what is behind the object at {object:p} (cache malloc-{bytes}) was overwritten"
    ))
}

#[cold]
#[inline(never)]
fn written_after_free(object: *mut u8, bytes: usize, offset: usize) -> ! {
    // SAFETY: the object came out of an array or a slab.
    if unsafe { canary::open(object, bytes) }.is_some() {
        misuse::fatal(format_args!(
            "free list corrupted: the object at {object:p} (cache malloc-{bytes}) is live and was about to be handed out again"
        ));
    }
    misuse::fatal(format_args!(
        "write after free: the object at {object:p} (cache malloc-{bytes}) was written to while it was free, at offset {offset} or in the 7 bytes behind"
    ))
}
