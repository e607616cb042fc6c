//! The plain form: one stack without any protection, for a program of one thread (P20). It is the floor that the other
//! forms are compared with.

use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;

use flagstone_host::{ArrayParams, CpuCache, Push};
use flagstone_types::{AllocError, CpuId};

use super::ArrayForm;
use super::arrays;
use super::room::{Header, Room};

/// Unprotected arrays; only for one thread.
#[derive(Clone, Copy, Debug)]
pub struct Plain;

/// A stack without protection. It counts as CPU 0's.
#[derive(Debug)]
pub struct PlainArray {
    room: Room,
}

impl ArrayForm for Plain {
    type Array = PlainArray;

    fn make(params: ArrayParams) -> Result<PlainArray, AllocError> {
        let room = Room::new(params.capacity, false)?;
        // Every use below relies on the one stack being there.
        room.header(CpuId(0)).ok_or(AllocError::OutOfMemory)?;
        Ok(PlainArray { room })
    }

    fn drain(array: &PlainArray, cpu: CpuId, take: &mut dyn FnMut(&[NonNull<u8>])) {
        if cpu == CpuId(0) {
            array.room.drain(cpu, take);
        }
    }
}

impl PlainArray {
    #[inline(always)]
    fn header(&self) -> &Header {
        // SAFETY: P11, `make` found that id 0 has a slice.
        unsafe { &*self.room.stack().cast() }
    }

    #[inline(always)]
    fn count(&self) -> usize {
        self.header().count.load(Ordering::Relaxed) as usize
    }

    #[inline(always)]
    fn commit(&self, count: usize) {
        self.header().count.store(count as u64, Ordering::Relaxed);
    }
}

// SAFETY: P20, only one thread uses it, so each call is indivisible; A1 to A4 follow.
unsafe impl CpuCache for PlainArray {
    #[inline]
    fn pop(&self) -> Option<NonNull<u8>> {
        let top = self.count().checked_sub(1)?;
        if arrays::is_stopped() {
            return None;
        }
        // SAFETY: P11, a slot below the count.
        let object = unsafe { Room::slots(self.header()).add(top).read() };
        self.commit(top);
        NonNull::new(object)
    }

    #[inline]
    unsafe fn push(&self, object: NonNull<u8>) -> Push {
        let count = self.count();
        // SAFETY: P11, P15: a slot below the count, or the header's second word, which is no object's address.
        let top = unsafe {
            Room::slots(self.header())
                .wrapping_add(count)
                .wrapping_sub(1)
                .read()
        };
        if arrays::is_stopped() {
            return Push::Full;
        }
        if top == object.as_ptr() {
            return Push::OnTop;
        }
        if count >= self.header().limit.load(Ordering::Relaxed) as usize {
            return Push::Full;
        }
        // SAFETY: P11, the count is below the capacity.
        unsafe { Room::slots(self.header()).add(count).write(object.as_ptr()) };
        self.commit(count + 1);
        Push::Done
    }

    fn pop_n(&self, into: &mut [MaybeUninit<NonNull<u8>>]) -> usize {
        let taken = if arrays::is_stopped() {
            0
        } else {
            self.count().min(into.len())
        };
        let left = self.count() - taken;
        // SAFETY: P11, slots below the count.
        unsafe {
            into.as_mut_ptr()
                .copy_from_nonoverlapping(Room::slots(self.header()).add(left).cast(), taken);
        }
        self.commit(left);
        taken
    }

    unsafe fn push_n(&self, objects: &[NonNull<u8>]) -> usize {
        // From the last: the run that ends the slice, in its order.
        let limit = self.header().limit.load(Ordering::Relaxed) as usize;
        let room = if arrays::is_stopped() {
            0
        } else {
            limit.saturating_sub(self.count())
        };
        let from = &objects[objects.len() - room.min(objects.len())..];
        // SAFETY: P11, slots from the count up to the limit.
        unsafe {
            let to = Room::slots(self.header())
                .add(self.count())
                .cast::<NonNull<u8>>();
            to.copy_from_nonoverlapping(from.as_ptr(), from.len());
        }
        self.commit(self.count() + from.len());
        from.len()
    }

    fn set_limit(&self, cpu: CpuId, limit: u32) {
        if cpu == CpuId(0) {
            self.room.set_limit(cpu, limit);
        }
    }

    fn limit(&self, cpu: CpuId) -> u32 {
        if cpu == CpuId(0) {
            self.room.limit(cpu)
        } else {
            0
        }
    }

    fn len(&self, cpu: CpuId) -> u32 {
        if cpu == CpuId(0) {
            self.room.len(cpu)
        } else {
            0
        }
    }

    fn tag(&self) -> u16 {
        self.room.tag()
    }
}
