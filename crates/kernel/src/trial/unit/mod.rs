//! What the host promises of the memory management unit, tried on tables that are written here word by word, so that nothing of
//! `pgtable` is taken for granted: permissions, accessed and dirty bits, pages of every size, stale translations.

mod bits;
mod permissions;
mod shootdown;
mod storm;
mod tables;

pub(super) use tables::contents;

/// Bits of entries (Intel's manual, volume 3, 4.5).
const PRESENT: u64 = 1;
const WRITE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const LARGE: u64 = 1 << 7;
const GLOBAL: u64 = 1 << 8;
const NO_EXEC: u64 = 1 << 63;
/// The frame of a page, without what is about it.
const FRAME: u64 = 0x000f_ffff_ffff_f000;

/// An address that is nobody's, in the half of user mode, with different indices on every level that 4-level tables have.
const PLACE: usize = 0x1234_5678_9000;

pub(super) fn run() {
    permissions::run();
    bits::run();
    shootdown::run();
    storm::run();
}
