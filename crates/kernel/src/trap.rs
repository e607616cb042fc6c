//! What happens on an interrupt or exception.
//!
//! First of all a section that was interrupted goes back to its start (S2): nothing here may use an array before that.

use core::sync::atomic::{AtomicPtr, Ordering};

use crate::access::{self, Point};
use crate::kernel::Kernel;
use crate::per_cpu::Area;
use crate::space::{self, ForFormat, Running};
use crate::{apic, barrier, descriptors, grace, memory, section, serial, shootdown, unit};
use flagstone_host::TableMemory;
use flagstone_pgtable::{BadAccess, FaultCode, Reach};
use flagstone_types::{PhysAddr, VirtAddr};

/// Vectors that have entries.
pub(crate) const VECTORS: usize = 48;
/// The debug trap after each instruction, where one is stepped through.
const STEP: u64 = 1;
/// The flag that asks for it.
const TRAP_FLAG: u64 = 1 << 8;
/// The timer of the local APIC.
pub(crate) const TIMER: u8 = 32;
/// A barrier of another CPU.
pub(crate) const BARRIER: u8 = 33;
/// An invalidation that another CPU asks for.
pub(crate) const SHOOTDOWN: u8 = 34;
/// What the local APIC raises when an interrupt went away; it is not acknowledged.
pub(crate) const SPURIOUS: u8 = 47;

/// What the entry saved.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Frame {
    /// R15 to R8, RDI, RSI, RBP, RBX, RDX, RCX, RAX.
    registers: [u64; 15],
    vector: u64,
    error: u64,
    rip: u64,
    cs: u64,
    flags: u64,
    rsp: u64,
    ss: u64,
}

/// Called by the timer interrupt with the number of this CPU's ticks.
type Tick = fn(u64);
static TICK: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Sets what the timer interrupt calls; `None` for nothing. Interrupts that have begun may still call what was set before.
pub(crate) fn on_tick(tick: Option<Tick>) {
    TICK.store(
        tick.map_or(core::ptr::null_mut(), |tick| tick as *mut ()),
        Ordering::Release,
    );
}

/// Called after each instruction with whether it touched a section. What it returns is run as if an interrupt had come there, and
/// stepping ends.
type Step = fn(bool) -> Option<fn()>;
static STEPPER: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Sets what the debug trap calls; `None` makes it an exception like others.
pub(crate) fn on_step(step: Option<Step>) {
    STEPPER.store(
        step.map_or(core::ptr::null_mut(), |step| step as *mut ()),
        Ordering::Release,
    );
}

/// Every interrupt and exception.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn flagstone_trap(frame: &mut Frame) {
    if frame.vector < 32 {
        return exception(frame);
    }
    let cpu = Area::current();
    if let Some(start) = section::rewound(frame.rip) {
        frame.rip = start;
        cpu.rewinds.fetch_add(1, Ordering::Relaxed);
    }
    // IF is clear (I1), so these are not disturbed.
    let depth = cpu.irq_depth.load(Ordering::Relaxed);
    cpu.irq_depth.store(depth + 1, Ordering::Relaxed);
    cpu.interrupts.store(1, Ordering::Relaxed);
    grace::note(cpu);
    match frame.vector as u8 {
        TIMER => {
            let ticks = cpu.ticks.load(Ordering::Relaxed) + 1;
            cpu.ticks.store(ticks, Ordering::Relaxed);
            apic::acknowledge();
            tick(ticks);
        }
        BARRIER => {
            apic::acknowledge();
            barrier::pass(cpu);
        }
        SHOOTDOWN => {
            apic::acknowledge();
            shootdown::answer(cpu);
        }
        SPURIOUS => {}
        vector => panic!("unexpected interrupt {vector}"),
    }
    cpu.interrupts.store(0, Ordering::Relaxed);
    cpu.irq_depth.store(depth, Ordering::Relaxed);
}

fn tick(ticks: u64) {
    let tick = TICK.load(Ordering::Acquire);
    if !tick.is_null() {
        // SAFETY: only `on_tick` stores here, and it stores functions of this type.
        let tick = unsafe { core::mem::transmute::<*mut (), Tick>(tick) };
        tick(ticks);
    }
}

impl Frame {
    /// Whether user mode was interrupted.
    const fn is_from_user(&self) -> bool {
        self.cs & 3 != 0
    }

    /// What an access that may fault wants to know and change.
    fn point(&mut self) -> Point<'_> {
        let [.., rdx, _, rax] = &mut self.registers;
        Point {
            vector: self.vector,
            code: self.error,
            rip: &mut self.rip,
            rsp: &mut self.rsp,
            rax,
            rdx,
        }
    }
}

/// An exception that was expected: user mode is left, the kernel goes on behind an access that may fault, or steps. Else the run ends.
#[cold]
fn exception(frame: &mut Frame) {
    if frame.is_from_user() {
        frame.point().leave_user(Area::current());
        frame.cs = u64::from(descriptors::CODE);
        frame.ss = u64::from(descriptors::DATA);
    } else if !frame.point().fix_up() {
        step(frame);
    }
}

/// A debug trap that was asked for, or else an exception.
fn step(frame: &mut Frame) {
    let stepper = STEPPER.load(Ordering::Acquire);
    if frame.vector != STEP || stepper.is_null() {
        unexpected(frame);
    }
    // SAFETY: only `on_step` stores here, and it stores functions of this type.
    let stepper = unsafe { core::mem::transmute::<*mut (), Step>(stepper) };
    if let Some(interrupt) = stepper(section::touches(frame.rip)) {
        frame.flags &= !TRAP_FLAG;
        frame.rip = section::rewound(frame.rip).unwrap_or(frame.rip);
        interrupt();
    }
}

/// Says what a page fault was about: its error code and the entry at every level.
struct BadAccessReport {
    address: u64,
    code: u64,
}

impl ForFormat for BadAccessReport {
    fn run<F: Running>(self) {
        let at = VirtAddr(self.address as usize);
        let code = FaultCode::from_bits_truncate(self.code as u32);
        let read = |at: PhysAddr| {
            // SAFETY: U1: a table of the active root, or memory that a table names by mistake, which is read only.
            (at.0 < memory::end()).then(|| unsafe { Kernel.load_entry(at) })
        };
        let report = BadAccess::<F>::new(unit::root(), Reach::Whole, at, code, read);
        // The run ends: locks do not matter any more.
        serial::last_line(format_args!("{report}"));
    }
}

#[cold]
fn unexpected(frame: &Frame) -> ! {
    let address = x86_64::registers::control::Cr2::read_raw();
    if frame.vector == access::PAGE_FAULT {
        space::for_running(BadAccessReport {
            address,
            code: frame.error,
        });
    }
    panic!(
        "exception {}, error {:#x}, at {:#x} (CR2 {address:#x}, RSP {:#x}, flags {:#x}, CS {:#x}, SS {:#x}, RAX {:#x})",
        frame.vector,
        frame.error,
        frame.rip,
        frame.rsp,
        frame.flags,
        frame.cs,
        frame.ss,
        frame.registers[14],
    );
}
