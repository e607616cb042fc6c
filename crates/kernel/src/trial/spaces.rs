//! Address spaces by `pgtable` on the running unit: one that each CPU has alone, in both forms of the operations, and one that all share,
//! whose pages are taken out and spoiled while the others read them.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use super::Dice;
use super::unit::contents;
use crate::access::{RETURN, Who, try_exec, try_read, try_write};
use crate::kernel::Kernel;
use crate::space::{self, ForFormat, Running, Table};
use crate::{crew, services};
use flagstone_frames::PageBlock;
use flagstone_host::{Grace, Mmu};
use flagstone_pgtable::format::{Access, Leaf, Level, Marks};
use flagstone_pgtable::{Mode, Ops, Owner, Pmd, Pte, Pud, TableLevel, Taken, VirtRange};
use flagstone_types::{Gfp, Order, Pfn, PhysAddr, VirtAddr};

const PAGE: usize = 4096;
/// Aligned to pages of 1 GiB.
const PLACE: usize = 0x12_4000_0000;
const USABLE: Access = Access::READ.union(Access::WRITE).union(Access::USER);

/// Owns the frames that leaves map, each a block of its own; spoils them before they are freed.
struct Frames;

/// What a frame holds after its page was taken out.
const SPOILED: u64 = 0xdead_dead_dead_dead;

// SAFETY: pgtable O1: each leaf of the trials owns a block of its size.
unsafe impl Owner for Frames {
    fn release(&mut self, taken: Taken) {
        let order = Order::new(9 * (u32::from(taken.level.get()) - 1)).expect("an order of a leaf");
        let Some(first) = leaf_of(&taken) else {
            return;
        };
        for n in 0..taken.pages {
            let at = PhysAddr(first.at.0 + ((n * order.pages()) << 12) as u64);
            // SAFETY: the block is ours again; no CPU can reach it by the address space.
            unsafe { contents(at).write_volatile(SPOILED) };
            // SAFETY: from `frame`, once.
            let block = unsafe { PageBlock::from_raw(Pfn((at.0 >> 12) as usize), order) };
            super::caches().frames().free_pages(block);
        }
    }
}

fn leaf_of(taken: &Taken) -> Option<Leaf> {
    match taken.entry {
        flagstone_pgtable::format::Entry::Leaf(leaf) => Some(leaf),
        _ => None,
    }
}

/// A zeroed block of `2^order` frames whose first word is `value`.
pub(super) fn frame(order: u32, value: u64) -> PhysAddr {
    let order = Order::new(order).expect("a small order");
    let block = super::caches()
        .frames()
        .alloc_pages(Gfp::KERNEL | Gfp::ZERO, order, None)
        .expect("memory for a page");
    let (pfn, _) = block.into_raw();
    let at = PhysAddr((pfn.0 as u64) << 12);
    // SAFETY: just allocated.
    unsafe { contents(at).write_volatile(value) };
    at
}

fn page(n: usize) -> VirtAddr {
    VirtAddr(PLACE + n * PAGE)
}

// What follows is compiled once for each format and form, not into each of its callers: walks are long when they are inlined.

/// The leaf that translates an address.
#[inline(never)]
fn leaf<F: Running, M: Mode>(ops: &Ops<'_, '_, Kernel, F, M>, at: VirtAddr) -> Option<Leaf> {
    ops.lookup(at).expect("a good address").leaf()
}

/// Maps a frame to each page of level `L` from `at` on.
#[inline(never)]
pub(super) fn map<F: Running, M: Mode, L: TableLevel>(
    ops: &Ops<'_, '_, Kernel, F, M>,
    at: VirtAddr,
    frames: &[PhysAddr],
) {
    ops.map_each::<L>(at, frames.len(), |n| Leaf::kernel(frames[n], USABLE))
        .expect("room for tables");
}

/// What is done to a range before its invalidation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Change {
    pub(super) protect: Option<Access>,
    pub(super) unmap: bool,
    pub(super) free_tables: bool,
}

/// Changes a range whose pages are all mapped, with one invalidation; calls `before` when it is due.
#[inline(never)]
pub(super) fn change<'t, F: Running, M: Mode>(
    ops: &Ops<'t, 'static, Kernel, F, M>,
    range: VirtRange,
    change: Change,
    before: &mut dyn FnMut(),
) {
    let mut gather = ops.gather(Frames);
    if let Some(access) = change.protect {
        ops.protect(range, access, &mut gather).expect("mapped");
    }
    if change.unmap {
        ops.unmap(range, &mut gather).expect("mapped");
    }
    if change.free_tables {
        ops.free_tables(range, &mut gather).expect("a good range");
    }
    before();
    gather.finish();
}

#[inline(never)]
fn clear_young<F: Running, M: Mode>(
    ops: &Ops<'_, '_, Kernel, F, M>,
    range: VirtRange,
    each: &mut dyn FnMut(Level),
) -> usize {
    ops.test_and_clear_young(range, |_, level, _| each(level))
        .expect("a good range")
}

/// Maps, uses, protects, unmaps `count` pages of level `L` in the address space that is active.
fn lifecycle<F: Running, M: Mode, L: TableLevel>(
    ops: &Ops<'_, 'static, Kernel, F, M>,
    count: usize,
) {
    let order = 9 * (u32::from(L::LEVEL.get()) - 1);
    let frames: alloc::vec::Vec<_> = (0..count).map(|n| frame(order, n as u64)).collect();
    map::<F, M, L>(ops, VirtAddr(PLACE), &frames);
    use_and_unmap(ops, L::LEVEL, count);
}

/// The rest of [`lifecycle`].
#[inline(never)]
fn use_and_unmap<F: Running, M: Mode>(
    ops: &Ops<'_, 'static, Kernel, F, M>,
    level: Level,
    count: usize,
) {
    let size = PAGE << (9 * (u32::from(level.get()) - 1));
    let at = |n: usize| VirtAddr(PLACE + n * size);
    let range = VirtRange::new(PLACE, count * size);
    let marks = |n| leaf(ops, at(n)).expect("mapped").marks();
    for n in 0..count {
        assert!(!marks(n).intersects(Marks::YOUNG | Marks::DIRTY));
        assert_eq!(try_read(Who::User, at(n)), Ok(n as u64));
        assert!(marks(n).contains(Marks::YOUNG) && !marks(n).contains(Marks::DIRTY));
        // SAFETY: the trial's page.
        unsafe { try_write(Who::User, at(n), u64::from(RETURN)) }.expect("it may be written");
        assert!(marks(n).contains(Marks::DIRTY));
        // SAFETY: as above.
        let ran = unsafe { try_exec(Who::User, at(n)) };
        assert!(ran.is_err(), "not executable");
    }
    let mut found = 0;
    let young = clear_young(ops, range, &mut |of| {
        assert_eq!(of, level);
        found += 1;
    });
    assert_eq!((young, found), (count, count));

    let code = Change {
        protect: Some(Access::READ | Access::EXEC | Access::USER),
        ..Change::default()
    };
    change(ops, range, code, &mut || {});
    for n in 0..count {
        // SAFETY: the trial's page, whose first byte is a return instruction.
        let (wrote, ran) = unsafe { (try_write(Who::User, at(n), 0), try_exec(Who::User, at(n))) };
        assert!(wrote.is_err(), "not writable any more");
        assert_eq!(ran, Ok(()));
        assert!(marks(n).contains(Marks::DIRTY), "a dirty bit was lost");
    }
    let gone = Change {
        unmap: true,
        free_tables: true,
        ..Change::default()
    };
    change(ops, range, gone, &mut || {});
    for n in 0..count {
        assert!(try_read(Who::User, at(n)).is_err(), "still there");
    }
    assert_eq!(ops.table_count(), 1, "tables are left");
}

/// Each CPU with an address space of its own.
struct Alone;

impl ForFormat for Alone {
    fn run<F: Running>(self) {
        let mut own = space::new_space::<F>().expect("memory for a root");
        for _ in 0..3 {
            space::enter(&own);
            let shared = own.shared();
            lifecycle::<F, _, Pte>(&shared, 600);
            lifecycle::<F, _, Pmd>(&shared, 2);
            let exclusive = own.exclusive();
            lifecycle::<F, _, Pte>(&exclusive, 600);
            lifecycle::<F, _, Pmd>(&exclusive, 2);
            space::leave(&own);
        }
        if Kernel.capabilities().huge_pud {
            // There is no block of 1 GiB; memory from 0 on is somebody's, and is only read.
            space::enter(&own);
            let ops = own.shared();
            let all = Leaf::kernel(PhysAddr(0), Access::READ | Access::USER).mark(Marks::SPECIAL);
            ops.map::<Pud>(page(0), &all, 1).expect("room for a table");
            let at = frame(0, 0x1234);
            let place = VirtAddr(PLACE + at.0 as usize);
            assert_eq!(try_read(Who::User, place), Ok(0x1234));
            assert_eq!(leaf(&ops, place).expect("mapped").at, PhysAddr(0));
            let mut gather = ops.gather(flagstone_pgtable::NotOwned);
            ops.unmap(VirtRange::new(PLACE, 1 << 30), &mut gather)
                .expect("mapped");
            gather.finish();
            assert!(try_read(Who::User, place).is_err());
            // SAFETY: from `frame`.
            let block = unsafe { PageBlock::from_raw(Pfn((at.0 >> 12) as usize), Order::ZERO) };
            super::caches().frames().free_pages(block);
            space::leave(&own);
        }
        drop(own);
        Kernel.poll();
    }
}

/// Pages of the shared space that one CPU changes.
const SLICE: usize = 48;
const ROUNDS: usize = 150;

static SHARED: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());
static WORKING: AtomicUsize = AtomicUsize::new(0);
static READ: AtomicU64 = AtomicU64::new(0);
static FAULTED: AtomicU64 = AtomicU64::new(0);

/// What the page at an address holds while it is mapped.
fn mark(at: VirtAddr) -> u64 {
    services::mix(at.0 as u64)
}

/// Every CPU in one address space: changes pages of its own, reads those of all.
struct Together(usize);

impl ForFormat for Together {
    fn run<F: Running>(self) {
        let pointer = SHARED.load(Ordering::Acquire).cast::<Table<F>>();
        // SAFETY: `run` stored a space of the running format, which lives until all CPUs have left it.
        let shared = unsafe { pointer.as_ref() }.expect("made before");
        space::enter(shared);
        let ops = shared.shared();
        let mut dice = Dice::new();
        let slice = self.0 * SLICE;
        let pages = crew::size() * SLICE;
        let look = |dice: &mut Dice| {
            let at = page(dice.below(pages));
            match try_read(Who::User, at) {
                Ok(value) => {
                    assert_eq!(value, mark(at), "a page was read after it was taken out");
                    READ.fetch_add(1, Ordering::Relaxed);
                }
                Err(_) => {
                    FAULTED.fetch_add(1, Ordering::Relaxed);
                }
            }
        };
        for _ in 0..ROUNDS {
            let start = dice.below(SLICE);
            let count = 1 + dice.below(SLICE - start);
            let first = page(slice + start);
            let range = VirtRange::new(first.0, count * PAGE);
            let frames: alloc::vec::Vec<_> = (0..count)
                .map(|n| frame(0, mark(page(slice + start + n))))
                .collect();
            map::<F, _, Pte>(&ops, first, &frames);
            (0..20).for_each(|_| look(&mut dice));
            let gone = Change {
                protect: (dice.below(2) == 0).then_some(Access::READ | Access::USER),
                unmap: true,
                free_tables: dice.below(8) == 0,
            };
            change(&ops, range, gone, &mut || {
                (0..5).for_each(|_| look(&mut dice));
            });
            (0..5).for_each(|_| look(&mut dice));
            Kernel.poll();
        }
        WORKING.fetch_sub(1, Ordering::Release);
        while WORKING.load(Ordering::Acquire) != 0 {
            look(&mut dice);
        }
        space::leave(shared);
    }
}

struct MakeShared;

impl ForFormat for MakeShared {
    fn run<F: Running>(self) {
        let shared = Box::new(space::new_space::<F>().expect("memory for a root"));
        SHARED.store(Box::into_raw(shared).cast(), Ordering::Release);
    }
}

struct DropShared;

impl ForFormat for DropShared {
    fn run<F: Running>(self) {
        let pointer = SHARED.swap(core::ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: from `MakeShared`; every CPU has left it.
        drop(unsafe { Box::from_raw(pointer.cast::<Table<F>>()) });
    }
}

pub(super) fn run() {
    crew::run(|_| space::for_running(Alone));
    space::for_running(MakeShared);
    WORKING.store(crew::size(), Ordering::Release);
    crew::run(|cpu| space::for_running(Together(cpu)));
    space::for_running(DropShared);
    Kernel.synchronize();
    super::say!(
        "spaces: {} pages read, {} not there",
        READ.load(Ordering::Relaxed),
        FAULTED.load(Ordering::Relaxed)
    );
}
