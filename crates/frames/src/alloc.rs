//! Allocation and freeing of blocks.
//!
//! [`Frames::attempt`] is one walk over the zones that may serve a request, nearest first, under one watermark; the
//! first zone's page list serves almost always. What happens when it finds nothing is in [`crate::shortage`].

use crate::page::{Page, State};
use crate::page_list::{alloc_event, is_listed};
use crate::watermark::{Level, Mark};
use crate::zone::{ZoneState, order as order_of};
use crate::{Frames, PageBlock};
use flagstone_host::{Event, Host, Level as LogLevel};
use flagstone_types::{
    AllocError, CpuId, FreeError, Gfp, MigrateType, Nid, Order, Pfn, PfnRange, Zone,
};

/// What a request is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// One block.
    Block,
    /// Any contiguous frames.
    Run,
    /// The beginning of a block.
    AlignedRun,
}

/// A request, worked out from its flags.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want {
    pub(crate) pages: usize,
    /// The order that covers `pages`, or more for alignment; beyond the largest for long runs.
    pub(crate) order: Order,
    /// What it is made of.
    pub(crate) shape: Shape,
    pub(crate) migrate: MigrateType,
    /// The highest zone that may serve it.
    pub(crate) class: Zone,
    pub(crate) prefer: Nid,
    /// Whether no other node may serve it.
    pub(crate) only_here: bool,
    pub(crate) cpu: CpuId,
}

/// Frames that were found: the first one, and whether they come from the buddy lists and [`flagstone_host::Backing::take`] is due.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Got {
    pub(crate) pfn: Pfn,
    pub(crate) fresh: bool,
}

impl<H: Host> Frames<H> {
    /// Allocates a block of `2^order` frames: from `nid` or the nearest node that has one; `None` is the node of the current CPU. With
    /// [`Gfp::ZERO`] its contents are zero; with [`Gfp::COMP`] its tails know their head. Its kind is `Allocated`.
    ///
    /// May call the [`crate::Reclaimer`], so no lock of the core may be held (L1), unless `gfp` lacks [`Gfp::DIRECT_RECLAIM`] and the
    /// reclaimer's `wake` takes no locks. [`Gfp::NOFAIL`] counts only together with `DIRECT_RECLAIM`.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`]; [`AllocError::TooLarge`] beyond the largest order; [`AllocError::InvalidArgument`]
    /// for a node that is not there.
    #[inline]
    pub fn alloc_pages(
        &self,
        gfp: Gfp,
        order: Order,
        nid: Option<Nid>,
    ) -> Result<PageBlock, AllocError> {
        if order.get() > H::MAX_ORDER {
            return Err(AllocError::TooLarge);
        }
        let want = self.want(gfp, order.pages(), order, Shape::Block, nid)?;
        let got = self.obtain(&want, gfp)?;
        let zero = self.prepare(got, want.pages, gfp);
        if gfp.contains(Gfp::COMP) && order.get() > 0 {
            self.mark_compound(got.pfn, order);
        }
        Ok(PageBlock::new(got.pfn, order, zero))
    }

    #[inline]
    pub(crate) fn want(
        &self,
        gfp: Gfp,
        pages: usize,
        order: Order,
        shape: Shape,
        nid: Option<Nid>,
    ) -> Result<Want, AllocError> {
        let cpu = self.host().current_cpu();
        let prefer = nid.unwrap_or_else(|| self.host().current_node());
        if u32::from(prefer.0) >= self.nodes() {
            return Err(AllocError::InvalidArgument);
        }
        Ok(Want {
            pages,
            order,
            shape,
            migrate: gfp.migrate_type(),
            class: self.class(gfp.zone()),
            prefer,
            only_here: gfp.contains(Gfp::THISNODE),
            cpu,
        })
    }

    #[inline]
    pub(crate) fn obtain(&self, want: &Want, gfp: Gfp) -> Result<Got, AllocError> {
        if self.fail_page_alloc().is_armed() && self.is_to_fail(want, gfp) {
            return Err(AllocError::OutOfMemory);
        }
        let mark = Mark {
            level: Level::Low,
            high: false,
            atomic: false,
        };
        match self.attempt(want, mark) {
            Some(got) => Ok(got),
            None => self.obtain_under_shortage(want, gfp),
        }
    }

    #[cold]
    #[inline(never)]
    fn is_to_fail(&self, want: &Want, gfp: Gfp) -> bool {
        let (bytes, order) = (want.pages << H::PAGE_SHIFT, want.order.get());
        !gfp.contains(Gfp::NOFAIL)
            && self
                .fail_page_alloc()
                .fails(self.host(), bytes, order, gfp.may_sleep())
    }

    /// One walk over the zones.
    #[inline]
    pub(crate) fn attempt(&self, want: &Want, mark: Mark) -> Option<Got> {
        for &nid in self.nearest(want.prefer) {
            let hit = nid == want.prefer;
            if want.only_here && !hit {
                return None;
            }
            for zone in self.zones_of(nid)[..=want.class.index()].iter().rev() {
                if zone.zone == Zone::Device || zone.managed_pages() == 0 {
                    continue;
                }
                if let Some(got) = take_from(zone, want, mark, hit) {
                    return Some(got);
                }
            }
        }
        None
    }

    /// Makes frames that were found ready for their owner. Returns whether they are zero.
    #[inline]
    pub(crate) fn prepare(&self, got: Got, pages: usize, gfp: Gfp) -> bool {
        let zero = got.fresh && self.host().take(PfnRange::new(got.pfn, pages));
        if gfp.contains(Gfp::ZERO) && !zero {
            self.clear(got.pfn, pages);
            return true;
        }
        zero
    }

    fn clear(&self, pfn: Pfn, pages: usize) {
        // SAFETY: M5, F1: the frames are committed and just became the caller's; M1: contiguous frames of
        // one zone are linear in the direct map.
        unsafe {
            self.host()
                .frame_ptr(pfn)
                .write_bytes(0, pages * H::PAGE_SIZE)
        };
    }

    /// Tells each tail of a block how far its head is.
    fn mark_compound(&self, pfn: Pfn, order: Order) {
        for distance in 1..order.pages() {
            if let Some(page) = self.page(pfn.add(distance)) {
                page.set_state(State::tail(distance));
            }
        }
        if let Some(page) = self.page(pfn) {
            let old = page.state();
            page.set_state(State::new(
                old.kind(),
                old.order(),
                old.migrate(),
                State::COMPOUND,
            ));
        }
    }

    /// Frees a block, whatever kind its owner gave its first frame. The other frames must still be tails.
    ///
    /// A block that is not allocated (the value was made by [`PageBlock::from_raw`] without right) is reported and not freed. See [`Frames::check_block`].
    #[inline]
    pub fn free_pages(&self, block: PageBlock) {
        let (pfn, order) = block.into_raw();
        let page = match self.owned_block(pfn, order) {
            Ok(page) => page,
            Err(error) => return self.report_bad_free(pfn, order.pages(), error),
        };
        self.give_block(pfn, page, order.get());
    }

    /// Frees the block at `pfn`, which the caller has checked.
    #[inline]
    pub(crate) fn give_block(&self, pfn: Pfn, page: &Page, order: u32) {
        let zone = self.zone_of(page);
        let migrate = page.state().migrate();
        if is_listed(order, migrate)
            && zone.give_listed(self.host().current_cpu(), pfn, page, order, migrate)
        {
            return;
        }
        zone.lock().free_block(pfn, order);
        self.host().count(Event::Pgfree, 1 << order);
    }

    /// Whether an allocated block of `order` begins at `pfn`: what must hold for [`PageBlock::from_raw`].
    ///
    /// # Errors
    /// [`FreeError::Foreign`]: no memory; [`FreeError::AlreadyFree`]: a free block begins there;
    /// [`FreeError::Interior`]: inside a block, with the distance in bytes; [`FreeError::NotAllocated`]: something else is there, or a block of another length.
    pub fn check_block(&self, pfn: Pfn, order: Order) -> Result<(), FreeError> {
        self.owned_block(pfn, order).map(|_| ())
    }

    #[inline]
    fn owned_block(&self, pfn: Pfn, order: Order) -> Result<&Page, FreeError> {
        let page = self.page(pfn).ok_or(FreeError::Foreign)?;
        let state = page.state();
        let not_a_block = State::RUN | State::DEVICE;
        if state.kind().is_owned() && state.order() == order.get() && !state.has(not_a_block) {
            return Ok(page);
        }
        Err(self.why_not_owned(pfn, page))
    }

    #[cold]
    pub(crate) fn why_not_owned(&self, pfn: Pfn, page: &Page) -> FreeError {
        use crate::PageKind::{Buddy, PageList, Tail};
        match page.kind() {
            Buddy | PageList => FreeError::AlreadyFree,
            Tail => match self.head(pfn) {
                Some((head, owner)) if owner.kind().is_owned() => FreeError::Interior {
                    offset: (pfn.0 - head.0) * H::PAGE_SIZE,
                },
                Some(_) => FreeError::AlreadyFree,
                None => FreeError::NotAllocated,
            },
            _ => FreeError::NotAllocated,
        }
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn report_bad_free(&self, pfn: Pfn, pages: usize, error: FreeError) {
        let message = format_args!("free of {pages} page(s) at frame {pfn}: {error}; not freed");
        self.host().log(LogLevel::Error, message);
        debug_assert!(false, "free of {pages} page(s) at frame {pfn}: {error}");
    }
}

/// Takes what is wanted from one zone.
#[inline]
fn take_from<H: Host>(zone: &ZoneState<H>, want: &Want, mark: Mark, hit: bool) -> Option<Got> {
    let allowed = || zone.allows(mark, want.pages, want.class);
    let order = want.order.get();
    let for_reserve = mark.atomic && order > 0;
    if want.shape == Shape::Block
        && is_listed(order, want.migrate)
        && !for_reserve
        && let Some((pfn, fresh)) = zone.take_listed(want.cpu, order, want.migrate, hit, allowed)
    {
        return Some(Got { pfn, fresh });
    }
    if !allowed() {
        return None;
    }
    take_directly(zone, want, for_reserve, hit)
}

/// Takes what is wanted from the buddy lists of one zone.
#[inline(never)]
fn take_directly<H: Host>(
    zone: &ZoneState<H>,
    want: &Want,
    for_reserve: bool,
    hit: bool,
) -> Option<Got> {
    let pfn = if want.shape == Shape::Block {
        zone.lock()
            .take(want.order.get(), want.migrate, for_reserve)?
    } else {
        zone.lock().take_run(
            want.pages,
            want.order.get(),
            want.shape == Shape::AlignedRun,
            want.migrate,
        )?
    };
    zone.host.count(alloc_event(zone.zone), want.pages as u64);
    zone.host
        .count(if hit { Event::NumaHit } else { Event::NumaMiss }, 1);
    Some(Got { pfn, fresh: true })
}

/// The order of a block or run of `pages`, if there can be one.
pub(crate) fn covering(pages: usize, page_shift: u32) -> Result<Order, AllocError> {
    if pages == 0 {
        return Err(AllocError::InvalidArgument);
    }
    if pages > (isize::MAX as usize) >> page_shift {
        return Err(AllocError::TooLarge);
    }
    Ok(Order::covering(pages).unwrap_or(order_of(0)))
}
