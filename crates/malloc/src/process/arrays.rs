//! The region of per-CPU arrays: where each array is, which form it has, and how all are stopped.
//!
//! ```text
//!  id 0 │····│ array A │ array B │ …          4 MiB each; committed from below
//!  id 1 │····│ array A │ array B │ …          an array is at byte `tag << 6` of every slice
//! ```
//!
//! Slices are committed together but touched one by one: an array's header stays zero on a CPU that never used
//! it, so that a machine of hundreds of CPUs pays for those that run.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use flagstone_host::classes::HostInner;
use flagstone_types::{AllocError, CpuId, Nid};

use super::fast::{self, FAST, HEADER_BYTES, SLICE_SHIFT, TAG_SHIFT};
use super::lock::Lock;
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

/// The most slots of an array.
pub(super) const MOST_SLOTS: u32 = ((LARGEST_UNITS << TAG_SHIFT) - HEADER_BYTES as u32) / 8;

/// Arrays are made of units of 64 bytes, at most this many.
const LARGEST_UNITS: u32 = 1023;
/// Bytes committed at a time in every slice.
const COMMIT_STEP: usize = 64 << 10;
/// More CPUs than this, and concurrency ids are preferred: they keep to as few slices as threads run.
const FEW_CPUS: u32 = 8;

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
/// The next free place of the same size, by tag; under [`ARRAYS`].
static NEXT_FREE: [AtomicU16; 1 << 16] = [const { AtomicU16::new(0) }; 1 << 16];

/// Which parts of the slices are in use.
#[derive(Debug)]
pub(super) struct Places {
    /// The first free place by size in units; 0 if there is none.
    free: [u16; LARGEST_UNITS as usize + 1],
    /// Everything from this tag on has never been used.
    next: u32,
    /// Bytes of every slice that can be written.
    committed: usize,
    /// Bytes of every slice that are reserved.
    reserved: usize,
}

/// Held by whoever makes or removes an array.
pub(super) static ARRAYS: lock_api::Mutex<Lock<HostInner>, Places> = lock_api::Mutex::new(Places {
    free: [0; LARGEST_UNITS as usize + 1],
    next: 1,
    committed: 0,
    reserved: 0,
});

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

/// A stack's header.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Header {
    pub(super) count: AtomicU64,
    pub(super) limit: AtomicU32,
    pub(super) lock: AtomicU8,
    unused: [u8; 2],
    /// 1 once a limit was set, before the limit (P15).
    pub(super) seen: AtomicU8,
}

const _: () = assert!(size_of::<Header>() == HEADER_BYTES);

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
    ARRAYS.lock().reserved = if ids == 0 { 0 } else { 1 << SLICE_SHIFT };
    IDS.store(ids, Ordering::Relaxed);
    FAST.region.store(region as *mut u8, Ordering::Relaxed);
    MODE.store(mode as u8, Ordering::Relaxed);
    let (Some(registered), Mode::Cpu | Mode::Concurrency) = (registered, mode) else {
        return;
    };
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
        ArrayChoice::Concurrency if registered.concurrency_id => Mode::Concurrency,
        // A concurrency id says nothing of the node.
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

/// A place in every slice, given back when dropped.
#[derive(Debug)]
pub(super) struct Room {
    tag: u16,
    capacity: u32,
}

impl Room {
    /// Room for `capacity` slots after a header; `has_lock` says that the form uses the header's lock.
    ///
    /// # Errors
    /// [`AllocError::TooLarge`] for more than [`MOST_SLOTS`], [`AllocError::Exists`] if slices are full,
    /// [`AllocError::OutOfMemory`] if the system refuses memory for them.
    pub(super) fn new(capacity: u32, has_lock: bool) -> Result<Self, AllocError> {
        if capacity > MOST_SLOTS {
            return Err(AllocError::TooLarge);
        }
        let units = (HEADER_BYTES as u32 + capacity * 8).div_ceil(1 << TAG_SHIFT);
        let tag = ARRAYS.lock().take(units)?;
        let room = Self { tag, capacity };
        room.clear();
        if has_lock {
            LOCKED_FORMS[tag as usize / 64].fetch_or(1 << (tag % 64), Ordering::SeqCst);
        }
        Ok(room)
    }

    /// Makes headers what they are in fresh memory, touching only those that are not.
    fn clear(&self) {
        for id in 0..IDS.load(Ordering::Relaxed) {
            let words = self.words(id);
            // The transaction forms keep a third word. A place may have slots of an earlier, larger one there.
            for n in 0..3 {
                // SAFETY: P11; an array has at least 64 bytes, and nobody uses this one yet.
                let word = unsafe { &*words.add(n) };
                if word.load(Ordering::Relaxed) != 0 {
                    word.store(0, Ordering::Relaxed);
                }
            }
        }
    }

    pub(super) fn tag(&self) -> u16 {
        self.tag
    }

    pub(super) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// The stack in id 0's slice, for sections.
    #[inline(always)]
    pub(super) fn stack(&self) -> *mut u8 {
        fast::stack(self.tag)
    }

    /// The array as words in the slice of `id`, which has one.
    #[inline]
    pub(super) fn words(&self, id: u32) -> *mut AtomicU64 {
        self.stack()
            .wrapping_add((id as usize) << SLICE_SHIFT)
            .cast()
    }

    /// The header for `cpu`, if it has a slice.
    #[inline]
    pub(super) fn header(&self, cpu: CpuId) -> Option<&Header> {
        // SAFETY: P11, the array is committed in every slice below IDS, and its header is made of atomics.
        (cpu.0 < IDS.load(Ordering::Relaxed))
            .then(|| unsafe { &*self.words(cpu.0).cast::<Header>() })
    }

    /// The slots after `header`.
    pub(super) fn slots(header: &Header) -> *mut *mut u8 {
        (&raw const *header).wrapping_add(1).cast_mut().cast()
    }

    /// Sets the limit of `cpu`'s stack.
    pub(super) fn set_limit(&self, cpu: CpuId, limit: u32) {
        let limit = limit.min(self.capacity);
        // A limit that is set already, 0 in fresh memory, makes no page of a CPU that never ran here.
        if let Some(header) = self
            .header(cpu)
            .filter(|h| h.limit.load(Ordering::Relaxed) != limit)
        {
            header.seen.store(1, Ordering::Release);
            header.limit.store(limit, Ordering::Release);
        }
    }

    /// The limit of `cpu`'s stack.
    pub(super) fn limit(&self, cpu: CpuId) -> u32 {
        self.header(cpu)
            .map_or(0, |header| header.limit.load(Ordering::Relaxed))
    }

    /// How many pointers `cpu`'s stack holds.
    pub(super) fn len(&self, cpu: CpuId) -> u32 {
        self.header(cpu)
            .map_or(0, |header| header.count.load(Ordering::Relaxed) as u32)
    }

    /// Hands out everything in `cpu`'s stack and leaves it empty; arrays are stopped (P17).
    pub(super) fn drain(&self, cpu: CpuId, take: &mut dyn FnMut(&[NonNull<u8>])) {
        let Some(header) = self.header(cpu) else {
            return;
        };
        // A look first: an exchange would make a page of a CPU that never ran here.
        if header.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let count = header.count.swap(0, Ordering::AcqRel) as usize;
        if count > 0 {
            // SAFETY: P17, the slots are ours until arrays go on; P11, they hold `count` pointers, none of them null.
            take(unsafe { core::slice::from_raw_parts(Self::slots(header).cast(), count) });
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        LOCKED_FORMS[self.tag as usize / 64].fetch_and(!(1 << (self.tag % 64)), Ordering::SeqCst);
        let units = (HEADER_BYTES as u32 + self.capacity * 8).div_ceil(1 << TAG_SHIFT) as usize;
        ARRAYS.lock().give(self.tag, units);
    }
}

impl Places {
    /// A place of `units` units: a free one of that size, one never used, or the first part of a larger free one.
    fn take(&mut self, units: u32) -> Result<u16, AllocError> {
        if let Some(tag) = self.take_free(units as usize) {
            return Ok(tag);
        }
        let end = self.next + units;
        if end <= 1 << 16 {
            self.commit((end as usize) << TAG_SHIFT)?;
            let tag = self.next as u16;
            self.next = end;
            return Ok(tag);
        }
        for larger in units as usize + 1..self.free.len() {
            if let Some(tag) = self.take_free(larger) {
                self.give(tag + units as u16, larger - units as usize);
                return Ok(tag);
            }
        }
        Err(AllocError::Exists)
    }

    fn take_free(&mut self, units: usize) -> Option<u16> {
        let tag = self.free[units];
        if tag == 0 {
            return None;
        }
        self.free[units] = NEXT_FREE[tag as usize].load(Ordering::Relaxed);
        Some(tag)
    }

    fn give(&mut self, tag: u16, units: usize) {
        NEXT_FREE[tag as usize].store(self.free[units], Ordering::Relaxed);
        self.free[units] = tag;
    }

    /// Makes the first `bytes` bytes of every slice writable.
    fn commit(&mut self, bytes: usize) -> Result<(), AllocError> {
        let end = bytes.next_multiple_of(COMMIT_STEP).min(self.reserved);
        if bytes > end {
            return Err(AllocError::OutOfMemory);
        }
        let region = FAST.region.load(Ordering::Relaxed) as usize;
        for id in (0..IDS.load(Ordering::Relaxed) as usize).filter(|_| end > self.committed) {
            // A failure half-way leaves rights that do no harm; the next attempt sets them again.
            syscall::allow_writes(region + (id << SLICE_SHIFT), end)
                .map_err(|_| AllocError::OutOfMemory)?;
        }
        self.committed = self.committed.max(end);
        Ok(())
    }
}

/// Gives back the part of the region that is not committed.
pub(super) fn shrink() {
    let mut places = ARRAYS.lock();
    let keep = places.committed.max(COMMIT_STEP);
    let region = FAST.region.load(Ordering::Relaxed) as usize;
    for id in (0..IDS.load(Ordering::Relaxed) as usize).filter(|_| keep < places.reserved) {
        // SAFETY: P11, nothing above `committed` has ever been used, and `reserved` keeps it from being.
        let _ =
            unsafe { syscall::unmap(region + (id << SLICE_SHIFT) + keep, places.reserved - keep) };
    }
    places.reserved = places.reserved.min(keep);
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
        while lock.load(Ordering::SeqCst) != 0 {
            syscall::yield_now();
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
