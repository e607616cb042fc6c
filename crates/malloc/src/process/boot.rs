//! Memory for structures that live as long as the process: a small area of the library itself first, then mappings.

use core::alloc::Layout;
use core::cell::UnsafeCell;
use core::ptr::NonNull;

use flagstone_host::classes::HostInner;
use flagstone_types::AllocError;

use super::lock::Lock;
use super::syscall;

const AREA: usize = 32 << 10;
/// Bytes of a mapping, unless one allocation needs more.
const CHUNK: usize = 256 << 10;
const PAGE: usize = 4096;

#[repr(align(4096))]
struct Area(UnsafeCell<[u8; AREA]>);

// SAFETY: P10, the bytes are handed out once and never accessed here.
unsafe impl Sync for Area {}

static OWN_AREA: Area = Area(UnsafeCell::new([0; AREA]));

/// What is left of the current piece, as addresses. `None` before the first allocation.
#[derive(Debug)]
pub(super) struct Left(Option<(usize, usize)>);

/// Held by whoever takes boot memory.
pub(super) static BOOT: lock_api::Mutex<Lock<HostInner>, Left> = lock_api::Mutex::new(Left(None));

/// Zeroed memory that nobody else has (P10).
pub(super) fn alloc(layout: Layout) -> Result<NonNull<u8>, AllocError> {
    if layout.align() > PAGE {
        return Err(AllocError::InvalidArgument);
    }
    let mut left = BOOT.lock();
    let own = OWN_AREA.0.get() as usize;
    let (from, to) = left.0.unwrap_or((own, own + AREA));
    if let Some(rest) = fit(from, to, layout) {
        left.0 = Some((rest.1, to));
        return NonNull::new(rest.0 as *mut u8).ok_or(AllocError::OutOfMemory);
    }
    let size = layout
        .size()
        .checked_next_multiple_of(PAGE)
        .ok_or(AllocError::OutOfMemory)?;
    let mapped = size.max(CHUNK);
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // A chunk that does not fit may be refused where a smaller one is not.
    let (at, got) = match syscall::map(0, mapped, rights) {
        Ok(at) => (at, mapped),
        Err(_) => (
            syscall::map(0, size, rights).map_err(|_| AllocError::OutOfMemory)?,
            size,
        ),
    };
    syscall::name(at, got, c"flagstone: boot");
    let rest = (at + layout.size(), at + got);
    // Keep the larger piece for what comes next.
    if rest.1 - rest.0 > to.saturating_sub(from) {
        left.0 = Some(rest);
    }
    NonNull::new(at as *mut u8).ok_or(AllocError::OutOfMemory)
}

/// The start and end of an allocation in `from..to`.
fn fit(from: usize, to: usize, layout: Layout) -> Option<(usize, usize)> {
    let start = from.checked_next_multiple_of(layout.align())?;
    let end = start.checked_add(layout.size())?;
    (end <= to).then_some((start, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_zero_aligned_and_apart() {
        let mut pieces = std::vec::Vec::new();
        for (size, align) in [
            (1, 1),
            (8, 8),
            (100, 64),
            (30_000, 4096),
            (5, 2),
            (300 << 10, 16),
            (64, 64),
        ] {
            let at = alloc(Layout::from_size_align(size, align).unwrap())
                .unwrap()
                .as_ptr();
            assert_eq!(at as usize % align, 0);
            // SAFETY: M3, the memory is ours.
            let bytes = unsafe { core::slice::from_raw_parts_mut(at, size) };
            assert!(bytes.iter().all(|b| *b == 0));
            bytes.fill(0xff);
            pieces.push((at as usize, size));
        }
        pieces.sort_unstable();
        assert!(pieces.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0));
    }

    #[test]
    fn what_can_not_be_is_refused() {
        let huge = Layout::from_size_align(isize::MAX as usize & !4095, 4096).unwrap();
        assert_eq!(alloc(huge), Err(AllocError::OutOfMemory));
        let strict = Layout::from_size_align(8, 1 << 20).unwrap();
        assert_eq!(alloc(strict), Err(AllocError::InvalidArgument));
    }
}
