//! Allocations beyond the size classes: runs of page frames, grown and shrunk in place where that is possible.

use core::ptr::NonNull;

use flagstone_frames::{PageKind, PageRun};
use flagstone_host::{PageMap, PhysMem};
use flagstone_slab::Caches;
use flagstone_types::{AllocError, Gfp, Order, PfnRange};

use crate::process::{Process, syscall};

const FRAME: usize = Process::PAGE_SIZE;

/// The largest run in bytes: a mapping of its own serves what is larger.
pub(crate) const LARGEST_RUN: usize = 32 << 20;

/// Memory of `size` bytes, page-aligned; also whether it is known to be zero.
///
/// # Errors
/// [`AllocError::OutOfMemory`].
pub(crate) fn allocate(
    caches: &Caches<Process>,
    size: usize,
) -> Result<(NonNull<u8>, bool), AllocError> {
    let frames = caches.frames();
    let pages = size.div_ceil(FRAME).max(1);
    let run = caches.place_pages(Gfp::KERNEL | Gfp::NOWARN, |flags, nid| {
        frames.alloc_run(flags, pages, nid)
    })?;
    let zero = run.zero();
    Ok((own(caches, run)?, zero))
}

/// As [`allocate`], aligned to `align` bytes, a power of two above the size of a frame.
///
/// # Errors
/// As [`allocate`].
pub(crate) fn allocate_aligned(
    caches: &Caches<Process>,
    size: usize,
    align: usize,
) -> Result<NonNull<u8>, AllocError> {
    let order = Order::covering(align / FRAME).ok_or(AllocError::TooLarge)?;
    let pages = size.div_ceil(FRAME).max(1);
    let flags = Gfp::KERNEL | Gfp::NOWARN;
    own(
        caches,
        caches
            .frames()
            .alloc_run_aligned(flags, pages, order, None)?,
    )
}

fn own(caches: &Caches<Process>, run: PageRun) -> Result<NonNull<u8>, AllocError> {
    let page = caches
        .frames()
        .page(run.start())
        .ok_or(AllocError::InvalidArgument)?;
    page.set_kind(PageKind::Large);
    let PfnRange { start, .. } = run.into_raw();
    Ok(caches.host().frame_ptr(start))
}

/// Changes the length of the run `frames` to hold `size` bytes without moving it.
///
/// # Errors
/// [`AllocError::OutOfMemory`] if what follows it is not free; nothing has changed.
///
/// # Safety
/// The caller owns the run.
pub(crate) unsafe fn resize(
    caches: &Caches<Process>,
    frames: PfnRange,
    size: usize,
) -> Result<(), AllocError> {
    let pages = size.div_ceil(FRAME).max(1);
    if pages == frames.pages {
        return Ok(());
    }
    // SAFETY: as promised; the run is put back below whatever happens.
    let mut run = unsafe { PageRun::from_raw(frames) };
    let result = if pages > frames.pages {
        caches
            .frames()
            .grow_run(&mut run, pages - frames.pages)
            .map(drop)
    } else {
        caches.frames().shrink_run(&mut run, pages)
    };
    let _ = run.into_raw();
    result
}

/// Runs of at least so many bytes are emptied by giving their pages back instead of writing to them.
const GIVEN_BACK: usize = 256 << 10;

/// Makes the run zero.
///
/// # Safety
/// The caller owns it.
pub(crate) unsafe fn wipe(caches: &Caches<Process>, frames: PfnRange) {
    let at = caches.host().frame_ptr(frames.start);
    let length = frames.pages * FRAME;
    if length >= GIVEN_BACK {
        // SAFETY: as promised: the contents are lost.
        if unsafe { syscall::advise(at.addr().get(), length, libc::MADV_DONTNEED) }.is_ok() {
            return;
        }
    }
    // SAFETY: as promised.
    unsafe { at.write_bytes(0, length) };
}

/// Frees the run.
///
/// # Safety
/// The caller owns it and nobody uses it any more.
pub(crate) unsafe fn free(caches: &Caches<Process>, frames: PfnRange) {
    if let Some(page) = caches.frames().page(frames.start) {
        page.set_kind(PageKind::Allocated);
    }
    // SAFETY: as promised.
    caches
        .frames()
        .free_run(unsafe { PageRun::from_raw(frames) });
}
