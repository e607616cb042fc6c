//! How a frame is left, in one word, and the table of the rules that were met.
//!
//! The table is a fixed array of words, each written whole: a name of the code address and its rule. Writers overwrite what was there. The
//! name and the place in the array together are the module's number and the offset in the module, all 39 bits of
//! them (the mixing can be undone), so an entry is never taken for another's (P28).

use core::sync::atomic::{AtomicU64, Ordering};

use super::Frame;
use super::memory::Memory;
use super::modules::Module;
use super::tables;

/// Where a frame's canonical address (that of the stack before the call) is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    /// The stack pointer.
    Stack,
    /// The frame pointer.
    Frame,
    /// In the word that the frame pointer and the offset lead to.
    WordAtFrame,
}

/// Where the caller's frame pointer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Saved {
    /// Still in its register.
    Not,
    /// At this distance from the canonical address, in bytes.
    AtCanonical(i32),
    /// At this distance from the frame pointer, in bytes.
    AtFramePointer(i32),
}

/// How a frame is left. The return address is below the canonical address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// The canonical address, and the caller's frame pointer.
    Call {
        base: Base,
        offset: i32,
        saved: Saved,
    },
    /// The registers are where the kernel stored them for a signal.
    Signal,
    /// There are no tables: as code with a frame pointer is left.
    FramePointer,
    /// The thread begins here.
    End,
    /// By registers that are not followed here.
    Other,
}

/// Where the walk stands after a frame.
pub(super) enum Left {
    To(Frame),
    Nowhere,
    /// More registers are needed.
    Unknown,
}

/// Words of the kernel's record that a signal's frame begins with (`ucontext`, x86-64).
const SIGNAL_FRAME_POINTER: usize = 120;
const SIGNAL_STACK_POINTER: usize = 160;
const SIGNAL_PC: usize = 168;

impl Rule {
    /// Leaves `frame`.
    #[inline]
    pub(super) fn leave(self, frame: &Frame, memory: &mut Memory) -> Left {
        let next = match self {
            Self::Call {
                base,
                offset,
                saved,
            } => call(frame, memory, base, offset, saved),
            Self::Signal => signal(frame, memory),
            Self::FramePointer => by_frame_pointer(frame, memory),
            Self::End => None,
            Self::Other => return Left::Unknown,
        };
        match next {
            // Nothing is in the first page, and a thread's first frame has no return address.
            Some(next) if next.pc > 4096 => Left::To(next),
            _ => Left::Nowhere,
        }
    }

    /// The rule in 39 bits, `None` if it has numbers that do not fit.
    fn pack(self) -> Option<u64> {
        let (kind, offset, mode, place) = match self {
            Self::Call {
                base,
                offset,
                saved,
            } => {
                let kind = match base {
                    Base::Stack => 1,
                    Base::Frame => 2,
                    Base::WordAtFrame => 3,
                };
                let (mode, place) = match saved {
                    Saved::Not => (0, 0),
                    Saved::AtCanonical(place) => (1, place),
                    Saved::AtFramePointer(place) => (2, place),
                };
                (kind, offset, mode, place)
            }
            Self::Signal => (4, 0, 0, 0),
            Self::FramePointer => (5, 0, 0, 0),
            Self::End => (6, 0, 0, 0),
            Self::Other => (7, 0, 0, 0),
        };
        let bits = |number: i32, width: u32| {
            let words = i64::from(number / 8);
            let half = 1i64 << (width - 1);
            (number % 8 == 0 && (-half..half).contains(&words))
                .then_some(words as u64 & ((1 << width) - 1))
        };
        Some(kind | bits(offset, OFFSET_BITS)? << 3 | mode << 21 | bits(place, PLACE_BITS)? << 23)
    }

    #[inline]
    fn unpack(word: u64) -> Self {
        let number = |shift: u32, width: u32| {
            ((word << (64 - shift - width)) as i64 >> (64 - width)) as i32 * 8
        };
        let base = match word & 7 {
            1 => Base::Stack,
            2 => Base::Frame,
            3 => Base::WordAtFrame,
            4 => return Self::Signal,
            5 => return Self::FramePointer,
            6 => return Self::End,
            _ => return Self::Other,
        };
        let place = number(23, PLACE_BITS);
        Self::Call {
            base,
            offset: number(3, OFFSET_BITS),
            saved: match word >> 21 & 3 {
                0 => Saved::Not,
                1 => Saved::AtCanonical(place),
                _ => Saved::AtFramePointer(place),
            },
        }
    }
}

const OFFSET_BITS: u32 = 18;
const PLACE_BITS: u32 = 16;
const RULE_BITS: u32 = 39;

fn call(
    frame: &Frame,
    memory: &mut Memory,
    base: Base,
    offset: i32,
    saved: Saved,
) -> Option<Frame> {
    let offset = offset as isize;
    let canonical = match base {
        Base::Stack => frame.stack_pointer.wrapping_add_signed(offset),
        Base::Frame => frame.frame_pointer.wrapping_add_signed(offset),
        Base::WordAtFrame => memory.word(frame.frame_pointer.wrapping_add_signed(offset))?,
    };
    // Stacks grow downwards: a walk that does not climb is led astray.
    if canonical <= frame.stack_pointer {
        return None;
    }
    let frame_pointer = match saved {
        Saved::Not => frame.frame_pointer,
        Saved::AtCanonical(place) => memory.word(canonical.wrapping_add_signed(place as isize))?,
        Saved::AtFramePointer(place) => {
            memory.word(frame.frame_pointer.wrapping_add_signed(place as isize))?
        }
    };
    Some(Frame {
        pc: memory.word(canonical - 8)?,
        stack_pointer: canonical,
        frame_pointer,
        is_exact: false,
    })
}

fn signal(frame: &Frame, memory: &mut Memory) -> Option<Frame> {
    let mut word = |offset: usize| memory.word(frame.stack_pointer.wrapping_add(offset));
    Some(Frame {
        frame_pointer: word(SIGNAL_FRAME_POINTER)?,
        stack_pointer: word(SIGNAL_STACK_POINTER)?,
        pc: word(SIGNAL_PC)?,
        is_exact: true,
    })
}

fn by_frame_pointer(frame: &Frame, memory: &mut Memory) -> Option<Frame> {
    /// A frame larger than this is taken for a register that holds something else.
    const LARGEST: usize = 1 << 20;
    let at = frame.frame_pointer;
    // A register that was not renewed may point into another stack.
    let is_above = at >= frame.stack_pointer && at - frame.stack_pointer <= LARGEST;
    if !is_above || !memory.reaches(frame.stack_pointer, at) {
        return None;
    }
    Some(Frame {
        pc: memory.word(at.checked_add(8)?)?,
        stack_pointer: at.checked_add(16)?,
        frame_pointer: memory.word(at)?,
        is_exact: false,
    })
}

const INDEX_BITS: u32 = 14;

static KNOWN: [AtomicU64; 1 << INDEX_BITS] = [const { AtomicU64::new(0) }; 1 << INDEX_BITS];

const KEY_BITS: u32 = 39;
const KEY_MASK: u64 = (1 << KEY_BITS) - 1;
const TAG_BITS: u32 = KEY_BITS - INDEX_BITS;

/// Where in the table the rule of a key is, and its name there.
#[inline]
fn place(key: u64) -> (usize, u64) {
    // Odd, so multiplication by it permutes the keys.
    let mixed = key.wrapping_mul(0x4f_6cdd_1d2b_96a5) & KEY_MASK;
    ((mixed >> TAG_BITS) as usize, mixed & ((1 << TAG_BITS) - 1))
}

/// The rule for the code at `address` in `module`.
#[inline]
pub(super) fn of(module: &Module, address: usize) -> Rule {
    let offset = (address - module.start) as u64;
    match module.number {
        Some(number) if offset >> 32 == 0 => {
            let (at, tag) = place(u64::from(number) << 32 | offset);
            let entry = KNOWN[at].load(Ordering::Relaxed);
            if entry >> RULE_BITS == tag && entry & 7 != 0 {
                return Rule::unpack(entry);
            }
            learn(module, address, at, tag)
        }
        _ => tables::rule(module, address),
    }
}

#[cold]
#[inline(never)]
fn learn(module: &Module, address: usize, at: usize, tag: u64) -> Rule {
    let rule = tables::rule(module, address);
    let (rule, word) = match rule.pack() {
        Some(word) => (rule, word),
        // The numbers of this frame are followed by the other walk.
        None => (Rule::Other, 7),
    };
    KNOWN[at].store(tag << RULE_BITS | word, Ordering::Relaxed);
    rule
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::vec;

    #[test]
    fn rules_come_back_from_their_words() {
        let bases = [Base::Stack, Base::Frame, Base::WordAtFrame];
        let numbers = [0, 8, -8, 16, 1 << 17, -(1 << 17)];
        let mut rules = vec![Rule::Signal, Rule::FramePointer, Rule::End, Rule::Other];
        for base in bases {
            for offset in numbers {
                for place in numbers {
                    for saved in [
                        Saved::Not,
                        Saved::AtCanonical(place),
                        Saved::AtFramePointer(place),
                    ] {
                        rules.push(Rule::Call {
                            base,
                            offset,
                            saved,
                        });
                    }
                }
            }
        }
        for rule in rules {
            let word = rule.pack().unwrap();
            assert!(word >> RULE_BITS == 0 && word & 7 != 0);
            assert_eq!(Rule::unpack(word), rule);
            assert_eq!(Rule::unpack(word | 0x123 << RULE_BITS), rule);
        }
    }

    #[test]
    fn numbers_that_do_not_fit_are_not_packed() {
        for (offset, place) in [
            (1, 0),
            (0, 4),
            (1 << 20, 0),
            (0, 1 << 18),
            (0, -(1 << 18) - 8),
        ] {
            let rule = Rule::Call {
                base: Base::Stack,
                offset,
                saved: Saved::AtCanonical(place),
            };
            assert_eq!(rule.pack(), None, "{rule:?}");
        }
    }

    #[test]
    fn no_two_keys_have_place_and_name_in_common() {
        let mut seen = HashSet::new();
        for number in [0u64, 1, 2, 63, 127] {
            for offset in (0..20_000u64).chain((0xffff_0000..0xffff_4000).step_by(3)) {
                assert!(seen.insert(place(number << 32 | offset)));
            }
        }
    }
}
