//! Address space for page frames: ranges reserved without rights and committed from below as they are needed.
//!
//! ```text
//!  range 0   │ slice of node 0      │ slice of node 1      │ …         a power of two, aligned to 64 MiB
//!            │ used │ …       end   │ used │ …       end   │
//!  tables    │ records, 64 bytes a frame │ tags, 4 bytes │ touched bits, 1 bit │      ready
//! ```
//!
//! Range 0 is large enough for nearly every program; when it is used up, further ranges follow, each of one node.
//! `used` and `ready` only grow (P6). Everything here is found by arithmetic from the frame number.

use core::sync::atomic::{AtomicU16, AtomicU32, AtomicUsize, Ordering};

use flagstone_host::classes::HostInner;
use flagstone_host::{META_BYTES, MemRange};
use flagstone_types::{AllocError, Nid, Pfn, PfnRange, Zone};

use super::fast::{FAST, TAG_SHIFT};
use super::lock::Lock;
use super::syscall;
use super::topology::{self, MOST_NODES};

/// A frame has `2^FRAME_SHIFT` bytes.
pub(super) const FRAME_SHIFT: u32 = 16;
/// The largest order of the page allocator.
pub(super) const MAX_ORDER: u32 = 10;
pub(super) const FRAME: usize = 1 << FRAME_SHIFT;
/// Frames of a largest block.
pub(super) const BLOCK_FRAMES: usize = 1 << MAX_ORDER;
/// Bytes of a largest block.
const BLOCK: usize = BLOCK_FRAMES << FRAME_SHIFT;

pub(super) const PAGE: usize = 4096;
/// Bytes of an entry of the tag map.
const TAG_BYTES: usize = 4;
// A node is less than any place but 0.
const _: () = assert!(MOST_NODES <= 1 << TAG_SHIFT);
const MOST_RANGES: usize = 128;
/// The least that range 0 has where nothing limits the address space.
const LEAST_RANGE_0: usize = 64 << 30;
/// What a further range has where nothing limits the address space.
const FURTHER_RANGE: usize = 64 << 30;
/// A reservation smaller than this is not worth a range, unless no more was asked for.
const LEAST_RANGE: usize = 1 << 20;
/// Frames committed for every node at the start: 1 MiB.
const FIRST_FRAMES: usize = 16;

/// A part of a range that belongs to one node and is used from below. In frames from its start.
#[derive(Debug)]
pub(super) struct Slice {
    pub(super) used: AtomicUsize,
    pub(super) ready: AtomicUsize,
    pub(super) end: AtomicUsize,
}

impl Slice {
    const fn new() -> Self {
        Self {
            used: AtomicUsize::new(0),
            ready: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
        }
    }
}

/// A reserved run of address space. Written under [`MEMORY`] before [`RANGES_IN_USE`] says that it is there; then only `end` of
/// its slices shrinks and `used` and `ready` grow.
#[derive(Debug)]
pub(super) struct Range {
    /// The first frame.
    pub(super) first: AtomicUsize,
    /// Frames, rounded up to whole largest blocks.
    span: AtomicUsize,
    /// Frames of a slice as a power of two; 63 if there is one slice.
    pub(super) slice_shift: AtomicU32,
    nid: AtomicU16,
    pub(super) records: AtomicUsize,
    tags: AtomicUsize,
    pub(super) bits: AtomicUsize,
    pub(super) slice: Slice,
}

pub(super) static RANGES: [Range; MOST_RANGES] = [const {
    Range {
        first: AtomicUsize::new(0),
        span: AtomicUsize::new(0),
        slice_shift: AtomicU32::new(63),
        nid: AtomicU16::new(0),
        records: AtomicUsize::new(0),
        tags: AtomicUsize::new(0),
        bits: AtomicUsize::new(0),
        slice: Slice::new(),
    }
}; MOST_RANGES];
pub(super) static RANGES_IN_USE: AtomicUsize = AtomicUsize::new(0);
/// The slices of range 0.
pub(super) static SLICES: [Slice; MOST_NODES] = [const { Slice::new() }; MOST_NODES];

/// Held by whoever grows or shrinks.
pub(super) static MEMORY: lock_api::Mutex<Lock<HostInner>, ()> = lock_api::Mutex::new(());

/// Where a frame is.
pub(super) struct Place {
    pub(super) range: &'static Range,
    /// The frame's number within the range.
    pub(super) index: usize,
    /// Its slice, and its number within that.
    slice: &'static Slice,
    within: usize,
}

#[inline]
pub(super) fn place(pfn: Pfn) -> Option<Place> {
    let count = RANGES_IN_USE.load(Ordering::Acquire);
    RANGES[..count]
        .iter()
        .enumerate()
        .find_map(|(number, range)| {
            let index = pfn.0.wrapping_sub(range.first.load(Ordering::Relaxed));
            if index >= range.span.load(Ordering::Relaxed) {
                return None;
            }
            let shift = range.slice_shift.load(Ordering::Relaxed);
            let slice = if number == 0 {
                SLICES.get(index >> shift)?
            } else {
                &range.slice
            };
            Some(Place {
                range,
                index,
                slice,
                within: index & ((1 << shift) - 1),
            })
        })
}

/// The node of a frame of any range.
pub(super) fn node_of_frame(pfn: Pfn) -> Option<Nid> {
    let place = place(pfn)?;
    let slice = place.index >> place.range.slice_shift.load(Ordering::Relaxed);
    Some(Nid(place.range.nid.load(Ordering::Relaxed) + slice as u16))
}

/// The record of a frame, if the largest block that it is in has memory.
pub(super) fn record(pfn: Pfn) -> Option<*mut u8> {
    let place = place(pfn)?;
    if place.within >= place.slice.ready.load(Ordering::Acquire) {
        return None;
    }
    Some((place.range.records.load(Ordering::Relaxed) + place.index * META_BYTES) as *mut u8)
}

/// Sets the tag of each frame. All of them have memory and are in one range.
pub(super) fn set_tags(frames: PfnRange, tag: u16) {
    let Some(place) = place(frames.start).filter(|p| covers(p, frames.pages)) else {
        return;
    };
    let tags = place.range.tags.load(Ordering::Relaxed) as *const AtomicU32;
    let entry = match node_of_frame(frames.start) {
        Some(nid) if tag != 0 => (u32::from(tag) << TAG_SHIFT) - u32::from(nid.0),
        _ => 0,
    };
    for index in place.index..place.index + frames.pages {
        // SAFETY: P6, P7: tags of frames below `used` can be written.
        unsafe { (*tags.add(index)).store(entry, Ordering::Relaxed) };
    }
}

/// The tag of the frame that `address` is in; 0 if it has no memory.
pub(super) fn tag_at(address: usize) -> u16 {
    let Some(place) = place(Pfn(address >> FRAME_SHIFT)) else {
        return 0;
    };
    if place.within >= place.slice.ready.load(Ordering::Acquire) {
        return 0;
    }
    let tags = place.range.tags.load(Ordering::Relaxed) as *const AtomicU32;
    // SAFETY: P7, tags of frames below `ready` can be read.
    let entry = unsafe { (*tags.add(place.index)).load(Ordering::Relaxed) };
    entry.div_ceil(1 << TAG_SHIFT) as u16
}

pub(super) fn covers(place: &Place, pages: usize) -> bool {
    pages
        <= place
            .slice
            .used
            .load(Ordering::Acquire)
            .saturating_sub(place.within)
}

/// Checks that frames are committed, as they are from [`grow`] on.
pub(super) fn is_committed(frames: PfnRange) -> bool {
    place(frames.start).is_some_and(|p| covers(&p, frames.pages))
}

/// Reserves range 0 and commits the first frames of each node.
pub(super) fn start() {
    let _held = MEMORY.lock();
    let mut bytes = LEAST_RANGE_0
        .max(syscall::system_memory().saturating_mul(4))
        .next_power_of_two();
    let allowed = fair_share();
    while bytes > allowed {
        bytes /= 2;
    }
    while bytes >= LEAST_RANGE && add_range(bytes, Nid(0)).is_none() {
        bytes /= 2;
    }
    let range = &RANGES[0];
    let frames = range.span.load(Ordering::Relaxed);
    let nodes = topology::nodes() as usize;
    let slots = nodes.next_power_of_two();
    if slots > 1 && frames / slots >= BLOCK_FRAMES {
        let shift = (frames / slots).trailing_zeros();
        range.slice_shift.store(shift, Ordering::Relaxed);
        for slice in &SLICES[..slots] {
            slice.end.store(1 << shift, Ordering::Relaxed);
        }
    } else {
        topology::limit_nodes(1);
    }
    for nid in 0..topology::nodes() {
        // Without memory now, growing later may have more luck.
        let _ = carve_anywhere(Nid(nid as u16), FIRST_FRAMES);
    }
}

/// Calls `each` with what is committed for each node from the start.
pub(super) fn first_frames(each: &mut dyn FnMut(MemRange)) {
    if RANGES_IN_USE.load(Ordering::Acquire) == 0 {
        return;
    }
    let range = &RANGES[0];
    let shift = range.slice_shift.load(Ordering::Relaxed);
    for (nid, slice) in SLICES.iter().enumerate().take(topology::nodes() as usize) {
        if slice.used.load(Ordering::Acquire) >= FIRST_FRAMES {
            let first =
                range.first.load(Ordering::Relaxed) + if nid == 0 { 0 } else { nid << shift };
            let frames = PfnRange::new(Pfn(first), FIRST_FRAMES);
            each(MemRange {
                frames,
                nid: Nid(nid as u16),
                zone: Zone::Normal,
            });
        }
    }
}

/// Commits `pages` more frames in one run for a node, to be added to the page allocator.
///
/// # Errors
/// [`AllocError::OutOfMemory`] if the system has no memory or address space for them, [`AllocError::InvalidArgument`] for a
/// node that does not exist or no frames.
pub(super) fn grow(nid: Nid, pages: usize) -> Result<MemRange, AllocError> {
    if u32::from(nid.0) >= topology::nodes() || pages == 0 {
        return Err(AllocError::InvalidArgument);
    }
    let _held = MEMORY.lock();
    let frames = carve_anywhere(nid, pages)?;
    Ok(MemRange {
        frames,
        nid,
        zone: Zone::Normal,
    })
}

fn carve_anywhere(nid: Nid, pages: usize) -> Result<PfnRange, AllocError> {
    let count = RANGES_IN_USE.load(Ordering::Relaxed);
    for (number, range) in RANGES[..count].iter().enumerate() {
        let slice = match number {
            0 => &SLICES[nid.index()],
            _ if range.nid.load(Ordering::Relaxed) == nid.0 => &range.slice,
            _ => continue,
        };
        let used = slice.used.load(Ordering::Relaxed);
        if pages <= slice.end.load(Ordering::Relaxed).saturating_sub(used) {
            return carve(number, nid, slice, pages);
        }
    }
    let least = pages
        .checked_mul(FRAME)
        .filter(|n| *n < 1 << 46)
        .ok_or(AllocError::OutOfMemory)?;
    let mut bytes = FURTHER_RANGE.min(fair_share()) & !(FRAME - 1);
    loop {
        bytes = bytes.max(least);
        if let Some(number) = add_range(bytes, nid) {
            let slice = if number == 0 {
                &SLICES[0]
            } else {
                &RANGES[number].slice
            };
            return carve(number, nid, slice, pages);
        }
        if bytes == least {
            return Err(AllocError::OutOfMemory);
        }
        bytes = (bytes / 2) & !(FRAME - 1);
    }
}

/// Commits the next `pages` frames of a slice that has so many left.
fn carve(number: usize, nid: Nid, slice: &Slice, pages: usize) -> Result<PfnRange, AllocError> {
    let range = &RANGES[number];
    let used = slice.used.load(Ordering::Relaxed);
    let slice_start = if number == 0 && nid.0 > 0 {
        nid.index() << range.slice_shift.load(Ordering::Relaxed)
    } else {
        0
    };
    make_ready(range, slice_start, slice, used + pages).map_err(|_| AllocError::OutOfMemory)?;
    let first = range.first.load(Ordering::Relaxed) + slice_start + used;
    let (at, length) = (first << FRAME_SHIFT, pages << FRAME_SHIFT);
    syscall::allow_writes(at, length).map_err(|_| AllocError::OutOfMemory)?;
    if let Some(node) = topology::system_node(nid) {
        syscall::prefer_node(at, length, node);
    }
    slice.used.store(used + pages, Ordering::Release);
    Ok(PfnRange::new(Pfn(first), pages))
}

/// Makes the tables of a slice's first `frames` frames writable, in whole largest blocks.
fn make_ready(
    range: &Range,
    slice_start: usize,
    slice: &Slice,
    frames: usize,
) -> Result<(), syscall::Errno> {
    let ready = slice.ready.load(Ordering::Relaxed);
    let wanted = frames.next_multiple_of(BLOCK_FRAMES);
    if wanted <= ready {
        return Ok(());
    }
    let (from, to) = (slice_start + ready, slice_start + wanted);
    let part = |table: &AtomicUsize, from: usize, to: usize| {
        let table = table.load(Ordering::Relaxed);
        let (from, to) = (
            (table + from) & !(PAGE - 1),
            (table + to).next_multiple_of(PAGE),
        );
        syscall::allow_writes(from, to - from)
    };
    part(&range.records, from * META_BYTES, to * META_BYTES)?;
    part(&range.tags, from * TAG_BYTES, to * TAG_BYTES)?;
    part(&range.bits, from / 8, to / 8)?;
    slice.ready.store(wanted, Ordering::Release);
    Ok(())
}

/// Address space that a reservation may take: half of what the limit leaves.
fn fair_share() -> usize {
    match syscall::address_space_limit() {
        None => usize::MAX,
        Some(limit) => limit.saturating_sub(syscall::address_space_used().unwrap_or(0)) / 2,
    }
}

/// Bytes of the tables of `span` frames: records, tags, bits.
fn table_bytes(span: usize) -> [usize; 3] {
    [
        span * META_BYTES,
        (span * TAG_BYTES).next_multiple_of(PAGE),
        (span / 8).next_multiple_of(PAGE),
    ]
}

/// Reserves a range of `bytes` bytes with one slice, and returns its number.
fn add_range(bytes: usize, nid: Nid) -> Option<usize> {
    let number = RANGES_IN_USE.load(Ordering::Relaxed);
    let range = RANGES.get(number)?;
    let frames = bytes >> FRAME_SHIFT;
    let span = frames.next_multiple_of(BLOCK_FRAMES);
    let [records, tags, bits] = table_bytes(span);
    let at = reserve_aligned(bytes)?;
    let Ok(tables) = syscall::map(0, records + tags + bits, libc::PROT_NONE) else {
        // SAFETY: reserved just now and known to nobody.
        let _ = unsafe { syscall::unmap(at, bytes) };
        return None;
    };
    syscall::name(at, bytes, c"flagstone: frames");
    syscall::name(tables, records + tags + bits, c"flagstone: tables");
    // Records are read far apart; a huge page for them would waste most of it. Where it is refused there are no huge pages.
    // SAFETY: this advice changes no contents.
    let _ = unsafe { syscall::advise(tables, records + tags + bits, libc::MADV_NOHUGEPAGE) };
    if syscall::allow_reads(tables + records, tags).is_err() {
        // SAFETY: reserved just now and known to nobody.
        let _ = unsafe {
            (
                syscall::unmap(at, bytes),
                syscall::unmap(tables, records + tags + bits),
            )
        };
        return None;
    }
    range.first.store(at >> FRAME_SHIFT, Ordering::Relaxed);
    range.span.store(span, Ordering::Relaxed);
    range
        .nid
        .store(if number == 0 { 0 } else { nid.0 }, Ordering::Relaxed);
    range.records.store(tables, Ordering::Relaxed);
    range.tags.store(tables + records, Ordering::Relaxed);
    range.bits.store(tables + records + tags, Ordering::Relaxed);
    let slice = if number == 0 {
        &SLICES[0]
    } else {
        &range.slice
    };
    slice.end.store(frames, Ordering::Relaxed);
    RANGES_IN_USE.store(number + 1, Ordering::Release);
    if number == 0 {
        let first = at >> FRAME_SHIFT;
        // As if it began with frame 0, so that a lookup needs no subtraction.
        let map = (tables + records).wrapping_sub(first * TAG_BYTES);
        FAST.map.store(map as *mut AtomicU32, Ordering::Relaxed);
        FAST.first.store(first, Ordering::Relaxed);
        FAST.frames.store(frames, Ordering::Release);
    }
    Some(number)
}

/// Reserves `bytes` bytes that begin at a multiple of the largest block, at least a largest block away from other ranges (M1).
fn reserve_aligned(bytes: usize) -> Option<usize> {
    let all = bytes.checked_add(3 * BLOCK)?;
    if let Ok(got) = syscall::map(0, all, libc::PROT_NONE) {
        let at = got.next_multiple_of(BLOCK) + BLOCK;
        // SAFETY: the parts before and after were reserved just now and are known to nobody.
        let _ = unsafe {
            (
                syscall::unmap(got, at - got),
                syscall::unmap(at + bytes, got + all - at - bytes),
            )
        };
        return Some(at);
    }
    // Too little room for the excess: try aligned places below one that the kernel likes.
    let liked = syscall::map(0, bytes, libc::PROT_NONE).ok()?;
    if liked.is_multiple_of(BLOCK) && is_apart(liked, bytes) {
        return Some(liked);
    }
    // SAFETY: reserved just now and known to nobody.
    let _ = unsafe { syscall::unmap(liked, bytes) };
    let below = liked & !(BLOCK - 1);
    (0..256).find_map(|n| {
        let at = below
            .checked_sub(n * BLOCK)
            .filter(|at| is_apart(*at, bytes))?;
        syscall::map(at, bytes, libc::PROT_NONE).ok()
    })
}

/// Whether a range there would leave a largest block free to every other.
fn is_apart(at: usize, bytes: usize) -> bool {
    let count = RANGES_IN_USE.load(Ordering::Relaxed);
    RANGES[..count].iter().all(|range| {
        let start = range.first.load(Ordering::Relaxed) << FRAME_SHIFT;
        let end = start + (range.span.load(Ordering::Relaxed) << FRAME_SHIFT);
        at + bytes.next_multiple_of(BLOCK) + BLOCK <= start || end + BLOCK <= at
    })
}

#[cfg(test)]
mod tests;
