//! Lists of slabs: a node's partial, full and free ones, a CPU's partial and full ones.

use core::ptr::{NonNull, null_mut};
use flagstone_host::Host;

use crate::record::{ListId, Neighbours, Record};

/// A doubly linked list of slabs through their records.
pub(crate) struct SlabList<H: Host> {
    first: *mut Record<H>,
    last: *mut Record<H>,
    len: usize,
}

impl<H: Host> SlabList<H> {
    pub(crate) const fn new() -> Self {
        Self {
            first: null_mut(),
            last: null_mut(),
            len: 0,
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn first(&self) -> Option<NonNull<Record<H>>> {
        NonNull::new(self.first)
    }

    /// The slab at the other end: the one that has been on the list longest.
    pub(crate) fn last(&self) -> Option<NonNull<Record<H>>> {
        NonNull::new(self.last)
    }

    /// Puts a slab at the front.
    ///
    /// # Safety
    /// The caller holds the lock of the list's place (S5); the slab is on no list.
    pub(crate) unsafe fn push(&mut self, slab: NonNull<Record<H>>, id: ListId) {
        // SAFETY: records of listed slabs are live and ours under the lock (S5).
        unsafe {
            let record = slab.as_ptr();
            (*record).list = id;
            (*record).links.list = Neighbours {
                next: self.first,
                prev: null_mut(),
            };
            if let Some(first) = self.first.as_mut() {
                first.links.list.prev = record;
            } else {
                self.last = record;
            }
            self.first = record;
        }
        self.len += 1;
    }

    /// Takes a slab out.
    ///
    /// # Safety
    /// The caller holds the lock of the list's place (S5); the slab is on this list.
    pub(crate) unsafe fn remove(&mut self, slab: NonNull<Record<H>>) {
        // SAFETY: as for `push`; its neighbours are on the same list.
        unsafe {
            let record = slab.as_ptr();
            let Neighbours { next, prev } = (*record).links.list;
            match next.as_mut() {
                Some(next) => next.links.list.prev = prev,
                None => self.last = prev,
            }
            match prev.as_mut() {
                Some(prev) => prev.links.list.next = next,
                None => self.first = next,
            }
            (*record).links = Record::NO_LINKS;
            (*record).list = ListId::None;
        }
        self.len -= 1;
    }

    /// Calls `each` with every slab.
    ///
    /// # Safety
    /// The caller holds the lock of the list's place (S5); `each` does not change the list.
    pub(crate) unsafe fn for_each(&self, mut each: impl FnMut(NonNull<Record<H>>)) {
        let mut at = self.first;
        while let Some(slab) = NonNull::new(at) {
            each(slab);
            // SAFETY: listed slabs are live (S5).
            at = unsafe { (*at).links.list.next };
        }
    }
}
