//! The per-CPU array of each cache: on one CPU without interrupts, a stack.
//!
//! Stacks are in a static table; an array is its place there. Loads and stores are atomic only so that the table may be a static:
//! they compile to plain moves.

use core::mem::MaybeUninit;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering::Relaxed};

use crate::Board;
use flagstone_host::{ArrayParams, CpuCache, Host, Push};
use flagstone_types::{AllocError, CpuId};

const ARRAYS: usize = 64;
const SLOTS: usize = 128;

struct Stack {
    in_use: AtomicBool,
    limit: AtomicU32,
    count: AtomicU32,
    slots: [AtomicPtr<u8>; SLOTS],
}

static STACKS: [Stack; ARRAYS] = [const {
    Stack {
        in_use: AtomicBool::new(false),
        limit: AtomicU32::new(0),
        count: AtomicU32::new(0),
        slots: [const { AtomicPtr::new(null_mut()) }; SLOTS],
    }
}; ARRAYS];

/// How many hold the arrays stopped.
static STOPS: AtomicU32 = AtomicU32::new(0);

impl Stack {
    fn top(&self) -> Option<NonNull<u8>> {
        let top = (self.count.load(Relaxed) as usize).checked_sub(1)?;
        NonNull::new(self.slots[top].load(Relaxed))
    }

    fn pop(&self) -> Option<NonNull<u8>> {
        let object = self.top()?;
        self.count.store(self.count.load(Relaxed) - 1, Relaxed);
        Some(object)
    }
}

/// A stack of the table, which goes back when this is dropped.
#[derive(Debug)]
pub struct Array(usize);

impl Array {
    fn stack(&self) -> &'static Stack {
        &STACKS[self.0]
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        self.stack().in_use.store(false, Relaxed);
    }
}

// SAFETY: E1: each call is indivisible. A1 by E4: a count goes down by one for each pointer handed out. A2, A3: nobody
// interrupts, and there is one CPU.
unsafe impl CpuCache for Array {
    fn pop(&self) -> Option<NonNull<u8>> {
        if STOPS.load(Relaxed) > 0 {
            None
        } else {
            self.stack().pop()
        }
    }

    unsafe fn push(&self, object: NonNull<u8>) -> Push {
        let stack = self.stack();
        let count = stack.count.load(Relaxed);
        if STOPS.load(Relaxed) > 0 {
            Push::Full
        } else if stack.top() == Some(object) {
            Push::OnTop
        } else if count >= stack.limit.load(Relaxed) {
            Push::Full
        } else {
            stack.slots[count as usize].store(object.as_ptr(), Relaxed);
            stack.count.store(count + 1, Relaxed);
            Push::Done
        }
    }

    fn pop_n(&self, into: &mut [MaybeUninit<NonNull<u8>>]) -> usize {
        let count = into.len().min(self.len(CpuId(0)) as usize);
        for n in (0..count).rev() {
            match self.pop() {
                Some(object) => _ = into[n].write(object),
                None => return 0, // stopped: not even the first was popped
            }
        }
        count
    }

    unsafe fn push_n(&self, objects: &[NonNull<u8>]) -> usize {
        let stack = self.stack();
        let room = stack
            .limit
            .load(Relaxed)
            .saturating_sub(stack.count.load(Relaxed)) as usize;
        let taken = if STOPS.load(Relaxed) > 0 {
            0
        } else {
            room.min(objects.len())
        };
        for object in &objects[objects.len() - taken..] {
            let count = stack.count.load(Relaxed);
            stack.slots[count as usize].store(object.as_ptr(), Relaxed);
            stack.count.store(count + 1, Relaxed);
        }
        taken
    }

    fn set_limit(&self, _cpu: CpuId, limit: u32) {
        self.stack().limit.store(limit.min(SLOTS as u32), Relaxed);
    }

    fn limit(&self, _cpu: CpuId) -> u32 {
        self.stack().limit.load(Relaxed)
    }

    fn len(&self, _cpu: CpuId) -> u32 {
        self.stack().count.load(Relaxed)
    }

    fn tag(&self) -> u16 {
        self.0 as u16 + 1
    }
}

/// Arrays neither take nor give while this lives.
#[derive(Debug)]
pub struct Stopped(());

impl Drop for Stopped {
    fn drop(&mut self) {
        STOPS.store(STOPS.load(Relaxed) - 1, Relaxed);
    }
}

impl Host for Board {
    type Array = Array;
    type Stopped = Stopped;

    fn new_array(&self, params: ArrayParams) -> Result<Array, AllocError> {
        if params.capacity as usize > SLOTS {
            return Err(AllocError::TooLarge);
        }
        let free = STACKS.iter().position(|stack| !stack.in_use.load(Relaxed));
        let place = free.ok_or(AllocError::Exists)?;
        STACKS[place].in_use.store(true, Relaxed);
        STACKS[place].limit.store(0, Relaxed);
        STACKS[place].count.store(0, Relaxed);
        Ok(Array(place))
    }

    fn stop_arrays(&self) -> Option<Stopped> {
        STOPS.store(STOPS.load(Relaxed) + 1, Relaxed);
        Some(Stopped(()))
    }

    fn drain(
        &self,
        _stopped: &Stopped,
        array: &Array,
        _cpu: CpuId,
        take: &mut dyn FnMut(&[NonNull<u8>]),
    ) {
        while let Some(object) = array.stack().pop() {
            take(&[object]);
        }
    }

    fn drain_unshared(&self, array: &mut Array, _cpu: CpuId, take: &mut dyn FnMut(&[NonNull<u8>])) {
        while let Some(object) = array.stack().pop() {
            take(&[object]);
        }
    }
}
