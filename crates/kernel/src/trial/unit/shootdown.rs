//! Translations that other CPUs hold: without an invalidation there they go on using the old one, with it they do not.
//!
//! The first half shows that the second is not true by itself: were no stale translation ever seen, this could not fail.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::tables::{Tables, contents, load, store};
use super::{PLACE, PRESENT, WRITE};
use crate::access::{Who, try_read};
use crate::kernel::Kernel;
use crate::per_cpu::MOST_CPUS;
use crate::{crew, interrupts};
use flagstone_host::{Asid, Cpus, Invalidate, Mmu, Shootdown};
use flagstone_types::{CpuMask, PhysAddr, VirtAddr};

const ROUNDS: u64 = 120;
/// Pages that are changed, more than are invalidated one by one.
const PAGES: usize = 40;

/// Which question is asked, and which each CPU has answered; 0 at the start, [`END`] to end.
static QUESTION: AtomicU64 = AtomicU64::new(0);
static ANSWERED: [AtomicU64; MOST_CPUS] = [const { AtomicU64::new(0) }; MOST_CPUS];
static SEEN: [[AtomicU64; PAGES]; MOST_CPUS] =
    [const { [const { AtomicU64::new(0) }; PAGES] }; MOST_CPUS];
static ROOT: AtomicU64 = AtomicU64::new(0);
static STALE: AtomicUsize = AtomicUsize::new(0);
const END: u64 = u64::MAX;

fn page(n: usize) -> VirtAddr {
    VirtAddr(PLACE + n * 4096)
}

/// Every other CPU: reads all pages whenever it is asked.
fn watch(cpu: usize) {
    let mut last = 0;
    loop {
        let question = QUESTION.load(Ordering::Acquire);
        if question == END {
            return;
        }
        if question == last {
            // Without its turn it leaves the emulator's time to others; a timer interrupt wakes it.
            interrupts::idle_unless(|| QUESTION.load(Ordering::Acquire) != last);
            continue;
        }
        for (n, seen) in SEEN[cpu].iter().enumerate() {
            let value = try_read(Who::Kernel, page(n)).expect("the page is mapped");
            seen.store(value, Ordering::Relaxed);
        }
        ANSWERED[cpu].store(question, Ordering::Release);
        last = question;
    }
}

/// Has all other CPUs read.
fn ask() {
    let question = QUESTION.load(Ordering::Relaxed) + 1;
    QUESTION.store(question, Ordering::Release);
    for answered in &ANSWERED[1..crew::size()] {
        while answered.load(Ordering::Acquire) != question {
            core::hint::spin_loop();
        }
    }
}

/// Values other than `value` that the other CPUs read.
fn others_than(value: u64) -> usize {
    let all = SEEN[1..crew::size()].iter().flatten();
    all.filter(|seen| seen.load(Ordering::Relaxed) != value)
        .count()
}

/// The first CPU: maps the pages to one frame and to another in turn.
fn change(entry: PhysAddr, frames: [PhysAddr; 2]) {
    let entries = || (0..PAGES as u64).map(|n| PhysAddr(entry.0 + 8 * n));
    let everyone = CpuMask::first(Kernel.possible_cpus());
    ask();
    for round in 1..=ROUNDS {
        let new = round % 2;
        let frame = frames[new as usize];
        for entry in entries() {
            store(entry, frame.0 | PRESENT | WRITE);
        }
        ask();
        STALE.fetch_add(others_than(new), Ordering::Relaxed);
        // In turn: page by page in many requests, a range that is short, one that is long, everything.
        let some = |start: usize, pages| Invalidate {
            asid: (round % 3 != 0).then_some(Asid(0)),
            start: page(start),
            end: page(start + pages),
            stride: 12,
            tables: false,
        };
        match round % 4 {
            0 => {
                let pending: [_; PAGES] =
                    core::array::from_fn(|n| Kernel.shoot(&everyone, &some(n, 1)));
                pending.into_iter().for_each(|one| Kernel.wait(one));
            }
            1 => {
                let halves = [0, PAGES / 2].map(|at| Kernel.shoot(&everyone, &some(at, PAGES / 2)));
                halves.into_iter().for_each(|one| Kernel.wait(one));
            }
            2 => Kernel.wait(Kernel.shoot(&everyone, &some(0, PAGES))),
            _ => Kernel.wait(Kernel.shoot(&everyone, &Invalidate::all(Some(Asid(0))))),
        }
        ask();
        assert_eq!(
            others_than(new),
            0,
            "a stale translation after an invalidation, round {round}"
        );
        for n in 0..PAGES {
            assert_eq!(try_read(Who::Kernel, page(n)), Ok(new));
        }
    }
    QUESTION.store(END, Ordering::Release);
}

static ENTRY: AtomicU64 = AtomicU64::new(0);
static FRAMES: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

fn work(cpu: usize) {
    let kernel = crate::unit::root();
    // SAFETY: U2: tables of this trial, with the kernel's half.
    unsafe { Kernel.activate(PhysAddr(ROOT.load(Ordering::Relaxed)), Asid(0), true) };
    if cpu == 0 {
        let frames = [0, 1].map(|n: usize| PhysAddr(FRAMES[n].load(Ordering::Relaxed)));
        change(PhysAddr(ENTRY.load(Ordering::Relaxed)), frames);
    } else {
        watch(cpu);
    }
    // SAFETY: U2: the root of before.
    unsafe { Kernel.activate(kernel, Asid(0), true) };
}

pub(super) fn run() {
    let mut tables = Tables::new();
    let entry = tables.entry(VirtAddr(PLACE), 1);
    for (n, slot) in FRAMES.iter().enumerate() {
        let frame = tables.frame(0);
        // SAFETY: a frame of ours.
        unsafe { contents(frame).write_volatile(n as u64) };
        slot.store(frame.0, Ordering::Relaxed);
    }
    for n in 0..PAGES as u64 {
        let at = tables.entry(page(n as usize), 1);
        assert_eq!(at.0, entry.0 + 8 * n, "one table has all of them");
        store(at, FRAMES[0].load(Ordering::Relaxed) | PRESENT | WRITE);
        assert_ne!(load(at), 0);
    }
    ENTRY.store(entry.0, Ordering::Relaxed);
    ROOT.store(tables.root().0, Ordering::Relaxed);
    crew::run(work);
    let stale = STALE.load(Ordering::Relaxed);
    super::super::say!("stale translations before invalidation: {stale}");
    assert!(
        crew::size() == 1 || stale > 0,
        "nobody ever had a stale translation, so nothing was tried"
    );
    tables.free();
}
