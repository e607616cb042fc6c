//! Reports: what a zone holds, as values, and as the text of `/proc/buddyinfo`, `/proc/pagetypeinfo` and `/proc/zoneinfo`.
//!
//! A zone is copied under its lock and written without it, since what it is written to may allocate. The formats are
//! Linux's; of `zoneinfo` the lines that there is something to say about.

use core::fmt;
use core::sync::atomic::Ordering;

use crate::zone::{ORDERS, ZoneState};
use crate::{Frames, MemmapInfo};
use flagstone_host::Host;
use flagstone_types::{CpuId, MigrateType, Nid, Pfn, Zone};

/// What one zone held at one moment. All sizes are in pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneReport {
    /// The node.
    pub nid: Nid,
    /// The zone.
    pub zone: Zone,
    /// Free blocks by migrate type and order.
    pub free_blocks: [[usize; ORDERS]; MigrateType::COUNT],
    /// Page blocks of each migrate type.
    pub page_blocks: [usize; MigrateType::COUNT],
    /// Pages in the free lists.
    pub free: usize,
    /// Of these, pages with contents (0 on a host that can not release).
    pub touched: usize,
    /// Pages in per-CPU page lists.
    pub listed: usize,
    /// Minimum watermark.
    pub min: usize,
    /// Low watermark.
    pub low: usize,
    /// High watermark.
    pub high: usize,
    /// Pages that were added.
    pub managed: usize,
    /// Pages in blocks reserved for atomic callers.
    pub high_atomic: usize,
    /// From the first frame to the last, with gaps.
    pub spanned: usize,
    /// The first frame.
    pub start: Pfn,
    /// Pages that stay free when a request for a higher zone falls back here, by that zone.
    pub protection: [usize; Zone::COUNT],
    /// Pages that move between a page list and the free lists at once.
    pub batch: usize,
    /// Pages that a CPU's page lists may hold.
    pub list_limit: usize,
    /// What the records of device memory take where they are mapped page by page.
    pub memmap: MemmapInfo,
}

impl<H: Host> ZoneState<H> {
    fn report(&self) -> ZoneReport {
        let mut listed = 0;
        self.for_slots(|_, lists| listed += lists.pages);
        let locked = self.lock();
        let lists = &*locked.lists;
        ZoneReport {
            nid: self.nid,
            zone: self.zone,
            free_blocks: lists.free.map(|orders| orders.map(|list| list.blocks)),
            page_blocks: lists.page_blocks,
            free: self.free_pages(),
            touched: lists.touched,
            listed,
            min: self.min.load(Ordering::Relaxed),
            low: self.low.load(Ordering::Relaxed),
            high: self.high.load(Ordering::Relaxed),
            managed: self.managed_pages(),
            high_atomic: self.high_atomic.load(Ordering::Relaxed),
            spanned: lists.span.1.0 - lists.span.0.0,
            start: lists.span.0,
            protection: core::array::from_fn(|class| {
                self.protection[class].load(Ordering::Relaxed)
            }),
            batch: self.batch.load(Ordering::Relaxed),
            list_limit: self.list_limit.load(Ordering::Relaxed),
            memmap: MemmapInfo {
                pages: self.memmap_pages.load(Ordering::Relaxed),
                saved: self.memmap_saved.load(Ordering::Relaxed),
            },
        }
    }

    fn listed_on(&self, wanted: CpuId) -> usize {
        let mut pages = 0;
        self.for_slots(|cpu, lists| {
            if cpu == wanted {
                pages = lists.pages;
            }
        });
        pages
    }
}

/// `/proc/buddyinfo` of an allocator.
pub struct BuddyInfo<'a, H: Host>(&'a Frames<H>);
/// `/proc/pagetypeinfo` of an allocator.
pub struct PageTypeInfo<'a, H: Host>(&'a Frames<H>);
/// `/proc/zoneinfo` of an allocator.
pub struct ZoneInfo<'a, H: Host>(&'a Frames<H>);

impl<H: Host> Frames<H> {
    /// What each zone with memory holds, node by node.
    pub fn report(&self) -> impl Iterator<Item = ZoneReport> + '_ {
        self.zones()
            .iter()
            .filter(|zone| zone.managed_pages() > 0)
            .map(ZoneState::report)
    }

    /// Free blocks by order, in the text of `/proc/buddyinfo`.
    #[must_use]
    pub fn buddyinfo(&self) -> BuddyInfo<'_, H> {
        BuddyInfo(self)
    }

    /// Free blocks by migrate type and order, in the text of `/proc/pagetypeinfo`.
    #[must_use]
    pub fn pagetypeinfo(&self) -> PageTypeInfo<'_, H> {
        PageTypeInfo(self)
    }

    /// Sizes, watermarks and page lists, in the text of `/proc/zoneinfo`.
    #[must_use]
    pub fn zoneinfo(&self) -> ZoneInfo<'_, H> {
        ZoneInfo(self)
    }
}

impl<H: Host> fmt::Display for BuddyInfo<'_, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for zone in self.0.report() {
            write!(f, "Node {}, zone {:>8} ", zone.nid, zone.zone.name())?;
            for order in 0..=H::MAX_ORDER as usize {
                let blocks: usize = zone.free_blocks.iter().map(|orders| orders[order]).sum();
                write!(f, "{blocks:>6} ")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl<H: Host> fmt::Display for PageTypeInfo<'_, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Page block order: {}", ZoneState::<H>::PAGE_BLOCK_ORDER)?;
        writeln!(
            f,
            "Pages per block:  {}\n",
            ZoneState::<H>::PAGE_BLOCK_PAGES
        )?;
        write!(f, "{:<43} ", "Free pages count per migrate type at order")?;
        for order in 0..=H::MAX_ORDER {
            write!(f, "{order:>6} ")?;
        }
        writeln!(f)?;
        for zone in self.0.report() {
            for migrate in MigrateType::ALL {
                let name = zone.zone.name();
                write!(
                    f,
                    "Node {:>4}, zone {name:>8}, type {:>12} ",
                    zone.nid.0,
                    migrate.name()
                )?;
                for blocks in &zone.free_blocks[migrate.index()][..=H::MAX_ORDER as usize] {
                    write!(f, "{blocks:>6} ")?;
                }
                writeln!(f)?;
            }
        }
        write!(f, "\n{:<23}", "Number of blocks type ")?;
        for migrate in MigrateType::ALL {
            write!(f, "{:>12} ", migrate.name())?;
        }
        writeln!(f)?;
        for zone in self.0.report() {
            write!(f, "Node {}, zone {:>8} ", zone.nid, zone.zone.name())?;
            for blocks in zone.page_blocks {
                write!(f, "{blocks:>12} ")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl<H: Host> fmt::Display for ZoneInfo<'_, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.0.host();
        for zone in self.0.report() {
            writeln!(f, "Node {}, zone {:>8}", zone.nid, zone.zone.name())?;
            writeln!(f, "  pages free     {}", zone.free)?;
            let sizes = [
                ("min", zone.min),
                ("low", zone.low),
                ("high", zone.high),
                ("spanned", zone.spanned),
                ("present", zone.managed),
                ("managed", zone.managed),
            ];
            for (name, pages) in sizes {
                writeln!(f, "        {name:<8} {pages}")?;
            }
            write!(f, "        protection: (")?;
            for (class, pages) in zone.protection.iter().enumerate() {
                write!(f, "{}{pages}", if class > 0 { ", " } else { "" })?;
            }
            writeln!(f, ")")?;
            writeln!(f, "      nr_free_pages {}", zone.free)?;
            if zone.memmap != MemmapInfo::default() {
                writeln!(f, "      nr_memmap {}", zone.memmap.pages)?;
                writeln!(f, "      nr_memmap_saved {}", zone.memmap.saved)?;
            }
            writeln!(f, "  pagesets")?;
            let state = &self.0.zones_of(zone.nid)[zone.zone.index()];
            for cpu in (0..host.possible_cpus())
                .map(CpuId)
                .filter(|&cpu| host.is_online(cpu))
            {
                writeln!(f, "    cpu: {cpu}")?;
                writeln!(f, "              count: {}", state.listed_on(cpu))?;
                writeln!(f, "              high:  {}", zone.list_limit)?;
                writeln!(f, "              batch: {}", zone.batch)?;
            }
            writeln!(f, "  start_pfn:           {}", zone.start.0)?;
        }
        Ok(())
    }
}
