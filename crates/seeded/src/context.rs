//! The heart of a machine: steps, waiting, failing, and the place where a lock finds its machine.
//!
//! Everything here belongs to one thread. No borrow of the schedule is held across a switch.

use crate::arrays::Arrays;
use crate::builder::Config;
use crate::failure::{Failure, FailureKind};
use crate::faults::Faults;
use crate::grace::Graces;
use crate::lock::LockStat;
use crate::memory::Memory;
use crate::rng::Rng;
use crate::schedule::{Cause, Schedule, State};
use core::cell::{Cell, RefCell};
use core::ptr::NonNull;
use corosensei::Yielder;
use flagstone_host::{Event, Level};
use std::any::Any;

/// Where a step was taken; part of the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Point {
    Host = 1,
    Memory,
    Backing,
    Cpu,
    Lock,
    Unlock,
    Section,
    Commit,
    Stop,
    Grace,
    Task,
}

/// How many of 256 decisions begin with an interrupt.
const INTERRUPTS: u32 = 48;

/// What a context waits for until the interrupts of `cpu` are open: no address of a lock, for locks are words of memory.
pub(crate) const fn open_token(cpu: usize) -> usize {
    cpu + 1
}

/// Virtual time that a step takes, in nanoseconds.
const STEP_NANOS: u64 = 10;

/// What a machine is, apart from its page size.
#[derive(Debug)]
pub(crate) struct Core {
    /// Never reused in this process.
    pub(crate) id: u64,
    pub(crate) config: Config,
    pub(crate) rng: Rng,
    pub(crate) entropy: Rng,
    pub(crate) schedule: RefCell<Schedule>,
    pub(crate) memory: Memory,
    pub(crate) arrays: Arrays,
    pub(crate) graces: Graces,
    pub(crate) faults: Faults,
    pub(crate) lock_stats: RefCell<Vec<LockStat>>,
    pub(crate) counts: [Cell<u64>; Event::COUNT],
    pub(crate) log: RefCell<Vec<(Level, String)>>,
    pub(crate) backtrace: RefCell<Vec<usize>>,
    pub(crate) now: Cell<u64>,
    /// The context that runs: 0 outside of a run.
    pub(crate) me: Cell<usize>,
    /// Its CPU.
    pub(crate) cpu: Cell<usize>,
    /// Its own steps.
    pub(crate) my_steps: Cell<u64>,
    pub(crate) steps: Cell<u64>,
    /// `steps` at which a run has taken too many.
    pub(crate) step_end: Cell<u64>,
    countdown: Cell<u32>,
    pub(crate) trace: Cell<u64>,
    /// Whether tasks run.
    pub(crate) running: Cell<bool>,
    /// Who is resumed next.
    pub(crate) next: Cell<Option<usize>>,
    pub(crate) yielders: RefCell<Vec<*const Yielder<(), ()>>>,
    /// What an interrupt does, while [`Machine::with_interrupts`](crate::Machine::with_interrupts) lasts.
    pub(crate) handler: Cell<Option<NonNull<dyn Fn()>>>,
    /// What a machine around this one does with every step of a run, while [`Hooks::observe`](crate::Hooks::observe) lasts.
    pub(crate) observer: Cell<Option<NonNull<dyn Fn()>>>,
    pub(crate) interrupts: Cell<u64>,
    /// Contexts that wait until some CPU opens its interrupts.
    pub(crate) awaited_open: Cell<u32>,
    pub(crate) failure: RefCell<Option<Failure>>,
    pub(crate) panic: RefCell<Option<Box<dyn Any + Send>>>,
}

thread_local! {
    static CURRENT: Cell<*const Core> = const { Cell::new(core::ptr::null()) };
    static LIVE: RefCell<Vec<(u64, *const Core)>> = const { RefCell::new(Vec::new()) };
}

/// Calls `f` with the machine that this thread used last, if it still lives.
#[inline]
pub(crate) fn with_current<R>(f: impl FnOnce(&Core) -> R) -> Option<R> {
    let core = CURRENT.get();
    // SAFETY: T2: CURRENT is null or a machine of this thread that was not dropped.
    (!core.is_null()).then(|| f(unsafe { &*core }))
}

/// Calls `f` with the machine with this id, if it lives in this thread.
pub(crate) fn with_machine<R>(id: u64, f: impl FnOnce(&Core) -> R) -> Option<R> {
    let core =
        LIVE.with_borrow(|live| live.iter().find(|(i, _)| *i == id).map(|(_, core)| *core))?;
    // SAFETY: T2: LIVE lists machines of this thread that were not dropped.
    Some(f(unsafe { &*core }))
}

impl Core {
    pub(crate) fn new(config: Config) -> Box<Self> {
        static NEXT: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(1);
        let rng = Rng::new(config.seed);
        let memory = Memory::new(&config, &rng);
        let mut schedule = Schedule::new(
            config.cpus,
            config.policy,
            config.disturb,
            config.may_migrate(),
        );
        let countdown = schedule.countdown(&rng);
        let core = Box::new(Self {
            id: NEXT.fetch_add(1, core::sync::atomic::Ordering::Relaxed),
            entropy: Rng::new(rng.bits()),
            schedule: RefCell::new(schedule),
            memory,
            arrays: Arrays::default(),
            graces: Graces::default(),
            faults: Faults::default(),
            lock_stats: RefCell::default(),
            counts: [const { Cell::new(0) }; Event::COUNT],
            log: RefCell::default(),
            backtrace: RefCell::default(),
            now: Cell::new(1_000_000),
            me: Cell::new(0),
            cpu: Cell::new(0),
            my_steps: Cell::new(0),
            steps: Cell::new(0),
            step_end: Cell::new(u64::MAX),
            countdown: Cell::new(countdown),
            trace: Cell::new(0xcbf2_9ce4_8422_2325),
            running: Cell::new(false),
            next: Cell::new(None),
            yielders: RefCell::default(),
            handler: Cell::new(None),
            observer: Cell::new(None),
            interrupts: Cell::new(0),
            awaited_open: Cell::new(0),
            failure: RefCell::new(None),
            panic: RefCell::new(None),
            rng,
            config,
        });
        LIVE.with_borrow_mut(|live| live.push((core.id, &raw const *core)));
        CURRENT.set(&raw const *core);
        core
    }

    /// Takes a step: time passes, and others may run before it returns.
    #[inline]
    pub(crate) fn step(&self, point: Point) {
        CURRENT.set(self);
        self.now.set(self.now.get() + STEP_NANOS);
        self.steps.set(self.steps.get() + 1);
        self.my_steps.set(self.my_steps.get() + 1);
        let event = (self.me.get() << 24 | self.cpu.get() << 8 | point as usize) as u64;
        self.trace
            .set((self.trace.get() ^ event).wrapping_mul(0x0000_0100_0000_01b3));
        if !self.running.get() {
            return;
        }
        if let Some(observer) = self.observer.get()
            && !std::thread::panicking()
        {
            // SAFETY: T5: the observer lives until `observe` has taken it away.
            unsafe { observer.as_ref()() };
        }
        match self.countdown.get().checked_sub(1) {
            Some(left) => self.countdown.set(left),
            None => self.reschedule(Cause::Step),
        }
    }

    /// Lets others run, because only they can do what this context waits for.
    pub(crate) fn relax(&self, spins: u32) {
        self.step(Point::Cpu);
        if self.running.get() {
            self.reschedule(Cause::Relax);
        } else if spins > self.config.plain_spins {
            self.fail(
                FailureKind::Deadlock,
                format!("waits outside of a run for what nobody can do ({spins} rounds)"),
            );
        }
    }

    /// Waits until the lock at `address`, of a class called `name`, is released.
    pub(crate) fn wait(&self, address: usize, name: &'static str) {
        {
            let mut schedule = self.schedule.borrow_mut();
            if !self.running.get() {
                let text = format!(
                    "{name}@{address:#x} is taken outside of a run, but held already{}",
                    schedule.describe()
                );
                drop(schedule);
                self.fail(FailureKind::Deadlock, text);
            }
            let me = &mut schedule.contexts[self.me.get()];
            me.state = State::Blocked(address);
            me.wanted = name;
        }
        self.reschedule(Cause::Wait);
    }

    #[cold]
    fn reschedule(&self, cause: Cause) {
        if std::thread::panicking() {
            // An unwinding task is not switched away from: the count of panics is the thread's.
            if cause == Cause::Wait {
                self.leave_for_ever();
            }
            return;
        }
        if cause == Cause::Step {
            self.perhaps_interrupt();
        }
        let me = self.me.get();
        if self.steps.get() > self.step_end.get() {
            let text = format!(
                "no end after {} steps{}",
                self.config.step_limit,
                self.schedule.borrow().describe()
            );
            self.fail(FailureKind::StepLimit, text);
        }
        let next = {
            let mut schedule = self.schedule.borrow_mut();
            let next = schedule.decide(me, cause, &self.rng);
            self.countdown.set(schedule.countdown(&self.rng));
            next
        };
        match next {
            Some(next) if next == me => self.cpu.set(self.schedule.borrow().contexts[me].cpu),
            Some(next) => {
                self.schedule.borrow_mut().contexts[me].steps = self.my_steps.get();
                self.next.set(Some(next));
                self.suspend();
            }
            None => {
                let text = format!(
                    "every task waits for a lock{}",
                    self.schedule.borrow().describe()
                );
                self.fail(FailureKind::Deadlock, text);
            }
        }
    }

    /// Perhaps runs the interrupt handler, on the stack of the task that it interrupts and with the CPU's
    /// interrupts blocked. The task's section starts again afterwards.
    fn perhaps_interrupt(&self) {
        let Some(handler) = self.handler.get() else {
            return;
        };
        let me = self.me.get();
        let open = {
            let schedule = self.schedule.borrow();
            let context = &schedule.contexts[me];
            schedule.irq_depth[context.cpu] == 0 && !context.shielded
        };
        if !self.config.interrupts || !open || !self.rng.chance(INTERRUPTS) {
            return;
        }
        self.interrupts.set(self.interrupts.get() + 1);
        self.block_irq();
        // SAFETY: T5: the handler lives until `with_interrupts` has taken it away.
        unsafe { handler.as_ref()() };
        self.unblock_irq();
        let mut schedule = self.schedule.borrow_mut();
        schedule.contexts[me].interrupted = true;
        schedule.contexts[me].shielded = false;
    }

    /// Moves the calling task to `cpu` if its interrupts are open.
    pub(crate) fn migrate(&self, cpu: usize) {
        assert!(cpu < self.config.cpus, "there is no CPU {cpu}");
        let me = self.me.get();
        {
            let mut schedule = self.schedule.borrow_mut();
            if me == 0 {
                assert!(
                    schedule.irq_depth[self.cpu.get()] == 0,
                    "moved to another CPU with interrupts blocked"
                );
                schedule.contexts[0].cpu = cpu;
                self.cpu.set(cpu);
                return;
            }
            let home = schedule.contexts[me].cpu;
            if schedule.irq_depth[home] != 0 || !self.config.may_migrate() {
                return;
            }
            schedule.migrate(me, cpu, &self.rng);
        }
        self.reschedule(Cause::Relax);
    }

    fn suspend(&self) {
        let yielder = self.yielders.borrow()[self.me.get()];
        // SAFETY: T3: the yielder of the running task lives on that task's stack, which is the one we are on.
        unsafe { (*yielder).suspend(()) };
    }

    fn leave_for_ever(&self) -> ! {
        self.next.set(None);
        loop {
            self.suspend();
        }
    }

    /// Ends the run with a failure; outside of a run, panics with it.
    #[cold]
    pub(crate) fn fail(&self, kind: FailureKind, mut text: String) -> ! {
        let seed = self.config.seed;
        if !self.running.get() || self.me.get() == 0 {
            panic!("{}", Failure { seed, kind, text });
        }
        let backtrace = std::backtrace::Backtrace::capture();
        if backtrace.status() == std::backtrace::BacktraceStatus::Captured {
            text = format!("{text}\n{backtrace}");
        }
        let failure = Failure { seed, kind, text };
        self.failure.borrow_mut().get_or_insert(failure);
        self.leave_for_ever()
    }

    pub(crate) fn block_irq(&self) {
        if self.config.interrupts {
            self.schedule.borrow_mut().irq_depth[self.cpu.get()] += 1;
        }
    }

    /// Whether the running context's CPU has its interrupts blocked.
    pub(crate) fn irq_blocked(&self) -> bool {
        self.schedule.borrow().irq_depth[self.cpu.get()] != 0
    }

    pub(crate) fn unblock_irq(&self) {
        if self.config.interrupts {
            let cpu = self.cpu.get();
            let mut schedule = self.schedule.borrow_mut();
            schedule.irq_depth[cpu] -= 1;
            if schedule.irq_depth[cpu] == 0 && self.awaited_open.get() != 0 {
                schedule.wake(open_token(cpu));
            }
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        LIVE.with_borrow_mut(|live| live.retain(|(id, _)| *id != self.id));
        if CURRENT.get() == &raw const *self {
            CURRENT.set(core::ptr::null());
        }
        if !std::thread::panicking()
            && let Err(text) = self
                .memory
                .check_uncommitted()
                .and_then(|()| self.memory.check_shared_records())
        {
            let failure = Failure {
                seed: self.config.seed,
                kind: FailureKind::Memory,
                text,
            };
            panic!("{failure}");
        }
    }
}
