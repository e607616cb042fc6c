//! No way through safe code leads to a present entry with Write=0 and Dirty=1 but the one that shows a token.

use crate::sample::{leaf, leaf_levels, shadow_stack};
use flagstone_host::MmuCaps;
use flagstone_pgtable::format::{
    Access, Arch, Entry, Format, Leaf, Level, Marks, Memory, X86_64, X86_64La57,
};
use flagstone_pgtable::shadow::{Mapping, StrayShadow, zap_checked};
use flagstone_types::PhysAddr;
use proptest::prelude::*;

const WRITE: u64 = 1 << 1;
const DIRTY: u64 = 1 << 6;
const SAVED_DIRTY: u64 = 1 << 58;

fn is_shadow(raw: u64) -> bool {
    raw & 1 != 0 && raw & (WRITE | DIRTY) == DIRTY
}

fn user(access: Access) -> Leaf {
    Leaf::new(PhysAddr(0x5000), access | Access::USER, Mapping::Ordinary)
}

#[test]
fn writing_in_a_shadow_stack_is_write_0_and_dirty_1() {
    let shadow = Leaf::new(
        PhysAddr(0x5000),
        Access::READ | Access::WRITE | Access::USER,
        shadow_stack(),
    );
    let raw = X86_64::leaf(Level::PTE, &shadow);
    assert!(is_shadow(raw));
    assert_eq!(raw, 0x8000_0000_0000_5045);
    assert!(shadow.is_writable() && !shadow.access().contains(Access::WRITE));
    let ordinary = user(Access::READ | Access::WRITE).mark(Marks::DIRTY);
    assert_eq!(X86_64::leaf(Level::PTE, &ordinary), 0x8000_0000_0000_5047);
}

#[test]
fn write_protecting_saves_dirty_and_writing_brings_it_back() {
    let write = Access::READ | Access::WRITE | Access::USER;
    let raw = X86_64::leaf(Level::PTE, &user(write).mark(Marks::DIRTY));
    let protected = X86_64::write_protect(Level::PTE, raw);
    assert_eq!(protected & (WRITE | DIRTY | SAVED_DIRTY), SAVED_DIRTY);
    assert_eq!(
        X86_64::with_access(Level::PTE, raw, write - Access::WRITE),
        protected
    );
    assert_eq!(X86_64::with_access(Level::PTE, protected, write), raw);
    let clean = X86_64::leaf(Level::PTE, &user(write));
    assert_eq!(X86_64::write_protect(Level::PTE, clean), clean & !WRITE);
}

#[test]
fn a_decoded_shadow_leaf_is_told_but_not_encoded() {
    let Entry::Leaf(found) = X86_64::decode(Level::PTE, 0x8000_0000_0000_5045) else {
        panic!("a leaf");
    };
    assert!(found.marks().contains(Marks::SHADOW | Marks::DIRTY));
    assert!(!found.is_granted_shadow() && !X86_64::can(Level::PTE, &found));
    let raw = X86_64::leaf(Level::PTE, &found);
    assert_eq!(raw & (WRITE | DIRTY | SAVED_DIRTY), SAVED_DIRTY);
}

#[test]
fn what_is_clean_or_write_protected_is_no_shadow_stack() {
    let shadow = user(Access::READ).mkwrite(shadow_stack());
    for other in [
        shadow.wrprotect(),
        shadow.unmark(Marks::DIRTY),
        shadow.mkwrite_kernel(),
        shadow.mkwrite(Mapping::Ordinary),
        user(Access::READ).mark(Marks::all()),
    ] {
        assert!(!other.marks().contains(Marks::SHADOW), "{other:?}");
        assert!(!is_shadow(X86_64::leaf(
            Level::PTE,
            &other.unmark(Marks::NO_ACCESS)
        )));
    }
    let raw = X86_64::leaf(Level::PTE, &shadow);
    assert!(!is_shadow(X86_64::write_protect(Level::PTE, raw)));
    assert!(is_shadow(X86_64::with_access(
        Level::PTE,
        raw,
        Access::READ
    )));
    let ordinary = X86_64::with_access(Level::PTE, raw, Access::READ | Access::WRITE);
    assert_eq!(ordinary & (WRITE | DIRTY), WRITE | DIRTY);
}

fn caps(shadow_stack: bool) -> MmuCaps {
    MmuCaps {
        accessed: true,
        accessed_table: true,
        dirty: true,
        stray_dirty: false,
        huge_pmd: true,
        huge_pud: true,
        shadow_stack,
        asid_bits: 12,
        broadcast: false,
        paravirtual: false,
        phys_bits: 52,
    }
}

#[test]
fn a_zap_tells_of_a_shadow_entry_outside_only_where_it_means_something() {
    let raw = X86_64::leaf(Level::PTE, &user(Access::READ).mkwrite(shadow_stack()));
    let level = Level::PTE;
    let stray = Err(StrayShadow { level, raw });
    assert_eq!(zap_checked::<X86_64>(level, raw, false, &caps(true)), stray);
    assert_eq!(zap_checked::<X86_64>(level, raw, true, &caps(true)), Ok(()));
    assert_eq!(
        zap_checked::<X86_64>(level, raw, false, &caps(false)),
        Ok(())
    );
    for innocent in [0, raw | WRITE, raw & !DIRTY, 0x5043, u64::MAX] {
        assert_eq!(
            zap_checked::<X86_64>(level, innocent, false, &caps(true)),
            Ok(())
        );
    }
    let error = StrayShadow { level, raw }.to_string();
    assert_eq!(
        error,
        "shadow-stack entry 0x8000000000005045 on level 1 outside of a shadow-stack mapping"
    );
}

#[test]
fn formats_without_the_feature_can_not_say_it() {
    for arch in Arch::ALL.into_iter().filter(|arch| !arch.shadow()) {
        let shadow = leaf(
            PhysAddr(0),
            Access::READ,
            Marks::SHADOW,
            Memory::WriteBack,
            0,
        );
        assert!(!arch.can(Level::PTE, &shadow), "{arch}");
        let raw = arch.leaf(Level::PTE, &shadow);
        assert!(arch.is_dirty(Level::PTE, raw));
    }
}

/// What safe code, and the unit, may do to an entry.
#[derive(Clone, Copy, Debug)]
enum Step {
    Access(u8),
    Protect,
    Young(bool),
    Advance(u8),
    UnitWrites,
    Part,
    Mark(u16),
    Unmark(u16),
    Write,
    WriteProtect,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..16u8).prop_map(Step::Access),
        Just(Step::Protect),
        any::<bool>().prop_map(Step::Young),
        (0..4u8).prop_map(Step::Advance),
        Just(Step::UnitWrites),
        Just(Step::Part),
        (0..256u16).prop_map(Step::Mark),
        (0..256u16).prop_map(Step::Unmark),
        Just(Step::Write),
        Just(Step::WriteProtect),
    ]
}

fn take<F: Format>(level: &mut Level, raw: u64, step: Step) -> u64 {
    let again = |change: &dyn Fn(Leaf) -> Leaf| match F::decode(*level, raw) {
        Entry::Leaf(leaf) => F::leaf(*level, &change(leaf)),
        other => panic!("{raw:#x} is {other:?}"),
    };
    match step {
        Step::Access(access) => F::with_access(*level, raw, Access::from_bits_truncate(access)),
        Step::Protect => F::write_protect(*level, raw),
        Step::Young(young) => F::with_young(*level, raw, young),
        Step::Advance(pages) => F::advance(*level, raw, u64::from(pages)),
        // The unit sets dirty in a present entry that allows the store.
        Step::UnitWrites if raw & 1 != 0 && raw & WRITE != 0 => raw | DIRTY,
        Step::UnitWrites => raw,
        Step::Part => match F::first_part(*level, raw) {
            Some(part) => {
                *level = level.below().expect("it had a part");
                part
            }
            None => raw,
        },
        Step::Mark(marks) => again(&|leaf| leaf.mark(Marks::from_bits_truncate(marks))),
        Step::Unmark(marks) => again(&|leaf| leaf.unmark(Marks::from_bits_truncate(marks))),
        Step::Write => again(&|leaf| leaf.mkwrite(Mapping::Ordinary)),
        Step::WriteProtect => again(&|leaf| leaf.wrprotect()),
    }
}

fn walk<F: Format>(access: u8, marks: u16, steps: &[Step]) {
    for start in leaf_levels::<F>() {
        let mut level = start;
        let leaf = Leaf::kernel(PhysAddr(1 << 30), Access::from_bits_truncate(access))
            .mark(Marks::from_bits_truncate(marks));
        let mut raw = F::leaf(level, &leaf);
        assert!(!is_shadow(raw));
        for step in steps {
            raw = take::<F>(&mut level, raw, *step);
            assert!(!is_shadow(raw), "{step:?} made {raw:#x} on {level:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(10_000) })]

    #[test]
    fn no_sequence_of_changes_makes_one(
        access in 0..16u8,
        marks in 0..256u16,
        steps in prop::collection::vec(step(), 1..24),
    ) {
        walk::<X86_64>(access, marks, &steps);
        walk::<X86_64La57>(access, marks, &steps);
    }
}
