//! Words that nobody encoded: decoders take any, and what they take for a leaf, a table or an absent entry is encoded as the same bits again.

use crate::sample::{levels, shadow_stack};
use flagstone_pgtable::format::{Absent, Access, Arch, Entry, Format, Leaf, Level, Marks};
use flagstone_pgtable::with_format;
use flagstone_types::PhysAddr;
use proptest::prelude::*;

/// Bits that the unit does not look at and that a decoder reads in two ways: saved-dirty beside the dirty bit of a shadow stack.
fn redundant<F: Format>() -> u64 {
    match F::NAME {
        "x86_64" | "x86_64-la57" => 1 << 58,
        _ => 0,
    }
}

/// What the unit may set in an entry that is absent.
fn stray<F: Format>(level: Level) -> u64 {
    match F::NAME.split(['_', '-']).next() {
        Some("x86" | "ppc64") => F::unit_bits(level),
        _ => 0,
    }
}

/// What the unit may set in an entry that names a table.
fn stray_in_table<F: Format>(level: Level) -> u64 {
    if F::TABLE_YOUNG {
        F::unit_bits(level)
    } else {
        0
    }
}

fn check<F: Format>(raw: u64) {
    for level in levels::<F>() {
        let present = F::is_present(level, raw);
        let (child, address) = match F::decode(level, raw) {
            Entry::Table { at, .. } => (Some(at), None),
            Entry::Leaf(leaf) => (None, Some(leaf.at)),
            _ => (None, None),
        };
        assert_eq!(F::child(level, raw), child, "{} {raw:#x}", F::NAME);
        assert_eq!(F::leaf_address(level, raw), address, "{} {raw:#x}", F::NAME);
        match F::decode(level, raw) {
            Entry::None => assert!(!present && !F::is_table(level, raw)),
            Entry::Absent(absent) => {
                assert!(!present && !F::is_table(level, raw));
                let again = F::absent(level, &absent).expect("it was there");
                assert_eq!(again, raw & !stray::<F>(level), "{} {absent:?}", F::NAME);
            }
            Entry::Table { at, young } => {
                assert!(present && F::is_table(level, raw));
                assert!(F::TABLE_YOUNG || !young);
                assert_eq!(
                    F::table(level, at),
                    raw & !stray_in_table::<F>(level),
                    "{}",
                    F::NAME
                );
            }
            Entry::Leaf(leaf) => {
                assert!(!F::is_table(level, raw));
                assert_eq!(present, !leaf.marks().contains(Marks::NO_ACCESS));
                assert_eq!(F::is_young(level, raw), leaf.marks().contains(Marks::YOUNG));
                assert_eq!(F::is_dirty(level, raw), leaf.marks().contains(Marks::DIRTY));
                let granted = if leaf.marks().contains(Marks::SHADOW) {
                    leaf.mkwrite(shadow_stack())
                } else {
                    leaf
                };
                assert!(F::can(level, &granted), "{} {raw:#x} {leaf:?}", F::NAME);
                let again = F::leaf(level, &granted);
                let differs = (again ^ raw) & !redundant::<F>();
                assert_eq!(differs, 0, "{} {level:?} {raw:#x} {again:#x}", F::NAME);
            }
            Entry::Bad(bits) => assert_eq!(bits, raw),
        }
        exercise::<F>(level, raw);
    }
}

/// Calls what takes a word with a word that it was not made for.
fn exercise<F: Format>(level: Level, raw: u64) {
    F::with_young(level, raw, true);
    F::with_access(level, raw, Access::from_bits_truncate(raw as u8));
    F::write_protect(level, raw);
    F::advance(level, raw, raw);
    let _ = F::first_part(level, raw);
}

/// A word near those that mean something: an encoded entry with a few bits changed, or any word at all.
pub(crate) fn word() -> impl Strategy<Value = (Arch, u64)> {
    let arch = prop::sample::select(Arch::ALL.to_vec());
    let flips = prop::collection::vec(0..64u32, 0..4);
    (arch, 0..4u8, 1..=5u8, any::<[u64; 3]>(), flips).prop_map(
        |(arch, kind, level, seed, flips)| {
            let level = Level::new(level.min(arch.top().get())).expect("from 1 to 5");
            let mask = ((1u64 << arch.phys_bits()) - 1) & u64::MAX << arch.shift(level);
            let at = PhysAddr(seed[0] & mask);
            let word = match kind {
                0 => seed[0],
                1 => {
                    let leaf = Leaf::kernel(at, Access::from_bits_truncate(seed[1] as u8))
                        .mark(Marks::from_bits_truncate(seed[2] as u16));
                    arch.leaf(level, &leaf)
                }
                2 => arch.table(level, at),
                _ => {
                    let absent = Absent::Swap {
                        area: seed[1] as u8 & 31,
                        offset: seed[0] >> 28,
                        exclusive: seed[1] & 32 == 0,
                        marks: Marks::from_bits_truncate(seed[2] as u16 & 12),
                    };
                    arch.absent(level, &absent).unwrap_or(0)
                }
            };
            (
                arch,
                flips.into_iter().fold(word, |word, bit| word ^ 1 << bit),
            )
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(60_000) })]

    #[test]
    fn every_word_is_decoded_and_encoded_again((arch, raw) in word()) {
        with_format!(arch, F => check::<F>(raw));
    }

    #[test]
    fn the_format_by_name_is_the_format((arch, raw) in word(), level in 1..=5u8) {
        let level = Level::new(level).filter(|level| *level <= arch.top()).unwrap_or(Level::PTE);
        let direct = with_format!(arch, F => F::decode(level, raw));
        prop_assert_eq!(arch.decode(level, raw), direct);
    }
}

#[test]
fn all_words_of_the_lowest_and_highest_bits() {
    for arch in Arch::ALL {
        for low in 0..1 << 12 {
            for high in (0..1 << 12).step_by(5) {
                with_format!(arch, F => check::<F>(low | high << 52));
            }
        }
    }
}
