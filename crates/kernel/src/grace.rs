//! Grace periods by quiescent states (G1 to G3).

use core::marker::PhantomData;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicU64, Ordering};

use crate::kernel::Kernel;
use crate::per_cpu::Area;
use crate::{barrier, interrupts};
use flagstone_host::{Grace, Mutex, RcuHead, classes};

/// The newest epoch that was drawn.
static EPOCH: AtomicU64 = AtomicU64::new(0);
static DEFERRED: Mutex<Kernel, classes::HostInner, Deferred> = lock_api::Mutex::new(Deferred {
    waiting: Chain::new(),
    epoch: 0,
    fresh: Chain::new(),
});

/// Deferred calls.
struct Deferred {
    /// Those that wait for `epoch`.
    waiting: Chain,
    epoch: u64,
    /// Those that came later and have no epoch yet.
    fresh: Chain,
}

/// Heads, oldest first.
struct Chain {
    first: *mut RcuHead,
    last: *mut RcuHead,
}

// SAFETY: G3: a chain is reached under the lock, or by who took it away whole.
unsafe impl Send for Chain {}

impl Chain {
    const fn new() -> Self {
        Self {
            first: null_mut(),
            last: null_mut(),
        }
    }

    const fn is_empty(&self) -> bool {
        self.first.is_null()
    }

    const fn take(&mut self) -> Self {
        core::mem::replace(self, Self::new())
    }

    fn push(&mut self, head: NonNull<RcuHead>) {
        if self.is_empty() {
            self.first = head.as_ptr();
        } else {
            // SAFETY: G3: a head in a chain is the host's until its call.
            unsafe { (*self.last).next = head.as_ptr() };
        }
        self.last = head.as_ptr();
    }

    /// Runs and forgets all of them; returns how many.
    fn run(self) -> usize {
        let cpu = Area::current();
        cpu.in_deferred.store(true, Ordering::Relaxed);
        let (mut next, mut ran) = (self.first, 0);
        while let Some(head) = NonNull::new(next) {
            // SAFETY: G3, host G1: the head is valid until its call, and its grace period has passed.
            unsafe {
                let call = (*next).call.take();
                next = (*next).next;
                if let Some(call) = call {
                    call(head);
                }
            }
            ran += 1;
        }
        cpu.in_deferred.store(false, Ordering::Relaxed);
        ran
    }
}

/// A read-side section; stays on its CPU.
#[derive(Debug)]
#[must_use]
pub struct ReadGuard<'a>(PhantomData<(&'a (), *const ())>);

impl Drop for ReadGuard<'_> {
    fn drop(&mut self) {
        // What was read stays before this for an interrupt of the same CPU (G2).
        core::sync::atomic::compiler_fence(Ordering::SeqCst);
        let area = Area::current();
        let depth = area.read_depth.load(Ordering::Relaxed) - 1;
        area.read_depth.store(depth, Ordering::Relaxed);
        if depth == 0 && area.quiet.load(Ordering::Relaxed) != EPOCH.load(Ordering::Relaxed) {
            // Somebody waits, or will: an interrupt outside of a section could be long in coming.
            note(area);
        }
    }
}

/// Notes that a CPU is quiet, if it is. Called on it, in an interrupt, where it waits, or at the end of a section. An interrupt
/// in between notes a newer epoch that is then overwritten; the older one is true as well (G1).
pub(crate) fn note(area: &Area) {
    if area.read_depth.load(Ordering::Relaxed) == 0 {
        area.quiet
            .store(EPOCH.load(Ordering::SeqCst), Ordering::Release);
    }
}

fn draw() -> u64 {
    EPOCH.fetch_add(1, Ordering::SeqCst) + 1
}

/// Whether every running CPU was quiet in `epoch`. The caller is in no read-side section.
fn has_passed(epoch: u64) -> bool {
    note(Area::current());
    Area::current().quiet.load(Ordering::Acquire) >= epoch
        && Area::others().all(|area| area.quiet.load(Ordering::Acquire) >= epoch)
}

fn assert_may_wait() {
    let cpu = Area::current();
    assert!(
        cpu.read_depth.load(Ordering::Relaxed) == 0 && !interrupts::is_inside(),
        "waiting for a grace period inside a read-side section or an interrupt"
    );
}

impl Grace for Kernel {
    type ReadGuard<'a> = ReadGuard<'a>;

    #[inline]
    fn read(&self) -> ReadGuard<'_> {
        let depth = &Area::current().read_depth;
        depth.store(depth.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        core::sync::atomic::compiler_fence(Ordering::SeqCst);
        ReadGuard(PhantomData)
    }

    unsafe fn defer(&self, head: NonNull<RcuHead>, call: unsafe fn(NonNull<RcuHead>)) {
        // SAFETY: host G1: the head is the host's from now to the call.
        unsafe {
            head.write(RcuHead {
                next: null_mut(),
                call: Some(call),
            });
        }
        DEFERRED.lock().fresh.push(head);
    }

    fn poll(&self) -> usize {
        assert_may_wait();
        if Area::current().in_deferred.load(Ordering::Relaxed) {
            return 0;
        }
        let mut deferred = DEFERRED.lock();
        let passed = !deferred.waiting.is_empty() && has_passed(deferred.epoch);
        let ready = if passed {
            deferred.waiting.take()
        } else {
            Chain::new()
        };
        if deferred.waiting.is_empty() && !deferred.fresh.is_empty() {
            deferred.waiting = deferred.fresh.take();
            deferred.epoch = draw();
        }
        drop(deferred);
        ready.run()
    }

    fn synchronize(&self) {
        assert_may_wait();
        let (older, newer) = {
            let mut deferred = DEFERRED.lock();
            (deferred.waiting.take(), deferred.fresh.take())
        };
        let epoch = draw();
        while !has_passed(epoch) {
            // An interrupt makes each CPU look at once, again while one is in a section.
            barrier::wait();
        }
        older.run();
        newer.run();
    }
}
