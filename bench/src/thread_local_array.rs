//! The floor: a stack of pointers in static thread-local storage, as the fastest allocators have it for a class that is known.
//!
//! The stack checks what any such stack must check, empty and full, and nothing else.
//!
//! Each operation finds the stack anew, as operations do that stand at different places of a program. In a loop that keeps the address in
//! a register, a processor that renames memory may let the count go from one operation to the next without passing through
//! memory, which makes a pair about four times as cheap as it is anywhere else.

use core::cell::UnsafeCell;
use core::ptr::{NonNull, null_mut};

const SLOTS: usize = 128;

struct Stack {
    count: usize,
    slots: [*mut u8; SLOTS],
}

thread_local! {
    static STACK: UnsafeCell<Stack> =
        const { UnsafeCell::new(Stack { count: 0, slots: [null_mut(); SLOTS] }) };
}

/// Where the stack of every thread is, counted from its thread pointer: what a shared library keeps in a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place(usize);

impl Place {
    pub(crate) fn find() -> Self {
        let thread: usize;
        // SAFETY: B5; the word at the thread pointer is its own address.
        unsafe { core::arch::asm!("mov {0}, fs:[0]", out(reg) thread, options(nostack)) };
        let stack = STACK.with(|stack| stack.get().expose_provenance());
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
