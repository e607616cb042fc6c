//! Alien caches: objects of a remote node, freed here, waiting to travel home together.
//!
//! Each node of a cache has one small stack for every other node, under a lock of its own. A
//! machine with one node has none.

use core::ptr::NonNull;
use flagstone_frames::{Frames, PageRun};
use flagstone_host::{Host, Mutex, classes};
use flagstone_types::Nid;

/// A stack of objects of one remote node.
pub(crate) struct Alien<H: Host> {
    pub(crate) stack: Mutex<H, classes::Alien, AlienStack>,
}

/// What an alien cache's lock protects.
pub(crate) struct AlienStack {
    slots: NonNull<NonNull<u8>>,
    len: u32,
    limit: u32,
}

// SAFETY: the slots are reached only through the stack's lock (S8).
unsafe impl Send for AlienStack {}

impl AlienStack {
    /// Puts an object on the stack unless it is full.
    pub(crate) fn push(&mut self, object: NonNull<u8>) -> bool {
        if self.len == self.limit {
            return false;
        }
        // SAFETY: `len < limit`, the number of slots (S8).
        unsafe { self.slots.add(self.len as usize).write(object) };
        self.len += 1;
        true
    }

    /// The object on top.
    pub(crate) fn top(&self) -> Option<NonNull<u8>> {
        self.objects().last().copied()
    }

    /// The objects, the last one on top.
    pub(crate) fn objects(&self) -> &[NonNull<u8>] {
        // SAFETY: the first `len` slots are written (S8).
        unsafe { core::slice::from_raw_parts(self.slots.as_ptr(), self.len()) }
    }

    /// How many objects are on the stack.
    pub(crate) const fn len(&self) -> usize {
        self.len as usize
    }

    /// Takes up to `into.len()` objects off the top.
    pub(crate) fn pop_n(&mut self, into: &mut [NonNull<u8>]) -> usize {
        let n = into.len().min(self.len as usize);
        self.len -= n as u32;
        for (i, slot) in into[..n].iter_mut().enumerate() {
            // SAFETY: slots below the old length are written (S8).
            *slot = unsafe { self.slots.add(self.len as usize + i).read() };
        }
        n
    }
}

/// The alien caches of one node: one for each node, the one for itself unused; or none.
pub(crate) struct AlienCaches<H: Host> {
    first: Option<NonNull<Alien<H>>>,
    nodes: u32,
}

// SAFETY: a shared pointer to `Sync` values that live as long as the cache (S10).
unsafe impl<H: Host> Send for AlienCaches<H> {}
// SAFETY: as above.
unsafe impl<H: Host> Sync for AlienCaches<H> {}

impl<H: Host> AlienCaches<H> {
    pub(crate) const fn none() -> Self {
        Self {
            first: None,
            nodes: 0,
        }
    }

    /// Pages that the alien caches of all nodes of one cache take.
    pub(crate) fn pages(nodes: u32, limit: u32) -> usize {
        (nodes as usize * Self::bytes_per_node(nodes, limit)).div_ceil(H::PAGE_SIZE)
    }

    const fn bytes_per_node(nodes: u32, limit: u32) -> usize {
        let each = size_of::<Alien<H>>() + limit as usize * size_of::<usize>();
        (nodes as usize * each).next_multiple_of(64)
    }

    /// Makes those of node `nid` in their part of `memory`.
    pub(crate) fn make(
        frames: &Frames<H>,
        memory: &PageRun,
        nid: Nid,
        nodes: u32,
        limit: u32,
    ) -> Self {
        let base = frames.host().frame_ptr(memory.start());
        let start = nid.index() * Self::bytes_per_node(nodes, limit);
        // SAFETY: the run has `pages()` pages, so the node's part lies within it, and it is the
        // cache's own (M1); headers come first, aligned as a cache line, then the slots.
        unsafe {
            let first = base.add(start).cast::<Alien<H>>();
            let slots = first.add(nodes as usize).cast::<NonNull<u8>>();
            for to in 0..nodes as usize {
                let slots = slots.add(to * limit as usize);
                first.add(to).write(Alien {
                    stack: lock_api::Mutex::new(AlienStack {
                        slots,
                        len: 0,
                        limit,
                    }),
                });
            }
            Self {
                first: Some(first),
                nodes,
            }
        }
    }

    /// The one for objects of node `to`.
    pub(crate) fn to(&self, to: Nid) -> Option<&Alien<H>> {
        let first = self.first?;
        if u32::from(to.0) >= self.nodes {
            return None;
        }
        // SAFETY: there are `nodes` of them, made by `make`, alive as long as the cache (S10).
        Some(unsafe { first.add(to.index()).as_ref() })
    }
}
