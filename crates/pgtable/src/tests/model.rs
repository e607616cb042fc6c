//! A page table against a map of pages.

use super::*;
use crate::format::{Entry, Level};
use crate::level::{Pmd, Pte};
use crate::span::reach_of;
use flagstone_types::VirtAddr;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// The operations; pages are counted from the beginning of a window of a few tables.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Map {
        at: usize,
        pages: usize,
        to: u64,
        write: bool,
    },
    MapHuge {
        at: usize,
        to: u64,
        write: bool,
    },
    Unmap {
        at: usize,
        pages: usize,
        tables: bool,
    },
    Protect {
        at: usize,
        pages: usize,
        write: bool,
    },
    Dirty {
        at: usize,
        pages: usize,
        set: bool,
    },
    MapOne {
        at: usize,
        to: u64,
        write: bool,
    },
    UnmapOne {
        at: usize,
    },
    ProtectOne {
        at: usize,
        write: bool,
    },
    UnmapOneHuge {
        at: usize,
    },
}

fn ops() -> impl Strategy<Value = Op> {
    let run = (0usize..1600, 1usize..600);
    prop_oneof![
        3 => (run.clone(), 0u64..1 << 20, any::<bool>())
            .prop_map(|((at, pages), to, write)| Op::Map { at, pages, to, write }),
        2 => (0usize..4, 0u64..64, any::<bool>()).prop_map(|(at, to, write)| Op::MapHuge { at, to, write }),
        3 => (run.clone(), any::<bool>()).prop_map(|((at, pages), tables)| Op::Unmap { at, pages, tables }),
        2 => (run.clone(), any::<bool>()).prop_map(|((at, pages), write)| Op::Protect { at, pages, write }),
        1 => (run, any::<bool>()).prop_map(|((at, pages), set)| Op::Dirty { at, pages, set }),
        2 => (0usize..1600, 0u64..1 << 20, any::<bool>()).prop_map(|(at, to, write)| Op::MapOne { at, to, write }),
        2 => (0usize..1600).prop_map(|at| Op::UnmapOne { at }),
        2 => (0usize..1600, any::<bool>()).prop_map(|(at, write)| Op::ProtectOne { at, write }),
        1 => (0usize..4).prop_map(|at| Op::UnmapOneHuge { at }),
    ]
}

/// A page: where it is, whether it may be written, whether it is dirty, and the first page of its huge leaf.
type Page = (u64, bool, bool, Option<usize>);

/// Both forms are tried if `BOTH` is 1.
fn run<F: Format, const SHIFT: u32, const BOTH: usize>(base: usize, list: &[Op], shared: bool) {
    with_table::<F, SHIFT>(ALL, |table, _| {
        if !shared {
            // SAFETY: T6: there is no unit. Nobody uses the table from here on, so entries are changed by stores.
            unsafe { table.leave(flagstone_types::CpuId(0)) };
        }
        let page = reach_of::<F>(Level::PTE) as usize;
        let huge = reach_of::<F>(Level::PMD) as usize / page;
        let has_huge = table.has_leaf(Level::PMD);
        let mut model: BTreeMap<usize, Page> = BTreeMap::new();
        for op in list {
            if BOTH == 0 || shared {
                step(&table.shared(), &mut model, op, base, page, huge, has_huge);
            } else if BOTH == 1 {
                step(
                    &table.exclusive(),
                    &mut model,
                    op,
                    base,
                    page,
                    huge,
                    has_huge,
                );
            }
            let mut seen = BTreeMap::new();
            let window = VirtRange::new(base, (4 * huge).max(4096) * page);
            table
                .shared()
                .walk(window, |found| {
                    let first = (found.at.0 - base) / page;
                    let leaf = found.leaf().unwrap();
                    let (pages, head) = match found.level {
                        Level::PTE => (1, None),
                        _ => (huge, Some(first)),
                    };
                    for n in 0..pages {
                        let write = leaf.access().contains(Access::WRITE);
                        let dirty = leaf.marks().contains(Marks::DIRTY);
                        let at = leaf.at.0 / page as u64 + n as u64;
                        seen.insert(first + n, (at, write, dirty, head));
                    }
                })
                .unwrap();
            assert_eq!(seen, model, "after {op:?}");
        }
        let ops = table.shared();
        for (&at, page_is) in &model {
            let found = ops.lookup(VirtAddr(base + at * page + 5)).unwrap();
            assert_eq!(
                found.physical(VirtAddr(base + at * page)).unwrap().0 / page as u64,
                page_is.0
            );
            let physical = ops.physical(VirtAddr(base + at * page + 5)).unwrap();
            assert_eq!(physical.0, page_is.0 * page as u64 + 5);
        }
        unmap(&ops, VirtRange::new(base, (4 * huge).max(4096) * page));
    });
}

fn step<F: Format, const SHIFT: u32, M: crate::Mode>(
    ops: &Ops<'_, '_, TestHost<'_, SHIFT>, F, M>,
    model: &mut BTreeMap<usize, Page>,
    op: &Op,
    base: usize,
    page: usize,
    huge: usize,
    has_huge: bool,
) {
    let cuts = |model: &BTreeMap<usize, Page>, at: usize, pages: usize| {
        [at, at + pages].iter().any(|edge| {
            model
                .get(edge)
                .and_then(|p| p.3)
                .is_some_and(|head| head != *edge)
        })
    };
    let range = |at: usize, pages: usize| VirtRange::new(base + at * page, pages * page);
    let access = |write| if write { RW } else { RO };
    match *op {
        Op::Map {
            at,
            pages,
            to,
            write,
        } => {
            let free = model.range(at..at + pages).next().is_none();
            let leaf = leaf(to * page as u64, access(write));
            let result = ops.map::<Pte>(VirtAddr(base + at * page), &leaf, pages);
            assert_eq!(result.is_ok(), free, "{result:?}");
            if free {
                for n in 0..pages {
                    model.insert(at + n, (to + n as u64, write, false, None));
                }
            }
        }
        Op::MapHuge { at, to, write } => {
            let at = if huge > 1024 { at % 2 } else { at } * huge;
            let leaf = leaf(to * (huge * page) as u64, access(write));
            let result = ops.map::<Pmd>(VirtAddr(base + at * page), &leaf, 1);
            if result.is_ok() {
                assert!(has_huge && model.range(at..at + huge).next().is_none());
                for n in 0..huge {
                    model.insert(
                        at + n,
                        (to * huge as u64 + n as u64, write, false, Some(at)),
                    );
                }
            }
        }
        Op::Unmap { at, pages, tables } => {
            let mut books = Books::default();
            let mut gather = ops.gather(&mut books);
            let result = ops.unmap(range(at, pages), &mut gather);
            if tables {
                ops.free_tables(range(at, pages), &mut gather).unwrap();
            }
            gather.finish();
            assert_eq!(result.is_err(), cuts(model, at, pages));
            if result.is_ok() {
                let mut gone = BTreeMap::new();
                for taken in books.0 {
                    let Entry::Leaf(_) = taken.entry else {
                        panic!("{taken:?}")
                    };
                    for n in 0..taken.pages {
                        let leaf = taken.leaf::<F>(n).unwrap();
                        let size = reach_of::<F>(taken.level) as usize / page;
                        for m in 0..size {
                            let at = (taken.at.0 - base) / page + n * size + m;
                            gone.insert(at, leaf.at.0 / page as u64 + m as u64);
                        }
                    }
                }
                let expected: BTreeMap<_, _> = model
                    .range(at..at + pages)
                    .map(|(&at, p)| (at, p.0))
                    .collect();
                assert_eq!(gone, expected);
                model.retain(|n, _| !(at..at + pages).contains(n));
            }
        }
        Op::Protect { at, pages, write } => {
            let mut gather = ops.gather(NoOwner {});
            let result = ops.protect(range(at, pages), access(write), &mut gather);
            gather.finish();
            assert_eq!(result.is_err(), cuts(model, at, pages));
            if result.is_ok() {
                model
                    .range_mut(at..at + pages)
                    .for_each(|(_, p)| p.1 = write);
            }
        }
        Op::MapOne { at, to, write } => {
            let leaf = leaf(to * page as u64, access(write));
            let result = ops.map_one::<Pte>(VirtAddr(base + at * page), &leaf);
            assert_eq!(result.is_ok(), !model.contains_key(&at), "{result:?}");
            model.entry(at).or_insert((to, write, false, None));
        }
        Op::UnmapOne { at } => {
            let result = ops.unmap_one::<Pte>(VirtAddr(base + at * page));
            match model.get(&at) {
                None => assert!(result.unwrap().is_none()),
                Some((to, write, dirty, None)) => {
                    let Entry::Leaf(leaf) = result.unwrap().decode() else {
                        panic!("no leaf")
                    };
                    assert_eq!(leaf.at.0, to * page as u64);
                    assert_eq!(leaf.access().contains(Access::WRITE), *write);
                    assert_eq!(leaf.marks().contains(Marks::DIRTY), *dirty);
                    model.remove(&at);
                }
                Some(_) => assert!(matches!(result, Err(crate::Error::CutsHuge { .. }))),
            }
        }
        Op::ProtectOne { at, write } => {
            let result = ops.protect_one::<Pte>(VirtAddr(base + at * page), access(write));
            match model.get_mut(&at) {
                None => result.unwrap(),
                Some(found @ (_, _, _, None)) => {
                    result.unwrap();
                    found.1 = write;
                }
                Some(_) => assert!(matches!(result, Err(crate::Error::CutsHuge { .. }))),
            }
        }
        Op::UnmapOneHuge { at } => {
            let at = if huge > 1024 { at % 2 } else { at } * huge;
            let result = ops.unmap_one::<Pmd>(VirtAddr(base + at * page));
            match model.get(&at) {
                Some(&(to, _, _, Some(head))) if head == at => {
                    let Entry::Leaf(leaf) = result.unwrap().decode() else {
                        panic!("no leaf")
                    };
                    assert_eq!(leaf.at.0, to * page as u64);
                    model.retain(|n, _| !(at..at + huge).contains(n));
                }
                _ if model.range(at..at + huge).next().is_some() => {
                    assert!(result.is_err(), "{result:?}");
                }
                // Perhaps there is a table with nothing in it.
                _ => assert!(result.is_err() || result.unwrap().is_none()),
            }
        }
        Op::Dirty { at, pages, set } => {
            let mut gather = ops.gather(NoOwner {});
            let (on, off) = if set {
                (Marks::DIRTY, Marks::empty())
            } else {
                (Marks::empty(), Marks::DIRTY)
            };
            let result = ops.set_marks(range(at, pages), on, off, &mut gather);
            gather.finish();
            assert_eq!(result.is_err(), cuts(model, at, pages));
            if result.is_ok() {
                model.range_mut(at..at + pages).for_each(|(_, p)| p.2 = set);
            }
        }
    }
}

macro_rules! formats {
    ($($name:ident: $format:ident, $shift:literal, $base:literal, $cases:literal, $both:literal;)*) => {$(
        proptest! {
            #![proptest_config(ProptestConfig { cases: $cases, ..ProptestConfig::default() })]

            #[test]
            fn $name(list in proptest::collection::vec(ops(), 1..24), shared in any::<bool>()) {
                run::<crate::format::$format, $shift, $both>($base, &list, shared);
            }
        }
    )*};
}

formats! {
    x86_64_does_what_a_map_does: X86_64, 12, 0x7f00_0000_0000, 64, 1;
    x86_64_la57_does_what_a_map_does: X86_64La57, 12, 0x00ff_0000_0000_0000, 16, 0;
    x86_pae_does_what_a_map_does: X86Pae, 12, 0x3fc0_0000, 48, 0;
    arm64_4k_does_what_a_map_does: Arm64K4, 12, 0x7f00_0000_0000, 32, 0;
    arm64_16k_does_what_a_map_does: Arm64K16, 14, 0x7f00_0000_0000, 16, 0;
    arm64_64k_does_what_a_map_does: Arm64K64, 16, 0x7e00_0000_0000, 8, 0;
    ppc64_4k_does_what_a_map_does: Ppc64K4, 12, 0x7f00_0000_0000, 32, 0;
    ppc64_64k_does_what_a_map_does: Ppc64K64, 16, 0x7f00_0000_0000, 32, 0;
    riscv64_sv39_does_what_a_map_does: Riscv64Sv39, 12, 0x3f_c000_0000, 32, 0;
    riscv64_sv48_does_what_a_map_does: Riscv64Sv48, 12, 0x7f00_0000_0000, 32, 0;
}
