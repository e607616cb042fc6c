//! The unit of the simulated machine, which decodes by itself from the manuals, finds in every entry what the format says it put there.

use crate::for_every_format;
use crate::raw::word;
use crate::sample::{absents, addresses, leaf_levels, leaves, levels};
use flagstone_host::MmuCaps;
use flagstone_pgtable::format::{self, Access, Entry, Format, Leaf, Level, Marks};
use flagstone_pgtable::with_format;
use flagstone_sim::{Arch, Kind, Page, Rights, Word, usual_caps};
use proptest::prelude::*;

/// The unit of a format, with all that its architecture may have.
fn unit<F: Format>() -> (Arch, MmuCaps) {
    let arch = Arch::named(F::NAME).expect("the simulator has every format");
    let caps = MmuCaps {
        phys_bits: F::PHYS_BITS as u8,
        ..usual_caps(arch)
    };
    (arch, caps)
}

fn allows(arch: Arch, page: &Page, kind: Kind, user: bool) -> bool {
    let access = flagstone_sim::Access { kind, user };
    arch.allows(page.rights, page.shadow, access)
}

/// Compares a present leaf with what the unit makes of it.
fn compare<F: Format>(level: Level, raw: u64, leaf: &Leaf) {
    let (arch, caps) = unit::<F>();
    let what = || format!("{} {level:?} {raw:#018x} {leaf:?}", F::NAME);
    let page = match arch.decode(level.get(), raw, &caps) {
        Word::Page(page) => page,
        other => panic!("{}: the unit finds {other:?}", what()),
    };
    let (access, marks) = (leaf.access(), leaf.marks());
    let user = access.contains(Access::USER);
    assert_eq!(page.at, leaf.at.0, "{}", what());
    for (kind, right) in [
        (Kind::Read, Access::READ),
        (Kind::Write, Access::WRITE),
        (Kind::Exec, Access::EXEC),
    ] {
        let (by_user, by_whom) = (user && access.contains(right), access.contains(right));
        assert_eq!(
            allows(arch, &page, kind, true),
            by_user,
            "{kind:?} by user code: {}",
            what()
        );
        if !user {
            assert_eq!(
                allows(arch, &page, kind, false),
                by_whom,
                "{kind:?}: {}",
                what()
            );
        }
    }
    let shadow = marks.contains(Marks::SHADOW);
    assert_eq!(page.shadow, shadow, "{}", what());
    assert_eq!(
        allows(arch, &page, Kind::ShadowWrite, true),
        shadow && user,
        "{}",
        what()
    );
    assert_eq!(page.accessed, marks.contains(Marks::YOUNG), "{}", what());
    if leaf.is_writable() {
        assert_eq!(page.dirty, marks.contains(Marks::DIRTY), "{}", what());
    } else {
        assert!(page.dirty <= marks.contains(Marks::DIRTY) || F::NAME.starts_with("arm64"));
    }
    // Global pages of ppc64 are a note of software's: its unit tells quadrants apart.
    if !F::NAME.starts_with("ppc64") {
        assert_eq!(page.global, marks.contains(Marks::GLOBAL), "{}", what());
    }
    let aged = F::decode(level, arch.with_accessed(raw));
    assert_eq!(aged, Entry::Leaf(leaf.mark(Marks::YOUNG)), "{}", what());
    if access.contains(Access::WRITE) {
        let written = F::decode(level, arch.with_dirty(raw));
        assert_eq!(
            written,
            Entry::Leaf(leaf.mark(Marks::YOUNG | Marks::DIRTY)),
            "{}",
            what()
        );
    }
}

#[test]
fn every_leaf_is_what_the_unit_finds() {
    fn check<F: Format>() {
        let (arch, caps) = unit::<F>();
        for level in leaf_levels::<F>() {
            for leaf in leaves::<F>(level) {
                let raw = F::leaf(level, &leaf);
                if leaf.marks().contains(Marks::NO_ACCESS) {
                    let found = arch.decode(level.get(), raw, &caps);
                    assert_eq!(found, Word::Invalid, "{} {leaf:?}", F::NAME);
                } else {
                    compare::<F>(level, raw, &leaf);
                }
            }
        }
    }
    for_every_format!(check);
}

#[test]
fn memory_types_are_told_apart() {
    fn check<F: Format>() {
        let (arch, caps) = unit::<F>();
        for level in leaf_levels::<F>() {
            let mut kinds: Vec<_> = crate::sample::MEMORIES
                .map(|memory| {
                    Leaf::kernel(addresses::<F>(F::shift(level))[1], Access::READ).cached(memory)
                })
                .into_iter()
                .filter(|leaf| F::can(level, leaf))
                .map(
                    |leaf| match arch.decode(level.get(), F::leaf(level, &leaf), &caps) {
                        Word::Page(page) => page.memory,
                        other => panic!("{} {leaf:?}: {other:?}", F::NAME),
                    },
                )
                .collect();
            let said = kinds.len();
            kinds.sort_unstable();
            kinds.dedup();
            assert_eq!(kinds.len(), said, "{}", F::NAME);
            assert!(said >= 3, "{}", F::NAME);
        }
    }
    for_every_format!(check);
}

#[test]
fn tables_lead_the_unit_on_and_absent_entries_stop_it() {
    fn check<F: Format>() {
        let (arch, caps) = unit::<F>();
        for level in levels::<F>() {
            assert_eq!(arch.decode(level.get(), 0, &caps), Word::Invalid);
            if let Some(below) = level.below() {
                for at in addresses::<F>(F::table_bytes(below).trailing_zeros()) {
                    let found = arch.decode(level.get(), F::table(level, at), &caps);
                    let Word::Table {
                        at: there,
                        limit,
                        global,
                        ..
                    } = found
                    else {
                        panic!("{} {level:?} {at:?}: {found:?}", F::NAME);
                    };
                    assert_eq!(
                        (there, limit, global),
                        (at.0, Rights::all(), false),
                        "{}",
                        F::NAME
                    );
                }
            }
            for absent in absents(16) {
                if let Some(raw) = F::absent(level, &absent) {
                    let found = arch.decode(level.get(), raw, &caps);
                    assert_eq!(found, Word::Invalid, "{} {absent:?}", F::NAME);
                }
            }
        }
    }
    for_every_format!(check);
}

#[test]
fn shapes_and_habits_are_the_units() {
    fn check<F: Format>() {
        let (arch, _) = unit::<F>();
        let shape = arch.geometry();
        assert_eq!((shape.page_shift, shape.top), (F::PAGE_SHIFT, F::TOP.get()));
        assert_eq!(shape.index_bits, F::INDEX_BITS);
        for level in levels::<F>() {
            assert_eq!(shape.shift(level.get()), F::shift(level));
            assert_eq!(arch.unit_bits(), F::unit_bits(level));
        }
        assert_eq!(
            arch.breaks_before_make(),
            F::BREAK_BEFORE_MAKE,
            "{}",
            F::NAME
        );
        assert_eq!(arch.fault_drops(), F::FAULT_DROPS, "{}", F::NAME);
        assert_eq!(arch.has_table_accessed(), F::TABLE_YOUNG, "{}", F::NAME);
        assert_eq!(
            arch.to_memory(0x0102_0304_0506_0708),
            F::to_memory(0x0102_0304_0506_0708)
        );
    }
    for_every_format!(check);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(60_000) })]

    /// What the format understands the unit understands in the same way; what the format calls nothing the unit does not use.
    #[test]
    fn words_mean_the_same((arch, raw) in word()) {
        fn check<F: Format>(raw: u64) {
            let (arch, caps) = unit::<F>();
            for level in levels::<F>() {
                let found = arch.decode(level.get(), raw, &caps);
                match F::decode(level, raw) {
                    Entry::Leaf(leaf) if F::is_present(level, raw) => compare::<F>(level, raw, &leaf),
                    Entry::Table { at, young } => match found {
                        Word::Table { at: there, limit, accessed, .. } => {
                            assert_eq!((there, limit), (at.0, Rights::all()));
                            assert!(!F::TABLE_YOUNG || accessed == young || F::HALVES && level == F::TOP);
                        }
                        other => panic!("{} {level:?} {raw:#x}: {other:?}", F::NAME),
                    },
                    Entry::None | Entry::Absent(_) | Entry::Leaf(_) => {
                        assert_eq!(found, Word::Invalid, "{} {level:?} {raw:#x}", F::NAME);
                    }
                    Entry::Bad(_) => {}
                }
            }
        }
        let _: format::Arch = arch;
        with_format!(arch, F => check::<F>(raw));
    }
}
