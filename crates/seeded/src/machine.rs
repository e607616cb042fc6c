//! The machine as a test sees it, and the host's small services.

use crate::arrays::{Array, ArrayStats, Stopped};
use crate::builder::Builder;
use crate::context::{Core, Point};
use crate::failure::FailureKind;
use crate::faults::{Call, Fault};
use crate::lock::{LockStat, RawLock};
use crate::thread_bound::ThreadBound;
use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;
use flagstone_host::{
    ArrayParams, Backtrace, Clock, Count, Cpus, Entropy, Event, Host, Level, LockClass, Log,
    MemRange,
};
use flagstone_types::{AllocError, CpuId, Nanos, Nid, Pfn};

/// A simulated machine with page frames of `2^SHIFT` bytes and largest blocks of `2^ORDER` frames.
///
/// `&Machine` is a [`Host`]. A machine belongs to the thread that built it; any use in another thread panics.
#[derive(Debug)]
pub struct Machine<const SHIFT: u32 = 12, const ORDER: u32 = 6> {
    pub(crate) core: ThreadBound<Box<Core>>,
}

impl Machine {
    /// Describes a machine with frames of 4 KiB and a largest order of 6; for others see [`Builder::new`].
    #[must_use]
    pub fn builder() -> Builder {
        Builder::new()
    }
}

impl<const SHIFT: u32, const ORDER: u32> Machine<SHIFT, ORDER> {
    #[inline]
    pub(crate) fn core(&self) -> &Core {
        self.core.get()
    }

    /// The seed of the machine.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.core().config.seed
    }

    /// Memory that was not there at start.
    #[must_use]
    pub fn unadded_ranges(&self) -> Vec<MemRange> {
        self.core().memory.unadded().to_vec()
    }

    /// Moves the code outside of a run to `cpu`.
    ///
    /// # Panics
    /// If there is no such CPU, or interrupts are blocked.
    pub fn set_cpu(&self, cpu: CpuId) {
        self.core().migrate(cpu.index());
    }

    /// Takes a CPU offline, where no task will be, or online again.
    ///
    /// # Panics
    /// In a run, if there is no such CPU, or if none would be left.
    pub fn set_online(&self, cpu: CpuId, online: bool) {
        assert!(!self.core().running.get(), "CPUs come and go between runs");
        let mut schedule = self.core().schedule.borrow_mut();
        schedule.online[cpu.index()] = online;
        assert!(
            schedule.online.contains(&true),
            "the last CPU was taken offline"
        );
    }

    /// Lets virtual time pass.
    pub fn advance(&self, time: Nanos) {
        let now = &self.core().now;
        now.set(now.get() + time.0);
    }

    /// Orders a host call to fail from now on as `fault` says.
    pub fn inject(&self, call: Call, fault: Fault) {
        self.core().faults.order(call, fault);
    }

    /// The messages so far.
    #[must_use]
    pub fn messages(&self) -> Vec<(Level, String)> {
        self.core().log.borrow().clone()
    }

    /// Sets the return addresses that `backtrace` answers from now on.
    pub fn set_backtrace(&self, addresses: &[usize]) {
        *self.core().backtrace.borrow_mut() = addresses.to_vec();
    }

    /// What happened to locks since the start or the last [`Machine::reset_lock_stats`], outermost class first.
    #[must_use]
    pub fn lock_stats(&self) -> Vec<LockStat> {
        let mut stats = self.core().lock_stats.borrow().clone();
        stats.sort_by_key(|s| s.rank);
        stats
    }

    /// Begins the lock statistics anew.
    pub fn reset_lock_stats(&self) {
        self.core().lock_stats.borrow_mut().clear();
    }

    /// What happened in sections of arrays.
    #[must_use]
    pub fn array_stats(&self) -> ArrayStats {
        self.core().arrays.stats.get()
    }

    /// How many interrupts there were.
    #[must_use]
    pub fn interrupts(&self) -> u64 {
        self.core().interrupts.get()
    }

    /// Steps taken so far.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.core().steps.get()
    }

    /// A number made from every step so far: which context, on which CPU, in which kind of call. Equal for equal
    /// seeds and equal tasks.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.core().trace.get()
    }

    /// The tag that `PhysMem::tag` noted for a frame; 0 if none.
    #[must_use]
    pub fn tag_of(&self, pfn: Pfn) -> u16 {
        self.core().memory.tag_of(pfn)
    }

    /// How many deferred calls wait for their grace period or for somebody to poll.
    #[must_use]
    pub fn deferred(&self) -> usize {
        self.core().graces.waiting()
    }

    /// Compares the bytes of all memory with the books: uncommitted frames as they were left, frames known to be zero, zero.
    ///
    /// # Errors
    /// The first frame that was written against the rules.
    pub fn check_memory(&self) -> Result<(), String> {
        self.core().memory.check()
    }
}

/// Keeps the CPU's current task current; see [`Cpus::IrqGuard`].
#[derive(Debug)]
#[must_use]
pub struct IrqGuard<'a> {
    core: &'a Core,
    not_send: PhantomData<*const ()>,
}

impl<'a> IrqGuard<'a> {
    /// Blocks the interrupts of the running context's CPU.
    pub(crate) fn new(core: &'a Core) -> Self {
        core.block_irq();
        Self {
            core,
            not_send: PhantomData,
        }
    }
}

impl Drop for IrqGuard<'_> {
    fn drop(&mut self) {
        self.core.unblock_irq();
        self.core.step(Point::Cpu);
    }
}

impl<const SHIFT: u32, const ORDER: u32> Cpus for &Machine<SHIFT, ORDER> {
    type IrqGuard<'a>
        = IrqGuard<'a>
    where
        Self: 'a;

    fn possible_cpus(&self) -> u32 {
        self.core().config.cpus as u32
    }

    fn is_online(&self, cpu: CpuId) -> bool {
        self.core()
            .schedule
            .borrow()
            .online
            .get(cpu.index())
            .copied()
            .unwrap_or(false)
    }

    fn current_cpu(&self) -> CpuId {
        let core = self.core();
        core.step(Point::Cpu);
        let cpu = core.cpu.get();
        core.step(Point::Cpu);
        CpuId(cpu as u32)
    }

    fn nodes(&self) -> u32 {
        self.core().config.nodes as u32
    }

    fn node_of(&self, cpu: CpuId) -> Nid {
        let config = &self.core().config;
        if cpu.index() >= config.cpus {
            self.core().fail(
                FailureKind::Usage,
                format!("node_of CPU {cpu}, which does not exist"),
            );
        }
        Nid((cpu.index() * config.nodes / config.cpus) as u16)
    }

    /// Nodes stand in a ring; each step along it adds 10.
    fn distance(&self, from: Nid, to: Nid) -> u32 {
        let nodes = self.core().config.nodes;
        let apart = from.index().abs_diff(to.index());
        10 + 10 * apart.min(nodes.saturating_sub(apart)) as u32
    }

    fn irq_guard(&self) -> IrqGuard<'_> {
        let core = self.core();
        core.step(Point::Cpu);
        IrqGuard::new(core)
    }

    fn relax(&self, spins: u32) {
        self.core().relax(spins);
    }
}

impl<const SHIFT: u32, const ORDER: u32> Clock for &Machine<SHIFT, ORDER> {
    fn now(&self) -> Nanos {
        self.core().step(Point::Host);
        Nanos(self.core().now.get())
    }
}

impl<const SHIFT: u32, const ORDER: u32> Entropy for &Machine<SHIFT, ORDER> {
    fn random(&self) -> u64 {
        self.core().step(Point::Host);
        self.core().entropy.bits()
    }
}

impl<const SHIFT: u32, const ORDER: u32> Log for &Machine<SHIFT, ORDER> {
    fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        let core = self.core();
        core.step(Point::Host);
        let text = message.to_string();
        if core.config.print_log {
            eprintln!("{level:?}: {text}");
        }
        core.log.borrow_mut().push((level, text));
    }
}

impl<const SHIFT: u32, const ORDER: u32> Backtrace for &Machine<SHIFT, ORDER> {
    fn backtrace(&self, into: &mut [usize]) -> usize {
        self.core().step(Point::Host);
        let addresses = self.core().backtrace.borrow();
        let n = addresses.len().min(into.len());
        into[..n].copy_from_slice(&addresses[..n]);
        n
    }
}

impl<const SHIFT: u32, const ORDER: u32> Count for &Machine<SHIFT, ORDER> {
    fn count(&self, event: Event, n: u64) {
        let core = self.core();
        core.step(Point::Host);
        let count = &core.counts[event.index()];
        count.set(count.get() + n);
    }

    fn counted(&self, event: Event) -> u64 {
        self.core().counts[event.index()].get()
    }
}

impl<const SHIFT: u32, const ORDER: u32> flagstone_host::Machine for &Machine<SHIFT, ORDER> {
    type Lock<C: LockClass> = RawLock<C>;
}

impl<'m, const SHIFT: u32, const ORDER: u32> Host for &'m Machine<SHIFT, ORDER> {
    type Array = Array<'m>;
    type Stopped = Stopped<'m>;

    fn new_array(&self, params: ArrayParams) -> Result<Array<'m>, AllocError> {
        let machine: &'m Machine<SHIFT, ORDER> = self;
        machine.core().new_array(params)
    }

    fn stop_arrays(&self) -> Option<Stopped<'m>> {
        let machine: &'m Machine<SHIFT, ORDER> = self;
        machine.core().stop_arrays()
    }

    fn drain(
        &self,
        stopped: &Stopped<'m>,
        array: &Array<'m>,
        cpu: CpuId,
        take: &mut dyn FnMut(&[NonNull<u8>]),
    ) {
        self.core().drain(stopped, array, cpu, take);
    }

    fn drain_unshared(
        &self,
        array: &mut Array<'m>,
        cpu: CpuId,
        take: &mut dyn FnMut(&[NonNull<u8>]),
    ) {
        self.core().drain_unshared(array, cpu, take);
    }
}
