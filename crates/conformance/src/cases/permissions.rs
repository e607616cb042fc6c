//! What is mapped can be used as its leaf says.

use super::Outcome;
use crate::platform::{Platform, Touch, Who};
use crate::space::{RO, RW, RWX, RX, Space, allows, reach};
use core::sync::atomic::Ordering;
use flagstone_pgtable::format::{Access, Format, Level, Marks};
use flagstone_pgtable::{Pmd, Pte, Pud, TableLevel, VirtRange};
use flagstone_types::{PhysAddr, VirtAddr};

/// Every access that a page can have.
const ALL: [Access; 9] = [
    RW,
    RO,
    RX,
    RWX,
    Access::USER,
    Access::empty(),
    Access::READ,
    Access::READ.union(Access::WRITE),
    Access::READ.union(Access::EXEC),
];

/// That every kind of access to a page is allowed exactly if its leaf says so.
fn check<P: Platform>(space: &Space<'_, P>, va: VirtAddr, at: PhysAddr, access: Access) {
    let none = !access.contains(Access::READ);
    let marks = if none {
        Marks::NO_ACCESS
    } else {
        Marks::empty()
    };
    // The kernel is let at pages of user code by some machines and not by others.
    let kernel = !access.contains(Access::USER);
    for who in [Who::User, Who::Kernel] {
        if who == Who::Kernel && !kernel {
            continue;
        }
        for touch in [Touch::Read, Touch::Write(space.new_word()), Touch::Exec] {
            let offset = if matches!(touch, Touch::Write(_)) {
                8
            } else {
                0
            };
            let (place, leads) = (VirtAddr(va.0 + offset), PhysAddr(at.0 + offset as u64));
            let before = space
                .platform
                .word(leads)
                .map(|w| w.load(Ordering::Relaxed));
            let seen = space.touch(place, who, touch);
            space.findings.assert_none();
            let right = allows(access, marks, who, touch);
            assert_eq!(
                seen.is_ok(),
                right,
                "{who:?} {touch:?} at {va:?}, mapped with {access:?}: {seen:?}"
            );
            let after = space
                .platform
                .word(leads)
                .map(|w| w.load(Ordering::Relaxed));
            match (touch, seen) {
                (Touch::Write(word), Ok(_)) if after.is_some() => assert_eq!(after, Some(word)),
                (Touch::Read, Ok(seen)) if seen.word.is_some() && after.is_some() => {
                    assert_eq!(seen.word, after, "a load at {va:?}");
                }
                _ => assert_eq!(after, before, "{touch:?} at {va:?} changed memory"),
            }
            if let Ok(seen) = seen
                && let Some(led) = seen.at
            {
                assert_eq!(led, leads, "{touch:?} at {va:?}");
            }
        }
    }
}

/// Maps a leaf of level `L` with every access, uses it at both ends, changes it to every other access.
fn on_level<L: TableLevel, P: Platform>(space: &Space<'_, P>) {
    if !space.table().has_leaf(L::LEVEL) {
        return;
    }
    let size = reach::<P::Format>(L::LEVEL);
    let va = space.platform.window();
    let range = VirtRange::new(va.0, size);
    let ends = [0, size - Space::<P>::page()];
    for access in ALL {
        let Some(memory) = space.memory(L::LEVEL) else {
            return;
        };
        if !P::Format::can(L::LEVEL, &Space::<P>::leaf(memory.1, access)) {
            space.ledger.give(space.platform, memory.1.0, L::LEVEL);
            continue;
        }
        let result = space.map_piece::<L>(va, memory, access, 1);
        assert_eq!(result, Ok(()), "{access:?} on level {}", L::LEVEL.get());
        for end in ends {
            let at = PhysAddr(memory.1.0 + end as u64);
            check(space, VirtAddr(va.0 + end), at, access);
        }
        space.unmap(range);
        for end in ends {
            space.assert_refused(VirtAddr(va.0 + end));
        }
    }
    let at = space.map_new_at::<L>(va, RW);
    for access in ALL
        .into_iter()
        .filter(|access| access.contains(Access::USER))
    {
        space.protect(range, access);
        space.platform.check_settled(space.table(), range);
        check(space, va, at, access);
    }
    space.unmap(range);
}

pub(super) fn every_access<P: Platform>(p: &P) -> Outcome {
    let Some(space) = Space::new(p, 64) else {
        return Outcome::Skipped("no memory for a page table");
    };
    space.run(1, &|_| {
        on_level::<Pte, P>(&space);
        on_level::<Pmd, P>(&space);
        on_level::<Pud, P>(&space);
    });
    space.end(&[]);
    p.check_memory();
    Outcome::Passed
}

pub(super) fn five_levels<P: Platform>(p: &P) -> Outcome {
    if P::Format::TOP < Level::PGD {
        return Outcome::Skipped("the format has fewer levels");
    }
    let Some(space) = Space::new(p, 16) else {
        return Outcome::Skipped("no memory for a page table");
    };
    let window = p.window().0;
    let top = reach::<P::Format>(Level::PGD);
    let below = reach::<P::Format>(Level::P4D);
    // The same index on every level but one.
    let places = [0, below, top, top + below].map(|offset| VirtAddr(window + offset));
    space.run(1, &|_| {
        let at = places.map(|va| space.map_new(va, RW));
        for (va, at) in places.iter().zip(at) {
            space.assert_reads(*va, at);
            check(&space, *va, at, RW);
        }
        space.unmap(Space::<P>::pages(places[2], 1));
        space.assert_refused(places[2]);
        space.assert_reads(places[3], at[3]);
        space.assert_reads(places[0], at[0]);
    });
    let ranges = places.map(|va| Space::<P>::pages(va, 1));
    space.end(&ranges);
    p.check_memory();
    Outcome::Passed
}

pub(super) fn halves<P: Platform>(p: &P) -> Outcome {
    if !P::Format::HALVES {
        return Outcome::Skipped("entries are read in one");
    }
    let Some(space) = Space::new(p, 16) else {
        return Outcome::Skipped("no memory for a page table");
    };
    let probe = p
        .alloc(Level::PMD)
        .filter(|_| space.table().has_leaf(Level::PMD));
    let Some(probe) = probe else {
        space.end(&[]);
        return Outcome::Skipped("no huge leaves, or no memory for them");
    };
    p.free(probe, Level::PMD);
    if probe.0 >> 32 == 0 {
        space.end(&[]);
        return Outcome::Skipped("no memory beyond 4 GiB");
    }
    let va = p.window();
    let range = VirtRange::new(va.0, reach::<P::Format>(Level::PMD));
    space.run(p.cpus().min(4), &|cpu| {
        for _ in 0..4 {
            if cpu == 0 {
                let at = space.map_new_at::<Pmd>(va, RX);
                space.assert_reads(va, at);
                // No-execute is in the other half than the right to write.
                space.protect(range, RW);
                space.protect(range, RX);
                space.unmap(range);
            } else if let Ok(seen) = space.read(va)
                && let Some(led) = seen.at
            {
                assert!(led.0 >> 32 != 0, "a load led to {led:?}");
            }
        }
    });
    space.end(&[]);
    p.check_memory();
    Outcome::Passed
}
