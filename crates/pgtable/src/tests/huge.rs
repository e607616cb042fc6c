//! Splitting, collapsing, retracting, replacing.

use super::*;
use crate::format::{
    Absent, Arm64K4, Arm64K64, Entry, Level, Ppc64K64, Riscv64Sv48, X86_64, X86Pae,
};
use crate::level::TableLevel;
use crate::span::reach_of;
use crate::{Become, Error, Pmd, Pte, Pud};
use flagstone_types::VirtAddr;

fn splits_and_collapses<F: Format, const SHIFT: u32, L: TableLevel>(base: usize) {
    with_table::<F, SHIFT>(ALL, |table, unit| {
        let ops = table.shared();
        let (huge, page) = (reach_of::<F>(L::LEVEL), reach_of::<F>(L::Below::LEVEL));
        let first = leaf(huge * 3, RW).mark(Marks::YOUNG | Marks::DIRTY);
        ops.map::<L>(VirtAddr(base), &first, 1).unwrap();
        unit.take();
        let middle = VirtAddr(base + 5 * page as usize);
        ops.split_at(middle).unwrap();
        assert_eq!(unit.take().len(), 1, "once, while nothing is there");
        let part = ops.lookup(middle).unwrap();
        assert_eq!(
            (part.level, part.leaf()),
            (
                L::Below::LEVEL,
                Some(first.moved(PhysAddr(huge * 3 + 5 * page)))
            )
        );
        let whole = VirtRange::new(base, huge as usize);
        let mut gather = ops.gather(NoOwner {});
        ops.set_marks(
            whole,
            Marks::empty(),
            Marks::YOUNG | Marks::DIRTY,
            &mut gather,
        )
        .unwrap();
        ops.set_marks(
            VirtRange::new(middle.0, page as usize),
            Marks::DIRTY,
            Marks::empty(),
            &mut gather,
        )
        .unwrap();
        ops.protect(VirtRange::new(middle.0, page as usize), RO, &mut gather)
            .unwrap();
        gather.finish();
        assert_eq!(
            ops.collapse::<L>(VirtAddr(base)),
            Err(Error::NotUniform(middle))
        );
        let mut gather = ops.gather(NoOwner {});
        ops.protect(whole, RO, &mut gather).unwrap();
        gather.finish();
        unit.take();
        let tables = table.table_count();
        ops.collapse::<L>(VirtAddr(base)).unwrap();
        assert_eq!((unit.take().len(), table.table_count()), (1, tables - 1));
        let found = ops.lookup(middle).unwrap();
        let expected = leaf(huge * 3, RO).mark(Marks::DIRTY);
        assert_eq!(
            (found.at, found.level, found.leaf()),
            (VirtAddr(base), L::LEVEL, Some(expected))
        );
        ops.collapse::<L>(VirtAddr(base)).unwrap();
        let taken = unmap(&ops, whole);
        assert_eq!(taken.len(), 1);
        assert_eq!(
            ops.split(VirtAddr(base)),
            Err(Error::NotMapped(VirtAddr(base)))
        );
    });
}

#[test]
fn a_huge_leaf_splits_into_what_it_said_and_comes_back() {
    splits_and_collapses::<X86_64, 12, Pmd>(0x7f00_0000_0000);
    splits_and_collapses::<X86_64, 12, Pud>(0x7f00_0000_0000);
    splits_and_collapses::<X86Pae, 12, Pmd>(0x4000_0000);
    splits_and_collapses::<Arm64K4, 12, Pmd>(0x7f00_0000_0000);
    splits_and_collapses::<Arm64K64, 16, Pmd>(0x7e00_0000_0000);
    splits_and_collapses::<Ppc64K64, 16, Pmd>(0x7f00_0000_0000);
    splits_and_collapses::<Riscv64Sv48, 12, Pud>(0x7f00_0000_0000);
}

#[test]
fn a_split_in_place_is_for_architectures_that_allow_it() {
    with_table::<X86_64, 12>(ALL, |table, unit| {
        let ops = table.shared();
        ops.map::<Pmd>(VirtAddr(0), &leaf(0x20_0000, RW), 1)
            .unwrap();
        ops.split_in_place(VirtAddr(0x3000)).unwrap();
        assert_eq!(unit.take().len(), 1);
        assert_eq!(
            ops.lookup(VirtAddr(0x3000)).unwrap().leaf(),
            Some(leaf(0x20_3000, RW))
        );
        unmap(&ops, VirtRange::new(0, 2 << 20));
    });
    with_table::<Arm64K4, 12>(ALL, |table, _| {
        let ops = table.shared();
        ops.map::<Pmd>(VirtAddr(0), &leaf(0x20_0000, RW), 1)
            .unwrap();
        assert_eq!(
            ops.split_in_place(VirtAddr(0)),
            Err(Error::NoSuchEntry(Level::PMD))
        );
        unmap(&ops, VirtRange::new(0, 2 << 20));
    });
}

#[test]
fn a_retracted_table_goes_with_all_its_leaves() {
    with_table::<X86_64, 12>(ALL, |table, unit| {
        let ops = table.shared();
        ops.map_each::<Pte>(VirtAddr(0x3000), 500, |n| {
            leaf((n as u64 * 7919 % 512) << 12, RW)
        })
        .unwrap();
        let tables = table.table_count();
        let mut books = Books::default();
        let mut gather = ops.gather(&mut books);
        ops.retract(VirtAddr(0), &mut gather).unwrap();
        assert_eq!(table.table_count(), tables - 1);
        ops.retract(VirtAddr(0), &mut gather).unwrap();
        gather.finish();
        assert_eq!(books.0.iter().map(|t| t.pages).sum::<usize>(), 500);
        let shot = unit.take();
        assert!(shot.len() == 1 && shot[0].tables);
        ops.map::<Pmd>(VirtAddr(0), &leaf(0, RW), 1).unwrap();
        let mut gather = ops.gather(NoOwner {});
        assert!(matches!(
            ops.retract(VirtAddr(0), &mut gather),
            Err(Error::Occupied { .. })
        ));
        gather.finish();
        unmap(&ops, VirtRange::new(0, 2 << 20));
    });
}

fn replaces<F: Format, const SHIFT: u32>(breaks: bool) {
    with_table::<F, SHIFT>(ALL, |table, unit| {
        let ops = table.shared();
        let page = reach_of::<F>(Level::PTE);
        let at = VirtAddr(16 * page as usize);
        let mut gather = ops.gather(NoOwner {});
        assert_eq!(
            ops.replace::<Pte, _>(at, &mut gather, |_| Become::Same),
            Err(Error::NotMapped(at))
        );
        ops.map::<Pte>(at, &leaf(0, RW), 1).unwrap();
        unit.take();
        let old = ops.replace::<Pte, _>(at, &mut gather, |old| {
            assert!(matches!(old, Entry::Leaf(_)));
            Become::Leaf(leaf(7 * page, RW))
        });
        assert_eq!(old, Ok(Entry::Leaf(leaf(0, RW))));
        assert_eq!(
            unit.take().len(),
            usize::from(breaks),
            "before the new one is there, if at all"
        );
        let away = Absent::Swap {
            area: 1,
            offset: 5,
            exclusive: false,
            marks: Marks::empty(),
        };
        ops.replace::<Pte, _>(at, &mut gather, |_| Become::Absent(away))
            .unwrap();
        gather.finish();
        assert_eq!(unit.take().len(), 1);
        assert_eq!(ops.lookup(at).unwrap().entry, Entry::Absent(away));
        let taken = unmap(&ops, VirtRange::new(at.0, page as usize));
        assert!(
            unit.take().is_empty(),
            "nothing was cached of what was absent"
        );
        assert_eq!((taken.len(), taken[0].entry), (1, Entry::Absent(away)));
    });
}

#[test]
fn an_entry_is_replaced_under_its_lock() {
    replaces::<X86_64, 12>(false);
    replaces::<X86Pae, 12>(false);
    replaces::<Arm64K4, 12>(true);
    replaces::<Arm64K64, 16>(true);
    replaces::<Ppc64K64, 16>(false);
}

#[test]
fn where_entries_are_broken_first_a_map_waits_for_no_gather() {
    with_table::<Arm64K4, 12>(ALL, |table, unit| {
        let ops = table.shared();
        ops.map::<Pte>(VirtAddr(0), &leaf(0, RW), 1).unwrap();
        let mut gather = ops.gather(NoOwner {});
        ops.unmap(VirtRange::new(0, 4096), &mut gather).unwrap();
        assert!(unit.take().is_empty());
        ops.map::<Pte>(VirtAddr(0), &leaf(0x5000, RW), 1).unwrap();
        assert_eq!(
            unit.take().len(),
            1,
            "the old translation is gone before the new one is there"
        );
        gather.finish();
        unmap(&ops, VirtRange::new(0, 4096));
    });
}
