use super::coverage::{Coverage, StackHash};
use super::pool::{self, PAGE};
use super::{Guarded, find, free, statistics};
use std::vec::Vec;

/// An object that is asked for by a call stack of its own, so that it does not count as covered.
#[inline(never)]
fn allocate_below(depth: usize, size: usize) -> Option<core::ptr::NonNull<u8>> {
    if depth == 0 {
        pool::allocate(size, 16)
    } else {
        std::hint::black_box(allocate_below(depth - 1, size))
    }
}

/// The pool is one for the process, so its tests are one.
#[test]
fn objects_are_placed_found_used_again_in_turn_and_counted() {
    assert!(pool::create(8));
    let sizes = [1, 16, 100, 4095, 4096, 0, 33, 7];
    let all: Vec<_> = sizes
        .iter()
        .enumerate()
        .map(|(n, size)| allocate_below(n, *size).unwrap())
        .collect();
    assert_eq!(allocate_below(9, 1), None, "every page is in use");
    for (at, size) in all.iter().zip(sizes) {
        assert_eq!(find(*at), Some(Guarded::Object { size }));
        assert_eq!(at.addr().get() % 16, 0);
        let start = at.addr().get() & !(PAGE - 1);
        assert!(at.addr().get() + size <= start + PAGE);
        // SAFETY: ours, of so many bytes.
        unsafe { at.write_bytes(7, size) };
    }
    let gone = all[3];
    free(gone);
    assert_eq!(find(gone), Some(Guarded::Not));
    free(all[0]);
    // The one that was freed first waits the longest.
    let next = pool::allocate(4096, 4096).unwrap();
    assert_eq!(
        next.addr().get() & !(PAGE - 1),
        gone.addr().get() & !(PAGE - 1)
    );
    let seen = statistics();
    assert_eq!((seen.allocated, seen.total_allocations), (7, 9));
    assert_eq!((seen.total_frees, seen.total_bugs), (2, 0));
    assert_eq!(seen.skipped_full, 1);
}

#[test]
fn a_stack_is_covered_while_one_of_its_objects_is_there() {
    let mut coverage = Coverage::new();
    let (a, b) = (StackHash::of(&[1, 2, 3]), StackHash::of(&[1, 2, 4]));
    coverage.add(a);
    coverage.add(a);
    assert!(coverage.has(a) && !coverage.has(b));
    coverage.remove(a);
    assert!(coverage.has(a));
    coverage.remove(a);
    assert!(!coverage.has(a));
}
