//! `sigaction` and `signal`: while allocations are sampled for guard pages, the handler of `SIGSEGV` is ours, and what the program
//! wants done with that signal is kept beside it. Every other signal, and every process without sampling, gets what the C
//! library does.

use core::ffi::c_int;

use flagstone_malloc::guard;

type Action = libc::sigaction;

unsafe extern "C" {
    /// The C library's own name of `sigaction`.
    fn __sigaction(signal: c_int, action: *const Action, old: *mut Action) -> c_int;
    /// `signal` under a name that nobody interposes.
    fn ssignal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t;
}

fn is_ours(signal: c_int) -> bool {
    signal == libc::SIGSEGV && guard::is_on()
}

/// `sigaction`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(
    signal: c_int,
    action: *const Action,
    old: *mut Action,
) -> c_int {
    if !is_ours(signal) {
        // SAFETY: the caller's promise.
        return unsafe { __sigaction(signal, action, old) };
    }
    // SAFETY: the caller's promise; both may be the same, so the new one is read first.
    unsafe {
        let before = guard::replace_handler(action.as_ref());
        if !old.is_null() {
            old.write(before);
        }
    }
    0
}

/// `signal`, with the meaning that BSD gave it: system calls go on, and the handler stays.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    if !is_ours(signal) || handler == libc::SIG_ERR {
        // SAFETY: the caller's promise.
        return unsafe { ssignal(signal, handler) };
    }
    replace(handler, libc::SA_RESTART)
}

/// `sysv_signal`, which programs call `signal` that ask for System V's meaning: the handler is called once and may be interrupted by its own signal.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sysv_signal(
    signal: c_int,
    handler: libc::sighandler_t,
) -> libc::sighandler_t {
    const FLAGS: c_int = libc::SA_RESETHAND | libc::SA_NODEFER;
    if is_ours(signal) && handler != libc::SIG_ERR {
        return replace(handler, FLAGS);
    }
    // SAFETY: all-zero bytes are an action, and both outlive the call.
    unsafe {
        if handler == libc::SIG_ERR {
            *libc::__errno_location() = libc::EINVAL;
            return libc::SIG_ERR;
        }
        let (mut new, mut old): (Action, Action) = (core::mem::zeroed(), core::mem::zeroed());
        new.sa_sigaction = handler;
        new.sa_flags = FLAGS;
        if __sigaction(signal, &raw const new, &raw mut old) == 0 {
            old.sa_sigaction
        } else {
            libc::SIG_ERR
        }
    }
}

fn replace(handler: libc::sighandler_t, flags: c_int) -> libc::sighandler_t {
    // SAFETY: all-zero bytes are an action with an empty mask.
    let mut new: Action = unsafe { core::mem::zeroed() };
    new.sa_sigaction = handler;
    new.sa_flags = flags;
    guard::replace_handler(Some(&new)).sa_sigaction
}
