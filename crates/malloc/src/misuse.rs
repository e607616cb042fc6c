//! What happens when a pointer is freed that is no allocation: a message that names it, and abort.

use core::ptr::NonNull;

use flagstone_host::{Level, Log};
use flagstone_slab::BadFree;
use flagstone_types::FreeError;

use crate::process::Process;

/// Told by the caches.
pub(crate) fn bad_free(bad: &BadFree<'_>) {
    stop(bad.object, bad.error, Some(bad.cache));
}

/// Says what is wrong with a freed pointer and ends the process.
#[cold]
#[inline(never)]
pub(crate) fn invalid(object: NonNull<u8>, error: FreeError) -> ! {
    stop(object, error, None)
}

fn stop(object: NonNull<u8>, error: FreeError, cache: Option<&str>) -> ! {
    let host = Process::start();
    let what = match error {
        FreeError::AlreadyFree => "double free",
        _ => "invalid free",
    };
    match cache {
        Some(cache) => {
            host.log(
                Level::Error,
                format_args!("{what} of {object:p}: {error} (cache {cache})"),
            );
        }
        None => host.log(Level::Error, format_args!("{what} of {object:p}: {error}")),
    }
    // SAFETY: abort has no preconditions.
    unsafe { libc::abort() }
}

/// Says what happened and ends the process.
#[cold]
pub fn fatal(message: core::fmt::Arguments<'_>) -> ! {
    Process::start().log(Level::Error, message);
    // SAFETY: abort has no preconditions.
    unsafe { libc::abort() }
}
