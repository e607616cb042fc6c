//! Grace periods by quiescent states: a context outside of a read-side section has seen the past.
//!
//! Beginnings of outermost sections and deferred calls draw from one sequence of numbers. A call may run
//! when no context is in a section that began before it (clause G1 of the host's model, exactly).

use crate::context::{Core, Point};
use crate::failure::FailureKind;
use crate::machine::Machine;
use core::cell::{Cell, RefCell};
use core::marker::PhantomData;
use core::ptr::NonNull;
use flagstone_host::{Grace, RcuHead};
use std::collections::VecDeque;

type Call = unsafe fn(NonNull<RcuHead>);

/// Deferred calls, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Graces {
    sequence: Cell<u64>,
    deferred: RefCell<VecDeque<(u64, NonNull<RcuHead>, Call)>>,
}

impl Graces {
    fn draw(&self) -> u64 {
        self.sequence.set(self.sequence.get() + 1);
        self.sequence.get()
    }

    pub(crate) fn waiting(&self) -> usize {
        self.deferred.borrow().len()
    }
}

/// A read-side section; ends when dropped, in the context that began it.
#[derive(Debug)]
#[must_use]
pub struct ReadGuard<'a> {
    core: &'a Core,
    context: usize,
    not_send: PhantomData<*const ()>,
}

impl Drop for ReadGuard<'_> {
    fn drop(&mut self) {
        self.core.step(Point::Grace);
        let here = self.core.me.get();
        if here != self.context && !std::thread::panicking() {
            self.core.fail(
                FailureKind::Grace,
                "a read-side section ends in another context than it began".into(),
            );
        }
        self.core.schedule.borrow_mut().contexts[self.context].read_depth -= 1;
        self.core.step(Point::Grace);
    }
}

impl Core {
    /// Begins a read-side section of the running context.
    pub(crate) fn begin_read(&self) -> ReadGuard<'_> {
        self.step(Point::Grace);
        let context = self.me.get();
        let mut schedule = self.schedule.borrow_mut();
        let me = &mut schedule.contexts[context];
        if me.read_depth == 0 {
            me.read_since = self.graces.draw();
        }
        me.read_depth += 1;
        drop(schedule);
        self.step(Point::Grace);
        ReadGuard {
            core: self,
            context,
            not_send: PhantomData,
        }
    }

    /// Whether every section that began before `sequence` has ended.
    fn passed(&self, sequence: u64) -> bool {
        let schedule = self.schedule.borrow();
        schedule
            .contexts
            .iter()
            .all(|c| c.read_depth == 0 || c.read_since > sequence)
    }

    /// A context that waits for, or runs, deferred calls holds nothing.
    fn must_hold_nothing(&self, call: &str) {
        let schedule = self.schedule.borrow();
        let me = &schedule.contexts[self.me.get()];
        let problem = if me.in_deferred {
            "a deferred call".to_owned()
        } else if me.read_depth > 0 {
            "a read-side section".to_owned()
        } else if let Some(held) = me.held.first() {
            format!("the lock {}", held.name)
        } else {
            return;
        };
        drop(schedule);
        self.fail(FailureKind::Grace, format!("{call} inside {problem}"));
    }

    /// Runs deferred calls that may run, those drawn before `until` only.
    fn run_deferred(&self, until: u64) -> usize {
        let mut ran = 0;
        loop {
            let first = self
                .deferred_front()
                .filter(|&s| s < until && self.passed(s));
            if first.is_none() {
                return ran;
            }
            let Some((_, head, call)) = self.graces.deferred.borrow_mut().pop_front() else {
                return ran;
            };
            // SAFETY: G1: the head is valid and untouched until its call.
            let kept = unsafe { head.as_ref() }.call;
            if kept.map(|c| c as usize) != Some(call as usize) {
                self.fail(
                    FailureKind::Grace,
                    format!("the head of a deferred call at {head:p} was written while it waited"),
                );
            }
            self.step(Point::Grace);
            self.set_in_deferred(true);
            // SAFETY: G1: every section that existed at `defer` has ended, and the call runs once.
            unsafe { call(head) };
            self.set_in_deferred(false);
            ran += 1;
        }
    }

    fn set_in_deferred(&self, inside: bool) {
        self.schedule.borrow_mut().contexts[self.me.get()].in_deferred = inside;
    }

    fn deferred_front(&self) -> Option<u64> {
        self.graces.deferred.borrow().front().map(|d| d.0)
    }
}

impl<const SHIFT: u32, const ORDER: u32> Grace for &Machine<SHIFT, ORDER> {
    type ReadGuard<'a>
        = ReadGuard<'a>
    where
        Self: 'a;

    fn read(&self) -> ReadGuard<'_> {
        self.core().begin_read()
    }

    unsafe fn defer(&self, head: NonNull<RcuHead>, call: Call) {
        let core = self.core();
        core.step(Point::Grace);
        // SAFETY: G1: from now to the call the head is the host's.
        unsafe {
            head.write(RcuHead {
                next: core::ptr::null_mut(),
                call: Some(call),
            })
        };
        core.graces
            .deferred
            .borrow_mut()
            .push_back((core.graces.draw(), head, call));
        core.step(Point::Grace);
    }

    fn poll(&self) -> usize {
        let core = self.core();
        core.step(Point::Grace);
        if core.schedule.borrow().contexts[core.me.get()].in_deferred {
            return 0;
        }
        core.must_hold_nothing("poll");
        if core.running.get() && core.rng.chance(64) {
            // A real host may not know yet that the grace period has passed.
            return 0;
        }
        core.run_deferred(u64::MAX)
    }

    fn synchronize(&self) {
        let core = self.core();
        core.step(Point::Grace);
        core.must_hold_nothing("synchronize");
        let now = core.graces.draw();
        let mut spins = 0;
        while !core.passed(now) {
            core.relax(spins);
            spins += 1;
        }
        core.run_deferred(now);
    }
}
