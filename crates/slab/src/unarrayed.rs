//! Caches without arrays, and why: whatever must see every object switches the arrays of its caches off.
//!
//! Each reason is a bit of the cache. Its arrays are on while no bit is set, so that those who need them off do not know of each other; the
//! fast path finds nothing to pop and no room to push, and has no test for any of them.

use core::sync::atomic::{AtomicU32, Ordering};
use flagstone_host::{CpuCache, Host};
use flagstone_types::CpuId;

use crate::cache::Cache;
use crate::cache_list::CacheList;
use crate::caches::Caches;
use crate::inject;

/// Why a cache is without arrays: a set of bits, written under the lock of the list of caches.
#[derive(Debug, Default)]
pub(crate) struct Reasons(AtomicU32);

impl Reasons {
    /// It was said so by [`Caches::set_arrays`].
    pub(crate) const SWITCH: u32 = 1 << 0;
    /// Its allocations can be made to fail.
    pub(crate) const INJECT: u32 = 1 << 1;
    /// Its objects are placed by a policy.
    pub(crate) const PLACE: u32 = 1 << 2;
    /// Its objects are debugged.
    pub(crate) const DEBUG: u32 = 1 << 3;

    pub(crate) const fn new(bits: u32) -> Self {
        Self(AtomicU32::new(bits))
    }

    /// Whether any of `bits` is set.
    #[inline]
    pub(crate) fn has(&self, bits: u32) -> bool {
        self.0.load(Ordering::Relaxed) & bits != 0
    }
}

impl<H: Host> Cache<H> {
    /// Gives a new cache the reasons that hold for it when it is put on the list.
    pub(crate) fn begin_unarrayed(&mut self, list: &CacheList<H>) {
        let mut bits = inject::reasons_of(self, &list.inject);
        if self.debug.is_some() {
            bits |= Reasons::DEBUG;
        }
        if list.placed {
            bits |= Reasons::PLACE;
        }
        *self.reasons.0.get_mut() = bits;
        if bits != 0 {
            *self.limit.get_mut() = 0;
        }
    }
}

impl<H: Host> Caches<H> {
    /// Switches the arrays of a cache off (every allocation and free then takes the slow path and sees the slabs), or on again; a
    /// cache that must see every object stays without. Waits for a grace period: called with no lock held, outside of read-side sections.
    /// `false` if the host can not stop its arrays; nothing has changed then.
    pub fn set_arrays(&self, cache: &Cache<H>, on: bool) -> bool {
        let this = |other: &Cache<H>| core::ptr::eq(other, cache);
        self.set_reason(&this, Reasons::SWITCH, !on)
    }

    /// Sets or clears one reason for being without arrays in the caches that `which` picks. As [`Caches::set_arrays`] otherwise.
    pub(crate) fn set_reason(
        &self,
        which: &dyn Fn(&Cache<H>) -> bool,
        reason: u32,
        set: bool,
    ) -> bool {
        let host = self.host();
        // One at a time: the limits of all CPUs must end up as the last call says.
        let list = self.lock_list();
        let Some(stopped) = host.stop_arrays() else {
            return false;
        };
        for cache in list.iter().filter(|cache| which(cache)) {
            let bits = if set {
                cache.reasons.0.fetch_or(reason, Ordering::Relaxed) | reason
            } else {
                cache.reasons.0.fetch_and(!reason, Ordering::Relaxed) & !reason
            };
            let limit = if bits == 0 { cache.first_limit } else { 0 };
            cache.limit.store(limit, Ordering::SeqCst);
        }
        if !set {
            return true;
        }
        drop(list);
        // Who read the old limit before has set it when this is over (`set_array_limit`); who reads later finds 0. Arrays stay stopped meanwhile, so
        // that nothing from here on can fail: another caller may rely on the same reason by now, and it could not be taken back.
        host.synchronize();
        let list = self.lock_list();
        // Where somebody cleared the reason meanwhile, arrays are on again.
        let off = |cache: &&Cache<H>| which(cache) && cache.limit.load(Ordering::SeqCst) == 0;
        for cache in list.iter().filter(off) {
            for cpu in 0..host.possible_cpus() {
                cache.array.set_limit(CpuId(cpu), 0);
            }
            // The empty ones too: only a drain keeps a section that read the old limit from putting something in (host A5, A6).
            self.drain_cpus(&stopped, cache, 0..host.possible_cpus());
        }
        drop(stopped);
        for cache in list.iter().filter(off) {
            self.drain_nodes(cache);
        }
        true
    }
}
