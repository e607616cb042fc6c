//! NUMA placement: which node an object comes from (S16).
//!
//! A [`Placement`] is for one allocation. A [`NumaPolicy`] is what a context keeps: a task's, a mapping's, or that of the whole machine. Objects that
//! are placed come past the arrays, which hold whatever was freed on their CPU; frees go to the objects' own nodes as ever.

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};
use flagstone_host::Host;
use flagstone_types::{AllocError, Gfp, Nid};

use crate::cache::Cache;
use crate::caches::Caches;
use crate::unarrayed::Reasons;

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

    /// The set that a list names: numbers and ranges separated by commas, as `0-3,5`.
    #[must_use]
    pub fn parse(list: &str) -> Option<Self> {
        let number = |text: &str| text.parse::<u32>().ok().filter(|n| *n < 64);
        let mut mask = 0;
        for item in list.split(',') {
            let (low, high) = item.split_once('-').unwrap_or((item, item));
            let (low, high) = (number(low)?, number(high)?);
            if low > high {
                return None;
            }
            mask |= u64::MAX >> (63 - (high - low)) << low;
        }
        Some(Self(mask))
    }
}

impl fmt::Display for NodeMask {
    /// A list that [`NodeMask::parse`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut left, mut first) = (self.0, true);
        while left != 0 {
            let low = left.trailing_zeros();
            let run = (left >> low).trailing_ones();
            let comma = if core::mem::take(&mut first) { "" } else { "," };
            if run == 1 {
                write!(f, "{comma}{low}")?;
            } else {
                write!(f, "{comma}{low}-{}", low + run - 1)?;
            }
            left &= !(u64::MAX >> (64 - run) << low);
        }
        Ok(())
    }
}

/// Where objects are to come from.
#[derive(Debug)]
pub enum Placement<'a> {
    /// From the node this runs on, else from the nearest with memory.
    Local,
    /// From this node, else from the nearest to it.
    Preferred(Nid),
    /// From the nodes of the set, nearest to the current one first, else from any other, nearest first.
    PreferredMany(NodeMask),
    /// From the nodes of the set, nearest to the current one first, and no others.
    Bind(NodeMask),
    /// From the nodes of the set in turn, else from the nearest to the one whose turn it is; `last` remembers the turn.
    Interleave {
        /// The set.
        mask: NodeMask,
        /// The node that was last taken, shared by all who take turns.
        last: &'a AtomicU32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Local,
    Preferred(NodeMask),
    Bind(NodeMask),
    Interleave(NodeMask),
}

/// What a context of allocations keeps to be placed by.
#[derive(Debug)]
pub struct NumaPolicy {
    kind: Kind,
    last: AtomicU32,
}

impl NumaPolicy {
    const fn of(kind: Kind) -> Self {
        Self {
            kind,
            // The first turn is the lowest node's.
            last: AtomicU32::new(63),
        }
    }

    /// From where this runs.
    #[must_use]
    pub const fn local() -> Self {
        Self::of(Kind::Local)
    }

    /// From the nodes of `mask` first.
    #[must_use]
    pub const fn preferred(mask: NodeMask) -> Self {
        Self::of(Kind::Preferred(mask))
    }

    /// From the nodes of `mask` only.
    #[must_use]
    pub const fn bind(mask: NodeMask) -> Self {
        Self::of(Kind::Bind(mask))
    }

    /// From the nodes of `mask` in turn.
    #[must_use]
    pub const fn interleave(mask: NodeMask) -> Self {
        Self::of(Kind::Interleave(mask))
    }

    /// A policy from text: `local`, `preferred:1`, `preferred:0-2`, `bind:0,2`, `interleave:0-3`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text == "local" {
            return Some(Self::local());
        }
        let (kind, list) = text.split_once(':')?;
        let mask = NodeMask::parse(list)?;
        Some(match kind {
            "preferred" => Self::preferred(mask),
            "bind" => Self::bind(mask),
            "interleave" => Self::interleave(mask),
            _ => return None,
        })
    }

    /// How the next allocation is placed.
    #[must_use]
    pub fn placement(&self) -> Placement<'_> {
        match self.kind {
            Kind::Local => Placement::Local,
            Kind::Preferred(mask) if mask.0.is_power_of_two() => {
                Placement::Preferred(Nid(mask.0.trailing_zeros() as u16))
            }
            Kind::Preferred(mask) => Placement::PreferredMany(mask),
            Kind::Bind(mask) => Placement::Bind(mask),
            Kind::Interleave(mask) => Placement::Interleave {
                mask,
                last: &self.last,
            },
        }
    }
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
        match placement {
            Placement::Local => self.alloc(cache, gfp),
            Placement::Preferred(nid) => self.alloc_node(cache, gfp, *nid),
            Placement::PreferredMany(mask) => {
                let mask = mask.0 & self.possible_nodes();
                if mask == 0 {
                    return Err(AllocError::InvalidArgument);
                }
                self.alloc_among(cache, gfp, NodeMask(mask), true)
            }
            Placement::Bind(mask) => self.alloc_among(cache, gfp, *mask, false),
            Placement::Interleave { mask, last } => {
                let nid = self.turn(*mask, last).ok_or(AllocError::InvalidArgument)?;
                self.alloc_node(cache, gfp, nid)
            }
        }
    }

    /// An object of `cache` placed as the policy of a context says.
    ///
    /// # Errors
    /// As [`Caches::alloc_placed`].
    pub fn alloc_policy(
        &self,
        cache: &Cache<H>,
        gfp: Gfp,
        policy: &NumaPolicy,
    ) -> Result<NonNull<u8>, AllocError> {
        self.alloc_placed(cache, gfp, &policy.placement())
    }

    /// Places every object that is asked for without a placement as `policy` says, from now on: for machines that place for programs which do not.
    /// All caches go without arrays then. Waits for a grace period: called with no lock held, outside of read-side sections.
    ///
    /// # Errors
    /// [`AllocError::InvalidArgument`] if the policy names no node that exists, and for a second policy; [`AllocError::OutOfMemory`] if the host can
    /// not stop its arrays. Nothing has changed then.
    pub fn place_all(&self, policy: &'static NumaPolicy) -> Result<(), AllocError> {
        let named = match policy.kind {
            Kind::Local => u64::MAX,
            Kind::Preferred(mask) | Kind::Bind(mask) | Kind::Interleave(mask) => mask.0,
        };
        if named & self.possible_nodes() == 0 || self.machine_policy().is_some() {
            return Err(AllocError::InvalidArgument);
        }
        self.lock_list().placed = true;
        if !self.set_reason(&|_| true, Reasons::PLACE, true) {
            self.lock_list().placed = false;
            return Err(AllocError::OutOfMemory);
        }
        let policy = core::ptr::from_ref(policy).cast_mut();
        self.policy_of_machine.store(policy, Ordering::Release);
        Ok(())
    }

    /// Pages placed by the policy of the machine, where there is one: `take` asks for them, on a node that is preferred or, if the flags say so, the only one.
    ///
    /// # Errors
    /// What `take` says.
    pub fn place_pages<T>(
        &self,
        gfp: Gfp,
        mut take: impl FnMut(Gfp, Option<Nid>) -> Result<T, AllocError>,
    ) -> Result<T, AllocError> {
        let Some(policy) = self.machine_policy() else {
            return take(gfp, None);
        };
        let (mask, others) = match policy.placement() {
            Placement::Local => return take(gfp, None),
            Placement::Preferred(nid) => return take(gfp, Some(nid)),
            Placement::Interleave { mask, last } => return take(gfp, self.turn(mask, last)),
            Placement::PreferredMany(mask) => (mask, true),
            Placement::Bind(mask) => (mask, false),
        };
        let here = self.host().current_node();
        let only = gfp | Gfp::THISNODE | Gfp::NOWARN;
        let bound = self
            .by_distance(here)
            .filter(|nid| mask.contains(*nid))
            .find_map(|nid| take(only, Some(nid)).ok());
        match bound {
            Some(pages) => Ok(pages),
            None if others => take(gfp, None),
            None => Err(AllocError::OutOfMemory),
        }
    }

    pub(crate) fn machine_policy(&self) -> Option<&'static NumaPolicy> {
        // SAFETY: null, or what `place_all` was given, a static.
        unsafe { self.policy_of_machine.load(Ordering::Acquire).as_ref() }
    }

    /// As [`Caches::alloc_policy`] for a request that came to the slow path without a placement, and whose flags were looked at.
    pub(crate) fn alloc_by_machine(
        &self,
        cache: &Cache<H>,
        gfp: Gfp,
        policy: &NumaPolicy,
    ) -> Result<NonNull<u8>, AllocError> {
        // A pool of one node is not another node's to serve.
        if gfp.contains(Gfp::THISNODE) {
            return self.alloc_here(cache, gfp);
        }
        match policy.placement() {
            Placement::Local => self.alloc_here(cache, gfp),
            Placement::Preferred(nid) => self.alloc_from_nodes(cache, gfp, nid),
            Placement::PreferredMany(mask) => {
                let quiet = gfp | Gfp::NOWARN;
                self.alloc_bound(cache, quiet, mask)
                    .or_else(|_| self.alloc_here(cache, gfp))
            }
            Placement::Bind(mask) => self.alloc_bound(cache, gfp, mask),
            Placement::Interleave { mask, last } => match self.turn(mask, last) {
                Some(nid) => self.alloc_from_nodes(cache, gfp, nid),
                None => self.alloc_here(cache, gfp),
            },
        }
    }

    /// From the nodes of `mask`, and then, if `others`, from any; looks at the flags first.
    fn alloc_among(
        &self,
        cache: &Cache<H>,
        gfp: Gfp,
        mask: NodeMask,
        others: bool,
    ) -> Result<NonNull<u8>, AllocError> {
        let gfp = self.fix_up(gfp);
        if self.is_to_fail(cache, gfp) {
            return Err(AllocError::OutOfMemory);
        }
        let quiet = if others { Gfp::NOWARN } else { Gfp::empty() };
        let object = match self.alloc_bound(cache, gfp | quiet, mask) {
            Err(_) if others => self.alloc_here(cache, gfp)?,
            result => result?,
        };
        if gfp.contains(Gfp::ZERO) {
            // SAFETY: the object is ours.
            unsafe { cache.clear(object) };
        }
        Ok(object)
    }

    /// From the nodes of `mask`, nearest first, and no others.
    fn alloc_bound(
        &self,
        cache: &Cache<H>,
        gfp: Gfp,
        mask: NodeMask,
    ) -> Result<NonNull<u8>, AllocError> {
        let here = self.host().current_node();
        let mut result = Err(AllocError::InvalidArgument);
        for nid in self.by_distance(here).filter(|nid| mask.contains(*nid)) {
            // That one node has nothing is no failure of the request.
            result = self.alloc_from_nodes(cache, gfp | Gfp::THISNODE | Gfp::NOWARN, nid);
            if result.is_ok() {
                return result;
            }
        }
        if result == Err(AllocError::OutOfMemory) {
            self.report_out_of_memory(cache, gfp, here);
        }
        result
    }

    /// Whose turn it is among the nodes of `mask` that exist.
    fn turn(&self, mask: NodeMask, last: &AtomicU32) -> Option<Nid> {
        let mask = NodeMask(mask.0 & self.possible_nodes());
        let next = |last: u32| mask.next_node_in(Nid(last as u16)).map(|n| u32::from(n.0));
        let before = last
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
            .ok()?;
        next(before).map(|nid| Nid(nid as u16))
    }

    /// A bit for each node that exists.
    fn possible_nodes(&self) -> u64 {
        if self.nodes >= 64 {
            u64::MAX
        } else {
            (1 << self.nodes) - 1
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

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

    #[test]
    fn masks_are_read_as_they_are_written() {
        for (text, mask) in [("0-3,5", 0b10_1111), ("63", 1 << 63), ("0-63", u64::MAX)] {
            assert_eq!(NodeMask::parse(text), Some(NodeMask(mask)));
            assert_eq!(NodeMask(mask).to_string(), text);
        }
        for bad in ["", "3-1", "64", "1,", "a", "0-64"] {
            assert_eq!(NodeMask::parse(bad), None, "{bad}");
        }
        assert!(NumaPolicy::parse("bind:1-2").is_some());
        assert!(NumaPolicy::parse("near:1").is_none() && NumaPolicy::parse("bind").is_none());
    }
}
