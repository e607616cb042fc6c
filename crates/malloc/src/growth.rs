//! More page frames when there are too few: the process's answer to a shortage.
//!
//! First what caches hold goes back, if the heap has grown a good deal since that was last done: a program
//! whose sizes change would otherwise keep the memory of the old sizes beside that of the new. Then the
//! system is asked for more, by an eighth of what there is, so that the number of calls stays small.

use core::sync::atomic::{AtomicUsize, Ordering};

use flagstone_frames::{Frames, Reclaimer};
use flagstone_host::PageMap;
use flagstone_types::{Gfp, Nid, Order};

use crate::heap;
use crate::process::Process;

/// The one reclaimer of the process.
pub(crate) static GROWTH: Growth = Growth {
    reaped_at: AtomicUsize::new(0),
};

/// See the module.
#[derive(Debug)]
pub(crate) struct Growth {
    /// How many frames there were when caches last gave back what they held.
    reaped_at: AtomicUsize,
}

/// Frames that the heap grows by at least: 1 MiB.
const LEAST: usize = 16;
/// And at most, unless more is wanted at once: 64 MiB.
const MOST: usize = 1024;
/// From so many frames on all that caches hold goes back, not only what is idle: 32 MiB.
const LARGE: usize = 512;

impl Reclaimer<Process> for Growth {
    fn reclaim(&self, frames: &Frames<Process>, _gfp: Gfp, order: Order, nid: Nid) -> usize {
        let have = frames.managed_count(nid);
        let reaped_at = self.reaped_at.load(Ordering::Relaxed);
        if have >= reaped_at + reaped_at / 8 + 4 * LEAST {
            self.reaped_at.store(have, Ordering::Relaxed);
            if let Some(caches) = heap::caches() {
                // One object in an array keeps a whole slab, so a large heap gives back those too.
                let slabs = if have >= LARGE {
                    caches.shrink_all()
                } else {
                    caches.reap(false).slabs
                };
                if slabs > order.pages() {
                    return slabs;
                }
            }
        }
        // A block is aligned to its own size, wherever the frames begin.
        let largest = 1 << Process::MAX_ORDER;
        let need = match order.pages() {
            1 => 1,
            // Beyond the largest order whole largest blocks are put together.
            pages if pages > largest => pages + largest,
            pages => 2 * pages,
        };
        let mut pages = (have / 8)
            .clamp(LEAST, MOST)
            .max(need)
            .next_multiple_of(LEAST);
        let host = frames.host();
        loop {
            match host.grow(nid, pages) {
                Ok(range) => {
                    let pages = range.frames.pages;
                    if let Some(caches) = heap::caches() {
                        crate::live::publish_soon(caches);
                    }
                    return match frames.add_memory(range) {
                        Ok(()) => pages,
                        Err(_) => 0,
                    };
                }
                Err(_) if pages > need => pages = (pages / 2).max(need),
                Err(_) => return 0,
            }
        }
    }
}
