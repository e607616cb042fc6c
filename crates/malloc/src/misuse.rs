//! What happens when a pointer is freed that is no allocation: a message that names it, and abort.

use core::fmt;
use core::ptr::NonNull;

use flagstone_host::{Backtrace as _, Level, Log};
use flagstone_slab::BadFree;
use flagstone_types::FreeError;

use crate::process::Process;
use crate::spool::{self, Account, CallTrace};

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

struct Misuse<'a> {
    object: NonNull<u8>,
    error: FreeError,
    cache: Option<&'a str>,
    stack: &'a [usize],
}

impl Misuse<'_> {
    fn what(&self) -> &'static str {
        match self.error {
            FreeError::AlreadyFree => "double free",
            _ => "invalid free",
        }
    }
}

impl fmt::Display for Misuse<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {:p}: {}", self.what(), self.object, self.error)?;
        match self.cache {
            Some(cache) => write!(f, " (cache {cache})"),
            None => Ok(()),
        }
    }
}

impl Account for Misuse<'_> {
    fn write_text(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        writeln!(out, "flagstone: error: {self}")?;
        write!(out, "{}", CallTrace(self.stack))
    }

    fn write_json(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        let (what, pid) = (self.what(), crate::report::pid());
        write!(
            out,
            "{{\"bug\":\"{what}\",\"pid\":{pid},\"address\":\"{:p}\",\"message\":\"{}\",",
            self.object, self.error
        )?;
        if let Some(cache) = self.cache {
            write!(out, "\"cache\":\"{cache}\",")?;
        }
        out.write_str("\"stack\":")?;
        CallTrace(self.stack).write_json(out)?;
        out.write_char('}')
    }
}

fn stop(object: NonNull<u8>, error: FreeError, cache: Option<&str>) -> ! {
    let host = Process::start();
    let mut misuse = Misuse {
        object,
        error,
        cache,
        stack: &[],
    };
    let mut frames = [0; 32];
    if spool::is_wanted() {
        let depth = host.backtrace(&mut frames);
        misuse.stack = &frames[..depth];
        spool::send(&misuse);
    } else {
        host.log(Level::Error, format_args!("{misuse}"));
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
