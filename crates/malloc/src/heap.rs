//! The heap of the process: page frames, object caches, and how they come up at the first call.
//!
//! ```text
//!   entry      malloc, free …: which of the three a request goes to
//!     ├─ classes   up to 64 KiB: an object of a cache        (slab)
//!     ├─ large     up to 32 MiB: a run of page frames          (frames)
//!     └─ direct    beyond: a mapping of its own
//!   growth     more frames from the system when there are too few
//!   ageing     idle memory goes back to the system
//! ```

use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use flagstone_frames::Frames;
use flagstone_host::CpuCache;
use flagstone_slab::{ArrayTuning, Caches, LayoutPolicy, Policy};
use flagstone_types::AllocError;

use crate::classes::{self, CLASSES, COARSE, COARSE_MAX, COARSE_STEP, FINE, FINE_MAX, GRANULE};
use crate::growth::GROWTH;
use crate::process::Process;
use crate::process::fast::TAG_SHIFT;
use crate::{debug, fork, misuse};

/// Where the array for each number of granules and of coarse steps is in every slice, in bytes; 0 until the heap is up.
#[repr(C, align(64))]
pub struct Places {
    /// For sizes up to [`FINE_MAX`], by granules.
    pub fine: [AtomicU32; FINE_MAX / GRANULE + 1],
    /// For sizes up to [`COARSE_MAX`], by coarse steps.
    pub coarse: [AtomicU32; COARSE_MAX / COARSE_STEP + 1],
}

/// The one [`Places`] of the process.
pub static PLACES: Places = Places {
    fine: [const { AtomicU32::new(0) }; FINE_MAX / GRANULE + 1],
    coarse: [const { AtomicU32::new(0) }; COARSE_MAX / COARSE_STEP + 1],
};

/// Bytes of the objects of each array by its tag; 0 for one that is no class of malloc's. Few of its pages are ever touched.
static USABLE: [AtomicU32; 1 << 16] = [const { AtomicU32::new(0) }; 1 << 16];

/// Bytes of the object that lies where the map says `place`; 0 if it is of no class.
#[inline]
pub(crate) fn usable_at(place: u32) -> usize {
    let tag = (place.div_ceil(1 << TAG_SHIFT)) as usize & 0xffff;
    USABLE[tag].load(Ordering::Relaxed) as usize
}

/// The caches, once they are up.
static CACHES: AtomicPtr<Caches<Process>> = AtomicPtr::new(null_mut());

const DOWN: u32 = 0;
const STARTING: u32 = 1;
const UP: u32 = 2;
const BROKEN: u32 = 3;

static STATE: AtomicU32 = AtomicU32::new(DOWN);

/// The caches, if they are up.
#[inline]
pub(crate) fn caches() -> Option<&'static Caches<Process>> {
    // SAFETY: written once, by `start`, with what lives as long as the process.
    unsafe { CACHES.load(Ordering::Acquire).as_ref() }
}

/// The caches; the first call brings them up.
///
/// # Errors
/// [`AllocError::OutOfMemory`] if the system gave no memory to begin with.
pub fn heap() -> Result<&'static Caches<Process>, AllocError> {
    match caches() {
        Some(caches) => Ok(caches),
        None => start(),
    }
}

#[cold]
#[inline(never)]
fn start() -> Result<&'static Caches<Process>, AllocError> {
    match STATE.compare_exchange(DOWN, STARTING, Ordering::Acquire, Ordering::Acquire) {
        Ok(_) => {}
        Err(_) => {
            let mut spins = 0;
            while STATE.load(Ordering::Acquire) == STARTING {
                flagstone_host::Cpus::relax(&Process::start(), spins);
                spins = spins.saturating_add(1);
            }
            return caches().ok_or(AllocError::OutOfMemory);
        }
    }
    match bring_up() {
        Ok(caches) => {
            publish_classes(caches);
            // Every object that a program gets is one that hardening knows (D1).
            crate::harden::start(caches);
            CACHES.store(core::ptr::from_ref(caches).cast_mut(), Ordering::Release);
            STATE.store(UP, Ordering::Release);
            // Before the first allocation is handed out, and able to allocate if the C library does.
            fork::register();
            fill_places(caches);
            crate::live::begin();
            if let Some(guard) = &caches.host().settings().guard {
                crate::guard::start(guard);
            }
            debug::report_unknown();
            crate::choices::apply(caches);
            Ok(caches)
        }
        Err(error) => {
            STATE.store(BROKEN, Ordering::Release);
            Err(error)
        }
    }
}

fn bring_up() -> Result<&'static Caches<Process>, AllocError> {
    let frames = Frames::new(Process::start())?;
    // A process owns no memory that only some callers may use.
    frames.set_min_free(Some(0));
    // SAFETY: a static.
    unsafe { frames.set_reclaimer(&raw const GROWTH) };
    let wanted = Process::start().settings().harden;
    let policy = Policy {
        layout: crate::harden::layout(wanted, POLICY.layout),
        ..POLICY
    };
    let caches = Caches::boot(frames, policy, &CLASSES)?;
    Ok(caches)
}

fn publish_classes(caches: &Caches<Process>) {
    for (class, place) in BY_CLASS.iter().enumerate() {
        if let Some(cache) = caches.class_cache(class) {
            let tag = cache.array().tag() as usize;
            // What a debugged object's user may touch is what was asked for, which its slab knows.
            let usable = if cache.is_debugged() {
                0
            } else {
                cache.usable_size() as u32
            };
            USABLE[tag].store(usable, Ordering::Relaxed);
            place.store((tag << TAG_SHIFT) as u32, Ordering::Relaxed);
        }
    }
}

/// Where the array of each class is in every slice, in bytes.
static BY_CLASS: [AtomicU32; classes::COUNT] = [const { AtomicU32::new(0) }; classes::COUNT];

/// Where the array of a class is in every slice, in bytes; 0 until the heap is up.
#[inline(always)]
pub(crate) fn class_place(class: usize) -> u32 {
    BY_CLASS[class].load(Ordering::Relaxed)
}

/// From here on the fast path of allocations works.
fn fill_places(caches: &Caches<Process>) {
    if crate::harden::is_on() {
        // The fast path of allocations finds no array, ever (D1).
        return;
    }
    let place = |class: u8| {
        let tag = caches
            .class_cache(class as usize)
            .map_or(0, |c| c.array().tag());
        u32::from(tag) << TAG_SHIFT
    };
    for (slot, class) in PLACES.fine.iter().zip(FINE) {
        slot.store(place(class), Ordering::Relaxed);
    }
    for (slot, class) in PLACES.coarse.iter().zip(COARSE) {
        slot.store(place(class), Ordering::Relaxed);
    }
}

/// Makes the fast paths find no array for any size, so that allocations come to the slow path: [`restore_places`] undoes it. Frees go on as they
/// are.
pub(crate) fn withdraw_places() {
    for place in PLACES.fine.iter().chain(&PLACES.coarse) {
        place.store(0, Ordering::Relaxed);
    }
}

/// Has the fast paths find their arrays again.
pub(crate) fn restore_places() {
    if let Some(caches) = caches() {
        fill_places(caches);
    }
}

/// Bytes of objects that a CPU's array may hold to begin with, and at most.
const ARRAY_BYTES: (usize, usize) = (16 << 10, 512 << 10);
/// The same for the array that the CPUs of a node share.
const SHARED_BYTES: (usize, usize) = (128 << 10, 8 << 20);

/// The arrays of a cache of objects of `size` bytes. Limits are in bytes and grow with use.
fn arrays(size: usize) -> ArrayTuning {
    let objects =
        |bytes: usize, least: usize, most: usize| (bytes / size).clamp(least, most) as u32;
    let limit = objects(ARRAY_BYTES.0, 4, 128);
    ArrayTuning {
        capacity: objects(ARRAY_BYTES.1, 8, 2046),
        limit,
        batch: limit.div_ceil(2),
        shared_capacity: objects(SHARED_BYTES.1, 32, 16 << 10),
        shared_limit: objects(SHARED_BYTES.0, 16, 1 << 10),
    }
}

/// What a process chooses. A slab is at least a frame of 64 KiB; larger ones where little is wasted that way.
pub const POLICY: Policy = Policy {
    layout: LayoutPolicy {
        min_order: 0,
        max_order: 3,
        min_objects: 16,
        cache_line: 64,
        in_record: true,
        in_object: true,
        zeroed: false,
        tail: 0,
    },
    arrays,
    alien_limit: 32,
    adaptive: true,
    bad_free: misuse::bad_free,
    debug: debug::POLICY,
};

/// The largest object that comes from a cache.
pub(crate) const LARGEST_OBJECT: usize = classes::LARGEST;
