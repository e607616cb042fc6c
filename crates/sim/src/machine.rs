//! The machine as a test sees it: running tasks, accesses through the unit, checks.

use crate::arch::{Access, Arch};
use crate::builder::Builder;
use crate::cost::{Bill, Costs};
use crate::mmu::{Cached, Fault, FaultKind, MmuStats, Progress, Translation, Unit};
use crate::violation::{Checked, Rule, Violation, broken};
use core::cell::{Cell, RefCell};
use core::sync::atomic::{AtomicU64, Ordering};
use flagstone_host::{Asid, MmuCaps, PageMap};
use flagstone_seeded::{Failure, Hooks, Report, Task, ThreadBound};
use flagstone_types::{CpuId, Nanos, Pfn, PfnRange, PhysAddr, VirtAddr};

/// A simulated machine with a memory management unit; `&Machine` is a host.
///
/// Frames have `2^SHIFT` bytes, the pages of the architecture. A machine belongs to the thread that built it.
#[derive(Debug)]
pub struct Machine<const SHIFT: u32 = 12, const ORDER: u32 = 9> {
    pub(crate) inner: flagstone_seeded::Machine<SHIFT, ORDER>,
    pub(crate) unit: ThreadBound<RefCell<Unit>>,
    pub(crate) bill: ThreadBound<Bill>,
    pub(crate) costs: Costs,
    pub(crate) replay: Option<String>,
    pub(crate) found: ThreadBound<RefCell<Option<Violation>>>,
    /// Whether units do nothing unasked.
    pub(crate) quiet: ThreadBound<Cell<bool>>,
}

impl<const SHIFT: u32, const ORDER: u32> Machine<SHIFT, ORDER> {
    /// Describes a machine.
    #[must_use]
    pub fn builder(arch: Arch) -> Builder<SHIFT, ORDER> {
        Builder::new(arch)
    }

    /// The machine without its unit: seeds, faults on order, lock statistics, messages.
    #[must_use]
    pub fn inner(&self) -> &flagstone_seeded::Machine<SHIFT, ORDER> {
        &self.inner
    }

    /// The architecture.
    #[must_use]
    pub fn arch(&self) -> Arch {
        self.unit.get().borrow().arch
    }

    pub(crate) fn hooks(&self) -> Hooks<'_> {
        self.inner.hooks()
    }

    /// Calls `f` with the units; a broken rule ends the run.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut Unit, Hooks<'_>) -> Checked<R>) -> R {
        let hooks = self.hooks();
        let result = f(&mut self.unit.get().borrow_mut(), hooks);
        match result {
            Ok(value) => value,
            Err(violation) => self.fail(*violation),
        }
    }

    fn fail(&self, violation: Violation) -> ! {
        let mut text = violation.to_string();
        if let Some(command) = &self.replay {
            text = format!("{text}\nreplay: {command}");
        }
        *self.found.get().borrow_mut() = Some(violation);
        self.hooks().violate(text)
    }

    /// The rule that was broken, if one was.
    #[must_use]
    pub fn violation(&self) -> Option<Violation> {
        self.found.get().borrow().clone()
    }

    pub(crate) fn charge(&self, cpu: CpuId, nanos: u64) {
        self.bill.get().charge(cpu.index(), nanos);
        // As if all CPUs were equally busy: the shared clock goes on by a share of it.
        let cpus = self.hooks().cpus() as u64;
        self.hooks().advance(Nanos(nanos.div_ceil(cpus)));
    }

    /// Outside of a run, where steps are not observed, something happens beside a host call.
    #[inline]
    pub(crate) fn aside(&self) {
        if !self.hooks().running() {
            self.happen();
        }
    }

    /// Something happens beside a step: units load and lose translations, interrupts arrive, frames that were freed are looked at.
    fn happen(&self) {
        if self.quiet.get().get() {
            return;
        }
        self.with(|unit, hooks| {
            unit.idle(hooks)?;
            if !unit.flights.is_empty() {
                self.deliver_some(unit, hooks);
            }
            Ok(())
        });
    }

    /// Runs the tasks to their end under the machine's schedule.
    ///
    /// # Panics
    /// At the first failure, with the seed.
    pub fn run(&self, tasks: Vec<Task<'_>>) -> Report {
        self.with(|unit, _| {
            unit.forget_contexts();
            Ok(())
        });
        self.hooks()
            .observe(&|| self.happen(), || self.inner.run(tasks))
    }

    /// Runs the tasks as [`Machine::run`] does.
    ///
    /// # Errors
    /// The first failure; [`Machine::violation`] has it as a value if it was a broken rule of the unit.
    pub fn try_run(&self, tasks: Vec<Task<'_>>) -> Result<Report, Failure> {
        self.with(|unit, _| {
            unit.forget_contexts();
            Ok(())
        });
        self.hooks()
            .observe(&|| self.happen(), || self.inner.try_run(tasks))
    }

    /// The seed of the machine.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.inner.seed()
    }

    /// What happened in the units.
    #[must_use]
    pub fn mmu_stats(&self) -> MmuStats {
        self.unit.get().borrow().stats
    }

    /// How long `cpu` was busy with what [`Costs`] prices.
    #[must_use]
    pub fn busy(&self, cpu: CpuId) -> Nanos {
        Nanos(self.bill.get().busy(cpu.index()))
    }

    /// The current CPU is busy for a while: what a test does that has a price ([`Costs::copy_page`]) and is no call of the machine.
    pub fn spend(&self, time: Nanos) {
        self.charge(self.hooks().cpu(), time.0);
    }

    /// What things cost.
    #[must_use]
    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    /// What the unit can do; the same as `Mmu::capabilities`, without a step.
    #[must_use]
    pub fn caps(&self) -> MmuCaps {
        self.unit.get().borrow().caps
    }

    /// The table for the upper half, where the architecture has two (arm64, ppc64); it is never switched.
    pub fn set_kernel_root(&self, root: Option<PhysAddr>) {
        self.with(|unit, hooks| {
            unit.kernel_root = root.map(|root| root.0);
            if let Some(root) = root {
                let top = unit.geometry.top;
                unit.note_table(hooks, root.0, top);
            }
            Ok(())
        });
    }

    /// Translations of these addresses own nothing (a direct map): frames behind them may be free.
    pub fn exempt(&self, start: VirtAddr, end: VirtAddr) {
        let range = (start.0 as u64, end.0 as u64);
        self.unit.get().borrow_mut().exempt.push(range);
    }

    /// The `n`-th frame of the memory that is there at start, for tests that do without an allocator.
    ///
    /// # Panics
    /// If there are fewer.
    #[must_use]
    pub fn nth_frame(&self, n: usize) -> Pfn {
        let (mut left, mut found) = (n, None);
        let inner = &self.inner;
        inner.boot_ranges(&mut |range| {
            if found.is_none() {
                if left < range.frames.pages {
                    found = Some(range.frames.start.add(left));
                } else {
                    left -= range.frames.pages;
                }
            }
        });
        found.unwrap_or_else(|| panic!("frame {n} of a machine with fewer"))
    }

    /// Every CPU forgets its table and everything that its unit holds, as if it were switched off: before the tables of a test are dropped.
    ///
    /// # Panics
    /// In a run.
    pub fn reset_units(&self) {
        assert!(
            !self.hooks().running(),
            "CPUs are switched off between runs"
        );
        for unit in &mut self.unit.get().borrow_mut().cpus {
            *unit = crate::mmu::CpuUnit::default();
        }
    }

    /// Turns what units do unasked (guesses, evictions) off and on again.
    pub fn set_quiet(&self, quiet: bool) {
        self.quiet.get().set(quiet);
    }

    /// Takes a step, at which others may run and units do something unasked.
    pub fn step(&self) {
        self.aside();
        self.hooks().step();
    }

    /// Frames went back to their allocator, or their owner is about to write or reuse them: from now on no CPU may reach them (V1, V2). Takes no step.
    pub fn frame_freed(&self, frames: PfnRange) {
        let (start, end) = (
            (frames.start.0 as u64) << SHIFT,
            (frames.end().0 as u64) << SHIFT,
        );
        self.with(|unit, hooks| unit.freed(hooks, start, end, "its owner says so"));
    }

    /// Fails the run unless what CPUs can use for `start..end` of the address space is what its tables allow now (V3). For a moment
    /// at which the caller knows that nobody changes that range. Takes no step.
    pub fn check_settled(&self, asid: Asid, start: VirtAddr, end: VirtAddr) {
        self.with(|unit, hooks| unit.check_settled(hooks, asid.0, start.0 as u64, end.0 as u64));
    }

    /// Fails the run unless what CPUs keep of entries that name tables is what they say now, in the whole address space (V3). For a moment at which nobody
    /// changes any of its tables. Takes no step.
    pub fn check_tables_settled(&self, asid: Asid) {
        self.with(|unit, hooks| unit.check_tables_settled(hooks, asid.0));
    }

    /// Whether anybody asks for accessed and dirty bits from now on, as at first; if nobody does, a plain store may lose one (V5, V12).
    pub fn ask_use(&self, asked: bool) {
        self.unit.get().borrow_mut().use_asked = asked;
    }

    /// What the table at `root` says of `va` now, by the model's own decoding; `None` if it does not translate it. Takes no step, sets no bits.
    #[must_use]
    pub fn translate(&self, root: PhysAddr, va: VirtAddr) -> Option<Translation> {
        let unit = self.unit.get().borrow();
        unit.translate(self.hooks(), root.0, va.0 as u64)
    }

    /// Calls `each` with every leaf that can be reached from `root`, lowest address first.
    pub fn each_leaf(&self, root: PhysAddr, mut each: impl FnMut(Translation)) {
        let mut leaves = Vec::new();
        self.unit
            .get()
            .borrow()
            .each_leaf(self.hooks(), root.0, &mut |leaf| leaves.push(leaf));
        for leaf in leaves {
            each(leaf);
        }
    }

    /// How many translations `cpu` holds.
    #[must_use]
    pub fn held(&self, cpu: CpuId) -> usize {
        self.unit.get().borrow().cpus[cpu.index()]
            .translations
            .len()
    }

    /// One access on the current CPU: translates `va` as its unit does, several steps, and gives the physical address.
    ///
    /// # Errors
    /// The fault that the CPU would take. A fault may be spurious, as on a real machine: the unit may still hold what the tables said before.
    pub fn access(&self, va: VirtAddr, access: Access) -> Result<PhysAddr, Fault> {
        self.accessing(|| {
            let cached = self.resolve(va, access)?;
            Ok(PhysAddr(cached.physical(va.0 as u64)))
        })
    }

    /// Loads 64 bits through the unit.
    ///
    /// # Errors
    /// As [`Machine::access`].
    ///
    /// # Panics
    /// If `va` is not aligned.
    pub fn read_u64(&self, va: VirtAddr, access: Access) -> Result<u64, Fault> {
        self.data(va, access, |word| word.load(Ordering::Acquire))
    }

    /// Stores 64 bits through the unit.
    ///
    /// # Errors
    /// As [`Machine::access`].
    ///
    /// # Panics
    /// If `va` is not aligned, or `access` does not store.
    pub fn write_u64(&self, va: VirtAddr, value: u64, access: Access) -> Result<(), Fault> {
        assert!(access.stores(), "{access:?} does not store");
        self.data(va, access, |word| word.store(value, Ordering::Release))
    }

    fn data<R>(
        &self,
        va: VirtAddr,
        access: Access,
        f: impl FnOnce(&AtomicU64) -> R,
    ) -> Result<R, Fault> {
        assert!(va.0.is_multiple_of(8), "{:#x} is not aligned", va.0);
        self.accessing(|| {
            let cached = self.resolve(va, access)?;
            let physical = cached.physical(va.0 as u64);
            let cpu = self.hooks().cpu().index();
            self.unit.get().borrow_mut().cpus[cpu].using = Some(cached);
            self.aside();
            self.hooks().step();
            let Some(frame) = self.hooks().frame(Pfn((physical >> SHIFT) as usize)) else {
                return self.with(|unit, _| {
                    Ok(Err(unit.fault(
                        cpu,
                        va.0 as u64,
                        access,
                        FaultKind::NoMemory,
                        0,
                    )))
                });
            };
            let offset = physical as usize & ((1 << SHIFT) - 1);
            // SAFETY: B5 of seeded's model: a frame is whole, and the offset is within it and aligned; M3: this thread is the only one,
            // and whoever else has a reference into this frame made it from a raw pointer between two steps.
            Ok(f(unsafe { frame.add(offset).cast::<AtomicU64>().as_ref() }))
        })
    }

    /// An access is not interrupted: its CPU takes interrupts before or after it.
    fn accessing<R>(&self, f: impl FnOnce() -> Result<R, Fault>) -> Result<R, Fault> {
        let hooks = self.hooks();
        self.aside();
        hooks.step();
        hooks.block();
        let cpu = hooks.cpu();
        self.unit.get().borrow_mut().cpus[cpu.index()].busy = true;
        let result = f();
        {
            let mut unit = self.unit.get().borrow_mut();
            let own = &mut unit.cpus[cpu.index()];
            (own.using, own.access_walk, own.busy) = (None, None, false);
        }
        if result.is_err() {
            self.charge(cpu, self.costs.fault);
        }
        hooks.unblock();
        result
    }

    /// The translation that the current CPU uses for `va`.
    fn resolve(&self, va: VirtAddr, access: Access) -> Result<Cached, Fault> {
        let hooks = self.hooks();
        let cpu = hooks.cpu().index();
        let va = va.0 as u64;
        let early = self.with(|unit, _| {
            let upper = unit.kernel_root.is_some();
            if !unit.arch.is_canonical(va, upper) {
                return Ok(Some(Err((FaultKind::NotCanonical, 0))));
            }
            let Some(held) = unit.held(cpu, va) else {
                return Ok(None);
            };
            let cached = unit.cpus[cpu].translations[held].clone();
            if let Some(condemned) = &cached.condemned {
                let history = unit.describe(cached.links.as_slice());
                return broken(
                    Rule::StaleUse,
                    format!("CPU {cpu} uses {cached} for {va:#x}: {condemned}{history}"),
                );
            }
            if !unit.arch.allows(cached.rights, cached.shadow, access) {
                let level = cached.links.as_slice().last().map_or(0, |l| l.level);
                return Ok(Some(Err((FaultKind::Protection, level))));
            }
            if access.stores() && !cached.dirty {
                // The unit sets the dirty bit by a walk of its own.
                unit.cpus[cpu].translations.swap_remove(held);
                return Ok(None);
            }
            unit.stats.hits += 1;
            Ok(Some(Ok(cached)))
        });
        match early {
            Some(Ok(cached)) => return Ok(cached),
            Some(Err((kind, level))) => {
                return Err(self.with(|unit, _| Ok(unit.fault(cpu, va, access, kind, level))));
            }
            None => {}
        }
        let begun = self.with(|unit, _| {
            unit.stats.walks += 1;
            let walk = unit.begin_walk(cpu, va, Some(access));
            let found = walk.is_some();
            unit.cpus[cpu].access_walk = walk;
            Ok(found)
        });
        if !begun {
            return Err(self.with(|unit, _| Ok(unit.fault(cpu, va, access, FaultKind::NoRoot, 0))));
        }
        loop {
            self.aside();
            hooks.step();
            self.charge(CpuId(cpu as u32), self.costs.walk_reference);
            let progress = self.with(|unit, hooks| {
                let Some(mut walk) = unit.cpus[cpu].access_walk.take() else {
                    return Ok(Progress::Fault(FaultKind::NoRoot, 0));
                };
                let progress = walk.advance(unit, hooks, cpu)?;
                match &progress {
                    Progress::More => unit.cpus[cpu].access_walk = Some(walk),
                    Progress::Done(cached) => unit.keep(cpu, Cached::clone(cached)),
                    Progress::Fault(..) => {}
                }
                Ok(progress)
            });
            match progress {
                Progress::More => {}
                Progress::Done(cached) => return Ok(*cached),
                Progress::Fault(kind, level) => {
                    return Err(self.with(|unit, _| Ok(unit.fault(cpu, va, access, kind, level))));
                }
            }
        }
    }
}
