//! Bulk allocation and free on every CPU: every object is had once, and what is written stays.

use core::mem::MaybeUninit;

use super::{Dice, SharedCache};
use crate::{crew, heap};
use flagstone_slab::CacheParams;

const ROUNDS: u64 = 500;
const MOST: usize = 200;
const WORDS: usize = 24;

static CACHE: SharedCache = SharedCache::new();

fn work(cpu: usize) {
    let mut dice = Dice::new();
    for round in 0..ROUNDS {
        let mut room = [MaybeUninit::uninit(); MOST];
        let n = 1 + dice.below(MOST);
        let objects = super::caches()
            .alloc_bulk(CACHE.get(), heap::gfp(), &mut room[..n])
            .expect("there is memory for a batch");
        let mark = |i: usize| (cpu as u64) << 48 | round << 16 | i as u64;
        for (i, object) in objects.iter().enumerate() {
            // SAFETY: the object is ours, of `WORDS` words, aligned.
            unsafe { object.cast::<[u64; WORDS]>().write([mark(i); WORDS]) };
        }
        for (i, object) in objects.iter().enumerate() {
            // SAFETY: as above, and written.
            let content = unsafe { object.cast::<[u64; WORDS]>().read() };
            assert_eq!(content, [mark(i); WORDS], "an object was handed out twice");
        }
        // SAFETY: ours, and used by nobody any more.
        unsafe { super::caches().free_bulk(CACHE.get(), objects) };
    }
}

pub(super) fn run() {
    let mut params = CacheParams::new("batch", WORDS * 8, 64);
    params.flags.no_merge = true;
    CACHE.make(&params);
    crew::run(work);
    CACHE.destroy();
}
