//! Giving back: draining arrays, shrinking a cache, the reaper.

use core::ptr::NonNull;
use flagstone_host::{CpuCache, Event, Host};
use flagstone_types::CpuId;

use crate::alloc::CHUNK;
use crate::cache::Cache;
use crate::caches::Caches;
use crate::node::{Doomed, Node, Refused, Strays};

/// What one round of the reaper did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reaped {
    /// Objects that left arrays.
    pub objects: usize,
    /// Slabs given back to the page allocator.
    pub slabs: usize,
}

impl<H: Host> Caches<H> {
    /// Gives back all that a cache does not need: empties its arrays and releases its free slabs. Returns how
    /// many slabs were released. Where arrays can not be stopped they keep their objects.
    pub fn shrink(&self, cache: &Cache<H>) -> usize {
        let mut released = 0;
        if let Some(stopped) = self.host().stop_arrays() {
            released += self.drain_stopped(&stopped, cache);
        }
        released += self.drain_nodes(cache) + self.drain_slots(cache) + self.release_free(cache);
        self.host().poll();
        released
    }

    /// Shrinks every cache; returns how many slabs were released. Stops the arrays once for all of them.
    pub fn shrink_all(&self) -> usize {
        let stopped = self.host().stop_arrays();
        let mut slabs = 0;
        if let Some(stopped) = &stopped {
            self.each_cache(|cache| slabs += self.drain_stopped(stopped, cache));
        }
        drop(stopped);
        self.each_cache(|cache| {
            slabs += self.drain_nodes(cache) + self.drain_slots(cache) + self.release_free(cache);
        });
        self.host().poll();
        slabs
    }

    /// Empties the arrays of every CPU. `false` if the host can not stop them.
    pub fn drain_arrays(&self, cache: &Cache<H>) -> bool {
        let Some(stopped) = self.host().stop_arrays() else {
            return false;
        };
        self.drain_stopped(&stopped, cache);
        true
    }

    /// Empties the arrays of every CPU; returns how many slabs were released on the way.
    pub(crate) fn drain_stopped(&self, stopped: &H::Stopped, cache: &Cache<H>) -> usize {
        let filled = |cpu: &u32| cache.array.len(CpuId(*cpu)) != 0;
        let cpus = (0..self.host().possible_cpus()).filter(filled);
        self.drain_cpus(stopped, cache, cpus)
    }

    pub(crate) fn drain_cpus(
        &self,
        stopped: &H::Stopped,
        cache: &Cache<H>,
        cpus: impl Iterator<Item = u32>,
    ) -> usize {
        let host = self.host();
        let mut released = 0;
        for cpu in cpus {
            host.count(Event::SlabDrain, 1);
            host.drain(stopped, &cache.array, CpuId(cpu), &mut |objects| {
                released += self.give_home(cache, objects);
            });
        }
        released
    }

    /// Empties the arrays of a cache that nobody else can reach, and gives everything free back.
    pub(crate) fn drain_unshared(&self, cache: &mut Cache<H>) {
        let host = self.host();
        // Objects found here go to the slabs, not to the shared array.
        let limit = core::mem::replace(cache.limit.get_mut(), 0);
        // SAFETY: the array is moved out for the time of the drain, in which nobody uses the cache's (giving
        // objects to their slabs does not), and is put back.
        let mut array = unsafe { core::ptr::read(&*cache.array) };
        for cpu in 0..host.possible_cpus() {
            host.drain_unshared(&mut array, CpuId(cpu), &mut |objects| {
                self.give_home(cache, objects);
            });
        }
        // SAFETY: as above.
        unsafe { core::ptr::write(&raw mut *cache.array, array) };
        self.drain_nodes(cache);
        self.release_free(cache);
        *cache.limit.get_mut() = limit;
    }

    /// Empties the shared arrays and the alien caches of every node into the slabs.
    pub(crate) fn drain_nodes(&self, cache: &Cache<H>) -> usize {
        let mut released = 0;
        for node in cache.each_node() {
            for to in cache.each_node() {
                let Some(alien) = node.aliens.to(to.nid) else {
                    continue;
                };
                // What was there at the beginning: others may put objects in as quickly as they are taken out.
                let mut left = alien.stack.lock().len();
                while left > 0 {
                    let mut buffer = [NonNull::dangling(); CHUNK];
                    let n = alien.stack.lock().pop_n(&mut buffer[..left.min(CHUNK)]);
                    if n == 0 {
                        break;
                    }
                    left -= n;
                    released += self.give_home(cache, &buffer[..n]);
                }
            }
        }
        for node in cache.each_node() {
            let there = node.lock(cache, &self.frames).lists.shared.len;
            released += self.empty_shared(cache, node, there as usize);
        }
        released
    }

    /// Moves up to `most` objects from a node's shared array into the slabs; the lock is held for a chunk at a time.
    fn empty_shared(&self, cache: &Cache<H>, node: &Node<H>, mut most: usize) -> usize {
        let mut released = 0;
        while most > 0 {
            let mut doomed = Doomed::new();
            let mut strays = Strays::new();
            let mut buffer = [NonNull::dangling(); CHUNK];
            let (n, refused) = {
                let mut locked = node.lock(cache, &self.frames);
                let shared = &mut locked.lists.shared;
                let n = shared.objects().len().min(CHUNK).min(most);
                let top = shared.objects().len() - n;
                buffer[..n].copy_from_slice(&shared.objects()[top..]);
                shared.drop_top(n);
                let refused = locked.give(&buffer[..n], &mut strays, &mut doomed, true);
                (n, refused)
            };
            released += self.give_home(cache, strays.as_slice()) + self.release(cache, doomed);
            if let Err(Refused { at, error }) = refused {
                self.refuse(cache, buffer[at], error);
                released += self.give_home(cache, &buffer[at + 1..n]);
            }
            if n == 0 {
                break;
            }
            most -= n;
        }
        released
    }

    /// Releases all free slabs of a cache.
    fn release_free(&self, cache: &Cache<H>) -> usize {
        let mut released = 0;
        for node in cache.each_node() {
            let mut doomed = Doomed::new();
            {
                let mut locked = node.lock(cache, &self.frames);
                while locked.release_one(&mut doomed) {}
            }
            released += self.release(cache, doomed);
        }
        released
    }

    /// One round of the reaper: what was idle since the last round goes back. Slabs with free objects go from CPUs to their nodes. Of the shared arrays, the objects that nobody fetched
    /// meanwhile; of the free slabs, those that were free already; of the CPUs' arrays, everything, if `arrays`.
    pub fn reap(&self, arrays: bool) -> Reaped {
        let mut reaped = Reaped::default();
        let stopped = if arrays {
            self.host().stop_arrays()
        } else {
            None
        };
        self.each_cache(|cache| {
            if let Some(stopped) = &stopped {
                for cpu in 0..self.host().possible_cpus() {
                    reaped.objects += cache.array.len(CpuId(cpu)) as usize;
                    if self.policy.adaptive && cache.array.limit(CpuId(cpu)) != 0 {
                        // It grows again where it is used.
                        cache.set_array_limit(self.host(), CpuId(cpu), cache.first_limit);
                    }
                }
                reaped.slabs += self.drain_stopped(stopped, cache);
            }
        });
        drop(stopped);
        self.each_cache(|cache| {
            reaped.slabs += self.drain_slots(cache);
            for node in cache.each_node() {
                let idle = {
                    let mut locked = node.lock(cache, &self.frames);
                    let lists = &mut *locked.lists;
                    let shared = &mut lists.shared;
                    let idle = core::mem::replace(&mut shared.low, shared.len).min(shared.len);
                    if idle == shared.len {
                        // Nobody fetched anything: it grows again where it is used.
                        shared.limit = shared.limit.min(lists.shared_first);
                    }
                    idle
                };
                reaped.objects += idle as usize;
                reaped.slabs += self.empty_shared(cache, node, idle as usize);
                let mut doomed = Doomed::new();
                node.lock(cache, &self.frames).release_idle(&mut doomed);
                reaped.slabs += self.release(cache, doomed);
            }
        });
        self.host().poll();
        reaped
    }

    /// How many objects are with users: those that are out of the slabs and not in an array or alien cache. While others
    /// free objects the number is too large rather than too small, for objects travel towards their slabs, and the places are looked at in the
    /// opposite order.
    pub(crate) fn objects_used(&self, cache: &Cache<H>) -> usize {
        let out = self.objects_out(cache);
        out.saturating_sub(self.objects_cached(cache))
    }

    /// How many free objects are out of the slabs: in shared arrays, alien caches and CPUs' arrays.
    pub(crate) fn objects_cached(&self, cache: &Cache<H>) -> usize {
        let mut cached = 0;
        for node in cache.each_node() {
            cached += node.lock(cache, &self.frames).lists.shared.len as usize;
        }
        for node in cache.each_node() {
            for alien in cache.each_node().filter_map(|to| node.aliens.to(to.nid)) {
                cached += alien.stack.lock().len();
            }
        }
        for cpu in 0..self.host().possible_cpus() {
            cached += cache.array.len(CpuId(cpu)) as usize;
        }
        cached
    }

    /// How many objects are out of the slabs of a cache: with users, in arrays, in alien caches.
    /// In a cache with CPU slabs one that moves meanwhile may be counted twice or not at all.
    #[must_use]
    pub fn objects_out(&self, cache: &Cache<H>) -> usize {
        let mut out = 0;
        for node in cache.each_node() {
            out += self.node_use(cache, node).active_objects;
        }
        out
    }
}
