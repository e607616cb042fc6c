//! Room for arrays: the same bytes of every id's slice, found by a tag, committed from below and used again.
//!
//! A [`Room`] is an array's place in the region (`arrays.rs`), with the header and the slots that all forms but the transaction
//! forms share. It goes back to a list of its size when it is dropped.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use flagstone_host::classes::HostInner;
use flagstone_types::{AllocError, CpuId};

use super::fast::{self, FAST, HEADER_BYTES, SLICE_SHIFT, TAG_SHIFT};
use super::lock::Lock;
use super::{arrays, syscall};

/// The most slots of an array.
pub(super) const MOST_SLOTS: u32 = ((LARGEST_UNITS << TAG_SHIFT) - HEADER_BYTES as u32) / 8;

/// Arrays are made of units of 64 bytes, at most this many.
const LARGEST_UNITS: u32 = 1023;
/// One array may take this part of the room that is left.
const SHARE_OF_REST: u32 = 192;
/// But so many units are never refused while there are any.
const SMALL_UNITS: u32 = 1;
/// Bytes committed at a time in every slice.
const COMMIT_STEP: usize = 512 << 10;
/// The next free place of the same size, by tag; under [`ARRAYS`].
static NEXT_FREE: [AtomicU16; 1 << 16] = [const { AtomicU16::new(0) }; 1 << 16];

/// Which parts of the slices are in use.
#[derive(Debug)]
pub(super) struct Places {
    /// The first free place by size in units; 0 if there is none.
    free: [u16; LARGEST_UNITS as usize + 1],
    /// Everything from this tag on has never been used.
    next: u32,
    /// Bytes of every slice that can be written.
    committed: usize,
    /// Bytes of every slice that are reserved.
    reserved: usize,
}

/// Held by whoever makes or removes an array.
pub(super) static ARRAYS: lock_api::Mutex<Lock<HostInner>, Places> = lock_api::Mutex::new(Places {
    free: [0; LARGEST_UNITS as usize + 1],
    next: 1,
    committed: 0,
    reserved: 0,
});

/// A stack's header.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Header {
    pub(super) count: AtomicU64,
    pub(super) limit: AtomicU32,
    pub(super) lock: AtomicU8,
    unused: [u8; 2],
    /// 1 once a limit was set, before the limit (P15).
    pub(super) seen: AtomicU8,
}

const _: () = assert!(size_of::<Header>() == HEADER_BYTES);

/// A place in every slice, given back when dropped.
#[derive(Debug)]
pub(super) struct Room {
    tag: u16,
    capacity: u32,
}

impl Room {
    /// Room for `capacity` slots after a header; `has_lock` says that the form uses the header's lock.
    ///
    /// # Errors
    /// [`AllocError::TooLarge`] for more than [`MOST_SLOTS`], [`AllocError::Exists`] if slices are full,
    /// [`AllocError::OutOfMemory`] if the system refuses memory for them.
    pub(super) fn new(capacity: u32, has_lock: bool) -> Result<Self, AllocError> {
        if capacity > MOST_SLOTS {
            return Err(AllocError::TooLarge);
        }
        let units = (HEADER_BYTES as u32 + capacity * 8).div_ceil(1 << TAG_SHIFT);
        let (tag, used_before) = ARRAYS.lock().take(units)?;
        let room = Self { tag, capacity };
        if used_before {
            room.clear();
        }
        if has_lock {
            arrays::note_lock(tag, true);
        }
        Ok(room)
    }

    /// Makes headers what they are in fresh memory, touching only those that are not.
    fn clear(&self) {
        for id in 0..arrays::ids() {
            let words = self.words(id);
            // The transaction forms keep a third word. A place may have slots of an earlier, larger one there.
            for n in 0..3 {
                // SAFETY: P11; an array has at least 64 bytes, and nobody uses this one yet.
                let word = unsafe { &*words.add(n) };
                if word.load(Ordering::Relaxed) != 0 {
                    word.store(0, Ordering::Relaxed);
                }
            }
        }
    }

    pub(super) fn tag(&self) -> u16 {
        self.tag
    }

    pub(super) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// The stack in id 0's slice, for sections.
    #[inline(always)]
    pub(super) fn stack(&self) -> *mut u8 {
        fast::stack(self.tag)
    }

    /// The array as words in the slice of `id`, which has one.
    #[inline]
    pub(super) fn words(&self, id: u32) -> *mut AtomicU64 {
        self.stack()
            .wrapping_add((id as usize) << SLICE_SHIFT)
            .cast()
    }

    /// The header for `cpu`, if it has a slice.
    #[inline]
    pub(super) fn header(&self, cpu: CpuId) -> Option<&Header> {
        // SAFETY: P11, the array is committed in every slice below IDS, and its header is made of atomics.
        (cpu.0 < arrays::ids()).then(|| unsafe { &*self.words(cpu.0).cast::<Header>() })
    }

    /// The slots after `header`.
    pub(super) fn slots(header: &Header) -> *mut *mut u8 {
        (&raw const *header).wrapping_add(1).cast_mut().cast()
    }

    /// Sets the limit of `cpu`'s stack.
    pub(super) fn set_limit(&self, cpu: CpuId, limit: u32) {
        let limit = limit.min(self.capacity);
        // A limit that is set already, 0 in fresh memory, makes no page of a CPU that never ran here.
        if let Some(header) = self
            .header(cpu)
            .filter(|h| h.limit.load(Ordering::Relaxed) != limit)
        {
            header.seen.store(1, Ordering::Release);
            header.limit.store(limit, Ordering::Release);
        }
    }

    /// The limit of `cpu`'s stack.
    pub(super) fn limit(&self, cpu: CpuId) -> u32 {
        self.header(cpu)
            .map_or(0, |header| header.limit.load(Ordering::Relaxed))
    }

    /// How many pointers `cpu`'s stack holds.
    pub(super) fn len(&self, cpu: CpuId) -> u32 {
        self.header(cpu)
            .map_or(0, |header| header.count.load(Ordering::Relaxed) as u32)
    }

    /// Hands out everything in `cpu`'s stack and leaves it empty; arrays are stopped (P17).
    pub(super) fn drain(&self, cpu: CpuId, take: &mut dyn FnMut(&[NonNull<u8>])) {
        let Some(header) = self.header(cpu) else {
            return;
        };
        // A look first: an exchange would make a page of a CPU that never ran here.
        if header.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let count = header.count.swap(0, Ordering::AcqRel) as usize;
        if count > 0 {
            // SAFETY: P17, the slots are ours until arrays go on; P11, they hold `count` pointers, none of them null.
            take(unsafe { core::slice::from_raw_parts(Self::slots(header).cast(), count) });
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        arrays::note_lock(self.tag, false);
        let units = (HEADER_BYTES as u32 + self.capacity * 8).div_ceil(1 << TAG_SHIFT) as usize;
        ARRAYS.lock().give(self.tag, units);
    }
}

impl Places {
    /// Says how many bytes every slice has, and makes their beginnings writable.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`] if the system refuses memory for those, or there is none.
    pub(super) fn reserve(&mut self, bytes: usize) -> Result<(), AllocError> {
        self.reserved = bytes;
        self.commit(1 << TAG_SHIFT)
    }

    /// A place of `units` units: a free one of that size, one never used, or the first part of a larger free one.
    /// A place of so many units, and whether it was used before.
    ///
    /// # Errors
    /// [`AllocError::Exists`] if there is none, [`AllocError::OutOfMemory`] if the system refuses memory.
    fn take(&mut self, units: u32) -> Result<(u16, bool), AllocError> {
        if let Some(tag) = self.take_free(units as usize) {
            return Ok((tag, true));
        }
        let end = self.next + units;
        // Large ones leave room for many small ones: nobody takes more than a share of what is left.
        let left = (1 << 16) - self.next;
        if units > SMALL_UNITS && units > left / SHARE_OF_REST {
            return Err(AllocError::Exists);
        }
        // One more unit is committed than is used: a free on another node's CPU reads up to so much beyond a header (P25).
        if end < 1 << 16 {
            self.commit((end as usize + 1) << TAG_SHIFT)?;
            let tag = self.next as u16;
            self.next = end;
            return Ok((tag, false));
        }
        for larger in units as usize + 1..self.free.len() {
            if let Some(tag) = self.take_free(larger) {
                self.give(tag + units as u16, larger - units as usize);
                return Ok((tag, true));
            }
        }
        Err(AllocError::Exists)
    }

    fn take_free(&mut self, units: usize) -> Option<u16> {
        let tag = self.free[units];
        if tag == 0 {
            return None;
        }
        self.free[units] = NEXT_FREE[tag as usize].load(Ordering::Relaxed);
        Some(tag)
    }

    fn give(&mut self, tag: u16, units: usize) {
        NEXT_FREE[tag as usize].store(self.free[units], Ordering::Relaxed);
        self.free[units] = tag;
    }

    /// Makes the first `bytes` bytes of every slice writable.
    fn commit(&mut self, bytes: usize) -> Result<(), AllocError> {
        let end = bytes.next_multiple_of(COMMIT_STEP).min(self.reserved);
        if bytes > end {
            return Err(AllocError::OutOfMemory);
        }
        let region = FAST.region.load(Ordering::Relaxed) as usize;
        for id in (0..arrays::ids() as usize).filter(|_| end > self.committed) {
            // A failure half-way leaves rights that do no harm; the next attempt sets them again.
            syscall::allow_writes(region + (id << SLICE_SHIFT), end)
                .map_err(|_| AllocError::OutOfMemory)?;
        }
        self.committed = self.committed.max(end);
        Ok(())
    }
}

/// Gives back the part of the region that is not committed.
pub(super) fn shrink() {
    let mut places = ARRAYS.lock();
    let keep = places.committed.max(COMMIT_STEP);
    let region = FAST.region.load(Ordering::Relaxed) as usize;
    for id in (0..arrays::ids() as usize).filter(|_| keep < places.reserved) {
        // SAFETY: P11, nothing above `committed` has ever been used, and `reserved` keeps it from being.
        let _ =
            unsafe { syscall::unmap(region + (id << SLICE_SHIFT) + keep, places.reserved - keep) };
    }
    places.reserved = places.reserved.min(keep);
}
