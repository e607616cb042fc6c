//! Words made by hand from the manuals' figures, one by one.

use super::*;
use crate::builder::usual_caps;

fn decode(arch: Arch, level: u8, raw: u64) -> Word {
    arch.decode(level, raw, &usual_caps(arch))
}

fn page(arch: Arch, level: u8, raw: u64) -> Page {
    match decode(arch, level, raw) {
        Word::Page(page) => page,
        other => panic!("{arch} level {level} {raw:#x} is {other:?}"),
    }
}

const X86: Arch = Arch::X86_64 { levels: 4 };
const ARM: Arch = Arch::arm64(12);
const PPC: Arch = Arch::Ppc64Radix { page_shift: 16 };
const RISCV: Arch = Arch::Riscv64 { levels: 3 };

#[test]
fn shapes_are_those_of_the_manuals() {
    for (arch, top, shifts, va_bits) in [
        (X86, 4, vec![12, 21, 30, 39], 48),
        (Arch::X86_64 { levels: 5 }, 5, vec![12, 21, 30, 39, 48], 57),
        (Arch::X86Pae, 3, vec![12, 21, 30], 32),
        (ARM, 4, vec![12, 21, 30, 39], 48),
        (Arch::arm64(14), 4, vec![14, 25, 36, 47], 48),
        (Arch::arm64(16), 3, vec![16, 29, 42], 48),
        (
            Arch::Ppc64Radix { page_shift: 12 },
            4,
            vec![12, 21, 30, 39],
            52,
        ),
        (PPC, 4, vec![16, 21, 30, 39], 52),
        (RISCV, 3, vec![12, 21, 30], 39),
        (Arch::Riscv64 { levels: 4 }, 4, vec![12, 21, 30, 39], 48),
    ] {
        let geometry = arch.geometry();
        assert_eq!((geometry.top, geometry.va_bits()), (top, va_bits), "{arch}");
        let found: Vec<u32> = (1..=top).map(|level| geometry.shift(level)).collect();
        assert_eq!(found, shifts, "{arch}");
        assert_eq!(Arch::named(arch.name()), Some(arch));
    }
    assert_eq!(Arch::X86Pae.geometry().table_bytes(3), 32);
    assert_eq!(PPC.geometry().table_bytes(1), 256);
    assert_eq!(PPC.geometry().table_bytes(4), 64 << 10);
    assert_eq!(Arch::arm64(14).geometry().table_bytes(4), 16);
}

#[test]
fn x86_leaves_tables_and_reserved_bits() {
    // Present, writable, user, accessed, dirty, global, execute-disable.
    let leaf = page(X86, 1, 0x8000_0000_1234_5167);
    assert_eq!(leaf.at, 0x1234_5000);
    assert_eq!(leaf.rights, Rights::READ | Rights::WRITE | Rights::USER);
    assert!(leaf.accessed && leaf.dirty && leaf.global && !leaf.shadow);
    // Read-only and dirty: a page of a shadow stack.
    assert!(page(X86, 1, 0x1045).shadow && !page(X86, 1, 0x1005).shadow);
    // Huge: bit 7; bit 12 is PAT there, and others below the size are reserved.
    assert_eq!(page(X86, 2, 0x20_0000 | 0x1081).at, 0x20_0000);
    assert_eq!(decode(X86, 2, 0x20_2083), Word::Reserved(0x2000));
    assert!(matches!(
        decode(X86, 2, 0x20_0003),
        Word::Table { at: 0x20_0000, .. }
    ));
    // PS is reserved above the third level, and there where 1 GiB pages are missing.
    assert_eq!(decode(X86, 4, 0x1081), Word::Reserved(0x80));
    let mut caps = usual_caps(X86);
    caps.huge_pud = false;
    assert_eq!(X86.decode(3, 0x4000_0083, &caps), Word::Reserved(0x80));
    // Beyond the physical width of 46 bits.
    assert_eq!(decode(X86, 1, 1 << 46 | 1), Word::Reserved(1 << 46));
    assert_eq!(decode(X86, 1, !1), Word::Invalid);
}

#[test]
fn pae_top_entries_have_no_rights_and_reserved_bits() {
    assert!(matches!(
        decode(Arch::X86Pae, 3, 0x1001),
        Word::Table { at: 0x1000, limit, .. } if limit.is_all()
    ));
    assert_eq!(decode(Arch::X86Pae, 3, 0x1007), Word::Reserved(6));
    assert_eq!(page(Arch::X86Pae, 2, 0x20_0083).at, 0x20_0000);
    assert_eq!(
        decode(Arch::X86Pae, 1, 1 << 62 | 1),
        Word::Reserved(1 << 62)
    );
}

#[test]
fn arm_blocks_pages_tables_and_who_may_what() {
    // A page: EL0, AF, nG, UXN and PXN clear.
    let leaf = page(ARM, 1, 0x1000 | 3 | 1 << 6 | 1 << 10 | 1 << 11);
    assert!(leaf.rights.is_all() && leaf.accessed && leaf.dirty && !leaf.global);
    // Writable by EL0: the kernel never executes it.
    assert!(!ARM.allows(leaf.rights, false, Access::kernel(Kind::Exec)));
    assert!(ARM.allows(leaf.rights, false, Access::EXEC));
    // Execute-only for EL0: no AP[1], UXN clear.
    let hidden = page(ARM, 1, 0x1000 | 3 | 1 << 7 | 1 << 10).rights;
    assert!(ARM.allows(hidden, false, Access::EXEC));
    assert!(!ARM.allows(hidden, false, Access::READ));
    // AP[2] with DBM: writable and clean, if the unit keeps the dirty state.
    let clean = 0x1000 | 3 | 1 << 6 | 1 << 7 | 1 << 10 | 1 << 51;
    assert!(page(ARM, 1, clean).rights.contains(Rights::WRITE) && !page(ARM, 1, clean).dirty);
    let mut caps = usual_caps(ARM);
    caps.dirty = false;
    let Word::Page(plain) = ARM.decode(1, clean, &caps) else {
        panic!("no page");
    };
    assert!(!plain.rights.contains(Rights::WRITE));
    assert!(page(ARM, 1, ARM.with_dirty(clean)).dirty);
    // The last level has no blocks, the top level neither.
    assert_eq!(decode(ARM, 1, 0x1001), Word::Invalid);
    assert_eq!(decode(ARM, 4, 0x1001), Word::Invalid);
    assert_eq!(page(ARM, 3, 0x4000_0000 | 1).at, 0x4000_0000);
    assert_eq!(
        decode(Arch::arm64(16), 3, 0x1),
        Word::Invalid,
        "no 4 TiB blocks"
    );
    assert_eq!(
        decode(Arch::arm64(14), 3, 0x1),
        Word::Invalid,
        "no 64 GiB blocks"
    );
    assert_eq!(page(Arch::arm64(14), 2, 1 << 25 | 1).at, 1 << 25);
    // APTable and XNTable.
    let limits = 0x1003 | 1 << 62 | 1 << 61 | 1 << 60 | 1 << 59;
    assert!(matches!(decode(ARM, 2, limits), Word::Table { limit, .. } if limit == Rights::READ));
}

#[test]
fn ppc_directories_leaves_and_the_size_of_the_next_table() {
    // Valid, next level of 5 bits at 0x5_0000 + 256.
    let directory = 1 << 63 | 0x5_0100 | 5;
    assert!(matches!(
        decode(PPC, 2, directory),
        Word::Table { at: 0x5_0100, .. }
    ));
    assert_eq!(
        decode(PPC, 3, directory),
        Word::Reserved(31),
        "9 bits are next"
    );
    // Valid, leaf, R and C, read and write, user.
    let leaf = page(PPC, 1, 3 << 62 | 0x7_0000 | 0x186);
    assert_eq!(leaf.at, 0x7_0000);
    assert_eq!(leaf.rights, Rights::READ | Rights::WRITE | Rights::USER);
    assert!(leaf.accessed && leaf.dirty);
    // Privileged, execute only.
    let kernel = page(PPC, 1, 3 << 62 | 0x7_0000 | 0x109).rights;
    assert!(PPC.allows(kernel, false, Access::kernel(Kind::Exec)));
    assert!(!PPC.allows(kernel, false, Access::kernel(Kind::Read)));
    assert!(!PPC.allows(kernel, false, Access::EXEC));
    assert_eq!(PPC.from_memory(1 << 7), 1 << 63, "memory is big-endian");
}

#[test]
fn riscv_leaves_pointers_and_what_is_reserved() {
    let leaf = page(RISCV, 1, 0x1234 << 10 | 0xdf);
    assert_eq!(leaf.at, 0x123_4000);
    assert!(leaf.rights.is_all() && leaf.accessed && leaf.dirty && !leaf.global);
    assert!(matches!(
        decode(RISCV, 2, 1 << 10 | 1),
        Word::Table { at: 0x1000, .. }
    ));
    assert_eq!(
        decode(RISCV, 1, 1 << 10 | 1),
        Word::Reserved(0),
        "a pointer on the last level"
    );
    assert_eq!(
        decode(RISCV, 1, 1 << 10 | 5),
        Word::Reserved(4),
        "write without read"
    );
    assert_eq!(
        decode(RISCV, 2, 1 << 10 | 0x41),
        Word::Reserved(0x40),
        "A in a pointer"
    );
    assert_eq!(
        decode(RISCV, 2, 1 << 10 | 0xcf),
        Word::Reserved(0x1000),
        "misaligned"
    );
    assert_eq!(decode(RISCV, 1, 1 << 63 | 0xcf), Word::Reserved(1 << 63));
    // The supervisor loads user pages and never executes them.
    assert!(RISCV.allows(leaf.rights, false, Access::kernel(Kind::Read)));
    assert!(!RISCV.allows(leaf.rights, false, Access::kernel(Kind::Exec)));
}

#[test]
fn addresses_that_no_table_translates() {
    assert!(X86.is_canonical(0xffff_8000_0000_0000, false));
    assert!(!X86.is_canonical(0x8000_0000_0000, false));
    assert!(!ARM.is_canonical(0xffff_8000_0000_0000, false));
    assert!(ARM.is_canonical(ARM.upper(0x8000), true) && ARM.is_upper(ARM.upper(0x8000)));
    assert!(!Arch::X86Pae.is_canonical(1 << 32, false));
    assert!(PPC.is_canonical(0xc000_0000_0000_0000, true));
    assert_eq!(RISCV.canonical(1 << 38), 0xffff_ffc0_0000_0000);
}
