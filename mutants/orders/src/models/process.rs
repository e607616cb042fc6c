//! The process host: its lock and its grace periods.

use super::Body;
use crate::grace;
use crate::lock::Lock;
use core::ptr::NonNull;
use flagstone_host::{RcuHead, classes::HostInner};
use flagstone_types::CpuId;
use flagstone_weak::atomic::{AtomicPtr, AtomicU32, Ordering::*};
use flagstone_weak::{read, run, write};
use lock_api::RawMutex as _;
use std::cell::Cell;

pub(super) fn lock(seed: u64) {
    let (lock, value) = (Lock::<HostInner>::INIT, Cell::new(0u32));
    let count = || {
        for n in 0..2 {
            if n == 0 || !lock.try_lock() {
                lock.lock();
            }
            read(value.as_ptr());
            let old = value.get();
            flagstone_weak::step();
            write(value.as_ptr());
            value.set(old + 1);
            // SAFETY: taken above.
            unsafe { lock.unlock() };
        }
    };
    let threads: Vec<Body<'_>> = vec![Box::new(count), Box::new(count), Box::new(count)];
    run(seed, threads);
    assert_eq!(value.get(), 6);
}

#[repr(C)]
struct Value {
    head: RcuHead,
    content: u64,
}

fn value() -> *mut Value {
    Box::into_raw(Box::new(Value {
        head: RcuHead::new(),
        content: 1,
    }))
}

/// Ends a value: nobody reads it from here on.
///
/// # Safety
/// `head` is that of a value.
unsafe fn end(head: NonNull<RcuHead>) {
    let value = head.cast::<Value>().as_ptr();
    // SAFETY: nobody else has the value; it stays allocated for readers that are wrong.
    unsafe {
        write(&raw const (*value).content);
        (*value).content = 0;
    }
}

/// Makes all calls that are left, so that the next run begins without any.
fn settle() {
    grace::synchronize();
}

pub(super) fn readers(seed: u64) {
    let (old, new) = (value(), value());
    let current = AtomicPtr::new(old);
    let look = |cpu: u32| {
        for _ in 0..2 {
            let guard = grace::read(CpuId(cpu));
            let seen = current.load(Acquire);
            // SAFETY: values stay allocated.
            unsafe {
                read(&raw const (*seen).content);
                flagstone_weak::step();
                assert_eq!((*seen).content, 1, "a value that was freed");
            }
            drop(guard);
        }
    };
    let threads: Vec<Body<'_>> = vec![
        Box::new(|| look(0)),
        Box::new(|| {
            let gone = current.swap(new, AcqRel);
            // SAFETY: the value is found no more.
            unsafe { grace::defer(NonNull::new(gone).expect("a value").cast(), end) };
            for _ in 0..4 {
                grace::poll();
            }
        }),
        Box::new(|| {
            if seed.is_multiple_of(2) {
                grace::synchronize();
            } else {
                look(1);
            }
        }),
    ];
    run(seed, threads);
    settle();
    // SAFETY: every call was made, and the threads have ended.
    unsafe {
        drop(Box::from_raw(old));
        drop(Box::from_raw(new));
    }
}

pub(super) fn waiter(seed: u64) {
    let (content, open) = (Cell::new(0u64), AtomicU32::new(0));
    let threads: Vec<Body<'_>> = vec![
        Box::new(|| {
            let guard = grace::read(CpuId(0));
            if open.load(Relaxed) == 0 {
                read(content.as_ptr());
                flagstone_weak::step();
                assert_eq!(content.get(), 0);
            }
            drop(guard);
        }),
        Box::new(|| {
            open.store(1, Relaxed);
            grace::synchronize();
            write(content.as_ptr());
            content.set(1);
        }),
        Box::new(|| {
            for _ in 0..5 {
                grace::poll();
            }
        }),
    ];
    run(seed, threads);
    settle();
}

#[repr(C)]
struct Call {
    head: RcuHead,
    made: *const Cell<u32>,
}

/// Counts without an atomic.
///
/// # Safety
/// `head` is that of a [`Call`].
unsafe fn count(head: NonNull<RcuHead>) {
    // SAFETY: the counter outlives the run.
    unsafe {
        let made = (*head.cast::<Call>().as_ptr()).made;
        read((*made).as_ptr());
        let before = (*made).get();
        flagstone_weak::step();
        write((*made).as_ptr());
        (*made).set(before + 1);
    }
}

pub(super) fn callers(seed: u64) {
    let made = Cell::new(0);
    let calls: Vec<_> = (0..3)
        .map(|_| {
            Box::into_raw(Box::new(Call {
                head: RcuHead::new(),
                made: &raw const made,
            }))
        })
        .collect();
    let work = |mine: *mut Call| {
        // SAFETY: a call that nobody else has deferred.
        unsafe { grace::defer(NonNull::new(mine).expect("a call").cast(), count) };
        for _ in 0..3 {
            grace::poll();
        }
    };
    let threads: Vec<Body<'_>> = vec![
        Box::new(|| work(calls[0])),
        Box::new(|| work(calls[1])),
        Box::new(|| work(calls[2])),
    ];
    run(seed, threads);
    settle();
    assert_eq!(made.get(), 3, "calls that were made");
    for call in calls {
        // SAFETY: made above, and its call was made.
        drop(unsafe { Box::from_raw(call) });
    }
}
