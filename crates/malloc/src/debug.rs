//! Debugging of the heap's objects in a process (`FLAGSTONE_DEBUG`): which caches, where their stacks are kept, where reports go.

use core::fmt;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use flagstone_host::{Level, Log};
use flagstone_kasan::StackDepot;
use flagstone_kasan::report::{Report, Symbol, Symbols};
use flagstone_slab::{DebugFlags, DebugOptions, DebugPolicy};
use flagstone_types::Bytes;

use crate::process::{Process, syscall, unwind};
use crate::spool::{self, Account};

/// What the caches of a process are debugged with.
pub(crate) const POLICY: DebugPolicy = DebugPolicy {
    flags: flags_of,
    report,
    depot,
    task: syscall::thread_id,
};

/// Address space for call stacks, at most and at least; little of it is ever touched.
const DEPOT_BYTES: (usize, usize) = (1 << 30, 1 << 20);

/// The options, if there are any.
fn options() -> Option<DebugOptions<'static>> {
    let settings = Process::start().settings();
    let line = settings.debug()?;
    core::str::from_utf8(line).ok().map(DebugOptions::new)
}

fn flags_of(cache: &str) -> DebugFlags {
    options().map_or(DebugFlags::NONE, |options| options.flags_of(cache))
}

/// Names the letters that mean nothing.
pub(crate) fn report_unknown() {
    if let Some(options) = options() {
        options.unknown(&mut |letter| {
            Process::start().log(
                Level::Warning,
                format_args!("setting FLAGSTONE_DEBUG: '{letter}' is unknown, ignored"),
            );
        });
    }
}

static DEPOT: AtomicPtr<StackDepot> = AtomicPtr::new(null_mut());

/// The depot, made when it is first asked for; `None` where the system has no room for it.
fn depot() -> Option<&'static StackDepot> {
    // SAFETY: written once, with what lives as long as the process.
    match unsafe { DEPOT.load(Ordering::Acquire).as_ref() } {
        Some(depot) => Some(depot),
        None => make_depot(),
    }
}

#[cold]
fn make_depot() -> Option<&'static StackDepot> {
    const HEAD: usize = 4096;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let mut bytes = DEPOT_BYTES.0;
    let at = loop {
        match syscall::map(0, HEAD + bytes, rights) {
            Ok(at) => break at,
            Err(_) if bytes > DEPOT_BYTES.1 => bytes /= 4,
            Err(_) => return None,
        }
    };
    let place = at as *mut StackDepot;
    let made = NonNull::new((at + HEAD) as *mut u8).and_then(|memory| {
        // SAFETY: the mapping is new, zero and nobody else's.
        unsafe { StackDepot::new(memory, Bytes(bytes)) }.ok()
    });
    let published = made.and_then(|depot| {
        // SAFETY: the first page of the mapping is the depot's own.
        unsafe { place.write(depot) };
        DEPOT
            .compare_exchange(null_mut(), place, Ordering::AcqRel, Ordering::Acquire)
            .ok()
    });
    if published.is_none() {
        // Somebody else's came first, or it can not be made.
        // SAFETY: known to nobody.
        let _ = unsafe { syscall::unmap(at, HEAD + bytes) };
    }
    // SAFETY: as in `depot`.
    unsafe { DEPOT.load(Ordering::Acquire).as_ref() }
}

/// Tells return addresses by module and offset.
struct Modules;

impl Symbols for Modules {
    fn resolve(&self, pc: usize, tell: &mut dyn FnMut(Symbol<'_>)) {
        spool::with_module(pc, |module, module_offset| {
            tell(Symbol {
                module: Some(module),
                module_offset,
                ..Symbol::default()
            });
        });
    }
}

struct Bug<'a, 'b>(&'b Report<'a>);

impl Account for Bug<'_, '_> {
    fn write_text(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        write!(out, "{}", self.0.text(&Modules))
    }

    fn write_json(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        self.0.write_json(&Modules, out)
    }
}

/// Reports beyond so many are counted only: a program with one bug in a loop would write nothing else.
const MOST_REPORTS: u32 = 100;
static REPORTS: AtomicU32 = AtomicU32::new(0);

fn report(report: &Report<'_>) {
    match REPORTS.fetch_add(1, Ordering::Relaxed) {
        n if n < MOST_REPORTS => spool::send(&Bug(report)),
        MOST_REPORTS => Process::start().log(
            Level::Error,
            format_args!("{MOST_REPORTS} bugs were reported; more are not"),
        ),
        _ => {}
    }
}

/// The frames of a stack without the innermost ones that are this library's own.
pub(crate) fn program_frames(into: &mut [usize], depth: usize) -> usize {
    let is_ours = |frame: &&usize| {
        unwind::place_of(**frame).is_some_and(|place| place.is_own && place.path.is_some())
    };
    let ours = into[..depth].iter().take_while(is_ours).count();
    into.copy_within(ours..depth, 0);
    depth - ours
}
