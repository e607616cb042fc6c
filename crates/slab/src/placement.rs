//! NUMA placement: which node an object comes from (S16).

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};
use flagstone_host::Host;
use flagstone_types::{AllocError, Gfp, Nid};

use crate::cache::Cache;
use crate::caches::Caches;

/// A set of the nodes 0 to 63.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeMask(pub u64);

impl NodeMask {
    /// Whether the node is in the set.
    #[must_use]
    pub const fn contains(self, nid: Nid) -> bool {
        nid.0 < 64 && self.0 >> nid.0 & 1 == 1
    }

    /// The first node of the set after `nid`, going round; `None` for the empty set.
    #[must_use]
    pub const fn next_node_in(self, nid: Nid) -> Option<Nid> {
        if self.0 == 0 {
            return None;
        }
        let after = if nid.0 >= 63 {
            0
        } else {
            self.0 >> (nid.0 + 1) << (nid.0 + 1)
        };
        let from = if after != 0 { after } else { self.0 };
        Some(Nid(from.trailing_zeros() as u16))
    }
}

/// Where objects are to come from.
#[derive(Debug)]
pub enum Placement<'a> {
    /// From the node this runs on, else from the nearest with memory.
    Local,
    /// From this node, else from the nearest to it.
    Preferred(Nid),
    /// From the nodes of the set, nearest to the current one first, and no others.
    Bind(NodeMask),
    /// From the nodes of the set in turn; `next` remembers the last one.
    Interleave {
        /// The set.
        mask: NodeMask,
        /// The node that was last taken, shared by all who take turns.
        last: &'a AtomicU32,
    },
}

impl<H: Host> Caches<H> {
    /// An object of `cache` placed as `placement` says.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`]; [`AllocError::InvalidArgument`] if no node named exists.
    pub fn alloc_placed(
        &self,
        cache: &Cache<H>,
        gfp: Gfp,
        placement: &Placement<'_>,
    ) -> Result<NonNull<u8>, AllocError> {
        let possible = if self.nodes >= 64 {
            u64::MAX
        } else {
            (1 << self.nodes) - 1
        };
        match placement {
            Placement::Local => self.alloc(cache, gfp),
            Placement::Preferred(nid) => self.alloc_node(cache, gfp, *nid),
            Placement::Bind(mask) => {
                let here = self.host().current_node();
                let mut result = Err(AllocError::InvalidArgument);
                for nid in self.by_distance(here).filter(|nid| mask.contains(*nid)) {
                    // That one node has nothing is no failure of the request.
                    result = self.alloc_node(cache, gfp | Gfp::THISNODE | Gfp::NOWARN, nid);
                    if result.is_ok() {
                        return result;
                    }
                }
                if result == Err(AllocError::OutOfMemory) {
                    self.report_out_of_memory(cache, gfp, here);
                }
                result
            }
            Placement::Interleave { mask, last } => {
                let mask = NodeMask(mask.0 & possible);
                let next = |last: u32| mask.next_node_in(Nid(last as u16)).map(|n| u32::from(n.0));
                let before = last
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
                    .map_err(|_| AllocError::InvalidArgument)?;
                let nid = next(before).ok_or(AllocError::InvalidArgument)?;
                self.alloc_node(cache, gfp, Nid(nid as u16))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_node_goes_round_the_mask() {
        let mask = NodeMask(0b1001_0010);
        assert_eq!(mask.next_node_in(Nid(1)), Some(Nid(4)));
        assert_eq!(mask.next_node_in(Nid(4)), Some(Nid(7)));
        assert_eq!(mask.next_node_in(Nid(7)), Some(Nid(1)));
        assert_eq!(NodeMask(1 << 63).next_node_in(Nid(63)), Some(Nid(63)));
        assert_eq!(NodeMask(0).next_node_in(Nid(0)), None);
        assert!(!NodeMask(u64::MAX).contains(Nid(64)));
    }
}
