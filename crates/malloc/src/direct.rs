//! Allocations that are mappings of their own: those beyond the largest run, and blocks that grew by `realloc`.
//!
//! Their records are in a hash table of their own (open addressing, keyed by the address handed out), so that a
//! foreign pointer is told from one of ours without reading the memory it points to.

use core::ptr::NonNull;

use flagstone_host::classes::HostInner;
use flagstone_types::AllocError;

use crate::process::Lock;
use crate::process::syscall;

const PAGE: usize = 4096;
/// The alignment of what is handed out here in bytes, at least.
pub(crate) const ALIGN: usize = PAGE;

/// One mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    /// The address handed out; 0 in an empty place of the table.
    pub(crate) address: usize,
    /// Usable bytes from there, a multiple of the system's page size.
    pub(crate) length: usize,
}

/// All mappings.
#[derive(Debug)]
struct Table {
    places: *mut Mapping,
    /// How many places: a power of two, or 0.
    size: usize,
    /// How many of them are used or promised to a mapping that is about to come back.
    used: usize,
    bytes: usize,
}

// SAFETY: the places are reached through the table's lock only.
unsafe impl Send for Table {}

static TABLE: lock_api::Mutex<Lock<HostInner>, Table> = lock_api::Mutex::new(Table {
    places: core::ptr::null_mut(),
    size: 0,
    used: 0,
    bytes: 0,
});

const FIRST_SIZE: usize = PAGE / size_of::<Mapping>();

const fn spread(address: usize) -> usize {
    (address >> 12).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20
}

impl Table {
    fn places(&mut self) -> &mut [Mapping] {
        if self.size == 0 {
            return &mut [];
        }
        // SAFETY: so many places were mapped, zeroed: empty places.
        unsafe { core::slice::from_raw_parts_mut(self.places, self.size) }
    }

    /// Where `address` is, or the empty place where it would be. The table has an empty place.
    fn probe(&mut self, address: usize) -> usize {
        let mask = self.size - 1;
        let mut at = spread(address) & mask;
        while !matches!(self.places()[at].address, 0) && self.places()[at].address != address {
            at = (at + 1) & mask;
        }
        at
    }

    fn find(&mut self, address: usize) -> Option<usize> {
        if self.size == 0 || address == 0 {
            return None;
        }
        let at = self.probe(address);
        (self.places()[at].address == address).then_some(at)
    }

    /// Makes room for one more.
    fn reserve(&mut self) -> Result<(), AllocError> {
        if self.used * 4 < self.size * 3 {
            return Ok(());
        }
        let size = (self.size * 2).max(FIRST_SIZE);
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let places = syscall::map(0, size * size_of::<Mapping>(), rights)
            .map_err(|_| AllocError::OutOfMemory)?;
        let old = (self.places, self.size);
        self.places = places as *mut Mapping;
        self.size = size;
        if old.1 != 0 {
            for n in 0..old.1 {
                // SAFETY: the old table is still mapped and ours.
                let mapping = unsafe { *old.0.add(n) };
                if mapping.address != 0 {
                    let at = self.probe(mapping.address);
                    self.places()[at] = mapping;
                }
            }
            // SAFETY: nobody uses the old table any more.
            let _ = unsafe { syscall::unmap(old.0 as usize, old.1 * size_of::<Mapping>()) };
        }
        Ok(())
    }

    fn insert(&mut self, mapping: Mapping) {
        let at = self.probe(mapping.address);
        self.places()[at] = mapping;
        self.used += 1;
        self.bytes += mapping.length;
    }

    /// Takes the mapping at place `at` out and closes the gap.
    fn remove(&mut self, at: usize) -> Mapping {
        let mask = self.size - 1;
        let removed = self.places()[at];
        let (mut gap, mut next) = (at, (at + 1) & mask);
        while self.places()[next].address != 0 {
            let home = spread(self.places()[next].address) & mask;
            // Moves back unless its home lies after the gap.
            if next.wrapping_sub(home) & mask >= next.wrapping_sub(gap) & mask {
                self.places()[gap] = self.places()[next];
                gap = next;
            }
            next = (next + 1) & mask;
        }
        self.places()[gap] = Mapping {
            address: 0,
            length: 0,
        };
        self.used -= 1;
        self.bytes -= removed.length;
        removed
    }
}

/// A mapping of at least `size` bytes, zero, aligned to `align` bytes, a power of two.
///
/// # Errors
/// [`AllocError::OutOfMemory`].
pub(crate) fn allocate(size: usize, align: usize) -> Result<NonNull<u8>, AllocError> {
    let length = size
        .checked_next_multiple_of(PAGE)
        .ok_or(AllocError::TooLarge)?
        .max(PAGE);
    let slack = if align > PAGE { align } else { 0 };
    let mapped = length.checked_add(slack).ok_or(AllocError::TooLarge)?;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let start = syscall::map_accounted(mapped, rights).map_err(|_| AllocError::OutOfMemory)?;
    let address = start.next_multiple_of(align.max(PAGE));
    // SAFETY: the ends of a mapping made just now.
    unsafe {
        let _ = syscall::unmap(start, address - start);
        let _ = syscall::unmap(address + length, start + mapped - address - length);
    }
    if let Err(error) = note(Mapping { address, length }) {
        // SAFETY: known to nobody.
        let _ = unsafe { syscall::unmap(address, length) };
        return Err(error);
    }
    NonNull::new(address as *mut u8).ok_or(AllocError::OutOfMemory)
}

fn note(mapping: Mapping) -> Result<(), AllocError> {
    let mut table = TABLE.lock();
    table.reserve()?;
    table.insert(mapping);
    Ok(())
}

/// The mapping that was handed out at `address`.
pub(crate) fn find(address: usize) -> Option<Mapping> {
    let mut table = TABLE.lock();
    let at = table.find(address)?;
    Some(table.places()[at])
}

/// How far into a mapping `address` is, if it is in one. Looks at all of them: for messages.
pub(crate) fn offset_in(address: usize) -> Option<usize> {
    let mut table = TABLE.lock();
    let inside = |m: &&mut Mapping| m.address != 0 && address.wrapping_sub(m.address) < m.length;
    table
        .places()
        .iter_mut()
        .find(inside)
        .map(|m| address - m.address)
}

/// Frees the mapping at `address`; `false` if there is none.
///
/// # Safety
/// Nobody uses it any more.
pub(crate) unsafe fn free(address: usize) -> bool {
    let mapping = {
        let mut table = TABLE.lock();
        let Some(at) = table.find(address) else {
            return false;
        };
        table.remove(at)
    };
    // SAFETY: as promised.
    let _ = unsafe { syscall::unmap(mapping.address, mapping.length) };
    true
}

/// Changes the length of the mapping at `address` to hold `size` bytes, by moving its pages' translations, not their contents.
///
/// # Errors
/// [`AllocError::OutOfMemory`]; it is as it was. [`AllocError::InvalidArgument`] if there is none.
///
/// # Safety
/// The caller owns it, and uses what is returned from then on.
pub(crate) unsafe fn resize(address: usize, size: usize) -> Result<NonNull<u8>, AllocError> {
    let length = size
        .checked_next_multiple_of(PAGE)
        .ok_or(AllocError::TooLarge)?
        .max(PAGE);
    // Taken out first, so that the place it leaves can be used by another mapping at once.
    let old = {
        let mut table = TABLE.lock();
        let at = table.find(address).ok_or(AllocError::InvalidArgument)?;
        let old = table.remove(at);
        // The place is promised, so that others leave room and the mapping can not lose its record.
        table.used += 1;
        old
    };
    // SAFETY: as promised.
    let moved = unsafe { syscall::remap(old.address, old.length, length) };
    let new = match moved {
        Ok(address) => Mapping { address, length },
        Err(_) => old,
    };
    {
        let mut table = TABLE.lock();
        table.used -= 1;
        table.insert(new);
    }
    match moved {
        Ok(address) => NonNull::new(address as *mut u8).ok_or(AllocError::OutOfMemory),
        Err(_) => Err(AllocError::OutOfMemory),
    }
}

/// Moves the pages of `length` bytes of the heap at `from` into a new mapping of `size` bytes; the heap's memory reads as zero then.
///
/// # Errors
/// [`AllocError::OutOfMemory`] if the system can not do so; nothing has changed.
///
/// # Safety
/// The caller owns the memory; both are multiples of the system's page size.
pub(crate) unsafe fn adopt(
    from: usize,
    length: usize,
    size: usize,
) -> Result<NonNull<u8>, AllocError> {
    // First to a mapping of the same length, so that what comes out is one mapping to the kernel and can grow.
    // SAFETY: the source is the caller's.
    let address =
        unsafe { syscall::move_pages_away(from, length) }.map_err(|_| AllocError::OutOfMemory)?;
    let moved = note(Mapping { address, length }).and_then(|()| {
        // SAFETY: the mapping is ours.
        unsafe { resize(address, size) }.inspect_err(|_| {
            let mut table = TABLE.lock();
            if let Some(at) = table.find(address) {
                table.remove(at);
            }
        })
    });
    if moved.is_err() {
        // SAFETY: both places are ours, and the new one is known to nobody; what came from there goes back.
        unsafe {
            if syscall::move_pages(address, length, from).is_err() {
                core::ptr::copy_nonoverlapping(address as *const u8, from as *mut u8, length);
            }
            let _ = syscall::unmap(address, length);
        }
    }
    moved
}

/// How many mappings there are, and their bytes.
pub(crate) fn totals() -> (usize, usize) {
    let table = TABLE.lock();
    (table.used, table.bytes)
}

/// Takes the table's lock, for a fork.
pub(crate) fn lock_for_fork() {
    core::mem::forget(TABLE.lock());
}

/// Releases it, in the parent and in the child.
///
/// # Safety
/// This thread took it by [`lock_for_fork`].
pub(crate) unsafe fn unlock_after_fork() {
    // SAFETY: as promised.
    unsafe { TABLE.force_unlock() };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn mappings_are_found_resized_and_freed() {
        let sizes = [1, 4096, 4097, 40 << 20];
        let all: Vec<_> = sizes.iter().map(|s| allocate(*s, 1).unwrap()).collect();
        for (at, size) in all.iter().zip(sizes) {
            let mapping = find(at.as_ptr() as usize).unwrap();
            assert!(mapping.length >= size && mapping.length < size + PAGE);
            assert_eq!(find(at.as_ptr() as usize + 1), None);
            assert_eq!(
                offset_in(at.as_ptr() as usize + mapping.length - 1),
                Some(mapping.length - 1)
            );
            // SAFETY: ours, and large enough.
            unsafe { at.write(7) };
        }
        // SAFETY: ours.
        unsafe {
            let grown = resize(all[0].as_ptr() as usize, 10 << 20).unwrap();
            assert_eq!(grown.read(), 7);
            assert!(free(grown.as_ptr() as usize));
            assert!(!free(grown.as_ptr() as usize));
            for at in &all[1..] {
                assert!(free(at.as_ptr() as usize));
            }
        }
    }

    #[test]
    fn pages_of_the_heap_become_a_mapping_or_stay_as_they_were() {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let length = 16 * PAGE;
        let from = syscall::map(0, length, rights).unwrap();
        let last = (from + length - 1) as *mut u8;
        // SAFETY: a mapping of this test.
        unsafe {
            last.write(7);
            assert!(adopt(from, length, 1 << 47).is_err());
            assert_eq!(last.read(), 7);
            let Ok(to) = adopt(from, length, 2 * length) else {
                return; // the kernel is too old for it
            };
            assert_eq!((last.read(), to.add(length - 1).read()), (0, 7));
            assert_eq!(find(to.as_ptr().addr()).map(|m| m.length), Some(2 * length));
            assert!(free(to.as_ptr().addr()));
            syscall::unmap(from, length).unwrap();
        }
    }

    #[test]
    fn alignments_larger_than_a_page_are_kept() {
        for shift in [12, 13, 16, 21, 30] {
            let at = allocate(100, 1 << shift).unwrap().as_ptr() as usize;
            assert_eq!(at % (1 << shift), 0);
            // SAFETY: ours.
            assert!(unsafe { free(at) });
        }
    }

    #[test]
    fn the_table_grows_and_closes_gaps() {
        let all: Vec<usize> = (0..1000)
            .map(|_| allocate(1, 1).unwrap().as_ptr() as usize)
            .collect();
        for at in all.iter().step_by(2) {
            // SAFETY: ours.
            assert!(unsafe { free(*at) });
        }
        assert!(all.iter().skip(1).step_by(2).all(|at| find(*at).is_some()));
        assert!(all.iter().step_by(2).all(|at| find(*at).is_none()));
        for at in all.iter().skip(1).step_by(2) {
            // SAFETY: ours.
            assert!(unsafe { free(*at) });
        }
    }
}
