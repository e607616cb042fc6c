//! One behaviour each, on x86-64.

use super::*;
use crate::format::{Entry, Level, X86_64};
use crate::{Error, Pmd, Pte, Pud};
use flagstone_host::{Count, Event};
use flagstone_types::VirtAddr;

const BASE: usize = 0x7f00_0000_0000;

#[test]
fn what_is_mapped_is_found_and_goes_to_its_owner() {
    with_table::<X86_64, 12>(ALL, |table, unit| {
        let ops = table.shared();
        ops.map::<Pte>(VirtAddr(BASE), &leaf(0x10_0000, RW), 512)
            .unwrap();
        let found = ops.lookup(VirtAddr(BASE + 0x5123)).unwrap();
        assert_eq!(
            found.physical(VirtAddr(BASE + 0x5123)),
            Some(PhysAddr(0x10_5123))
        );
        assert_eq!(table.table_count(), 4);
        let mut books = Books::default();
        let mut gather = ops.gather(&mut books);
        ops.unmap(VirtRange::new(BASE, 512 << 12), &mut gather)
            .unwrap();
        assert_eq!(ops.lookup(VirtAddr(BASE)).unwrap().entry, Entry::None);
        ops.free_tables(VirtRange::new(BASE, 512 << 12), &mut gather)
            .unwrap();
        assert!(
            unit.take().is_empty(),
            "nothing was invalidated before the end"
        );
        gather.finish();
        assert_eq!(
            unit.take().len(),
            1,
            "one invalidation for 512 pages and three tables"
        );
        let [taken] = books.0[..] else {
            panic!("{:?}", books.0)
        };
        assert_eq!(
            (taken.at, taken.pages, taken.level),
            (VirtAddr(BASE), 512, Level::PTE)
        );
        assert_eq!(table.table_count(), 1);
    });
}

#[test]
fn scattered_frames_take_one_invalidation_too() {
    with_table::<X86_64, 12>(ALL, |table, unit| {
        let ops = table.shared();
        ops.map_each::<Pte>(VirtAddr(BASE), 512, |n| {
            leaf((n as u64 * 7919 % 512) << 12, RW)
        })
        .unwrap();
        let taken = unmap(&ops, VirtRange::new(BASE, 512 << 12));
        assert_eq!(taken.iter().map(|t| t.pages).sum::<usize>(), 512);
        assert_eq!(unit.take().len(), 1);
    });
}

#[test]
fn protection_of_a_huge_leaf_takes_one_invalidation_and_wider_access_none() {
    with_table::<X86_64, 12>(ALL, |table, unit| {
        let ops = table.shared();
        let huge = VirtRange::new(BASE, 2 << 20);
        ops.map::<Pmd>(VirtAddr(BASE), &leaf(0x20_0000, RW), 1)
            .unwrap();
        let mut gather = ops.gather(NoOwner {});
        ops.protect(huge, RO, &mut gather).unwrap();
        gather.finish();
        let shot = unit.take();
        assert_eq!(shot.len(), 1);
        assert_eq!(
            (shot[0].stride, shot[0].tables, shot[0].steps()),
            (21, false, 1)
        );
        let mut gather = ops.gather(NoOwner {});
        ops.protect(huge, RW, &mut gather).unwrap();
        gather.finish();
        assert!(unit.take().is_empty());
    });
}

#[test]
fn bad_arguments_are_named_and_change_nothing() {
    with_table::<X86_64, 12>(ALL, |table, _| {
        let ops = table.shared();
        let map = |at, to, n| {
            ops.map::<Pte>(VirtAddr(at), &leaf(to, RW), n)
                .unwrap_err()
                .error
        };
        assert_eq!(
            map(BASE + 1, 0, 1),
            Error::Misaligned {
                value: BASE as u64 + 1,
                shift: 12
            }
        );
        assert_eq!(
            map(BASE, 0x800, 1),
            Error::Misaligned {
                value: 0x800,
                shift: 12
            }
        );
        assert_eq!(map(1 << 47, 0, 1), Error::NotCanonical(VirtAddr(1 << 47)));
        assert_eq!(
            map((1 << 47) - 4096, 0, 2),
            Error::NotCanonical(VirtAddr((1 << 47) + 4095))
        );
        assert_eq!(map(BASE, 0, 0), Error::BadLength(0));
        assert_eq!(
            map(BASE, 1 << 46, 1),
            Error::BeyondPhysical(PhysAddr(1 << 46))
        );
        assert_eq!(
            map(BASE, (1 << 46) - 4096, 2),
            Error::BeyondPhysical(PhysAddr((1 << 46) - 4096))
        );
        assert_eq!(table.table_count(), 1);
        ops.map::<Pmd>(VirtAddr(BASE), &leaf(0, RW), 1).unwrap();
        let mut gather = ops.gather(NoOwner {});
        let cut = Error::CutsHuge {
            at: VirtAddr(BASE),
            level: Level::PMD,
        };
        assert_eq!(
            ops.unmap(VirtRange::new(BASE + 4096, 4 << 20), &mut gather),
            Err(cut)
        );
        assert_eq!(
            ops.unmap(VirtRange::new(BASE - 4096, 8192), &mut gather),
            Err(cut)
        );
        gather.finish();
        assert!(matches!(
            map(BASE + 0x3000, 0, 1),
            Error::Occupied {
                level: Level::PMD,
                ..
            }
        ));
        let many = ops
            .map::<Pmd>(VirtAddr(BASE - (6 << 20)), &leaf(0, RW), 8)
            .unwrap_err();
        assert!(matches!(many.error, Error::Occupied { .. }) && many.mapped == 0);
        assert_eq!(
            unmap(&ops, VirtRange::new(BASE - (8 << 20), 32 << 20)).len(),
            1
        );
    });
}

#[test]
fn the_last_page_of_the_address_space_can_be_used() {
    with_table::<X86_64, 12>(ALL, |table, unit| {
        let ops = table.shared();
        let top = usize::MAX - 0xfff;
        ops.map::<Pte>(VirtAddr(top), &leaf(0x3000, RW), 1).unwrap();
        assert_eq!(ops.lookup(VirtAddr(usize::MAX)).unwrap().at, VirtAddr(top));
        assert_eq!(unmap(&ops, VirtRange::new(top, 4096)).len(), 1);
        assert_eq!(unit.take()[0].end, VirtAddr(usize::MAX));
    });
}

#[test]
fn running_out_of_memory_at_any_point_changes_nothing() {
    for spare in 0..12 {
        with_table::<X86_64, 12>(ALL, |table, _| {
            let frames = table.frames();
            let mut held = Vec::new();
            let order = flagstone_types::Order::ZERO;
            while let Ok(block) = frames.alloc_pages(Gfp::NOWAIT, order, None) {
                held.push(block);
            }
            for _ in 0..spare {
                frames.free_pages(held.pop().unwrap());
            }
            let count = || {
                let mut left = Vec::new();
                while let Ok(block) = frames.alloc_pages(Gfp::NOWAIT, order, None) {
                    left.push(block);
                }
                let n = left.len();
                left.into_iter().for_each(|block| frames.free_pages(block));
                n
            };
            let ops = table.shared();
            // Across the borders of two 512 GiB regions: 2 + 2 + 2 tables.
            let at = VirtAddr((1 << 39) - 0x2000);
            let result = ops.map::<Pte>(at, &leaf(0, RW), 4);
            if spare < 6 {
                assert!(matches!(result.unwrap_err().error, Error::NoTable(_)));
                assert_eq!((table.table_count(), count()), (1, spare));
            } else {
                result.unwrap();
                assert_eq!((table.table_count(), count()), (7, spare - 6));
                unmap(&ops, VirtRange::new(at.0, 4 << 12));
            }
            held.into_iter().for_each(|block| frames.free_pages(block));
        });
    }
}

#[test]
fn an_owner_gets_everything_even_without_memory_for_batches() {
    with_table::<X86_64, 12>(ALL, |table, unit| {
        let ops = table.shared();
        ops.map_each::<Pte>(VirtAddr(BASE), 512, |n| {
            leaf((n as u64 * 7919 % 512) << 12, RW)
        })
        .unwrap();
        let frames = table.frames();
        let mut held = Vec::new();
        while let Ok(block) = frames.alloc_pages(Gfp::NOWAIT, flagstone_types::Order::ZERO, None) {
            held.push(block);
        }
        let taken = unmap(&ops, VirtRange::new(BASE, 512 << 12));
        assert_eq!(taken.iter().map(|t| t.pages).sum::<usize>(), 512);
        assert!(unit.take().len() > 1);
        held.into_iter().for_each(|block| frames.free_pages(block));
    });
}

#[test]
fn a_gather_that_sees_another_invalidates_everything() {
    with_table::<X86_64, 12>(ALL, |table, unit| {
        let ops = table.shared();
        ops.map::<Pte>(VirtAddr(BASE), &leaf(0, RW), 2).unwrap();
        let mut first = ops.gather(NoOwner {});
        ops.unmap(VirtRange::new(BASE, 4096), &mut first).unwrap();
        let second = ops.gather(NoOwner {});
        second.finish();
        let all = unit.take();
        assert_eq!((all.len(), all[0].steps() > 1 << 40), (1, false));
        assert_eq!(all[0].end, VirtAddr(usize::MAX));
        first.finish();
        assert_eq!(unit.take()[0].steps(), 1);
    });
}

#[test]
fn a_gather_that_is_dropped_is_reported_and_finished() {
    with_table::<X86_64, 12>(ALL, |table, unit| {
        let ops = table.shared();
        ops.map::<Pte>(VirtAddr(BASE), &leaf(0, RW), 1).unwrap();
        let mut gather = ops.gather(NoOwner {});
        ops.unmap(VirtRange::new(BASE, 4096), &mut gather).unwrap();
        drop(gather);
        assert_eq!(unit.take().len(), 1);
        let messages = table.frames().host().machine.messages();
        assert!(
            messages.iter().any(|(_, text)| text.contains("mapping.rs")),
            "{messages:?}"
        );
    });
}

#[test]
fn young_and_dirty_are_told_and_cleared() {
    with_table::<X86_64, 12>(ALL, |table, unit| {
        let ops = table.shared();
        let young = |n: usize| {
            leaf((n as u64) << 12, RW).mark(if n.is_multiple_of(3) {
                Marks::YOUNG
            } else {
                Marks::empty()
            })
        };
        ops.map_each::<Pte>(VirtAddr(BASE), 9, young).unwrap();
        let range = VirtRange::new(BASE, 9 << 12);
        let mut seen = Vec::new();
        assert_eq!(
            ops.test_and_clear_young(range, |at, _, _| seen.push((at.0 - BASE) >> 12)),
            Ok(3)
        );
        assert_eq!(seen, [0, 3, 6]);
        assert_eq!(ops.test_and_clear_young(range, |_, _, _| {}), Ok(0));
        assert_eq!(ops.skim_young(range, |_, _, _| {}), Ok(0));
        assert!(unit.take().is_empty());
        let mut gather = ops.gather(NoOwner {});
        ops.set_marks(
            range,
            Marks::DIRTY | Marks::SOFT_DIRTY,
            Marks::empty(),
            &mut gather,
        )
        .unwrap();
        gather.finish();
        assert!(unit.take().is_empty(), "more dirty needs no invalidation");
        let mut gather = ops.gather(NoOwner {});
        ops.set_marks(range, Marks::empty(), Marks::DIRTY, &mut gather)
            .unwrap();
        gather.finish();
        assert_eq!(unit.take().len(), 1, "a store must set it again");
        unmap(&ops, range);
    });
}

#[test]
fn access_can_be_taken_and_given_back() {
    with_table::<X86_64, 12>(ALL, |table, unit| {
        let ops = table.shared();
        let range = VirtRange::new(BASE, 4 << 12);
        ops.map::<Pte>(VirtAddr(BASE), &leaf(0x4000, RW).mark(Marks::DIRTY), 4)
            .unwrap();
        let change = |access| {
            let mut gather = ops.gather(NoOwner {});
            ops.protect(range, access, &mut gather).unwrap();
            gather.finish();
            (
                ops.lookup(VirtAddr(BASE)).unwrap().leaf().unwrap(),
                unit.take().len(),
            )
        };
        let (none, flushes) = change(Access::empty());
        assert!(none.marks().contains(Marks::NO_ACCESS | Marks::DIRTY) && flushes == 1);
        let (back, flushes) = change(RW);
        assert!(!back.marks().contains(Marks::NO_ACCESS) && flushes == 0);
        assert_eq!((back.at, back.access()), (PhysAddr(0x4000), RW));
        unmap(&ops, range);
    });
}

#[test]
fn a_unit_that_sets_dirty_late_takes_two_invalidations() {
    let caps = MmuCaps {
        stray_dirty: true,
        ..ALL
    };
    with_table::<X86_64, 12>(caps, |table, unit| {
        let ops = table.shared();
        ops.map::<Pmd>(VirtAddr(BASE), &leaf(0x20_0000, RW), 1)
            .unwrap();
        let range = VirtRange::new(BASE, 2 << 20);
        let slot = {
            // The entry is the only one of its table.
            let host = table.frames().host();
            let mut at = table.root();
            for shift in [39, 30] {
                // SAFETY: the tables are there.
                let raw = unsafe {
                    flagstone_host::TableMemory::load_entry(
                        &host,
                        PhysAddr(at.0 + ((BASE >> shift & 511) * 8) as u64),
                    )
                };
                at = PhysAddr(raw & 0xf_ffff_ffff_f000);
            }
            PhysAddr(at.0 + ((BASE >> 21 & 511) * 8) as u64)
        };
        unit.stray.lock().unwrap().push((slot, 1 << 6));
        let mut gather = ops.gather(NoOwner {});
        ops.protect(range, RO, &mut gather).unwrap();
        gather.finish();
        assert_eq!(unit.take().len(), 2);
        let now = ops.lookup(VirtAddr(BASE)).unwrap().leaf().unwrap();
        assert!(
            now.marks().contains(Marks::DIRTY)
                && now.access() == RO
                && !now.marks().contains(Marks::SHADOW)
        );
        unit.stray.lock().unwrap().push((slot, 1 << 5));
        let taken = unmap(&ops, range);
        assert!(matches!(taken[0].entry, Entry::Leaf(leaf) if leaf.marks().contains(Marks::YOUNG)));
        assert_eq!(ops.lookup(VirtAddr(BASE)).unwrap().entry, Entry::None);
    });
}

#[test]
fn the_exclusive_form_does_the_same() {
    with_table::<X86_64, 12>(ALL, |table, unit| {
        let host = table.frames().host();
        host.machine.reset_lock_stats();
        let ops = table.exclusive();
        ops.map::<Pud>(VirtAddr(1 << 30), &leaf(1 << 30, RW), 2)
            .unwrap();
        ops.map::<Pte>(VirtAddr(BASE), &leaf(0, RW), 700).unwrap();
        let mut books = Books::default();
        let mut gather = ops.gather(&mut books);
        ops.unmap(VirtRange::new(0, 1 << 46), &mut gather).unwrap();
        ops.unmap(VirtRange::new(1 << 46, 1 << 46), &mut gather)
            .unwrap();
        ops.free_tables(VirtRange::new(0, 1 << 47), &mut gather)
            .unwrap();
        gather.finish();
        assert_eq!(books.0.iter().map(|t| t.pages).sum::<usize>(), 702);
        assert_eq!(unit.take().len(), 1);
        assert_eq!(table.table_count(), 1);
        assert!(
            host.machine
                .lock_stats()
                .iter()
                .all(|s| !s.name.starts_with("table"))
        );
        assert_eq!(
            host.counted(Event::PgtableLink),
            host.counted(Event::PgtableUnlink)
        );
    });
}

#[test]
fn a_hypervisor_writes_what_names_tables() {
    let caps = MmuCaps {
        paravirtual: true,
        ..ALL
    };
    with_table::<X86_64, 12>(caps, |table, unit| {
        let ops = table.shared();
        ops.map::<Pte>(VirtAddr(BASE), &leaf(0, RW), 4).unwrap();
        assert_eq!(unit.written.load(core::sync::atomic::Ordering::Relaxed), 3);
        assert!(!ops.can_skip_tables());
        assert!(!table.has_leaf(Level::PMD) && !table.has_leaf(Level::PUD));
        unmap(&ops, VirtRange::new(BASE, 4 << 12));
    });
}

#[test]
fn a_shadow_stack_stays_one_and_can_not_be_copied_elsewhere() {
    with_table::<X86_64, 12>(ALL, |table, _| {
        let ops = table.shared();
        // SAFETY: there is no unit; the page is nobody's.
        let token = unsafe { crate::shadow::ShadowStack::of_mapping(&()) };
        let stack = Leaf::new(PhysAddr(0x7000), RW, Mapping::ShadowStack(token));
        ops.map::<Pte>(VirtAddr(BASE), &stack, 1).unwrap();
        let range = VirtRange::new(BASE, 4096);
        let mut kept = None;
        let mut gather = ops.gather(NoOwner {});
        ops.change_each(range, &mut gather, |_, _, leaf| {
            kept = Some(leaf);
            leaf.mark(Marks::SOFT_DIRTY)
        })
        .unwrap();
        gather.finish();
        let now = ops.lookup(VirtAddr(BASE)).unwrap().leaf().unwrap();
        assert!(now.marks().contains(Marks::SHADOW | Marks::SOFT_DIRTY));
        let stolen = ops.map::<Pte>(VirtAddr(BASE + 4096), &kept.unwrap(), 1);
        assert!(matches!(
            stolen.unwrap_err().error,
            Error::Unsupported { .. }
        ));
        unmap(&ops, range);
    });
}
