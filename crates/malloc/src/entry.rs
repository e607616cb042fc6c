//! Allocation and free: the fast paths on one screen, and where the slow ones go.
//!
//! A fast path looks up the tag of the class's array in a table, or that of the object's frame in the map, and runs one
//! restartable section. Anything else (heap not up, array empty or full or stopped, large, foreign, null) fails the
//! section or has tag 0 and comes to a slow path, which starts again from the beginning.

use core::ptr::{NonNull, null_mut};
use core::sync::atomic::Ordering;

use flagstone_slab::{Caches, Found};
use flagstone_types::{AllocError, FreeError, Gfp};

use crate::classes::{self, COARSE_MAX, COARSE_STEP, FINE_MAX, GRANULE};
use crate::heap::{LARGEST_OBJECT, PLACES, caches, heap, usable_at};
use crate::large::{self, LARGEST_RUN};
use crate::process::{Process, fast, syscall};
use crate::{ageing, direct, guard, harden, misuse};

/// Alignment that every allocation has, in bytes.
pub const ALIGN: usize = GRANULE;

/// Debugged objects of a class are aligned as their size is up to this many bytes.
const DEBUGGED_ALIGN: usize = 64;

/// Requests above this many bytes can never be met, as in the C library.
pub const MOST_BYTES: usize = isize::MAX as usize;

/// The kind of an object without flags: the process may reclaim, and reports by returning null.
const FLAGS: Gfp = Gfp::KERNEL.union(Gfp::NOWARN);

/// Memory of at least `size` bytes, aligned to [`ALIGN`]; null if there is none.
#[inline(always)]
#[must_use]
pub fn allocate(size: usize) -> *mut u8 {
    let place = if size <= FINE_MAX {
        &PLACES.fine[size.div_ceil(GRANULE)]
    } else if size <= COARSE_MAX {
        &PLACES.coarse[size.div_ceil(COARSE_STEP)]
    } else {
        return allocate_slow(size);
    };
    // SAFETY: places in the table are those of arrays, or 0 (P11).
    let object = unsafe { fast::pop(fast::stack_at(place.load(Ordering::Relaxed))) };
    if object.is_null() {
        allocate_slow(size)
    } else {
        object
    }
}

/// Frees what [`allocate`] and its relatives returned; null is fine. A pointer that is no allocation ends the process, where that is noticed.
///
/// # Safety
/// Nobody uses the memory any more.
#[inline(always)]
pub unsafe fn free(object: *mut u8) {
    let place = fast::place_at(object.addr());
    // A thread that slept since its last section looks after ageing first, on the slow path.
    if !fast::slept() && object.addr().is_multiple_of(ALIGN) {
        // SAFETY: it is an entry of the map, or 0.
        if unsafe { fast::push_home(place, object) } > 0 {
            return;
        }
    }
    // SAFETY: as promised.
    unsafe { free_slow(object) }
}

/// The way when the fast path has nothing.
#[cold]
#[inline(never)]
#[must_use]
pub fn allocate_slow(size: usize) -> *mut u8 {
    let Ok(caches) = heap() else {
        return null_mut();
    };
    if harden::is_on() {
        return allocate_hardened(caches, size);
    }
    ageing::tick(caches);
    if let Some(object) = guarded(size, ALIGN) {
        return object.as_ptr();
    }
    if size <= LARGEST_OBJECT {
        return match caches.class_cache(classes::class_of(size)) {
            Some(cache) => or_null(caches.alloc_sized(cache, FLAGS, size)),
            None => null_mut(),
        };
    }
    allocate_large(caches, size).map_or(null_mut(), |(at, _)| at.as_ptr())
}

/// The way with hardening: objects of classes by the hardened path, larger ones as ever.
fn allocate_hardened(caches: &Caches<Process>, size: usize) -> *mut u8 {
    if let Some(object) = guarded(size, ALIGN) {
        return object.as_ptr();
    }
    if size.saturating_add(harden::extra_bytes()) <= LARGEST_OBJECT {
        return harden::allocate(caches, size);
    }
    ageing::tick(caches);
    match allocate_large(caches, size) {
        Ok((at, zero)) => {
            if harden::zeroes_allocated() && !zero {
                // SAFETY: the memory is ours and has so many bytes.
                unsafe { at.write_bytes(0, size) };
            }
            at.as_ptr()
        }
        Err(_) => null_mut(),
    }
}

/// A run or a mapping; also whether it is known to be zero.
fn allocate_large(
    caches: &Caches<Process>,
    size: usize,
) -> Result<(NonNull<u8>, bool), AllocError> {
    if size > MOST_BYTES {
        return Err(AllocError::TooLarge);
    }
    if size <= LARGEST_RUN {
        match large::allocate(caches, size) {
            Ok(got) => return Ok(got),
            Err(error) if fails_on_purpose(caches) => return Err(error),
            Err(_) => {}
        }
    }
    match direct::allocate(size, direct::ALIGN) {
        Ok(at) => Ok((at, true)),
        // Where address space is limited, the range reserved for frames may have more of it than is left outside. More than all
        // memory was refused for its size; to commit frames for it would succeed, and end in a process that the system kills.
        Err(_) if size > LARGEST_RUN && size <= syscall::system_memory() => {
            large::allocate(caches, size)
        }
        Err(error) => Err(error),
    }
}

/// Whether pages that can not be had are not to be replaced by a mapping, since they are refused to see what the program does.
fn fails_on_purpose(caches: &Caches<Process>) -> bool {
    caches.frames().fail_page_alloc().is_armed()
}

/// The allocation with guard pages around it, if this is one that is to have them.
#[inline]
fn guarded(size: usize, align: usize) -> Option<NonNull<u8>> {
    if guard::is_armed() {
        guard::sample(size, align)
    } else {
        None
    }
}

fn or_null(result: Result<NonNull<u8>, AllocError>) -> *mut u8 {
    result.map_or(null_mut(), NonNull::as_ptr)
}

/// Memory of `size` zero bytes.
#[inline]
#[must_use]
pub fn allocate_zeroed(size: usize) -> *mut u8 {
    if size > LARGEST_OBJECT {
        return allocate_zeroed_large(size);
    }
    let object = allocate(size);
    if !object.is_null() {
        // SAFETY: the object is ours and has so many bytes.
        unsafe { object.write_bytes(0, size) };
    }
    object
}

#[cold]
#[inline(never)]
fn allocate_zeroed_large(size: usize) -> *mut u8 {
    let Ok(caches) = heap() else {
        return null_mut();
    };
    ageing::tick(caches);
    match allocate_large(caches, size) {
        Ok((at, zero)) => {
            if !zero {
                // SAFETY: the memory is ours and has so many bytes.
                unsafe { at.write_bytes(0, size) };
            }
            at.as_ptr()
        }
        Err(_) => null_mut(),
    }
}

/// Memory of at least `size` bytes aligned to `align` bytes, a power of two.
#[inline]
#[must_use]
pub fn allocate_aligned(size: usize, align: usize) -> *mut u8 {
    if align <= ALIGN {
        allocate(size)
    } else {
        allocate_aligned_more(size, align)
    }
}

#[inline(never)]
fn allocate_aligned_more(size: usize, align: usize) -> *mut u8 {
    let Ok(caches) = heap() else {
        return null_mut();
    };
    if let Some(object) = guarded(size, align) {
        return object.as_ptr();
    }
    if harden::is_on()
        && let Some(class) =
            classes::aligned_class_of(size.saturating_add(harden::extra_bytes()), align)
    {
        return harden::allocate_class(caches, class, size);
    }
    if let Some(class) = classes::aligned_class_of(size, align)
        && let Some(cache) = caches.class_cache(class)
        && cache.is_debugged()
    {
        // Its red zone begins behind what was asked for. Beyond a cache line, debugged objects are not aligned as their size is.
        if align <= DEBUGGED_ALIGN {
            return or_null(caches.alloc_sized(cache, FLAGS, size));
        }
    } else if !harden::is_on()
        && let Some(class) = classes::aligned_class_of(size, align)
    {
        // The object of the whole class, so that its size finds the class again.
        return allocate(classes::SIZES[class] as usize);
    }
    ageing::tick(caches);
    if size > MOST_BYTES {
        return null_mut();
    }
    let frame = <Process as flagstone_host::PageMap>::PAGE_SIZE;
    let run = if size.max(align) > LARGEST_RUN {
        Err(AllocError::TooLarge)
    } else if align <= frame {
        large::allocate(caches, size).map(|(at, _)| at)
    } else {
        large::allocate_aligned(caches, size, align)
    };
    or_null(run.or_else(|error| match error {
        AllocError::OutOfMemory if fails_on_purpose(caches) => Err(error),
        _ => direct::allocate(size, align),
    }))
}

/// The usable bytes of an allocation; 0 for null. A pointer that is none ends the process.
///
/// # Safety
/// The allocation is live.
#[must_use]
pub unsafe fn usable_size(object: *mut u8) -> usize {
    match usable_at(fast::place_at(object.addr())) {
        0 => usable_size_of_other(object),
        bytes => bytes,
    }
}

#[cold]
#[inline(never)]
fn usable_size_of_other(object: *mut u8) -> usize {
    let Some(object) = NonNull::new(object) else {
        return 0;
    };
    if harden::is_on()
        && let Some(caches) = caches()
        && let Some(bytes) = harden::usable_size(caches, object)
    {
        return bytes;
    }
    match find(object) {
        // SAFETY: the object is the caller's.
        Ok(Kind::Object(cache)) => unsafe { usable_of(cache, object) },
        Ok(Kind::Run(frames)) => frames.pages * <Process as flagstone_host::PageMap>::PAGE_SIZE,
        Ok(Kind::Direct(mapping)) => mapping.length,
        Ok(Kind::Guarded(size)) => size,
        Err(error) => misuse::invalid(object, error),
    }
}

/// Where the array of a cache is in every slice, in bytes.
fn place_of(cache: &flagstone_slab::Cache<Process>) -> u32 {
    u32::from(flagstone_host::CpuCache::tag(cache.array())) << fast::TAG_SHIFT
}

/// Bytes of an object of a cache that its owner may touch.
///
/// # Safety
/// The object is an allocated one of the cache, and the caller's.
unsafe fn usable_of(cache: &flagstone_slab::Cache<Process>, object: NonNull<u8>) -> usize {
    match caches() {
        // SAFETY: as promised.
        Some(caches) => unsafe { caches.requested_size(cache, object) },
        None => cache.usable_size(),
    }
}

/// What starts at a pointer.
enum Kind {
    Object(&'static flagstone_slab::Cache<Process>),
    Run(flagstone_types::PfnRange),
    Direct(direct::Mapping),
    /// An object of so many bytes with guard pages around it.
    Guarded(usize),
}

fn find(object: NonNull<u8>) -> Result<Kind, FreeError> {
    match guard::find(object) {
        None => {}
        Some(guard::Guarded::Object { size }) => return Ok(Kind::Guarded(size)),
        Some(guard::Guarded::Not) => return Err(FreeError::NotAllocated),
    }
    let Some(caches) = caches() else {
        return Err(FreeError::Foreign);
    };
    match caches.find(object) {
        Ok(Found::Object(cache)) => Ok(Kind::Object(cache)),
        Ok(Found::Large(frames)) => Ok(Kind::Run(frames)),
        // A mapping may lie where a range gave address space back.
        Err(error) => match direct::find(object.as_ptr().addr()) {
            Some(mapping) => Ok(Kind::Direct(mapping)),
            None => Err(direct::offset_in(object.as_ptr().addr())
                .map_or(error, |offset| FreeError::Interior { offset })),
        },
    }
}

/// The way when the fast path can not free the object.
///
/// # Safety
/// As [`free`].
#[cold]
#[inline(never)]
pub unsafe fn free_slow(object: *mut u8) {
    let Some(object) = NonNull::new(object) else {
        return;
    };
    if guard::find(object).is_some() {
        return guard::free(object);
    }
    let heap = caches();
    if harden::is_on()
        && let Some(caches) = heap
        // SAFETY: as promised.
        && unsafe { harden::free(caches, object) }
    {
        return;
    }
    match (find(object), heap) {
        // SAFETY: as promised.
        (Ok(Kind::Object(cache)), Some(caches)) => unsafe {
            if harden::is_on() {
                harden::give_up(object, place_of(cache));
            }
            caches.free(cache, object);
            ageing::tick(caches);
        },
        // SAFETY: as promised.
        (Ok(Kind::Run(frames)), Some(caches)) => unsafe {
            if harden::zeroes_freed() {
                large::wipe(caches, frames);
            }
            large::free(caches, frames);
            ageing::tick(caches);
        },
        (Ok(Kind::Direct(mapping)), _) => {
            // SAFETY: as promised.
            if !unsafe { direct::free(mapping.address) } {
                misuse::invalid(object, FreeError::AlreadyFree);
            }
        }
        (Ok(Kind::Guarded(_)), _) => guard::free(object),
        (Err(error), _) => misuse::invalid(object, error),
        (Ok(_), None) => misuse::invalid(object, FreeError::Foreign),
    }
}

/// An allocation of at least `size` bytes with the contents of `object` as far as both reach: the same one if that will do, grown or shrunk in place if
/// possible, else a new one; null if there is no memory, and `object` is as it was. `object` is not null.
///
/// # Safety
/// The caller owns the allocation, and uses what is returned from then on.
#[must_use]
#[inline]
pub unsafe fn reallocate(object: NonNull<u8>, size: usize) -> *mut u8 {
    let have = usable_at(fast::place_at(object.as_ptr().addr()));
    if fits(size, have) {
        return object.as_ptr();
    }
    // SAFETY: as promised.
    unsafe { reallocate_more(object, size) }
}

/// Whether a request of `size` bytes is best served by the `have` bytes that are there: enough, and not more than twice as many, unless they are few.
#[inline]
const fn fits(size: usize, have: usize) -> bool {
    size <= have && (size > have / 2 || have <= 4 * GRANULE)
}

/// # Safety
/// As [`reallocate`].
#[inline(never)]
unsafe fn reallocate_more(object: NonNull<u8>, size: usize) -> *mut u8 {
    if harden::is_on()
        && size <= MOST_BYTES
        && let Some(caches) = caches()
    {
        match harden::reallocate(caches, object, size, fits) {
            None => {}
            Some(Ok(())) => return object.as_ptr(),
            // SAFETY: as promised.
            Some(Err(have)) => return unsafe { move_to(object, have, size) },
        }
    }
    let kind = match find(object) {
        Ok(kind) => kind,
        Err(error) => misuse::invalid(object, error),
    };
    if size > MOST_BYTES {
        return null_mut();
    }
    // SAFETY: as promised, for each.
    unsafe {
        match kind {
            Kind::Object(cache) => {
                let have = usable_of(cache, object);
                // A debugged object is never changed in place, so that who goes on using the old one is noticed.
                if fits(size, have) && (size == have || !cache.is_debugged()) {
                    return object.as_ptr();
                }
                move_to(object, have, size)
            }
            Kind::Run(frames) => reallocate_run(object, frames, size),
            Kind::Guarded(have) => {
                // Always a new one, so that the old pointer is caught when it is used again.
                let to = allocate(size);
                if !to.is_null() {
                    to.copy_from_nonoverlapping(object.as_ptr(), have.min(size));
                    guard::free(object);
                }
                to
            }
            Kind::Direct(mapping) => {
                if size > LARGEST_RUN / 2
                    && let Ok(to) = direct::resize(mapping.address, size)
                {
                    return to.as_ptr();
                }
                move_to(object, mapping.length, size)
            }
        }
    }
}

/// Blocks of at least so many bytes are not copied when they grow, but moved by their page tables.
const MOVE_PAGES: usize = 256 << 10;

/// # Safety
/// As [`reallocate`], for a run.
unsafe fn reallocate_run(
    object: NonNull<u8>,
    frames: flagstone_types::PfnRange,
    size: usize,
) -> *mut u8 {
    let have = frames.pages * <Process as flagstone_host::PageMap>::PAGE_SIZE;
    let Some(caches) = caches() else {
        return null_mut();
    };
    // SAFETY: the caller owns the run, for each.
    unsafe {
        if size > LARGEST_OBJECT && large::resize(caches, frames, size).is_ok() {
            return object.as_ptr();
        }
        // The heap's pages are not counted against what the system lets processes commit, and a mapping made of them is not
        // either: more than all memory is for a new mapping, which the system may refuse.
        if size > have && have >= MOVE_PAGES && size <= syscall::system_memory() {
            // A block that grows is likely to grow again: from now on it is a mapping, which grows by `mremap`.
            if let Ok(to) = direct::adopt(object.as_ptr().addr(), have, size) {
                large::free(caches, frames);
                return to.as_ptr();
            }
        }
        move_to(object, have, size)
    }
}

/// Copies to a new allocation and frees the old one.
///
/// # Safety
/// As [`reallocate`]; `object` has `have` bytes.
unsafe fn move_to(object: NonNull<u8>, have: usize, size: usize) -> *mut u8 {
    let to = allocate(size);
    if !to.is_null() {
        // SAFETY: both are live and different; the old one is the caller's to give up.
        unsafe {
            to.copy_from_nonoverlapping(object.as_ptr(), have.min(size));
            free(object.as_ptr());
        }
    } else if size <= have {
        // A block need not become smaller.
        return object.as_ptr();
    }
    to
}
