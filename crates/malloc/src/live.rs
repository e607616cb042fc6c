//! A live report: a file that the process keeps up while it runs.
//!
//! `FLAGSTONE_LIVE` names a directory; the file `PID` in it is mapped and holds the report as JSON, rewritten when memory is looked
//! after. Its layout is [`LiveHeader`], then the text. The file system may be full: a page of the file is written to only after the system
//! said that it is there, since otherwise the write would end the process.

use core::fmt::{self, Write as _};
use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

use flagstone_host::Clock;
use flagstone_slab::Caches;
use flagstone_types::Nanos;

use crate::process::{Process, syscall};
use crate::report::{Path, close, open_file, pid, write_json};

/// The head of a live file. All numbers are of the machine's byte order.
#[repr(C)]
#[derive(Debug)]
pub struct LiveHeader {
    /// [`LIVE_MAGIC`].
    pub magic: AtomicU64,
    /// Odd while the text is being written; a reader that sees it odd, or changed after reading, reads again.
    pub sequence: AtomicU32,
    /// Bytes of the text.
    pub length: AtomicU32,
    /// The process.
    pub pid: AtomicU32,
    /// Written by tools: [`GUARD_OFF`].
    pub control: AtomicU32,
}

/// A bit of [`LiveHeader::control`]: no allocation is sampled for guard pages while it is set.
pub const GUARD_OFF: u32 = 1;

/// Whether a tool has switched sampling for guard pages off.
pub(crate) fn is_guard_off() -> bool {
    // SAFETY: mapped as long as the process, or null.
    unsafe { LIVE.load(Ordering::Acquire).as_ref() }
        .is_some_and(|header| header.control.load(Ordering::Relaxed) & GUARD_OFF != 0)
}

/// The first eight bytes of a live file: `FLAGSTN1`.
pub const LIVE_MAGIC: u64 = u64::from_le_bytes(*b"FLAGSTN1");

/// The size of a live file.
pub const LIVE_BYTES: usize = 256 << 10;

static LIVE: AtomicPtr<LiveHeader> = AtomicPtr::new(core::ptr::null_mut());

/// Bytes of the mapping, from its start, that the file system has room for.
static BACKED: AtomicUsize = AtomicUsize::new(0);

/// How many bytes it is asked for at once.
const STEP: usize = 16 << 10;

/// How often the live text is rewritten at most.
const LIVE_INTERVAL: u64 = 900_000_000;
static LIVE_NEXT: AtomicU64 = AtomicU64::new(0);

/// Whether somebody is writing the text. Who wants to meanwhile goes without: the next round is soon.
static WRITING: AtomicBool = AtomicBool::new(false);

/// The text's place in the mapping.
struct Room {
    start: *mut u8,
    filled: usize,
}

impl fmt::Write for Room {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let end = self.filled + s.len();
        if !reserve(
            self.start.addr() - size_of::<LiveHeader>(),
            size_of::<LiveHeader>() + end,
        ) {
            return Err(fmt::Error);
        }
        // SAFETY: the mapping reaches beyond `end`, has memory there, and is written by one thread at a time.
        unsafe {
            self.start
                .add(self.filled)
                .copy_from_nonoverlapping(s.as_ptr(), s.len());
        }
        self.filled = end;
        Ok(())
    }
}

/// Has the file system find room for the first `bytes` bytes of the mapping at `start`. `false` if it has none.
fn reserve(start: usize, bytes: usize) -> bool {
    let backed = BACKED.load(Ordering::Relaxed);
    if bytes <= backed {
        return true;
    }
    let end = bytes.next_multiple_of(STEP);
    if end > LIVE_BYTES || syscall::populate(start + backed, end - backed).is_err() {
        return false;
    }
    BACKED.store(end, Ordering::Relaxed);
    true
}

/// Opens the live file, if one is wanted.
pub(crate) fn begin() {
    open_live();
}

/// The child of a fork reports for itself. `threads_are_gone` says that the parent had several.
pub(crate) fn after_fork(threads_are_gone: bool) {
    if WRITING.load(Ordering::Relaxed) && !threads_are_gone {
        // A signal handler forked in the middle of a report, which goes on in the parent's file when the handler returns.
        return LIVE.store(core::ptr::null_mut(), Ordering::Relaxed);
    }
    WRITING.store(false, Ordering::Relaxed);
    BACKED.store(0, Ordering::Relaxed);
    let inherited = LIVE.swap(core::ptr::null_mut(), Ordering::Relaxed);
    if !inherited.is_null() {
        // SAFETY: the parent's file is of no use here, and nobody is writing to it.
        let _ = unsafe { syscall::unmap(inherited.addr(), LIVE_BYTES) };
    }
    open_live();
}

fn open_live() {
    let Some(path) = live_path() else { return };
    if syscall::file_size_limit().is_some_and(|limit| limit < LIVE_BYTES) {
        return;
    }
    // A file that is there may be mapped by somebody, whom cutting it would end: it is of a process that is gone, of this one before it
    // became another program, or of one of the same number in another namespace.
    unlink(&path);
    let Some(fd) = open_file(&path, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL) else {
        return;
    };
    let mapped = map(fd);
    close(fd);
    let Some(header) = mapped else {
        return unlink(&path);
    };
    // SAFETY: the mapping is ours, zeroed, and has memory there.
    unsafe { (*header).pid.store(pid(), Ordering::Relaxed) };
    LIVE.store(header, Ordering::Release);
    LIVE_NEXT.store(0, Ordering::Relaxed);
}

/// Maps the file, with room for the header at least.
fn map(fd: i32) -> Option<*mut LiveHeader> {
    let rights = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let (fd, flags) = (fd as usize, libc::MAP_SHARED as usize);
    // SAFETY: the file is ours, and a new shared mapping of it harms nobody.
    let at = unsafe {
        syscall::call(libc::SYS_ftruncate, [fd, LIVE_BYTES, 0, 0, 0, 0]).ok()?;
        syscall::call(libc::SYS_mmap, [0, LIVE_BYTES, rights, flags, fd, 0]).ok()?
    };
    if reserve(at, size_of::<LiveHeader>()) {
        return Some(at as *mut LiveHeader);
    }
    // Before kernel 5.14 a mapping can not be asked; the file can, for all of it.
    // SAFETY: as above; and the mapping is known to nobody.
    unsafe {
        if syscall::call(libc::SYS_fallocate, [fd, 0, 0, LIVE_BYTES, 0, 0]).is_ok() {
            BACKED.store(LIVE_BYTES, Ordering::Relaxed);
            return Some(at as *mut LiveHeader);
        }
        let _ = syscall::unmap(at, LIVE_BYTES);
    }
    None
}

fn unlink(path: &Path) {
    // SAFETY: the path ends with a 0.
    let _ = unsafe { syscall::call(libc::SYS_unlink, [path.address(), 0, 0, 0, 0, 0]) };
}

/// Removes the file, at the end of the process.
pub(crate) fn remove() {
    if !LIVE.load(Ordering::Acquire).is_null()
        && let Some(path) = live_path()
    {
        unlink(&path);
    }
}

/// Rewrites the live text if it is time to.
pub(crate) fn publish(caches: &Caches<Process>, now: Nanos) {
    let live = LIVE.load(Ordering::Acquire);
    let next = LIVE_NEXT.load(Ordering::Relaxed);
    if live.is_null() || now.0 < next {
        return;
    }
    let later = now.0 + LIVE_INTERVAL;
    if LIVE_NEXT
        .compare_exchange(next, later, Ordering::Relaxed, Ordering::Relaxed)
        .is_err()
    {
        return;
    }
    // Setting LIVE_NEXT back lets a second writer come before the first is done.
    if !WRITING.swap(true, Ordering::Acquire) {
        write_live(caches, live);
        WRITING.store(false, Ordering::Release);
    }
}

/// Rewrites the live text although it was written lately: the heap has grown.
pub(crate) fn publish_soon(caches: &Caches<Process>) {
    if !LIVE.load(Ordering::Relaxed).is_null() {
        LIVE_NEXT.store(0, Ordering::Relaxed);
        publish(caches, caches.host().now());
    }
}

/// The path of this process's live file.
fn live_path() -> Option<Path> {
    let dir = core::str::from_utf8(Process::start().settings().live()?).ok()?;
    let mut path = Path::new();
    (!dir.is_empty() && write!(path, "{dir}/{}", pid()).is_ok()).then_some(path)
}

fn write_live(caches: &Caches<Process>, live: *mut LiveHeader) {
    // SAFETY: the mapping stays as long as the process; only whoever set WRITING writes.
    let header = unsafe { &*live };
    let sequence = header.sequence.load(Ordering::Relaxed) | 1;
    header.sequence.store(sequence, Ordering::Relaxed);
    fence(Ordering::Release);
    // Readers in other processes tell by the sequence whether they read a whole text.
    // SAFETY: the text follows the header in the mapping.
    let start = unsafe { live.add(1) }.cast();
    let mut room = Room { start, filled: 0 };
    let length = if write_json(caches, &mut room).is_ok() {
        room.filled
    } else {
        0
    };
    header.length.store(length as u32, Ordering::Relaxed);
    header.magic.store(LIVE_MAGIC, Ordering::Relaxed);
    header
        .sequence
        .store(sequence.wrapping_add(1), Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_written_as_far_as_there_is_room() {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let start = syscall::map(0, LIVE_BYTES, rights).unwrap();
        let mut room = Room {
            start: (start + size_of::<LiveHeader>()) as *mut u8,
            filled: 0,
        };
        let piece = "x".repeat(1000);
        let mut written = 0;
        while room.write_str(&piece).is_ok() {
            written += piece.len();
            let backed = BACKED.load(Ordering::Relaxed);
            assert!(backed >= written && backed < written + 2 * STEP);
        }
        assert!(written + 1000 + size_of::<LiveHeader>() > LIVE_BYTES);
        assert_eq!(room.filled, written);
        BACKED.store(0, Ordering::Relaxed);
    }
}
