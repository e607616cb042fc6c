//! Which changes of a leaf the unit has to be told of, for formats that have no shorter way to say it.
//!
//! A unit may hold what an entry said before. That is harmless if the entry said less, as long as a fault makes the unit look again
//! ([`Format::FAULT_DROPS`]); an entry that says less now, or something else, is not to be used for a moment longer.

use super::{Entry, Format, Level, Marks};

/// [`Format::needs_invalidation`] by what the entries say.
#[inline(always)]
pub(super) fn by_meaning<F: Format>(level: Level, old: u64, new: u64) -> bool {
    // Entries that are not present, and those that are not young on machines that fault for it, are not held.
    if !F::is_present(level, old) {
        return false;
    }
    if F::with_young(level, old, false) == F::with_young(level, new, false) {
        return false;
    }
    let (Entry::Leaf(was), Entry::Leaf(is)) = (F::decode(level, old), F::decode(level, new)) else {
        return true;
    };
    let lost = was.marks().difference(is.marks());
    let gained = is.marks().difference(was.marks());
    // The unit notes the first store alone: while it holds that the page is dirty, further ones are not seen.
    let dirty_lost = lost.contains(Marks::DIRTY) && was.is_writable();
    if was.at != is.at
        || was.memory != is.memory
        || was.key != is.key
        || gained.intersects(Marks::GLOBAL.union(Marks::NO_ACCESS))
        || lost.intersects(Marks::GLOBAL.union(Marks::SHADOW))
        || dirty_lost
        || !is.access().contains(was.access())
    {
        return true;
    }
    // Where the unit leaves dirty to a fault, an entry that it holds as clean faults until it is told.
    let dirty_gained = gained.contains(Marks::DIRTY) && is.is_writable();
    let more = was.access() != is.access() || gained.contains(Marks::SHADOW) || dirty_gained;
    more && !F::FAULT_DROPS
}
