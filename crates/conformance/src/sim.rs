//! The suite on simulated machines: a machine for each seed, with every ability that an architecture's machines may have or lack.
//!
//! A run is a function of [`Setup`] and of what is run, so that a seed replays it. Machines that failed are leaked: their tasks are in the middle of anything.

use crate::op::{Draw, Mix, Op, workload};
use crate::platform::{Mapped, Platform, Refusal, Seen, Table, Touch, Who};
use crate::workload::{Tally, run_workload};
use crate::{Outcome, run_case};
use core::any::Any;
use core::fmt;
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicPtr, AtomicU16, AtomicU64, Ordering};
use flagstone_frames::{Frames, PageBlock};
use flagstone_host::{Asid, Cpus, Grace, MmuCaps, PhysMem};
use flagstone_pgtable::format::{Arch, Format, Level};
use flagstone_pgtable::{Error, PageTable, Params, Reach, VirtRange, format};
use flagstone_sim::{Access, FaultKind, Kind, Machine, Rights, task};
use flagstone_types::{Bytes, Gfp, Nid, Order, Pfn, PfnRange, PhysAddr, VirtAddr};
use std::boxed::Box;
use std::format;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::string::{String, ToString};
use std::vec::Vec;

/// What is special about a machine's unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Nothing.
    Usual,
    /// It sets neither accessed nor dirty bits: software does, at faults.
    Software,
    /// It sets accessed bits, and software the dirty ones.
    HalfSoftware,
    /// A hypervisor writes all entries but those of pages; no huge leaves, and no accessed bits of tables.
    Paravirtual,
    /// It may set the dirty bit of an entry that is no longer present.
    KnightsLanding,
    /// It has no huge leaves.
    Plain,
}

impl Variant {
    /// Every variant.
    pub const ALL: [Self; 6] = [
        Self::Usual,
        Self::Software,
        Self::HalfSoftware,
        Self::Paravirtual,
        Self::KnightsLanding,
        Self::Plain,
    ];

    /// What tools call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Usual => "usual",
            Self::Software => "software",
            Self::HalfSoftware => "half-software",
            Self::Paravirtual => "paravirtual",
            Self::KnightsLanding => "knights-landing",
            Self::Plain => "plain",
        }
    }

    /// The variant with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|variant| variant.name() == name)
    }

    /// Whether there are such machines of an architecture.
    #[must_use]
    pub fn exists(self, arch: Arch) -> bool {
        let x86_64 = matches!(arch, Arch::X86_64 | Arch::X86_64La57);
        match self {
            Self::Usual | Self::Plain => true,
            Self::Software => !x86_64 && arch != Arch::X86Pae,
            Self::HalfSoftware => matches!(arch, Arch::Arm64K4 | Arch::Arm64K16 | Arch::Arm64K64),
            Self::Paravirtual => x86_64,
            Self::KnightsLanding => arch == Arch::X86_64,
        }
    }

    fn apply(self, caps: &mut MmuCaps) {
        match self {
            Self::Usual => {}
            Self::Software => {
                (caps.accessed, caps.accessed_table, caps.dirty) = (false, false, false);
            }
            Self::HalfSoftware => caps.dirty = false,
            // Its units could have huge leaves; the library must not use them.
            Self::Paravirtual => (caps.paravirtual, caps.accessed_table) = (true, false),
            // The processors with the erratum have no shadow stacks.
            Self::KnightsLanding => (caps.stray_dirty, caps.shadow_stack) = (true, false),
            Self::Plain => (caps.huge_pmd, caps.huge_pud) = (false, false),
        }
    }
}

/// A machine to run on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The format that its units run.
    pub arch: Arch,
    /// What is special about it.
    pub variant: Variant,
    /// How many CPUs, 1 to 64.
    pub cpus: usize,
    /// The seed of every choice.
    pub seed: u64,
    /// The command that replays the run; the environment variable of tests if there is none.
    pub replay: Option<String>,
}

impl Setup {
    /// An ordinary machine.
    #[must_use]
    pub const fn new(arch: Arch, cpus: usize, seed: u64) -> Self {
        Self {
            arch,
            variant: Variant::Usual,
            cpus,
            seed,
            replay: None,
        }
    }

    /// A machine that is special.
    #[must_use]
    pub fn variant(mut self, variant: Variant) -> Self {
        self.variant = variant;
        self
    }
}

/// Something was found wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// What it was, with history and replay where there are.
    pub text: String,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl core::error::Error for Failed {}

/// Largest blocks of frames are small: the suite needs single ones.
const ORDER: u32 = 4;

/// Where memory for huge leaves begins: there is none, and nothing but accesses through the unit goes there.
const NOWHERE: u64 = 1 << 32;

type Sim<const SHIFT: u32> = Machine<SHIFT, ORDER>;

/// A simulated machine as a platform.
struct Simulated<'r, 'm, F: Format, const SHIFT: u32> {
    machine: &'m Sim<SHIFT>,
    frames: &'r Frames<&'m Sim<SHIFT>>,
    /// What CPUs translate by that are in no table of the suite.
    idle: PageTable<'r, &'m Sim<SHIFT>, F>,
    /// Frames that are there, and the first byte of the first one.
    memory: PfnRange,
    base: AtomicPtr<u8>,
    next_asid: AtomicU16,
    next_block: AtomicU64,
    drawn: AtomicU64,
    free: usize,
}

fn params(asid: u16) -> Params {
    Params {
        asid: Some(Asid(asid)),
        reach: Reach::Whole,
        gfp: Gfp::NOWAIT | Gfp::NOWARN,
    }
}

impl<'r, 'm, F: Format, const SHIFT: u32> Simulated<'r, 'm, F, SHIFT> {
    fn new(machine: &'m Sim<SHIFT>, frames: &'r Frames<&'m Sim<SHIFT>>) -> Self {
        frames.set_min_free(Some(0));
        let idle = PageTable::new(frames, params(1)).expect("memory for an idle table");
        frames.drain_page_lists();
        let first = machine.nth_frame(0);
        Self {
            machine,
            frames,
            idle,
            memory: PfnRange::new(first, frames.managed_count(Nid(0))),
            base: AtomicPtr::new(machine.frame_ptr(first).as_ptr()),
            next_asid: AtomicU16::new(2),
            next_block: AtomicU64::new(NOWHERE),
            drawn: AtomicU64::new(0),
            free: frames.free_count(Nid(0)),
        }
    }

    fn access(&self, who: Who, kind: Kind) -> Access {
        match who {
            Who::User => Access::user(kind),
            Who::Kernel => Access::kernel(kind),
        }
    }
}

// SAFETY: P1: single frames come from the allocator and go back to it once; addresses from `NOWHERE` on are handed out once and have no memory.
unsafe impl<'m, F: Format, const SHIFT: u32> Platform for Simulated<'_, 'm, F, SHIFT> {
    type Host = &'m Sim<SHIFT>;
    type Format = F;

    fn frames(&self) -> &Frames<Self::Host> {
        self.frames
    }

    fn cpus(&self) -> usize {
        self.machine.possible_cpus() as usize
    }

    fn run(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        let tasks = (0..count).map(|cpu| task(move |_| work(cpu))).collect();
        if let Err(failure) = self.machine.try_run(tasks) {
            panic!("{failure}");
        }
    }

    fn new_table(&self) -> Result<Table<'_, Self>, Error> {
        let asid = self.next_asid.fetch_add(1, Ordering::Relaxed);
        PageTable::new(self.frames, params(asid))
    }

    fn window(&self) -> VirtAddr {
        VirtAddr(1 << F::shift(Level::PUD))
    }

    fn enter(&self, table: &Table<'_, Self>) {
        // SAFETY: tasks stay on their CPUs, and a table is dropped when no CPU is in its set.
        unsafe { table.activate(self.machine.current_cpu()) };
    }

    fn leave(&self, table: &Table<'_, Self>) {
        let cpu = self.machine.current_cpu();
        // SAFETY: T6 of the host's model: another table is active; CPUs are switched off before that is dropped.
        unsafe {
            self.idle.activate(cpu);
            table.leave(cpu);
        }
    }

    fn touch(&self, at: VirtAddr, who: Who, touch: Touch) -> Result<Seen, Refusal> {
        let (kind, value) = match touch {
            Touch::Read => (Kind::Read, None),
            Touch::Exec => (Kind::Exec, None),
            Touch::Write(value) => (Kind::Write, Some(value)),
            Touch::Push(_) if !self.machine.caps().shadow_stack => return Err(Refusal::Impossible),
            Touch::Push(value) => (Kind::ShadowWrite, Some(value)),
        };
        let access = self.access(who, kind);
        let result = match value {
            None => self.machine.read_u64(at, access).map(Some),
            Some(value) => self.machine.write_u64(at, value, access).map(|()| None),
        };
        let result = match result {
            Ok(word) => Ok(Seen { at: None, word }),
            Err(fault) if fault.kind == FaultKind::NoMemory => {
                self.machine.access(at, access).map(|led| Seen {
                    at: Some(led),
                    word: None,
                })
            }
            Err(fault) => Err(fault),
        };
        result.map_err(|fault| match fault.kind {
            FaultKind::NotPresent => Refusal::Missing,
            FaultKind::Protection => Refusal::Denied,
            FaultKind::NotAccessed | FaultKind::NotDirty => Refusal::NotNoted,
            _ => panic!("{fault}"),
        })
    }

    fn alloc(&self, level: Level) -> Option<PhysAddr> {
        if level == Level::PTE {
            let gfp = Gfp::NOWAIT | Gfp::NOWARN;
            let block = self.frames.alloc_pages(gfp, Order::ZERO, None).ok()?;
            let (pfn, _) = block.into_raw();
            return Some(PhysAddr((pfn.0 as u64) << SHIFT));
        }
        let size = 1u64 << F::shift(level);
        let bits = F::PHYS_BITS.min(u32::from(self.machine.caps().phys_bits));
        let block = self
            .next_block
            .load(Ordering::Relaxed)
            .next_multiple_of(size);
        if block + size > 1 << bits {
            return None;
        }
        self.next_block.store(block + size, Ordering::Relaxed);
        Some(PhysAddr(block))
    }

    fn free(&self, at: PhysAddr, level: Level) {
        if level == Level::PTE {
            let pfn = Pfn((at.0 >> SHIFT) as usize);
            // SAFETY: F1 of frames' model: `alloc` gave the block up, and P1 gives it back once.
            self.frames
                .free_pages(unsafe { PageBlock::from_raw(pfn, Order::ZERO) });
        }
    }

    fn word(&self, at: PhysAddr) -> Option<&AtomicU64> {
        let start = (self.memory.start.0 as u64) << SHIFT;
        let offset = at.0.wrapping_sub(start);
        if offset >= (self.memory.pages as u64) << SHIFT {
            return None;
        }
        // SAFETY: M1 of the host's model: memory of one node without gaps has one provenance and is linear, and this is within it; taking
        // the address takes no step. Accesses are atomic, and the machine is in one thread.
        Some(unsafe {
            let base = self.base.load(Ordering::Relaxed);
            AtomicU64::from_ptr(base.add(offset as usize).cast())
        })
    }

    fn released(&self, at: PhysAddr, bytes: Bytes) {
        let first = Pfn((at.0 >> SHIFT) as usize);
        self.machine
            .frame_freed(PfnRange::new(first, bytes.0 >> SHIFT));
    }

    fn check_settled(&self, table: &Table<'_, Self>, range: VirtRange) {
        let end = VirtAddr(range.start.0 + range.len.0);
        if let Some(asid) = table.asid() {
            self.machine.check_settled(asid, range.start, end);
        }
    }

    fn check_all_settled(&self, table: &Table<'_, Self>) {
        if let Some(asid) = table.asid() {
            let end = VirtAddr(usize::MAX >> 1);
            self.machine.check_settled(asid, VirtAddr(0), end);
            self.machine.check_tables_settled(asid);
        }
    }

    fn ask_use(&self, asked: bool) {
        self.machine.ask_use(asked);
    }

    fn each_leaf(&self, table: &Table<'_, Self>, each: &mut dyn FnMut(Mapped)) -> bool {
        self.machine.each_leaf(table.root(), |leaf| {
            each(Mapped {
                va: leaf.va,
                at: leaf.at,
                bytes: Bytes(1 << leaf.shift),
                user_writes: leaf.rights.contains(Rights::WRITE | Rights::USER),
            });
        });
        true
    }

    fn check_memory(&self) {
        self.machine.synchronize();
        self.frames.drain_page_lists();
        if let Err(wrong) = self.frames.validate() {
            panic!("{wrong:?}");
        }
        let free = self.frames.free_count(Nid(0));
        assert_eq!(free, self.free, "pages were lost");
        if let Err(wrong) = self.machine.inner().check_memory() {
            panic!("{wrong:?}");
        }
    }

    fn random(&self) -> u64 {
        let n = self.drawn.fetch_add(1, Ordering::Relaxed);
        Draw::new(self.machine.seed() ^ n << 32 ^ 0x7375_6974).bits()
    }

    fn may_exhaust(&self) -> bool {
        true
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or(panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without text").to_string()
}

/// What is done on a platform.
trait Work {
    type Out;
    fn on<P: Platform>(self, platform: &P) -> Self::Out;
}

fn build<F: Format, const SHIFT: u32>(setup: &Setup) -> Box<Sim<SHIFT>> {
    let arch = flagstone_sim::Arch::named(F::NAME).expect("the simulator has every format");
    let pages = if SHIFT == 12 { 192 } else { 128 } + 8 * setup.cpus;
    let mut builder = Machine::builder(arch)
        .seed(setup.seed)
        .cpus(setup.cpus)
        .memory(pages.next_multiple_of(1 << ORDER))
        .caps(|caps| setup.variant.apply(caps));
    if let Some(replay) = &setup.replay {
        builder = builder.replay(replay.clone());
    }
    Box::new(builder.build())
}

fn on_machine<F: Format, const SHIFT: u32, W: Work>(
    setup: &Setup,
    work: W,
) -> Result<W::Out, Failed> {
    let machine = ManuallyDrop::new(build::<F, SHIFT>(setup));
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let host: &Sim<SHIFT> = &machine;
        let frames = Frames::new(host).expect("room for the allocator");
        let platform = ManuallyDrop::new(Simulated::<F, SHIFT>::new(host, &frames));
        let out = work.on(&*platform);
        machine.reset_units();
        platform.check_memory();
        for cpu in 0..setup.cpus {
            // SAFETY: T6 of the host's model: every CPU is switched off.
            unsafe { platform.idle.leave(flagstone_types::CpuId(cpu as u32)) };
        }
        drop(ManuallyDrop::into_inner(platform));
        out
    }));
    match outcome {
        Ok(out) => {
            drop(ManuallyDrop::into_inner(machine));
            Ok(out)
        }
        Err(panic) => {
            let text = message(&*panic);
            let replay = match &setup.replay {
                Some(replay) if !text.contains(replay.as_str()) => format!("\nreplay: {replay}"),
                _ => String::new(),
            };
            let Setup {
                arch,
                variant,
                cpus,
                seed,
                ..
            } = setup;
            let variant = variant.name();
            let text = format!("{arch} ({variant}), {cpus} CPUs, seed {seed:#x}: {text}{replay}");
            Err(Failed { text })
        }
    }
}

fn on<W: Work>(setup: &Setup, work: W) -> Result<W::Out, Failed> {
    match setup.arch {
        Arch::X86_64 => on_machine::<format::X86_64, 12, W>(setup, work),
        Arch::X86_64La57 => on_machine::<format::X86_64La57, 12, W>(setup, work),
        Arch::X86Pae => on_machine::<format::X86Pae, 12, W>(setup, work),
        Arch::Arm64K4 => on_machine::<format::Arm64K4, 12, W>(setup, work),
        Arch::Arm64K16 => on_machine::<format::Arm64K16, 14, W>(setup, work),
        Arch::Arm64K64 => on_machine::<format::Arm64K64, 16, W>(setup, work),
        Arch::Ppc64K4 => on_machine::<format::Ppc64K4, 12, W>(setup, work),
        Arch::Ppc64K64 => on_machine::<format::Ppc64K64, 16, W>(setup, work),
        Arch::Riscv64Sv39 => on_machine::<format::Riscv64Sv39, 12, W>(setup, work),
        Arch::Riscv64Sv48 => on_machine::<format::Riscv64Sv48, 12, W>(setup, work),
    }
}

struct RunCase<'n>(&'n str);

impl Work for RunCase<'_> {
    type Out = Option<Outcome>;
    fn on<P: Platform>(self, platform: &P) -> Option<Outcome> {
        run_case(self.0, platform)
    }
}

struct RunWorkload<'w>(&'w [Vec<Op>]);

impl Work for RunWorkload<'_> {
    type Out = Tally;
    fn on<P: Platform>(self, platform: &P) -> Tally {
        run_workload(platform, self.0).expect("memory for a page table")
    }
}

/// Runs the case of this name on a simulated machine; `None` if there is no such case.
///
/// # Errors
/// What was found wrong.
pub fn case(setup: &Setup, name: &str) -> Result<Option<Outcome>, Failed> {
    on(setup, RunCase(name))
}

/// Runs a workload on a simulated machine, one list of operations for each of its CPUs.
///
/// # Errors
/// What was found wrong.
pub fn run(setup: &Setup, workload: &[Vec<Op>]) -> Result<Tally, Failed> {
    on(setup, RunWorkload(workload))
}

/// Draws a workload from the machine's seed, `each` operations for each CPU, and runs it.
///
/// # Errors
/// What was found wrong.
pub fn random(setup: &Setup, mix: Mix, each: usize) -> Result<Tally, Failed> {
    run(setup, &workload(setup.seed, mix, setup.cpus, each))
}

/// Draws a workload as [`random`] does; if it fails, makes it as small as `limit` runs allow, and gives what is left and how that fails. `None` if it does not fail.
#[must_use]
pub fn shrink(
    setup: &Setup,
    mix: Mix,
    each: usize,
    limit: usize,
) -> Option<flagstone_sim::Shrunk<Op>> {
    let drawn = workload(setup.seed, mix, setup.cpus, each);
    let seeds: Vec<u64> = (0..8).map(|n| setup.seed.wrapping_add(n)).collect();
    flagstone_sim::shrink(drawn, &seeds, limit, |workload, seed| {
        let setup = Setup {
            seed,
            ..setup.clone()
        };
        run(&setup, workload).err().map(|failed| failed.text)
    })
}
