//! Descriptor tables: segments, stacks for interrupts (I1), gates.
//!
//! Each CPU has its own segments and task state in its area; the gates are the same for all.

use core::alloc::Layout;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::access;
use crate::kernel::Kernel;
use crate::per_cpu::Area;
use crate::trap::VECTORS;
use flagstone_host::PageMap;
use flagstone_types::AllocError;
use x86_64::VirtAddr;
use x86_64::instructions::tables::{lgdt, lidt, load_tss};
use x86_64::registers::model_specific::GsBase;
use x86_64::registers::segmentation::{CS, DS, ES, FS, GS, SS, Segment};
use x86_64::structures::DescriptorTablePointer;
use x86_64::structures::gdt::SegmentSelector;
use x86_64::structures::tss::TaskStateSegment;

/// Bytes of a stack of the interrupt stack table.
pub(crate) const STACK: usize = 32 << 10;
/// Stacks: for interrupts, for exceptions, for those that may come at any moment.
pub(crate) const STACKS: usize = 3;
/// Bytes of the boot pool that the stacks of one CPU need.
pub(crate) const STACKS_BYTES: usize = STACK * STACKS;

/// Selectors: code and data of the kernel, data and code of user mode with its privilege level.
pub(crate) const CODE: u16 = 0x08;
pub(crate) const DATA: u16 = 0x10;
pub(crate) const USER_DATA: u16 = 0x2b;
pub(crate) const USER_CODE: u16 = 0x33;
const TASK: u16 = 0x18;

/// The descriptors of one CPU.
#[derive(Debug)]
#[repr(C, align(16))]
pub(crate) struct Descriptors {
    segments: [u64; 7],
    task: TaskStateSegment,
}

impl Descriptors {
    pub(crate) const fn new() -> Self {
        Self {
            // Code and data of 64 bits, room for the task's two words, then data and code of user mode.
            segments: [
                0,
                0x00af_9b00_0000_ffff,
                0x00cf_9300_0000_ffff,
                0,
                0,
                0x00cf_f300_0000_ffff,
                0x00af_fb00_0000_ffff,
            ],
            task: TaskStateSegment::new(),
        }
    }

    /// Stacks and the task's descriptor. Called by the first CPU for each.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`].
    pub(crate) fn make(&mut self) -> Result<(), AllocError> {
        let layout =
            Layout::from_size_align(STACK, 4096).map_err(|_| AllocError::InvalidArgument)?;
        for n in 0..STACKS {
            self.set_stack(n, Kernel.boot_alloc(layout)?.addr().get() + STACK);
        }
        self.set_task(core::ptr::from_ref(self).addr());
        Ok(())
    }

    /// The end of stack `n` of the table.
    pub(crate) fn stack_end(&self, n: usize) -> usize {
        self.task.interrupt_stack_table[n].as_u64() as usize
    }

    /// Where stack `n` of the table ends.
    pub(crate) fn set_stack(&mut self, n: usize, end: usize) {
        self.task.interrupt_stack_table[n] = VirtAddr::new(end as u64);
    }

    /// Where the stack ends that user mode is left on without one of the table.
    pub(crate) fn set_first_stack(&mut self, end: usize) {
        self.task.privilege_stack_table[0] = VirtAddr::new(end as u64);
    }

    /// Describes the task state, which the CPU finds with these descriptors at `at`.
    pub(crate) fn set_task(&mut self, at: usize) {
        /// Present, task state of 64 bits that nobody uses.
        const KIND: u64 = 0x89 << 40;
        let base = (at + offset_of!(Self, task)) as u64;
        let limit = size_of::<TaskStateSegment>() as u64 - 1;
        self.segments[3] = limit | (base & 0xff_ffff) << 16 | KIND | (base >> 24 & 0xff) << 56;
        self.segments[4] = base >> 32;
    }
}

/// The gates, two words each, and nothing else in their page.
#[repr(C, align(4096))]
struct Gates([AtomicU64; 2 * VECTORS]);

const GATES_BYTES: usize = 16 * VECTORS;
static GATES: Gates = Gates([const { AtomicU64::new(0) }; 2 * VECTORS]);

/// Where the gates are in the image.
pub(crate) fn gates_address() -> usize {
    (&raw const GATES).addr()
}

/// Which stack of the table a vector enters on, from 1.
const fn stack_of(vector: usize) -> u64 {
    match vector {
        2 | 8 | 18 => 3,
        0..32 => 2,
        _ => 1,
    }
}

/// Fills the gates with the addresses of the entries. Called by the first CPU.
pub(crate) fn make_gates(entries: &[u64; VECTORS]) {
    /// Present, interrupt gate.
    const KIND: u64 = 0x8e << 40;
    /// User mode may raise it.
    const FOR_USER: u64 = 0x60 << 40;
    for (vector, &entry) in entries.iter().enumerate() {
        let kind = if vector as u64 == access::BREAKPOINT {
            KIND | FOR_USER
        } else {
            KIND
        };
        let low = entry & 0xffff
            | u64::from(CODE) << 16
            | stack_of(vector) << 32
            | kind
            | (entry >> 16 & 0xffff) << 48;
        GATES.0[2 * vector].store(low, Ordering::Relaxed);
        GATES.0[2 * vector + 1].store(entry >> 32, Ordering::Relaxed);
    }
}

/// Loads this CPU's tables.
///
/// # Safety
/// Once on each CPU, with interrupts blocked; `area` is its area, whose descriptors were made, and the gates too.
pub(crate) unsafe fn load(area: &'static Area) {
    let descriptors = area.descriptors.get();
    // SAFETY: P1, P3: the tables live for ever and are this CPU's; the selectors name the segments of
    // `Descriptors::new`; loading a task marks it busy in our own memory.
    unsafe {
        let segments = &raw const (*descriptors).segments;
        lgdt(&pointer(segments.addr(), SEGMENTS_BYTES));
        CS::set_reg(SegmentSelector(CODE));
        for data in [SS::set_reg, DS::set_reg, ES::set_reg] {
            data(SegmentSelector(DATA));
        }
        // Loading these changes their bases; entering user mode leaves a null selector alone.
        let base = GsBase::read();
        FS::set_reg(SegmentSelector(0));
        GS::set_reg(SegmentSelector(0));
        GsBase::write(base);
        lidt(&pointer(gates_address(), GATES_BYTES));
        load_tss(SegmentSelector(TASK));
    }
}

/// Loads this CPU's tables anew, which are mapped at `at` and `gates` too.
///
/// # Safety
/// With interrupts blocked; `descriptors` were made for this CPU to be used at `at`, and both stay for ever.
pub(crate) unsafe fn reload(descriptors: *mut Descriptors, at: usize, gates: usize) {
    let offset = offset_of!(Descriptors, segments);
    // SAFETY: the caller's promise. Loading the task marks it busy, so that is done where it can be written; segments are
    // as they were.
    unsafe {
        lgdt(&pointer(descriptors.addr() + offset, SEGMENTS_BYTES));
        load_tss(SegmentSelector(TASK));
        lgdt(&pointer(at + offset, SEGMENTS_BYTES));
        lidt(&pointer(gates, GATES_BYTES));
    }
}

const SEGMENTS_BYTES: usize = 7 * size_of::<u64>();

fn pointer(base: usize, bytes: usize) -> DescriptorTablePointer {
    DescriptorTablePointer {
        limit: bytes as u16 - 1,
        base: VirtAddr::new(base as u64),
    }
}
