//! What is said when something is wrong with a request: invalid flags (S9), no memory.

use core::fmt;
use flagstone_frames::PageFailure;
use flagstone_host::{Host, Level};
use flagstone_types::{Gfp, Nid};

use crate::cache::Cache;
use crate::caches::Caches;

/// Flags of a request that no object can satisfy, and what they were replaced by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnexpectedGfp {
    /// The flags that make no sense for an object.
    pub invalid: Gfp,
    /// What the request was served with.
    pub fixed: Gfp,
}

impl fmt::Display for UnexpectedGfp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { invalid, fixed } = self;
        write!(
            f,
            "Unexpected gfp: {:#x} ({invalid}). Fixing up to gfp: {:#x} ({fixed}). Fix your code!",
            invalid.bits(),
            fixed.bits(),
        )
    }
}

/// What a request for an object may not carry, bits without a meaning included.
const INVALID: Gfp = Gfp::from_bits_retain(Gfp::SLAB_BUG_MASK.bits() | !Gfp::all().bits());

/// A slab could not grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory<'a> {
    /// The node asked for.
    pub nid: Nid,
    /// The flags of the request.
    pub gfp: Gfp,
    /// The cache.
    pub cache: &'a str,
    /// Bytes of an object as asked for.
    pub object_size: usize,
    /// Bytes from one object to the next.
    pub size: usize,
    /// The order of its slabs.
    pub order: u32,
}

impl fmt::Display for OutOfMemory<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            nid,
            gfp,
            cache,
            object_size,
            size,
            order,
        } = self;
        writeln!(
            f,
            "SLAB: Unable to allocate memory on node {nid}, gfp={:#x}({gfp})",
            gfp.bits()
        )?;
        write!(
            f,
            "  cache: {cache}, object size: {object_size}, buffer size: {size}, order: {order}"
        )
    }
}

/// The slabs and objects of one node of a cache, as the report on memory prints them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeUse {
    /// The node.
    pub nid: Nid,
    /// Slabs with an object in use, and those on CPUs' lists.
    pub active_slabs: usize,
    /// All slabs.
    pub slabs: usize,
    /// Objects in use.
    pub active_objects: usize,
    /// All objects.
    pub objects: usize,
}

impl fmt::Display for NodeUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            nid,
            active_slabs,
            slabs,
            active_objects,
            objects,
        } = self;
        write!(
            f,
            "  node {nid}: slabs: {active_slabs}/{slabs}, objs: {active_objects}/{objects}, free: {}",
            objects - active_objects
        )
    }
}

impl<H: Host> Caches<H> {
    /// The flags of a request without those that make no sense for an object, which are reported.
    #[inline]
    pub(crate) fn fix_up(&self, gfp: Gfp) -> Gfp {
        if gfp.intersects(INVALID) {
            self.report_gfp(gfp)
        } else {
            gfp
        }
    }

    #[cold]
    #[inline(never)]
    fn report_gfp(&self, gfp: Gfp) -> Gfp {
        let report = UnexpectedGfp {
            invalid: gfp.intersection(INVALID),
            fixed: Gfp::from_bits_retain(gfp.bits() & !INVALID.bits()),
        };
        let host = self.host();
        if self.reports.admits(host.now().0) {
            host.log(Level::Warning, format_args!("{report}"));
            let mut stack = [0; 16];
            let depth = host.backtrace(&mut stack);
            for address in &stack[..depth] {
                host.log(Level::Warning, format_args!(" [<{address:016x}>]"));
            }
        }
        report.fixed
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn report_out_of_memory(&self, cache: &Cache<H>, gfp: Gfp, nid: Nid) {
        let host = self.host();
        if gfp.contains(Gfp::NOWARN) || !self.reports.admits(host.now().0) {
            return;
        }
        let report = OutOfMemory {
            nid,
            gfp,
            cache: cache.name(),
            object_size: cache.object_size(),
            size: cache.layout.size as usize,
            order: cache.layout.order.get(),
        };
        host.log(Level::Warning, format_args!("{report}"));
        for node in cache.each_node() {
            let usage = self.node_use(cache, node);
            host.log(Level::Warning, format_args!("{usage}"));
        }
        // What there was of pages; growth itself asks for them quietly.
        self.frames.report_failure(&PageFailure {
            order: cache.layout.order.get(),
            gfp,
            nid,
        });
    }

    /// Slabs and objects of one node of a cache.
    pub(crate) fn node_use(&self, cache: &Cache<H>, node: &crate::node::Node<H>) -> NodeUse {
        let on_cpus = self.cpu_use(cache, node.nid);
        let locked = node.lock(cache, &self.frames);
        let lists = &locked.lists;
        let active_slabs = lists.partial.len() + lists.full.len() + on_cpus.partial + on_cpus.full;
        let slabs = active_slabs + lists.free.len();
        let objects = slabs * cache.layout.num as usize;
        NodeUse {
            nid: node.nid,
            active_slabs,
            slabs,
            active_objects: objects - lists.free_objects - on_cpus.free_objects,
            objects,
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn the_gfp_report_reads_as_published() {
        let r = UnexpectedGfp {
            invalid: Gfp::HIGHMEM,
            fixed: Gfp::KERNEL,
        };
        assert_eq!(
            r.to_string(),
            "Unexpected gfp: 0x2 (__GFP_HIGHMEM). Fixing up to gfp: 0x24000c0 (GFP_KERNEL). \
             Fix your code!"
        );
    }
}
