//! The page allocator as a value: the zones of all nodes, how memory is added, and how a frame is looked up.

use core::alloc::Layout;
use core::cell::UnsafeCell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

use crate::buddy::End;
use crate::page::{Page, PageKind, Place, State};
use crate::watermark::{self, MinFree};
use crate::zone::{ZoneState, page_of};
use crate::{FaultPoint, Reclaimer, ReportLimit};
use flagstone_host::{Host, MemRange};
use flagstone_types::{AllocError, MigrateType, Nid, Pfn, PfnRange, Zone};

/// The page allocator of one machine.
///
/// ```text
///   alloc_pages, alloc_run ── page lists of this CPU ── buddy lists of the zone ── other zones, other nodes
///                                                                                       │ none
///                                                                      Reclaimer ◄──────┘
/// ```
pub struct Frames<H: Host> {
    host: H,
    /// `Zone::COUNT` for each node, then the next node.
    zones: NonNull<ZoneState<H>>,
    nodes: u32,
    /// For each node all nodes, nearest first.
    nearest: NonNull<Nid>,
    /// The lowest zone that any node has memory in, as an index.
    lowest_zone: AtomicU8,
    min_free: MinFree,
    /// Before this moment, in nanoseconds, there is nothing to do for `release_idle`.
    pub(crate) next_release: AtomicU64,
    /// Goes up when a size changes that watermarks depend on.
    sizes: AtomicU32,
    pub(crate) reports: ReportLimit,
    fail_page_alloc: FaultPoint,
    reclaimer: UnsafeCell<Option<NonNull<dyn Reclaimer<H>>>>,
    /// 0: no reclaimer; 1: being set; 2: set, and never changed again.
    reclaimer_set: AtomicU8,
}

// SAFETY: zones and tables live as long as the machine (M3) and are shared through locks and atomics (Z1, Z3);
// the reclaimer is `Sync` and read only after it was published by `reclaimer_set` (F3).
unsafe impl<H: Host> Sync for Frames<H> {}
// SAFETY: as above; nothing belongs to a thread.
unsafe impl<H: Host> Send for Frames<H> {}

impl<H: Host> Frames<H> {
    /// An allocator for the memory that `host` has at start ([`flagstone_host::PageMap::boot_ranges`]). Watermarks are automatic
    /// until [`Frames::set_min_free`].
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`] if the host has no room for the structures; what [`Frames::add_memory`] says of a range.
    pub fn new(host: H) -> Result<Self, AllocError> {
        let nodes = host.nodes().max(1);
        let count = nodes as usize;
        let zones = Layout::array::<ZoneState<H>>(count * Zone::COUNT)
            .map_err(|_| AllocError::OutOfMemory)?;
        let zones = host.boot_alloc(zones)?.cast::<ZoneState<H>>();
        for n in 0..count * Zone::COUNT {
            let (nid, zone) = (Nid((n / Zone::COUNT) as u16), Zone::ALL[n % Zone::COUNT]);
            // SAFETY: M3: room for so many zones that nobody else has.
            unsafe { zones.add(n).write(ZoneState::new(host, nid, zone)) };
        }
        let nearest = Layout::array::<Nid>(count * count).map_err(|_| AllocError::OutOfMemory)?;
        let nearest = host.boot_alloc(nearest)?.cast::<Nid>();
        for from in 0..nodes as u16 {
            for to in 0..nodes as u16 {
                // SAFETY: M3: room for `count * count` entries that nobody else has.
                unsafe {
                    nearest
                        .add(from as usize * count + to as usize)
                        .write(Nid(to))
                };
            }
            // SAFETY: this row was just written and nobody else has it.
            let row = unsafe {
                core::slice::from_raw_parts_mut(nearest.add(from as usize * count).as_ptr(), count)
            };
            // Nodes at the same distance: those behind come first, so that not all fall back to node 0.
            row.sort_unstable_by_key(|&to| {
                let around = (to.0 + nodes as u16 - from) % nodes as u16;
                (to.0 != from, host.distance(Nid(from), to), around)
            });
        }
        let this = Self {
            host,
            zones,
            nodes,
            nearest,
            lowest_zone: AtomicU8::new(Zone::COUNT as u8 - 1),
            min_free: MinFree::new(),
            next_release: AtomicU64::new(0),
            sizes: AtomicU32::new(0),
            reports: ReportLimit::new(),
            fail_page_alloc: FaultPoint::new("fail_page_alloc"),
            reclaimer: UnsafeCell::new(None),
            reclaimer_set: AtomicU8::new(0),
        };
        let mut result = Ok(());
        host.boot_ranges(&mut |range| {
            if result.is_ok() {
                result = this.add_memory(range);
            }
        });
        result.map(|()| this)
    }

    /// The host.
    #[must_use]
    pub fn host(&self) -> H {
        self.host
    }

    /// Where requests for pages can be made to fail (`fail_page_alloc`). Requests with [`flagstone_types::Gfp::NOFAIL`] are not asked about.
    #[must_use]
    pub const fn fail_page_alloc(&self) -> &FaultPoint {
        &self.fail_page_alloc
    }

    pub(crate) fn nodes(&self) -> u32 {
        self.nodes
    }

    /// Every zone, by node and index.
    pub(crate) fn zones(&self) -> &[ZoneState<H>] {
        // SAFETY: Z3: `new` wrote so many, and they live as long as the machine.
        unsafe {
            core::slice::from_raw_parts(self.zones.as_ptr(), self.nodes as usize * Zone::COUNT)
        }
    }

    /// The zones of a node that exists.
    #[inline]
    pub(crate) fn zones_of(&self, nid: Nid) -> &[ZoneState<H>] {
        debug_assert!(u32::from(nid.0) < self.nodes);
        // SAFETY: Z3; callers pass ids of nodes that exist.
        unsafe {
            core::slice::from_raw_parts(
                self.zones.add(nid.index() * Zone::COUNT).as_ptr(),
                Zone::COUNT,
            )
        }
    }

    /// All nodes, nearest to `nid` first: itself.
    #[inline]
    pub(crate) fn nearest(&self, nid: Nid) -> &[Nid] {
        let count = self.nodes as usize;
        debug_assert!(nid.index() < count);
        // SAFETY: Z3; callers pass ids of nodes that exist.
        unsafe {
            core::slice::from_raw_parts(self.nearest.add(nid.index() * count).as_ptr(), count)
        }
    }

    /// The zone that a request for `zone` begins at: a machine without memory in that zone or a lower one has no devices that need it.
    #[inline]
    pub(crate) fn class(&self, zone: Zone) -> Zone {
        Zone::ALL[(zone as u8).max(self.lowest_zone.load(Ordering::Relaxed)) as usize]
    }

    /// The zone that the frame of `page` is in.
    #[inline]
    pub(crate) fn zone_of(&self, page: &Page) -> &ZoneState<H> {
        let place = page.place();
        &self.zones_of(place.nid())[place.zone().index()]
    }

    /// Adds memory to a zone: pieces of any length and alignment; neighbours merge. The frames must be committed.
    /// Frames of [`Zone::Device`] get metadata, each its own, and are never handed out; see `Frames::add_device_memory` for a host that maps their metadata.
    ///
    /// # Errors
    /// [`AllocError::InvalidArgument`] for an empty range, an unknown node, frames without metadata, or a page block that
    /// another zone has memory in; [`AllocError::Exists`] if some of the frames were added before;
    /// [`AllocError::OutOfMemory`] if there is no room for the zone's page lists. Nothing has changed then.
    pub fn add_memory(&self, range: MemRange) -> Result<(), AllocError> {
        let PfnRange { start, pages } = range.frames;
        if pages == 0
            || start.0.checked_add(pages).is_none()
            || u32::from(range.nid.0) >= self.nodes
        {
            return Err(AllocError::InvalidArgument);
        }
        let zone = &self.zones_of(range.nid)[range.zone.index()];
        self.check_page_blocks(zone, range.frames)?;
        zone.make_slots()?;
        self.claim_frames(range.frames)?;
        self.enter_frames(zone, range.frames);
        if range.zone != Zone::Device {
            self.lowest_zone
                .fetch_min(range.zone as u8, Ordering::Relaxed);
        }
        self.compute_watermarks();
        Ok(())
    }

    /// That every frame has metadata and no page block of the range is in another zone.
    fn check_page_blocks(&self, zone: &ZoneState<H>, frames: PfnRange) -> Result<(), AllocError> {
        let mut at = ZoneState::<H>::page_block(frames.start);
        while at < frames.end() {
            let place = zone
                .try_page(at)
                .ok_or(AllocError::InvalidArgument)?
                .place();
            if place.is_known()
                && !place.same_zone(Place::new(zone.nid, zone.zone, MigrateType::Movable))
            {
                return Err(AllocError::InvalidArgument);
            }
            at = Pfn(at
                .0
                .checked_add(ZoneState::<H>::PAGE_BLOCK_PAGES)
                .ok_or(AllocError::InvalidArgument)?);
        }
        Ok(())
    }

    /// Makes all frames ours, or none if one of them is somebody's already.
    fn claim_frames(&self, frames: PfnRange) -> Result<(), AllocError> {
        for n in 0..frames.pages {
            let page = page_of(&self.host, frames.start.add(n));
            if page.is_some_and(|page| page.claim(State::TAIL)) {
                continue;
            }
            for claimed in 0..n {
                if let Some(page) = page_of(&self.host, frames.start.add(claimed)) {
                    page.disclaim();
                }
            }
            return Err(if page.is_none() {
                AllocError::InvalidArgument
            } else {
                AllocError::Exists
            });
        }
        Ok(())
    }

    /// Puts claimed frames into the zone.
    fn enter_frames(&self, zone: &ZoneState<H>, frames: PfnRange) {
        let block = ZoneState::<H>::PAGE_BLOCK_PAGES;
        let mut locked = zone.lock();
        let fresh = Place::new(zone.nid, zone.zone, MigrateType::Movable);
        let mut at = ZoneState::<H>::page_block(frames.start);
        while at < frames.end() {
            let page = zone.page(at);
            if !page.place().is_known() {
                page.set_place(fresh);
                locked.lists.page_blocks[MigrateType::Movable.index()] += 1;
            }
            at = at.add(block);
        }
        for n in 0..frames.pages {
            let page = zone.page(frames.start.add(n));
            if !page.place().is_known() {
                page.set_place(fresh);
            }
            if zone.zone == Zone::Device {
                page.set_state(State::new(
                    PageKind::Device,
                    0,
                    MigrateType::Movable,
                    State::DEVICE,
                ));
            }
        }
        let span = &mut locked.lists.span;
        *span = if span.0 == span.1 {
            (frames.start, frames.end())
        } else {
            (span.0.min(frames.start), span.1.max(frames.end()))
        };
        zone.managed
            .store(zone.managed_pages() + frames.pages, Ordering::Relaxed);
        if zone.zone != Zone::Device {
            // New memory goes behind what is in use already.
            locked.free_range(frames, End::Cold);
        }
        zone.size_lists();
    }

    /// Computes watermarks again until no size has changed meanwhile, so that the last word is right.
    pub(crate) fn compute_watermarks(&self) {
        let mut seen = self.sizes.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
        loop {
            watermark::compute(self.zones(), &self.min_free);
            // Else the look could come before what was computed is to be seen: a context that counts in between and is done
            // sooner would be overwritten with what is out of date.
            fence(Ordering::SeqCst);
            let now = self.sizes.load(Ordering::Acquire);
            if now == seen {
                return;
            }
            seen = now;
        }
    }

    /// Sets how many pages of the machine stay free for callers that must not fail (the sum of the zones' minimum
    /// watermarks); `None`: by the size of memory, as Linux does. With `Some(0)` there are no reserves at all: every page can be
    /// had by everyone.
    pub fn set_min_free(&self, pages: Option<usize>) {
        self.min_free.set(pages);
        self.compute_watermarks();
    }

    /// Sets who makes frames free when they run short. The first one stays; a second call is an error of the caller and has no effect.
    ///
    /// # Safety
    /// `*reclaimer` is there as long as this allocator is used (F3).
    pub unsafe fn set_reclaimer(&self, reclaimer: *const (dyn Reclaimer<H> + '_)) {
        let unset = self
            .reclaimer_set
            .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
        debug_assert!(unset.is_ok(), "a second reclaimer");
        if unset.is_err() {
            return;
        }
        // SAFETY: only the lifetime of the trait object changes, and the caller promises that it is long enough (F3).
        let reclaimer = unsafe {
            core::mem::transmute::<*const (dyn Reclaimer<H> + '_), *mut (dyn Reclaimer<H> + 'static)>(
                reclaimer,
            )
        };
        // SAFETY: F3: state 1 is this call's alone, and nobody reads before state 2.
        unsafe { *self.reclaimer.get() = NonNull::new(reclaimer) };
        self.reclaimer_set.store(2, Ordering::Release);
    }

    pub(crate) fn reclaimer(&self) -> Option<&dyn Reclaimer<H>> {
        if self.reclaimer_set.load(Ordering::Acquire) != 2 {
            return None;
        }
        // SAFETY: F3: set before state 2 and never changed again; what it points to outlives us.
        unsafe { (*self.reclaimer.get()).map(|reclaimer| &*reclaimer.as_ptr()) }
    }

    /// The metadata of a frame; `None` if there is no memory.
    #[inline]
    #[must_use]
    pub fn page(&self, pfn: Pfn) -> Option<&Page> {
        page_of(&self.host, pfn).filter(|page| page.kind() != PageKind::Absent)
    }

    /// The first frame of the block or run that `address` is in, free or not.
    #[must_use]
    pub fn page_of_address(&self, address: usize) -> Option<(Pfn, &Page)> {
        self.head(self.host.pfn_of(address)?)
    }

    /// Pages in the free lists of a node, not counting per-CPU page lists; 0 for a node that is not there.
    #[must_use]
    pub fn free_count(&self, nid: Nid) -> usize {
        if u32::from(nid.0) >= self.nodes {
            return 0;
        }
        self.zones_of(nid).iter().map(ZoneState::free_pages).sum()
    }

    /// Pages that were added to a node; 0 for a node that is not there.
    #[must_use]
    pub fn managed_count(&self, nid: Nid) -> usize {
        if u32::from(nid.0) >= self.nodes {
            return 0;
        }
        self.zones_of(nid)
            .iter()
            .map(ZoneState::managed_pages)
            .sum()
    }

    /// Moves what is in the per-CPU page lists to the buddy lists, where it merges. Counters are complete afterwards.
    pub fn drain_page_lists(&self) {
        for zone in self.zones() {
            zone.drain_slots();
        }
    }
}
