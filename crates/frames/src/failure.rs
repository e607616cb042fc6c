//! What is said when pages can not be had: the request, the caller's stack, and what every zone still has.
//!
//! A report is written with no lock held, zone by zone; what it says of a zone is one moment's. Failures come in storms, so only
//! so many are reported in an interval; the request itself fails as a value in any case.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::{Frames, ZoneReport};
use flagstone_host::{Host, Level};
use flagstone_types::{Gfp, MigrateType, Nid, Zone};

/// At most ten reports in five seconds.
#[derive(Debug)]
pub struct ReportLimit {
    /// When the interval began, in nanoseconds; the low bits count the reports in it.
    state: AtomicU64,
}

const INTERVAL: u64 = 5_000_000_000;
const BURST: u64 = 10;
const COUNT_BITS: u32 = 8;

impl Default for ReportLimit {
    fn default() -> Self {
        Self::new()
    }
}

impl ReportLimit {
    /// A limit under which nothing was reported yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            state: AtomicU64::new(0),
        }
    }

    /// Whether a report may be made at time `now`, in nanoseconds.
    pub fn admits(&self, now: u64) -> bool {
        let now = now >> COUNT_BITS << COUNT_BITS;
        self.state
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |state| {
                let (began, count) = (
                    state >> COUNT_BITS << COUNT_BITS,
                    state & ((1 << COUNT_BITS) - 1),
                );
                if count == 0 || now.saturating_sub(began) >= INTERVAL {
                    Some(now | 1)
                } else {
                    (count < BURST).then_some(state + 1)
                }
            })
            .is_ok()
    }
}

/// A request for pages that failed. `Display` is the first line of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFailure {
    /// The order of the block asked for; of a run the one that covers it.
    pub order: u32,
    /// The flags of the request.
    pub gfp: Gfp,
    /// The node preferred.
    pub nid: Nid,
}

impl fmt::Display for PageFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { order, gfp, nid } = self;
        write!(
            f,
            "page allocation failure: order:{order}, mode:{:#x}({gfp}), node:{nid}",
            gfp.bits()
        )
    }
}

/// What a zone still has, as a failure's report says it: sizes, then free blocks by order with the types that have some.
struct Remains<'a> {
    zone: &'a ZoneReport,
    page_kib: usize,
    max_order: u32,
}

/// Linux's letters for the free lists.
const fn letter(migrate: MigrateType) -> char {
    match migrate {
        MigrateType::Unmovable => 'U',
        MigrateType::Movable => 'M',
        MigrateType::Reclaimable => 'E',
        MigrateType::HighAtomic => 'H',
        MigrateType::Isolate => 'I',
    }
}

impl fmt::Display for Remains<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { zone, page_kib, .. } = *self;
        let (nid, name) = (zone.nid, zone.zone.name());
        write!(f, "Node {nid} {name}")?;
        for (what, pages) in [
            ("free", zone.free),
            ("min", zone.min),
            ("low", zone.low),
            ("high", zone.high),
            ("reserved_highatomic", zone.high_atomic),
            ("managed", zone.managed),
            ("free_pcp", zone.listed),
        ] {
            write!(f, " {what}:{}kB", pages * page_kib)?;
        }
        write!(f, "\nlowmem_reserve[]:")?;
        for pages in zone.protection {
            write!(f, " {pages}")?;
        }
        write!(f, "\nNode {nid} {name}:")?;
        for order in 0..=self.max_order as usize {
            let blocks: usize = zone.free_blocks.iter().map(|orders| orders[order]).sum();
            write!(f, " {blocks}*{}kB", page_kib << order)?;
            if blocks > 0 {
                f.write_str(" (")?;
                for migrate in MigrateType::ALL {
                    if zone.free_blocks[migrate.index()][order] > 0 {
                        write!(f, "{}", letter(migrate))?;
                    }
                }
                f.write_str(")")?;
            }
        }
        write!(f, " = {}kB", zone.free * page_kib)
    }
}

impl<H: Host> Frames<H> {
    /// Reports a request that failed, unless its flags say [`Gfp::NOWARN`] or there were too many reports lately. For layers above that ask
    /// for pages quietly and find that nothing else helps. Takes the locks of page lists and zones in turn.
    #[cold]
    #[inline(never)]
    pub fn report_failure(&self, failure: &PageFailure) {
        let host = self.host();
        if failure.gfp.contains(Gfp::NOWARN) || !self.reports.admits(host.now().0) {
            return;
        }
        host.log(Level::Warning, format_args!("{failure}"));
        let mut stack = [0; 16];
        let depth = host.backtrace(&mut stack);
        for address in &stack[..depth] {
            host.log(Level::Warning, format_args!(" [<{address:016x}>]"));
        }
        for zone in self.report().filter(|zone| zone.zone != Zone::Device) {
            let remains = Remains {
                zone: &zone,
                page_kib: H::PAGE_SIZE >> 10,
                max_order: H::MAX_ORDER,
            };
            host.log(Level::Warning, format_args!("{remains}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_limited_by_interval() {
        let limit = ReportLimit::new();
        let admitted = (0..100).filter(|_| limit.admits(1_000_000)).count();
        assert_eq!(admitted as u64, BURST);
        assert!(limit.admits(1_000_000 + INTERVAL + 1000));
    }
}
