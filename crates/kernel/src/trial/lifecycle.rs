//! Caches come and go on every CPU: constructors run, a cache with an object in use is not destroyed.

use core::ptr::NonNull;

use super::Dice;
use crate::{crew, heap};
use flagstone_slab::CacheParams;

const ROUNDS: usize = 20;
const OBJECTS: usize = 60;
const CONSTRUCTED: u64 = 0x00c0_ffee_0bad_cafe;

unsafe fn construct(object: NonNull<u8>) {
    // SAFETY: the caches call this with an object of at least a word, aligned.
    unsafe { object.cast::<u64>().write(CONSTRUCTED) };
}

fn work(cpu: usize) {
    let caches = super::caches();
    let mut dice = Dice::new();
    for round in 0..ROUNDS {
        let mut params = CacheParams::new(["even", "odd"][round % 2], 8 + dice.below(600), 8);
        params.flags.no_merge = true;
        params.flags.typesafe_by_rcu = dice.below(2) == 0;
        params.ctor = Some(construct);
        let cache = caches.create(&params).expect("memory for a cache");
        let objects: [_; OBJECTS] =
            core::array::from_fn(|_| caches.alloc(&cache, heap::gfp()).expect("memory"));
        for object in objects {
            // SAFETY: the object is ours and at least a word long.
            let word = unsafe { object.cast::<u64>().read() };
            assert_eq!(word, CONSTRUCTED, "an object was not constructed");
        }
        let [first, rest @ ..] = objects;
        // SAFETY: ours, as constructed, and used by nobody any more.
        unsafe { caches.free_bulk(&cache, &rest) };
        let busy = match caches.destroy(cache) {
            Err(busy) => busy,
            Ok(()) => panic!("a cache with an object in use was destroyed by CPU {cpu}"),
        };
        assert_eq!(busy.objects, 1);
        // SAFETY: as above.
        unsafe { caches.free(&busy.cache, first) };
        if let Err(busy) = caches.destroy(busy.cache) {
            panic!("{busy}");
        }
    }
}

pub(super) fn run() {
    crew::run(work);
}
