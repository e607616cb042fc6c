//! Allocations of all sizes live and die on every CPU, their contents checked, while the first CPU shrinks and reaps
//! all caches.

use core::ptr::NonNull;

use super::Dice;
use crate::{crew, heap};
use flagstone_types::Gfp;

const ROUNDS: usize = 15_000;
const LIVE: usize = 64;
const SHRINK_EACH: usize = 1000;

#[derive(Clone, Copy)]
struct Block {
    at: NonNull<u8>,
    size: usize,
    fill: u8,
}

impl Block {
    /// A block of `size` bytes, zeroed first if `zeroed`, then filled.
    fn new(size: usize, fill: u8, zeroed: bool) -> Self {
        let gfp = if zeroed {
            heap::gfp() | Gfp::ZERO
        } else {
            heap::gfp()
        };
        let at = super::caches()
            .kmalloc(size, gfp)
            .expect("there is memory for a block");
        let block = Self { at, size, fill };
        if zeroed {
            assert!(block.holds(0), "{size} zeroed bytes are not zero");
        }
        // SAFETY: the block is ours and has so many bytes.
        unsafe { at.write_bytes(fill, size) };
        block
    }

    fn holds(&self, byte: u8) -> bool {
        // SAFETY: as above.
        let bytes = unsafe { core::slice::from_raw_parts(self.at.as_ptr(), self.size) };
        let (words, rest) = bytes.as_chunks::<8>();
        let whole = u64::from_ne_bytes([byte; 8]);
        rest.iter().all(|&b| b == byte) && words.iter().all(|&w| u64::from_ne_bytes(w) == whole)
    }

    fn free(self) {
        let Self { at, size, fill } = self;
        assert!(self.holds(fill), "{size} bytes at {at:p} have changed");
        // SAFETY: the block is ours and nobody uses it any more.
        unsafe { super::caches().kfree(at) };
    }
}

/// Mostly small, sometimes beyond the largest class.
fn size(dice: &mut Dice) -> usize {
    let most =
        [64, 256, 1024, 4096, 8192, 40_000][(dice.below(64) as u32).trailing_ones() as usize % 6];
    1 + dice.below(most)
}

fn work(cpu: usize) {
    let mut dice = Dice::new();
    let mut live = [None::<Block>; LIVE];
    for round in 1..=ROUNDS {
        let slot = &mut live[dice.below(LIVE)];
        match slot.take() {
            Some(block) => block.free(),
            None => {
                *slot = Some(Block::new(
                    size(&mut dice),
                    dice.next() as u8,
                    dice.below(4) == 0,
                ))
            }
        }
        if cpu == 0 && round % SHRINK_EACH == 0 {
            super::caches().shrink_all();
            super::caches().reap(dice.below(2) == 0);
        }
    }
    live.into_iter().flatten().for_each(Block::free);
}

pub(super) fn run() {
    crew::run(work);
}
