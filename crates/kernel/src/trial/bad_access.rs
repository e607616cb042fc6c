//! An access of the kernel that nobody allowed to fault: ends the run, with a report that has the entry at every level. Only if the command line
//! asks for it.

use crate::layout::USER_PAGE;

pub(super) fn run() {
    // SAFETY: none: that is what is tried. The page is user code, which is there and may not be written.
    unsafe { core::ptr::with_exposed_provenance_mut::<u64>(USER_PAGE).write_volatile(0) };
}
