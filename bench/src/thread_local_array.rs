//! The floor: a stack of pointers in static thread-local storage, as the fastest allocators have it for a class that is known.
//!
//! In a program, as opposed to a shared library, such storage is reached by one instruction. The stack checks what any such stack must
//! check, empty and full, and nothing else.

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

/// Takes the pointer on top.
#[inline(always)]
pub(crate) fn pop() -> Option<NonNull<u8>> {
    STACK.with(|stack| {
        // SAFETY: B5.
        let stack = unsafe { &mut *stack.get() };
        let top = stack.count.checked_sub(1)?;
        // SAFETY: a count is never above the slots.
        let object = unsafe { *stack.slots.get_unchecked(top) };
        stack.count = top;
        NonNull::new(object)
    })
}

/// Puts a pointer on top; `false` if there is no room.
#[inline(always)]
pub(crate) fn push(object: NonNull<u8>) -> bool {
    STACK.with(|stack| {
        // SAFETY: B5.
        let stack = unsafe { &mut *stack.get() };
        let Some(slot) = stack.slots.get_mut(stack.count) else {
            return false;
        };
        *slot = object.as_ptr();
        stack.count += 1;
        true
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_comes_first_and_full_and_empty_are_noticed() {
        let mut bytes = [0u8; SLOTS];
        let pointers: Vec<_> = bytes.iter_mut().map(NonNull::from).collect();
        assert_eq!(pop(), None);
        assert!(pointers.iter().all(|pointer| push(*pointer)));
        assert!(!push(pointers[0]));
        assert!(pointers.iter().rev().all(|pointer| pop() == Some(*pointer)));
        assert_eq!(pop(), None);
    }
}
