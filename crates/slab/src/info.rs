//! `slabinfo`: every cache's numbers, as Linux prints them and as JSON.

use core::fmt;
use flagstone_host::Host;

use crate::cache::{Cache, Name};
use crate::caches::Caches;
use crate::layout::Layout;

/// The numbers of one cache at one moment.
#[derive(Clone, Copy, Debug)]
pub struct SlabInfo {
    name: Name,
    /// Objects that are out of their slabs, as Linux counts: with users or in arrays.
    pub active_objects: usize,
    /// All objects.
    pub objects: usize,
    /// Of the active ones, those that wait in per-CPU arrays, shared arrays and alien caches.
    pub cached_objects: usize,
    /// Bytes from one object to the next.
    pub size: usize,
    /// Bytes of an object as asked for.
    pub object_size: usize,
    /// Objects per slab.
    pub per_slab: usize,
    /// Pages per slab.
    pub pages_per_slab: usize,
    /// What a CPU's array may hold to begin with.
    pub limit: u32,
    /// Objects that move at once.
    pub batch: u32,
    /// The shared array holds so many batches.
    pub shared_factor: u32,
    /// Slabs with an object out of them, and those on CPUs' lists.
    pub active_slabs: usize,
    /// All slabs.
    pub slabs: usize,
    /// Objects in shared arrays.
    pub shared_available: usize,
    /// Slabs with free objects on CPUs' lists, in a cache with CPU slabs.
    pub cpu_slabs: usize,
    /// Free objects in those.
    pub cpu_free_objects: usize,
    /// How its slabs are cut.
    pub layout: Layout,
    /// Whether the objects count as reclaimable.
    pub reclaimable: bool,
}

impl SlabInfo {
    /// The cache's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// Objects with users.
    #[must_use]
    pub const fn used_objects(&self) -> usize {
        self.active_objects.saturating_sub(self.cached_objects)
    }

    /// The two lines above the caches, as Linux prints them.
    pub const HEADER: &'static str = "slabinfo - version: 2.1\n\
        # name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> \
        : tunables <limit> <batchcount> <sharedfactor> \
        : slabdata <active_slabs> <num_slabs> <sharedavail>";

    /// Writes the numbers as one JSON object.
    ///
    /// # Errors
    /// What the writer says.
    pub fn write_json(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        out.write_str("{\"name\":\"")?;
        for c in self.name().chars() {
            match c {
                '"' => out.write_str("\\\"")?,
                '\\' => out.write_str("\\\\")?,
                c if c < ' ' => write!(out, "\\u{:04x}", c as u32)?,
                c => out.write_char(c)?,
            }
        }
        write!(
            out,
            "\",\"active_objs\":{},\"num_objs\":{},\"cached_objs\":{},\"used_objs\":{},\
             \"objsize\":{},\"requested_size\":{},\"objperslab\":{},\"pagesperslab\":{},\
             \"limit\":{},\"batchcount\":{},\"sharedfactor\":{},\"active_slabs\":{},\
             \"num_slabs\":{},\"sharedavail\":{},\"cpu_slabs\":{},\"cpu_free_objs\":{},\"layout\":\"{}\",\"colours\":{},\"waste\":{},\
             \"reclaimable\":{}}}",
            self.active_objects,
            self.objects,
            self.cached_objects,
            self.used_objects(),
            self.size,
            self.object_size,
            self.per_slab,
            self.pages_per_slab,
            self.limit,
            self.batch,
            self.shared_factor,
            self.active_slabs,
            self.slabs,
            self.shared_available,
            self.cpu_slabs,
            self.cpu_free_objects,
            self.layout.place.name(),
            self.layout.colours,
            self.layout.waste,
            self.reclaimable,
        )
    }
}

impl fmt::Display for SlabInfo {
    /// The line of `/proc/slabinfo`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:<17} {:6} {:6} {:6} {:4} {:4} : tunables {:4} {:4} {:4} : slabdata {:6} {:6} {:6}",
            self.name(),
            self.active_objects,
            self.objects,
            self.size,
            self.per_slab,
            self.pages_per_slab,
            self.limit,
            self.batch,
            self.shared_factor,
            self.active_slabs,
            self.slabs,
            self.shared_available,
        )
    }
}

impl<H: Host> Caches<H> {
    /// The numbers of one cache; out of date at once while others use it.
    #[must_use]
    pub fn info(&self, cache: &Cache<H>) -> SlabInfo {
        let mut info = SlabInfo {
            name: cache.name,
            active_objects: 0,
            objects: 0,
            cached_objects: 0,
            size: cache.layout.size as usize,
            object_size: cache.object_size(),
            per_slab: cache.layout.num as usize,
            pages_per_slab: cache.layout.order.pages(),
            limit: cache.limit.load(core::sync::atomic::Ordering::Relaxed),
            batch: cache.batch(),
            shared_factor: 0,
            active_slabs: 0,
            slabs: 0,
            shared_available: 0,
            cpu_slabs: 0,
            cpu_free_objects: 0,
            layout: cache.layout,
            reclaimable: cache.flags.reclaimable,
        };
        for node in cache.each_node() {
            let usage = self.node_use(cache, node);
            info.active_objects += usage.active_objects;
            info.objects += usage.objects;
            info.active_slabs += usage.active_slabs;
            info.slabs += usage.slabs;
            let on_cpus = self.cpu_use(cache, node.nid);
            info.cpu_slabs += on_cpus.partial;
            info.cpu_free_objects += on_cpus.free_objects;
            let locked = node.lock(cache, &self.frames);
            info.shared_available += locked.lists.shared.len as usize;
            info.shared_factor = locked.lists.shared.limit / info.batch.max(1);
        }
        info.cached_objects = self.objects_cached(cache);
        info
    }

    /// Calls `each` with the numbers of every cache, newest first.
    pub fn slabinfo(&self, mut each: impl FnMut(&SlabInfo)) {
        self.each_cache(|cache| each(&self.info(cache)));
    }
}
