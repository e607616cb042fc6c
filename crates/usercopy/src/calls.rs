//! Calls of the kernel that copy: what they write to the program's memory is *to* an object, what they read is *from* one.

use core::ffi::{c_int, c_void};

use libc::{iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};

use crate::{Direction, Next, check};

macro_rules! calls {
    ($($direction:ident $name:ident($first:ident: $first_type:ty, $buffer:ident: $buffer_type:ty, $length:ident: size_t
        $(, $argument:ident: $type:ty)*);)*) => {
        $(
            /// The call of this name, with its buffer checked.
            ///
            /// # Safety
            /// As in C.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(
                $first: $first_type, $buffer: $buffer_type, $length: size_t $(, $argument: $type)*
            ) -> ssize_t {
                type Function = unsafe extern "C" fn($first_type, $buffer_type, size_t $(, $type)*) -> ssize_t;
                static NEXT: Next<Function> = Next::new(
                    match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => unreachable!(),
                    }
                );
                check($buffer.cast(), $length, Direction::$direction);
                // SAFETY: the caller's promise.
                unsafe { NEXT.get()($first, $buffer, $length $(, $argument)*) }
            }
        )*
    };
}

calls! {
    To read(fd: c_int, buffer: *mut c_void, length: size_t);
    To pread(fd: c_int, buffer: *mut c_void, length: size_t, offset: off_t);
    To pread64(fd: c_int, buffer: *mut c_void, length: size_t, offset: off_t);
    To recv(fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int);
    To recvfrom(fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int, from: *mut sockaddr, from_length: *mut socklen_t);
    From write(fd: c_int, buffer: *const c_void, length: size_t);
    From pwrite(fd: c_int, buffer: *const c_void, length: size_t, offset: off_t);
    From pwrite64(fd: c_int, buffer: *const c_void, length: size_t, offset: off_t);
    From send(fd: c_int, buffer: *const c_void, length: size_t, flags: c_int);
    From sendto(fd: c_int, buffer: *const c_void, length: size_t, flags: c_int, to: *const sockaddr, to_length: socklen_t);
}

/// More pieces than this the kernel refuses.
const MOST_PIECES: usize = 1024;

/// Checks each buffer of a list.
///
/// # Safety
/// `pieces` has `count` entries, if the kernel would look at them.
unsafe fn check_pieces(pieces: *const iovec, count: usize, direction: Direction) {
    if pieces.is_null() || count > MOST_PIECES {
        return;
    }
    for n in 0..count {
        // SAFETY: as promised.
        let piece = unsafe { &*pieces.add(n) };
        check(piece.iov_base, piece.iov_len, direction);
    }
}

macro_rules! vectors {
    ($($direction:ident $name:ident($($argument:ident: $type:ty),*);)*) => {
        $(
            /// The call of this name, with its buffers checked.
            ///
            /// # Safety
            /// As in C.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(
                fd: c_int, pieces: *const iovec, count: c_int $(, $argument: $type)*
            ) -> ssize_t {
                type Function = unsafe extern "C" fn(c_int, *const iovec, c_int $(, $type)*) -> ssize_t;
                static NEXT: Next<Function> = Next::new(
                    match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => unreachable!(),
                    }
                );
                // SAFETY: the caller's promise, for each.
                unsafe {
                    check_pieces(pieces, usize::try_from(count).unwrap_or(0), Direction::$direction);
                    NEXT.get()(fd, pieces, count $(, $argument)*)
                }
            }
        )*
    };
}

vectors! {
    To readv();
    To preadv(offset: off_t);
    From writev();
    From pwritev(offset: off_t);
}

macro_rules! messages {
    ($($direction:ident $name:ident($message:ty);)*) => {
        $(
            /// The call of this name, with the buffers of its message checked.
            ///
            /// # Safety
            /// As in C.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(fd: c_int, message: $message, flags: c_int) -> ssize_t {
                type Function = unsafe extern "C" fn(c_int, $message, c_int) -> ssize_t;
                static NEXT: Next<Function> = Next::new(
                    match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => unreachable!(),
                    }
                );
                // SAFETY: the caller's promise, for each.
                unsafe {
                    if let Some(message) = message.cast_const().as_ref() {
                        check_pieces(message.msg_iov, message.msg_iovlen, Direction::$direction);
                    }
                    NEXT.get()(fd, message, flags)
                }
            }
        )*
    };
}

messages! {
    To recvmsg(*mut msghdr);
}

/// `sendmsg`, with the buffers of its message checked.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    static NEXT: Next<unsafe extern "C" fn(c_int, *const msghdr, c_int) -> ssize_t> =
        Next::new(c"sendmsg");
    // SAFETY: the caller's promise, for each.
    unsafe {
        if let Some(message) = message.as_ref() {
            check_pieces(message.msg_iov, message.msg_iovlen, Direction::From);
        }
        NEXT.get()(fd, message, flags)
    }
}

/// `sendmmsg`, with the buffers of its messages checked.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: u32,
    flags: c_int,
) -> c_int {
    static NEXT: Next<unsafe extern "C" fn(c_int, *mut mmsghdr, u32, c_int) -> c_int> =
        Next::new(c"sendmmsg");
    // SAFETY: the caller's promise, for each.
    unsafe {
        if !messages.is_null() {
            for n in 0..(count as usize).min(MOST_PIECES) {
                let message = &(*messages.add(n)).msg_hdr;
                check_pieces(message.msg_iov, message.msg_iovlen, Direction::From);
            }
        }
        NEXT.get()(fd, messages, count, flags)
    }
}
