//! What happens to a debugged object: it is made with its slab, allocated, freed.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};

use flagstone_host::Host;
use flagstone_kasan::report::Problem;
use flagstone_kasan::{Handle, Track};
use flagstone_types::FreeError;

use super::damage::Wrong;
use super::shape::{
    Meta, POISON_END, POISON_FREE, POISON_INUSE, STATE_ALLOCATED, STATE_FREE, Shape, ZONE_ACTIVE,
    ZONE_INACTIVE,
};
use crate::cache::Cache;
use crate::caches::Caches;

/// Frames of a stack that are kept with an object: as many as Linux keeps.
const FRAMES: usize = 16;

impl Shape {
    /// What is known of an object.
    ///
    /// # Safety
    /// The object is one of a cache of this shape.
    pub(super) unsafe fn meta_of(&self, object: NonNull<u8>) -> NonNull<Meta> {
        // SAFETY: S15, within the object's stride, and aligned.
        unsafe { object.add(self.meta as usize).cast() }
    }

    /// Bytes of an object that were asked for.
    ///
    /// # Safety
    /// As [`Shape::meta_of`].
    pub(crate) unsafe fn requested(&self, object: NonNull<u8>) -> usize {
        // SAFETY: as promised.
        unsafe { (*self.meta_of(object).as_ptr()).requested as usize }
    }
}

/// The first and last of `bytes` bytes at `start` that are not `wanted`.
///
/// # Safety
/// They can be read.
unsafe fn differing(start: NonNull<u8>, bytes: usize, wanted: u8) -> Option<(usize, usize)> {
    // SAFETY: as promised. Volatile, since a program with a bug may write meanwhile.
    let differs = |n: &usize| unsafe { start.add(*n).read_volatile() } != wanted;
    // Almost always nothing differs: whole words are looked at first.
    let (word, wanted_word) = (size_of::<u64>(), u64::from_ne_bytes([wanted; 8]));
    let same = |n: &usize| {
        // SAFETY: as above; so many words lie within the bytes.
        unsafe { start.add(n * word).cast::<u64>().read_unaligned() == wanted_word }
    };
    let from = (0..bytes / word).take_while(same).count() * word;
    let first = (from..bytes).find(differs)?;
    Some((first, (first..bytes).rev().find(differs).unwrap_or(first)))
}

impl<H: Host> Caches<H> {
    /// Gives an object of a new slab its parts. The constructor has run.
    ///
    /// # Safety
    /// The object is one of the cache's, in a slab that is the caller's.
    pub(crate) unsafe fn debug_make(&self, cache: &Cache<H>, shape: &Shape, object: NonNull<u8>) {
        // SAFETY: S15: all parts lie within the stride.
        unsafe {
            shape.meta_of(object).write(Meta {
                state: AtomicU32::new(STATE_FREE),
                requested: 0,
                allocated: Track::default(),
                freed: Track::default(),
            });
            self.rest(cache, shape, object);
        }
    }

    /// Lays out a free object: poison and inactive red zones.
    ///
    /// # Safety
    /// As [`Caches::debug_make`], or the object is free and the caller's.
    unsafe fn rest(&self, cache: &Cache<H>, shape: &Shape, object: NonNull<u8>) {
        let size = cache.object_size();
        // SAFETY: S15.
        unsafe {
            if shape.poisons {
                object.write_bytes(POISON_FREE, size - 1);
                object.add(size - 1).write(POISON_END);
            }
            if shape.has_zones() {
                let left = shape.left as usize;
                object.sub(left).write_bytes(ZONE_INACTIVE, left);
                let right = shape.meta as usize - size;
                object.add(size).write_bytes(ZONE_INACTIVE, right);
            }
        }
    }

    /// The object was taken out of its slab for a user who asked for `requested` bytes.
    #[cold]
    pub(crate) fn debug_alloc(
        &self,
        cache: &Cache<H>,
        shape: &Shape,
        object: NonNull<u8>,
        requested: usize,
    ) {
        let size = cache.object_size();
        let requested = requested.min(size);
        // SAFETY: S15, S16: the object is nobody else's.
        unsafe {
            let meta = shape.meta_of(object);
            let state = (*meta.as_ptr())
                .state
                .swap(STATE_ALLOCATED, Ordering::AcqRel);
            if state != STATE_FREE {
                self.tell(cache, shape, object, Wrong::metadata());
            }
            if shape.has_zones() {
                let left = shape.left as usize;
                self.check(
                    cache,
                    shape,
                    object,
                    object.sub(left),
                    left,
                    ZONE_INACTIVE,
                    Problem::LeftRedzone,
                );
                let right = shape.meta as usize - size;
                self.check(
                    cache,
                    shape,
                    object,
                    object.add(size),
                    right,
                    ZONE_INACTIVE,
                    Problem::RightRedzone,
                );
            }
            if shape.poisons {
                self.check(
                    cache,
                    shape,
                    object,
                    object,
                    size - 1,
                    POISON_FREE,
                    Problem::Poison,
                );
                let end = object.add(size - 1);
                self.check(cache, shape, object, end, 1, POISON_END, Problem::Poison);
                object.write_bytes(POISON_INUSE, requested);
            }
            if shape.has_zones() {
                let left = shape.left as usize;
                object.sub(left).write_bytes(ZONE_ACTIVE, left);
                // Objects whose contents matter to somebody keep them.
                let from = if cache.keeps_contents() {
                    size
                } else {
                    requested
                };
                object
                    .add(from)
                    .write_bytes(ZONE_ACTIVE, shape.meta as usize - from);
            }
            (*meta.as_ptr()).requested = requested as u32;
            if shape.flags.contains(super::DebugFlags::TRACKS) {
                (*meta.as_ptr()).allocated = self.track();
            }
        }
    }

    /// A user frees the object. `false` if it is none that can be freed, which was reported.
    #[cold]
    pub(crate) fn debug_free(&self, cache: &Cache<H>, shape: &Shape, object: NonNull<u8>) -> bool {
        if let Err(error) = cache.start_of(&self.frames, object) {
            self.tell_pointer(cache, object, error);
            return false;
        }
        let size = cache.object_size();
        // SAFETY: S15; S16: who moves the state from allocated to free has the object.
        unsafe {
            let meta = shape.meta_of(object);
            let state = &(*meta.as_ptr()).state;
            match state.compare_exchange(
                STATE_ALLOCATED,
                STATE_FREE,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => {}
                Err(STATE_FREE) => {
                    self.tell(cache, shape, object, Wrong::pointer(FreeError::AlreadyFree));
                    return false;
                }
                Err(_) => {
                    // Whether it is allocated can not be told: it stays where it is.
                    self.tell(cache, shape, object, Wrong::metadata());
                    return false;
                }
            }
            let requested = ((*meta.as_ptr()).requested as usize).min(size);
            if shape.has_zones() {
                let left = shape.left as usize;
                self.check(
                    cache,
                    shape,
                    object,
                    object.sub(left),
                    left,
                    ZONE_ACTIVE,
                    Problem::LeftRedzone,
                );
                if !cache.keeps_contents() {
                    let rest = size - requested;
                    self.check(
                        cache,
                        shape,
                        object,
                        object.add(requested),
                        rest,
                        ZONE_ACTIVE,
                        Problem::KmallocRedzone,
                    );
                }
                let right = shape.meta as usize - size;
                self.check(
                    cache,
                    shape,
                    object,
                    object.add(size),
                    right,
                    ZONE_ACTIVE,
                    Problem::RightRedzone,
                );
            }
            if shape.flags.contains(super::DebugFlags::TRACKS) {
                (*meta.as_ptr()).freed = self.track();
            }
            self.rest(cache, shape, object);
        }
        true
    }

    /// Looks at some bytes of an object, tells of those that are not `wanted`, and puts them right.
    ///
    /// # Safety
    /// They are a part of the object that is the caller's.
    #[allow(
        clippy::too_many_arguments,
        reason = "each names one thing that a report says"
    )]
    unsafe fn check(
        &self,
        cache: &Cache<H>,
        shape: &Shape,
        object: NonNull<u8>,
        start: NonNull<u8>,
        bytes: usize,
        wanted: u8,
        problem: Problem<'static>,
    ) {
        // SAFETY: as promised.
        unsafe {
            let Some((first, last)) = differing(start, bytes, wanted) else {
                return;
            };
            let from = start.add(first);
            let wrong = Wrong::bytes(problem, from, last - first + 1, wanted);
            self.tell(cache, shape, object, wrong);
            from.write_bytes(wanted, last - first + 1);
        }
    }

    /// Who runs, now.
    fn track(&self) -> Track {
        let host = self.host();
        let mut frames = [0; FRAMES];
        let depth = host.backtrace(&mut frames);
        Track {
            when: host.now(),
            stack: (self.policy.debug.depot)()
                .map_or(Handle::NONE, |depot| depot.insert(&frames[..depth])),
            cpu: host.current_cpu(),
            task: (self.policy.debug.task)(),
        }
    }

    /// Bytes that the user of an object may touch: those that were asked for, if the cache is debugged.
    ///
    /// # Safety
    /// The object is an allocated one of the cache, and the caller's.
    #[must_use]
    pub unsafe fn requested_size(&self, cache: &Cache<H>, object: NonNull<u8>) -> usize {
        match &cache.debug {
            // SAFETY: S15.
            Some(shape) if !cache.keeps_contents() => unsafe {
                shape.requested(object).min(cache.object_size())
            },
            _ => cache.usable_size(),
        }
    }
}
