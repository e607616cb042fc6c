//! Watermarks: how much of a zone stays free for whom.
//!
//! `min` is for callers that must not fail, `low` is where background reclaim begins and `high` where it ends.
//! The sizes are Linux's: the sum of `min` over the machine is the square root of 16 times its size in KiB, between 128 KiB and 256 MiB, shared by size of zone; `low`
//! and `high` are one and two steps above it, a step being a quarter of `min` or a thousandth of the zone. A host that
//! has no use for reserves sets the sum to 0, and all of them are 0 then.

use core::sync::atomic::{AtomicUsize, Ordering};

use crate::zone::ZoneState;
use flagstone_host::Host;
use flagstone_types::Zone;

/// How far down a request may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// To the low watermark: the first attempt.
    Low,
    /// To the minimum, or into it by the caller's rights.
    Min,
    /// To the last page.
    Nothing,
}

/// What a request may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) level: Level,
    /// May use half of the reserve.
    pub(crate) high: bool,
    /// May use a quarter more, and what is set apart for atomic callers.
    pub(crate) atomic: bool,
}

/// For each zone: which part of the zones above it stays free in it when requests fall back (Linux's `lowmem_reserve_ratio`).
const RESERVE_RATIO: [usize; Zone::COUNT] = [256, 256, 32, 0, 0];

impl<H: Host> ZoneState<H> {
    /// Whether `pages` may be taken by a request that asked for zones up to `class`.
    #[inline]
    pub(crate) fn allows(&self, mark: Mark, pages: usize, class: Zone) -> bool {
        let free = self.free_pages();
        if mark.level == Level::Nothing {
            return free >= pages;
        }
        let mut least = match mark.level {
            Level::Low => self.low.load(Ordering::Relaxed),
            _ => self.min.load(Ordering::Relaxed),
        };
        if mark.high {
            least -= least / 2;
        }
        if mark.atomic {
            least -= least / 4;
        } else {
            least += self.high_atomic.load(Ordering::Relaxed);
        }
        least += self.protection[class.index()].load(Ordering::Relaxed);
        // `pages` may be anything up to the size of the address space.
        free >= pages && free - (pages - 1) > least
    }
}

/// What an administrator or a host set: pages to keep free.
#[derive(Debug)]
pub(crate) struct MinFree(AtomicUsize);

impl MinFree {
    const AUTOMATIC: usize = usize::MAX;

    pub(crate) const fn new() -> Self {
        Self(AtomicUsize::new(Self::AUTOMATIC))
    }

    pub(crate) fn set(&self, pages: Option<usize>) {
        let pages = pages.map_or(Self::AUTOMATIC, |pages| pages.min(Self::AUTOMATIC - 1));
        self.0.store(pages, Ordering::Relaxed);
    }

    /// Pages for a machine with `lowmem` pages outside the movable zones.
    pub(crate) fn pages(&self, lowmem: usize, page_shift: u32) -> usize {
        let set = self.0.load(Ordering::Relaxed);
        if set != Self::AUTOMATIC {
            return set;
        }
        let kib = lowmem << (page_shift - 10);
        (kib.saturating_mul(16).isqrt().clamp(128, 256 << 10)) >> (page_shift - 10)
    }
}

/// Computes the watermarks and reserves of all zones (`zones` has [`Zone::COUNT`] per node) from their sizes.
pub(crate) fn compute<H: Host>(zones: &[ZoneState<H>], min_free: &MinFree) {
    let is_low = |zone: &ZoneState<H>| zone.zone < Zone::Movable;
    let lowmem: usize = zones
        .iter()
        .filter(|z| is_low(z))
        .map(ZoneState::managed_pages)
        .sum();
    let total = min_free.pages(lowmem, H::PAGE_SHIFT);
    for zone in zones {
        let managed = zone.managed_pages();
        let min = if total == 0 {
            0
        } else if is_low(zone) {
            (total as u128 * managed as u128 / lowmem.max(1) as u128) as usize
        } else {
            // Nobody depends on movable memory, so a little is enough there.
            (managed / 1024).clamp(32, 128).min(managed / 8)
        };
        let step = if total == 0 {
            0
        } else {
            (min / 4).max(managed / 1000)
        };
        zone.min.store(min, Ordering::Relaxed);
        zone.low.store(min + step, Ordering::Relaxed);
        zone.high.store(min + 2 * step, Ordering::Relaxed);
    }
    for node in zones.chunks(Zone::COUNT) {
        for (at, zone) in node.iter().enumerate() {
            let mut above = 0;
            for (class, higher) in node.iter().enumerate() {
                if class > at {
                    above += higher.managed_pages();
                }
                let ratio = RESERVE_RATIO[at];
                let keep = if total == 0 || ratio == 0 || zone.managed_pages() == 0 {
                    0
                } else {
                    above / ratio
                };
                zone.protection[class].store(keep, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_automatic_minimum_is_linuxs() {
        let min = MinFree::new();
        // 16 GiB of 4 KiB pages: sqrt(16777216 KiB * 16) = 16384 KiB.
        assert_eq!(min.pages(4 << 20, 12), 4096);
        // 512 MiB: 2896 KiB.
        assert_eq!(min.pages(128 << 10, 12), 724);
        assert_eq!(min.pages(1, 12), 32);
        assert_eq!(min.pages(1 << 40, 12), 65536);
        min.set(Some(0));
        assert_eq!(min.pages(4 << 20, 12), 0);
    }
}
