//! What is encoded is decoded as it was, on every level; what is done to a word is what is done to the leaf.

use crate::for_every_format;
use crate::sample::{
    MEMORIES, absents, addresses, flag_combinations, leaf, leaf_levels, leaves, levels,
    shadow_stack,
};
use flagstone_pgtable::format::{Absent, Access, Arch, Entry, Format, Leaf, Level, Marks, Memory};

#[test]
fn a_leaf_that_can_be_said_is_read_back_and_no_other() {
    fn check<F: Format>() {
        for level in leaf_levels::<F>() {
            let at = addresses::<F>(F::shift(level))[2];
            let mut said = 0;
            for leaf in flag_combinations(at) {
                let raw = F::leaf(level, &leaf);
                let same = F::decode(level, raw) == Entry::Leaf(leaf);
                assert_eq!(
                    F::can(level, &leaf),
                    same,
                    "{} {level:?} {leaf:?} {raw:#018x} {:?}",
                    F::NAME,
                    F::decode(level, raw)
                );
                said += usize::from(same);
            }
            assert!(said > 1000, "{} says only {said} leaves", F::NAME);
        }
    }
    for_every_format!(check);
}

#[test]
fn a_leaf_is_said_at_every_aligned_address_and_at_no_other() {
    fn check<F: Format>() {
        for level in levels::<F>() {
            let shift = F::shift(level);
            for at in addresses::<F>(shift) {
                let leaf = Leaf::kernel(at, Access::READ);
                assert_eq!(F::can(level, &leaf), F::LEAF[level.index()]);
                if F::LEAF[level.index()] {
                    let raw = F::leaf(level, &leaf);
                    assert_eq!(F::decode(level, raw), Entry::Leaf(leaf), "{}", F::NAME);
                    for bit in (0..shift).chain(F::PHYS_BITS..64) {
                        let askew = leaf.moved(flagstone_types::PhysAddr(at.0 | 1 << bit));
                        assert!(!F::can(level, &askew), "{} bit {bit}", F::NAME);
                    }
                }
            }
        }
    }
    for_every_format!(check);
}

#[test]
fn what_a_word_tells_without_being_decoded_is_what_it_says() {
    fn check<F: Format>() {
        for level in leaf_levels::<F>() {
            for leaf in leaves::<F>(level) {
                let raw = F::leaf(level, &leaf);
                let marks = leaf.marks();
                let present = !marks.contains(Marks::NO_ACCESS);
                assert_eq!(F::is_present(level, raw), present, "{} {leaf:?}", F::NAME);
                assert!(!F::is_table(level, raw), "{} {leaf:?}", F::NAME);
                assert_eq!(F::is_young(level, raw), marks.contains(Marks::YOUNG));
                assert_eq!(F::is_dirty(level, raw), marks.contains(Marks::DIRTY));
                for young in [false, true] {
                    let other = if young {
                        leaf.mark(Marks::YOUNG)
                    } else {
                        leaf.unmark(Marks::YOUNG)
                    };
                    let aged = F::with_young(level, raw, young);
                    assert_eq!(F::decode(level, aged), Entry::Leaf(other), "{}", F::NAME);
                }
                let protected = F::write_protect(level, raw);
                assert_eq!(
                    F::decode(level, protected),
                    Entry::Leaf(leaf.wrprotect()),
                    "{} {raw:#x} {protected:#x}",
                    F::NAME
                );
                if leaf.marks().is_empty() || !leaf.access().contains(Access::WRITE) {
                    let unit = F::unit_bits(level);
                    assert_ne!(unit, 0);
                    let differs = F::leaf(level, &leaf.mark(Marks::YOUNG))
                        ^ F::leaf(level, &leaf.unmark(Marks::YOUNG));
                    assert_eq!(differs & !unit, 0, "{}", F::NAME);
                }
            }
        }
    }
    for_every_format!(check);
}

/// What a leaf says after its access was changed, put together anew.
fn changed<F: Format>(level: Level, leaf: &Leaf, access: Access) -> Leaf {
    let any = Access::READ | Access::WRITE | Access::EXEC;
    let rest = leaf.marks() - Marks::NO_ACCESS - Marks::SHADOW;
    let (access, marks) = if access.intersects(any) {
        (access, rest)
    } else {
        (access | Access::READ, rest | Marks::NO_ACCESS)
    };
    let build = |access| {
        let new = Leaf::kernel(leaf.at, access)
            .mark(marks)
            .cached(leaf.memory)
            .keyed(leaf.key);
        if leaf.marks().contains(Marks::SHADOW) && !access.contains(Access::WRITE) {
            new.mkwrite(shadow_stack())
        } else {
            new
        }
    };
    let exact = build(access);
    if F::can(level, &exact) {
        exact
    } else {
        build(access | Access::READ)
    }
}

#[test]
fn access_changes_and_the_rest_stays() {
    fn check<F: Format>() {
        for level in leaf_levels::<F>() {
            for leaf in leaves::<F>(level).into_iter().step_by(3) {
                let raw = F::leaf(level, &leaf);
                for access in (0..16).map(Access::from_bits_truncate) {
                    let other = F::with_access(level, raw, access);
                    assert_eq!(
                        F::decode(level, other),
                        Entry::Leaf(changed::<F>(level, &leaf, access)),
                        "{} {level:?} {leaf:?} {access:?}: {raw:#x} {other:#x}",
                        F::NAME
                    );
                    let back = F::with_access(level, other, leaf.access());
                    assert_eq!(F::is_dirty(level, back), F::is_dirty(level, raw));
                }
            }
        }
    }
    for_every_format!(check);
}

#[test]
fn an_entry_moves_on_by_its_own_size() {
    fn check<F: Format>() {
        for level in leaf_levels::<F>() {
            let size = 1 << F::shift(level);
            let room = (1 << F::PHYS_BITS) - 1;
            for leaf in leaves::<F>(level).into_iter().step_by(7) {
                let raw = F::leaf(level, &leaf);
                for pages in [0, 1, 2, 511, 8191] {
                    let at = leaf.at.0 + pages * size;
                    if at <= room {
                        let moved = F::advance(level, raw, pages);
                        let want = leaf.moved(flagstone_types::PhysAddr(at));
                        assert_eq!(F::decode(level, moved), Entry::Leaf(want), "{}", F::NAME);
                    }
                }
            }
        }
    }
    for_every_format!(check);
}

#[test]
fn a_huge_leaf_says_the_same_one_level_below() {
    fn check<F: Format>() {
        for level in leaf_levels::<F>() {
            for leaf in leaves::<F>(level) {
                let raw = F::leaf(level, &leaf);
                let Some(below) = level.below() else {
                    assert_eq!(F::first_part(level, raw), None);
                    continue;
                };
                let part = F::first_part(level, raw).expect("the level below has leaves, too");
                assert_eq!(F::decode(below, part), Entry::Leaf(leaf), "{}", F::NAME);
            }
            assert_eq!(F::first_part(level, 0), None);
        }
    }
    for_every_format!(check);
}

#[test]
fn a_table_is_read_back_on_every_level_above_the_first() {
    fn check<F: Format>() {
        for level in levels::<F>() {
            let Some(below) = level.below() else { continue };
            let shift = F::table_bytes(below).trailing_zeros();
            for at in addresses::<F>(shift) {
                let raw = F::table(level, at);
                let table = Entry::Table { at, young: false };
                assert_eq!(
                    F::decode(level, raw),
                    table,
                    "{} {level:?} {raw:#x}",
                    F::NAME
                );
                assert!(F::is_table(level, raw) && F::is_present(level, raw));
                if F::TABLE_YOUNG && !(F::HALVES && level == F::TOP) {
                    let young = raw | F::unit_bits(level);
                    let table = Entry::Table { at, young: true };
                    assert_eq!(F::decode(level, young), table, "{}", F::NAME);
                }
            }
        }
    }
    for_every_format!(check);
}

/// The levels that may hold something absent: not the four registers of PAE.
fn absent_levels<F: Format>() -> impl Iterator<Item = Level> {
    levels::<F>().filter(|level| !(F::HALVES && *level == F::TOP))
}

#[test]
fn absent_entries_are_read_back_and_what_has_no_room_is_refused() {
    fn check<F: Format>() {
        for level in absent_levels::<F>() {
            let swap = |offset| Absent::Swap {
                area: 31,
                offset,
                exclusive: false,
                marks: Marks::empty(),
            };
            let fits = |bits: u32| F::absent(level, &swap((1u64 << bits) - 1)).is_some();
            let bits = (1..64).take_while(|bits| fits(*bits)).last().unwrap_or(0);
            assert!(
                bits >= 36 && bits >= F::PHYS_BITS - F::PAGE_SHIFT,
                "{} {bits}",
                F::NAME
            );
            for absent in absents(bits) {
                let raw = F::absent(level, &absent).expect("it fits");
                assert_eq!(
                    F::decode(level, raw),
                    Entry::Absent(absent),
                    "{} {raw:#x}",
                    F::NAME
                );
                assert!(!F::is_present(level, raw) && !F::is_table(level, raw));
                assert_ne!(
                    raw as u32,
                    0,
                    "{}: the lower half says that something is there",
                    F::NAME
                );
            }
            let frame = 1u64 << bits;
            let none = Marks::empty();
            for absent in [
                swap(frame),
                Absent::Swap {
                    area: 32,
                    offset: 0,
                    exclusive: true,
                    marks: none,
                },
                Absent::Swap {
                    area: 0,
                    offset: 0,
                    exclusive: true,
                    marks: Marks::DIRTY,
                },
                Absent::Migration {
                    frame,
                    write: true,
                    marks: none,
                },
                Absent::Migration {
                    frame: 0,
                    write: true,
                    marks: Marks::SPECIAL,
                },
                Absent::Device {
                    frame,
                    write: false,
                },
                Absent::Marker { payload: 8 },
            ] {
                assert_eq!(F::absent(level, &absent), None, "{} {absent:?}", F::NAME);
            }
        }
    }
    for_every_format!(check);
}

#[test]
fn what_the_unit_leaves_behind_in_an_empty_entry_is_nothing() {
    fn check<F: Format>() {
        for level in levels::<F>() {
            assert_eq!(F::decode(level, 0), Entry::None);
            assert!(!F::is_present(level, 0) && !F::is_table(level, 0));
        }
    }
    for_every_format!(check);
    for arch in [
        Arch::X86_64,
        Arch::X86_64La57,
        Arch::X86Pae,
        Arch::Ppc64K4,
        Arch::Ppc64K64,
    ] {
        for level in [Level::PTE, Level::PMD] {
            let stray = arch.unit_bits(level);
            assert_eq!(arch.decode(level, stray), Entry::None, "{arch}");
            let absent = Absent::Marker { payload: 5 };
            let raw = arch.absent(level, &absent).expect("it fits");
            assert_eq!(raw & stray, 0, "{arch}");
            assert_eq!(
                arch.decode(level, raw | stray),
                Entry::Absent(absent),
                "{arch}"
            );
        }
    }
}

#[test]
fn memory_has_the_byte_order_of_the_architecture() {
    fn check<F: Format>() {
        let raw = 0x0102_0304_0506_0708;
        let bytes = F::to_memory(raw).to_ne_bytes();
        let big = F::NAME.starts_with("ppc64");
        assert_eq!(
            bytes,
            if big {
                raw.to_be_bytes()
            } else {
                raw.to_le_bytes()
            }
        );
        assert_eq!(F::from_memory(F::to_memory(raw)), raw);
    }
    for_every_format!(check);
}

#[test]
fn names_are_read_and_written() {
    for arch in Arch::ALL {
        assert_eq!(arch.to_string().parse(), Ok(arch));
    }
    let error = "vax".parse::<Arch>().expect_err("there is none");
    assert!(
        error
            .to_string()
            .ends_with("arm64-64k, ppc64-4k, ppc64-64k, riscv64-sv39, riscv64-sv48")
    );
}

#[test]
fn shapes_are_those_of_the_manuals() {
    let shapes = Arch::ALL.map(|arch| {
        let levels = 1..=arch.top().get();
        let tables = levels
            .filter_map(Level::new)
            .map(|level| arch.table_bytes(level));
        (arch.name(), arch.virt_bits(), tables.collect::<Vec<_>>())
    });
    let page = 4096;
    assert_eq!(
        shapes,
        [
            ("x86_64", 48, vec![page; 4]),
            ("x86_64-la57", 57, vec![page; 5]),
            ("x86-pae", 32, vec![page, page, 32]),
            ("arm64-4k", 48, vec![page; 4]),
            ("arm64-16k", 48, vec![16384, 16384, 16384, 16]),
            ("arm64-64k", 48, vec![65536, 65536, 512]),
            ("ppc64-4k", 52, vec![page, page, page, 65536]),
            ("ppc64-64k", 52, vec![256, page, page, 65536]),
            ("riscv64-sv39", 39, vec![page; 3]),
            ("riscv64-sv48", 48, vec![page; 4]),
        ]
    );
    let sizes = Arch::ALL.map(|arch| {
        let levels = (2..=5).filter_map(Level::new);
        let huge = levels.filter(|level| arch.leaf_levels()[level.index()]);
        huge.map(|level| arch.shift(level)).collect::<Vec<_>>()
    });
    assert_eq!(
        sizes,
        [
            vec![21, 30],
            vec![21, 30],
            vec![21],
            vec![21, 30],
            vec![25],
            vec![29],
            vec![21, 30],
            vec![21, 30],
            vec![21, 30],
            vec![21, 30, 39],
        ]
    );
}

#[test]
fn a_hidden_leaf_of_a_format_in_halves_has_a_lower_half() {
    let arch = Arch::X86Pae;
    for at in addresses::<flagstone_pgtable::format::X86Pae>(12) {
        for bits in 0..16 {
            let hidden = leaf(
                at,
                Access::from_bits_truncate(bits) | Access::READ,
                Marks::NO_ACCESS,
                Default::default(),
                0,
            );
            assert_ne!(arch.leaf(Level::PTE, &hidden) as u32, 0, "{at:?}");
        }
    }
}

/// Whether a unit that holds `was` where the table says `is` may go on: it is told apart by what the leaves say.
fn may_go_on<F: Format>(was: &Leaf, is: &Leaf) -> bool {
    let hidden = |leaf: &Leaf| leaf.marks().contains(Marks::NO_ACCESS);
    if hidden(was) {
        return true;
    }
    let same = was.at == is.at
        && was.memory == is.memory
        && was.key == is.key
        && was.marks().contains(Marks::GLOBAL) == is.marks().contains(Marks::GLOBAL);
    // What the unit allows without looking at the table again.
    let abilities = |leaf: &Leaf| {
        let shadow = leaf.marks().contains(Marks::SHADOW);
        let unseen_store =
            leaf.access().contains(Access::WRITE) && leaf.marks().contains(Marks::DIRTY);
        (leaf.access(), shadow, unseen_store)
    };
    let (access, shadow, unseen) = abilities(was);
    let (now, shadow_now, unseen_now) = abilities(is);
    let allowed = now.contains(access) && shadow <= shadow_now && unseen <= unseen_now;
    let caught_up = F::FAULT_DROPS || abilities(was) == abilities(is);
    !hidden(is) && same && allowed && caught_up
}

#[test]
fn an_invalidation_is_needed_for_what_says_less_or_something_else() {
    fn check<F: Format>() {
        for level in leaf_levels::<F>() {
            let at = addresses::<F>(F::shift(level));
            let mut leaves: Vec<_> = (0..16 * 256u16)
                .map(|bits| {
                    let access = Access::from_bits_truncate(bits as u8);
                    let marks = Marks::from_bits_truncate(bits >> 4);
                    leaf(at[2], access, marks, Memory::WriteBack, 0)
                })
                .filter(|leaf| F::can(level, leaf))
                .step_by(3)
                .collect();
            let write = Access::READ | Access::WRITE;
            let plain = leaf(at[2], write, Marks::DIRTY, Memory::WriteBack, 0);
            let kinds = MEMORIES.map(|memory| plain.cached(memory));
            let keys = [1, 2, 4, 8].map(|key| plain.keyed(key));
            let places = at.iter().map(|at| plain.moved(*at));
            let others = kinds.into_iter().chain(keys).chain(places);
            leaves.extend(others.filter(|leaf| F::can(level, leaf)));
            for was in &leaves {
                for is in &leaves {
                    let (old, new) = (F::leaf(level, was), F::leaf(level, is));
                    assert_eq!(
                        F::needs_invalidation(level, old, new),
                        !may_go_on::<F>(was, is),
                        "{} {was:?} {is:?}",
                        F::NAME
                    );
                }
            }
            let present = F::leaf(level, &plain);
            assert!(F::needs_invalidation(level, present, 0));
            assert!(!F::needs_invalidation(level, 0, present));
            if level > Level::PTE {
                let table = F::table(level, at[0]);
                assert!(F::needs_invalidation(level, present, table), "{}", F::NAME);
            }
        }
    }
    for_every_format!(check);
}
