//! Operations on one entry, and owners who do not ask for accessed and dirty.

use super::*;
use crate::format::{Entry, Level, X86_64};
use crate::{Error, Pmd, Pte, UseUnasked};
use flagstone_types::VirtAddr;

const BASE: VirtAddr = VirtAddr(0x7f00_0000_0000);
const PAGE: VirtRange = VirtRange::new(BASE.0, 4096);

#[test]
fn one_entry_is_invalidated_by_itself_and_at_once() {
    with_table::<X86_64, 12>(ALL, |table, unit| {
        let ops = table.shared();
        ops.map_one::<Pte>(BASE, &leaf(0x5000, RW)).unwrap();
        assert_eq!(table.table_count(), 4, "tables are made");
        assert!(unit.take().is_empty(), "nothing was there");
        ops.protect_one::<Pte>(BASE, RO).unwrap();
        let [shot] = unit.take()[..] else { panic!() };
        assert_eq!((shot.start, shot.end.0), (BASE, BASE.0 + 4096));
        assert!(!shot.tables);
        ops.protect_one::<Pte>(BASE, RO).unwrap();
        assert!(unit.take().is_empty(), "nothing has changed");
        ops.protect_one::<Pte>(BASE, RW).unwrap();
        assert!(unit.take().is_empty(), "a fault drops what allows less");
        let taken = ops.unmap_one::<Pte>(BASE).unwrap();
        assert!(matches!(taken.decode(), Entry::Leaf(leaf) if leaf.at.0 == 0x5000));
        assert_eq!(unit.take().len(), 1);
        assert!(ops.unmap_one::<Pte>(BASE).unwrap().is_none());
        assert!(unit.take().is_empty());
    });
}

#[test]
fn one_entry_is_invalidated_with_everything_beside_a_gather() {
    with_table::<X86_64, 12>(ALL, |table, unit| {
        let ops = table.shared();
        ops.map_one::<Pte>(BASE, &leaf(0x5000, RW)).unwrap();
        let mut gather = ops.gather(NoOwner {});
        ops.protect(PAGE, RO, &mut gather).unwrap();
        ops.protect_one::<Pte>(BASE, RO).unwrap();
        let [shot] = unit.take()[..] else { panic!() };
        assert_eq!(shot.end.0, usize::MAX, "the gather has not invalidated yet");
        ops.unmap(PAGE, &mut gather).unwrap();
        ops.free_tables(PAGE, &mut gather).unwrap();
        assert!(ops.unmap_one::<Pte>(BASE).unwrap().is_none());
        assert_eq!(unit.take().len(), 1, "nor now, where the table has gone");
        gather.finish();
    });
}

#[test]
fn what_is_wrong_with_one_entry_is_said_and_changes_nothing() {
    with_table::<X86_64, 12>(ALL, |table, unit| {
        let ops = table.shared();
        let page = leaf(0x5000, RW);
        let odd = VirtAddr(BASE.0 + 8);
        let high = VirtAddr(1 << 60);
        assert!(matches!(
            ops.map_one::<Pte>(odd, &page),
            Err(Error::Misaligned { .. })
        ));
        assert_eq!(
            ops.map_one::<Pte>(high, &page),
            Err(Error::NotCanonical(high))
        );
        assert_eq!(
            ops.unmap_one::<Pte>(high).unwrap_err(),
            Error::NotCanonical(high)
        );
        assert_eq!(ops.physical(high), None);
        let far = leaf(1 << 50, RW);
        assert_eq!(
            ops.map_one::<Pte>(BASE, &far),
            Err(Error::BeyondPhysical(far.at))
        );
        let level = Level::P4D;
        assert_eq!(
            ops.unmap_one::<crate::P4d>(VirtAddr(0)).unwrap_err(),
            Error::NoSuchEntry(level)
        );
        ops.map_one::<Pmd>(BASE, &leaf(0x20_0000, RW)).unwrap();
        assert!(matches!(
            ops.map_one::<Pte>(BASE, &page),
            Err(Error::Occupied { .. })
        ));
        assert!(matches!(
            ops.protect_one::<Pte>(BASE, RO),
            Err(Error::CutsHuge { .. })
        ));
        assert_eq!(ops.physical(odd), Some(PhysAddr(0x20_0008)));
        assert!(unit.take().is_empty());
        ops.unmap_one::<Pmd>(BASE).unwrap();
        ops.map_one::<Pte>(BASE, &page).unwrap();
        unit.take();
        assert!(matches!(
            ops.unmap_one::<Pmd>(BASE),
            Err(Error::Occupied { .. })
        ));
        assert!(unit.take().is_empty());
        ops.unmap_one::<Pte>(BASE).unwrap();
    });
}

#[test]
fn the_exclusive_form_invalidates_where_a_cpu_uses_the_table() {
    with_table::<X86_64, 12>(ALL, |table, unit| {
        let ops = table.exclusive();
        ops.map_one::<Pte>(BASE, &leaf(0x5000, RW)).unwrap();
        ops.protect_one::<Pte>(BASE, RO).unwrap();
        ops.unmap_one::<Pte>(BASE).unwrap();
        assert_eq!(unit.take().len(), 2);
        // SAFETY: T6: there is no unit.
        unsafe { table.leave(flagstone_types::CpuId(0)) };
        let ops = table.exclusive();
        ops.map_one::<Pte>(BASE, &leaf(0x5000, RW)).unwrap();
        ops.protect_one::<Pte>(BASE, RO).unwrap();
        ops.unmap_one::<Pte>(BASE).unwrap();
        assert!(unit.take().is_empty());
    });
}

#[test]
fn a_stray_dirty_bit_of_one_entry_is_not_lost() {
    let caps = flagstone_host::MmuCaps {
        stray_dirty: true,
        ..ALL
    };
    with_table::<X86_64, 12>(caps, |table, unit| {
        let ops = table.shared();
        ops.map_one::<Pte>(BASE, &leaf(0x5000, RW)).unwrap();
        let mut at = table.root();
        for _ in 0..3 {
            // The first entry of a table is that of the lowest addresses, and `BASE` is at 254 of the root.
            let index = if at == table.root() { 254 } else { 0 };
            // SAFETY: a table of this page table, which nobody changes.
            let raw = unsafe {
                flagstone_host::TableMemory::load_entry(
                    &table.frames().host(),
                    PhysAddr(at.0 + 8 * index),
                )
            };
            at = PhysAddr(raw & 0x000f_ffff_ffff_f000);
        }
        unit.stray.lock().unwrap().push((at, 1 << 6));
        let taken = ops.unmap_one::<Pte>(BASE).unwrap();
        assert!(
            matches!(taken.decode(), Entry::Leaf(leaf) if leaf.marks().contains(Marks::DIRTY)),
            "{taken:?}"
        );
        assert!(ops.unmap_one::<Pte>(BASE).unwrap().is_none());
    });
}

#[test]
fn an_owner_who_does_not_ask_gets_the_same_leaves() {
    with_table::<X86_64, 12>(ALL, |table, unit| {
        let ops = table.shared();
        ops.map::<Pte>(BASE, &leaf(0x10_0000, RW), 64).unwrap();
        let range = VirtRange::new(BASE.0, 64 << 12);
        let mut books = Books::default();
        let mut gather = ops.gather(UseUnasked(&mut books));
        ops.protect(range, RO, &mut gather).unwrap();
        let found = ops.lookup(BASE).unwrap().leaf().unwrap();
        assert_eq!(found.access(), RO);
        ops.unmap(range, &mut gather).unwrap();
        gather.finish();
        assert_eq!(unit.take().len(), 1);
        let [taken] = books.0[..] else { panic!() };
        assert_eq!(taken.pages, 64);
        assert_eq!(taken.leaf::<X86_64>(0).unwrap().at.0, 0x10_0000);
    });
}
