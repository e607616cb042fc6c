//! Running tasks: one coroutine each, resumed as the schedule says.
//!
//! A run ends when every task has ended, or at the first failure. Tasks that a failure left behind are
//! never resumed and their stacks are not unwound: they may be in the middle of anything (clause S5).

use crate::arrays::ArrayForm;
use crate::context::{Core, Point};
use crate::failure::{Failure, FailureKind};
use crate::machine::Machine;
use crate::schedule::Cause;
use core::cell::RefCell;
use core::mem;
use core::ptr::NonNull;
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use flagstone_types::CpuId;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Room for a task's stack in bytes; what is not touched costs nothing.
const STACK_BYTES: usize = 512 << 10;

/// What a task does.
pub type Task<'t> = Box<dyn FnOnce(&TaskCtx<'_>) + 't>;

/// Boxes a closure as a [`Task`].
pub fn task<'t>(f: impl FnOnce(&TaskCtx<'_>) + 't) -> Task<'t> {
    Box::new(f)
}

/// What a task knows about itself.
#[derive(Debug)]
pub struct TaskCtx<'m> {
    core: &'m Core,
    index: usize,
}

impl TaskCtx<'_> {
    /// Which task it is: its place in the list that was run.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// The CPU that it is on now.
    #[must_use]
    pub fn cpu(&self) -> CpuId {
        CpuId(self.core.cpu.get() as u32)
    }

    /// Takes a step, at which others may run.
    pub fn step(&self) {
        self.core.step(Point::Task);
    }

    /// Lets others run first, if any can.
    pub fn yield_now(&self) {
        self.core.relax(0);
    }

    /// Moves to `cpu`, unless interrupts are blocked or tasks of this machine stay where they are.
    pub fn migrate(&self, cpu: CpuId) {
        self.core.migrate(cpu.index());
    }
}

/// What a run did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Steps taken.
    pub steps: u64,
    /// Times that another task went on.
    pub switches: u64,
    /// Times that a task was preempted on its CPU.
    pub preemptions: u64,
    /// Times that a task moved to another CPU.
    pub migrations: u64,
    /// The machine's trace hash at the end.
    pub trace_hash: u64,
}

type Coro = Coroutine<(), (), (), DefaultStack>;

thread_local!(static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) });

fn coroutine(core: &Core, index: usize, work: Task<'_>) -> Coro {
    let stack = STACKS.with_borrow_mut(Vec::pop);
    let stack =
        stack.unwrap_or_else(|| DefaultStack::new(STACK_BYTES).expect("memory for a task's stack"));
    let core: *const Core = core;
    // SAFETY: T3: a coroutine is resumed only within the run that made it, which the task outlives.
    let work: Task<'static> = unsafe { mem::transmute::<Task<'_>, Task<'static>>(work) };
    Coroutine::with_stack(stack, move |yielder: &Yielder<(), ()>, ()| {
        // SAFETY: T3: as above, and the machine outlives its run.
        let core = unsafe { &*core };
        core.yielders.borrow_mut()[index + 1] = yielder;
        let ctx = TaskCtx { core, index };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(&ctx))) {
            let text = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or(panic.downcast_ref::<&str>().copied());
            let text = format!("task {index}: {}", text.unwrap_or("a panic without text"));
            let failure = Failure {
                seed: core.config.seed,
                kind: FailureKind::Panic,
                text,
            };
            core.failure.borrow_mut().get_or_insert(failure);
            core.panic.borrow_mut().get_or_insert(panic);
        }
    })
}

impl Core {
    /// A task has ended: checks that it left nothing behind and decides who goes on.
    fn end_task(&self, index: usize) -> Option<usize> {
        let mut schedule = self.schedule.borrow_mut();
        let me = &schedule.contexts[index + 1];
        let irq = schedule.irq_depth[me.cpu] != 0;
        if self.failure.borrow().is_none() && (!me.held.is_empty() || me.read_depth != 0 || irq) {
            let text = format!(
                "task {index} ended with {} read-side sections{}{}",
                me.read_depth,
                if irq { ", interrupts blocked" } else { "" },
                schedule.describe()
            );
            let failure = Failure {
                seed: self.config.seed,
                kind: FailureKind::Leftover,
                text,
            };
            self.failure.borrow_mut().get_or_insert(failure);
        }
        let next = schedule.decide(index + 1, Cause::End, &self.rng);
        if next.is_none() && schedule.unfinished() {
            let text = format!("every task left waits for a lock{}", schedule.describe());
            let failure = Failure {
                seed: self.config.seed,
                kind: FailureKind::Deadlock,
                text,
            };
            self.failure.borrow_mut().get_or_insert(failure);
        }
        next
    }

    fn run(&self, tasks: Vec<Task<'_>>) -> Result<Report, Failure> {
        assert!(!self.running.get(), "a run inside a run");
        if self.config.form == ArrayForm::Plain && tasks.len() > self.config.cpus {
            self.fail(
                FailureKind::Usage,
                format!(
                    "{} tasks on {} CPUs with plain arrays",
                    tasks.len(),
                    self.config.cpus
                ),
            );
        }
        let steps = self.steps.get();
        let outside = (self.cpu.get(), self.my_steps.get());
        let counts = |s: &crate::schedule::Schedule| (s.switches, s.preemptions, s.migrations);
        let counted = counts(&self.schedule.borrow());
        let mut coroutines: Vec<Coro> = tasks
            .into_iter()
            .enumerate()
            .map(|(i, t)| coroutine(self, i, t))
            .collect();
        *self.yielders.borrow_mut() = vec![core::ptr::null(); coroutines.len() + 1];
        self.schedule
            .borrow_mut()
            .begin(coroutines.len(), &self.rng);
        self.step_end
            .set(self.steps.get().saturating_add(self.config.step_limit));
        let mut next = (!coroutines.is_empty()).then(|| 1 + self.first());
        self.running.set(true);
        while let Some(id) = next {
            {
                let schedule = self.schedule.borrow();
                self.me.set(id);
                self.cpu.set(schedule.contexts[id].cpu);
                self.my_steps.set(schedule.contexts[id].steps);
            }
            next = match coroutines[id - 1].resume(()) {
                CoroutineResult::Yield(()) => self.next.get(),
                CoroutineResult::Return(()) => self.end_task(id - 1),
            };
            if self.failure.borrow().is_some() {
                break;
            }
        }
        self.running.set(false);
        self.me.set(0);
        self.cpu.set(outside.0);
        self.my_steps.set(outside.1);
        for coroutine in coroutines {
            if coroutine.done() {
                STACKS.with_borrow_mut(|stacks| stacks.push(coroutine.into_stack()));
            } else if coroutine.started() {
                mem::forget(coroutine);
            }
        }
        if let Some(failure) = self.failure.borrow_mut().take() {
            return Err(failure);
        }
        let now = counts(&self.schedule.borrow());
        Ok(Report {
            steps: self.steps.get() - steps,
            switches: now.0 - counted.0,
            preemptions: now.1 - counted.1,
            migrations: now.2 - counted.2,
            trace_hash: self.trace.get(),
        })
    }

    /// The task that takes the first step: one that is current on its CPU.
    fn first(&self) -> usize {
        self.schedule.borrow().first(&self.rng) - 1
    }
}

impl<const SHIFT: u32, const ORDER: u32> Machine<SHIFT, ORDER> {
    /// Runs the tasks to their end under the machine's schedule.
    ///
    /// # Panics
    /// At the first failure, with the seed; with the task's own panic if that is what failed.
    pub fn run(&self, tasks: Vec<Task<'_>>) -> Report {
        match self.core().run(tasks) {
            Ok(report) => report,
            Err(failure) => {
                let panic = self.core().panic.borrow_mut().take();
                if let Some(panic) = panic {
                    eprintln!("{failure}");
                    resume_unwind(panic);
                }
                panic!("{failure}");
            }
        }
    }

    /// While `f` runs, tasks are interrupted now and then, on a machine that has interrupts: `handler`
    /// runs on the stack of the interrupted task, on its CPU, with interrupts blocked.
    pub fn with_interrupts<R>(&self, handler: &dyn Fn(), f: impl FnOnce() -> R) -> R {
        struct Remove<'a>(&'a Core);
        impl Drop for Remove<'_> {
            fn drop(&mut self) {
                self.0.handler.set(None);
            }
        }
        let core = self.core();
        // SAFETY: T5: only the life time is erased, and `Remove` takes the handler away before it ends.
        let handler = unsafe { mem::transmute::<&dyn Fn(), &'static dyn Fn()>(handler) };
        let _remove = Remove(core);
        core.handler.set(Some(NonNull::from(handler)));
        f()
    }

    /// Runs the tasks as [`Machine::run`] does.
    ///
    /// # Errors
    /// The first failure. The tasks that had not ended are left where they were, with what they hold; the machine is
    /// good for looking at only.
    pub fn try_run(&self, tasks: Vec<Task<'_>>) -> Result<Report, Failure> {
        let result = self.core().run(tasks);
        self.core().panic.borrow_mut().take();
        result
    }
}
