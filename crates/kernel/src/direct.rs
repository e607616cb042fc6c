//! The direct map (M1): physical address `a` is at [`DIRECT`]` + a`.

use core::ptr::NonNull;

/// Where physical address 0 is.
pub(crate) const DIRECT: usize = 0xffff_8000_0000_0000;
/// Bytes of the direct map: one entry of the highest table.
pub(crate) const REACH: u64 = 512 << 30;

/// The physical address of what lies in the direct map.
pub(crate) fn physical(at: NonNull<u8>) -> u64 {
    (at.addr().get() - DIRECT) as u64
}

/// The address of physical address `at`, which is below [`REACH`].
#[inline]
pub(crate) fn pointer(at: u64) -> NonNull<u8> {
    debug_assert!(at < REACH);
    let address = DIRECT + (at % REACH) as usize;
    // SAFETY: not null: at least DIRECT.
    unsafe { NonNull::new_unchecked(core::ptr::with_exposed_provenance_mut(address)) }
}
