//! The copying functions of the C library.

use core::arch::asm;
use core::ffi::c_void;

use crate::{Direction, Next, check};

type Copy = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;
type Fill = unsafe extern "C" fn(*mut c_void, i32, usize) -> *mut c_void;

static MEMCPY: Next<Copy> = Next::new(c"memcpy");
static MEMMOVE: Next<Copy> = Next::new(c"memmove");
static MEMSET: Next<Fill> = Next::new(c"memset");

/// Looks the functions up, when the library is loaded: what looks one up may copy.
pub(crate) fn resolve() {
    let _ = (MEMCPY.get(), MEMMOVE.get(), MEMSET.get());
}

/// Copies before there is a function that does: upwards, or downwards where `to` begins in what is copied.
///
/// # Safety
/// As `memmove`.
unsafe fn move_plainly(to: *mut c_void, from: *const c_void, length: usize) {
    let ahead = to.addr().wrapping_sub(from.addr());
    // SAFETY: as promised; the flag is as C wants it afterwards.
    unsafe {
        if ahead == 0 || ahead >= length {
            asm!("rep movsb", inout("rcx") length => _, inout("rdi") to => _, inout("rsi") from => _, options(nostack, preserves_flags));
        } else {
            let last = length - 1;
            asm!("std", "rep movsb", "cld", inout("rcx") length => _, inout("rdi") to.byte_add(last) => _, inout("rsi") from.byte_add(last) => _, options(nostack));
        }
    }
}

fn check_copy(to: *mut c_void, from: *const c_void, length: usize) {
    check(from, length, Direction::From);
    check(to, length, Direction::To);
}

/// `memcpy`, with both buffers checked.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcpy(
    to: *mut c_void,
    from: *const c_void,
    length: usize,
) -> *mut c_void {
    let Some(next) = MEMCPY.known() else {
        // SAFETY: the caller's promise.
        unsafe { move_plainly(to, from, length) };
        return to;
    };
    check_copy(to, from, length);
    // SAFETY: the caller's promise.
    unsafe { next(to, from, length) }
}

/// `memmove`, with both buffers checked.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmove(
    to: *mut c_void,
    from: *const c_void,
    length: usize,
) -> *mut c_void {
    let Some(next) = MEMMOVE.known() else {
        // SAFETY: the caller's promise.
        unsafe { move_plainly(to, from, length) };
        return to;
    };
    check_copy(to, from, length);
    // SAFETY: the caller's promise.
    unsafe { next(to, from, length) }
}

/// `memset`, with the buffer checked.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memset(to: *mut c_void, byte: i32, length: usize) -> *mut c_void {
    let Some(next) = MEMSET.known() else {
        // SAFETY: the caller's promise.
        unsafe {
            asm!("rep stosb", inout("rcx") length => _, inout("rdi") to => _, in("al") byte as u8, options(nostack, preserves_flags));
        }
        return to;
    };
    check(to, length, Direction::To);
    // SAFETY: the caller's promise.
    unsafe { next(to, byte, length) }
}

/// Ends the process as the C library does where a copy is longer than what the compiler knows of its destination.
#[cold]
fn too_long() -> ! {
    // SAFETY: abort has no preconditions.
    unsafe { libc::abort() }
}

macro_rules! checked_forms {
    ($($name:ident($first:ty, $second:ty) as $plain:ident;)*) => {
        $(
            /// The form that a compiler calls where it knows that the destination has `room` bytes.
            ///
            /// # Safety
            /// As the plain form.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(to: $first, from: $second, length: usize, room: usize) -> *mut c_void {
                if length > room {
                    too_long();
                }
                // SAFETY: the caller's promise.
                unsafe { $plain(to, from, length) }
            }
        )*
    };
}

checked_forms! {
    __memcpy_chk(*mut c_void, *const c_void) as memcpy;
    __memmove_chk(*mut c_void, *const c_void) as memmove;
    __memset_chk(*mut c_void, i32) as memset;
}
