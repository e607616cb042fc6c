//! A page at the end of every slab that nobody may touch: an overflow that goes on ends there, and so does one before the next slab.
//!
//! Where the kernel has guard regions (`MADV_GUARD_INSTALL`, Linux 6.13) no mapping is split. Elsewhere the page loses its rights, which splits the heap's
//! mapping, so only so many slabs have one.

use core::sync::atomic::{AtomicU32, Ordering};

use flagstone_types::PfnRange;

use super::Features;
use crate::process::{Process, syscall};

/// Bytes of a guard.
pub(crate) const GUARD: usize = 4096;

const FRAME_SHIFT: u32 = 16;
const MADV_GUARD_INSTALL: i32 = 102;
const MADV_GUARD_REMOVE: i32 = 103;

/// The most pages without rights at once: each makes two more mappings, of which a process may have 65,530.
const MOST_SPLITS: u32 = 8192;

/// How pages are closed: not tried yet, by guard regions, by taking rights.
const UNKNOWN: u32 = 0;
const REGIONS: u32 = 1;
const SPLITS: u32 = 2;

static METHOD: AtomicU32 = AtomicU32::new(UNKNOWN);
static SPLIT: AtomicU32 = AtomicU32::new(0);

fn are_wanted() -> bool {
    Process::start()
        .settings()
        .harden
        .contains(Features::GUARDS)
}

/// Where the guard of a slab in these frames is.
fn guard_of(frames: PfnRange) -> usize {
    ((frames.start.0 + frames.pages) << FRAME_SHIFT) - GUARD
}

/// Closes the last page of a new slab.
pub(crate) fn close(frames: PfnRange) {
    if are_wanted() {
        install(guard_of(frames));
    }
}

/// Opens the last page of a slab that goes; `false` if the system refuses, and it stays closed.
pub(crate) fn reopen(frames: PfnRange) -> bool {
    !are_wanted() || remove(guard_of(frames))
}

fn install(page: usize) {
    if METHOD.load(Ordering::Relaxed) != SPLITS {
        // SAFETY: D5, the slab has nothing in its last page.
        if unsafe { syscall::advise(page, GUARD, MADV_GUARD_INSTALL) }.is_ok() {
            METHOD.store(REGIONS, Ordering::Relaxed);
            return;
        }
        if METHOD.load(Ordering::Relaxed) == REGIONS {
            // Out of memory for a page table, or locked memory: this one slab goes without.
            return;
        }
        METHOD.store(SPLITS, Ordering::Relaxed);
    }
    if SPLIT.load(Ordering::Relaxed) >= MOST_SPLITS {
        return;
    }
    // SAFETY: D5.
    if unsafe { syscall::forbid(page, GUARD) }.is_ok() {
        SPLIT.fetch_add(1, Ordering::Relaxed);
    }
}

fn remove(page: usize) -> bool {
    match METHOD.load(Ordering::Relaxed) {
        REGIONS => {
            // SAFETY: D5; the page reads as zero from now on, and nothing was in it.
            unsafe { syscall::advise(page, GUARD, MADV_GUARD_REMOVE) }.is_ok()
        }
        // No slab was ever closed.
        _ if SPLIT.load(Ordering::Relaxed) == 0 => true,
        // A slab without a guard has its rights already, which costs a call and changes nothing; the count is a bound and may be a little low then.
        _ => {
            let opened = syscall::allow_writes(page, GUARD).is_ok();
            if opened {
                let _ =
                    SPLIT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
            }
            opened
        }
    }
}
