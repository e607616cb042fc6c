//! The slab record: what is known of one slab, kept in the metadata of its first page.
//!
//! Taking and giving objects here is pure arithmetic on the record and the index; who may do it
//! is `MODEL.md` S5: the holder of the lock of the slab's place, or the one context that owns the slab.

use core::ptr::{NonNull, null_mut, without_provenance_mut};
use core::sync::atomic::{AtomicU32, Ordering};
use flagstone_host::{Host, RcuHead};
use flagstone_types::{CpuId, FreeError};

use crate::cache::Cache;
use crate::layout::IndexPlace;
use crate::random::{IN_ORDER, Implied, Order};

/// Which list of its node a slab is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ListId {
    /// None: one context owns the slab.
    None,
    /// Some objects are free.
    Partial,
    /// No object is free.
    Full,
    /// All objects are free.
    Free,
}

/// The 56 bytes of a slab in its head page's metadata, all of them used.
#[repr(C)]
pub(crate) struct Record<H: Host> {
    pub(crate) links: Links<H>,
    /// The first object.
    pub(crate) objects: NonNull<u8>,
    /// The index of free objects; null in a full slab with the index in an object. With the index in the record, no address but
    /// the index itself: bit `i` is set while object `i` is free.
    pub(crate) index: *mut u8,
    pub(crate) cache: NonNull<Cache<H>>,
    /// Objects that are out of the slab.
    pub(crate) active: u32,
    /// Index entries from here on are implied by `start`. With the index in the record, where the next object is looked for in
    /// the order that `start` implies.
    pub(crate) written: u32,
    pub(crate) list: ListId,
    /// Whether a reaper saw the slab free and untouched since.
    pub(crate) idle: bool,
    /// Where the slab begins in its cache's permutation, or `IN_ORDER`.
    pub(crate) start: u16,
    /// Whose lists the slab is on (S5): 0 for its node's, else those of the CPU with the number before.
    pub(crate) place: AtomicU32,
}

/// Whose lists a slab is on, and so whose lock protects its record (S5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Its node's.
    Node,
    /// Those of a CPU's slot.
    Cpu(CpuId),
}

/// While a slab lives, its neighbours on its list; when its pages wait for a grace period, the
/// place of the deferred call.
#[repr(C)]
pub(crate) union Links<H: Host> {
    pub(crate) list: Neighbours<H>,
    pub(crate) rcu: core::mem::ManuallyDrop<RcuHead>,
}

pub(crate) struct Neighbours<H: Host> {
    pub(crate) next: *mut Record<H>,
    pub(crate) prev: *mut Record<H>,
}

impl<H: Host> Clone for Neighbours<H> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<H: Host> Copy for Neighbours<H> {}

/// One bit for each of `num` objects, at most [`RECORD_OBJECTS`](crate::layout::RECORD_OBJECTS).
const fn all_bits(num: u32) -> usize {
    usize::MAX >> (usize::BITS - num)
}

impl<H: Host> Record<H> {
    /// The index, in the record, of a slab of `num` objects that are all free.
    pub(crate) const fn all_free(num: u32) -> *mut u8 {
        without_provenance_mut(all_bits(num))
    }

    pub(crate) const NO_LINKS: Links<H> = Links {
        list: Neighbours {
            next: null_mut(),
            prev: null_mut(),
        },
    };

    /// Where a slab is; without the lock of that place, where it was a moment ago.
    ///
    /// # Safety
    /// The record is one of a slab.
    pub(crate) unsafe fn place(slab: NonNull<Self>) -> Place {
        // SAFETY: atomic, and reached without a reference to the rest of the record.
        let place = unsafe { (*slab.as_ptr()).place.load(Ordering::Acquire) };
        match place.checked_sub(1) {
            None => Place::Node,
            Some(cpu) => Place::Cpu(CpuId(cpu)),
        }
    }

    /// Says where a slab is from now on.
    ///
    /// # Safety
    /// The caller holds the locks of both places, or the new one's while it owns the slab (S5).
    pub(crate) unsafe fn set_place(slab: NonNull<Self>, place: Place) {
        let place = match place {
            Place::Node => 0,
            Place::Cpu(CpuId(cpu)) => cpu + 1,
        };
        // SAFETY: as for `place`.
        unsafe { (*slab.as_ptr()).place.store(place, Ordering::Release) };
    }

    /// Object number `i` of the slab.
    ///
    /// # Safety
    /// `i < num` of the cache.
    #[inline]
    unsafe fn object(&self, i: u32, size: u32) -> NonNull<u8> {
        // SAFETY: object i lies within the slab (layout), so the offset stays inside its block (M1).
        unsafe { self.objects.add(i as usize * size as usize) }
    }

    /// Entry `at` of the index.
    ///
    /// # Safety
    /// S5; `at < num`.
    #[inline]
    unsafe fn entry(&self, at: u32, cache: &Cache<H>) -> u32 {
        if at >= self.written {
            return self.implied(cache).number(at);
        }
        let bytes = cache.layout.entry;
        // SAFETY: entries below `written` and at or above `active` are stored (S2).
        unsafe {
            if bytes == 1 {
                u32::from(self.index.add(at as usize).read())
            } else {
                u32::from(self.index.cast::<u16>().add(at as usize).read())
            }
        }
    }

    /// What entries that are not stored stand for.
    #[inline]
    pub(crate) fn implied(&self, cache: &Cache<H>) -> Implied {
        cache.sequence.implied(cache.layout.num, self.start)
    }

    /// Stores entry `at` of the index.
    ///
    /// # Safety
    /// S5; `at < num`; the index exists.
    #[inline]
    unsafe fn set_entry(&mut self, at: u32, bytes: u8, value: u32) {
        // SAFETY: the index has `num` entries and belongs to whoever may write the record (S5, S6).
        unsafe {
            if bytes == 1 {
                self.index.add(at as usize).write(value as u8);
            } else {
                self.index
                    .cast::<u16>()
                    .add(at as usize)
                    .write(value as u16);
            }
        }
    }

    /// The index in the record.
    fn bits(&self) -> usize {
        self.index.addr()
    }

    fn set_bits(&mut self, bits: usize) {
        self.index = without_provenance_mut(bits);
    }

    /// [`Record::take`] with the index in the record.
    ///
    /// # Safety
    /// S5.
    unsafe fn take_bits(&mut self, cache: &Cache<H>, into: &mut [NonNull<u8>]) -> usize {
        let layout = &cache.layout;
        let mut bits = self.bits();
        let n = into.len().min(bits.count_ones() as usize);
        let implied = self.implied(cache);
        for slot in &mut into[..n] {
            let number = if self.start == IN_ORDER {
                bits.trailing_zeros()
            } else {
                loop {
                    let number = implied.number(self.written);
                    self.written = (self.written + 1) % layout.num;
                    if bits >> number & 1 != 0 {
                        break number;
                    }
                }
            };
            bits &= !(1 << number);
            // SAFETY: `number < num` (S2).
            *slot = unsafe { self.object(number, layout.size) };
        }
        self.set_bits(bits);
        self.active += n as u32;
        n
    }

    /// Takes up to `into.len()` free objects out of the slab and returns how many.
    ///
    /// # Safety
    /// S5.
    pub(crate) unsafe fn take(&mut self, cache: &Cache<H>, into: &mut [NonNull<u8>]) -> usize {
        let layout = &cache.layout;
        if layout.place == IndexPlace::InRecord {
            // SAFETY: the caller's promise.
            return unsafe { self.take_bits(cache, into) };
        }
        let n = into.len().min((layout.num - self.active) as usize);
        let from = self.active;
        let end = from + n as u32;
        let stored = self.written.clamp(from, end);
        for at in from..stored {
            // SAFETY: `at < num`; the entry is below `num` (S2).
            into[(at - from) as usize] = unsafe { self.object(self.entry(at, cache), layout.size) };
        }
        // In order, a run of additions.
        let rest = &mut into[(stored - from) as usize..n];
        self.implied(cache).each(stored, end - stored, |i, number| {
            // SAFETY: what an entry stands for is below `num`.
            rest[i] = unsafe { self.object(number, layout.size) };
        });
        self.active = end;
        self.written = self.written.max(end);
        if end == layout.num && layout.place == IndexPlace::InObject {
            self.index = null_mut();
        }
        n
    }

    /// Takes up to `n` objects out of a slab whose index was never written, and returns how many: those that its first entries imply. 0 if
    /// the index was written.
    ///
    /// # Safety
    /// S5.
    pub(crate) unsafe fn take_fresh(&mut self, cache: &Cache<H>, n: usize) -> usize {
        let layout = &cache.layout;
        if self.written != 0 || self.active != 0 {
            return 0;
        }
        let n = n.min(layout.num as usize);
        if layout.place == IndexPlace::InRecord {
            let implied = self.implied(cache);
            let taken = (0..n as u32).fold(0, |bits, at| bits | 1 << implied.number(at));
            self.set_bits(self.bits() & !taken);
            self.active = n as u32;
            self.written = self.active % layout.num;
            return n;
        }
        self.active = n as u32;
        self.written = self.active;
        if self.active == layout.num && layout.place == IndexPlace::InObject {
            self.index = null_mut();
        }
        n
    }

    /// Puts an object back.
    ///
    /// # Errors
    /// If the pointer is not the start of an object, or no object of the slab is out.
    ///
    /// # Safety
    /// S5; the object is nowhere else (S1), or is refused.
    pub(crate) unsafe fn give(
        &mut self,
        cache: &Cache<H>,
        object: NonNull<u8>,
    ) -> Result<(), FreeError> {
        let number = cache.number_in(self.objects, object)?;
        if self.active == 0 {
            return Err(FreeError::AlreadyFree);
        }
        let layout = &cache.layout;
        if layout.place == IndexPlace::InRecord {
            let bit = 1 << number;
            if self.bits() & bit != 0 {
                return Err(FreeError::AlreadyFree);
            }
            self.set_bits(self.bits() | bit);
            self.active -= 1;
            return Ok(());
        }
        if self.active == layout.num && layout.place == IndexPlace::InObject {
            self.index = object.as_ptr(); // S6
        }
        self.active -= 1;
        // SAFETY: `active < num`; the index exists, since the slab is not full now.
        unsafe { self.set_entry(self.active, layout.entry, number) };
        Ok(())
    }

    /// Whether object `number` is in the slab's index, that is: free here.
    ///
    /// # Safety
    /// S5.
    pub(crate) unsafe fn is_listed(&self, cache: &Cache<H>, number: u32) -> bool {
        if cache.layout.place == IndexPlace::InRecord {
            return self.bits() >> number & 1 != 0;
        }
        // SAFETY: the range is within the index (S2).
        (self.active..cache.layout.num).any(|at| unsafe { self.entry(at, cache) } == number)
    }

    /// Checks S2 and S6.
    ///
    /// # Safety
    /// S5.
    pub(crate) unsafe fn validate(&self, cache: &Cache<H>) -> Result<(), &'static str> {
        let layout = &cache.layout;
        let num = layout.num;
        if layout.place == IndexPlace::InRecord {
            if self.bits() & !all_bits(num) != 0 || self.written >= num {
                return Err("slab: index in the record out of bounds");
            }
            return if self.bits().count_ones() == num - self.active {
                Ok(())
            } else {
                Err("slab: index in the record and active differ")
            };
        }
        if self.active > num || self.written > num || self.active > self.written {
            return Err("slab: active and written out of bounds");
        }
        if layout.place == IndexPlace::InObject {
            if (self.active == num) != self.index.is_null() {
                return Err("slab: in-object index exists iff the slab is not full");
            }
            if self.active < num {
                // SAFETY: `num - 1` is within the index.
                let holder = unsafe { self.object(self.entry(num - 1, cache), layout.size) };
                if holder.as_ptr() != self.index {
                    return Err("slab: in-object index is not in the object handed out last");
                }
            }
        }
        for at in self.active..self.written {
            // SAFETY: within the stored part of the index (S2).
            let value = unsafe { self.entry(at, cache) };
            if value >= num {
                return Err("slab: index entry out of bounds");
            }
            for other in at + 1..num {
                // SAFETY: as above.
                if unsafe { self.entry(other, cache) } == value {
                    return Err("slab: index entry twice");
                }
            }
        }
        Ok(())
    }

    /// Begins the slab at `start` of its cache's permutation.
    ///
    /// # Safety
    /// S5; no object is out and no entry was stored; the permutation exists, or the index is in the record.
    pub(crate) unsafe fn shuffle(&mut self, cache: &Cache<H>, start: u16) {
        self.start = start;
        // With the index in the record nothing else is needed, and the permutation need not exist.
        if cache.layout.place == IndexPlace::InObject {
            let last = self.implied(cache).number(cache.layout.num - 1);
            // SAFETY: a number below `num`.
            self.index = unsafe { self.object(last, cache.layout.size) }.as_ptr();
        }
    }

    /// Lays the whole index down in the order given, so that nothing is implied: where there is no permutation.
    ///
    /// # Safety
    /// S5; no object is out; `order` is of `num` objects.
    pub(crate) unsafe fn lay_index(&mut self, cache: &Cache<H>, order: Order) {
        let layout = &cache.layout;
        if layout.place == IndexPlace::InObject {
            // SAFETY: a number below `num`.
            self.index = unsafe { self.object(order.final_number(), layout.size) }.as_ptr();
        }
        for (at, value) in (0..layout.num).zip(order) {
            // SAFETY: `at < num`, the index exists.
            unsafe { self.set_entry(at, layout.entry, value) };
        }
        self.written = layout.num;
    }
}
