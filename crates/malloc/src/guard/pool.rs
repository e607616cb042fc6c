//! The pool: pages for objects, each between two pages that nobody may touch.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering};

use flagstone_host::classes::HostInner;
use flagstone_host::{Backtrace, Clock, Cpus, Entropy};
use flagstone_types::Nanos;

use crate::process::{Lock, Process, syscall};

use super::Guarded;
use super::coverage::{Coverage, StackHash};
use super::notice::{Cause, Notice};

/// The system's page size in bytes.
pub(super) const PAGE: usize = 4096;
/// Frames that are kept of a call stack.
pub(super) const FRAMES: usize = 32;
/// What lies beside an object in its page, by address: neighbouring bytes differ, so that a copied run is noticed.
pub(super) const fn pattern(address: usize) -> u8 {
    0xaa ^ (address & 7) as u8
}

/// Of a pool this full, in quarters, stacks that are in it are passed over.
const CROWDED_QUARTERS: u32 = 3;

/// Who did something to an object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trace {
    pub(super) frames: [usize; FRAMES],
    pub(super) depth: usize,
    pub(super) thread: u32,
    pub(super) cpu: u32,
    pub(super) when: Nanos,
}

impl Trace {
    pub(super) const NONE: Self = Self {
        frames: [0; FRAMES],
        depth: 0,
        thread: 0,
        cpu: 0,
        when: Nanos(0),
    };

    pub(super) fn here() -> Self {
        let host = Process::start();
        let mut trace = Self::NONE;
        trace.depth = host.backtrace(&mut trace.frames);
        trace.thread = syscall::thread_id();
        trace.cpu = host.current_cpu().0;
        trace.when = host.now();
        trace
    }

    pub(super) fn frames(&self) -> &[usize] {
        &self.frames[..self.depth]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Never used; its page can not be touched.
    Unused,
    /// Handed out; its page can be touched.
    Allocated,
    /// Given back; its page can not be touched, unless an access to it was reported already.
    Freed,
}

/// What is known of one page for objects.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) state: State,
    pub(super) address: usize,
    pub(super) size: usize,
    pub(super) allocated: Trace,
    pub(super) freed: Trace,
    stack: StackHash,
    /// The next one in the queue of free slots; itself if it is the last.
    next: u32,
    /// The guard page that was made accessible after a fault beside this object, so that the program could go on; 0 for none (W4).
    opened: usize,
}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Objects in the pool now.
    pub allocated: u64,
    /// Allocations that got a guard.
    pub total_allocations: u64,
    /// Of those, how many were freed.
    pub total_frees: u64,
    /// Errors that were reported.
    pub total_bugs: u64,
    /// Allocations that were to be sampled while every page was in use.
    pub skipped_full: u64,
    /// Allocations that were passed over because the pool was crowded and had their stack.
    pub skipped_covered: u64,
}

struct Pool {
    slots: *mut Slot,
    count: u32,
    /// The queue of slots that are not allocated; the first has waited the longest.
    first: u32,
    last: u32,
    free: u32,
    coverage: Coverage,
    statistics: Statistics,
}

// SAFETY: the slots are reached through the pool's lock only (W2).
unsafe impl Send for Pool {}

static POOL: lock_api::Mutex<Lock<HostInner>, Pool> = lock_api::Mutex::new(Pool {
    slots: core::ptr::null_mut(),
    count: 0,
    first: 0,
    last: 0,
    free: 0,
    coverage: Coverage::new(),
    statistics: Statistics {
        allocated: 0,
        total_allocations: 0,
        total_frees: 0,
        total_bugs: 0,
        skipped_full: 0,
        skipped_covered: 0,
    },
});

/// Where the pages are, and how many bytes; written once, the length last (W1).
static START: AtomicUsize = AtomicUsize::new(0);
static LENGTH: AtomicUsize = AtomicUsize::new(0);

/// Reserves a pool of `objects`; `false` if the system has no room for it. Called once.
pub(super) fn create(objects: u32) -> bool {
    let objects = objects.clamp(1, super::MOST_OBJECTS);
    let length = (2 * objects as usize + 1) * PAGE;
    let records = objects as usize * size_of::<Slot>();
    let Ok(start) = syscall::map(0, length, libc::PROT_NONE) else {
        return false;
    };
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let Ok(slots) = syscall::map(0, records, rights) else {
        // SAFETY: known to nobody.
        let _ = unsafe { syscall::unmap(start, length) };
        return false;
    };
    syscall::name(start, length, c"flagstone guarded objects");
    let mut pool = POOL.lock();
    pool.slots = slots as *mut Slot;
    pool.count = objects;
    for n in 0..objects {
        let slot = Slot {
            state: State::Unused,
            address: 0,
            size: 0,
            allocated: Trace::NONE,
            freed: Trace::NONE,
            stack: StackHash::default(),
            next: (n + 1).min(objects - 1),
            opened: 0,
        };
        // SAFETY: so many slots were mapped just now.
        unsafe { pool.slots.add(n as usize).write(slot) };
    }
    pool.first = 0;
    pool.last = objects - 1;
    pool.free = objects;
    drop(pool);
    START.store(start, Ordering::Relaxed);
    LENGTH.store(length, Ordering::Release);
    true
}

/// Whether there is a pool.
pub(super) fn exists() -> bool {
    LENGTH.load(Ordering::Acquire) != 0
}

/// Whether `address` is in the pool, guard pages included.
#[inline]
pub(super) fn contains(address: usize) -> bool {
    let length = LENGTH.load(Ordering::Acquire);
    address.wrapping_sub(START.load(Ordering::Relaxed)) < length
}

/// The start of the page of slot `n`.
fn page(n: u32) -> usize {
    START.load(Ordering::Relaxed) + (2 * n as usize + 1) * PAGE
}

impl Pool {
    fn slot(&mut self, n: u32) -> &mut Slot {
        assert!(n < self.count);
        // SAFETY: below the count, written by `create`, and the lock is held (W2).
        unsafe { &mut *self.slots.add(n as usize) }
    }

    /// The slot in whose page `address` lies; `None` for a guard page.
    fn slot_at(&self, address: usize) -> Option<u32> {
        let number = (address - START.load(Ordering::Relaxed)) / PAGE;
        (number % 2 == 1).then_some((number / 2) as u32)
    }

    fn take(&mut self) -> Option<u32> {
        if self.free == 0 {
            return None;
        }
        let n = self.first;
        self.first = self.slot(n).next;
        self.free -= 1;
        Some(n)
    }

    fn put(&mut self, n: u32) {
        if self.free == 0 {
            self.first = n;
        } else {
            let last = self.last;
            self.slot(last).next = n;
        }
        self.slot(n).next = n;
        self.last = n;
        self.free += 1;
    }

    fn notice(&mut self, n: u32, cause: Cause) -> Notice {
        Notice {
            number: n,
            slot: *self.slot(n),
            cause,
            now: Trace::here(),
        }
    }
}

/// An object of `size` bytes, at most a page, aligned to `align`. `None` if every page is in use, if somebody else is at the pool, or if the pool is
/// crowded and has an object of the same call stack.
pub(super) fn allocate(size: usize, align: usize) -> Option<NonNull<u8>> {
    let allocated = Trace::here();
    let stack = StackHash::of(allocated.frames());
    let to_the_right = Process::start().random() & 1 != 0;
    let mut pool = POOL.try_lock()?;
    if pool.free * 4 <= pool.count * (4 - CROWDED_QUARTERS)
        && !allocated.frames().is_empty()
        && pool.coverage.has(stack)
    {
        pool.statistics.skipped_covered += 1;
        return None;
    }
    let Some(n) = pool.take() else {
        pool.statistics.skipped_full += 1;
        return None;
    };
    let start = page(n);
    if syscall::allow_writes(start, PAGE).is_err() {
        pool.put(n);
        return None;
    }
    let align = align.max(super::super::entry::ALIGN);
    let address = if to_the_right {
        // Never at the end of the page itself: an object of no bytes has an address of its own.
        (start + PAGE - size.max(1)) & !(align - 1)
    } else {
        start
    };
    *pool.slot(n) = Slot {
        state: State::Allocated,
        address,
        size,
        allocated,
        freed: Trace::NONE,
        stack,
        next: n,
        opened: 0,
    };
    pool.coverage.add(stack);
    pool.statistics.total_allocations += 1;
    pool.statistics.allocated += 1;
    for at in beside(start, address, size) {
        // SAFETY: in the slot's page, which is accessible and nobody's yet (W3).
        unsafe { (at as *mut u8).write(pattern(at)) };
    }
    NonNull::new(address as *mut u8)
}

/// The addresses in the page at `start` that are not the object's.
fn beside(start: usize, address: usize, size: usize) -> impl Iterator<Item = usize> {
    (start..address).chain(address + size..start + PAGE)
}

pub(super) fn look(address: usize) -> Guarded {
    let mut pool = POOL.lock();
    match pool.slot_at(address).map(|n| *pool.slot(n)) {
        Some(slot) if slot.state == State::Allocated && slot.address == address => {
            Guarded::Object { size: slot.size }
        }
        _ => Guarded::Not,
    }
}

pub(super) fn free(address: usize) {
    let mut pool = POOL.lock();
    let Some(n) = pool.slot_at(address) else {
        // In a guard page: told of the object on the left of it, or of the first.
        let near = nearest(&mut pool, address);
        return report(pool, near, Cause::InvalidFree { address });
    };
    let slot = *pool.slot(n);
    if slot.state != State::Allocated || slot.address != address {
        return report(pool, n, Cause::InvalidFree { address });
    }
    let start = page(n);
    // SAFETY: the page of an allocated object is accessible (W3).
    let differs = |at: &usize| unsafe { (*at as *const u8).read_volatile() } != pattern(*at);
    let corrupted = beside(start, slot.address, slot.size).find(differs);
    let notice = corrupted.map(|at| {
        let mut bytes = [0; 16];
        let most = (start + PAGE - at).min(bytes.len());
        for (k, byte) in bytes[..most].iter_mut().enumerate() {
            // SAFETY: as above.
            *byte = unsafe { ((at + k) as *const u8).read_volatile() };
        }
        pool.notice(
            n,
            Cause::Corruption {
                address: at,
                bytes,
                count: most,
            },
        )
    });
    let freed = Trace::here();
    let slot = pool.slot(n);
    slot.state = State::Freed;
    slot.freed = freed;
    let stack = slot.stack;
    let opened = core::mem::take(&mut slot.opened);
    pool.coverage.remove(stack);
    pool.statistics.total_frees += 1;
    pool.statistics.allocated -= 1;
    // Memory that can not be protected is not handed out again either: its slot is not put back.
    if protect(start) && (opened == 0 || protect(opened)) {
        pool.put(n);
    }
    if notice.is_some() {
        pool.statistics.total_bugs += 1;
    }
    drop(pool);
    if let Some(notice) = notice {
        notice.send();
    }
}

fn protect(page: usize) -> bool {
    // SAFETY: a page of the pool, whose object is freed.
    unsafe {
        // Its memory goes back too: what the page held is nobody's.
        let _ = syscall::call(
            libc::SYS_madvise,
            [page, PAGE, libc::MADV_DONTNEED as usize, 0, 0, 0],
        );
        syscall::call(
            libc::SYS_mprotect,
            [page, PAGE, libc::PROT_NONE as usize, 0, 0, 0],
        )
        .is_ok()
    }
}

fn report(mut pool: lock_api::MutexGuard<'_, Lock<HostInner>, Pool>, n: u32, cause: Cause) {
    let notice = pool.notice(n, cause);
    pool.statistics.total_bugs += 1;
    drop(pool);
    notice.send();
}

/// The slot whose object is nearest to an address in a guard page.
fn nearest(pool: &mut Pool, address: usize) -> u32 {
    let right = ((address - START.load(Ordering::Relaxed)) / PAGE / 2) as u32;
    let left = right.checked_sub(1);
    let count = pool.count;
    let mut distance = |n: u32| {
        let slot = pool.slot(n);
        match slot.state {
            State::Allocated if address < slot.address => slot.address - address,
            State::Allocated => address - (slot.address + slot.size).min(address),
            // Only when there is nothing else to tell of.
            _ => usize::MAX,
        }
    };
    match left {
        None => right,
        Some(left) if right == count || distance(left) <= distance(right) => left,
        Some(_) => right,
    }
}

/// A fault at `address`, which is in the pool: reports it and makes the page accessible, so that the access can be done again and the program goes on.
pub(super) fn fault(address: usize, is_write: bool) {
    let mut pool = POOL.lock();
    let (n, cause) = match pool.slot_at(address) {
        Some(n) if pool.slot(n).state == State::Freed => {
            (n, Cause::UseAfterFree { address, is_write })
        }
        Some(n) => (n, Cause::Wild { address, is_write }),
        None => {
            let n = nearest(&mut pool, address);
            pool.slot(n).opened = address & !(PAGE - 1);
            (n, Cause::OutOfBounds { address, is_write })
        }
    };
    let notice = pool.notice(n, cause);
    pool.statistics.total_bugs += 1;
    drop(pool);
    let _ = syscall::allow_writes(address & !(PAGE - 1), PAGE);
    notice.send();
}

pub(super) fn statistics() -> Statistics {
    POOL.lock().statistics
}

pub(super) fn lock_for_fork() {
    core::mem::forget(POOL.lock());
}

/// # Safety
/// As [`super::unlock_after_fork`].
pub(super) unsafe fn unlock_after_fork() {
    // SAFETY: as promised.
    unsafe { POOL.force_unlock() };
}
