//! Grace periods: two sets of reader counters, used in turn.
//!
//! A reader adds to a counter of the current set, in a slot chosen by the CPU hint, and remembers which. A grace
//! period waits until the other set is empty (readers that were late when sets were last exchanged), exchanges the
//! sets, and waits until the old one is empty. Whoever was reading before it began is in one of the two. The additions are atomic, and
//! on x86 every atomic addition is a full barrier, so nothing would be gained by `membarrier` here: either the waiting side sees
//! the reader's addition, or the reader sees what was done before the wait began.
//!
//! Deferred calls are pushed on a list without a lock; [`poll`] moves a batch through the two waits, a step at a time.

use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use flagstone_host::RcuHead;
use flagstone_host::classes::HostInner;
use flagstone_types::CpuId;

use super::lock::Lock;
use super::syscall;

const SLOTS: usize = 64;

#[repr(align(128))]
struct Slot([AtomicU32; 2]);

static READERS: [Slot; SLOTS] = [const { Slot([const { AtomicU32::new(0) }; 2]) }; SLOTS];
/// The low bit says which set readers use.
static EPOCH: AtomicU32 = AtomicU32::new(0);
/// Calls that no grace period has begun for.
static DEFERRED: AtomicPtr<RcuHead> = AtomicPtr::new(null_mut());

/// Whether somebody makes calls; set under [`GRACE`].
static RUNNING: AtomicBool = AtomicBool::new(false);

/// How far the grace period of the waiting batch has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// There is no batch.
    Idle,
    /// Waiting for late readers of the set not in use.
    Late,
    /// The sets were exchanged; waiting for readers of this one.
    Old(usize),
}

/// The batch of calls that a grace period runs for.
#[derive(Debug)]
pub(super) struct Batch {
    calls: *mut RcuHead,
    phase: Phase,
}

// SAFETY: G1, the heads are the host's until their call; they are used under the lock only.
unsafe impl Send for Batch {}

/// Held while a grace period makes a step.
pub(super) static GRACE: lock_api::Mutex<Lock<HostInner>, Batch> = lock_api::Mutex::new(Batch {
    calls: null_mut(),
    phase: Phase::Idle,
});

/// A read-side section.
#[derive(Debug)]
pub struct ReadGuard<'a> {
    counter: &'a AtomicU32,
}

impl Drop for ReadGuard<'_> {
    fn drop(&mut self) {
        self.counter.fetch_sub(1, Ordering::Release);
    }
}

/// Begins a read-side section on about this CPU.
pub(super) fn read<'a>(cpu: CpuId) -> ReadGuard<'a> {
    let set = EPOCH.load(Ordering::Relaxed) as usize & 1;
    let counter = &READERS[cpu.index() % SLOTS].0[set];
    counter.fetch_add(1, Ordering::SeqCst);
    ReadGuard { counter }
}

fn is_empty(set: usize) -> bool {
    READERS
        .iter()
        .all(|slot| slot.0[set].load(Ordering::SeqCst) == 0)
}

/// # Safety
/// As for `Grace::defer`.
pub(super) unsafe fn defer(head: NonNull<RcuHead>, call: unsafe fn(NonNull<RcuHead>)) {
    let mut next = DEFERRED.load(Ordering::Relaxed);
    loop {
        // SAFETY: the caller gives the head away until the call.
        unsafe {
            head.write(RcuHead {
                next,
                call: Some(call),
            })
        };
        match DEFERRED.compare_exchange_weak(
            next,
            head.as_ptr(),
            Ordering::SeqCst,
            Ordering::Relaxed,
        ) {
            Ok(_) => return,
            Err(now) => next = now,
        }
    }
}

impl Batch {
    /// Goes as far as it can without waiting; returns the calls whose grace period has passed.
    fn step(&mut self) -> *mut RcuHead {
        if self.phase == Phase::Idle {
            self.calls = DEFERRED.swap(null_mut(), Ordering::SeqCst);
            if self.calls.is_null() {
                return null_mut();
            }
            self.phase = Phase::Late;
        }
        if self.phase == Phase::Late {
            let set = EPOCH.load(Ordering::Relaxed) as usize & 1;
            if !is_empty(set ^ 1) {
                return null_mut();
            }
            EPOCH.fetch_add(1, Ordering::SeqCst);
            self.phase = Phase::Old(set);
        }
        if let Phase::Old(set) = self.phase
            && is_empty(set)
        {
            self.phase = Phase::Idle;
            return core::mem::replace(&mut self.calls, null_mut());
        }
        null_mut()
    }
}

fn run(mut calls: *mut RcuHead) -> usize {
    let mut ran = 0;
    while let Some(head) = NonNull::new(calls) {
        // SAFETY: G1, the head is the host's until its call, which is made once, now.
        let RcuHead { next, call } = unsafe { head.read() };
        calls = next;
        if let Some(call) = call {
            // SAFETY: the caller of `defer` said that it accepts the head.
            unsafe { call(head) };
        }
        ran += 1;
    }
    ran
}

/// Runs calls whose grace period has passed; never waits.
pub(super) fn poll() -> usize {
    GRACE.try_lock().map_or(0, step_and_run)
}

/// Makes a step unless calls are being made (by this very context, perhaps: then a poll has nothing to do), and makes those
/// that are ready.
fn step_and_run(mut batch: lock_api::MutexGuard<'_, Lock<HostInner>, Batch>) -> usize {
    if RUNNING.load(Ordering::Acquire) {
        return 0;
    }
    let ready = batch.step();
    if ready.is_null() {
        return 0;
    }
    RUNNING.store(true, Ordering::Relaxed);
    drop(batch);
    let ran = run(ready);
    RUNNING.store(false, Ordering::Release);
    ran
}

/// A deferred call that says that it was made.
#[repr(C)]
struct Waiter {
    head: RcuHead,
    done: AtomicBool,
}

/// One function with one address, by which a waiter is known.
///
/// # Safety
/// `head` is that of a [`Waiter`].
#[inline(never)]
unsafe fn note_done(head: NonNull<RcuHead>) {
    // SAFETY: the waiter lives until it sees the flag, and its head is its first field.
    unsafe {
        (*head.cast::<Waiter>().as_ptr())
            .done
            .store(true, Ordering::Release)
    };
}

/// Waits for a grace period and runs what was deferred before.
pub(super) fn synchronize() {
    // The batch on its way may have begun too early to cover what was deferred since, and an empty batch would not
    // wait at all: a call of our own is in the batch that must be waited for.
    let mut waiter = Waiter {
        head: RcuHead::new(),
        done: AtomicBool::new(false),
    };
    let waiter = &raw mut waiter;
    // SAFETY: the pointer is that of a local variable.
    let head = unsafe { NonNull::new_unchecked(waiter.cast::<RcuHead>()) };
    // SAFETY: the waiter lives until its call, which the loop below waits for.
    unsafe { defer(head, note_done) };
    let mut round = 0;
    loop {
        step_and_run(GRACE.lock());
        // SAFETY: the flag is atomic, and the waiter lives on.
        if unsafe { (*waiter).done.load(Ordering::Acquire) } {
            return;
        }
        syscall::wait_a_little(round);
        round = round.saturating_add(1);
    }
}

/// Forgets readers that the child of a fork does not have, and one that was making calls: what it had not made yet is lost. Waiters of
/// other threads are on stacks that will be used again, so they leave the lists.
pub(super) fn after_fork(batch: &mut Batch) {
    RUNNING.store(false, Ordering::Relaxed);
    for counter in READERS.iter().flat_map(|slot| &slot.0) {
        counter.store(0, Ordering::Relaxed);
    }
    // SAFETY: P22, P23: nobody else is here, and no stack has been used again yet.
    unsafe {
        batch.calls = without_waiters(batch.calls);
        let deferred = without_waiters(DEFERRED.load(Ordering::Relaxed));
        DEFERRED.store(deferred, Ordering::Relaxed);
    }
}

/// Takes the waiters out of a list of calls and tells each that it waited long enough, which is so where there are no readers.
///
/// # Safety
/// The heads are the host's until their calls (G1).
unsafe fn without_waiters(mut calls: *mut RcuHead) -> *mut RcuHead {
    let mut kept = null_mut();
    let mut link = &raw mut kept;
    while let Some(head) = NonNull::new(calls) {
        // SAFETY: as promised, for all that is done with the head and with the one kept before it.
        unsafe {
            calls = (*head.as_ptr()).next;
            let is_waiter = (*head.as_ptr())
                .call
                .is_some_and(|call| core::ptr::fn_addr_eq(call, note_done as unsafe fn(_)));
            if is_waiter {
                note_done(head);
            } else {
                *link = head.as_ptr();
                link = &raw mut (*head.as_ptr()).next;
            }
            *link = null_mut();
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::boxed::Box;
    use std::sync::atomic::AtomicUsize;
    use std::vec::Vec;

    /// The tests share the process's one grace period machinery.
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

    #[repr(C)]
    struct Value {
        head: RcuHead,
        alive: AtomicBool,
    }

    static FREED: AtomicUsize = AtomicUsize::new(0);

    unsafe fn free(head: NonNull<RcuHead>) {
        // SAFETY: the head is the first field of a leaked box.
        let value = unsafe { Box::from_raw(head.cast::<Value>().as_ptr()) };
        value.alive.store(false, Ordering::SeqCst);
        FREED.fetch_add(1, Ordering::SeqCst);
        // Readers that are wrong would see the flag instead of freed memory.
        Box::leak(value);
    }

    fn value() -> *mut Value {
        Box::into_raw(Box::new(Value {
            head: RcuHead::new(),
            alive: AtomicBool::new(true),
        }))
    }

    #[test]
    fn waiters_leave_a_list_and_the_rest_keeps_its_order() {
        let _one = ONE.lock();
        let waiters: Vec<_> = (0..3)
            .map(|_| {
                Box::into_raw(Box::new(Waiter {
                    head: RcuHead::new(),
                    done: AtomicBool::new(false),
                }))
            })
            .collect();
        let values = [value(), value()];
        let order: [*mut RcuHead; 5] = [
            waiters[0].cast(),
            values[0].cast(),
            waiters[1].cast(),
            values[1].cast(),
            waiters[2].cast(),
        ];
        let mut list = null_mut();
        for (n, head) in order.iter().enumerate().rev() {
            let call: unsafe fn(NonNull<RcuHead>) = if n % 2 == 0 { note_done } else { free };
            // SAFETY: leaked values.
            unsafe {
                head.write(RcuHead {
                    next: list,
                    call: Some(call),
                });
            }
            list = *head;
        }
        // SAFETY: a list of leaked values, here alone.
        let first = unsafe { without_waiters(list) };
        // SAFETY: as above.
        let (second, last) = unsafe { ((*first).next, (*(*first).next).next) };
        assert_eq!([first, second, last], [order[1], order[3], null_mut()]);
        for waiter in waiters {
            // SAFETY: as above.
            assert!(unsafe { (*waiter).done.load(Ordering::Acquire) });
        }
    }

    #[test]
    fn a_call_waits_for_the_reader_that_was_there() {
        let _one = ONE.lock();
        let reader = read(CpuId(1));
        let before = FREED.load(Ordering::SeqCst);
        // SAFETY: a leaked value.
        unsafe { defer(NonNull::new(value()).unwrap().cast(), free) };
        for _ in 0..10 {
            poll();
        }
        assert_eq!(FREED.load(Ordering::SeqCst), before);
        let later = read(CpuId(2));
        drop(reader);
        while FREED.load(Ordering::SeqCst) == before {
            poll();
        }
        drop(later);
    }

    #[test]
    fn readers_never_see_what_was_deferred_before_they_began() {
        let _one = ONE.lock();
        let current = AtomicPtr::new(value());
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for cpu in 0..3 {
                let (current, stop) = (&current, &stop);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let _guard = read(CpuId(cpu));
                        // SAFETY: values are leaked, so the flag can be read whatever happened.
                        let seen = unsafe { &*current.load(Ordering::Acquire) };
                        for _ in 0..20 {
                            assert!(seen.alive.load(Ordering::SeqCst));
                        }
                    }
                });
            }
            let end = std::time::Instant::now() + std::time::Duration::from_millis(300);
            let mut rounds = 0;
            while std::time::Instant::now() < end {
                let old = current.swap(value(), Ordering::SeqCst);
                // SAFETY: the old value is unpublished and leaked.
                unsafe { defer(NonNull::new(old).unwrap().cast(), free) };
                rounds += 1;
                if rounds % 8 == 0 {
                    synchronize();
                } else {
                    poll();
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        synchronize();
        assert!(FREED.load(Ordering::SeqCst) > 0);
    }

    #[test]
    fn synchronize_runs_everything_deferred_before_it() {
        let _one = ONE.lock();
        let values: Vec<_> = (0..50).map(|_| value()).collect();
        for v in &values {
            // SAFETY: leaked values.
            unsafe { defer(NonNull::new(*v).unwrap().cast(), free) };
        }
        synchronize();
        for v in values {
            // SAFETY: leaked values.
            let v = unsafe { &*v };
            assert!(!v.alive.load(Ordering::SeqCst));
        }
    }
}
