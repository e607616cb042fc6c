//! Call stacks of the running thread, by the unwind tables of the modules that its frames are in.
//!
//! ```text
//!   mod        the walk by rules that are known; falls back to `registers`
//!   rules      how a frame is left, in one word, and the table pc -> rule
//!   tables     reads a rule out of .eh_frame through .eh_frame_hdr (format: System V ABI, Linux Standard Base)
//!   registers  the walk with every register, by the tables alone: what few frames need, and the oracle of the other
//!   modules    which module an address is in
//!   memory     words of stacks, read only where there is memory
//! ```
//!
//! Almost every frame is left with three registers: the stack pointer, the frame pointer and the return address. What the tables say
//! of them fits in a word, so that a frame seen before costs a look into one fixed table. Nothing is allocated, no
//! lock is taken, and a walk may begin anywhere: in a signal handler, between fork and exec, on a stack that nobody told of. Code
//! without tables is left by its frame pointer. A stack that was overwritten ends the walk, never the process (P26 … P29).

mod memory;
mod modules;
mod registers;
mod rules;
mod tables;

use core::arch::asm;

use memory::Memory;
use modules::Modules;
use rules::Rule;

pub use modules::{Place, place_of};
pub use registers::Registers;

/// Fills `into` with the return addresses of the callers, innermost first, and returns how many. The first is that of the call of this
/// function. After a signal's frame comes the interrupted address itself.
#[inline(never)]
pub fn backtrace(into: &mut [usize]) -> usize {
    let here = Registers::here();
    walk(&here, into)
}

/// As [`backtrace`], by the tables alone, every time.
#[inline(never)]
pub fn backtrace_by_tables(into: &mut [usize]) -> usize {
    let here = Registers::here();
    registers::walk(&here, &mut Memory::of_stack(here.stack_pointer()), into)
}

/// Fills `into` with the return addresses of the frames above the one that `start` tells of, and returns how many.
pub fn walk(start: &Registers, into: &mut [usize]) -> usize {
    let mut memory = Memory::of_stack(start.stack_pointer());
    match by_rules(start, &mut memory, into) {
        Some(filled) => filled,
        None => registers::walk(start, &mut memory, into),
    }
}

/// How a frame is left, and where to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Frame {
    /// Where the frame goes on: a return address, or after a signal's frame the interrupted instruction.
    pc: usize,
    stack_pointer: usize,
    frame_pointer: usize,
    /// Whether `pc` is the interrupted instruction.
    is_exact: bool,
}

impl Frame {
    /// The address by which the frame's code is known: a call may be the last instruction of its function.
    fn code(&self) -> usize {
        if self.is_exact { self.pc } else { self.pc - 1 }
    }
}

/// The walk with three registers; `None` if some frame needs more.
fn by_rules(start: &Registers, memory: &mut Memory, into: &mut [usize]) -> Option<usize> {
    let mut modules = Modules::new();
    let mut frame = Frame {
        pc: start.pc(),
        stack_pointer: start.stack_pointer(),
        frame_pointer: start.frame_pointer(),
        is_exact: true,
    };
    for (filled, slot) in into.iter_mut().enumerate() {
        let rule = match modules.find(frame.code()) {
            Some(module) => rules::of(module, frame.code()),
            None => Rule::FramePointer,
        };
        match rule.leave(&frame, memory) {
            rules::Left::To(next) => frame = next,
            rules::Left::Nowhere => return Some(filled),
            rules::Left::Unknown => return None,
        }
        if !modules.is_code(frame.code()) {
            return Some(filled);
        }
        *slot = frame.pc;
    }
    Some(into.len())
}

impl Registers {
    /// Those of the function that this is inlined to.
    #[inline(always)]
    fn here() -> Self {
        let mut saved = [0usize; 8];
        // SAFETY: reads registers and stores them to the array.
        unsafe {
            asm!(
                "lea {t}, [rip]",
                "mov [{at}], {t}",
                "mov [{at} + 8], rsp",
                "mov [{at} + 16], rbp",
                "mov [{at} + 24], rbx",
                "mov [{at} + 32], r12",
                "mov [{at} + 40], r13",
                "mov [{at} + 48], r14",
                "mov [{at} + 56], r15",
                t = out(reg) _,
                at = in(reg) saved.as_mut_ptr(),
                options(nostack, preserves_flags),
            );
        }
        let [pc, rsp, rbp, rbx, r12, r13, r14, r15] = saved;
        Self::saved_by_callees(pc, rsp, rbp, rbx, [r12, r13, r14, r15])
    }
}
