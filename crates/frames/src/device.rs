//! Memory of a device whose records a host maps page by page ([`VirtualMemmap`]): how it comes, and how it goes.
//!
//! ```text
//!   check ─▶ for each memmap page: a frame, filled with records, mapped ─▶ counted in the zone ─▶ shown
//!                     │ none left: unmap, free, as before
//!   hidden ─▶ counted out ─▶ every zone's lock once, a grace period ─▶ unmapped ─▶ frames freed
//! ```
//!
//! Records are written before they are mapped, through the address of the frame behind them, so that a page that several places share needs
//! never be writable there (D2). Nothing is kept about the frames but the mapping itself (D4).

use core::sync::atomic::Ordering;

use crate::buddy::{link_to, linked};
use crate::memmap::{MemmapInfo, NotShared, memmap_of_compound, memmap_sharing};
use crate::page::{Page, PageKind, Place, State};
use crate::zone::{ZoneState, page_of};
use crate::{Frames, PageBlock};
use flagstone_host::{Host, MemmapAccess, VirtualMemmap};
use flagstone_types::{AllocError, Gfp, MigrateType, Nid, Order, Pfn, PfnRange, Zone};

/// Whose memory the records of a device are in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemmapHome {
    /// The machine's, near the device: pages from the allocator.
    #[default]
    System,
    /// The device's own: its first `pages` frames, which are `Reserved` and not to be used otherwise. At least a page for each page of
    /// records of the whole range, and a multiple of the compound. Such records are never shared.
    Device {
        /// How many frames.
        pages: usize,
    },
}

/// Memory of a device to be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRequest {
    /// The frames: whole largest blocks, whole pages of records, and whole compounds.
    pub frames: PfnRange,
    /// The frames are used in blocks of this order, each through its first frame only; order 0: one by one.
    pub compound: Order,
    /// Where the records are to be.
    pub home: MemmapHome,
}

/// Memory of a device that was added. Dropping it leaves the memory there for good.
#[must_use = "what is dropped can not be removed"]
#[derive(Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    plan: Plan,
}

impl DeviceMemory {
    /// All frames, with those that hold records.
    #[must_use]
    pub const fn frames(&self) -> PfnRange {
        self.plan.frames
    }

    /// The frames that can be used, in compounds.
    #[must_use]
    pub const fn usable(&self) -> PfnRange {
        let PfnRange { start, pages } = self.plan.frames;
        PfnRange::new(start.add(self.plan.reserved), pages - self.plan.reserved)
    }

    /// The order of its compounds.
    #[must_use]
    pub const fn compound(&self) -> Order {
        self.plan.compound
    }

    /// The node.
    #[must_use]
    pub const fn nid(&self) -> Nid {
        self.plan.nid
    }

    /// Whether records of tails are shared.
    ///
    /// # Errors
    /// Why they are not.
    pub const fn sharing(&self) -> Result<(), NotShared> {
        self.plan.sharing
    }

    /// The pages that its records take, and those that sharing saves.
    #[must_use]
    pub const fn memmap(&self) -> MemmapInfo {
        self.plan.memmap
    }
}

/// How the records of a device are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    frames: PfnRange,
    nid: Nid,
    compound: Order,
    home: MemmapHome,
    /// Frames at the beginning that hold the records.
    reserved: usize,
    sharing: Result<(), NotShared>,
    memmap: MemmapInfo,
}

impl Plan {
    fn new<H: Host + VirtualMemmap>(host: &H, request: DeviceRequest) -> Option<Self> {
        let DeviceRequest {
            frames,
            compound,
            home,
        } = request;
        let total = frames.pages / H::RECORDS;
        let whole = compound.pages().max(1 << H::MAX_ORDER).max(H::RECORDS);
        let fits = frames.pages > 0
            && frames.start.0.checked_add(frames.pages).is_some()
            && frames.start.0.is_multiple_of(whole)
            && frames.pages.is_multiple_of(whole)
            && compound.get() <= State::MAX_ORDER;
        let reserved = match home {
            MemmapHome::System => 0,
            MemmapHome::Device { pages } => pages,
        };
        let has_room = home == MemmapHome::System
            || (reserved >= total
                && reserved < frames.pages
                && reserved.is_multiple_of(compound.pages()));
        if !fits || !has_room {
            return None;
        }
        let sharing = memmap_sharing(&host.memmap_caps(), H::PAGE_SHIFT, compound, home);
        let saved = match sharing {
            Ok(()) => {
                let compounds = frames.pages / compound.pages();
                memmap_of_compound(H::PAGE_SHIFT, compound).saved * compounds
            }
            Err(_) => 0,
        };
        Some(Self {
            frames,
            nid: host.device_node(frames)?,
            compound,
            home,
            reserved,
            sharing,
            memmap: MemmapInfo {
                pages: total - saved,
                saved,
            },
        })
    }

    /// The frames from `at` on whose records are one page of memory, and how it is mapped.
    fn piece<H: Host>(&self, at: Pfn) -> (PfnRange, MemmapAccess) {
        let inside = at.0 & (self.compound.pages() - 1);
        if self.sharing.is_ok() && inside > 0 {
            let tails = PfnRange::new(at, self.compound.pages() - inside);
            (tails, MemmapAccess::Shared)
        } else {
            (PfnRange::new(at, H::RECORDS), MemmapAccess::Own)
        }
    }

    /// Calls `each` with the pieces of the first `pages` frames.
    fn each_piece<H: Host>(
        &self,
        pages: usize,
        mut each: impl FnMut(PfnRange, MemmapAccess) -> Result<(), AllocError>,
    ) -> Result<(), (PfnRange, AllocError)> {
        let start = self.frames.start;
        let mut at = start;
        while at < start.add(pages) {
            let (piece, access) = self.piece::<H>(at);
            each(piece, access).map_err(|error| (PfnRange::new(start, at.0 - start.0), error))?;
            at = piece.end();
        }
        Ok(())
    }

    /// Writes the record of `frame`, which is zero.
    fn write(&self, frame: Pfn, page: &Page) {
        page.set_place(Place::new(self.nid, Zone::Device, MigrateType::Movable));
        let at = frame.0 - self.frames.start.0;
        let head = |kind, flags| State::new(kind, self.compound.get(), MigrateType::Movable, flags);
        if at < self.reserved {
            if at == 0 {
                page.set_state(State::new(PageKind::Reserved, 0, MigrateType::Movable, 0));
                page.make_run(self.reserved);
            } else {
                page.set_state(State::tail(at));
            }
        } else if frame.0 & (self.compound.pages() - 1) != 0 {
            page.set_state(State::aligned_tail(self.compound.get()));
        } else if self.compound == Order::ZERO {
            page.set_state(head(PageKind::Device, State::DEVICE));
        } else {
            page.set_state(head(PageKind::Device, State::DEVICE | State::COMPOUND));
        }
    }
}

impl<H: Host + VirtualMemmap> Frames<H> {
    /// Adds memory of a device to [`Zone::Device`] of its node. Records of the tails of its compounds share a page where the running machine does so
    /// ([`memmap_sharing`]). May reclaim, so no lock of the core may be held, and not in a read-side section.
    ///
    /// # Errors
    /// [`AllocError::InvalidArgument`] if the frames are not memory of a device of this host or not whole blocks, or the device has no room for the
    /// records; [`AllocError::Exists`] if some of the frames were added before; [`AllocError::OutOfMemory`] if there is none for the records
    /// or their mapping. Nothing has changed then.
    pub fn add_device_memory(&self, request: DeviceRequest) -> Result<DeviceMemory, AllocError> {
        let host = self.host();
        let plan = Plan::new(&host, request)
            .filter(|plan| u32::from(plan.nid.0) < self.nodes())
            .ok_or(AllocError::InvalidArgument)?;
        let mut blocks = (0..plan.frames.pages).step_by(1 << H::MAX_ORDER);
        if blocks.any(|n| page_of(&host, plan.frames.start.add(n)).is_some()) {
            return Err(AllocError::Exists);
        }
        let mapped = plan.each_piece::<H>(plan.frames.pages, |frames, access| {
            self.map_piece(&plan, frames, access)
        });
        if let Err((mapped, error)) = mapped {
            // SAFETY: V4: never shown.
            unsafe { self.unmap(&plan, mapped) };
            return Err(error);
        }
        self.count_in_device(&plan);
        // SAFETY: V3: all of them were just mapped, to valid records.
        unsafe { host.show_memmap(plan.frames) };
        self.compute_watermarks();
        Ok(DeviceMemory { plan })
    }

    /// Makes one page of records and maps it for `frames`.
    fn map_piece(
        &self,
        plan: &Plan,
        frames: PfnRange,
        access: MemmapAccess,
    ) -> Result<(), AllocError> {
        let host = self.host();
        let block = match plan.home {
            MemmapHome::System => {
                let gfp = Gfp::KERNEL | Gfp::ZERO | Gfp::NOWARN;
                Some(self.alloc_pages(gfp, Order::ZERO, Some(plan.nid))?)
            }
            MemmapHome::Device { .. } => None,
        };
        let backing = match &block {
            Some(block) => block.pfn(),
            None => {
                let page = (frames.start.0 - plan.frames.start.0) / H::RECORDS;
                plan.frames.start.add(page)
            }
        };
        // A shared page is filled before it is mapped, for it is read only then. On the device mapping comes first: who maps the records of a
        // frame has the frame to himself, and records lie in frames whose own are mapped earlier or now.
        if let Some(block) = block {
            self.fill(plan, backing, frames.start);
            // SAFETY: V3: the frame is ours until it is unmapped, and holds records; shared ones are not written again (D2).
            let mapped = unsafe { host.map_memmap(frames, backing, access) };
            return match mapped {
                Ok(()) => {
                    let _ = block.into_raw();
                    Ok(())
                }
                Err(error) => {
                    self.free_pages(block);
                    Err(error)
                }
            };
        }
        // SAFETY: V3: the frame is ours until it is unmapped if this succeeds (D4), and holds records before anything is shown.
        unsafe { host.map_memmap(frames, backing, access) }?;
        // SAFETY: V2, D4: committed memory of the device that is ours.
        unsafe { host.frame_ptr(backing).write_bytes(0, H::PAGE_SIZE) };
        self.fill(plan, backing, frames.start);
        Ok(())
    }

    /// Writes the records of the frames from `first` on to `backing`, a frame of zeros that is ours.
    fn fill(&self, plan: &Plan, backing: Pfn, first: Pfn) {
        let base = self.host().frame_ptr(backing).cast::<Page>();
        for n in 0..H::RECORDS {
            // SAFETY: F1 or D4: the frame is ours, and has room for so many records, aligned like them; zero is a valid one.
            let page = unsafe { base.add(n).as_ref() };
            plan.write(first.add(n), page);
        }
    }

    /// Unmaps the records of `mapped`, the first frames of the plan, and frees what was behind them.
    ///
    /// # Safety
    /// V4.
    unsafe fn unmap(&self, plan: &Plan, mapped: PfnRange) {
        if mapped.pages == 0 {
            return;
        }
        let host = self.host();
        // The frames are found by the mapping, but may be freed only without it: a list through the frames' own records, whose views are ours (D4).
        let mut list = 0;
        if plan.home == MemmapHome::System {
            let _ = plan.each_piece::<H>(mapped.pages, |frames, _| {
                if let Some(backing) = host.memmap_backing(frames.start)
                    && let Some(page) = self.page(backing)
                {
                    page.word(0).store(list, Ordering::Relaxed);
                    list = link_to(backing);
                }
                Ok(())
            });
        }
        // SAFETY: V4, by the caller's promise.
        unsafe { host.unmap_memmap(mapped) };
        while let Some(backing) = linked(list) {
            list = self
                .page(backing)
                .map_or(0, |page| page.word(0).load(Ordering::Relaxed));
            // SAFETY: F1, D4: it was given up when it was mapped, and is mapped no more.
            self.free_pages(unsafe { PageBlock::from_raw(backing, Order::ZERO) });
        }
    }

    fn device_zone(&self, plan: &Plan) -> &ZoneState<H> {
        &self.zones_of(plan.nid)[Zone::Device.index()]
    }

    fn count_in_device(&self, plan: &Plan) {
        let zone = self.device_zone(plan);
        let mut locked = zone.lock();
        let lists = &mut *locked.lists;
        lists.page_blocks[MigrateType::Movable.index()] +=
            plan.frames.pages / ZoneState::<H>::PAGE_BLOCK_PAGES;
        let (start, end) = (plan.frames.start, plan.frames.end());
        lists.span = if lists.span.0 == lists.span.1 {
            (start, end)
        } else {
            (lists.span.0.min(start), lists.span.1.max(end))
        };
        let add = |count: &core::sync::atomic::AtomicUsize, n| {
            count.store(count.load(Ordering::Relaxed) + n, Ordering::Relaxed);
        };
        add(&zone.managed, plan.frames.pages);
        add(&zone.memmap_pages, plan.memmap.pages);
        add(&zone.memmap_saved, plan.memmap.saved);
    }

    fn count_out_device(&self, plan: &Plan) {
        let zone = self.device_zone(plan);
        let mut locked = zone.lock();
        locked.lists.page_blocks[MigrateType::Movable.index()] -=
            plan.frames.pages / ZoneState::<H>::PAGE_BLOCK_PAGES;
        let take = |count: &core::sync::atomic::AtomicUsize, n| {
            count.store(count.load(Ordering::Relaxed) - n, Ordering::Relaxed);
        };
        take(&zone.managed, plan.frames.pages);
        take(&zone.memmap_pages, plan.memmap.pages);
        take(&zone.memmap_saved, plan.memmap.saved);
        let (mut start, mut end) = locked.lists.span;
        let holds = |pfn: Pfn| zone.try_page(pfn).is_some_and(|page| zone.holds(page));
        let is_empty = zone.managed_pages() == 0;
        while start < end && (is_empty || !holds(start)) {
            start = next_candidate::<H>(zone, start).min(end);
        }
        while end > start && !holds(Pfn(end.0 - 1)) {
            end = last_candidate::<H>(zone, end).max(start);
        }
        locked.lists.span = if is_empty {
            (Pfn(0), Pfn(0))
        } else {
            (start, end)
        };
    }

    /// Removes memory of a device and frees what its records took, which may wait for other CPUs and a grace period: called with no lock of the core
    /// held and not in a read-side section.
    ///
    /// # Safety
    /// `memory` is of this allocator. Nobody uses the frames any more, nor a [`Page`] of one of them; who looks one of them up without owning
    /// it does so in a read-side section of the host, and keeps what it finds no longer (D3).
    pub unsafe fn remove_device_memory(&self, memory: DeviceMemory) {
        let plan = memory.plan;
        let host = self.host();
        host.hide_memmap(plan.frames);
        self.count_out_device(&plan);
        self.compute_watermarks();
        for zone in self.zones() {
            drop(zone.lock());
        }
        host.synchronize();
        // SAFETY: V4: hidden, and nobody has an address any more: not under a zone's lock, for each was free once since, not in a section, nor
        // otherwise by the caller's promise (D3).
        unsafe { self.unmap(&plan, plan.frames) };
    }
}

/// Whether frames of the zone may be in the largest block of `pfn`, which itself is none: not if there are no records, or one says
/// another zone (M8).
fn may_hold<H: Host>(zone: &ZoneState<H>, pfn: Pfn) -> bool {
    zone.try_page(pfn)
        .is_some_and(|page| !page.place().is_known())
}

/// The frame after `pfn` at which a frame of the zone may be.
fn next_candidate<H: Host>(zone: &ZoneState<H>, pfn: Pfn) -> Pfn {
    if may_hold(zone, pfn) {
        pfn.add(1)
    } else {
        Pfn((pfn.0 | (ZoneState::<H>::MAX_BLOCK - 1)) + 1)
    }
}

/// As [`next_candidate`], downwards from before `end`: the end of what may be.
fn last_candidate<H: Host>(zone: &ZoneState<H>, end: Pfn) -> Pfn {
    let last = Pfn(end.0 - 1);
    if may_hold(zone, last) {
        last
    } else {
        Pfn(last.0 & !(ZoneState::<H>::MAX_BLOCK - 1))
    }
}
