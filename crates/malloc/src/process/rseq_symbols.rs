//! Whether and where the C library registered restartable sequences, read from the loader's own symbol table.
//!
//! `__rseq_offset` and `__rseq_size` exist since glibc 2.35. A reference to them, weak or not, would make the library
//! ask for that version at load time, and `dlsym` may lock and allocate; reading the table does neither.

use super::elf::Image;

/// Bytes of the area before the concurrency id was added at its end.
const FEATURES_WITH_CONCURRENCY_ID: usize = 28;

/// A registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Registered {
    /// Where a thread's area is, from the thread pointer, in bytes.
    pub(super) offset: isize,
    /// Whether the kernel fills in the concurrency id.
    pub(super) concurrency_id: bool,
}

impl Registered {
    /// What the loader mapped at `loader` did; `features` is `AT_RSEQ_FEATURE_SIZE` or 0. `None` if threads of this
    /// process have no restartable sequences.
    pub(super) fn find(loader: usize, features: usize) -> Option<Self> {
        // SAFETY: P4, the address comes from the auxiliary vector.
        let image = unsafe { Image::at(loader) }?;
        let size = image.find(c"__rseq_size")?;
        let offset = image.find(c"__rseq_offset")?;
        // SAFETY: P4; the symbol is a 32-bit word of the loader, set before any other code ran.
        let size = unsafe { *(size as *const u32) };
        // SAFETY: likewise, a word.
        let offset = unsafe { *(offset as *const isize) };
        if size == 0 || this_thread_cpu(offset).is_none() {
            return None;
        }
        Some(Self {
            offset,
            concurrency_id: features >= FEATURES_WITH_CONCURRENCY_ID,
        })
    }

    /// Where the CPU number is, from the thread pointer, in bytes.
    pub(super) fn cpu_offset(self) -> isize {
        self.offset + 4
    }

    /// Where the concurrency id is, from the thread pointer, in bytes.
    pub(super) fn concurrency_offset(self) -> isize {
        self.offset + 24
    }
}

/// The CPU number in this thread's area; negative numbers there say that it is not registered.
fn this_thread_cpu(offset: isize) -> Option<u32> {
    let cpu: i32;
    // SAFETY: the C library says that every thread has its area there.
    unsafe {
        core::arch::asm!("mov {c:e}, fs:[{off} + 4]", c = out(reg) cpu, off = in(reg) offset, options(nostack, readonly, preserves_flags));
    }
    u32::try_from(cpu).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::startup::Startup;

    #[test]
    fn agrees_with_dlsym() {
        let startup = Startup::find();
        let found = Registered::find(startup.loader, startup.rseq_features);
        // SAFETY: an ordinary look-up by constant names.
        let (size, offset) = unsafe {
            (
                libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr()).cast::<u32>(),
                libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()).cast::<isize>(),
            )
        };
        // SAFETY: if they exist they have these types.
        let registered = unsafe { size.as_ref() }.is_some_and(|s| *s != 0);
        assert_eq!(found.is_some(), registered);
        if let Some(found) = found {
            // SAFETY: as above.
            assert_eq!(found.offset, unsafe { *offset });
        }
        assert_eq!(Registered::find(startup.vdso, 32), None);
    }
}
