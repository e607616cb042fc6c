//! Checking an access: one or two loads for the sizes that instructions have, words of the shadow for ranges.

use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use flagstone_types::Bytes;

use super::{GRANULE, Shadow, bug_at, byte, word};
use crate::report::{Access, AccessBug, AccessKind};

/// An access that is not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadAccess {
    /// Where it begins.
    pub address: usize,
    /// Its length.
    pub size: Bytes,
    /// The first byte that may not be accessed.
    pub first_bad: usize,
}

impl BadAccess {
    /// The same, for a report: with what the shadow says it is.
    pub fn describe<S: Shadow>(&self, host: &S, kind: AccessKind) -> Access {
        let wraps = self.address.checked_add(self.size.0).is_none();
        Access {
            bug: if wraps {
                AccessBug::OutOfBounds
            } else {
                bug_at(host, self.first_bad)
            },
            address: self.address,
            size: self.size,
            kind,
            first_bad: self.first_bad,
        }
    }
}

/// Whether all of `[address, address + size)` may be accessed. Memory without shadow may not; nothing at all may.
///
/// # Errors
/// [`BadAccess`] with the first byte that may not.
#[inline]
pub fn check<S: Shadow>(host: &S, address: usize, size: usize) -> Result<(), BadAccess> {
    let good = match size {
        0 => true,
        1 => byte_is_good(host, address),
        2 | 4 | 8 => small_is_good(host, address, size),
        16 => small_is_good(host, address, 8) && small_is_good(host, address.wrapping_add(8), 8),
        _ => false,
    };
    if good && address <= usize::MAX - size {
        return Ok(());
    }
    check_range(host, address, size)
}

#[inline]
fn byte_is_good<S: Shadow>(host: &S, address: usize) -> bool {
    let Some(shadow) = host.shadow_of(address) else {
        return false;
    };
    let value = byte(shadow).load(Ordering::Relaxed);
    value == 0 || (value < GRANULE as u8 && (address % GRANULE) < usize::from(value))
}

/// For at most a granule: it is in one, or in two of which the first must be whole from where it begins.
#[inline]
fn small_is_good<S: Shadow>(host: &S, address: usize, size: usize) -> bool {
    let last = address.wrapping_add(size - 1);
    if !byte_is_good(host, last) {
        return false;
    }
    address % GRANULE + size <= GRANULE
        || host
            .shadow_of(address)
            .is_some_and(|shadow| byte(shadow).load(Ordering::Relaxed) == 0)
}

#[cold]
#[inline(never)]
fn check_range<S: Shadow>(host: &S, address: usize, size: usize) -> Result<(), BadAccess> {
    let bad = |first_bad| BadAccess {
        address,
        size: Bytes(size),
        first_bad,
    };
    if address.checked_add(size).is_none() {
        return Err(bad(
            first_bad(host, address, address.wrapping_neg()).unwrap_or(usize::MAX)
        ));
    }
    match first_bad(host, address, size) {
        None => Ok(()),
        Some(at) => Err(bad(at)),
    }
}

/// The first byte of `[address, address + size)` that may not be accessed.
pub fn first_bad<S: Shadow>(host: &S, address: usize, size: usize) -> Option<usize> {
    if size == 0 {
        return None;
    }
    // Saturated: who asks for more than there is gets an answer for what there is.
    let last = address.saturating_add(size - 1);
    let mut at = address - address % GRANULE;
    loop {
        let in_block = (S::SPAN - at % S::SPAN) / GRANULE;
        let count = in_block.min((last - at) / GRANULE + 1);
        let Some(shadow) = host.shadow_of(at) else {
            return Some(at.max(address));
        };
        if let Some(index) = first_not_zero(shadow, count) {
            // SAFETY: H1: below `count`, within the block's shadow.
            let value = byte(unsafe { shadow.add(index) }).load(Ordering::Relaxed);
            let granule = at + index * GRANULE;
            let allowed = if value < GRANULE as u8 {
                usize::from(value)
            } else {
                0
            };
            let bad = (granule + allowed).max(address);
            // The last granule may be allowed as far as is asked for; and a byte may have changed to 0 since.
            if bad <= last && value != 0 {
                return Some(bad);
            }
            let next = granule + (GRANULE - 1);
            if next >= last {
                return None;
            }
            at = next + 1;
            continue;
        }
        let reached = at + (count * GRANULE - 1);
        if reached >= last {
            return None;
        }
        at = reached + 1;
    }
}

fn first_not_zero(shadow: NonNull<u8>, count: usize) -> Option<usize> {
    // SAFETY: H1: below `count`, within the block's shadow.
    let at = |k: usize| unsafe { shadow.add(k) };
    let mut k = 0;
    while k < count {
        if at(k).addr().get().is_multiple_of(8) && count - k >= 8 {
            let eight = word(at(k)).load(Ordering::Relaxed);
            if eight == 0 {
                k += 8;
                continue;
            }
            return Some(k + (u64::from_le(eight).trailing_zeros() / 8) as usize);
        }
        if byte(at(k)).load(Ordering::Relaxed) != 0 {
            return Some(k);
        }
        k += 1;
    }
    None
}
