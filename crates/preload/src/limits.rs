//! Limits of address space that the program lowers or asks to be measured by: the heap's reservation counts against them, so it is
//! made smaller first.

use core::ffi::{c_int, c_uint};

use flagstone_malloc::process::Process;

/// Makes room under a new limit, if it is one of address space.
fn make_room(resource: c_uint, limit: *const libc::rlimit) {
    if resource == libc::RLIMIT_AS as c_uint
        && let Some(host) = Process::get()
        // SAFETY: null or the caller's structure.
        && let Some(limit) = unsafe { limit.as_ref() }
        && limit.rlim_cur != libc::RLIM_INFINITY
    {
        host.shrink_reservation(limit.rlim_cur as usize);
    }
}

fn call(
    pid: libc::pid_t,
    resource: c_uint,
    new: *const libc::rlimit,
    old: *mut libc::rlimit,
) -> c_int {
    // SAFETY: the caller's pointers, null or as the call wants them.
    let result = unsafe { libc::syscall(libc::SYS_prlimit64, pid, resource, new, old) };
    result as c_int
}

/// `setrlimit`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit(resource: c_uint, limit: *const libc::rlimit) -> c_int {
    make_room(resource, limit);
    call(0, resource, limit, core::ptr::null_mut())
}

/// `setrlimit64`, the same on this platform.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit64(resource: c_uint, limit: *const libc::rlimit) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { setrlimit(resource, limit) }
}

/// `prlimit`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit(
    pid: libc::pid_t,
    resource: c_uint,
    new: *const libc::rlimit,
    old: *mut libc::rlimit,
) -> c_int {
    // SAFETY: getpid has no preconditions.
    if pid == 0 || pid == unsafe { libc::getpid() } {
        make_room(resource, new);
    }
    call(pid, resource, new, old)
}

/// `prlimit64`, the same on this platform.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit64(
    pid: libc::pid_t,
    resource: c_uint,
    new: *const libc::rlimit,
    old: *mut libc::rlimit,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { prlimit(pid, resource, new, old) }
}

/// `mlockall`: where there is a limit of locked memory, all address space counts against it.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the structure is ours.
    if unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } == 0
        && limit.rlim_cur != libc::RLIM_INFINITY
        && let Some(host) = Process::get()
    {
        host.shrink_reservation(limit.rlim_cur as usize);
    }
    // SAFETY: locking memory changes no contents.
    unsafe { libc::syscall(libc::SYS_mlockall, flags) as c_int }
}
