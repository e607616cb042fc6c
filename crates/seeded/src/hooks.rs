//! What a larger machine asks of the one inside it: steps of its own, looks at memory that are no steps, and failures.
//!
//! A simulator that adds a device or a memory management unit wraps a [`Machine`] and delegates to it; everything here is
//! what delegation alone can not do. Looks take no step, so that a model may look at any moment.

use crate::context::{Core, Point, open_token};
use crate::failure::FailureKind;
use crate::grace::ReadGuard;
use crate::machine::{IrqGuard, Machine};
use crate::schedule::State;
use core::ptr::NonNull;
use flagstone_types::{CpuId, Nanos, Pfn};

/// The inside of a machine; see the module.
#[derive(Clone, Copy, Debug)]
pub struct Hooks<'m> {
    core: &'m Core,
}

impl<const SHIFT: u32, const ORDER: u32> Machine<SHIFT, ORDER> {
    /// What a larger machine around this one may do.
    #[must_use]
    pub fn hooks(&self) -> Hooks<'_> {
        Hooks { core: self.core() }
    }
}

impl<'m> Hooks<'m> {
    /// As [`flagstone_host::Cpus::irq_guard`]; the guard may outlive the reference that made it.
    pub fn irq_guard(self) -> IrqGuard<'m> {
        self.core.step(Point::Cpu);
        IrqGuard::new(self.core)
    }

    /// As [`flagstone_host::Grace::read`]; the guard may outlive the reference that made it.
    pub fn read(self) -> ReadGuard<'m> {
        self.core.begin_read()
    }
}

impl Hooks<'_> {
    /// While `f` runs, `observer` is called with every step of a run, in the context that takes it, before others may run. It takes no step.
    pub fn observe<R>(self, observer: &dyn Fn(), f: impl FnOnce() -> R) -> R {
        struct Remove<'a>(&'a Core);
        impl Drop for Remove<'_> {
            fn drop(&mut self) {
                self.0.observer.set(None);
            }
        }
        // SAFETY: T5: only the life time is erased, and `Remove` takes the observer away before it ends.
        let observer = unsafe { core::mem::transmute::<&dyn Fn(), &'static dyn Fn()>(observer) };
        let _remove = Remove(self.core);
        self.core.observer.set(Some(NonNull::from(observer)));
        f()
    }

    /// Takes a step, at which others may run.
    #[inline]
    pub fn step(self) {
        self.core.step(Point::Task);
    }

    /// Lets others run first, if any can.
    pub fn relax(self, spins: u32) {
        self.core.relax(spins);
    }

    /// The steps so far: a clock of events.
    #[inline]
    #[must_use]
    pub fn steps(self) -> u64 {
        self.core.steps.get()
    }

    /// Virtual time.
    #[must_use]
    pub fn now(self) -> Nanos {
        Nanos(self.core.now.get())
    }

    /// Lets virtual time pass.
    pub fn advance(self, time: Nanos) {
        self.core.now.set(self.core.now.get() + time.0);
    }

    /// The running context: 0 is the code outside of a run, task `n` is `n + 1`.
    #[inline]
    #[must_use]
    pub fn context(self) -> usize {
        self.core.me.get()
    }

    /// The CPU of the running context.
    #[inline]
    #[must_use]
    pub fn cpu(self) -> CpuId {
        CpuId(self.core.cpu.get() as u32)
    }

    /// How many CPUs there are.
    #[must_use]
    pub fn cpus(self) -> usize {
        self.core.config.cpus
    }

    /// The seed of the machine.
    #[must_use]
    pub fn seed(self) -> u64 {
        self.core.config.seed
    }

    /// Whether tasks run.
    #[must_use]
    pub fn running(self) -> bool {
        self.core.running.get()
    }

    /// Whether tasks may move to another CPU.
    #[must_use]
    pub fn may_migrate(self) -> bool {
        self.core.config.may_migrate()
    }

    /// Whether the running context is in a read-side section or holds a lock: what it looks at is kept for it.
    #[must_use]
    pub fn is_protected(self) -> bool {
        let schedule = self.core.schedule.borrow();
        let context = &schedule.contexts[self.core.me.get()];
        context.read_depth > 0 || !context.held.is_empty()
    }

    /// Whether another task has not ended yet.
    #[must_use]
    pub fn has_company(self) -> bool {
        let schedule = self.core.schedule.borrow();
        let me = self.core.me.get();
        let mut others = schedule.contexts.iter().enumerate().skip(1);
        others.any(|(n, context)| n != me && context.state != State::Ended)
    }

    /// Blocks the interrupts of the running context's CPU, which keeps it there. Nests; no step.
    pub fn block(self) {
        self.core.block_irq();
    }

    /// Undoes one [`Hooks::block`]; no step.
    pub fn unblock(self) {
        self.core.unblock_irq();
    }

    /// Whether `cpu` would take an interrupt now.
    #[must_use]
    pub fn is_open(self, cpu: CpuId) -> bool {
        self.core.schedule.borrow().irq_depth[cpu.index()] == 0
    }

    /// Waits until `cpu` has opened its interrupts. If everybody waits, that is a deadlock, which names `what` was waited for.
    pub fn wait_open(self, cpu: CpuId, what: &'static str) {
        if self.is_open(cpu) {
            return;
        }
        let count = &self.core.awaited_open;
        count.set(count.get() + 1);
        self.core.wait(open_token(cpu.index()), what);
        count.set(count.get() - 1);
    }

    /// Where frame `pfn` is; `None` if there is no such frame.
    #[inline]
    #[must_use]
    pub fn frame(self, pfn: Pfn) -> Option<NonNull<u8>> {
        self.core.memory.frame(pfn.0)
    }

    /// Where the metadata of frame `pfn` is; `None` if no memory can be there.
    #[inline]
    #[must_use]
    pub fn record(self, pfn: Pfn) -> Option<NonNull<u8>> {
        self.core.memory.record(pfn.0)
    }

    /// Ends the run with a failure of kind [`FailureKind::Violation`]; outside of a run, panics with it.
    pub fn violate(self, text: String) -> ! {
        self.core.fail(FailureKind::Violation, text)
    }

    /// Ends the run because the machine was asked for something that it can not mean; outside of a run, panics.
    pub fn misuse(self, text: String) -> ! {
        self.core.fail(FailureKind::Usage, text)
    }
}
