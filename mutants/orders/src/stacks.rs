//! The arrays of a board: a stack per CPU under an exchange lock, as a process has without restartable sequences.

use crate::board::Board;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use flagstone_host::{ArrayParams, CpuCache, Cpus, Host, Push};
use flagstone_types::{AllocError, CpuId};
use flagstone_weak::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering::*};
use std::sync::Arc;

#[derive(Debug, Default)]
struct Stack {
    locked: AtomicBool,
    count: AtomicU32,
    limit: AtomicU32,
    slots: Vec<AtomicPtr<u8>>,
}

#[derive(Debug)]
pub(crate) struct Stacks {
    stacks: Vec<Stack>,
    tag: u16,
}

/// The arrays of one cache.
#[derive(Debug)]
pub(crate) struct Array<const SHIFT: u32> {
    board: &'static Board<SHIFT>,
    stacks: Arc<Stacks>,
}

/// Proof that arrays are stopped.
#[derive(Debug)]
pub(crate) struct Stopped<const SHIFT: u32>(&'static Board<SHIFT>);

impl<const SHIFT: u32> Drop for Stopped<SHIFT> {
    fn drop(&mut self) {
        self.0.stopped.fetch_sub(1, SeqCst);
    }
}

impl<const SHIFT: u32> Array<SHIFT> {
    fn stack(&self, cpu: CpuId) -> &Stack {
        &self.stacks.stacks[cpu.index()]
    }

    fn empty(&self, cpu: CpuId, take: &mut dyn FnMut(&[NonNull<u8>])) {
        let stack = self.stack(cpu);
        let claimed = stack.count.swap(0, SeqCst) as usize;
        let objects: Vec<_> = stack.slots[..claimed].iter().map(object).collect();
        if !objects.is_empty() {
            take(&objects);
        }
    }

    fn section<R>(&self, refused: R, body: impl FnOnce(&Stack, u32) -> R) -> R {
        let stack = self.stack(self.board.current_cpu());
        if stack.locked.swap(true, SeqCst) {
            return refused;
        }
        let result = if self.board.stopped.load(SeqCst) != 0 {
            refused
        } else {
            body(stack, stack.count.load(Relaxed))
        };
        stack.locked.store(false, Release);
        result
    }
}

fn object(slot: &AtomicPtr<u8>) -> NonNull<u8> {
    NonNull::new(slot.load(Relaxed)).expect("live slots are written")
}

// SAFETY: A1 to A11: one section at a time on a stack; who stops waits until each lock was free after its mark, and a section
// that takes the lock later sees the mark before it reads the count.
unsafe impl<const SHIFT: u32> CpuCache for Array<SHIFT> {
    fn pop(&self) -> Option<NonNull<u8>> {
        self.section(None, |stack, count| {
            let top = count.checked_sub(1)?;
            stack.count.store(top, Relaxed);
            Some(object(&stack.slots[top as usize]))
        })
    }

    unsafe fn push(&self, new: NonNull<u8>) -> Push {
        self.section(Push::Full, |stack, count| {
            if count > 0 && object(&stack.slots[count as usize - 1]) == new {
                return Push::OnTop;
            }
            if count >= stack.limit.load(Relaxed) {
                return Push::Full;
            }
            stack.slots[count as usize].store(new.as_ptr(), Relaxed);
            stack.count.store(count + 1, Relaxed);
            Push::Done
        })
    }

    fn pop_n(&self, into: &mut [MaybeUninit<NonNull<u8>>]) -> usize {
        self.section(0, |stack, count| {
            let n = into.len().min(count as usize);
            let from = count as usize - n;
            for (place, slot) in into[..n].iter_mut().zip(&stack.slots[from..]) {
                place.write(object(slot));
            }
            stack.count.store(from as u32, Relaxed);
            n
        })
    }

    unsafe fn push_n(&self, objects: &[NonNull<u8>]) -> usize {
        self.section(0, |stack, count| {
            let room = stack.limit.load(Relaxed).saturating_sub(count) as usize;
            let n = room.min(objects.len());
            for (i, object) in objects[objects.len() - n..].iter().enumerate() {
                stack.slots[count as usize + i].store(object.as_ptr(), Relaxed);
            }
            stack.count.store(count + n as u32, Relaxed);
            n
        })
    }

    fn set_limit(&self, cpu: CpuId, limit: u32) {
        let stack = self.stack(cpu);
        stack
            .limit
            .store(limit.min(stack.slots.len() as u32), Relaxed);
    }

    fn limit(&self, cpu: CpuId) -> u32 {
        self.stack(cpu).limit.load(Relaxed)
    }

    fn len(&self, cpu: CpuId) -> u32 {
        self.stack(cpu).count.load(Relaxed)
    }

    fn tag(&self) -> u16 {
        self.stacks.tag
    }
}

impl<const SHIFT: u32> Host for &'static Board<SHIFT> {
    type Array = Array<SHIFT>;
    type Stopped = Stopped<SHIFT>;

    fn new_array(&self, params: ArrayParams) -> Result<Array<SHIFT>, AllocError> {
        let stack = |_| Stack {
            slots: (0..params.capacity).map(|_| AtomicPtr::default()).collect(),
            ..Stack::default()
        };
        let mut arrays = self.arrays.borrow_mut();
        let stacks = Arc::new(Stacks {
            stacks: (0..self.possible_cpus()).map(stack).collect(),
            tag: arrays.len() as u16 + 1,
        });
        arrays.push(Arc::clone(&stacks));
        Ok(Array {
            board: self,
            stacks,
        })
    }

    fn stop_arrays(&self) -> Option<Stopped<SHIFT>> {
        self.stopped.fetch_add(1, SeqCst);
        let proof = Stopped(self);
        let arrays = self.arrays.borrow().clone();
        for stack in arrays.iter().flat_map(|stacks| &stacks.stacks) {
            while stack.locked.load(SeqCst) {
                flagstone_weak::spin();
            }
        }
        Some(proof)
    }

    fn drain(
        &self,
        _: &Stopped<SHIFT>,
        array: &Array<SHIFT>,
        cpu: CpuId,
        take: &mut dyn FnMut(&[NonNull<u8>]),
    ) {
        array.empty(cpu, take);
    }

    fn drain_unshared(
        &self,
        array: &mut Array<SHIFT>,
        cpu: CpuId,
        take: &mut dyn FnMut(&[NonNull<u8>]),
    ) {
        array.empty(cpu, take);
    }
}
