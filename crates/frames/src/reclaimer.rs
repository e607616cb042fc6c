//! What this layer asks of the one above when it runs short of frames.

use crate::Frames;
use flagstone_host::Host;
use flagstone_types::{Gfp, Nid, Order};

/// Makes free frames.
pub trait Reclaimer<H: Host>: Sync {
    /// Tries to make frames free, or adds some ([`Frames::add_memory`]), for a request of `order` on `nid`; `order` may be
    /// beyond the largest block's for a run. Returns how many pages it gained: 0 means that trying again is
    /// useless. Called with no lock of the core held. What it allocates itself it asks for with
    /// [`Gfp::MEMALLOC`], so that it is not called again inside.
    fn reclaim(&self, frames: &Frames<H>, gfp: Gfp, order: Order, nid: Nid) -> usize;

    /// Told that `nid` fell below its low watermark: a background reclaimer should begin.
    /// Must be quick. Called with no lock of the core held.
    fn wake(&self, frames: &Frames<H>, nid: Nid) {
        let _ = (frames, nid);
    }
}
