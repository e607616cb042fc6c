//! Forms with a count and slots: restartable, under an exchange lock, plain.
//!
//! They share the section's body: read whether arrays are stopped, read the count, copy slots, commit by storing
//! the count. Slots at or above the count are dead, so stores to them before the commit have no effect.

use super::{ArrayForm, Inner, Mutation, Stack};
use crate::context::{Core, Point};
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use flagstone_host::Push;

/// Rounds for which an exchange lock is waited for before the operation is refused, where there are no interrupts.
const ROUNDS: u32 = 8;

/// Attempts after which a section is shielded from the schedule, so that a long one ends.
const ATTEMPTS: u32 = 6;

/// The section was interrupted.
struct Restart;

/// A section in progress, on the stack of the CPU it began on.
struct Section<'a> {
    core: &'a Core,
    stack: &'a Stack,
}

impl Section<'_> {
    /// A step inside the section; in the restartable form it may be the end of this attempt.
    fn step(&self, point: Point) -> Result<(), Restart> {
        self.core.step(point);
        let restarts = self.core.config.form == ArrayForm::Restartable
            && !self.core.mutated(Mutation::NoRestart);
        if restarts && self.core.is_interrupted() {
            Err(Restart)
        } else {
            Ok(())
        }
    }

    /// The count, or `None` if arrays are stopped. Whether they are is read first (A5 of the host's model).
    fn count(&self) -> Result<Option<usize>, Restart> {
        if self.core.mutated(Mutation::StopReadAfterCount) {
            self.step(Point::Section)?;
            let count = self.stack.count.get();
            self.step(Point::Section)?;
            return Ok((!self.core.arrays_stopped()).then_some(count));
        }
        self.step(Point::Section)?;
        if self.core.arrays_stopped() {
            return Ok(None);
        }
        self.step(Point::Section)?;
        Ok(Some(self.stack.count.get()))
    }

    fn commit(&self, count: usize) -> Result<(), Restart> {
        self.step(Point::Commit)?;
        self.stack.count.set(count);
        Ok(())
    }
}

impl Core {
    fn begin_section(&self, shielded: bool) {
        let mut schedule = self.schedule.borrow_mut();
        let me = &mut schedule.contexts[self.me.get()];
        me.interrupted = false;
        me.shielded = shielded;
    }

    fn end_section(&self) {
        self.schedule.borrow_mut().contexts[self.me.get()].shielded = false;
    }

    fn is_interrupted(&self) -> bool {
        self.schedule.borrow().contexts[self.me.get()].interrupted
    }
}

impl Inner<'_> {
    /// Runs `body` as one section of the current CPU's stack. `refused` is the answer if its lock can not be had.
    fn section<R>(
        &self,
        refused: R,
        mut body: impl FnMut(&Section<'_>) -> Result<R, Restart>,
    ) -> R {
        let core = self.core;
        if core.config.form == ArrayForm::ExchangeLock {
            return self.locked_section(refused, body);
        }
        for attempt in 1.. {
            core.begin_section(attempt > ATTEMPTS);
            let section = Section {
                core,
                stack: self.here(),
            };
            if let Ok(result) = body(&section) {
                core.end_section();
                core.step(Point::Section);
                return result;
            }
            core.arrays.stat(|s| s.restarts += 1);
        }
        refused
    }

    /// The section under the lock of the CPU it began on. Where there are interrupts they are blocked meanwhile, so that a
    /// waiter with blocked interrupts never waits for a task that its own CPU preempted.
    fn locked_section<R>(
        &self,
        refused: R,
        mut body: impl FnMut(&Section<'_>) -> Result<R, Restart>,
    ) -> R {
        let core = self.core;
        let rounds = if core.config.interrupts { 1 } else { ROUNDS };
        for _ in 0..rounds {
            core.block_irq();
            let stack = self.here();
            core.step(Point::Section);
            if stack.locked.replace(true) {
                core.unblock_irq();
                core.arrays.stat(|s| s.contended += 1);
                core.relax(0);
                continue;
            }
            let result = body(&Section { core, stack });
            core.step(Point::Section);
            stack.locked.set(false);
            core.unblock_irq();
            core.step(Point::Section);
            return result.unwrap_or(refused);
        }
        refused
    }

    pub(super) fn indexed_pop(&self) -> Option<NonNull<u8>> {
        self.section(None, |s| {
            let Some(top) = s.count()?.and_then(|count| count.checked_sub(1)) else {
                return Ok(None);
            };
            s.step(Point::Section)?;
            let object = s.stack.slot(top);
            s.commit(top)?;
            Ok(Some(object))
        })
    }

    pub(super) fn indexed_push(&self, object: NonNull<u8>) -> Push {
        self.section(Push::Full, |s| {
            let Some(count) = s.count()? else {
                return Ok(Push::Full);
            };
            s.step(Point::Section)?;
            if count > 0 && s.stack.slot(count - 1) == object {
                s.step(Point::Section)?;
                return Ok(Push::OnTop);
            }
            s.step(Point::Section)?;
            if count >= s.stack.limit.get() {
                return Ok(Push::Full);
            }
            s.step(Point::Section)?;
            s.stack.set_slot(count, object);
            s.commit(count + 1)?;
            Ok(Push::Done)
        })
    }

    pub(super) fn indexed_pop_n(&self, into: &mut [MaybeUninit<NonNull<u8>>]) -> usize {
        self.section(0, |s| {
            let count = s.count()?.unwrap_or(0);
            let n = count.min(into.len());
            if n == 0 {
                return Ok(0);
            }
            for (i, place) in into[..n].iter_mut().enumerate() {
                s.step(Point::Section)?;
                place.write(s.stack.slot(count - n + i));
            }
            s.commit(count - n)?;
            Ok(n)
        })
    }

    pub(super) fn indexed_push_n(&self, objects: &[NonNull<u8>]) -> usize {
        self.section(0, |s| {
            let Some(count) = s.count()? else {
                return Ok(0);
            };
            s.step(Point::Section)?;
            let n = s.stack.limit.get().saturating_sub(count).min(objects.len());
            if n == 0 {
                return Ok(0);
            }
            for (i, object) in objects[objects.len() - n..].iter().enumerate() {
                s.step(Point::Section)?;
                s.stack.set_slot(count + i, *object);
            }
            s.commit(count + n)?;
            Ok(n)
        })
    }
}
