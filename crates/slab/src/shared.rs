//! The array that the CPUs of a node share: a stack of free objects under the node's lock (S8).
//!
//! It has no slots until its memory is there; until then objects go to their slabs.

use core::mem::MaybeUninit;
use core::ptr::NonNull;
use flagstone_frames::{Frames, PageRun};
use flagstone_host::Host;

/// The stack of objects that the CPUs of a node share.
pub(crate) struct Shared {
    slots: NonNull<NonNull<u8>>,
    pub(crate) len: u32,
    pub(crate) limit: u32,
    pub(crate) capacity: u32,
    /// The least number of objects in it since the reaper last looked: what was idle.
    pub(crate) low: u32,
    pub(crate) memory: Option<PageRun>,
}

// SAFETY: the slots are reached only through the owner's lock (S8).
unsafe impl Send for Shared {}

impl Shared {
    /// A shared array that holds nothing until it is given memory.
    pub(crate) const fn new(limit: u32) -> Self {
        Self {
            slots: NonNull::dangling(),
            len: 0,
            limit,
            capacity: 0,
            low: 0,
            memory: None,
        }
    }

    /// Gives the array its slots.
    pub(crate) fn provide<H: Host>(&mut self, frames: &Frames<H>, run: PageRun, capacity: u32) {
        self.slots = frames.host().frame_ptr(run.start()).cast();
        self.capacity = capacity;
        self.memory = Some(run);
    }

    /// The objects, the last one on top.
    pub(crate) fn objects(&self) -> &[NonNull<u8>] {
        // SAFETY: the first `len` slots are written; the array is ours under the lock (S8).
        unsafe { core::slice::from_raw_parts(self.slots.as_ptr(), self.len as usize) }
    }

    /// Room for up to `n` more objects within the limit.
    fn room(&mut self, n: usize) -> &mut [MaybeUninit<NonNull<u8>>] {
        let most = self.limit.min(self.capacity);
        let n = n.min(most.saturating_sub(self.len) as usize);
        // SAFETY: `len + n <= capacity`, the number of slots, which are ours (S8).
        unsafe {
            core::slice::from_raw_parts_mut(self.slots.add(self.len as usize).cast().as_ptr(), n)
        }
    }

    /// Takes the top `n` objects off, `n` at most `len`.
    pub(crate) fn drop_top(&mut self, n: usize) {
        self.len -= n as u32;
        self.low = self.low.min(self.len);
    }

    /// Puts as many of `objects` as there is room for on top, from its end; returns how many.
    pub(crate) fn push_n(&mut self, objects: &[NonNull<u8>]) -> usize {
        let room = self.room(objects.len());
        let n = room.len();
        room.write_copy_of_slice(&objects[objects.len() - n..]);
        self.len += n as u32;
        n
    }

    /// Lets `fill` write up to `n` objects on top; it returns how many it wrote, from the start.
    pub(crate) fn fill(
        &mut self,
        n: usize,
        fill: impl FnOnce(&mut [MaybeUninit<NonNull<u8>>]) -> usize,
    ) -> usize {
        let n = fill(self.room(n));
        self.len += n as u32;
        n
    }
}
