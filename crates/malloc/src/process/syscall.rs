//! System calls made directly: no `errno` is written, no lock of the C library taken, and they work
//! before the C library has been set up.
//!
//! A call returns the kernel's result or an [`Errno`]. Arguments are plain words; the safe wrappers
//! below are those that can not harm memory.

use core::arch::asm;

/// An error number of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

/// Makes system call `number`.
///
/// # Safety
/// The call does to memory what its manual says; that must be sound.
#[inline]
pub(crate) unsafe fn call(number: i64, a: [usize; 6]) -> Result<usize, Errno> {
    let result: isize;
    // SAFETY: the instruction changes rax, rcx, r11 and what the call is said to change; the caller answers for the latter.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2], in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    if (-4095..0).contains(&result) {
        Err(Errno(-result as i32))
    } else {
        Ok(result as usize)
    }
}

/// Maps `length` bytes of private anonymous memory with the rights `protection`, at `at` exactly if that is
/// not 0 (and free), else anywhere.
///
/// # Errors
/// The kernel's: `ENOMEM`, or `EEXIST` if something is at `at`.
pub(crate) fn map(at: usize, length: usize, protection: i32) -> Result<usize, Errno> {
    let mut flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    if at != 0 {
        flags |= libc::MAP_FIXED_NOREPLACE;
    }
    // SAFETY: without MAP_FIXED a new mapping replaces nothing.
    let got = unsafe {
        call(
            libc::SYS_mmap,
            [
                at,
                length,
                protection as usize,
                flags as usize,
                usize::MAX,
                0,
            ],
        )
    }?;
    if at != 0 && got != at {
        // A kernel before 4.17 takes the address for a hint.
        // SAFETY: the mapping was made just now and is known to nobody.
        let _ = unsafe { unmap(got, length) };
        return Err(Errno(libc::EEXIST));
    }
    Ok(got)
}

/// As [`map`], anywhere, readable and writable as `protection` says, and counted against what the system lets processes commit.
///
/// # Errors
/// The kernel's: `ENOMEM`.
pub(crate) fn map_accounted(length: usize, protection: i32) -> Result<usize, Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping replaces nothing.
    unsafe {
        call(
            libc::SYS_mmap,
            [
                0,
                length,
                protection as usize,
                flags as usize,
                usize::MAX,
                0,
            ],
        )
    }
}

/// Changes the length of a mapping, moving it if need be, and returns where it is now.
///
/// # Errors
/// The kernel's; nothing has changed.
///
/// # Safety
/// The caller owns the mapping; its old address is not used any more if it moves.
pub(crate) unsafe fn remap(at: usize, old: usize, new: usize) -> Result<usize, Errno> {
    let flags = libc::MREMAP_MAYMOVE as usize;
    // SAFETY: the caller answers for it.
    unsafe { call(libc::SYS_mremap, [at, old, new, flags, 0, 0]) }
}

/// Moves the pages of `length` bytes at `from` to a new mapping, and returns where that is; the old place stays mapped and reads as zero.
///
/// The kernel chooses the place: given one that is mapped it may unmap that and fail then, and another thread's mapping may be there before
/// anybody can tell.
///
/// # Errors
/// The kernel's, for instance if it is too old for this; nothing has changed.
///
/// # Safety
/// The caller owns the old place.
pub(crate) unsafe fn move_pages_away(from: usize, length: usize) -> Result<usize, Errno> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
    // SAFETY: the caller answers for it.
    unsafe {
        call(
            libc::SYS_mremap,
            [from, length, length, flags as usize, 0, 0],
        )
    }
}

/// Moves the pages of `length` bytes at `from` to `to`, replacing what is mapped there; the old place stays mapped and reads as zero.
///
/// # Errors
/// The kernel's, for instance if it is too old for this; nothing has changed.
///
/// # Safety
/// The caller owns both places.
pub(crate) unsafe fn move_pages(from: usize, length: usize, to: usize) -> Result<(), Errno> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    // SAFETY: the caller answers for it.
    unsafe {
        call(
            libc::SYS_mremap,
            [from, length, length, flags as usize, to, 0],
        )
    }
    .map(drop)
}

/// Removes a mapping.
///
/// # Safety
/// Nobody uses that memory any more.
pub(crate) unsafe fn unmap(at: usize, length: usize) -> Result<(), Errno> {
    if length == 0 {
        return Ok(());
    }
    // SAFETY: the caller answers for it.
    unsafe { call(libc::SYS_munmap, [at, length, 0, 0, 0, 0]) }.map(drop)
}

/// Gives memory the rights to be read and written.
pub(crate) fn allow_writes(at: usize, length: usize) -> Result<(), Errno> {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: adding rights takes nothing from anybody; callers pass memory of this host.
    unsafe { call(libc::SYS_mprotect, [at, length, rights as usize, 0, 0, 0]) }.map(drop)
}

/// Takes all rights from memory.
///
/// # Safety
/// Nobody uses that memory.
pub(crate) unsafe fn forbid(at: usize, length: usize) -> Result<(), Errno> {
    // SAFETY: the caller answers for it.
    unsafe {
        call(
            libc::SYS_mprotect,
            [at, length, libc::PROT_NONE as usize, 0, 0, 0],
        )
    }
    .map(drop)
}

/// Gives memory the right to be read.
pub(crate) fn allow_reads(at: usize, length: usize) -> Result<(), Errno> {
    // SAFETY: callers pass memory of this host that had no rights yet.
    unsafe {
        call(
            libc::SYS_mprotect,
            [at, length, libc::PROT_READ as usize, 0, 0, 0],
        )
    }
    .map(drop)
}

/// Has the kernel make pages for memory, as if it were written to.
///
/// # Errors
/// `EINVAL` before Linux 5.14; `EFAULT` where a write would end the process, as in a file whose file system is full.
pub(crate) fn populate(at: usize, length: usize) -> Result<(), Errno> {
    const MADV_POPULATE_WRITE: i32 = 23;
    // SAFETY: this advice changes no contents.
    unsafe { advise(at, length, MADV_POPULATE_WRITE) }
}

/// Gives the kernel advice on memory.
///
/// # Safety
/// With `MADV_DONTNEED` the contents are lost: the caller owns them.
pub(crate) unsafe fn advise(at: usize, length: usize, advice: i32) -> Result<(), Errno> {
    // SAFETY: the caller answers for it.
    unsafe { call(libc::SYS_madvise, [at, length, advice as usize, 0, 0, 0]) }.map(drop)
}

/// Gives a mapping a name in `/proc/self/maps`, where the kernel can do so.
pub(crate) fn name(at: usize, length: usize, name: &'static core::ffi::CStr) {
    const PR_SET_VMA: usize = 0x5356_4d41;
    // SAFETY: only the mapping's name changes, and the kernel copies the string.
    let _ = unsafe {
        call(
            libc::SYS_prctl,
            [PR_SET_VMA, 0, at, length, name.as_ptr() as usize, 0],
        )
    };
}

/// Asks that memory comes from `node` where it can.
pub(crate) fn prefer_node(at: usize, length: usize, node: u32) {
    const MPOL_PREFERRED: usize = 1;
    let mut mask = [0u64; 16];
    let Some(word) = mask.get_mut(node as usize / 64) else {
        return;
    };
    *word = 1 << (node % 64);
    // SAFETY: a policy changes no contents; the mask outlives the call.
    let _ = unsafe {
        call(
            libc::SYS_mbind,
            [at, length, MPOL_PREFERRED, mask.as_ptr() as usize, 1024, 0],
        )
    };
}

/// Waits until `word` is woken, if it still holds `value`; may return for no reason.
pub(crate) fn futex_wait(word: &core::sync::atomic::AtomicU32, value: u32) {
    let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word outlives the call, and the kernel only reads it.
    let _ = unsafe {
        call(
            libc::SYS_futex,
            [word.as_ptr() as usize, op as usize, value as usize, 0, 0, 0],
        )
    };
}

/// Wakes up to `how_many` that wait on `word`.
pub(crate) fn futex_wake(word: &core::sync::atomic::AtomicU32, how_many: u32) {
    let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the address is a key only.
    let _ = unsafe {
        call(
            libc::SYS_futex,
            [
                word.as_ptr() as usize,
                op as usize,
                how_many as usize,
                0,
                0,
                0,
            ],
        )
    };
}

/// The number that the system has for this thread.
pub(crate) fn thread_id() -> u32 {
    // SAFETY: has no effect on memory.
    unsafe { call(libc::SYS_gettid, [0; 6]) }.unwrap_or(0) as u32
}

/// Lets another thread run.
pub(crate) fn yield_now() {
    // SAFETY: has no effect on memory.
    let _ = unsafe { call(libc::SYS_sched_yield, [0; 6]) };
}

/// Waits a little for another thread; `round` counts the waits so far. A thread of high priority never makes room for one of
/// low priority by yielding, so later rounds sleep.
pub(crate) fn wait_a_little(round: u32) {
    if round < 64 {
        yield_now();
        return;
    }
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 50_000,
    };
    // SAFETY: the kernel reads the structure, which outlives the call.
    let _ = unsafe {
        call(
            libc::SYS_nanosleep,
            [&raw const time as usize, 0, 0, 0, 0, 0],
        )
    };
}

/// What `membarrier` is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Barrier {
    /// Announces that [`Barrier::Restart`] will be used.
    RegisterRestart,
    /// Restarts every section of every thread of the process that runs now.
    Restart,
}

/// A barrier on every thread of the process.
pub(crate) fn membarrier(what: Barrier) -> Result<(), Errno> {
    let command = match what {
        Barrier::Restart => 1 << 7,
        Barrier::RegisterRestart => 1 << 8,
    };
    // SAFETY: has no effect on memory but order.
    unsafe { call(libc::SYS_membarrier, [command, 0, 0, 0, 0, 0]) }.map(drop)
}

/// Fills `into` with random bytes if the kernel has them ready.
pub(crate) fn random(into: &mut [u8]) -> bool {
    const GRND_NONBLOCK: usize = 1;
    let (at, length) = (into.as_mut_ptr() as usize, into.len());
    // SAFETY: the kernel writes at most `length` bytes to the exclusively borrowed slice.
    let got = unsafe { call(libc::SYS_getrandom, [at, length, GRND_NONBLOCK, 0, 0, 0]) };
    got == Ok(length)
}

/// Writes all of `bytes` to `fd` unless that fails.
pub(crate) fn write_all(fd: i32, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        // SAFETY: the kernel reads the borrowed bytes.
        let wrote = unsafe {
            call(
                libc::SYS_write,
                [fd as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0],
            )
        };
        match wrote {
            Ok(n) if n > 0 => bytes = &bytes[n.min(bytes.len())..],
            Err(Errno(libc::EINTR)) => {}
            _ => return,
        }
    }
}

/// Reads the file `path` into `into`, at most as much as fits, and returns what was read.
pub(crate) fn read_file<'a>(path: &core::ffi::CStr, into: &'a mut [u8]) -> Option<&'a [u8]> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: the path is a C string that outlives the call.
    let fd = unsafe {
        call(
            libc::SYS_openat,
            [
                libc::AT_FDCWD as usize,
                path.as_ptr() as usize,
                flags as usize,
                0,
                0,
                0,
            ],
        )
    }
    .ok()?;
    let mut filled = 0;
    while filled < into.len() {
        let rest = &mut into[filled..];
        // SAFETY: the kernel writes at most the length of the exclusively borrowed rest.
        let got = unsafe {
            call(
                libc::SYS_read,
                [fd, rest.as_mut_ptr() as usize, rest.len(), 0, 0, 0],
            )
        };
        match got {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(Errno(libc::EINTR)) => {}
            Err(_) => break,
        }
    }
    // SAFETY: the descriptor was opened above and is used by nobody else.
    let _ = unsafe { call(libc::SYS_close, [fd, 0, 0, 0, 0, 0]) };
    Some(&into[..filled])
}

/// The soft limit of the address space in bytes, `None` if there is none.
pub(crate) fn address_space_limit() -> Option<usize> {
    soft_limit(libc::RLIMIT_AS as usize)
}

/// The soft limit of the size of files in bytes, `None` if there is none. Who makes one larger is sent a signal.
pub(crate) fn file_size_limit() -> Option<usize> {
    soft_limit(libc::RLIMIT_FSIZE as usize)
}

fn soft_limit(resource: usize) -> Option<usize> {
    let mut limit = [0u64; 2];
    // SAFETY: the kernel writes two words to the exclusively borrowed array.
    let got = unsafe {
        call(
            libc::SYS_prlimit64,
            [0, resource, 0, limit.as_mut_ptr() as usize, 0, 0],
        )
    };
    (got.is_ok() && limit[0] != u64::MAX).then_some(limit[0] as usize)
}

/// Bytes of address space in use.
pub(crate) fn address_space_used() -> Option<usize> {
    let mut text = [0; 128];
    let text = read_file(c"/proc/self/statm", &mut text)?;
    let digits = text.iter().take_while(|b| b.is_ascii_digit());
    let pages = digits.fold(0usize, |n, b| {
        n.wrapping_mul(10).wrapping_add((b - b'0') as usize)
    });
    (pages > 0).then_some(pages << 12)
}

/// Bytes of memory that the system has.
pub(crate) fn system_memory() -> usize {
    // SAFETY: all-zero bytes are a value of this plain structure.
    let mut info: libc::sysinfo = unsafe { core::mem::zeroed() };
    // SAFETY: the kernel fills the exclusively borrowed structure.
    let got = unsafe { call(libc::SYS_sysinfo, [&raw mut info as usize, 0, 0, 0, 0, 0]) };
    if got.is_err() {
        return 0;
    }
    (info.totalram as usize).saturating_mul(info.mem_unit as usize)
}
