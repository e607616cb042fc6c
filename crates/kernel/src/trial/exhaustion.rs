//! One CPU takes every frame there is: running out is an answer, and everything can be given back.

use core::ptr::{NonNull, null_mut};

use crate::kernel::Kernel;
use flagstone_frames::PageBlock;
use flagstone_host::{PageMap, PhysMem};
use flagstone_types::{AllocError, Gfp, Order, Pfn};

/// A block remembers in its first words what it is and which came before it.
struct Link {
    before: *mut Link,
    pfn: Pfn,
    order: Order,
}

pub(super) fn run() {
    let caches = super::caches();
    let frames = caches.frames();
    let gfp = Gfp::KERNEL | Gfp::NOWARN;
    let mut last: *mut Link = null_mut();
    let mut pages = 0;
    for order in (0..=Kernel::MAX_ORDER).rev().filter_map(Order::new) {
        loop {
            match frames.alloc_pages(gfp, order, None) {
                Ok(block) => {
                    pages += order.pages();
                    let (pfn, order) = block.into_raw();
                    let link = Kernel.frame_ptr(pfn).cast::<Link>();
                    // SAFETY: the block is ours and a page long at least.
                    unsafe {
                        link.write(Link {
                            before: last,
                            pfn,
                            order,
                        });
                    }
                    last = link.as_ptr();
                }
                Err(AllocError::OutOfMemory) => break,
                Err(error) => panic!("order {order}: {error}"),
            }
        }
    }
    let refused = caches.kmalloc(100_000, gfp);
    assert_eq!(refused, Err(AllocError::OutOfMemory));
    while let Some(link) = NonNull::new(last) {
        // SAFETY: written above, in a block that is still ours.
        let Link { before, pfn, order } = unsafe { link.read() };
        last = before;
        // SAFETY: from `into_raw` above, once.
        frames.free_pages(unsafe { PageBlock::from_raw(pfn, order) });
    }
    super::say!("exhaustion: {pages} pages taken");
}
