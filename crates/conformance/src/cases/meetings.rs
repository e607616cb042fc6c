//! Contexts that meet where an operation relies on being alone: in a page table that no CPU uses, in one that is one context's, on a locked table, and at
//! an entry that another context has just taken out.

use super::Outcome;
use crate::platform::Platform;
use crate::space::{RO, RW, Space};
use crate::spin::Spin;
use core::sync::atomic::{AtomicBool, Ordering};
use flagstone_pgtable::format::Entry;
use flagstone_pgtable::format::Level;
use flagstone_pgtable::{Become, NotOwned, Pte};

/// Enough for a run of stores.
const PAGES: usize = 16;

/// CPUs come while another context changes a page table that nobody has used.
pub(super) fn entering<P: Platform>(p: &P) -> Outcome {
    let Some(space) = Space::new(p, 128) else {
        return Outcome::Skipped("no memory for a page table");
    };
    let range = Space::<P>::pages(p.window(), PAGES);
    let done = AtomicBool::new(false);
    p.run(p.cpus().min(3), &|cpu| {
        if cpu != 0 {
            for n in 0.. {
                if done.load(Ordering::SeqCst) || space.findings.any() {
                    break;
                }
                // Away for longer than there, so that often nobody is.
                for _ in 0..1 + n % 7 {
                    let _ = space.ops().physical(space.at(n % PAGES));
                }
                space.enter();
                // There or not, writable or not.
                let _ = space.read(space.at((n * 7 + cpu) % PAGES));
                space.leave();
            }
            return;
        }
        for _ in 0..2 {
            for n in 0..PAGES {
                space.map_new(space.at(n), RW);
            }
            for access in [RO, RW, RO, RW, RO, RW] {
                space.protect(range, access);
            }
            space.unmap(range);
        }
        done.store(true, Ordering::SeqCst);
    });
    space.end(&[]);
    p.check_memory();
    Outcome::Passed
}

/// One context has the page table to itself, and its CPU uses it.
pub(super) fn alone_and_used<P: Platform>(p: &P) -> Outcome {
    let Some(space) = Space::new(p, 32) else {
        return Outcome::Skipped("no memory for a page table");
    };
    let range = Space::<P>::pages(p.window(), PAGES);
    let held = Spin::new(Some(space));
    p.run(1, &|_| {
        let mut held = held.lock();
        let Some(space) = &mut *held else {
            return;
        };
        space.enter();
        let places: [_; PAGES] = core::array::from_fn(|n| space.map_new(space.at(n), RW));
        for round in 0..6 {
            {
                let ops = space.exclusive();
                let mut gather = ops.gather(NotOwned);
                assert_eq!(ops.protect(range, [RO, RW][round % 2], &mut gather), Ok(()));
                gather.finish();
            }
            for (n, at) in places.iter().enumerate().skip(round).step_by(3) {
                space.assert_reads(space.at(n), *at);
                assert_eq!(space.write(space.at(n)).is_ok(), round % 2 == 1);
            }
        }
        space.unmap(range);
        space.leave();
    });
    let space = held.lock().take();
    if let Some(space) = space {
        space.end(&[]);
    }
    p.check_memory();
    Outcome::Passed
}

/// Tables are held by callers, and freed as soon as they let go.
pub(super) fn guards<P: Platform>(p: &P) -> Outcome {
    let Some(space) = Space::new(p, 128) else {
        return Outcome::Skipped("no memory for a page table");
    };
    let range = Space::<P>::pages(p.window(), PAGES);
    space.run(p.cpus().min(4), &|cpu| {
        for _ in 0..6 {
            if cpu == 0 {
                let result = space.gathered(|ops, gather| ops.free_tables(range, gather));
                assert_eq!(result, Ok(()));
                continue;
            }
            let own = space.at(cpu);
            space.map_new(own, RW);
            space.unmap(Space::<P>::pages(own, 1));
            let ops = space.table().shared();
            if let Ok(guard) = ops.lock_entries::<Pte>(own) {
                let index = guard.index(own).expect("an address of this table");
                assert_eq!(guard.entry(index), Ok(Entry::None));
            }
        }
    });
    space.end(&[range]);
    p.check_memory();
    Outcome::Passed
}

/// A page is put where another context has taken one out and not yet invalidated.
pub(super) fn refilling<P: Platform>(p: &P) -> Outcome {
    let Some(space) = Space::new(p, 128) else {
        return Outcome::Skipped("no memory for a page table");
    };
    let va = p.window();
    let range = Space::<P>::pages(va, 1);
    space.run(p.cpus().min(4), &|cpu| {
        for _ in 0..6 {
            if cpu == 0 {
                space.map_new(space.at(1), RW);
                space.unmap(Space::<P>::pages(va, 2));
                continue;
            }
            let _ = space.read(va);
            let Some((piece, new)) = space.memory(Level::PTE) else {
                return;
            };
            space.findings.check(space.ledger.put_out(piece, 0, 1));
            let leaf = Space::<P>::leaf(new, RW);
            let decide = |entry| match entry {
                Entry::None => Become::Leaf(leaf),
                _ => Become::Same,
            };
            let old = space.gathered(|ops, gather| ops.replace::<Pte>(va, gather, decide));
            if old != Ok(Entry::None) {
                super::sharing::take_back(&space, va, leaf);
            }
            let _ = space.write(va);
        }
    });
    space.end(&[range]);
    p.check_memory();
    Outcome::Passed
}
