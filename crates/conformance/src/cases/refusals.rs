//! Bad input, and the exclusive form.

use super::Outcome;
use crate::platform::Platform;
use crate::space::{RO, RW, Space, reach};
use flagstone_pgtable::format::{Canonical, Format, Leaf, Level};
use flagstone_pgtable::shadow::Mapping;
use flagstone_pgtable::{Error, MapError, Pmd, Pte, VirtRange};
use flagstone_types::{PhysAddr, VirtAddr};

pub(super) fn bad_input<P: Platform>(p: &P) -> Outcome {
    let Some(space) = Space::new(p, 16) else {
        return Outcome::Skipped("no memory for a page table");
    };
    let page = Space::<P>::page();
    let size = reach::<P::Format>(Level::PMD);
    let va = p.window();
    p.run(1, &|_| {
        space.map_new(space.at(1), RW);
    });
    let before = space.contents(16);
    let tables = space.table().table_count();
    let ops = space.ops();
    let leaf = |at: u64| Leaf::new(PhysAddr(at), RO, Mapping::Ordinary);
    let map = |va: usize, at: u64, count: usize| {
        ops.map::<Pte>(VirtAddr(va), &leaf(at), count)
            .map_err(|stopped: MapError| {
                assert_eq!(stopped.mapped, 0);
                stopped.error
            })
    };
    let refused = |what: &str, result: Result<(), Error>, right: fn(&Error) -> bool| {
        let error = result.err();
        assert!(error.as_ref().is_some_and(right), "{what}: {error:?}");
    };
    let misaligned: fn(&Error) -> bool = |e| matches!(e, Error::Misaligned { .. });
    let not_canonical: fn(&Error) -> bool = |e| matches!(e, Error::NotCanonical(_));
    let bad_length: fn(&Error) -> bool = |e| matches!(e, Error::BadLength(_));
    let beyond: fn(&Error) -> bool = |e| matches!(e, Error::BeyondPhysical(_));

    refused("an address within a page", map(va.0 + 1, 0, 1), misaligned);
    refused("memory within a page", map(va.0, 0x80, 1), misaligned);
    refused("no pages", map(va.0, 0, 0), bad_length);
    refused(
        "as many pages as there are numbers",
        map(va.0, 0, usize::MAX),
        bad_length,
    );
    let bits = u32::from(space.table().capabilities().phys_bits).min(P::Format::PHYS_BITS);
    let last = (1u64 << bits) - page as u64;
    refused("memory that ends beyond all", map(va.0, last, 2), beyond);
    refused("memory beyond all", map(va.0, 1 << bits, 1), beyond);
    refused("a page that is mapped", map(space.at(1).0, 0, 1), |e| {
        matches!(e, Error::Occupied { .. })
    });
    refused("pages around one", map(va.0, 0, 3), |e| {
        matches!(e, Error::Occupied { .. })
    });

    let half = 1usize << (P::Format::virt_bits() - 1);
    let (hole, end) = match P::Format::CANONICAL {
        Canonical::SignExtended => (half, half - page),
        _ => (half * 2, half * 2 - page),
    };
    refused(
        "an address that is not translated",
        map(hole, 0, 1),
        not_canonical,
    );
    refused("pages up to such an address", map(end, 0, 2), not_canonical);
    let lookup = ops.lookup(VirtAddr(hole));
    assert!(matches!(lookup, Err(Error::NotCanonical(_))), "{lookup:?}");

    if space.table().has_leaf(Level::PMD) {
        let huge = |va: usize, at: u64| {
            ops.map::<Pmd>(VirtAddr(va), &leaf(at), 1)
                .map_err(Error::from)
        };
        refused("a huge leaf at a page", huge(va.0 + page, 0), misaligned);
        refused(
            "a huge leaf of odd memory",
            huge(va.0, page as u64),
            misaligned,
        );
        refused("a huge leaf over a table", huge(va.0, 0), |e| {
            matches!(e, Error::Occupied { .. })
        });
    } else {
        let huge = ops.map::<Pmd>(va, &leaf(0), 1).map_err(Error::from);
        refused("a huge leaf that there is not", huge, |e| {
            matches!(e, Error::Unsupported { .. } | Error::Occupied { .. })
        });
    }
    for (start, bytes, right) in [
        (va.0 + 8, page, misaligned),
        (va.0, page + 8, misaligned),
        (va.0, 0, bad_length),
        (hole, page, not_canonical),
        (end, 2 * page, not_canonical),
    ] {
        let range = VirtRange::new(start, bytes);
        let unmapped = space.gathered(|ops, gather| ops.unmap(range, gather));
        refused("unmapping", unmapped, right);
        let protected = space.gathered(|ops, gather| ops.protect(range, RO, gather));
        refused("protecting", protected, right);
        let freed = space.gathered(|ops, gather| ops.free_tables(range, gather));
        refused("freeing tables", freed, right);
        let aged = ops.test_and_clear_young(range, |_, _, _| ()).map(|_| ());
        refused("aging", aged, right);
    }
    refused(
        "joining nothing",
        ops.collapse::<Pmd>(VirtAddr(va.0 + 2 * size)),
        |e| matches!(e, Error::NotMapped(_) | Error::NoSuchEntry(_)),
    );
    refused(
        "splitting nothing",
        ops.split(VirtAddr(va.0 + 2 * size)),
        |e| matches!(e, Error::NotMapped(_)),
    );
    // Unmapping what is not mapped is no error.
    let nothing = Space::<P>::pages(space.at(4), 4);
    let unmapped = space.gathered(|ops, gather| ops.unmap(nothing, gather));
    assert_eq!(unmapped, Ok(()));
    assert_eq!(
        space.contents(16),
        before,
        "what was refused changed something"
    );
    assert_eq!(space.table().table_count(), tables);
    space.end(&[Space::<P>::pages(va, 16)]);
    p.check_memory();
    Outcome::Passed
}

pub(super) fn exclusive<P: Platform>(p: &P) -> Outcome {
    let Some(mut space) = Space::new(p, 32) else {
        return Outcome::Skipped("no memory for a page table");
    };
    let va = p.window();
    let range = Space::<P>::pages(va, 4);
    let mut pieces = [(0, PhysAddr(0)); 4];
    for piece in &mut pieces {
        match space.memory(Level::PTE) {
            Some(memory) => *piece = memory,
            None => panic!("no memory for four pages"),
        }
        space.findings.check(space.ledger.put_out(piece.0, 0, 1));
    }
    {
        let ops = space.exclusive();
        let leaf = |n: usize| Leaf::new(pieces[n].1, RW, Mapping::Ordinary);
        assert_eq!(ops.map_each::<Pte>(va, 4, leaf), Ok(()));
        let mut gather = ops.gather(flagstone_pgtable::NotOwned);
        let half = VirtRange::new(va.0, range.len.0 / 2);
        assert_eq!(ops.protect(half, RO, &mut gather), Ok(()));
        gather.finish();
    }
    space.run(1, &|_| {
        for (n, (_, at)) in pieces.iter().enumerate() {
            space.assert_reads(space.at(n), *at);
            assert_eq!(space.write(space.at(n)).is_ok(), n >= 2);
        }
    });
    // CPUs may use it meanwhile: they are told.
    p.run(1, &|_| space.enter());
    {
        let ops = space.exclusive();
        let mut gather = ops.gather(flagstone_pgtable::NotOwned);
        assert_eq!(ops.protect(range, RO, &mut gather), Ok(()));
        gather.finish();
    }
    p.check_settled(space.table(), range);
    p.run(1, &|_| {
        for n in 0..4 {
            assert!(space.write(space.at(n)).is_err() && space.read(space.at(n)).is_ok());
        }
    });
    p.run(1, &|_| space.leave());
    space.end(&[range]);
    p.check_memory();
    Outcome::Passed
}
