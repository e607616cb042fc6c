//! Runs: contiguous frames of any length, in place longer and shorter.
//!
//! The first frame of a run carries the length in the last word of its view (P4); the others are tails. A run
//! that is as long as a block of a small order goes through page lists as such.

use crate::alloc::{Shape, covering};
use crate::buddy::End;
use crate::page::{Page, State};
use crate::page_list::{LIST_ORDERS, alloc_event};
use crate::watermark::{Level, Mark};
use crate::{Frames, PageRun};
use flagstone_host::{Event, Host};
use flagstone_types::{AllocError, FreeError, Gfp, Nid, Order, Pfn, PfnRange};

impl<H: Host> Frames<H> {
    /// Allocates exactly `pages` contiguous frames, contiguous in the direct map too; their number may be beyond the largest
    /// block's. The rest is as for [`Frames::alloc_pages`], but there are no compound runs.
    ///
    /// # Errors
    /// As [`Frames::alloc_pages`]; [`AllocError::InvalidArgument`] for no pages, [`AllocError::TooLarge`] for
    /// more than there are addresses.
    pub fn alloc_run(
        &self,
        gfp: Gfp,
        pages: usize,
        nid: Option<Nid>,
    ) -> Result<PageRun, AllocError> {
        let order = covering(pages, H::PAGE_SHIFT)?;
        let is_block =
            order.pages() == pages && (order.index()) < LIST_ORDERS && order.get() <= H::MAX_ORDER;
        let shape = if is_block { Shape::Block } else { Shape::Run };
        let want = self.want(gfp, pages, order, shape, nid)?;
        let got = self.obtain(&want, gfp)?;
        if is_block && let Some(page) = self.page(got.pfn) {
            page.make_run(pages);
        }
        let zero = self.prepare(got, pages, gfp);
        Ok(PageRun {
            start: got.pfn,
            pages,
            zero,
        })
    }

    /// Allocates a run whose first frame number is a multiple of `2^align`. Otherwise as [`Frames::alloc_run`], whose runs may begin anywhere.
    ///
    /// # Errors
    /// As [`Frames::alloc_run`].
    pub fn alloc_run_aligned(
        &self,
        gfp: Gfp,
        pages: usize,
        align: Order,
        nid: Option<Nid>,
    ) -> Result<PageRun, AllocError> {
        if align == Order::ZERO {
            return self.alloc_run(gfp, pages, nid);
        }
        let order = covering(pages, H::PAGE_SHIFT)?.max(align);
        if order.get() <= H::MAX_ORDER {
            let want = self.want(gfp, pages, order, Shape::AlignedRun, nid)?;
            let got = self.obtain(&want, gfp)?;
            let zero = self.prepare(got, pages, gfp);
            return Ok(PageRun {
                start: got.pfn,
                pages,
                zero,
            });
        }
        // No block is so aligned or so large: a longer run holds an aligned one.
        let longer = pages
            .checked_add(align.pages() - 1)
            .ok_or(AllocError::TooLarge)?;
        let mut run = self.alloc_run(gfp, longer, nid)?;
        self.cut_front(&mut run, align);
        self.shrink_run(&mut run, pages)?;
        Ok(run)
    }

    /// Frees the frames of a run of at least `2^align` frames before the first that is aligned.
    fn cut_front(&self, run: &mut PageRun, align: Order) {
        let front = run.start.0.next_multiple_of(align.pages()) - run.start.0;
        let Some(page) = self.page(run.start) else {
            return;
        };
        if front == 0 {
            return;
        }
        let rest = PfnRange::new(run.start.add(front), run.pages - front);
        let mut locked = self.zone_of(page).lock();
        locked.head_run(rest.start, rest.pages);
        locked.free_range(PfnRange::new(run.start, front), End::Hot);
        drop(locked);
        (run.start, run.pages) = (rest.start, rest.pages);
        self.host().count(Event::Pgfree, front as u64);
    }

    /// Frees a run, whatever kind its owner gave its first frame. The other frames must still be tails.
    ///
    /// A run that is not allocated (see [`PageRun::from_raw`]) is reported and not freed.
    pub fn free_run(&self, run: PageRun) {
        let frames = run.into_raw();
        let page = match self.owned_run(frames) {
            Ok(page) => page,
            Err(error) => return self.report_bad_free(frames.start, frames.pages, error),
        };
        let order = frames.pages.ilog2();
        let is_block = frames.pages.is_power_of_two() && frames.start.0.trailing_zeros() >= order;
        if is_block && (order as usize) < LIST_ORDERS && order <= H::MAX_ORDER {
            self.give_block(frames.start, page, order);
        } else {
            self.zone_of(page).lock().free_range(frames, End::Hot);
            self.host().count(Event::Pgfree, frames.pages as u64);
        }
    }

    /// Whether a run of exactly `frames` is allocated: what must hold for [`PageRun::from_raw`].
    ///
    /// # Errors
    /// As [`Frames::check_block`].
    pub fn check_run(&self, frames: PfnRange) -> Result<(), FreeError> {
        self.owned_run(frames).map(|_| ())
    }

    fn owned_run(&self, frames: PfnRange) -> Result<&Page, FreeError> {
        let page = self.page(frames.start).ok_or(FreeError::Foreign)?;
        let state = page.state();
        if state.kind().is_owned() && state.has(State::RUN) && page.run_pages() == frames.pages {
            return Ok(page);
        }
        Err(self.why_not_owned(frames.start, page))
    }

    /// The length of the run that begins at `pfn`; `None` if none does. Exact for the run's owner.
    #[must_use]
    pub fn run_at(&self, pfn: Pfn) -> Option<PfnRange> {
        let page = self.page(pfn)?;
        let state = page.state();
        (state.kind().is_owned() && state.has(State::RUN))
            .then(|| PfnRange::new(pfn, page.run_pages()))
    }

    /// Makes a run `extra` frames longer where it is, if the frames that follow are free (in the buddy lists) and above the minimum
    /// watermark. Never reclaims. Returns whether the added frames are known to be zero.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`] if they are not free; [`AllocError::TooLarge`] if the length overflows;
    /// [`AllocError::InvalidArgument`] if this is not an allocated run. The run is as it was.
    pub fn grow_run(&self, run: &mut PageRun, extra: usize) -> Result<bool, AllocError> {
        if extra == 0 {
            return Ok(true);
        }
        let pages = run.pages.checked_add(extra).ok_or(AllocError::TooLarge)?;
        covering(pages, H::PAGE_SHIFT)?;
        let page = self
            .owned_run(run.range())
            .map_err(|_| AllocError::InvalidArgument)?;
        let zone = self.zone_of(page);
        let end = run.range().end();
        let mark = Mark {
            level: Level::Min,
            high: false,
            atomic: false,
        };
        if !zone.allows(mark, extra, zone.zone) {
            return Err(AllocError::OutOfMemory);
        }
        {
            let mut locked = zone.lock();
            if locked.free_after(end, extra) < extra {
                return Err(AllocError::OutOfMemory);
            }
            locked.take_extent(end, extra);
            page.make_run(pages);
        }
        run.pages = pages;
        self.host().count(alloc_event(zone.zone), extra as u64);
        let zero = self.host().take(PfnRange::new(end, extra));
        run.zero &= zero;
        Ok(zero)
    }

    /// Makes a run `pages` long and frees the frames behind.
    ///
    /// # Errors
    /// [`AllocError::InvalidArgument`] if `pages` is 0 or more than the run has, or this is not an
    /// allocated run. The run is as it was.
    pub fn shrink_run(&self, run: &mut PageRun, pages: usize) -> Result<(), AllocError> {
        if pages == 0 || pages > run.pages {
            return Err(AllocError::InvalidArgument);
        }
        let page = self
            .owned_run(run.range())
            .map_err(|_| AllocError::InvalidArgument)?;
        let rest = PfnRange::new(run.start.add(pages), run.pages - pages);
        if rest.pages == 0 {
            return Ok(());
        }
        {
            let mut locked = self.zone_of(page).lock();
            page.make_run(pages);
            locked.free_range(rest, End::Hot);
        }
        run.pages = pages;
        self.host().count(Event::Pgfree, rest.pages as u64);
        Ok(())
    }
}
