//! Per-CPU arrays in every form, a step at a time.
//!
//! [`Array`] is what the core holds; the forms are in [`indexed`](self::indexed) (a count and slots: restartable,
//! under an exchange lock, plain) and [`transaction`](self::transaction) (a word that a compare-exchange changes:
//! over slots or over a list through the objects). Here is what they share: the list of arrays, stopping and draining.
//! `MODEL.md` has the arguments as clauses A1 to A5.

mod indexed;
mod transaction;

use crate::context::{Core, Point};
use crate::failure::FailureKind;
use crate::faults::Call;
use crate::thread_bound::ThreadBound;
use core::cell::{Cell, RefCell};
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use flagstone_host::{ArrayParams, CpuCache, LockClass, Push, classes};
use flagstone_types::{AllocError, CpuId};
use std::rc::Rc;

/// How a section of an array is made indivisible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ArrayForm {
    /// A section whose task was preempted or moved starts again.
    Restartable,
    /// A lock per CPU, taken by an exchange; given up after a few rounds.
    ExchangeLock,
    /// A transaction id and a count, changed together by a compare-exchange.
    TransactionArray,
    /// A transaction id and the head of a list through the objects, changed together.
    TransactionList,
    /// Nothing. Right only where nothing intervenes: at most one task on a CPU, none moves, and
    /// arrays can not be stopped while tasks run.
    Plain,
}

impl ArrayForm {
    /// Every form.
    pub const ALL: [Self; 5] = [
        Self::Restartable,
        Self::ExchangeLock,
        Self::TransactionArray,
        Self::TransactionList,
        Self::Plain,
    ];
}

/// A mistake in the arrays, made on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// Indexed forms read the count before they read whether arrays are stopped.
    StopReadAfterCount,
    /// A restartable section goes on although its task was preempted or moved.
    NoRestart,
    /// Stopping arrays does not restart the sections that had begun.
    NoRestartAtStop,
    /// A push on a transaction array stores to the slot without having set the busy bit.
    PushWithoutBusy,
}

/// What happened in sections of all arrays of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArrayStats {
    /// Restartable sections that started again.
    pub restarts: u64,
    /// Compare-exchanges that found another word.
    pub exchange_failures: u64,
    /// Times that an exchange lock or a busy bit belonged to somebody else.
    pub contended: u64,
    /// Times that arrays were stopped.
    pub stops: u64,
    /// Stacks drained from outside.
    pub drains: u64,
    /// Arrays dropped with pointers in a stack, or with frames that carry their tag. Nobody gets those pointers back.
    pub dropped_in_use: u64,
}

/// One CPU's stack. Which fields mean something depends on the form.
#[derive(Debug)]
struct Stack {
    slots: RefCell<Vec<NonNull<u8>>>,
    count: Cell<usize>,
    limit: Cell<usize>,
    /// The exchange lock.
    locked: Cell<bool>,
    /// The transaction id. Changes whenever anything in the word does.
    tid: Cell<u64>,
    /// Part of the word: somebody is pushing and owns the dead slots.
    busy: Cell<bool>,
    /// Part of the word: drained, and stopped since.
    marked: Cell<bool>,
    /// Part of the word of a list: its first object.
    head: Cell<Option<NonNull<u8>>>,
}

impl Stack {
    /// Changes the word and with it the id.
    fn change(&self, count: usize, busy: bool, marked: bool, head: Option<NonNull<u8>>) {
        self.tid.set(self.tid.get() + 1);
        self.count.set(count);
        self.busy.set(busy);
        self.marked.set(marked);
        self.head.set(head);
    }

    /// The pointer in a slot that was written once.
    fn slot(&self, at: usize) -> NonNull<u8> {
        self.slots.borrow()[at]
    }

    /// Writes a slot, at most one above those that were written before.
    fn set_slot(&self, at: usize, object: NonNull<u8>) {
        let mut slots = self.slots.borrow_mut();
        if at == slots.len() {
            slots.push(object);
        } else {
            slots[at] = object;
        }
    }
}

/// The stacks of one array.
#[derive(Debug)]
struct Stacks {
    stacks: Vec<Stack>,
    params: ArrayParams,
    tag: u16,
}

/// All arrays of a machine.
#[derive(Debug, Default)]
pub(crate) struct Arrays {
    live: RefCell<Vec<Rc<Stacks>>>,
    /// How many proofs that arrays are stopped exist.
    stopped: Cell<u32>,
    pub(crate) stats: Cell<ArrayStats>,
}

impl Arrays {
    fn stat(&self, update: impl FnOnce(&mut ArrayStats)) {
        let mut stats = self.stats.get();
        update(&mut stats);
        self.stats.set(stats);
    }
}

#[derive(Debug)]
struct Inner<'m> {
    core: &'m Core,
    stacks: Rc<Stacks>,
}

/// A stack of pointers on each CPU; see [`CpuCache`].
///
/// In the form [`ArrayForm::TransactionList`] a section may read the eight bytes at `link_offset` of an object that
/// has just left the stack, so objects must stay readable as long as the array: simulated memory does.
#[derive(Debug)]
pub struct Array<'m> {
    inner: ThreadBound<Inner<'m>>,
}

impl Drop for Inner<'_> {
    fn drop(&mut self) {
        let full = self.stacks.stacks.iter().any(|s| s.count.get() != 0);
        let tagged = self.core.memory.tagged(self.stacks.tag) != 0;
        self.core
            .arrays
            .stat(|s| s.dropped_in_use += u64::from(full || tagged));
        self.core
            .arrays
            .live
            .borrow_mut()
            .retain(|s| s.tag != self.stacks.tag);
    }
}

/// Proof that arrays are stopped; they go on when the last such proof is dropped.
#[derive(Debug)]
#[must_use]
pub struct Stopped<'a> {
    core: &'a Core,
    not_send: PhantomData<*const ()>,
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.core.step(Point::Stop);
        let stopped = &self.core.arrays.stopped;
        stopped.set(stopped.get() - 1);
        if stopped.get() == 0 {
            for stack in self
                .core
                .arrays
                .live
                .borrow()
                .iter()
                .flat_map(|a| &a.stacks)
            {
                stack.change(stack.count.get(), stack.busy.get(), false, stack.head.get());
            }
        }
        self.core.step(Point::Stop);
    }
}

impl Core {
    fn mutated(&self, mutation: Mutation) -> bool {
        self.config.mutation == Some(mutation)
    }

    fn arrays_stopped(&self) -> bool {
        self.arrays.stopped.get() != 0
    }

    pub(crate) fn new_array(&self, params: ArrayParams) -> Result<Array<'_>, AllocError> {
        self.step(Point::Host);
        self.must_hold_only("new_array", &[]);
        if !params.link_offset.is_multiple_of(8) {
            return Err(AllocError::InvalidArgument);
        }
        if self.faults.fails(Call::NewArray, &self.rng) {
            return Err(AllocError::OutOfMemory);
        }
        let stack = |_| Stack {
            slots: RefCell::default(),
            count: Cell::new(0),
            limit: Cell::new(0),
            locked: Cell::new(false),
            tid: Cell::new(0),
            busy: Cell::new(false),
            marked: Cell::new(false),
            head: Cell::new(None),
        };
        let mut live = self.arrays.live.borrow_mut();
        let Some(tag) = (1..=u16::MAX).find(|tag| live.iter().all(|s| s.tag != *tag)) else {
            return Err(AllocError::Exists);
        };
        let stacks = Rc::new(Stacks {
            stacks: (0..self.config.cpus).map(stack).collect(),
            params,
            tag,
        });
        live.push(Rc::clone(&stacks));
        drop(live);
        self.step(Point::Host);
        Ok(Array {
            inner: ThreadBound::new(Inner { core: self, stacks }),
        })
    }

    pub(crate) fn stop_arrays(&self) -> Option<Stopped<'_>> {
        self.step(Point::Stop);
        self.must_hold_only(
            "stop_arrays",
            &[classes::Fork::NAME, classes::CacheList::NAME],
        );
        let plain_tasks = self.config.form == ArrayForm::Plain && self.running.get();
        if plain_tasks || self.faults.fails(Call::StopArrays, &self.rng) {
            return None;
        }
        self.arrays.stopped.set(self.arrays.stopped.get() + 1);
        let proof = Stopped {
            core: self,
            not_send: PhantomData,
        };
        self.arrays.stat(|s| s.stops += 1);
        self.step(Point::Stop);
        match self.config.form {
            ArrayForm::Restartable if !self.mutated(Mutation::NoRestartAtStop) => {
                self.restart_sections()
            }
            ArrayForm::ExchangeLock => self.wait_for_exchange_locks(),
            // A drain changes the word that it claims, and marks it.
            _ => {}
        }
        Some(proof)
    }

    /// Interrupts every section that has begun, one context after the other.
    fn restart_sections(&self) {
        let contexts = self.schedule.borrow().contexts.len();
        for context in 0..contexts {
            self.schedule.borrow_mut().contexts[context].interrupted = true;
            self.step(Point::Stop);
        }
    }

    /// Waits until each exchange lock was free once: who takes one later sees that arrays are stopped.
    fn wait_for_exchange_locks(&self) {
        let arrays = self.arrays.live.borrow().clone();
        for stack in arrays.iter().flat_map(|a| &a.stacks) {
            let mut spins = 0;
            while stack.locked.get() {
                self.relax(spins);
                spins += 1;
            }
        }
        self.step(Point::Stop);
    }

    /// A8 and A11 of the host's model: what may be held here.
    fn must_hold_only(&self, call: &str, allowed: &[&str]) {
        let schedule = self.schedule.borrow();
        let me = &schedule.contexts[self.me.get()];
        let wrong = me
            .held
            .iter()
            .find(|h| !allowed.contains(&h.name))
            .map(|h| h.name);
        let wrong =
            wrong.or((schedule.irq_depth[self.cpu.get()] != 0).then_some("blocked interrupts"));
        drop(schedule);
        if let Some(wrong) = wrong {
            self.fail(
                FailureKind::LockOrder,
                format!("{call} is called holding {wrong}"),
            );
        }
    }

    pub(crate) fn drain(
        &self,
        stopped: &Stopped<'_>,
        array: &Array<'_>,
        cpu: CpuId,
        take: &mut dyn FnMut(&[NonNull<u8>]),
    ) {
        if !core::ptr::eq(stopped.core, self) {
            self.fail(
                FailureKind::Usage,
                "drain with the proof of another machine".into(),
            );
        }
        self.empty(array, cpu, true, take);
    }

    pub(crate) fn drain_unshared(
        &self,
        array: &mut Array<'_>,
        cpu: CpuId,
        take: &mut dyn FnMut(&[NonNull<u8>]),
    ) {
        self.empty(array, cpu, false, take);
    }

    /// Claims the stack in one exchange, which marks its word if `mark`, then reads what it got.
    fn empty(
        &self,
        array: &Array<'_>,
        cpu: CpuId,
        mark: bool,
        take: &mut dyn FnMut(&[NonNull<u8>]),
    ) {
        self.step(Point::Stop);
        let inner = array.inner.get();
        if !core::ptr::eq(inner.core, self) {
            self.fail(
                FailureKind::Usage,
                "drain of the array of another machine".into(),
            );
        }
        let stack = inner.stack(cpu);
        let (claimed, mut head) = (stack.count.get(), stack.head.get());
        stack.change(0, stack.busy.get(), mark, None);
        self.arrays.stat(|s| s.drains += 1);
        let mut objects = Vec::with_capacity(claimed);
        for at in 0..claimed {
            self.step(Point::Stop);
            if self.config.form == ArrayForm::TransactionList {
                let Some(object) = head else { break };
                objects.push(object);
                head = inner.link_of(object);
            } else {
                objects.push(stack.slot(at));
            }
        }
        for piece in objects.chunks(8) {
            take(piece);
            self.step(Point::Stop);
        }
    }
}

impl Inner<'_> {
    fn stack(&self, cpu: CpuId) -> &Stack {
        let Some(stack) = self.stacks.stacks.get(cpu.index()) else {
            self.core.fail(
                FailureKind::Usage,
                format!("an array has no stack for CPU {cpu}"),
            )
        };
        stack
    }

    /// The stack of the CPU that this runs on.
    fn here(&self) -> &Stack {
        &self.stacks.stacks[self.core.cpu.get()]
    }
}

// SAFETY: A1 to A4 of the host's model: argued for each form in MODEL.md, clauses A1 to A5.
unsafe impl CpuCache for Array<'_> {
    /// One of the forms does.
    const READS_STALE_LINKS: bool = true;

    fn pop(&self) -> Option<NonNull<u8>> {
        let inner = self.inner.get();
        match inner.core.config.form {
            ArrayForm::TransactionArray => inner.word_pop(),
            ArrayForm::TransactionList => inner.list_pop(),
            _ => inner.indexed_pop(),
        }
    }

    unsafe fn push(&self, object: NonNull<u8>) -> Push {
        let inner = self.inner.get();
        match inner.core.config.form {
            ArrayForm::TransactionArray => inner.word_push(object),
            ArrayForm::TransactionList => inner.list_push(object),
            _ => inner.indexed_push(object),
        }
    }

    fn pop_n(&self, into: &mut [MaybeUninit<NonNull<u8>>]) -> usize {
        let inner = self.inner.get();
        match inner.core.config.form {
            ArrayForm::TransactionArray => inner.word_pop_n(into),
            ArrayForm::TransactionList => inner.list_pop_n(into),
            _ => inner.indexed_pop_n(into),
        }
    }

    unsafe fn push_n(&self, objects: &[NonNull<u8>]) -> usize {
        let inner = self.inner.get();
        match inner.core.config.form {
            ArrayForm::TransactionArray => inner.word_push_n(objects),
            ArrayForm::TransactionList => inner.list_push_n(objects),
            _ => inner.indexed_push_n(objects),
        }
    }

    fn set_limit(&self, cpu: CpuId, limit: u32) {
        let inner = self.inner.get();
        inner.core.step(Point::Section);
        inner
            .stack(cpu)
            .limit
            .set(limit.min(inner.stacks.params.capacity) as usize);
        inner.core.step(Point::Section);
    }

    fn limit(&self, cpu: CpuId) -> u32 {
        let inner = self.inner.get();
        inner.core.step(Point::Section);
        inner.stack(cpu).limit.get() as u32
    }

    fn len(&self, cpu: CpuId) -> u32 {
        let inner = self.inner.get();
        inner.core.step(Point::Section);
        inner.stack(cpu).count.get() as u32
    }

    fn tag(&self) -> u16 {
        self.inner.get().stacks.tag
    }
}
