//! The schedule: who runs on which CPU, and who takes the next step.
//!
//! Each CPU has at most one *current* task; the other tasks of that CPU are *queued*, that is: preempted. A
//! step is taken by one current task. Contexts are numbered: 0 is the code outside of a run, tasks follow.
//!
//! Invariants (clauses S1 to S4 of `MODEL.md`): a context that stops being current, or moves, is marked
//! `interrupted`; a CPU with blocked interrupts keeps its current task; a blocked context is not picked before
//! its lock was released; if nobody can be picked although somebody has not ended, that is a deadlock.

use crate::rng::Rng;
use flagstone_host::held_locks::HeldLocks;

/// How the moments of switching are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// At any step with the same chance; a switch every `mean` steps or so.
    Uniform {
        /// Steps between switches, on average; 1 switches at every step.
        mean: u32,
    },
    /// Long calm times and storms in which every step switches.
    Bursts {
        /// The longest calm time in steps.
        calm: u32,
        /// The longest storm in steps.
        storm: u32,
    },
    /// The task with the highest priority goes on until one of few random moments, at which it becomes the
    /// last (after Burckhardt et al., "A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs", 2010).
    Priorities {
        /// The longest time between two such moments in steps.
        interval: u32,
    },
}

impl Policy {
    /// A policy that a seed chooses.
    pub(crate) fn draw(rng: &Rng) -> Self {
        match rng.below(4) {
            0 => Self::Uniform {
                mean: rng.pick(&[1, 2, 3]),
            },
            1 => Self::Uniform {
                mean: rng.pick(&[5, 10, 30]),
            },
            2 => Self::Bursts {
                calm: rng.pick(&[20, 60, 200]),
                storm: rng.pick(&[4, 12, 40]),
            },
            _ => Self::Priorities {
                interval: rng.pick(&[5, 20, 60, 200]),
            },
        }
    }
}

/// What a context is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Ready,
    /// Waits for the lock at this address.
    Blocked(usize),
    Ended,
}

/// Why the schedule is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A step, at a moment that the policy chose.
    Step,
    /// The context waits for something that only others can do.
    Relax,
    /// The context is blocked.
    Wait,
    /// The context has ended.
    End,
}

/// A lock that a context holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) address: usize,
    pub(crate) name: &'static str,
    /// The context's own steps when it took it.
    pub(crate) since: u64,
}

/// The order checker's record; a fork holds the locks of every CPU and node.
pub(crate) type Order = HeldLocks<1024>;

/// A task, or the code outside of a run.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) cpu: usize,
    pub(crate) state: State,
    /// Preempted, moved, or told to start again since this was last cleared.
    pub(crate) interrupted: bool,
    /// Neither preempted nor moved: its section has started again too often, and a real machine's time slices
    /// are long enough for it.
    pub(crate) shielded: bool,
    priority: i64,
    /// Steps taken, while it is not the one that runs.
    pub(crate) steps: u64,
    pub(crate) wanted: &'static str,
    pub(crate) held: Vec<Held>,
    /// Made at the first lock, because it is large.
    pub(crate) order: Option<Box<Order>>,
    /// Whether it is inside a deferred call.
    pub(crate) in_deferred: bool,
    pub(crate) read_depth: u32,
    /// The grace sequence number when the outermost read-side section began.
    pub(crate) read_since: u64,
}

impl Context {
    pub(crate) fn new(cpu: usize, priority: i64) -> Self {
        Self {
            cpu,
            state: State::Ready,
            interrupted: false,
            shielded: false,
            priority,
            steps: 0,
            wanted: "",
            held: Vec::new(),
            order: None,
            in_deferred: false,
            read_depth: 0,
            read_since: 0,
        }
    }
}

/// No context is current on a CPU.
const IDLE: usize = usize::MAX;

/// The state of the schedule.
#[derive(Debug)]
pub(crate) struct Schedule {
    pub(crate) contexts: Vec<Context>,
    /// The current context of each CPU.
    current: Vec<usize>,
    /// CPUs that tasks may be on.
    pub(crate) online: Vec<bool>,
    /// Depth of blocked interrupts of each CPU.
    pub(crate) irq_depth: Vec<u32>,
    policy: Policy,
    /// Whether each run draws a policy of its own.
    draws: bool,
    /// Steps left in a storm.
    storm: u32,
    lowest: i64,
    /// Of 256 decisions, how many disturb the task: preempt or move it.
    disturb: u32,
    may_migrate: bool,
    pub(crate) switches: u64,
    pub(crate) preemptions: u64,
    pub(crate) migrations: u64,
}

impl Schedule {
    /// Without a `policy` each run draws one.
    pub(crate) fn new(
        cpus: usize,
        policy: Option<Policy>,
        disturb: u32,
        may_migrate: bool,
    ) -> Self {
        Self {
            contexts: vec![Context::new(0, 0)],
            current: vec![IDLE; cpus],
            online: vec![true; cpus],
            irq_depth: vec![0; cpus],
            policy: policy.unwrap_or(Policy::Uniform { mean: 1 }),
            draws: policy.is_none(),
            storm: 0,
            lowest: 0,
            disturb,
            may_migrate,
            switches: 0,
            preemptions: 0,
            migrations: 0,
        }
    }

    /// Forgets the tasks of the last run and puts `tasks` new ones on CPUs: by turns if they can not
    /// move, else by chance.
    pub(crate) fn begin(&mut self, tasks: usize, rng: &Rng) {
        if self.draws {
            self.policy = Policy::draw(rng);
        }
        self.contexts.truncate(1);
        self.current.fill(IDLE);
        self.lowest = 0;
        self.storm = 0;
        let online: Vec<usize> = (0..self.online.len())
            .filter(|&cpu| self.online[cpu])
            .collect();
        for task in 0..tasks {
            let cpu = if self.may_migrate {
                rng.pick(&online)
            } else {
                online[task % online.len()]
            };
            self.contexts
                .push(Context::new(cpu, rng.below(1 << 30) as i64));
            if self.current[cpu] == IDLE {
                self.current[cpu] = task + 1;
            }
        }
    }

    /// Steps until the next decision.
    pub(crate) fn countdown(&mut self, rng: &Rng) -> u32 {
        match self.policy {
            Policy::Uniform { mean: 0 | 1 } => 0,
            Policy::Uniform { mean } => rng.below(2 * mean as usize) as u32,
            Policy::Bursts { calm, storm } => {
                if self.storm > 0 {
                    self.storm -= 1;
                    0
                } else {
                    self.storm = rng.below(storm as usize) as u32;
                    rng.below(calm as usize) as u32
                }
            }
            Policy::Priorities { interval } => rng.below(interval as usize) as u32,
        }
    }

    fn is_current(&self, id: usize) -> bool {
        self.current[self.contexts[id].cpu] == id
    }

    fn is_queued(&self, id: usize) -> bool {
        self.contexts[id].state != State::Ended && !self.is_current(id)
    }

    fn ready_in_queue(&self, cpu: usize) -> impl Iterator<Item = usize> + '_ {
        (1..self.contexts.len()).filter(move |&id| {
            let c = &self.contexts[id];
            c.cpu == cpu && c.state == State::Ready && self.current[cpu] != id
        })
    }

    /// A random ready task from the queue of `cpu`.
    fn next_in_queue(&self, cpu: usize, rng: &Rng) -> Option<usize> {
        let ready = self.ready_in_queue(cpu).count();
        self.ready_in_queue(cpu).nth(rng.below(ready))
    }

    /// Makes `id` the current task of `cpu`, whose interrupts are open.
    fn install(&mut self, id: usize, cpu: usize) {
        let before = self.current[cpu];
        if before == id {
            return;
        }
        if before != IDLE {
            self.contexts[before].interrupted = true;
            self.preemptions += 1;
        }
        self.contexts[id].cpu = cpu;
        self.contexts[id].interrupted = true;
        self.current[cpu] = id;
    }

    /// Takes `id` off its CPU, where the next in the queue goes on.
    fn leave(&mut self, id: usize, rng: &Rng) {
        let cpu = self.contexts[id].cpu;
        if self.current[cpu] == id {
            self.current[cpu] = IDLE;
            self.contexts[id].interrupted = true;
            let next = self.next_in_queue(cpu, rng).or_else(|| {
                (1..self.contexts.len()).find(|&other| {
                    other != id && self.contexts[other].cpu == cpu && self.is_queued(other)
                })
            });
            if let Some(next) = next {
                self.install(next, cpu);
            }
        }
    }

    /// Moves `id`, whose CPU has open interrupts or on whose CPU it is queued, to `to`.
    pub(crate) fn migrate(&mut self, id: usize, to: usize, rng: &Rng) {
        if self.contexts[id].cpu == to || !self.online[to] {
            return;
        }
        self.leave(id, rng);
        self.migrations += 1;
        self.contexts[id].cpu = to;
        self.contexts[id].interrupted = true;
        let before = self.current[to];
        let open = before == IDLE || (self.irq_depth[to] == 0 && !self.contexts[before].shielded);
        if before == IDLE || (open && rng.chance(128)) {
            self.install(id, to);
        }
    }

    /// Perhaps preempts or moves `me`, or gives a queued task an idle CPU.
    fn disturb(&mut self, me: usize, cause: Cause, rng: &Rng) {
        let cpu = self.contexts[me].cpu;
        let chance = if cause == Cause::Step {
            self.disturb
        } else {
            128
        };
        let movable = self.irq_depth[cpu] == 0 && !self.contexts[me].shielded;
        if movable && rng.chance(chance) {
            let preempt = self.next_in_queue(cpu, rng).filter(|_| rng.chance(128));
            if let Some(next) = preempt {
                self.install(next, cpu);
            } else if self.may_migrate && self.current.len() > 1 && cause == Cause::Step {
                let to = (cpu + 1 + rng.below(self.current.len() - 1)) % self.current.len();
                self.migrate(me, to, rng);
            }
        }
        if rng.chance(32) {
            self.preempt_a_waiter(rng);
        }
        if self.may_migrate && rng.chance(32) {
            let idle = rng.below(self.current.len());
            if self.current[idle] == IDLE && self.online[idle] {
                let queued = (1..self.contexts.len())
                    .filter(|&id| self.is_queued(id))
                    .count();
                let pulled = (1..self.contexts.len())
                    .filter(|&id| self.is_queued(id))
                    .nth(rng.below(queued));
                if let Some(pulled) = pulled {
                    self.migrate(pulled, idle, rng);
                }
            }
        }
    }

    /// Gives the CPU of a blocked task to a ready one of its queue: the blocked task never comes to a step at
    /// which it could be preempted, and somebody else may spin for what the queued one is to do.
    fn preempt_a_waiter(&mut self, rng: &Rng) {
        let cpu = rng.below(self.current.len());
        let current = self.current[cpu];
        if current != IDLE
            && matches!(self.contexts[current].state, State::Blocked(_))
            && self.irq_depth[cpu] == 0
            && let Some(next) = self.next_in_queue(cpu, rng)
        {
            self.install(next, cpu);
        }
    }

    fn can_step(&self, id: usize) -> bool {
        self.contexts[id].state == State::Ready && self.is_current(id)
    }

    /// One of the current tasks that can take a step; for a cause that wants others to go on, another
    /// than `me` if there is one.
    fn pick(&mut self, me: usize, cause: Cause, rng: &Rng) -> Option<usize> {
        if matches!(self.policy, Policy::Priorities { .. }) {
            self.lowest -= 1;
            self.contexts[me].priority = self.lowest;
            return (1..self.contexts.len())
                .filter(|&id| self.can_step(id))
                .max_by_key(|&id| self.contexts[id].priority);
        }
        let others = |s: &Self| {
            (1..s.contexts.len())
                .filter(|&id| id != me && s.can_step(id))
                .count()
        };
        let mut candidates = others(self);
        let include_me = self.can_step(me) && (cause == Cause::Step || candidates == 0);
        candidates += usize::from(include_me);
        let choice = rng.below(candidates);
        (1..self.contexts.len())
            .filter(|&id| self.can_step(id) && (id != me || include_me))
            .nth(choice)
    }

    /// Makes a ready but queued task current, when no current task can step: where its CPU has open
    /// interrupts or is idle, else on another such CPU.
    fn rescue(&mut self, rng: &Rng) -> Option<usize> {
        let open = |s: &Self, cpu: usize| {
            s.online[cpu] && (s.current[cpu] == IDLE || s.irq_depth[cpu] == 0)
        };
        for id in 1..self.contexts.len() {
            if self.contexts[id].state != State::Ready {
                continue;
            }
            let home = self.contexts[id].cpu;
            if open(self, home) {
                self.install(id, home);
                return Some(id);
            }
            if self.may_migrate
                && let Some(to) = (0..self.current.len()).find(|&cpu| open(self, cpu))
            {
                self.migrate(id, to, rng);
                self.install(id, to);
                return Some(id);
            }
        }
        None
    }

    /// Decides who takes the next step; `None` if nobody can.
    pub(crate) fn decide(&mut self, me: usize, cause: Cause, rng: &Rng) -> Option<usize> {
        if cause == Cause::End {
            self.contexts[me].state = State::Ended;
            self.leave(me, rng);
        } else {
            self.disturb(me, cause, rng);
        }
        let next = self.pick(me, cause, rng).or_else(|| self.rescue(rng));
        self.switches += u64::from(next != Some(me));
        next
    }

    /// The context that takes the first step of a run.
    pub(crate) fn first(&self, rng: &Rng) -> usize {
        let busy = self.current.iter().filter(|id| **id != IDLE);
        let n = busy.clone().count();
        busy.copied().nth(rng.below(n)).unwrap_or(1)
    }

    /// Wakes whoever waits for the lock at `address`.
    pub(crate) fn wake(&mut self, address: usize) {
        for context in &mut self.contexts {
            if context.state == State::Blocked(address) {
                context.state = State::Ready;
            }
        }
    }

    /// Whether some task has not ended.
    pub(crate) fn unfinished(&self) -> bool {
        self.contexts[1..].iter().any(|c| c.state != State::Ended)
    }

    /// Who holds what and who waits for what, one context a line.
    pub(crate) fn describe(&self) -> String {
        use core::fmt::Write;
        let mut text = String::new();
        for (id, c) in self.contexts.iter().enumerate() {
            if c.held.is_empty() && (id == 0 || c.state == State::Ended) {
                continue;
            }
            let name = if id == 0 {
                "outside".to_owned()
            } else {
                format!("task {}", id - 1)
            };
            let held: Vec<String> = c
                .held
                .iter()
                .map(|h| format!("{}@{:#x}", h.name, h.address))
                .collect();
            let held = if held.is_empty() {
                "nothing".to_owned()
            } else {
                held.join(", ")
            };
            let _ = write!(text, "\n  {name} on CPU {} holds {held}", c.cpu);
            if let State::Blocked(address) = c.state {
                let _ = write!(text, ", waits for {}@{address:#x}", c.wanted);
                let holder = self
                    .contexts
                    .iter()
                    .position(|c| c.held.iter().any(|h| h.address == address));
                match holder {
                    Some(0) => text.push_str(" (held outside)"),
                    Some(holder) => {
                        let _ = write!(text, " (held by task {})", holder - 1);
                    }
                    None => text.push_str(" (held by nobody here)"),
                }
            }
        }
        text
    }
}
