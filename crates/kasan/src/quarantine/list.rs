//! A list of freed objects, oldest first, linked through the objects.

use core::ptr::NonNull;

/// Links a freed object into quarantine. Three words, aligned as a word on every machine.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Link {
    next: Option<NonNull<Link>>,
    cache: usize,
    bytes: usize,
}

impl Link {
    pub(super) const fn new(cache: usize, bytes: usize) -> Self {
        Self {
            next: None,
            cache,
            bytes,
        }
    }

    pub(super) const fn cache(&self) -> usize {
        self.cache
    }
}

#[derive(Debug)]
pub(super) struct List {
    first: Option<NonNull<Link>>,
    last: Option<NonNull<Link>>,
    bytes: usize,
}

// SAFETY: Q1: what a list links is the list's alone, in whatever context it is.
unsafe impl Send for List {}

impl List {
    pub(super) const EMPTY: Self = Self {
        first: None,
        last: None,
        bytes: 0,
    };

    pub(super) const fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Puts an object at the end.
    ///
    /// # Safety
    /// Q1, Q2: the link is valid and initialised, the caller's, and on no list.
    pub(super) unsafe fn push(&mut self, link: NonNull<Link>) {
        // SAFETY: the link is the caller's, as promised.
        self.bytes += unsafe {
            (*link.as_ptr()).next = None;
            (*link.as_ptr()).bytes
        };
        match self.last.replace(link) {
            // SAFETY: Q2: on this list, which we have alone.
            Some(last) => unsafe { (*last.as_ptr()).next = Some(link) },
            None => self.first = Some(link),
        }
    }

    /// Takes the oldest object.
    pub(super) fn pop(&mut self) -> Option<NonNull<Link>> {
        let link = self.first?;
        // SAFETY: Q2: on this list, which we have alone.
        let Link { next, bytes, .. } = unsafe { link.read() };
        self.first = next;
        if next.is_none() {
            self.last = None;
        }
        self.bytes -= bytes;
        Some(link)
    }

    /// Moves all of `other` to the end.
    pub(super) fn append(&mut self, other: &mut Self) {
        let Self { first, last, bytes } = core::mem::replace(other, Self::EMPTY);
        let Some(head) = first else { return };
        match self.last {
            // SAFETY: Q2: on this list, which we have alone.
            Some(mine) => unsafe { (*mine.as_ptr()).next = Some(head) },
            None => self.first = Some(head),
        }
        self.last = last;
        self.bytes += bytes;
    }

    /// Moves the objects whose cache is chosen to the end of `out`; all stay in order.
    pub(super) fn split(&mut self, chosen: &impl Fn(usize) -> bool, out: &mut Self) {
        let mut kept = Self::EMPTY;
        while let Some(link) = self.pop() {
            // SAFETY: Q1, Q2: it left this list and is ours until it is on another.
            unsafe {
                if chosen(link.read().cache) {
                    out.push(link);
                } else {
                    kept.push(link);
                }
            }
        }
        *self = kept;
    }
}
