//! The exchange form: a lock byte in the header, taken by an atomic exchange and released by a plain store.
//!
//! It is what arrays fall back to without restartable sequences, in the same place with the same drain, and a form of
//! its own for comparison. The count is stored last here as well, so a fork may happen at any moment (P16).

use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;

use flagstone_host::{ArrayParams, CpuCache, Push};
use flagstone_types::{AllocError, CpuId};

use super::arrays;
use super::room::{Header, Room};
use super::{ArrayForm, syscall};

/// Looks at a held lock this often before another thread is let run.
const SPINS: u32 = 64;
/// Lets other threads run this often before the stack counts as empty or full.
const ROUNDS: u32 = 100;

/// An array under exchange locks.
#[derive(Clone, Copy, Debug)]
pub struct ExchangeLock;

/// Per-CPU stacks under exchange locks.
#[derive(Debug)]
pub struct ExchangeArray {
    room: Room,
}

impl ArrayForm for ExchangeLock {
    type Array = ExchangeArray;

    fn make(params: ArrayParams) -> Result<ExchangeArray, AllocError> {
        Ok(ExchangeArray {
            room: Room::new(params.capacity, true)?,
        })
    }

    fn drain(array: &ExchangeArray, cpu: CpuId, take: &mut dyn FnMut(&[NonNull<u8>])) {
        array.room.drain(cpu, take);
    }
}

/// A stack that its holder has to itself.
struct Held<'a> {
    header: &'a Header,
    count: usize,
}

impl<'a> Held<'a> {
    /// Takes the lock of the current CPU's stack; `None` while arrays are stopped, or if its holder does not let go.
    #[inline]
    fn take(room: &'a Room) -> Option<Self> {
        let header = room
            .header(arrays::current_cpu())
            .or_else(|| room.header(CpuId(0)))?;
        if header.lock.swap(1, Ordering::SeqCst) != 0 && !Self::wait(header) {
            return None;
        }
        // Looked at after the lock was taken: whoever stops arrays then either finds the lock held or is seen here.
        if arrays::is_stopped() {
            header.lock.store(0, Ordering::Release);
            return None;
        }
        Some(Self {
            header,
            count: header.count.load(Ordering::Relaxed) as usize,
        })
    }

    /// Waits for the lock, not for ever: the holder may be a thread that this one keeps from running. `false` if it was
    /// not to be had.
    #[cold]
    #[inline(never)]
    fn wait(header: &Header) -> bool {
        for round in 0..ROUNDS {
            for _ in 0..SPINS {
                core::hint::spin_loop();
                if header.lock.load(Ordering::Relaxed) == 0
                    && header.lock.swap(1, Ordering::SeqCst) == 0
                {
                    return true;
                }
            }
            syscall::wait_a_little(round);
        }
        false
    }

    fn slots(&self) -> *mut *mut u8 {
        Room::slots(self.header)
    }

    fn limit(&self) -> usize {
        self.header.limit.load(Ordering::Relaxed) as usize
    }

    fn commit(&self, count: usize) {
        self.header.count.store(count as u64, Ordering::Relaxed);
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        self.header.lock.store(0, Ordering::Release);
    }
}

/// Takes the pointer on top.
#[inline]
pub(super) fn pop(room: &Room) -> Option<NonNull<u8>> {
    let held = Held::take(room)?;
    let top = held.count.checked_sub(1)?;
    // SAFETY: P11, P16: a slot below the count.
    let object = unsafe { held.slots().add(top).read() };
    held.commit(top);
    NonNull::new(object)
}

/// As `CpuCache::push`.
#[inline]
pub(super) fn push(room: &Room, object: NonNull<u8>) -> Push {
    let Some(held) = Held::take(room) else {
        return Push::Full;
    };
    // SAFETY: P11, P16: a slot below the count.
    if held.count > 0 && unsafe { held.slots().add(held.count - 1).read() } == object.as_ptr() {
        return Push::OnTop;
    }
    if held.count >= held.limit() {
        return Push::Full;
    }
    // SAFETY: P11, P16: the slot at the count, which is below the capacity.
    unsafe { held.slots().add(held.count).write(object.as_ptr()) };
    held.commit(held.count + 1);
    Push::Done
}

/// As `CpuCache::pop_n`.
pub(super) fn pop_n(room: &Room, into: &mut [MaybeUninit<NonNull<u8>>]) -> usize {
    let Some(held) = Held::take(room) else {
        return 0;
    };
    let taken = held.count.min(into.len());
    let left = held.count - taken;
    // SAFETY: P11, P16: slots below the count, not null; the lengths fit.
    unsafe {
        into.as_mut_ptr()
            .copy_from_nonoverlapping(held.slots().add(left).cast(), taken);
    }
    held.commit(left);
    taken
}

/// As `CpuCache::push_n`.
pub(super) fn push_n(room: &Room, objects: &[NonNull<u8>]) -> usize {
    let Some(held) = Held::take(room) else {
        return 0;
    };
    let taken = held.limit().saturating_sub(held.count).min(objects.len());
    let from = &objects[objects.len() - taken..];
    // SAFETY: P11, P16: slots from the count up to the limit.
    unsafe {
        held.slots()
            .add(held.count)
            .cast::<NonNull<u8>>()
            .copy_from_nonoverlapping(from.as_ptr(), taken);
    }
    held.commit(held.count + taken);
    taken
}

// SAFETY: A1: P16, one context at a time changes a stack, and P17 for drains. A2: the commit is one store. A3: the lock is
// released and acquired. A4: objects are not touched.
unsafe impl CpuCache for ExchangeArray {
    #[inline]
    fn pop(&self) -> Option<NonNull<u8>> {
        pop(&self.room)
    }

    #[inline]
    unsafe fn push(&self, object: NonNull<u8>) -> Push {
        push(&self.room, object)
    }

    fn pop_n(&self, into: &mut [MaybeUninit<NonNull<u8>>]) -> usize {
        pop_n(&self.room, into)
    }

    unsafe fn push_n(&self, objects: &[NonNull<u8>]) -> usize {
        push_n(&self.room, objects)
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
