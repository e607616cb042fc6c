//! The arrays of a board: a stack per CPU under an exchange lock.

use super::Board;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use flagstone_host::{ArrayParams, CpuCache, Cpus, Host, Push};
use flagstone_types::{AllocError, CpuId};
use shuttle::sync::atomic::{AtomicBool, AtomicU32};
use shuttle::thread::yield_now;
use std::sync::Arc;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

#[derive(Debug)]
struct Stack {
    locked: AtomicBool,
    count: AtomicU32,
    limit: AtomicU32,
    slots: Vec<AtomicPtr<u8>>,
}

#[derive(Debug)]
pub(super) struct Stacks {
    stacks: Vec<Stack>,
    tag: u16,
}

/// The arrays of one cache.
#[derive(Debug)]
pub(crate) struct Array {
    board: &'static Board,
    stacks: Arc<Stacks>,
}

impl Drop for Array {
    fn drop(&mut self) {
        // What unwinds after a failure is outside of the model, where its atomics can not be used.
        let stacks = if std::thread::panicking() {
            &[][..]
        } else {
            &self.stacks.stacks
        };
        for stack in stacks {
            assert_eq!(stack.count.load(SeqCst), 0, "an array is dropped in use");
        }
        let mut arrays = self.board.arrays.lock().expect("not poisoned");
        arrays.retain(|stacks| stacks.tag != self.stacks.tag);
    }
}

/// Proof that arrays are stopped.
#[derive(Debug)]
pub(crate) struct Stopped(&'static Board);

impl Drop for Stopped {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.0.stopped.fetch_sub(1, SeqCst);
        }
    }
}

const ROUNDS: u32 = 4;

impl Array {
    /// Claims the stack of `cpu` by one exchange and hands out what was in it (A9).
    fn empty(&self, cpu: CpuId, take: &mut dyn FnMut(&[NonNull<u8>])) {
        let stack = &self.stacks.stacks[cpu.index()];
        let claimed = stack.count.swap(0, SeqCst) as usize;
        let objects: Vec<_> = stack.slots[..claimed].iter().map(object).collect();
        for piece in objects.chunks(2) {
            take(piece);
        }
    }

    /// Runs `body` on the current CPU's stack with its count, under its lock; `refused` if arrays are stopped or the lock is not to be had.
    fn section<R>(&self, refused: R, body: impl FnOnce(&Stack, u32) -> R) -> R {
        let stack = &self.stacks.stacks[self.board.current_cpu().index()];
        for _ in 0..ROUNDS {
            if stack.locked.swap(true, SeqCst) {
                yield_now();
                continue;
            }
            let stopped = || self.board.stopped.load(SeqCst) != 0;
            let (stopped, count) = if self.board.kind.count_first {
                let count = stack.count.load(SeqCst);
                (stopped(), count)
            } else {
                let stopped = stopped();
                (stopped, stack.count.load(SeqCst))
            };
            let result = if stopped { refused } else { body(stack, count) };
            stack.locked.store(false, SeqCst);
            return result;
        }
        refused
    }
}

fn object(slot: &AtomicPtr<u8>) -> NonNull<u8> {
    NonNull::new(slot.load(Relaxed)).expect("live slots are written")
}

// SAFETY: A1 to A11: one section at a time on a stack; who stops waits until each lock was free after its mark, and a section
// that takes the lock later sees the mark before it reads the count.
unsafe impl CpuCache for Array {
    fn pop(&self) -> Option<NonNull<u8>> {
        self.section(None, |stack, count| {
            let top = count.checked_sub(1)?;
            let object = object(&stack.slots[top as usize]);
            stack.count.store(top, SeqCst);
            Some(object)
        })
    }

    unsafe fn push(&self, object_in: NonNull<u8>) -> Push {
        self.section(Push::Full, |stack, count| {
            if count > 0 && object(&stack.slots[count as usize - 1]) == object_in {
                return Push::OnTop;
            }
            if count >= stack.limit.load(SeqCst) {
                return Push::Full;
            }
            stack.slots[count as usize].store(object_in.as_ptr(), Relaxed);
            stack.count.store(count + 1, SeqCst);
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
            stack.count.store(from as u32, SeqCst);
            n
        })
    }

    unsafe fn push_n(&self, objects: &[NonNull<u8>]) -> usize {
        self.section(0, |stack, count| {
            let room = stack.limit.load(SeqCst).saturating_sub(count) as usize;
            let n = room.min(objects.len());
            for (i, object) in objects[objects.len() - n..].iter().enumerate() {
                stack.slots[count as usize + i].store(object.as_ptr(), Relaxed);
            }
            stack.count.store(count + n as u32, SeqCst);
            n
        })
    }

    fn set_limit(&self, cpu: CpuId, limit: u32) {
        let stack = &self.stacks.stacks[cpu.index()];
        stack
            .limit
            .store(limit.min(stack.slots.len() as u32), SeqCst);
    }

    fn limit(&self, cpu: CpuId) -> u32 {
        self.stacks.stacks[cpu.index()].limit.load(SeqCst)
    }

    fn len(&self, cpu: CpuId) -> u32 {
        self.stacks.stacks[cpu.index()].count.load(SeqCst)
    }

    fn tag(&self) -> u16 {
        self.stacks.tag
    }
}

impl Host for &'static Board {
    type Array = Array;
    type Stopped = Stopped;

    fn new_array(&self, params: ArrayParams) -> Result<Array, AllocError> {
        let stack = |_| Stack {
            locked: AtomicBool::new(false),
            count: AtomicU32::new(0),
            limit: AtomicU32::new(0),
            slots: (0..params.capacity).map(|_| AtomicPtr::default()).collect(),
        };
        let stacks = (0..self.kind.cpus).map(stack).collect();
        let mut arrays = self.arrays.lock().expect("not poisoned");
        let tag = (1..).find(|tag| arrays.iter().all(|s| s.tag != *tag));
        let stacks = Arc::new(Stacks {
            stacks,
            tag: tag.ok_or(AllocError::Exists)?,
        });
        arrays.push(Arc::clone(&stacks));
        Ok(Array {
            board: self,
            stacks,
        })
    }

    fn stop_arrays(&self) -> Option<Stopped> {
        self.stopped.fetch_add(1, SeqCst);
        let proof = Stopped(self);
        let arrays = self.arrays.lock().expect("not poisoned").clone();
        for stack in arrays.iter().flat_map(|stacks| &stacks.stacks) {
            while stack.locked.load(SeqCst) {
                yield_now();
            }
        }
        Some(proof)
    }

    fn drain(&self, _: &Stopped, array: &Array, cpu: CpuId, take: &mut dyn FnMut(&[NonNull<u8>])) {
        array.empty(cpu, take);
    }

    fn drain_unshared(&self, array: &mut Array, cpu: CpuId, take: &mut dyn FnMut(&[NonNull<u8>])) {
        array.empty(cpu, take);
    }
}
