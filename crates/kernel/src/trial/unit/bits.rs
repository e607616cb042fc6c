//! Accessed and dirty bits: who sets them, when they are set again, and that exchanges of entries lose none.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::tables::{Tables, load, store};
use super::{ACCESSED, DIRTY, GLOBAL, LARGE, PLACE, PRESENT, USER, WRITE};
use crate::access::{Who, try_read, try_write};
use crate::features::{self, Features};
use crate::kernel::Kernel;
use crate::{crew, unit};
use flagstone_host::{Asid, Invalidate, Mmu, TableMemory};
use flagstone_types::{PhysAddr, VirtAddr};

/// Only one page, or everything, in both forms: what makes the unit forget a translation.
fn ways(at: VirtAddr, shift: u32) -> [Invalidate; 4] {
    let one = |asid| Invalidate {
        asid,
        start: at,
        end: VirtAddr(at.0 + (1 << shift)),
        stride: shift as u8,
        tables: true,
    };
    let asid = Some(Asid(0));
    [
        one(asid),
        one(None),
        Invalidate::all(asid),
        Invalidate::all(None),
    ]
}

/// A leaf of each size and the entries above it: a read makes them accessed, a write makes the leaf dirty, and after each kind of invalidation both
/// happen again.
fn set_by_the_unit(level: u8) {
    let mut tables = Tables::new();
    let frame = tables.frame(0);
    let shift = super::tables::shift(level);
    let start = VirtAddr(PLACE >> shift << shift);
    let at = VirtAddr(start.0 | frame.0 as usize & ((1 << shift) - 1));
    let leaf = tables.entry(at, level);
    let large = if level == 1 { 0 } else { LARGE };
    let value = frame.0 >> shift << shift | PRESENT | WRITE | large;
    store(leaf, value);
    let above: [PhysAddr; 5] =
        core::array::from_fn(|n| tables.entry(at, (n as u8 + 1).clamp(level, unit::levels())));
    tables.enter();
    for (n, what) in ways(start, shift).into_iter().enumerate() {
        // A global translation stays where only one address space is to go.
        let global = if what.asid.is_none() { GLOBAL } else { 0 };
        store(leaf, value | global);
        for &entry in &above {
            store(entry, load(entry) & !ACCESSED);
        }
        Kernel.invalidate(&what);
        assert!(try_read(Who::Kernel, at).is_ok());
        for &entry in &above {
            assert_eq!(load(entry) & (ACCESSED | DIRTY), ACCESSED, "read, way {n}");
        }
        // SAFETY: the trial's frame.
        assert!(unsafe { try_write(Who::Kernel, at, 1) }.is_ok());
        assert_eq!(load(leaf) & DIRTY, DIRTY, "write, way {n}");
        store(leaf, value | global);
        Kernel.invalidate(&what);
        // SAFETY: as above.
        assert!(unsafe { try_write(Who::Kernel, at, 2) }.is_ok());
        assert_eq!(
            load(leaf) & (ACCESSED | DIRTY),
            ACCESSED | DIRTY,
            "again, way {n}"
        );
    }
    tables.leave();
    tables.free();
}

static ENTRY: AtomicU64 = AtomicU64::new(0);
static ROOT: AtomicU64 = AtomicU64::new(0);
static DONE: AtomicBool = AtomicBool::new(false);
static WRITERS: AtomicUsize = AtomicUsize::new(0);
static LOST: AtomicU64 = AtomicU64::new(0);
const ROUNDS: u64 = 2000;
/// A bit that the unit ignores.
const NOTE: u64 = 1 << 9;

/// Other CPUs make the page dirty over and over while the first toggles a bit of the entry by exchanges: whoever sees the entry dirty and
/// does not clear that may never see it clean.
fn race(cpu: usize) {
    let at = VirtAddr(PLACE);
    let entry = PhysAddr(ENTRY.load(Ordering::Relaxed));
    let kernel = unit::root();
    // SAFETY: U2: tables of this trial, with the kernel's half.
    unsafe { Kernel.activate(PhysAddr(ROOT.load(Ordering::Relaxed)), Asid(0), true) };
    let [one, ..] = ways(at, 12);
    if cpu == 0 && crew::size() > 1 {
        while WRITERS.load(Ordering::Relaxed) == 0 {
            core::hint::spin_loop();
        }
        for _ in 0..ROUNDS {
            let old = load(entry);
            // SAFETY: U1: the trial's entry.
            let clean = unsafe { Kernel.compare_exchange_entry(entry, old, old & !DIRTY) };
            if clean.is_err() {
                continue;
            }
            let mut seen = 0;
            for _ in 0..20 {
                let old = load(entry);
                seen |= old & DIRTY;
                // SAFETY: as above.
                let changed = unsafe { Kernel.compare_exchange_entry(entry, old, old ^ NOTE) };
                if changed.is_ok() && seen & !load(entry) & DIRTY != 0 {
                    LOST.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        DONE.store(true, Ordering::Release);
    } else {
        WRITERS.fetch_add(1, Ordering::Relaxed);
        while crew::size() > 1 && !DONE.load(Ordering::Acquire) {
            // SAFETY: the trial's frame.
            assert!(unsafe { try_write(Who::User, at, 1) }.is_ok());
            Kernel.invalidate(&one);
        }
    }
    // SAFETY: U2: the root of before.
    unsafe { Kernel.activate(kernel, Asid(0), true) };
}

fn exchanges() {
    let mut tables = Tables::new();
    let frame = tables.frame(0);
    let entry = tables.entry(VirtAddr(PLACE), 1);
    store(entry, frame.0 | PRESENT | WRITE | USER);
    ENTRY.store(entry.0, Ordering::Relaxed);
    ROOT.store(tables.root().0, Ordering::Relaxed);
    crew::run(race);
    assert_eq!(LOST.load(Ordering::Relaxed), 0, "a dirty bit was lost");
    tables.free();
}

pub(super) fn run() {
    set_by_the_unit(1);
    set_by_the_unit(2);
    if features::features().contains(Features::GIB_PAGES) {
        set_by_the_unit(3);
    }
    exchanges();
}
