//! A call stack: return addresses, innermost first, given as they are or packed by the depot.
//!
//! Packed, a frame is the difference to the frame before it (the first one: to 0), with the sign in the lowest bit, seven bits to a byte,
//! the low ones first; the highest bit of a byte says that another follows. Neighbours in a stack are mostly in one module, so that a frame takes
//! three to four bytes. Bytes are packed into words from the lowest one up.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

/// Frames that a stored stack has at most: the innermost ones.
pub const MAX_FRAMES: usize = 64;

/// Bytes that one packed frame takes at most.
const MAX_PACKED: usize = (usize::BITS as usize).div_ceil(7);
/// Words that a packed stack takes at most.
pub(crate) const MAX_WORDS: usize = (MAX_FRAMES * MAX_PACKED).div_ceil(8);

/// A call stack that somebody else holds.
#[derive(Clone, Copy)]
pub struct Stack<'a>(Form<'a>);

#[derive(Clone, Copy)]
enum Form<'a> {
    Plain(&'a [usize]),
    Packed {
        words: &'a [AtomicU64],
        frames: usize,
    },
}

impl<'a> Stack<'a> {
    /// No stack.
    pub const EMPTY: Self = Self::new(&[]);

    /// The stack with these return addresses, innermost first.
    #[must_use]
    pub const fn new(frames: &'a [usize]) -> Self {
        Self(Form::Plain(frames))
    }

    pub(crate) const fn packed(words: &'a [AtomicU64], frames: usize) -> Self {
        Self(Form::Packed { words, frames })
    }

    /// Whether nothing is known of it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many frames.
    #[must_use]
    pub fn len(&self) -> usize {
        match self.0 {
            Form::Plain(frames) => frames.len(),
            Form::Packed { frames, .. } => frames,
        }
    }

    /// The frames, innermost first.
    #[must_use]
    pub fn iter(&self) -> Frames<'a> {
        Frames(match self.0 {
            Form::Plain(frames) => Walk::Plain(frames.iter()),
            Form::Packed { words, frames } => Walk::Packed(Unpack {
                words,
                byte: 0,
                left: frames,
                previous: 0,
            }),
        })
    }
}

impl<'a> From<&'a [usize]> for Stack<'a> {
    fn from(frames: &'a [usize]) -> Self {
        Self::new(frames)
    }
}

impl<'a> IntoIterator for Stack<'a> {
    type Item = usize;
    type IntoIter = Frames<'a>;

    fn into_iter(self) -> Frames<'a> {
        self.iter()
    }
}

impl<'a> IntoIterator for &Stack<'a> {
    type Item = usize;
    type IntoIter = Frames<'a>;

    fn into_iter(self) -> Frames<'a> {
        self.iter()
    }
}

impl PartialEq for Stack<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Stack<'_> {}

impl fmt::Debug for Stack<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut list = f.debug_list();
        for frame in self.iter() {
            list.entry(&format_args!("{frame:#x}"));
        }
        list.finish()
    }
}

/// The frames of a [`Stack`].
#[derive(Clone, Debug)]
pub struct Frames<'a>(Walk<'a>);

#[derive(Clone, Debug)]
enum Walk<'a> {
    Plain(core::slice::Iter<'a, usize>),
    Packed(Unpack<'a>),
}

#[derive(Clone, Debug)]
struct Unpack<'a> {
    words: &'a [AtomicU64],
    byte: usize,
    left: usize,
    previous: usize,
}

impl Unpack<'_> {
    fn byte(&mut self) -> Option<u8> {
        // A published stack does not change (D2).
        let word = self.words.get(self.byte / 8)?.load(Ordering::Relaxed);
        let byte = (word >> (8 * (self.byte % 8))) as u8;
        self.byte += 1;
        Some(byte)
    }

    fn frame(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let mut coded = 0usize;
        for k in 0..MAX_PACKED as u32 {
            let byte = self.byte()?;
            coded |= usize::from(byte & 0x7f) << (7 * k);
            if byte & 0x80 == 0 {
                break;
            }
        }
        let difference = (coded >> 1) ^ (coded & 1).wrapping_neg();
        self.previous = self.previous.wrapping_add(difference);
        Some(self.previous)
    }
}

impl Iterator for Frames<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        match &mut self.0 {
            Walk::Plain(frames) => frames.next().copied(),
            Walk::Packed(frames) => frames.frame(),
        }
    }
}

/// A stack while it is being packed.
pub(crate) struct Packed {
    words: [u64; MAX_WORDS],
    bytes: usize,
    frames: usize,
    hash: u64,
}

impl Packed {
    /// Packs the innermost [`MAX_FRAMES`] of `stack`.
    pub(crate) fn new(stack: &[usize]) -> Self {
        let mut packed = Self {
            words: [0; MAX_WORDS],
            bytes: 0,
            frames: 0,
            hash: 0,
        };
        let mut previous = 0usize;
        for &frame in stack.iter().take(MAX_FRAMES) {
            packed.push(frame.wrapping_sub(previous));
            packed.hash = mix(packed.hash, frame as u64);
            packed.frames += 1;
            previous = frame;
        }
        packed
    }

    fn push(&mut self, difference: usize) {
        let sign = ((difference as isize) >> (usize::BITS - 1)) as usize;
        let mut coded = (difference << 1) ^ sign;
        loop {
            let more = coded > 0x7f;
            let byte = (coded & 0x7f) as u64 | if more { 0x80 } else { 0 };
            self.words[self.bytes / 8] |= byte << (8 * (self.bytes % 8));
            self.bytes += 1;
            coded >>= 7;
            if !more {
                return;
            }
        }
    }

    pub(crate) fn words(&self) -> &[u64] {
        &self.words[..self.bytes.div_ceil(8)]
    }

    pub(crate) fn frames(&self) -> usize {
        self.frames
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }
}

/// The hash of `stack`, as [`Packed::hash`] has it.
pub(crate) fn hash(stack: Stack<'_>) -> u64 {
    stack.iter().fold(0, |hash, frame| mix(hash, frame as u64))
}

/// Multiplication spreads a bit upwards only: the rotation brings the top back down.
fn mix(hash: u64, frame: u64) -> u64 {
    (hash ^ frame)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .rotate_left(29)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn frame() -> impl Strategy<Value = usize> {
        prop_oneof![
            any::<usize>(),
            0x7f00_0000_0000usize..0x7f00_0010_0000,
            0..300usize,
            Just(usize::MAX),
        ]
    }

    proptest! {
        #[test]
        fn what_is_packed_is_what_comes_out(stack in prop::collection::vec(frame(), 0..90)) {
            let packed = Packed::new(&stack);
            let words: Vec<AtomicU64> = packed.words().iter().map(|w| AtomicU64::new(*w)).collect();
            let out: Vec<usize> = Stack::packed(&words, packed.frames()).iter().collect();
            let kept = &stack[..stack.len().min(MAX_FRAMES)];
            prop_assert_eq!(&out, kept);
            prop_assert_eq!(packed.hash(), hash(Stack::new(kept)));
        }

        #[test]
        fn arbitrary_words_unpack_to_some_stack(words in prop::collection::vec(any::<u64>(), 0..10), frames in 0usize..300) {
            let words: Vec<AtomicU64> = words.into_iter().map(AtomicU64::new).collect();
            prop_assert!(Stack::packed(&words, frames).iter().count() <= frames);
        }
    }

    #[test]
    fn frames_of_one_module_take_few_bytes() {
        let stack: Vec<usize> = (0..32)
            .map(|k| 0x5555_5555_0000 + (k * 7919) % 0x10_0000)
            .collect();
        let packed = Packed::new(&stack);
        assert!(
            packed.words().len() * 8 <= 32 * 4,
            "{}",
            packed.words().len()
        );
    }
}
