//! Checks of copies, preloaded behind Flagstone's malloc by `flagstone run --harden`: a buffer handed to the kernel or to a copying function of the C library
//! must lie within one object.
//!
//! Each function asks Flagstone's library (`flagstone_check_copy`) about its arguments and then calls the function that it stands in front of. It is an object of its own so that
//! programs without hardening call the C library directly. Without Flagstone's library nothing is checked.
//!
//! | file | what |
//! | --- | --- |
//! | `next.rs` | the functions behind these |
//! | `calls.rs` | `read`, `write`, `recv`, `send` and their relatives |
//! | `memory.rs` | `memcpy`, `memmove`, and their checked forms |
#![cfg_attr(panic = "abort", no_std)]
#![allow(
    unreachable_pub,
    reason = "what is exported is reached by its symbol, not by a path"
)]

mod calls;
mod memory;
mod next;

use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, Ordering};

use next::Next;

/// What becomes of the bytes of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Direction {
    /// They are read, and go elsewhere.
    From = 0,
    /// They are overwritten.
    To = 1,
}

static CHECK: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Runs when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = {
    extern "C" fn at_load() {
        memory::resolve();
        // SAFETY: the name is a C string.
        let check = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"flagstone_check_copy".as_ptr()) };
        CHECK.store(check, Ordering::Release);
    }
    at_load
};

/// Has Flagstone look at the buffer; comes back if there is nothing wrong.
#[inline(always)]
pub(crate) fn check(buffer: *const c_void, length: usize, direction: Direction) {
    let check = CHECK.load(Ordering::Relaxed);
    if !check.is_null() {
        // SAFETY: U1, the function of that name in Flagstone's library has these parameters, and reads nothing that the buffer has.
        unsafe {
            let check: unsafe extern "C" fn(*const c_void, usize, i32) =
                core::mem::transmute(check);
            check(buffer, length, direction as i32);
        }
    }
}

#[cfg(panic = "abort")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: abort has no preconditions.
    unsafe { libc::abort() }
}

// As in the library of malloc: named by unwind tables and never called.
#[cfg(panic = "abort")]
core::arch::global_asm!(
    ".pushsection .text.rust_eh_personality, \"ax\", @progbits",
    ".globl rust_eh_personality",
    ".hidden rust_eh_personality",
    "rust_eh_personality: ud2",
    ".popsection",
);
