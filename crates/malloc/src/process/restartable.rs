//! The form in production: restartable sections, or exchange locks where the process has none.
//!
//! Which of the two was decided at start. The fast path does not ask: without restartable sequences the bound is 0, every
//! section fails, and the slow side, which a failed section comes to anyway, goes by the lock.

use core::mem::MaybeUninit;
use core::ptr::NonNull;

use flagstone_host::{ArrayParams, CpuCache, Push};
use flagstone_types::{AllocError, CpuId};

use super::arrays::{self, Mode};
use super::room::Room;
use super::{ArrayForm, exchange, fast};

/// Arrays by restartable sequences, or under exchange locks.
#[derive(Clone, Copy, Debug)]
pub struct Restartable;

/// Per-CPU stacks of the form in production.
#[derive(Debug)]
pub struct RestartableArray {
    room: Room,
}

impl ArrayForm for Restartable {
    type Array = RestartableArray;

    fn make(params: ArrayParams) -> Result<RestartableArray, AllocError> {
        let has_lock = arrays::mode() == Mode::Exchange;
        Ok(RestartableArray {
            room: Room::new(params.capacity, has_lock)?,
        })
    }

    fn drain(array: &RestartableArray, cpu: CpuId, take: &mut dyn FnMut(&[NonNull<u8>])) {
        array.room.drain(cpu, take);
    }
}

impl RestartableArray {
    #[cold]
    #[inline(never)]
    fn push_slowly(&self, object: NonNull<u8>, result: i64) -> Push {
        match result {
            0 if arrays::mode() == Mode::Exchange => exchange::push(&self.room, object),
            0 => Push::Full,
            _ => Push::OnTop,
        }
    }

    #[cold]
    #[inline(never)]
    fn pop_slowly(&self) -> Option<NonNull<u8>> {
        if arrays::mode() == Mode::Exchange {
            exchange::pop(&self.room)
        } else {
            None
        }
    }
}

// SAFETY: A1, A2: P12, and P17 for drains. A3: a stack is used by its CPU only, and the kernel orders the threads that take turns
// on a CPU; a drain follows a barrier on every CPU. A4: objects are not touched. P16 where there are locks.
unsafe impl CpuCache for RestartableArray {
    #[inline]
    fn pop(&self) -> Option<NonNull<u8>> {
        // SAFETY: P11, the tag is that of this array.
        let object = unsafe { fast::pop(self.room.stack()) };
        NonNull::new(object).or_else(|| self.pop_slowly())
    }

    #[inline]
    unsafe fn push(&self, object: NonNull<u8>) -> Push {
        // SAFETY: P11, the tag is that of this array.
        let result = unsafe { fast::push(self.room.stack(), object.as_ptr()) };
        if result > 0 {
            Push::Done
        } else {
            self.push_slowly(object, result)
        }
    }

    fn pop_n(&self, into: &mut [MaybeUninit<NonNull<u8>>]) -> usize {
        if arrays::mode() == Mode::Exchange {
            return exchange::pop_n(&self.room, into);
        }
        // SAFETY: P11, the tag is that of this array; there is room for as many pointers, and none of them is null.
        unsafe { fast::pop_n(self.room.stack(), into.as_mut_ptr().cast(), into.len()) }
    }

    unsafe fn push_n(&self, objects: &[NonNull<u8>]) -> usize {
        if arrays::mode() == Mode::Exchange {
            return exchange::push_n(&self.room, objects);
        }
        let end = objects.as_ptr_range().end.cast();
        // SAFETY: P11, the tag is that of this array; so many pointers lie before the end.
        unsafe { fast::push_n(self.room.stack(), end, objects.len()) }
    }

    fn set_limit(&self, cpu: CpuId, limit: u32) {
        self.room.set_limit(cpu, limit);
    }

    fn limit(&self, cpu: CpuId) -> u32 {
        self.room.limit(cpu)
    }

    fn len(&self, cpu: CpuId) -> u32 {
        self.room.len(cpu)
    }

    fn tag(&self) -> u16 {
        self.room.tag()
    }
}
