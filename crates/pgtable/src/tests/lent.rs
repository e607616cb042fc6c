//! One kernel half for several page tables; and working on the entries of one locked table.

use super::*;
use crate::format::{Entry, X86_64};
use crate::{Become, Error, Pmd, Pte};
use flagstone_types::VirtAddr;

#[test]
fn what_is_mapped_later_in_a_lent_half_is_found_through_every_borrower() {
    with_table::<X86_64, 12>(ALL, |kernel, _| {
        kernel.lend_upper_half().unwrap();
        let lower = Params {
            reach: Reach::Lower,
            ..params()
        };
        let mut user = PageTable::<_, X86_64>::new(kernel.frames(), lower).unwrap();
        // SAFETY: `user` is dropped first; there is no unit.
        unsafe { user.borrow_upper_half(kernel).unwrap() };
        let at = VirtAddr(0xffff_c900_0000_0000);
        kernel
            .shared()
            .map::<Pte>(at, &leaf(0x5000, RW), 1)
            .unwrap();
        let host = kernel.frames().host();
        // SAFETY: the tables stay.
        let read = |at| Some(unsafe { flagstone_host::TableMemory::load_entry(&host, at) });
        let ranges = crate::dump::Ranges::<X86_64, _>::new(user.root(), Reach::Whole, read);
        assert_eq!(ranges.map(|r| r.start).collect::<Vec<_>>(), [at]);
        assert_eq!(user.shared().lookup(at), Err(Error::NotCanonical(at)));
        unmap(&kernel.shared(), VirtRange::new(at.0, 4096));
        let mut gather = kernel.shared().gather(NoOwner {});
        kernel
            .shared()
            .free_tables(VirtRange::new(1 << 63 | 0x7fff << 48, 1 << 47), &mut gather)
            .unwrap_err();
        kernel
            .shared()
            .free_tables(VirtRange::new(usize::MAX << 47, 1 << 47), &mut gather)
            .unwrap();
        gather.finish();
        assert_eq!(
            kernel.table_count(),
            257,
            "the tables that the root names stay"
        );
        assert_eq!(user.table_count(), 1);
    });
}

#[test]
fn a_locked_table_can_be_worked_on_entry_by_entry() {
    with_table::<X86_64, 12>(ALL, |table, unit| {
        let ops = table.shared();
        assert!(matches!(
            ops.lock_entries::<Pte>(VirtAddr(0x1000)),
            Err(Error::NotMapped(_))
        ));
        ops.map::<Pte>(VirtAddr(0x1000), &leaf(0, RW), 3).unwrap();
        unit.take();
        let mut gather = ops.gather(NoOwner {});
        let mut guard = ops.lock_entries::<Pte>(VirtAddr(0x2000)).unwrap();
        assert_eq!(
            (
                guard.start(),
                guard.index(VirtAddr(0x3000)),
                guard.index(VirtAddr(1 << 30))
            ),
            (VirtAddr(0), Some(3), None)
        );
        assert_eq!(guard.entry(0), Ok(Entry::None));
        assert_eq!(guard.entry(512), Err(Error::BadLength(512)));
        for index in 1..4 {
            guard
                .replace(index, &mut gather, |old| match old {
                    Entry::Leaf(leaf) => Become::Leaf(leaf.wrprotect()),
                    _ => Become::Same,
                })
                .unwrap();
        }
        drop(guard);
        gather.finish();
        assert_eq!(unit.take()[0].steps(), 3);
        unmap(&ops, VirtRange::new(0x1000, 0x3000));
        ops.map::<Pmd>(VirtAddr(4 << 20), &leaf(0, RW), 1).unwrap();
        assert!(matches!(
            ops.lock_entries::<Pte>(VirtAddr(4 << 20)),
            Err(Error::Occupied { .. })
        ));
        unmap(&ops, VirtRange::new(4 << 20, 2 << 20));
    });
}

#[test]
fn without_memory_nothing_is_split_or_retracted() {
    with_table::<X86_64, 12>(ALL, |table, unit| {
        let ops = table.shared();
        ops.map::<Pmd>(VirtAddr(0), &leaf(0, RW), 1).unwrap();
        ops.map::<Pte>(VirtAddr(4 << 20), &leaf(0, RW), 5).unwrap();
        let frames = table.frames();
        let mut held = Vec::new();
        while let Ok(block) = frames.alloc_pages(Gfp::NOWAIT, flagstone_types::Order::ZERO, None) {
            held.push(block);
        }
        unit.take();
        assert!(matches!(ops.split(VirtAddr(0)), Err(Error::NoTable(_))));
        let mut gather = ops.gather(NoOwner {});
        assert!(matches!(
            ops.retract(VirtAddr(4 << 20), &mut gather),
            Err(Error::NoTable(_))
        ));
        gather.finish();
        assert!(unit.take().is_empty());
        assert_eq!(ops.lookup(VirtAddr(0)).unwrap().leaf(), Some(leaf(0, RW)));
        assert_eq!(
            ops.lookup(VirtAddr((4 << 20) + 0x4000)).unwrap().leaf(),
            Some(leaf(0x4000, RW))
        );
        held.into_iter().for_each(|block| frames.free_pages(block));
        unmap(&ops, VirtRange::new(0, 8 << 20));
    });
}
