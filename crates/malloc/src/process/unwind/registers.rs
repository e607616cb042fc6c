//! The walk with every register, by the tables alone.

use gimli::{
    CfaRule, Evaluation, EvaluationResult, EvaluationStorage, Expression, Location, Piece,
};
use gimli::{Register, RegisterRule, Value, X86_64};

use super::memory::Memory;
use super::modules::Modules;
use super::tables::{self, Bytes, ENCODING, Entry};

/// How many registers the tables of x86-64 speak of: sixteen, and the return address.
const COUNT: usize = 17;

const RBX: usize = 3;
const RBP: usize = 6;
const RSP: usize = 7;
const R12: usize = 12;
const PC: usize = 16;

/// Values of registers somewhere, by the numbers of the x86-64 supplement to the System V ABI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers([usize; COUNT]);

impl Registers {
    /// Those that a signal's handler was given as its third argument.
    #[must_use]
    pub fn of_context(context: &libc::ucontext_t) -> Self {
        // From the numbers of tables to those of the structure.
        let order = [
            libc::REG_RAX,
            libc::REG_RDX,
            libc::REG_RCX,
            libc::REG_RBX,
            libc::REG_RSI,
            libc::REG_RDI,
            libc::REG_RBP,
            libc::REG_RSP,
            libc::REG_R8,
            libc::REG_R9,
            libc::REG_R10,
            libc::REG_R11,
            libc::REG_R12,
            libc::REG_R13,
            libc::REG_R14,
            libc::REG_R15,
            libc::REG_RIP,
        ];
        Self(order.map(|register| context.uc_mcontext.gregs[register as usize] as usize))
    }

    pub(super) fn saved_by_callees(
        pc: usize,
        rsp: usize,
        rbp: usize,
        rbx: usize,
        r12_to_r15: [usize; 4],
    ) -> Self {
        let mut registers = [0; COUNT];
        registers[PC] = pc;
        registers[RSP] = rsp;
        registers[RBP] = rbp;
        registers[RBX] = rbx;
        registers[R12..PC].copy_from_slice(&r12_to_r15);
        Self(registers)
    }

    /// The instruction pointer.
    #[must_use]
    pub fn pc(&self) -> usize {
        self.0[PC]
    }

    /// The stack pointer.
    #[must_use]
    pub fn stack_pointer(&self) -> usize {
        self.0[RSP]
    }

    pub(super) fn frame_pointer(&self) -> usize {
        self.0[RBP]
    }

    fn of(&self, register: Register) -> Option<usize> {
        self.0.get(usize::from(register.0)).copied()
    }
}

/// Fills `into` as [`super::walk`] does.
#[cold]
#[inline(never)]
pub(super) fn walk(start: &Registers, memory: &mut Memory, into: &mut [usize]) -> usize {
    let mut modules = Modules::new();
    let mut registers = *start;
    let mut is_exact = true;
    for (filled, address) in into.iter_mut().enumerate() {
        let code = registers.pc() - usize::from(!is_exact);
        let left = match modules.find(code) {
            Some(module) => tables::look_up(module, code, |entry| {
                (leave(&registers, memory, &entry), entry.is_signal)
            }),
            None => None,
        };
        let (next, is_signal) =
            left.unwrap_or_else(|| (by_frame_pointer(&registers, memory), false));
        let Some(next) = next else { return filled };
        // Only a signal's frame may lead to another stack.
        if next.pc() <= 4096 || !is_signal && next.stack_pointer() <= registers.stack_pointer() {
            return filled;
        }
        if !modules.is_code(next.pc() - usize::from(!is_signal)) {
            return filled;
        }
        (registers, is_exact) = (next, is_signal);
        *address = registers.pc();
    }
    into.len()
}

fn leave(registers: &Registers, memory: &mut Memory, entry: &Entry<'_>) -> Option<Registers> {
    let canonical = match entry.row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => registers
            .of(*register)?
            .wrapping_add_signed(*offset as isize),
        CfaRule::Expression(expression) => {
            let expression = expression.get(entry.frames).ok()?;
            evaluate(expression, registers, memory, None)?
        }
    };
    let mut next = *registers;
    next.0[RSP] = canonical;
    next.0[PC] = 0;
    for (register, rule) in entry.row.registers() {
        let at = |offset: i64| canonical.wrapping_add_signed(offset as isize);
        let value = match rule {
            RegisterRule::Undefined => Some(0),
            RegisterRule::SameValue => registers.of(*register),
            RegisterRule::Offset(offset) => memory.word(at(*offset)),
            RegisterRule::ValOffset(offset) => Some(at(*offset)),
            RegisterRule::Register(other) => registers.of(*other),
            RegisterRule::Expression(expression) => {
                let expression = expression.get(entry.frames).ok()?;
                evaluate(expression, registers, memory, Some(canonical))
                    .and_then(|place| memory.word(place))
            }
            RegisterRule::ValExpression(expression) => {
                let expression = expression.get(entry.frames).ok()?;
                evaluate(expression, registers, memory, Some(canonical))
            }
            RegisterRule::Constant(value) => Some(*value as usize),
            _ => None,
        };
        if let Some(slot) = next.0.get_mut(usize::from(register.0)) {
            *slot = value?;
        }
    }
    Some(next)
}

fn by_frame_pointer(registers: &Registers, memory: &mut Memory) -> Option<Registers> {
    let frame = super::Frame {
        pc: registers.pc(),
        stack_pointer: registers.stack_pointer(),
        frame_pointer: registers.frame_pointer(),
        is_exact: false,
    };
    match super::Rule::FramePointer.leave(&frame, memory) {
        super::rules::Left::To(next) => {
            let mut left = *registers;
            left.0[PC] = next.pc;
            left.0[RSP] = next.stack_pointer;
            left.0[RBP] = next.frame_pointer;
            Some(left)
        }
        _ => None,
    }
}

struct Room;

impl EvaluationStorage<Bytes> for Room {
    type Stack = [Value; 16];
    type ExpressionStack = [(Bytes, Bytes); 2];
    type Result = [Piece<Bytes>; 2];
}

/// The value of an expression; `first` is on its stack at the beginning.
fn evaluate(
    expression: Expression<Bytes>,
    registers: &Registers,
    memory: &mut Memory,
    first: Option<usize>,
) -> Option<usize> {
    let mut evaluation = Evaluation::<_, Room>::new_in(expression.0, ENCODING);
    evaluation.set_max_iterations(1000);
    if let Some(first) = first {
        evaluation.set_initial_value(first as u64);
    }
    let mut step = evaluation.evaluate().ok()?;
    loop {
        step = match step {
            EvaluationResult::Complete => break,
            EvaluationResult::RequiresRegister { register, .. } => {
                let value = Value::Generic(registers.of(register)? as u64);
                evaluation.resume_with_register(value).ok()?
            }
            EvaluationResult::RequiresMemory {
                address, size: 8, ..
            } => {
                let value = Value::Generic(memory.word(address as usize)? as u64);
                evaluation.resume_with_memory(value).ok()?
            }
            EvaluationResult::RequiresCallFrameCfa => {
                evaluation.resume_with_call_frame_cfa(first? as u64).ok()?
            }
            _ => return None,
        };
    }
    match evaluation.as_result() {
        [
            Piece {
                location: Location::Address { address },
                ..
            },
        ] => Some(*address as usize),
        _ => None,
    }
}

#[allow(dead_code, reason = "names the register that the constant stands for")]
const _: () = assert!(X86_64::RA.0 as usize == PC && X86_64::RSP.0 as usize == RSP);
