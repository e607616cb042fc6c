//! What is wrong with an object, as a report.

use core::ptr::NonNull;

use flagstone_host::Host;
use flagstone_kasan::Stack;
use flagstone_kasan::report::{
    Bug, Context, Damage, DamagedRange, Dump, Event, Fix, Object, ObjectState, Place, Problem,
    Report, SlabUse,
};
use flagstone_types::{Bytes, FreeError};

use super::shape::{STATE_ALLOCATED, Shape};
use crate::cache::Cache;
use crate::caches::Caches;

/// Bytes of an object, and around it, that a report shows at most.
const OBJECT_BYTES: usize = 64;
const FRAMES: usize = 32;

/// What is wrong.
#[derive(Clone, Copy)]
pub(super) struct Wrong {
    problem: Problem<'static>,
    range: Option<(NonNull<u8>, usize, u8)>,
}

impl Wrong {
    /// `bytes` bytes from `from` on are not `wanted`.
    pub(super) const fn bytes(
        problem: Problem<'static>,
        from: NonNull<u8>,
        bytes: usize,
        wanted: u8,
    ) -> Self {
        Self {
            problem,
            range: Some((from, bytes, wanted)),
        }
    }

    /// What is known of the object was written over.
    pub(super) const fn metadata() -> Self {
        Self {
            problem: Problem::ObjectPadding,
            range: None,
        }
    }

    /// It can not be freed.
    pub(super) const fn pointer(error: FreeError) -> Self {
        let problem = match error {
            FreeError::AlreadyFree => Problem::AlreadyFree,
            FreeError::Interior { offset } => Problem::Interior { offset },
            FreeError::Foreign => Problem::Foreign,
            _ => Problem::InvalidPointer,
        };
        Self {
            problem,
            range: None,
        }
    }
}

impl<H: Host> Caches<H> {
    /// Reports something that is wrong with an object of the cache, before it is put right.
    ///
    /// # Safety
    /// The object is one of the cache's.
    pub(super) unsafe fn tell(
        &self,
        cache: &Cache<H>,
        shape: &Shape,
        object: NonNull<u8>,
        wrong: Wrong,
    ) {
        let address = object.addr().get();
        // SAFETY: S15; volatile reads of memory that a program may be writing to.
        let meta = unsafe { shape.meta_of(object).as_ptr().read_volatile() };
        let depot = (self.policy.debug.depot)();
        let (slab, used) = self.slab_use(cache, object);
        let place = Object {
            cache: cache.name(),
            start: address,
            size: Bytes(cache.object_size()),
            requested: Some(Bytes((meta.requested as usize).min(cache.object_size()))),
            state: if meta.state.into_inner() == STATE_ALLOCATED {
                ObjectState::Allocated
            } else {
                ObjectState::Freed
            },
            allocated: Event::of(&meta.allocated, depot),
            freed: Event::of(&meta.freed, depot),
            offset_in_slab: Some(Bytes(address - slab)),
        };
        let mut before = [0; 16];
        let mut contents = [0; OBJECT_BYTES];
        let mut zone = [0; 32];
        let size = cache.object_size();
        let zone_bytes = (shape.meta as usize - size).min(zone.len());
        // SAFETY: S15: all of them lie within the stride.
        unsafe {
            let read = |from: NonNull<u8>, into: &mut [u8]| {
                for (n, byte) in into.iter_mut().enumerate() {
                    *byte = from.add(n).read_volatile();
                }
            };
            if shape.left as usize >= before.len() {
                read(object.sub(before.len()), &mut before);
            }
            read(object, &mut contents[..size.min(OBJECT_BYTES)]);
            read(object.add(size), &mut zone[..zone_bytes]);
        }
        let dumps = [
            Dump {
                label: "Redzone",
                address: address - before.len(),
                bytes: &before,
            },
            Dump {
                label: "Object",
                address,
                bytes: &contents[..size.min(OBJECT_BYTES)],
            },
            Dump {
                label: "Redzone",
                address: address + size,
                bytes: &zone[..zone_bytes],
            },
        ];
        let first = usize::from((shape.left as usize) < before.len());
        let last = dumps.len() - usize::from(zone_bytes == 0);
        // SAFETY: as promised to `Wrong::bytes`.
        let found = wrong
            .range
            .map(|(from, ..)| unsafe { from.read_volatile() });
        let range = wrong
            .range
            .zip(found)
            .map(|((from, bytes, wanted), found)| DamagedRange {
                from: from.addr().get(),
                to: from.addr().get() + bytes - 1,
                offset: Bytes(from.addr().get() - slab),
                found,
                expected: wanted,
            });
        let fix = match wrong.range {
            Some((from, bytes, value)) => Fix::Restoring {
                what: match wrong.problem {
                    Problem::Poison => "Poison",
                    Problem::LeftRedzone => "Left Redzone",
                    _ => "Right Redzone",
                },
                from: from.addr().get(),
                bytes,
                value,
            },
            None => Fix::NotFreed { object: address },
        };
        self.send(
            Bug::Damage(Damage {
                cache: cache.name(),
                problem: wrong.problem,
                object: address,
                range,
                slab: Some(SlabUse {
                    address: slab,
                    objects: cache.layout().num,
                    used,
                }),
            }),
            Place::Object(place),
            &dumps[first..last],
            &[fix],
        );
    }

    /// Reports a pointer that was freed to the cache and is no object of it.
    pub(super) fn tell_pointer(&self, cache: &Cache<H>, object: NonNull<u8>, error: FreeError) {
        let address = object.addr().get();
        self.send(
            Bug::Damage(Damage {
                cache: cache.name(),
                problem: Wrong::pointer(error).problem,
                object: address,
                range: None,
                slab: None,
            }),
            Place::Unknown,
            &[],
            &[Fix::NotFreed { object: address }],
        );
    }

    fn send(&self, bug: Bug<'_>, place: Place<'_>, dumps: &[Dump<'_>], fixes: &[Fix<'_>]) {
        let host = self.host();
        let mut frames = [0; FRAMES];
        let depth = host.backtrace(&mut frames);
        let by = Context {
            task: (self.policy.debug.task)(),
            name: "",
            cpu: host.current_cpu(),
            now: host.now(),
            stack: Stack::new(&frames[..depth]),
        };
        let report = Report {
            place,
            dumps,
            fixes,
            ..Report::new(bug, by)
        };
        (self.policy.debug.report)(&report);
    }

    /// The address of an object's slab, and how many of its objects are out; a moment ago.
    fn slab_use(&self, cache: &Cache<H>, object: NonNull<u8>) -> (usize, u32) {
        match cache.slab_of(&self.frames, object) {
            // SAFETY: the record of a slab; a number that may be written meanwhile, read as it is.
            Ok((start, _, record)) => unsafe {
                (
                    start,
                    (&raw const (*record.as_ptr()).active).read_volatile(),
                )
            },
            Err(_) => (object.addr().get(), 0),
        }
    }
}
