//! Looking that the invariants hold (S1 to S6), for tests: nobody else may use the caches meanwhile.

use core::ptr::NonNull;
use flagstone_host::Host;

use crate::caches::Caches;
use crate::node::LockedNode;
use crate::record::{ListId, Place, Record};
use crate::slot::LockedSlot;

impl<H: Host> Caches<H> {
    /// Checks the invariants of every cache. For tests, when nobody else uses the caches.
    ///
    /// # Errors
    /// Says what is wrong.
    pub fn validate(&self) -> Result<(), &'static str> {
        let mut result = Ok(());
        self.each_cache(|cache| {
            for cpu in cache.cpu_slabs.cpus() {
                if let Some(slot) = cache.lock_slot(&self.frames, cpu) {
                    result = result.and(slot.validate());
                }
            }
            for node in cache.each_node() {
                let checked = node.lock(cache, &self.frames).validate();
                result = result.and(checked);
                for to in cache.each_node() {
                    let Some(alien) = node.aliens.to(to.nid) else {
                        continue;
                    };
                    let stack = alien.stack.lock();
                    let locked = to.lock(cache, &self.frames);
                    result = result.and(locked.validate_cached(stack.objects()));
                }
            }
        });
        result
    }
}

impl<H: Host> LockedNode<'_, H> {
    /// Checks S1 for free objects that are out of their slab, in the node's shared array or in an alien cache for this node.
    pub(crate) fn validate_cached(&self, objects: &[NonNull<u8>]) -> Result<(), &'static str> {
        for (i, &object) in objects.iter().enumerate() {
            let Ok((_, nid, slab)) = self.cache.slab_of(self.frames, object) else {
                return Err("cached object: in no slab of its cache");
            };
            if nid != self.node.nid {
                return Err("cached object: of another node");
            }
            // SAFETY: the slab is one of this node, whose lock is held (S5).
            let record = unsafe { slab.as_ref() };
            let Ok(number) = self.cache.number_in(record.objects, object) else {
                return Err("cached object: not the start of an object");
            };
            // SAFETY: as above.
            if unsafe { record.is_listed(self.cache, number) } {
                return Err("cached object: also in its slab's index");
            }
            if objects[..i].contains(&object) {
                return Err("cached object: twice");
            }
        }
        Ok(())
    }

    /// Checks S2 to S4 for every slab of the node, and its shared array.
    pub(crate) fn validate(&mut self) -> Result<(), &'static str> {
        let lists = &*self.lists;
        let mut free_objects = 0;
        let mut wrong = None;
        for (list, id) in [
            (&lists.partial, ListId::Partial),
            (&lists.full, ListId::Full),
            (&lists.free, ListId::Free),
        ] {
            let mut count = 0;
            // SAFETY: the node's lock is held (S5).
            unsafe {
                list.for_each(|slab| {
                    count += 1;
                    let record = slab.as_ref();
                    let num = self.cache.layout.num;
                    free_objects += (num - record.active) as usize;
                    let belongs = if record.active == num {
                        ListId::Full
                    } else if record.active == 0 {
                        ListId::Free
                    } else {
                        ListId::Partial
                    };
                    if record.list != id || belongs != id || Record::place(slab) != Place::Node {
                        wrong = Some("node: slab on the wrong list");
                    }
                    match self.cache.slab_of(self.frames, record.objects) {
                        Ok((_, nid, found)) if found == slab && nid == self.node.nid => {}
                        _ => wrong = Some("node: slab is not found by its objects"),
                    }
                    if let Err(e) = record.validate(self.cache) {
                        wrong = Some(e);
                    }
                });
            }
            if count != list.len() {
                wrong = Some("node: length of a list");
            }
        }
        if free_objects != lists.free_objects {
            wrong = Some("node: free_objects is not the sum over its slabs");
        }
        let shared = &lists.shared;
        if shared.len > shared.capacity || shared.low > shared.len {
            wrong = Some("node: lengths of the shared array");
        }
        if let Err(e) = self.validate_cached(shared.objects()) {
            wrong = Some(e);
        }
        wrong.map_or(Ok(()), Err)
    }
}

impl<H: Host> LockedSlot<'_, H> {
    /// Checks S2, S3 and S5 for every slab of the slot.
    fn validate(&self) -> Result<(), &'static str> {
        let mut wrong = None;
        let mut all_free = 0;
        for node in self.cache.each_node() {
            let set = self.lists.set(node.nid);
            let mut free = 0;
            for (list, id) in [(&set.partial, ListId::Partial), (&set.full, ListId::Full)] {
                let mut count = 0;
                // SAFETY: the slot's lock is held (S5).
                unsafe {
                    list.for_each(|slab| {
                        count += 1;
                        let record = slab.as_ref();
                        free += (self.cache.layout.num - record.active) as usize;
                        let is_full = record.active == self.cache.layout.num;
                        if record.list != id || is_full != (id == ListId::Full) {
                            wrong = Some("slot: slab on the wrong list");
                        }
                        if Record::place(slab) != Place::Cpu(self.cpu) {
                            wrong = Some("slot: slab that is said to be elsewhere");
                        }
                        match self.cache.slab_of(self.frames, record.objects) {
                            Ok((_, nid, found)) if found == slab && nid == node.nid => {}
                            _ => wrong = Some("slot: slab is not found by its objects"),
                        }
                        if let Err(e) = record.validate(self.cache) {
                            wrong = Some(e);
                        }
                    });
                }
                if count != list.len() {
                    wrong = Some("slot: length of a list");
                }
            }
            if free != set.free {
                wrong = Some("slot: free objects are not the sum over the slabs of a node");
            }
            all_free += free;
        }
        if all_free != self.lists.free {
            wrong = Some("slot: free objects are not the sum over the nodes");
        }
        if self.cache.cpu_slabs.limit() == 0 && all_free != 0 {
            wrong = Some("slot: slabs although CPU slabs are switched off");
        }
        wrong.map_or(Ok(()), Err)
    }
}
