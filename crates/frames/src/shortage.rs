//! What an allocation does when no zone has what it wants above its low watermark: the order of last resorts.
//!
//! Wake the background reclaimer; go down to the minimum, or into the reserves as far as the flags allow; reclaim
//! directly, again while that gains pages; take back what lies in page lists and what is set apart for atomic
//! callers; fail as a value. No lock is held while the reclaimer runs (L1).

use crate::alloc::{Got, Want};
use crate::watermark::{Level, Mark};
use crate::{Frames, PageFailure};
use flagstone_host::{Event, Host};
use flagstone_types::{AllocError, Gfp, MigrateType};

/// How often direct reclaim is repeated for orders up to [`COSTLY_ORDER`] before the request fails.
const ROUNDS: u32 = 16;
/// How often for larger ones: gaining single pages does not make large blocks.
const COSTLY_ROUNDS: u32 = 3;
const COSTLY_ORDER: u32 = 3;

impl<H: Host> Frames<H> {
    #[cold]
    #[inline(never)]
    pub(crate) fn obtain_under_shortage(&self, want: &Want, gfp: Gfp) -> Result<Got, AllocError> {
        let reclaimer = self.reclaimer();
        if gfp.contains(Gfp::KSWAPD_RECLAIM)
            && let Some(reclaimer) = reclaimer
        {
            reclaimer.wake(self, want.prefer);
        }
        let may_use_reserves = !gfp.contains(Gfp::NOMEMALLOC);
        let mark = Mark {
            level: Level::Min,
            high: may_use_reserves && gfp.contains(Gfp::HIGH),
            atomic: may_use_reserves && gfp.contains(Gfp::ATOMIC_CONTEXT),
        };
        if let Some(got) = self.attempt(want, mark) {
            return Ok(got);
        }
        let frees_memory = gfp.contains(Gfp::MEMALLOC);
        if frees_memory && may_use_reserves {
            let mark = Mark {
                level: Level::Nothing,
                ..mark
            };
            if let Some(got) = self.attempt(want, mark) {
                return Ok(got);
            }
        }
        // Who is freeing memory already must not be sent to free memory.
        let may_reclaim = gfp.may_sleep() && !frees_memory;
        let rounds = if want.order.get() > COSTLY_ORDER && !gfp.contains(Gfp::RETRY_MAYFAIL) {
            COSTLY_ROUNDS
        } else {
            ROUNDS
        };
        let (mut round, mut waits) = (0, 0);
        loop {
            let mut gained = 0;
            if may_reclaim && let Some(reclaimer) = reclaimer {
                self.host().count(Event::Allocstall, 1);
                gained = reclaimer.reclaim(self, gfp, want.order, want.prefer);
                if gained > 0
                    && let Some(got) = self.attempt(want, mark)
                {
                    return Ok(got);
                }
            }
            if let Some(got) = self.gather(want, mark, may_reclaim) {
                return Ok(got);
            }
            round += 1;
            if may_reclaim && gfp.contains(Gfp::NOFAIL) {
                if gained == 0 {
                    self.host().relax(waits);
                    waits = waits.saturating_add(1);
                }
            } else if gained == 0 || round >= rounds || gfp.contains(Gfp::NORETRY) {
                self.report_failure(&PageFailure {
                    order: want.order.get(),
                    gfp,
                    nid: want.prefer,
                });
                return Err(AllocError::OutOfMemory);
            }
        }
    }

    /// An attempt with what lies in page lists, and then, for callers that may sleep, with what is set apart for atomic ones.
    fn gather(&self, want: &Want, mark: Mark, may_unreserve: bool) -> Option<Got> {
        self.drain_page_lists();
        if let Some(got) = self.attempt(want, mark) {
            return Some(got);
        }
        let wants_lists = want.migrate != MigrateType::HighAtomic;
        if may_unreserve && wants_lists && self.unreserve(want) {
            self.attempt(want, mark)
        } else {
            None
        }
    }

    /// Ends one reservation for atomic callers in a zone that may serve the request.
    fn unreserve(&self, want: &Want) -> bool {
        self.nearest(want.prefer)
            .iter()
            .filter(|&&nid| !want.only_here || nid == want.prefer)
            .flat_map(|&nid| &self.zones_of(nid)[..=want.class.index()])
            .any(|zone| zone.lock().unreserve_high_atomic(want.migrate))
    }
}
