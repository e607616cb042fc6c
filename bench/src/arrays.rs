//! A per-CPU array by itself, filled with pointers to a block of its own: what a form costs without a cache around it.

use crate::Error;
use crate::loops::opaque;
use crate::thread_local_array::{self, Place};
use core::cell::UnsafeCell;
use core::hint::black_box;
use core::ptr::NonNull;
use flagstone_host::{ArrayParams, CpuCache, Cpus, Push};
use flagstone_malloc::process::{ArrayForm, ProcessWith};
use flagstone_types::CpuId;

const SLOTS: u32 = 128;
/// Pointers in the array to begin with, so that it is neither nearly empty nor nearly full.
const FILLED: usize = 64;

/// Something to point to, with room for a link.
#[repr(align(64))]
struct Slot(
    #[expect(dead_code, reason = "forms that link objects write here")] UnsafeCell<[u64; 8]>,
);

fn slots() -> Vec<Slot> {
    (0..FILLED).map(|_| Slot(UnsafeCell::new([0; 8]))).collect()
}

fn pointers(slots: &[Slot]) -> impl Iterator<Item = NonNull<u8>> {
    slots.iter().map(|slot| NonNull::from(slot).cast())
}

/// An array and the pointers in it (B4).
pub(crate) struct Bare<F: ArrayForm> {
    array: F::Array,
    /// What found no room, and what serves when the array of another CPU turns out to be empty.
    spare: Vec<NonNull<u8>>,
    _slots: Vec<Slot>,
}

impl<F: ArrayForm> Bare<F> {
    /// An array of the running process, which has been started.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no room for it.
    pub(crate) fn new(process: ProcessWith<F>) -> Result<Self, Error> {
        let params = ArrayParams {
            capacity: SLOTS,
            link_offset: 0,
        };
        let array = F::make(params).map_err(Error::memory("an array"))?;
        for cpu in 0..process.possible_cpus() {
            array.set_limit(CpuId(cpu), SLOTS);
        }
        let slots = slots();
        let mut bare = Self {
            array,
            spare: Vec::with_capacity(FILLED),
            _slots: slots,
        };
        let all: Vec<_> = pointers(&bare._slots).collect();
        all.into_iter().for_each(|object| bare.push(object));
        Ok(bare)
    }

    #[inline(always)]
    fn push(&mut self, object: NonNull<u8>) {
        // SAFETY: B4.
        if unsafe { self.array.push(object) } != Push::Done {
            self.keep(object);
        }
    }

    #[cold]
    #[inline(never)]
    fn keep(&mut self, object: NonNull<u8>) {
        self.spare.push(object);
    }

    #[cold]
    #[inline(never)]
    fn another(&mut self) -> Option<NonNull<u8>> {
        self.spare.pop()
    }

    /// `n` times a pop and a push.
    #[inline(always)]
    pub(crate) fn pairs(&mut self, n: u32) {
        for _ in 0..n {
            let popped = match self.array.pop() {
                Some(object) => Some(object),
                None => self.another(),
            };
            if let Some(object) = popped {
                self.push(opaque(object));
            }
        }
    }

    /// How many pointers the array of this form holds, on all CPUs, and are spare.
    #[cfg(test)]
    fn held(&self, process: ProcessWith<F>) -> usize {
        let held = |cpu| self.array.len(CpuId(cpu)) as usize;
        (0..process.possible_cpus()).map(held).sum::<usize>() + self.spare.len()
    }
}

/// The thread-local array, filled in the same way.
pub(crate) struct Floor {
    place: Place,
    _slots: Vec<Slot>,
}

impl Floor {
    pub(crate) fn new() -> Self {
        let place = Place::find();
        thread_local_array::publish(place);
        let slots = slots();
        pointers(&slots).for_each(|object| {
            thread_local_array::push(place, object);
        });
        Self {
            place,
            _slots: slots,
        }
    }

    /// `n` times a pop and a push.
    #[inline(always)]
    pub(crate) fn pairs(&self, n: u32) {
        for _ in 0..n {
            if let Some(object) = thread_local_array::pop(self.place) {
                thread_local_array::push(self.place, opaque(object));
            }
        }
    }

    /// The same by calls of functions that are told the class.
    #[inline(always)]
    pub(crate) fn called_pairs(&self, n: u32) {
        let class = black_box(0);
        let pop = black_box(thread_local_array::pop_called as fn(usize) -> Option<NonNull<u8>>);
        let push = black_box(thread_local_array::push_called as fn(usize, NonNull<u8>) -> bool);
        for _ in 0..n {
            if let Some(object) = pop(class) {
                push(class, object);
            }
        }
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        // The slots end here, and so do pointers to them.
        while thread_local_array::pop(self.place).is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flagstone_malloc::process::{ExchangeLock, Restartable, TransactionArray, TransactionList};

    fn keeps_its_pointers<F: ArrayForm>() {
        let process = ProcessWith::<F>::start();
        let mut bare = Bare::<F>::new(process).unwrap();
        assert_eq!(bare.held(process), FILLED);
        bare.pairs(1000);
        assert_eq!(bare.held(process), FILLED);
    }

    #[test]
    fn every_form_keeps_its_pointers() {
        keeps_its_pointers::<Restartable>();
        keeps_its_pointers::<ExchangeLock>();
        keeps_its_pointers::<TransactionArray>();
        keeps_its_pointers::<TransactionList>();
    }

    #[test]
    fn the_floor_is_empty_when_it_ends() {
        let floor = Floor::new();
        floor.pairs(1000);
        floor.called_pairs(1000);
        let place = floor.place;
        assert!(thread_local_array::pop(place).is_some());
        drop(floor);
        assert_eq!(thread_local_array::pop(place), None);
    }
}
