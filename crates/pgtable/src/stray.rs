//! The unit that may set the dirty bit of an entry that is no longer present (Knights Landing): everything takes two steps (I6): an entry is
//! taken out and invalidated, and what it has become is looked at before anything takes its place.

use crate::format::{Entry, Format};
use crate::level::{Raw, TableLevel};
use crate::mode::Mode;
use crate::ops::Ops;
use crate::span::{Span, reach_of};
use crate::table::TableHost;
use crate::words::Locked;

/// Entries that are worked on with one invalidation.
pub(crate) const CHUNK: usize = 64;

/// Clears up to [`CHUNK`] entries, invalidates, and says what they were in the end: how many were done (it stops at one that names a table), and
/// their last values. Entries that are not present are left as they are.
#[cold]
#[inline(never)]
pub(crate) fn take_in_two_steps<H: TableHost, F: Format, L: TableLevel, M: Mode>(
    ops: &Ops<'_, '_, H, F, M>,
    locked: &Locked<'_, H, F, L, M>,
    first: usize,
    count: usize,
    offset: u64,
) -> (usize, [Raw<F, L>; CHUNK]) {
    let mut taken = [Raw::NONE; CHUNK];
    let mut done = 0;
    let mut present = false;
    for (n, old) in taken.iter_mut().enumerate().take(count) {
        let seen = locked.load(first + n);
        if seen.is_table() {
            break;
        }
        *old = if seen.is_present() {
            present = true;
            locked.exchange(first + n, Raw::NONE)
        } else {
            seen
        };
        done = n + 1;
    }
    if present {
        let end = offset + done as u64 * reach_of::<F>(L::LEVEL);
        let span = Span { start: offset, end };
        let what = ops.table.invalidation(span, F::shift(L::LEVEL), false);
        ops.table.flush(&what);
    }
    for (n, old) in taken.iter_mut().enumerate().take(done) {
        if old.is_present() {
            let stray = locked.load(first + n);
            if stray.bits() != 0 {
                locked.overwrite(first + n, Raw::NONE);
                *old = with_stray(*old, stray);
            }
        }
    }
    (done, taken)
}

/// An entry with the bits that the unit has set in its place since it has gone. Dirty only where a store was allowed.
fn with_stray<F: Format, L: TableLevel>(old: Raw<F, L>, stray: Raw<F, L>) -> Raw<F, L> {
    let writable = matches!(old.decode(), Entry::Leaf(leaf) if leaf.is_writable());
    let bits = stray.bits() & F::unit_bits(L::LEVEL);
    if writable {
        Raw::from_bits(old.bits() | bits)
    } else if F::is_young(L::LEVEL, bits) {
        Raw::from_bits(F::with_young(L::LEVEL, old.bits(), true))
    } else {
        old
    }
}
