//! From any frame to the first frame of the block or run that it is in.
//!
//! Tails of compound device memory say their order, and the head is where a block of that order begins: such a tail has no distance, for its record may be
//! that of other tails too (D1). Compound blocks mark their tails with a distance. For all others the head is found by arithmetic: every frame
//! that is there is in exactly one block or run (P5), and a block begins at a multiple of its length, so a head or a gap before a
//! frame is found by rounding down to every order in turn, and what follows it by hopping from head to head. This is exact while the block that
//! is asked for stays; what changes around it can make a search fail, and it is repeated then.

use crate::Frames;
use crate::page::{Page, PageKind, State};
use crate::zone::page_of;
use flagstone_host::Host;
use flagstone_types::Pfn;

/// How often a search that failed is repeated.
const ATTEMPTS: usize = 3;

impl<H: Host> Frames<H> {
    /// The first frame of the block or run that `pfn` is in, free or not; `None` if there is no memory, or if the
    /// block changes all the time.
    #[must_use]
    pub fn head(&self, pfn: Pfn) -> Option<(Pfn, &Page)> {
        let page = self.page(pfn)?;
        let state = page.state();
        if state.kind() != PageKind::Tail {
            return Some((pfn, page));
        }
        if let Some(order) = state.aligned_order() {
            return self.aligned_head(pfn, order);
        }
        if let Some(start) = pfn.0.checked_sub(state.distance())
            && state.distance() > 0
            && self
                .length_at(Pfn(start))
                .is_some_and(|length| length > state.distance())
        {
            return Some((Pfn(start), self.page(Pfn(start))?));
        }
        (0..ATTEMPTS).find_map(|_| self.search_head(pfn))
    }

    /// The head of the compound of `order` that `pfn` is a tail of.
    fn aligned_head(&self, pfn: Pfn, order: u32) -> Option<(Pfn, &Page)> {
        let start = Pfn(pfn.0 & !((1usize << order) - 1));
        let head = self.page(start)?;
        let state = head.state();
        let is_head = state.kind().is_head()
            && state.has(State::COMPOUND)
            && !state.has(State::RUN)
            && state.order() == order;
        is_head.then_some((start, head))
    }

    /// How many frames the block or run has that begins at `pfn`, if one does.
    fn length_at(&self, pfn: Pfn) -> Option<usize> {
        let page =
            page_of(&self.host(), pfn).map(|page| (page.state(), page.run_pages(), page.state()));
        let (before, run, after) = page?;
        if before != after || !before.kind().is_head() {
            return None;
        }
        Some(if before.has(State::RUN) {
            run
        } else {
            1 << before.order()
        })
    }

    #[cold]
    fn search_head(&self, pfn: Pfn) -> Option<(Pfn, &Page)> {
        let largest = 1usize << H::MAX_ORDER;
        let mut from = pfn.0;
        let mut start = loop {
            let rounded = |order: u32| Pfn(from & !((1usize << order) - 1));
            let is_inside = |at: Pfn| {
                self.page(at)
                    .is_some_and(|page| page.kind() == PageKind::Tail)
            };
            if let Some(at) = (0..=H::MAX_ORDER).map(rounded).find(|&at| !is_inside(at)) {
                break at;
            }
            // The whole largest block up to here is the inside of something that begins before it.
            from = (from & !(largest - 1)).checked_sub(1)?;
        };
        loop {
            match self.length_at(start) {
                Some(length) if pfn.0 - start.0 < length => {
                    return Some((start, self.page(start)?));
                }
                Some(length) => start = Pfn(start.0.checked_add(length)?),
                // A gap, or something that moved: the next head is further on.
                None => start = start.add(1),
            }
            if start > pfn {
                return None;
            }
        }
    }
}
