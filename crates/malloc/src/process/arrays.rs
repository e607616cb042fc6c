//! The region of per-CPU arrays: the mode that is in use, the slices of the ids, and how all arrays are stopped.
//!
//! ```text
//!  id 0 │····│ array A │ array B │ …          4 MiB each; committed from below
//!  id 1 │····│ array A │ array B │ …          an array is at byte `tag << 6` of every slice
//! ```
//!
//! Slices (`room.rs`) are committed together but touched one by one: an array's header stays zero on a CPU that never used
//! it, so that a machine of hundreds of CPUs pays for those that run.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use flagstone_host::classes::HostInner;
use flagstone_types::{CpuId, Nid};

use super::fast::{self, FAST, SLICE_SHIFT};
use super::lock::Lock;
use super::room::{ARRAYS, Header};
use super::rseq_symbols::Registered;
use super::settings::ArrayChoice;
use super::syscall::{self, Barrier};
use super::{cpu_number, topology};

/// How arrays are made indivisible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// Not decided yet: nothing succeeds.
    Unstarted = 0,
    /// Restartable sequences, by CPU number.
    Cpu = 1,
    /// Restartable sequences, by concurrency id.
    Concurrency = 2,
    /// An exchange lock per array.
    Exchange = 3,
}

impl Mode {
    /// What reports call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unstarted => "unstarted",
            Self::Cpu => "rseq",
            Self::Concurrency => "cid",
            Self::Exchange => "exchange",
        }
    }
}

/// More CPUs than this, and concurrency ids are preferred: they keep to as few slices as threads run.
const FEW_CPUS: u32 = 8;

/// See [`fast::Fast::slices`] (P25).
static SLICES: [AtomicUsize; topology::MOST_CPUS] =
    [const { AtomicUsize::new(0) }; topology::MOST_CPUS];

static MODE: AtomicU8 = AtomicU8::new(0);
/// Ids that have a slice.
static IDS: AtomicU32 = AtomicU32::new(0);
/// The bound while nothing is stopped.
static OPEN_BOUND: AtomicU32 = AtomicU32::new(0);
/// Whether the kernel can restart sections of other threads.
static CAN_RESTART: AtomicBool = AtomicBool::new(false);

/// Whether the forms that do not look at the bound are stopped.
static STOPPED: AtomicBool = AtomicBool::new(false);

/// The arrays in use that have an exchange lock, by tag.
static LOCKED_FORMS: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];
/// Who wants arrays to be stopped.
#[derive(Debug)]
pub(super) struct Stops {
    drains: u32,
    vforks: u32,
}

/// Held by whoever stops arrays or lets them go on.
pub(super) static STOP: lock_api::Mutex<Lock<HostInner>, Stops> = lock_api::Mutex::new(Stops {
    drains: 0,
    vforks: 0,
});

/// Notes whether the array with this tag has exchange locks.
pub(super) fn note_lock(tag: u16, has_lock: bool) {
    let (word, bit) = (&LOCKED_FORMS[tag as usize / 64], 1 << (tag % 64));
    if has_lock {
        word.fetch_or(bit, Ordering::SeqCst);
    } else {
        word.fetch_and(!bit, Ordering::SeqCst);
    }
}

/// Ids that have a slice: all below this.
#[inline]
pub(super) fn ids() -> u32 {
    IDS.load(Ordering::Relaxed)
}

/// The mode in use.
pub(super) fn mode() -> Mode {
    match MODE.load(Ordering::Relaxed) {
        1 => Mode::Cpu,
        2 => Mode::Concurrency,
        3 => Mode::Exchange,
        _ => Mode::Unstarted,
    }
}

/// Whether arrays can be stopped from outside.
pub(super) fn can_stop() -> bool {
    mode() == Mode::Exchange || CAN_RESTART.load(Ordering::Relaxed)
}

/// Decides the mode and reserves the region; called once, during start.
pub(super) fn start(choice: ArrayChoice, registered: Option<Registered>) {
    let possible = topology::possible_cpus();
    let share = syscall::address_space_limit().map_or(usize::MAX, |limit| {
        limit.saturating_sub(syscall::address_space_used().unwrap_or(0)) / 16
    });
    let mut ids = possible
        .min(u32::try_from(share >> SLICE_SHIFT).unwrap_or(u32::MAX))
        .max(1);
    let region = loop {
        match syscall::map(0, (ids as usize) << SLICE_SHIFT, libc::PROT_NONE) {
            Ok(at) => break at,
            Err(_) if ids > 1 => ids /= 2,
            Err(_) => break 0,
        }
    };
    if region == 0 {
        ids = 0;
    } else {
        let length = (ids as usize) << SLICE_SHIFT;
        syscall::name(region, length, c"flagstone: arrays");
        // SAFETY: this advice changes no contents.
        let _ = unsafe { syscall::advise(region, length, libc::MADV_NOHUGEPAGE) };
    }
    let mode = decide(choice, registered, ids < possible);
    IDS.store(ids, Ordering::Relaxed);
    FAST.region.store(region as *mut u8, Ordering::Relaxed);
    // Sections for sizes and frames without an array look at the beginning of a slice (P11), also while the heap is not up.
    let has_beginnings = ARRAYS
        .lock()
        .reserve(if ids == 0 { 0 } else { 1 << SLICE_SHIFT })
        .is_ok();
    for (id, slice) in SLICES.iter().enumerate().take(ids as usize) {
        let node = topology::node_of(CpuId(id as u32)).index();
        slice.store(region + (id << SLICE_SHIFT) + node, Ordering::Relaxed);
    }
    FAST.slices
        .store(SLICES.as_ptr().cast_mut(), Ordering::Relaxed);
    MODE.store(mode as u8, Ordering::Relaxed);
    let (Some(registered), Mode::Cpu | Mode::Concurrency) = (registered, mode) else {
        return;
    };
    if !has_beginnings {
        return;
    }
    CAN_RESTART.store(
        syscall::membarrier(Barrier::RegisterRestart).is_ok(),
        Ordering::Relaxed,
    );
    let id_off = match mode {
        Mode::Cpu => registered.cpu_offset(),
        _ => registered.concurrency_offset(),
    };
    FAST.rseq_off.store(registered.offset, Ordering::Relaxed);
    FAST.id_off.store(id_off, Ordering::Relaxed);
    OPEN_BOUND.store(ids, Ordering::Relaxed);
    FAST.bound.store(ids, Ordering::Release);
}

fn decide(choice: ArrayChoice, registered: Option<Registered>, short_of_slices: bool) -> Mode {
    let Some(registered) = registered else {
        return Mode::Exchange;
    };
    let many = short_of_slices || topology::possible_cpus() > FEW_CPUS;
    match choice {
        ArrayChoice::Exchange => Mode::Exchange,
        // A concurrency id says nothing of the node.
        ArrayChoice::Concurrency if registered.concurrency_id && topology::nodes() == 1 => {
            Mode::Concurrency
        }
        ArrayChoice::Auto if registered.concurrency_id && many && topology::nodes() == 1 => {
            Mode::Concurrency
        }
        _ => Mode::Cpu,
    }
}

/// The node that this runs on.
pub(super) fn current_node() -> Nid {
    match cpu_number::known() {
        // A concurrency id says nothing of the node.
        Some(cpu) if mode() == Mode::Concurrency => topology::node_of(CpuId(cpu)),
        _ => topology::node_of(current_cpu()),
    }
}

/// The CPU that this runs on: an id as arrays use it where it has one, below the possible CPUs always (C1).
#[inline]
pub(super) fn current_cpu() -> CpuId {
    // Without restartable sequences every id is at or above the bound of those that have one.
    let id = fast::current_id();
    if id < OPEN_BOUND.load(Ordering::Relaxed) {
        return CpuId(id);
    }
    current_cpu_slowly()
}

/// The same for a thread or a process without restartable sequences, and for CPUs without a slice.
#[inline(never)]
fn current_cpu_slowly() -> CpuId {
    let cpu = cpu_number::hint();
    let possible = topology::possible_cpus();
    CpuId(if cpu < possible { cpu } else { cpu % possible })
}

/// Whether the forms with locks or transactions are stopped; read after the lock was taken or the transaction id was read.
#[inline]
pub(super) fn is_stopped() -> bool {
    STOPPED.load(Ordering::SeqCst)
}

/// Stops every array (A5). `false` if that can not be done; nothing has changed then.
pub(super) fn stop() -> bool {
    let mut stops = STOP.lock();
    if stops.drains == 0 {
        STOPPED.store(true, Ordering::SeqCst);
        FAST.bound.store(0, Ordering::SeqCst);
        let uses_sections = OPEN_BOUND.load(Ordering::Relaxed) != 0;
        if uses_sections
            && (!CAN_RESTART.load(Ordering::Relaxed)
                || syscall::membarrier(Barrier::Restart).is_err())
        {
            go_on(&stops);
            return false;
        }
        wait_for_lock_holders();
    }
    stops.drains += 1;
    true
}

/// Ends one [`stop`].
pub(super) fn restart() {
    let mut stops = STOP.lock();
    stops.drains = stops.drains.saturating_sub(1);
    if stops.drains == 0 {
        go_on(&stops);
    }
}

/// Keeps this thread and a child that shares its memory out of sections (P24); other threads may finish theirs.
pub(super) fn stop_for_vfork() {
    let mut stops = STOP.lock();
    stops.vforks += 1;
    FAST.bound.store(0, Ordering::SeqCst);
}

/// Ends one [`stop_for_vfork`].
pub(super) fn restart_after_vfork() {
    let mut stops = STOP.lock();
    stops.vforks = stops.vforks.saturating_sub(1);
    if stops.drains == 0 {
        go_on(&stops);
    }
}

fn go_on(stops: &Stops) {
    STOPPED.store(false, Ordering::SeqCst);
    if stops.vforks == 0 {
        FAST.bound
            .store(OPEN_BOUND.load(Ordering::Relaxed), Ordering::Release);
    }
}

/// Every lock byte of arrays in use that have one.
fn lock_bytes() -> impl Iterator<Item = &'static AtomicU8> {
    LOCKED_FORMS.iter().enumerate().flat_map(|(n, word)| {
        let word = word.load(Ordering::SeqCst);
        let tags = (0..64)
            .filter(move |bit| word >> bit & 1 == 1)
            .map(move |bit| (n * 64 + bit) as u16);
        tags.flat_map(|tag| {
            (0..IDS.load(Ordering::Relaxed) as usize).map(move |id| {
                let header = fast::stack(tag)
                    .wrapping_add(id << SLICE_SHIFT)
                    .cast::<Header>();
                // SAFETY: P11, arrays in use are committed in every slice.
                unsafe { &(*header).lock }
            })
        })
    })
}

/// Whoever took a lock before arrays were stopped releases it soon; whoever takes it later sees the stop.
fn wait_for_lock_holders() {
    for lock in lock_bytes() {
        let mut round = 0;
        while lock.load(Ordering::SeqCst) != 0 {
            syscall::wait_a_little(round);
            round = round.saturating_add(1);
        }
    }
}

/// P23: frees the exchange locks and ends the stops of threads that the child of a fork does not have.
pub(super) fn after_fork(stops: &mut Stops) {
    lock_bytes()
        .filter(|l| l.load(Ordering::Relaxed) != 0)
        .for_each(|l| l.store(0, Ordering::Relaxed));
    stops.drains = 0;
    go_on(stops);
}

#[cfg(test)]
mod tests;
