//! What was taken away is gone on every CPU when the gather is finished, and not dearer than it must be.

use super::Outcome;
use crate::platform::Platform;
use crate::space::{RO, RW, Space, reach};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use flagstone_host::{Count, Event};
use flagstone_pgtable::format::{Format, Level};
use flagstone_pgtable::{Pmd, Pte, VirtRange};
use flagstone_types::PhysAddr;

const PAGES: usize = 4;

pub(super) fn everywhere<P: Platform>(p: &P) -> Outcome {
    let Some(space) = Space::new(p, 64) else {
        return Outcome::Skipped("no memory for a page table");
    };
    let all = p.cpus();
    let range = Space::<P>::pages(p.window(), PAGES);
    let places: [AtomicU64; PAGES] = [const { AtomicU64::new(0) }; PAGES];
    p.run(all, &|_| space.enter());
    // Keeps the tables above, so that one table goes by itself.
    let neighbour = VirtRange::new(
        p.window().0 + reach::<P::Format>(Level::PMD),
        Space::<P>::page(),
    );
    p.run(1, &|_| {
        space.map_new(neighbour.start, RW);
    });
    for round in 0..4 {
        p.run(1, &|_| {
            for (n, place) in places.iter().enumerate() {
                let at = space.map_new(space.at(n), RW);
                place.store(at.0, Ordering::Relaxed);
            }
        });
        p.run(all, &|_| {
            for (n, place) in places.iter().enumerate() {
                let at = PhysAddr(place.load(Ordering::Relaxed));
                space.assert_reads(space.at(n), at);
                assert!(space.write(space.at(n)).is_ok());
            }
        });
        // By whatever CPU; with its tables, or without.
        p.run(all, &|cpu| {
            if cpu == round % all && round % 2 == 0 {
                space.unmap(range);
            } else if cpu == round % all && round == 1 {
                // The last one first: the invalidation spans both ends all the same.
                let result = space.gathered(|ops, gather| {
                    let mut pages = (0..PAGES).rev();
                    pages.try_for_each(|n| ops.unmap(Space::<P>::pages(space.at(n), 1), gather))
                });
                assert_eq!(result, Ok(()));
            } else if cpu == round % all {
                let result = space.gathered(|ops, gather| ops.unmap(range, gather));
                assert_eq!(result, Ok(()));
            }
        });
        p.check_all_settled(space.table());
        if round == 3 {
            p.run(1, &|_| {
                let freed = space.gathered(|ops, gather| ops.free_tables(range, gather));
                assert_eq!(freed, Ok(()));
            });
            p.check_all_settled(space.table());
        }
        p.run(all, &|_| {
            for n in 0..PAGES {
                space.assert_refused(space.at(n));
            }
        });
    }
    p.run(all, &|_| space.leave());
    space.end(&[range, neighbour]);
    p.check_memory();
    Outcome::Passed
}

pub(super) fn under_way<P: Platform>(p: &P) -> Outcome {
    let Some(space) = Space::new(p, 64) else {
        return Outcome::Skipped("no memory for a page table");
    };
    let range = Space::<P>::pages(p.window(), PAGES);
    // Changes under way, mapped, changes under way, gone; and so on.
    let phase = AtomicU64::new(0);
    let (mapped, gone, end) = (1, 3, u64::MAX);
    space.run(p.cpus().min(8), &|cpu| {
        let next = || phase.fetch_add(1, Ordering::SeqCst);
        if cpu == 0 {
            for _ in 0..4 {
                for n in 0..PAGES {
                    space.map_new(space.at(n), RW);
                }
                next();
                for n in 0..PAGES {
                    assert!(space.write(space.at(n)).is_ok());
                }
                next();
                space.unmap(range);
                next();
                for n in 0..PAGES {
                    space.assert_refused(space.at(n));
                }
                next();
            }
            phase.store(end, Ordering::SeqCst);
            return;
        }
        for n in 0.. {
            let before = phase.load(Ordering::SeqCst);
            if before == end || space.findings.any() {
                break;
            }
            let result = if n % 2 == 0 {
                space.read(space.at(n % PAGES))
            } else {
                space.write(space.at(n % PAGES))
            };
            if phase.load(Ordering::SeqCst) != before {
                continue;
            }
            if before % 4 == mapped {
                assert!(result.is_ok(), "{result:?} while a page is mapped");
            }
            if before % 4 == gone {
                assert!(result.is_err(), "{result:?} when no page is mapped");
            }
        }
    });
    space.end(&[]);
    p.check_memory();
    Outcome::Passed
}

pub(super) fn protect_down<P: Platform>(p: &P) -> Outcome {
    let Some(space) = Space::new(p, 16) else {
        return Outcome::Skipped("no memory for a page table");
    };
    let range = Space::<P>::pages(p.window(), PAGES);
    let writable = AtomicUsize::new(1);
    let rounds = 4;
    p.run(1, &|_| {
        space.enter();
        for n in 0..PAGES {
            space.map_new(space.at(n), RW);
        }
        space.leave();
    });
    space.run(p.cpus().min(8), &|cpu| {
        if cpu == 0 {
            for _ in 0..rounds {
                space.protect(range, RO);
                p.check_settled(space.table(), range);
                writable.store(0, Ordering::SeqCst);
                for n in 0..PAGES {
                    assert!(
                        space.write(space.at(n)).is_err(),
                        "a store after protection"
                    );
                    assert!(space.read(space.at(n)).is_ok());
                }
                writable.store(1, Ordering::SeqCst);
                space.protect(range, RW);
            }
            writable.store(2, Ordering::SeqCst);
            return;
        }
        for n in 0.. {
            let before = writable.load(Ordering::SeqCst);
            if before == 2 || space.findings.any() {
                break;
            }
            let result = space.write(space.at(n % PAGES));
            if before == 0 && writable.load(Ordering::SeqCst) == 0 {
                assert!(result.is_err(), "a store after protection: {result:?}");
            }
        }
    });
    space.end(&[range]);
    p.check_memory();
    Outcome::Passed
}

/// Invalidations that were asked for so far.
fn asked<P: Platform>(space: &Space<'_, P>) -> u64 {
    let host = space.host();
    host.counted(Event::TlbFlushRange) + host.counted(Event::TlbFlushAll)
}

pub(super) fn protect_up<P: Platform>(p: &P) -> Outcome {
    let Some(space) = Space::new(p, 16) else {
        return Outcome::Skipped("no memory for a page table");
    };
    let range = Space::<P>::pages(p.window(), PAGES);
    let all = p.cpus();
    p.run(all, &|_| space.enter());
    p.run(1, &|_| {
        for n in 0..PAGES {
            space.map_new(space.at(n), RO);
        }
    });
    p.run(all, &|_| {
        for n in 0..PAGES {
            assert!(space.read(space.at(n)).is_ok());
            assert!(space.write(space.at(n)).is_err());
        }
    });
    let before = asked(&space);
    p.run(1, &|_| space.protect(range, RW));
    // A unit that sets the dirty bit of what has gone has it broken all the same.
    if P::Format::FAULT_DROPS && !space.table().capabilities().stray_dirty {
        assert_eq!(asked(&space), before, "more access costs an invalidation");
    }
    p.run(all, &|_| {
        for n in 0..PAGES {
            assert!(
                space.write(space.at(n)).is_ok(),
                "a store after access was added"
            );
        }
    });
    p.run(all, &|_| space.leave());
    space.end(&[range]);
    p.check_memory();
    Outcome::Passed
}

pub(super) fn batches<P: Platform>(p: &P) -> Outcome {
    let Some(space) = Space::new(p, 16) else {
        return Outcome::Skipped("no memory for a page table");
    };
    let stray = space.table().capabilities().stray_dirty;
    let size = reach::<P::Format>(Level::PMD);
    let range = VirtRange::new(p.window().0, size);
    let Some(memory) = space.memory(Level::PMD) else {
        space.end(&[]);
        return Outcome::Skipped("no memory for huge leaves");
    };
    space.run(1, &|_| {
        let pages = size / Space::<P>::page();
        let mapped = space.map_piece::<Pte>(p.window(), memory, RW, pages);
        assert_eq!(mapped, Ok(()));
        for n in [0, 1, pages - 1] {
            assert!(space.write(space.at(n)).is_ok());
        }
        let before = asked(&space);
        space.protect(range, RO);
        if !stray {
            assert_eq!(asked(&space) - before, 1, "protecting {pages} pages");
        }
        let before = asked(&space);
        space.unmap(range);
        if !stray {
            assert_eq!(asked(&space) - before, 1, "unmapping {pages} pages");
        }
        if space.table().has_leaf(Level::PMD) {
            space.map_new_at::<Pmd>(p.window(), RW);
            assert!(space.write(p.window()).is_ok());
            let before = asked(&space);
            space.protect(range, RO);
            // The erratum takes a second one.
            let wanted = 1 + u64::from(stray);
            assert_eq!(asked(&space) - before, wanted, "protecting a huge leaf");
        }
    });
    space.end(&[range]);
    p.check_memory();
    Outcome::Passed
}

pub(super) fn switching<P: Platform>(p: &P) -> Outcome {
    let (Some(one), Some(two)) = (Space::new(p, 64), Space::new(p, 64)) else {
        return Outcome::Skipped("no memory for two page tables");
    };
    let cpus = p.cpus().min(4);
    let range = Space::<P>::pages(p.window(), PAGES);
    let places: [[AtomicU64; PAGES]; 2] = [const { [const { AtomicU64::new(0) }; PAGES] }; 2];
    for round in 0..4 {
        p.run(1, &|_| {
            for (space, places) in [&one, &two].into_iter().zip(&places) {
                for (n, place) in places.iter().enumerate() {
                    let at = space.map_new(space.at(n), RW);
                    place.store(at.0, Ordering::Relaxed);
                }
            }
        });
        p.run(cpus, &|cpu| {
            for turn in 0..3 {
                let which = (turn + cpu) % 2;
                let space = [&one, &two][which];
                space.enter();
                for (n, place) in places[which].iter().enumerate() {
                    let at = PhysAddr(place.load(Ordering::Relaxed));
                    space.assert_reads(space.at(n), at);
                }
                space.leave();
            }
        });
        // Nobody uses them now; some come back to what has changed.
        if round % 2 == 0 {
            p.run(1, &|_| {
                one.unmap(range);
                two.unmap(range);
            });
        } else {
            p.run(cpus, &|cpu| {
                one.enter();
                if cpu == 0 {
                    one.unmap(range);
                    two.unmap(range);
                }
                one.leave();
            });
        }
        p.run(cpus, &|_| {
            for space in [&one, &two] {
                space.enter();
                space.assert_refused(space.at(0));
                space.leave();
            }
        });
    }
    one.end(&[]);
    two.end(&[]);
    p.check_memory();
    Outcome::Passed
}
