//! The unit's decoding and the library's formats were written apart: here they are compared, on entries that the library makes and on words at random.

use flagstone_host::MmuCaps;
use flagstone_pgtable::format::{self as library, Absent, Entry, Leaf, Level, Marks, Memory};
use flagstone_pgtable::shadow::Mapping;
use flagstone_sim::{Access, Arch, Kind, Rng, Word, usual_caps};
use flagstone_types::PhysAddr;

fn pairs() -> impl Iterator<Item = (library::Arch, Arch)> {
    library::Arch::ALL.into_iter().map(|format| {
        let arch = Arch::named(format.name()).expect("the model has every format");
        (format, arch)
    })
}

fn caps(arch: Arch, format: library::Arch) -> MmuCaps {
    MmuCaps {
        phys_bits: format.phys_bits() as u8,
        ..usual_caps(arch)
    }
}

#[test]
fn both_have_the_same_shapes() {
    for (format, arch) in pairs() {
        let geometry = arch.geometry();
        assert_eq!(geometry.top, format.top().get(), "{arch}");
        assert_eq!(geometry.index_bits, format.index_bits(), "{arch}");
        assert_eq!(geometry.page_shift, format.page_shift(), "{arch}");
        assert_eq!(geometry.va_bits(), format.virt_bits(), "{arch}");
        assert_eq!(arch.breaks_before_make(), format.break_before_make());
        assert_eq!(arch.has_table_accessed(), format.table_young(), "{arch}");
        assert_eq!(arch.fault_drops(), format.fault_drops(), "{arch}");
        let word = 0x0123_4567_89ab_cdef;
        assert_eq!(arch.to_memory(word), format.to_memory(word), "{arch}");
        for level in 1..=geometry.top {
            let level = Level::new(level).unwrap();
            assert_eq!(geometry.shift(level.get()), format.shift(level));
            assert_eq!(
                geometry.table_bytes(level.get()),
                format.table_bytes(level) as u64
            );
        }
    }
}

fn some_leaf(rng: &Rng, format: library::Arch, level: Level) -> Leaf {
    let size = format.shift(level);
    let at = rng.bits() & ((1 << format.phys_bits()) - 1) & (u64::MAX << size);
    let access = library::Access::from_bits_truncate(rng.bits() as u8);
    let marks = Marks::from_bits_truncate(rng.bits() as u16) - Marks::SHADOW - Marks::NO_ACCESS;
    let memory = rng.pick(&[
        Memory::WriteBack,
        Memory::WriteBack,
        Memory::WriteCombining,
        Memory::Uncached,
        Memory::Device,
        Memory::WriteThrough,
    ]);
    Leaf::new(PhysAddr(at), access, Mapping::Ordinary)
        .mark(marks)
        .cached(memory)
}

/// What the unit would allow, and what the leaf says that it allows.
fn compare_rights(arch: Arch, leaf: &Leaf, page: &flagstone_sim::Page, raw: u64) {
    let access = leaf.access();
    let user = access.contains(library::Access::USER);
    let x86 = matches!(arch, Arch::X86_64 { .. } | Arch::X86Pae);
    for kind in [Kind::Read, Kind::Write, Kind::Exec] {
        let wanted = match kind {
            Kind::Read => access.intersects(library::Access::READ | library::Access::WRITE),
            Kind::Write => access.contains(library::Access::WRITE),
            _ => access.contains(library::Access::EXEC),
        };
        // On x86 whatever is there can be loaded.
        let wanted = wanted || (x86 && kind == Kind::Read);
        let asked = Access { kind, user };
        assert_eq!(
            arch.allows(page.rights, page.shadow, asked),
            wanted,
            "{arch}: {raw:#x} of {leaf:?}: {asked:?}"
        );
        if !user {
            let by_user = arch.allows(page.rights, page.shadow, Access::user(kind));
            assert!(
                !by_user,
                "{arch}: {raw:#x} of {leaf:?}: {kind:?} by user code"
            );
        }
    }
}

#[test]
fn the_unit_understands_every_leaf_as_it_was_meant() {
    let rng = Rng::new(1);
    for (format, arch) in pairs() {
        let caps = caps(arch, format);
        let mut compared = 0;
        for _ in 0..20_000 {
            let level = Level::new(1 + rng.below(usize::from(format.top().get())) as u8).unwrap();
            let leaf = some_leaf(&rng, format, level);
            if !format.can(level, &leaf) {
                continue;
            }
            compared += 1;
            let raw = format.leaf(level, &leaf);
            let Word::Page(page) = arch.decode(level.get(), raw, &caps) else {
                panic!(
                    "{arch} level {level:?}: {raw:#x} of {leaf:?} is {:?}",
                    arch.decode(level.get(), raw, &caps)
                );
            };
            assert_eq!(page.at, leaf.at.0, "{arch}: {raw:#x} of {leaf:?}");
            let global = leaf.marks().contains(Marks::GLOBAL);
            let has_global = !matches!(arch, Arch::Ppc64Radix { .. });
            assert_eq!(page.global, global && has_global, "{arch}: {leaf:?}");
            assert_eq!(
                page.accessed,
                format.is_young(level, raw),
                "{arch}: {leaf:?}"
            );
            if leaf.access().contains(library::Access::WRITE) {
                assert_eq!(page.dirty, format.is_dirty(level, raw), "{arch}: {leaf:?}");
            }
            assert!(!page.shadow, "{arch}: {leaf:?}");
            compare_rights(arch, &leaf, &page, raw);
            // What the unit sets is what the library reads.
            assert!(format.is_young(level, arch.with_accessed(raw)), "{arch}");
            if leaf.access().contains(library::Access::WRITE) {
                assert!(format.is_dirty(level, arch.with_dirty(raw)), "{arch}");
                assert!(
                    matches!(format.decode(level, arch.with_dirty(raw)), Entry::Leaf(_)),
                    "{arch}: {:#x}",
                    arch.with_dirty(raw)
                );
            }
            assert_eq!(arch.unit_bits() & !format.unit_bits(level), 0, "{arch}");
        }
        assert!(compared > 1_000, "{arch}: only {compared} leaves");
    }
}

#[test]
fn the_unit_follows_tables_and_never_what_is_absent() {
    let rng = Rng::new(2);
    for (format, arch) in pairs() {
        let caps = caps(arch, format);
        for _ in 0..2_000 {
            let top = usize::from(format.top().get());
            let level = Level::new(2 + rng.below(top - 1) as u8).unwrap();
            let below = level.below().unwrap();
            let align = format.table_bytes(below).max(4096) as u64;
            let at = rng.bits() & ((1 << format.phys_bits()) - 1) & !(align - 1);
            let raw = format.table(level, PhysAddr(at));
            match arch.decode(level.get(), raw, &caps) {
                Word::Table {
                    at: found, limit, ..
                } => {
                    assert_eq!(found, at, "{arch} level {level:?}: {raw:#x}");
                    assert!(limit.is_all(), "{arch}: {raw:#x} takes {limit:?} only");
                }
                other => panic!("{arch} level {level:?}: table {raw:#x} is {other:?}"),
            }
            let level = Level::new(1 + rng.below(top) as u8).unwrap();
            let marks = Marks::from_bits_truncate(rng.bits() as u16);
            for absent in [
                Absent::Swap {
                    area: rng.below(32) as u8,
                    offset: rng.bits() >> 30,
                    exclusive: rng.chance(128),
                    marks: marks & (Marks::SOFT_DIRTY | Marks::UFFD_WP),
                },
                Absent::Migration {
                    frame: rng.bits() >> 36,
                    write: rng.chance(128),
                    marks: marks
                        & (Marks::YOUNG | Marks::DIRTY | Marks::SOFT_DIRTY | Marks::UFFD_WP),
                },
                Absent::Marker {
                    payload: rng.below(8) as u8,
                },
            ] {
                if let Some(raw) = format.absent(level, &absent) {
                    assert_eq!(
                        arch.decode(level.get(), raw, &caps),
                        Word::Invalid,
                        "{arch} level {level:?}: {absent:?} is {raw:#x}"
                    );
                }
            }
        }
    }
}

#[test]
fn words_at_random_are_presence_and_places_to_both() {
    let rng = Rng::new(3);
    for (format, arch) in pairs() {
        let caps = caps(arch, format);
        for _ in 0..100_000 {
            let level = Level::new(1 + rng.below(usize::from(format.top().get())) as u8).unwrap();
            // Few bits set, so that reserved ones are often clear.
            let raw = rng.bits() & rng.bits() & (rng.bits() | 0xc000_0000_0000_00ff);
            let unit = arch.decode(level.get(), raw, &caps);
            match (format.decode(level, raw), unit) {
                (Entry::None | Entry::Absent(_), word) => {
                    assert_eq!(word, Word::Invalid, "{arch} {level:?} {raw:#x}");
                }
                // A table that does not lie as it must is the unit's to refuse.
                (Entry::Table { at, .. }, word) => assert!(
                    matches!(word, Word::Table { at: found, .. } if found == at.0)
                        || matches!(word, Word::Reserved(bits) if bits & at.0 == bits),
                    "{arch} {level:?} {raw:#x}: {at:?} but {word:?}"
                ),
                (Entry::Leaf(leaf), word) => {
                    let hidden = leaf.marks().contains(Marks::NO_ACCESS);
                    match word {
                        Word::Page(page) => {
                            assert_eq!(page.at, leaf.at.0, "{arch} {level:?} {raw:#x}");
                            let shadow = leaf.marks().contains(Marks::SHADOW);
                            assert_eq!(page.shadow, shadow, "{arch} {level:?} {raw:#x}");
                            assert!(
                                !hidden || page.rights.is_empty(),
                                "{arch} {raw:#x} {leaf:?}"
                            );
                        }
                        Word::Invalid => assert!(hidden, "{arch} {level:?} {raw:#x}: {leaf:?}"),
                        other => panic!("{arch} {level:?} {raw:#x}: {leaf:?} but {other:?}"),
                    }
                }
                // What the library would never write may still mean something to the unit.
                (Entry::Bad(_), _) => {}
            }
        }
    }
}
