//! Every CPU shoots at every other at once, holding a lock that the others wait for: who waits, for a lock or for an answer, answers.

use core::sync::atomic::{AtomicU64, Ordering};

use super::tables::{Tables, contents, store};
use super::{PLACE, PRESENT, WRITE};
use crate::access::{Who, try_read};
use crate::crew;
use crate::kernel::Kernel;
use crate::per_cpu::Area;
use flagstone_host::{Asid, Cpus, Grace, Invalidate, Mmu, Mutex, Shootdown, classes};
use flagstone_types::{CpuMask, PhysAddr, VirtAddr};

const ROUNDS: u64 = 150;
const FRAMES: usize = 8;

/// What the page is mapped to.
struct Page {
    entry: PhysAddr,
    frames: [PhysAddr; FRAMES],
    value: u64,
}

static PAGE: Mutex<Kernel, classes::Table1, Option<Page>> = lock_api::Mutex::new(None);
static ROOT: AtomicU64 = AtomicU64::new(0);

fn work(_cpu: usize) {
    let kernel = crate::unit::root();
    // SAFETY: U2: tables of this trial, with the kernel's half.
    unsafe { Kernel.activate(PhysAddr(ROOT.load(Ordering::Relaxed)), Asid(0), true) };
    let everyone = CpuMask::first(Kernel.possible_cpus());
    let at = VirtAddr(PLACE);
    for round in 0..ROUNDS {
        // A reader in a section is not waited for, and sees some value that the page had.
        {
            let _section = Kernel.read();
            assert!(try_read(Who::Kernel, at).is_ok_and(|value| value < FRAMES as u64));
        }
        let mut guard = PAGE.lock();
        let page = guard.as_mut().expect("set up by the trial");
        assert_eq!(
            try_read(Who::Kernel, at),
            Ok(page.value),
            "the last holder's invalidation had not happened"
        );
        page.value = (page.value + 1) % FRAMES as u64;
        let frame = page.frames[page.value as usize];
        store(page.entry, frame.0 | PRESENT | WRITE);
        Kernel.wait(Kernel.shoot(
            &everyone,
            &Invalidate {
                asid: Some(Asid(0)),
                start: at,
                end: VirtAddr(at.0 + 4096),
                stride: 12,
                tables: false,
            },
        ));
        drop(guard);
        if round % 64 == 0 {
            Kernel.synchronize();
        }
    }
    // SAFETY: U2: the root of before.
    unsafe { Kernel.activate(kernel, Asid(0), true) };
}

pub(super) fn run() {
    let mut tables = Tables::new();
    let entry = tables.entry(VirtAddr(PLACE), 1);
    let frames = core::array::from_fn(|n| {
        let frame = tables.frame(0);
        // SAFETY: a frame of ours.
        unsafe { contents(frame).write_volatile(n as u64) };
        frame
    });
    store(entry, frames[0].0 | PRESENT | WRITE);
    *PAGE.lock() = Some(Page {
        entry,
        frames,
        value: 0,
    });
    ROOT.store(tables.root().0, Ordering::Relaxed);
    crew::run(work);
    *PAGE.lock() = None;
    let sum = |of: fn(&Area) -> &AtomicU64| {
        let counts = Area::all().map(|area| of(area).load(Ordering::Relaxed));
        counts.sum::<u64>()
    };
    super::super::say!(
        "shootdowns: {} asked, {} answered",
        sum(|area| &area.mailbox.asked),
        sum(|area| &area.mailbox.answered)
    );
    tables.free();
}
