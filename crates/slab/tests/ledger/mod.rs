//! What the tests of this crate share: an independent record of who owns which bytes, and machines with caches on them.
//!
//! The record is a map of intervals and never asks the code under test: an object that is handed out must overlap
//! nothing that is owned, be aligned, and keep what its owner writes until it is given back.
#![allow(dead_code, unreachable_pub)] // each test binary uses its part

use core::ptr::NonNull;
use flagstone_frames::{Frames, PageKind};
use flagstone_host::PageMap;
use flagstone_seeded::{ArrayForm, Machine};
use flagstone_slab::{ArrayTuning, BadFree, Caches, KERNEL_CLASSES, LayoutPolicy, Policy};
use flagstone_types::{FreeError, Nid, Pfn};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

pub type Host<'m, const SHIFT: u32, const ORDER: u32> = &'m Machine<SHIFT, ORDER>;

/// An object that a test owns.
#[derive(Clone, Copy, Debug)]
pub struct Owned {
    pub object: NonNull<u8>,
    pub len: usize,
    pub serial: u64,
}

/// Who owns which bytes of memory.
#[derive(Debug, Default)]
pub struct Ledger {
    owned: RefCell<BTreeMap<usize, usize>>,
    serial: Cell<u64>,
}

impl Ledger {
    /// The object now belongs to the test.
    ///
    /// # Panics
    /// If any of its bytes belongs to somebody already, or it is not aligned.
    pub fn take(&self, object: NonNull<u8>, len: usize, align: usize) -> Owned {
        let start = object.as_ptr().addr();
        assert_eq!(
            start % align.max(8),
            0,
            "{object:p} is not aligned to {align}"
        );
        let mut owned = self.owned.borrow_mut();
        if let Some((&other, &length)) = owned.range(..start + len).next_back() {
            assert!(
                other + length <= start,
                "{object:p} ({len} bytes) overlaps {other:#x} ({length} bytes)"
            );
        }
        owned.insert(start, len);
        self.serial.set(self.serial.get() + 1);
        Owned {
            object,
            len,
            serial: self.serial.get(),
        }
    }

    /// The same, with contents of the test's own.
    pub fn take_filled(&self, object: NonNull<u8>, len: usize, align: usize) -> Owned {
        let owned = self.take(object, len, align);
        owned.fill();
        owned
    }

    /// The object does not belong to the test any more.
    ///
    /// # Panics
    /// If it did not.
    pub fn give(&self, owned: Owned) {
        let length = self
            .owned
            .borrow_mut()
            .remove(&owned.object.as_ptr().addr());
        assert_eq!(length, Some(owned.len), "{owned:?} is not owned");
    }

    /// The same, after looking that the contents are still there.
    pub fn give_checked(&self, owned: Owned) -> NonNull<u8> {
        owned.check(owned.len);
        self.give(owned);
        owned.object
    }

    pub fn count(&self) -> usize {
        self.owned.borrow().len()
    }
}

impl Owned {
    fn byte(&self, at: usize) -> u8 {
        (self.serial.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u8 ^ at as u8
    }

    /// Fills the object with a pattern that only this owner writes.
    pub fn fill(&self) {
        for at in 0..self.len {
            // SAFETY: the test owns the bytes.
            unsafe { self.object.add(at).write(self.byte(at)) };
        }
    }

    /// Looks that the first `len` bytes are as filled.
    pub fn check(&self, len: usize) {
        for at in 0..len {
            // SAFETY: the test owns the bytes.
            let byte = unsafe { self.object.add(at).read() };
            assert_eq!(byte, self.byte(at), "byte {at} of {self:?} has changed");
        }
    }
}

/// Whether the first `len` bytes are zero.
pub fn is_zero(object: NonNull<u8>, len: usize) -> bool {
    // SAFETY: the test owns the bytes.
    (0..len).all(|at| unsafe { object.add(at).read() } == 0)
}

thread_local!(static BAD_FREES: RefCell<Vec<(usize, FreeError, String)>> = const { RefCell::new(Vec::new()) });

/// Notes a bad free for [`bad_frees`].
pub fn note_bad_free(bad: &BadFree<'_>) {
    let entry = (bad.object.as_ptr().addr(), bad.error, bad.cache.to_owned());
    BAD_FREES.with_borrow_mut(|all| all.push(entry));
}

/// The bad frees of this thread since the last call.
pub fn bad_frees() -> Vec<(usize, FreeError, String)> {
    BAD_FREES.take()
}

/// A choice of policies; arrays are functions without environment, so each has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// Linux's figures.
    Linux,
    /// The same without shared arrays.
    Unshared,
    /// Small arrays, so that every path is met often.
    Tiny,
    /// Large arrays that adapt, as in a process.
    Process,
}

impl Flavour {
    pub const ALL: [Self; 4] = [Self::Linux, Self::Unshared, Self::Tiny, Self::Process];

    pub fn policy(self) -> Policy {
        let arrays: fn(usize) -> ArrayTuning = match self {
            Self::Linux => |size| ArrayTuning::linux(size, 4096, 8),
            Self::Unshared => |size| ArrayTuning::linux(size, 4096, 1),
            Self::Tiny => |_| ArrayTuning {
                capacity: 5,
                limit: 3,
                batch: 2,
                shared_capacity: 7,
                shared_limit: 4,
            },
            Self::Process => |size| {
                let capacity = (64 << 10) / (size as u32).clamp(32, 8192);
                ArrayTuning {
                    capacity,
                    limit: (capacity / 16).max(1),
                    batch: (capacity / 32).max(1),
                    shared_capacity: capacity * 4,
                    shared_limit: capacity,
                }
            },
        };
        Policy {
            layout: LayoutPolicy {
                min_order: 0,
                max_order: if self == Self::Process { 3 } else { 1 },
                min_objects: 1,
                cache_line: 64,
                in_record: matches!(self, Self::Process | Self::Tiny),
                in_object: true,
                zeroed: false,
                tail: 0,
            },
            arrays,
            alien_limit: if self == Self::Tiny { 3 } else { 12 },
            adaptive: self == Self::Process,
            bad_free: note_bad_free,
            debug: flagstone_slab::DebugPolicy::NONE,
        }
    }
}

/// Brings the caches of a machine up. The reserves of the page allocator are off, so that all memory can be used.
pub fn boot<'m, const SHIFT: u32, const ORDER: u32>(
    machine: &'m Machine<SHIFT, ORDER>,
    policy: Policy,
) -> &'m Caches<Host<'m, SHIFT, ORDER>> {
    let frames = Frames::new(machine).expect("memory for the page allocator");
    frames.set_min_free(Some(0));
    Caches::boot(frames, policy, KERNEL_CLASSES).expect("memory for the caches")
}

/// Pages that somebody owns.
pub fn used_pages<const SHIFT: u32, const ORDER: u32>(
    caches: &Caches<Host<'_, SHIFT, ORDER>>,
) -> usize {
    let frames = caches.frames();
    frames.drain_page_lists();
    let nodes = flagstone_host::Cpus::nodes(&caches.host());
    (0..nodes as u16)
        .map(|nid| frames.managed_count(Nid(nid)) - frames.free_count(Nid(nid)))
        .sum()
}

/// How many page blocks are of this kind.
pub fn blocks_of_kind<const SHIFT: u32, const ORDER: u32>(
    caches: &Caches<Host<'_, SHIFT, ORDER>>,
    kind: PageKind,
) -> usize {
    let mut count = 0;
    caches.host().boot_ranges(&mut |range| {
        for pfn in range.frames.start.0..range.frames.end().0 {
            let page = caches.frames().page(Pfn(pfn));
            count += usize::from(page.is_some_and(|page| page.kind() == kind));
        }
    });
    count
}

/// What must hold whenever nobody is in the middle of something.
pub fn validate<const SHIFT: u32, const ORDER: u32>(caches: &Caches<Host<'_, SHIFT, ORDER>>) {
    if let Err(wrong) = caches.validate() {
        panic!("{wrong}");
    }
    if let Err(wrong) = caches.frames().validate() {
        panic!("{wrong}");
    }
    let machine = caches.host();
    machine.check_memory().expect("memory is as the books say");
    let bad = bad_frees();
    assert!(bad.is_empty(), "good frees were refused: {bad:?}");
}

/// After everything was freed and every cache of the test destroyed: gives all back and looks that nothing is left but
/// what lives for ever. `before`: pages in use just after boot. `randomised`: random sequences of permanent caches may be left.
pub fn expect_nothing_left<const SHIFT: u32, const ORDER: u32>(
    caches: &Caches<Host<'_, SHIFT, ORDER>>,
    before: usize,
    exact: bool,
    randomised: bool,
) {
    let stats = caches.host().array_stats();
    assert_eq!(
        stats.dropped_in_use, 0,
        "an array ended with objects or tagged frames"
    );
    // An index that lies in another cache goes there only when its slab goes.
    for _ in 0..3 {
        caches.shrink_all();
    }
    validate(caches);
    let (mut used, mut permanent) = (0, 0);
    caches.slabinfo(|info| {
        permanent += 1;
        used += info.used_objects();
        if info.used_objects() == 0 {
            assert_eq!(info.slabs, 0, "{info}");
        }
    });
    assert_eq!(
        permanent,
        KERNEL_CLASSES.len() + 1,
        "caches of the test are left"
    );
    if randomised {
        assert!(
            used <= permanent,
            "more than one sequence for a cache: {used}"
        );
        return;
    }
    assert_eq!(used, 0, "objects are lost");
    assert_eq!(blocks_of_kind(caches, PageKind::Slab), 0);
    assert_eq!(blocks_of_kind(caches, PageKind::Large), 0);
    let now = used_pages(caches);
    if exact {
        assert_eq!(now, before, "frames are lost");
    } else {
        // Shared arrays of caches that live for ever: one run for each node at most.
        let nodes = flagstone_host::Cpus::nodes(&caches.host()) as usize;
        assert!(
            now - before <= permanent * nodes * 32,
            "{now} pages, {before} before"
        );
    }
}

/// Array forms for a machine of a property test, where nothing intervenes.
pub fn form(n: usize) -> ArrayForm {
    ArrayForm::ALL[n % ArrayForm::ALL.len()]
}
