//! Rules out of a module's `.eh_frame`, found through `.eh_frame_hdr`. `gimli` reads the format; nothing is allocated.

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, EndianSlice, Expression, LittleEndian, Operation,
    Register, RegisterRule, UnwindContext, UnwindContextStorage, UnwindSection as _,
    UnwindTableRow, X86_64,
};

use super::modules::Module;
use super::rules::{Base, Rule, Saved};

pub(super) type Bytes = EndianSlice<'static, LittleEndian>;
pub(super) type Row = UnwindTableRow<usize, Storage>;

/// The room for reading one row: x86-64 has 17 registers that tables speak of, and few functions save the state twice.
#[derive(Debug)]
pub(super) struct Storage;

impl UnwindContextStorage<usize> for Storage {
    type Rules = [(Register, RegisterRule<usize>); 20];
    type Stack = [UnwindTableRow<usize, Self>; 5];
}

/// What the tables say of one address.
pub(super) struct Entry<'a> {
    pub(super) row: &'a Row,
    pub(super) frames: &'a EhFrame<Bytes>,
    /// Whether this is the code that a signal handler returns to.
    pub(super) is_signal: bool,
}

/// Calls `then` with what the tables of `module` say of the code at `address`; `None` if they say nothing.
#[inline(never)]
pub(super) fn look_up<R>(
    module: &Module,
    address: usize,
    then: impl FnOnce(Entry<'_>) -> R,
) -> Option<R> {
    if module.table == 0 {
        return None;
    }
    let header = module.bytes_from(module.table)?;
    let bases = BaseAddresses::default().set_eh_frame_hdr(module.table as u64);
    let header = EhFrameHdr::new(header, LittleEndian)
        .parse(&bases, 8)
        .ok()?;
    let frames_at = header.eh_frame_ptr().direct().ok()?;
    let bases = bases.set_eh_frame(frames_at);
    let frames = EhFrame::new(module.bytes_from(frames_at as usize)?, LittleEndian);
    let table = header.table()?;
    let found = table.lookup(address as u64, &bases).ok()?;
    // A damaged table may lead below the section.
    if found.direct().ok()? < frames_at {
        return None;
    }
    let offset = table.pointer_to_offset(found).ok()?;
    let fde = frames
        .fde_from_offset(&bases, offset, EhFrame::cie_from_offset)
        .ok()?;
    if !fde.contains(address as u64) {
        return None;
    }
    let mut context = UnwindContext::<usize, Storage>::new_in();
    let row = fde
        .unwind_info_for_address(&frames, &bases, &mut context, address as u64)
        .ok()?;
    Some(then(Entry {
        row,
        frames: &frames,
        is_signal: fde.is_signal_trampoline(),
    }))
}

/// The rule for the code at `address`: the part of the tables that concerns three registers.
pub(super) fn rule(module: &Module, address: usize) -> Rule {
    look_up(module, address, |entry| entry.rule().unwrap_or(Rule::Other))
        .unwrap_or(Rule::FramePointer)
}

impl Entry<'_> {
    /// `None` if it takes more than three registers.
    fn rule(&self) -> Option<Rule> {
        if self.row.register(X86_64::RA) == Some(RegisterRule::Undefined) {
            return Some(Rule::End);
        }
        if self.is_signal {
            return self.is_signal_of_kernel().then_some(Rule::Signal);
        }
        if self.row.register(X86_64::RA) != Some(RegisterRule::Offset(-8))
            || self.row.register(X86_64::RSP).is_some()
        {
            return None;
        }
        let (base, offset) = match self.row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                let base = match *register {
                    X86_64::RSP => Base::Stack,
                    X86_64::RBP => Base::Frame,
                    _ => return None,
                };
                (base, *offset)
            }
            // What gcc writes for functions that align their stack.
            CfaRule::Expression(expression) => {
                match self.operations(expression.get(self.frames).ok()?)? {
                    [Some(at), Some(Operation::Deref { .. })] => {
                        (Base::WordAtFrame, from_frame_pointer(&at)?)
                    }
                    _ => return None,
                }
            }
        };
        let saved = match self.row.register(X86_64::RBP) {
            None | Some(RegisterRule::SameValue) => Saved::Not,
            Some(RegisterRule::Offset(place)) => Saved::AtCanonical(i32::try_from(place).ok()?),
            Some(RegisterRule::Expression(expression)) => {
                match self.operations(expression.get(self.frames).ok()?)? {
                    [Some(at), None] => {
                        Saved::AtFramePointer(i32::try_from(from_frame_pointer(&at)?).ok()?)
                    }
                    _ => return None,
                }
            }
            Some(_) => return None,
        };
        Some(Rule::Call {
            base,
            offset: i32::try_from(offset).ok()?,
            saved,
        })
    }

    /// Whether the stack pointer is where the kernel puts it in a signal's frame; then the other registers are too.
    fn is_signal_of_kernel(&self) -> bool {
        let CfaRule::Expression(expression) = self.row.cfa() else {
            return false;
        };
        let Ok(expression) = expression.get(self.frames) else {
            return false;
        };
        matches!(
            self.operations(expression),
            Some([
                Some(Operation::RegisterOffset {
                    register: X86_64::RSP,
                    offset: 160,
                    ..
                }),
                Some(Operation::Deref { .. }),
            ])
        )
    }

    /// The operations of a short expression; `None` if it is longer than two.
    fn operations(&self, expression: Expression<Bytes>) -> Option<[Option<Operation<Bytes>>; 2]> {
        let mut operations = expression.operations(ENCODING);
        let mut next = || operations.next().ok();
        let first = [next()?, next()?];
        next()?.is_none().then_some(first)
    }
}

pub(super) const ENCODING: gimli::Encoding = gimli::Encoding {
    address_size: 8,
    format: gimli::Format::Dwarf32,
    version: 5,
};

fn from_frame_pointer(operation: &Operation<Bytes>) -> Option<i64> {
    match operation {
        Operation::RegisterOffset {
            register: X86_64::RBP,
            offset,
            ..
        } => Some(*offset),
        _ => None,
    }
}
