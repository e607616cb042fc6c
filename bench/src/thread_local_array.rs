//! The floor: a stack of pointers in static thread-local storage, as the fastest allocators have it for a class that is known.
//!
//! The stack checks what any such stack must check, empty and full, and nothing else.
//!
//! Each operation finds the stack anew, as operations do that stand at different places of a program. In a loop that keeps the address in
//! a register, a processor that renames memory may let the count go from one operation to the next without passing through
//! memory, which makes a pair about four times as cheap as it is anywhere else.
//!
//! A stack that is compiled in has a constant place. An allocator has one for each class, and finds it by a class that comes at run
//! time, in a function that is called: [`pop_called`] and [`push_called`] are that.

use core::cell::UnsafeCell;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicUsize, Ordering};

const SLOTS: usize = 128;
/// Stacks of a thread: one for each class.
const CLASSES: usize = 32;

struct Stack {
    count: usize,
    slots: [*mut u8; SLOTS],
}

thread_local! {
    static STACKS: UnsafeCell<[Stack; CLASSES]> =
        const { UnsafeCell::new([const { Stack { count: 0, slots: [null_mut(); SLOTS] } }; CLASSES]) };
}

/// Where the stack of every thread is, counted from its thread pointer: what a shared library keeps in a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place(usize);

impl Place {
    pub(crate) fn find() -> Self {
        let thread: usize;
        // SAFETY: B5; the word at the thread pointer is its own address.
        unsafe { core::arch::asm!("mov {0}, fs:[0]", out(reg) thread, options(nostack)) };
        let stack = STACKS.with(|stacks| stacks.get().expose_provenance());
        Self(stack.wrapping_sub(thread))
    }

    /// The stack of this thread, found by instructions that are neither moved nor left out.
    #[inline(always)]
    fn stack(self) -> *mut Stack {
        let mut stack = self.0;
        // SAFETY: as above.
        unsafe { core::arch::asm!("add {0}, fs:[0]", inout(reg) stack, options(nostack)) };
        core::ptr::with_exposed_provenance_mut(stack)
    }

    /// The stack of a class, below [`CLASSES`].
    #[inline(always)]
    fn of(self, class: usize) -> Self {
        Self(self.0 + class * size_of::<Stack>())
    }
}

/// The stacks' place, for who does not carry it along.
static PLACE: AtomicUsize = AtomicUsize::new(0);

/// Makes the called forms usable.
pub(crate) fn publish(place: Place) {
    PLACE.store(place.0, Ordering::Relaxed);
}

/// [`pop`] as a function, on the stack of a class that it is told.
#[inline(never)]
pub(crate) fn pop_called(class: usize) -> Option<NonNull<u8>> {
    pop(Place(PLACE.load(Ordering::Relaxed)).of(class))
}

/// [`push`] as a function, on the stack of a class that it is told.
#[inline(never)]
pub(crate) fn push_called(class: usize, object: NonNull<u8>) -> bool {
    push(Place(PLACE.load(Ordering::Relaxed)).of(class), object)
}

/// Takes the pointer on top.
#[inline(always)]
pub(crate) fn pop(place: Place) -> Option<NonNull<u8>> {
    // SAFETY: B5.
    let stack = unsafe { &mut *place.stack() };
    let top = stack.count.checked_sub(1)?;
    // SAFETY: a count is never above the slots.
    let object = unsafe { *stack.slots.get_unchecked(top) };
    stack.count = top;
    NonNull::new(object)
}

/// Puts a pointer on top; `false` if there is no room.
#[inline(always)]
pub(crate) fn push(place: Place, object: NonNull<u8>) -> bool {
    // SAFETY: B5.
    let stack = unsafe { &mut *place.stack() };
    let Some(slot) = stack.slots.get_mut(stack.count) else {
        return false;
    };
    *slot = object.as_ptr();
    stack.count += 1;
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_comes_first_and_full_and_empty_are_noticed() {
        let mut bytes = [0u8; SLOTS];
        let pointers: Vec<_> = bytes.iter_mut().map(NonNull::from).collect();
        let place = Place::find();
        assert_eq!(pop(place), None);
        assert!(pointers.iter().all(|pointer| push(place, *pointer)));
        assert!(!push(place, pointers[0]));
        assert!(
            pointers
                .iter()
                .rev()
                .all(|pointer| pop(place) == Some(*pointer))
        );
        assert_eq!(pop(place), None);
    }
}
