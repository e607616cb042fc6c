//! Arrays of the core as sections that an interrupt restarts (S1 to S6).
//!
//! An [`Array`] is an offset into the areas of all CPUs, where each has its stack: count, limit, slots.

use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::barrier;
use crate::kernel::Kernel;
use crate::per_cpu::{Area, STACK_BYTES, STACKS_AT};
use crate::section::{
    flagstone_pop, flagstone_pop_n, flagstone_push, flagstone_push_n, flagstone_stopped,
};
use flagstone_host::{ArrayParams, CpuCache, Host, Mutex, Push, classes};
use flagstone_types::{AllocError, CpuId};

/// Stacks are made of units of this many bytes, one cache line.
const UNIT: usize = 64;
const UNITS: usize = STACK_BYTES / UNIT;
/// Bytes before the slots.
const HEADER: usize = 8;
/// Slots a stack has at most.
const MOST_SLOTS: u32 = 4096;
/// Objects that a drain hands over at once.
const CHUNK: usize = 32;

/// Which units are taken, a bit each.
static UNITS_TAKEN: Mutex<Kernel, classes::HostInner, Units> =
    lock_api::Mutex::new(Units([0; UNITS / 64]));

struct Units([u64; UNITS / 64]);

impl Units {
    fn is_taken(&self, unit: usize) -> bool {
        self.0[unit / 64] >> (unit % 64) & 1 != 0
    }

    /// Takes the first run of `n` free units.
    fn take(&mut self, n: usize) -> Option<usize> {
        let mut start = 0;
        while start + n <= UNITS {
            match (start..start + n).rev().find(|&unit| self.is_taken(unit)) {
                Some(taken) => start = taken + 1,
                None => {
                    self.flip(start, n);
                    return Some(start);
                }
            }
        }
        None
    }

    fn flip(&mut self, start: usize, n: usize) {
        for unit in start..start + n {
            self.0[unit / 64] ^= 1 << (unit % 64);
        }
    }
}

/// A stack of object pointers on each CPU.
#[derive(Debug)]
pub struct Array {
    /// Where the stack lies in an area.
    offset: usize,
    capacity: u32,
}

/// Proof that no section of any array commits (host A5).
#[derive(Debug)]
pub struct Stopped(());

impl Stopped {
    /// Stops the arrays without a barrier: for this CPU's stacks only, and where no section of it is under way, as in an interrupt that
    /// has sent one back.
    pub(crate) fn in_interrupt() -> Self {
        flagstone_stopped.fetch_add(1, Ordering::SeqCst);
        Self(())
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        flagstone_stopped.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Array {
    const fn units(capacity: u32) -> usize {
        (HEADER + capacity as usize * 8).div_ceil(UNIT)
    }

    const fn unit(&self) -> usize {
        (self.offset - STACKS_AT) / UNIT
    }

    /// Count and limit of a CPU's stack.
    fn header(&self, cpu: CpuId) -> Option<&'static [AtomicU32; 2]> {
        let header = Area::of(cpu)?.at(self.offset).cast();
        // SAFETY: P1, S6: the area is there for ever; these words are read and written atomically by Rust code.
        Some(unsafe { header.as_ref() })
    }

    /// Empties a CPU's stack (S5): the caller has made sure that no section runs on it.
    fn empty(&self, cpu: CpuId, take: &mut dyn FnMut(&[NonNull<u8>])) {
        let (Some(area), Some([count, _])) = (Area::of(cpu), self.header(cpu)) else {
            return;
        };
        let slots = area.at(self.offset + HEADER).cast::<AtomicPtr<u8>>();
        let mut left = count.swap(0, Ordering::SeqCst) as usize;
        while left > 0 {
            let n = left.min(CHUNK);
            let mut chunk = [NonNull::dangling(); CHUNK];
            for (i, object) in chunk[..n].iter_mut().enumerate() {
                // SAFETY: S5: slots below the count are ours now and hold objects that were pushed, which are not null.
                *object = unsafe {
                    let slot = slots.add(left - n + i).as_ref();
                    NonNull::new_unchecked(slot.load(Ordering::Relaxed))
                };
            }
            take(&chunk[..n]);
            left -= n;
        }
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        UNITS_TAKEN
            .lock()
            .flip(self.unit(), Self::units(self.capacity));
    }
}

// SAFETY: host A1 and A2 by S1 to S3; A3: x86 does not reorder stores with older stores, nor loads with older loads, and between CPUs a
// pointer moves by a drain, which claims it by an exchange; A4: objects are not touched; A5, A6, A9 by S4 and S5; A7: there are no calls;
// A10: the order of the tests in `push`; A11 by S6.
unsafe impl CpuCache for Array {
    #[inline]
    fn pop(&self) -> Option<NonNull<u8>> {
        NonNull::new(flagstone_pop(self.offset))
    }

    #[inline]
    unsafe fn push(&self, object: NonNull<u8>) -> Push {
        // SAFETY: S6: the stack is this array's; the caller gives the object.
        match unsafe { flagstone_push(self.offset, object.as_ptr()) } {
            0 => Push::Full,
            1 => Push::Done,
            _ => Push::OnTop,
        }
    }

    #[inline]
    fn pop_n(&self, into: &mut [MaybeUninit<NonNull<u8>>]) -> usize {
        let n = into.len().min(MOST_SLOTS as usize) as u32;
        // SAFETY: S6: the stack is this array's; there is room for `n` pointers, and what is written are objects, not null.
        unsafe { flagstone_pop_n(self.offset, into.as_mut_ptr().cast(), n) as usize }
    }

    #[inline]
    unsafe fn push_n(&self, objects: &[NonNull<u8>]) -> usize {
        // More than a stack's slots can not go in: the last ones are looked at only.
        let n = objects.len().min(MOST_SLOTS as usize);
        let last = &objects[objects.len() - n..];
        // SAFETY: S6: the stack is this array's; there are `n` pointers, which the caller gives.
        unsafe { flagstone_push_n(self.offset, last.as_ptr().cast(), n as u32) as usize }
    }

    fn set_limit(&self, cpu: CpuId, limit: u32) {
        if let Some([_, word]) = self.header(cpu) {
            word.store(limit.min(self.capacity), Ordering::Relaxed);
        }
    }

    fn limit(&self, cpu: CpuId) -> u32 {
        self.header(cpu)
            .map_or(0, |[_, limit]| limit.load(Ordering::Relaxed))
    }

    fn len(&self, cpu: CpuId) -> u32 {
        self.header(cpu)
            .map_or(0, |[count, _]| count.load(Ordering::Relaxed))
    }

    fn tag(&self) -> u16 {
        const { assert!(UNITS < u16::MAX as usize) };
        self.unit() as u16 + 1
    }
}

impl Host for Kernel {
    type Array = Array;
    type Stopped = Stopped;

    fn new_array(&self, params: ArrayParams) -> Result<Array, AllocError> {
        if params.capacity > MOST_SLOTS {
            return Err(AllocError::TooLarge);
        }
        let unit = UNITS_TAKEN
            .lock()
            .take(Array::units(params.capacity))
            .ok_or(AllocError::OutOfMemory)?;
        let array = Array {
            offset: STACKS_AT + unit * UNIT,
            capacity: params.capacity,
        };
        for area in Area::all() {
            if let Some([count, limit]) = array.header(area.id) {
                count.store(0, Ordering::Relaxed);
                limit.store(0, Ordering::Relaxed);
            }
        }
        Ok(array)
    }

    fn stop_arrays(&self) -> Option<Stopped> {
        flagstone_stopped.fetch_add(1, Ordering::SeqCst);
        barrier::wait();
        Some(Stopped(()))
    }

    fn drain(
        &self,
        _stopped: &Stopped,
        array: &Array,
        cpu: CpuId,
        take: &mut dyn FnMut(&[NonNull<u8>]),
    ) {
        array.empty(cpu, take);
    }

    fn drain_unshared(&self, array: &mut Array, cpu: CpuId, take: &mut dyn FnMut(&[NonNull<u8>])) {
        array.empty(cpu, take);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_taken_in_runs_and_given_back() {
        let mut units = Units([0; UNITS / 64]);
        assert_eq!(units.take(100), Some(0));
        assert_eq!(units.take(3), Some(100));
        assert_eq!(units.take(1), Some(103));
        units.flip(100, 3);
        assert_eq!(units.take(4), Some(104), "the gap is too small");
        assert_eq!(units.take(2), Some(100));
        assert_eq!(units.take(1), Some(102));
    }

    #[test]
    fn units_run_out_as_a_value() {
        let mut units = Units([0; UNITS / 64]);
        assert_eq!(units.take(UNITS + 1), None);
        assert_eq!(units.take(UNITS), Some(0));
        assert_eq!(units.take(1), None);
        units.flip(UNITS - 2, 2);
        assert_eq!(units.take(3), None);
        assert_eq!(units.take(2), Some(UNITS - 2));
    }

    #[test]
    fn a_stack_has_room_for_its_header_and_slots() {
        assert_eq!(Array::units(7), 1);
        assert_eq!(Array::units(8), 2);
        assert_eq!(Array::units(120), 16);
    }
}
