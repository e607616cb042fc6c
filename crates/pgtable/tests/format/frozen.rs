//! Entries put together by hand from the manuals, in hexadecimal: what the formats are. A change here breaks saved machine images.

use crate::sample::shadow_stack;
use flagstone_pgtable::format::{Absent, Access, Arch, Entry, Leaf, Level, Marks, Memory};
use flagstone_types::PhysAddr;

use Level as L;

fn leaf(at: u64, access: Access, marks: Marks) -> Entry {
    Entry::Leaf(Leaf::kernel(PhysAddr(at), access).mark(marks))
}

fn cached(at: u64, access: Access, memory: Memory) -> Entry {
    Entry::Leaf(Leaf::kernel(PhysAddr(at), access).cached(memory))
}

fn table(at: u64) -> Entry {
    Entry::Table {
        at: PhysAddr(at),
        young: false,
    }
}

fn swap(area: u8, offset: u64) -> Entry {
    Entry::Absent(Absent::Swap {
        area,
        offset,
        exclusive: false,
        marks: Marks::empty(),
    })
}

fn migration(frame: u64) -> Entry {
    Entry::Absent(Absent::Migration {
        frame,
        write: true,
        marks: Marks::YOUNG | Marks::DIRTY,
    })
}

const READ: Access = Access::READ;
const WRITE: Access = Access::READ.union(Access::WRITE);
const FETCH: Access = Access::READ.union(Access::EXEC);
const USER: Access = Access::READ.union(Access::USER);
const USER_WRITE: Access = USER.union(Access::WRITE);
const USER_FETCH: Access = USER.union(Access::EXEC);
const BOTH: Marks = Marks::YOUNG.union(Marks::DIRTY);
const NONE: Marks = Marks::empty();

/// Encodes and decodes each line.
fn check(arch: Arch, lines: &[(L, u64, Entry)]) {
    for &(level, raw, entry) in lines {
        assert_eq!(arch.decode(level, raw), entry, "{arch} {raw:#018x}");
        let again = match &entry {
            Entry::Leaf(leaf) => arch.leaf(level, leaf),
            Entry::Table { at, .. } => arch.table(level, *at),
            Entry::Absent(absent) => arch.absent(level, absent).expect("it fits"),
            Entry::None => 0,
            Entry::Bad(_) => raw,
        };
        assert_eq!(
            again, raw,
            "{arch} {entry:?}: {again:#018x}, not {raw:#018x}"
        );
    }
}

fn bad(arch: Arch, lines: &[(L, u64)]) {
    for &(level, raw) in lines {
        assert_eq!(
            arch.decode(level, raw),
            Entry::Bad(raw),
            "{arch} {raw:#018x}"
        );
    }
}

#[test]
fn x86_64() {
    let shadow = Leaf::new(PhysAddr(0x1234_5000), USER_WRITE, shadow_stack());
    let keyed = Leaf::kernel(PhysAddr(0x1000), USER_FETCH).keyed(10);
    for arch in [Arch::X86_64, Arch::X86_64La57] {
        check(
            arch,
            &[
                // P, US, A; NX.
                (
                    L::PTE,
                    0x8000_0000_1234_5025,
                    leaf(0x1234_5000, USER, Marks::YOUNG),
                ),
                // P, RW, US, A, D; NX.
                (
                    L::PTE,
                    0x8000_0000_1234_5067,
                    leaf(0x1234_5000, USER_WRITE, BOTH),
                ),
                // P, US, A; dirty in bit 58.
                (L::PTE, 0x8400_0000_1234_5025, leaf(0x1234_5000, USER, BOTH)),
                // P, US, D without RW.
                (L::PTE, 0x8000_0000_1234_5045, Entry::Leaf(shadow)),
                // P, G, kernel text.
                (
                    L::PTE,
                    0x0000_0000_0100_0101,
                    leaf(0x100_0000, FETCH, Marks::GLOBAL),
                ),
                // P, US, key 10 in bits 59 to 62.
                (L::PTE, 0x5000_0000_0000_1005, Entry::Leaf(keyed)),
                // P, PWT, PCD, PAT in bit 7.
                (
                    L::PTE,
                    0x8000_0000_0000_1099,
                    cached(0x1000, READ, Memory::WriteThrough),
                ),
                // P, PS, PWT, PCD, PAT in bit 12.
                (
                    L::PMD,
                    0x8000_0000_0020_1099,
                    cached(0x20_0000, READ, Memory::WriteThrough),
                ),
                // P, RW, PCD, PWT: registers of a device.
                (
                    L::PTE,
                    0x8000_0000_fee0_001b,
                    cached(0xfee0_0000, WRITE, Memory::Device),
                ),
                // P, RW, US, PS: 2 MiB and 1 GiB.
                (
                    L::PMD,
                    0x8000_0000_4020_0087,
                    leaf(0x4020_0000, USER_WRITE, NONE),
                ),
                (
                    L::PUD,
                    0x8000_0001_4000_0087,
                    leaf(0x1_4000_0000, USER_WRITE, NONE),
                ),
                // No access: present=0, bit 57, the address inverted.
                (
                    L::PTE,
                    0x820f_ffff_edcb_a006,
                    leaf(0x1234_5000, USER_WRITE, Marks::NO_ACCESS),
                ),
                (
                    L::PMD,
                    0x820f_ffff_bfc0_0086,
                    leaf(0x4020_0000, USER_WRITE, Marks::NO_ACCESS),
                ),
                (L::PMD, 0x0000_0000_0765_4007, table(0x765_4000)),
                (L::P4D, 0x000f_ffff_ffff_f007, table(0xf_ffff_ffff_f000)),
                (L::PTE, 0x0c0f_ffff_fffc_b200, swap(3, 0x34)),
                (L::PMD, 0x000f_ffff_edcb_a806, migration(0x12345)),
                (
                    L::PTE,
                    0x000f_ffff_ffff_ae00,
                    Entry::Absent(Absent::Marker { payload: 5 }),
                ),
                (L::PTE, 0, Entry::None),
            ],
        );
        bad(
            arch,
            &[
                (L::P4D, 0x0000_0000_4000_0087), // A leaf on the fourth level.
                (L::PMD, 0x0000_0000_4020_2087), // Bit 13 of a 2 MiB leaf.
                (L::PUD, 0x0000_0000_4020_0087), // Bit 21 of a 1 GiB leaf.
                (L::PTE, 0x0400_0000_0000_1003), // Saved-dirty and writable.
                (L::PTE, 0x0000_0000_0000_1100), // Not present and of no kind.
                (L::PMD, 0x8000_0000_0765_4007), // A table without execution.
            ],
        );
    }
}

#[test]
fn x86_pae() {
    check(
        Arch::X86Pae,
        &[
            (
                L::PTE,
                0x8000_0000_1234_5067,
                leaf(0x1234_5000, USER_WRITE, BOTH),
            ),
            // D without RW is nothing special here.
            (L::PTE, 0x8000_0000_1234_5065, leaf(0x1234_5000, USER, BOTH)),
            (
                L::PMD,
                0x8000_000f_4020_0087,
                leaf(0xf_4020_0000, USER_WRITE, NONE),
            ),
            // No access: bit 2 says so, bit 57 is US, the address inverted.
            (
                L::PTE,
                0x820f_ffff_edcb_a006,
                leaf(0x1234_5000, USER_WRITE, Marks::NO_ACCESS),
            ),
            (
                L::PTE,
                0x800f_ffff_edcb_a004,
                leaf(0x1234_5000, READ, Marks::NO_ACCESS),
            ),
            (L::PMD, 0x0000_0000_0765_4007, table(0x765_4000)),
            // An entry of the root has P and an address.
            (L::PUD, 0x0000_0000_0765_4001, table(0x765_4000)),
            (L::PTE, 0x0c0f_ffff_fffc_b200, swap(3, 0x34)),
            (L::PTE, 0x006f_ffff_edcb_a800, migration(0x12345)),
        ],
    );
    bad(
        Arch::X86Pae,
        &[
            (L::PUD, 0x0000_0000_0765_4003), // RW in the root.
            (L::PUD, 0x0000_0000_4000_0081), // A leaf in the root.
            (L::PTE, 0x0010_0000_1234_5001), // Bit 52.
            (L::PTE, 0x4000_0000_1234_5001), // Bit 62: there are no keys.
        ],
    );
}

#[test]
fn arm64() {
    // Page, attribute 0, AP[2], inner shareable, AF, nG; PXN, UXN; AP[1].
    let user_read = leaf(0x1234_5000, USER, Marks::YOUNG);
    check(
        Arch::Arm64K4,
        &[
            (L::PTE, 0x0060_0000_1234_5fc3, user_read),
            // DBM and AP[2]: may be written, clean.
            (
                L::PTE,
                0x0068_0000_1234_5fc3,
                leaf(0x1234_5000, USER_WRITE, Marks::YOUNG),
            ),
            // DBM alone: dirty.
            (
                L::PTE,
                0x0068_0000_1234_5f43,
                leaf(0x1234_5000, USER_WRITE, BOTH),
            ),
            // Bit 55: dirty, may not be written.
            (L::PTE, 0x00e0_0000_1234_5fc3, leaf(0x1234_5000, USER, BOTH)),
            // User text: PXN alone. Execute only: AP[1] is 0.
            (
                L::PTE,
                0x0020_0000_1234_5bc3,
                leaf(0x1234_5000, USER_FETCH, NONE),
            ),
            (
                L::PTE,
                0x0020_0000_1234_5b83,
                leaf(0x1234_5000, Access::EXEC.union(Access::USER), NONE),
            ),
            // Kernel text, global: UXN alone, nG is 0.
            (
                L::PTE,
                0x0040_0000_1234_5783,
                leaf(0x1234_5000, FETCH, Marks::GLOBAL.union(Marks::YOUNG)),
            ),
            // A block has 0 in bit 1.
            (
                L::PMD,
                0x0068_0000_4020_0f41,
                leaf(0x4020_0000, USER_WRITE, BOTH),
            ),
            (
                L::PUD,
                0x0068_0000_4000_0f41,
                leaf(0x4000_0000, USER_WRITE, BOTH),
            ),
            // Attribute 3.
            (
                L::PTE,
                0x0068_0000_0900_0b8f,
                cached(0x900_0000, WRITE, Memory::Device),
            ),
            // Invalid with bit 59: no access.
            (
                L::PTE,
                0x0868_0000_1234_5bc2,
                leaf(0x1234_5000, USER_WRITE, Marks::NO_ACCESS),
            ),
            (L::PMD, 0x0000_0000_0765_4003, table(0x765_4000)),
            (L::PTE, 0x0030_0000_0003_4004, swap(3, 0x34)),
            (L::PTE, 0x0000_0000_1234_5070, migration(0x12345)),
        ],
    );
    check(
        Arch::Arm64K16,
        &[
            (
                L::PTE,
                0x0060_0000_1234_4fc3,
                leaf(0x1234_4000, USER, Marks::YOUNG),
            ),
            (
                L::PMD,
                0x0068_0000_4200_0f41,
                leaf(0x4200_0000, USER_WRITE, BOTH),
            ),
            (L::P4D, 0x0000_0000_0765_4003, table(0x765_4000)),
        ],
    );
    check(
        Arch::Arm64K64,
        &[
            (
                L::PTE,
                0x0060_0000_1234_0fc3,
                leaf(0x1234_0000, USER, Marks::YOUNG),
            ),
            (
                L::PMD,
                0x0068_0000_6000_0f41,
                leaf(0x6000_0000, USER_WRITE, BOTH),
            ),
            (L::PUD, 0x0000_0000_0765_0003, table(0x765_0000)),
        ],
    );
    bad(
        Arch::Arm64K4,
        &[
            (L::PTE, 0x0060_0000_1234_5fc1), // The reserved form of a page.
            (L::P4D, 0x0068_0000_4000_0f41), // A block on the fourth level.
            (L::PTE, 0x0060_0000_1234_5f43), // Writable without DBM.
            (L::PTE, 0x00e8_0000_1234_5fc3), // Dirty in two ways.
            (L::PTE, 0x0060_0000_1234_5cc3), // Not shareable.
            (L::PMD, 0x0070_0000_4020_0fc1), // Contiguous.
        ],
    );
    bad(Arch::Arm64K16, &[(L::PUD, 0x0068_0010_0000_0f41)]);
    bad(
        Arch::Arm64K64,
        &[
            (L::PUD, 0x0068_0400_0000_0f41),
            (L::PTE, 0x0060_0000_1234_1fc3),
        ],
    );
}

#[test]
fn ppc64() {
    for arch in [Arch::Ppc64K4, Arch::Ppc64K64] {
        check(
            arch,
            &[
                // V, L; R, C; EAA: R, W.
                (
                    L::PTE,
                    0xc000_0000_1234_0186,
                    leaf(0x1234_0000, USER_WRITE, BOTH),
                ),
                // EAA: privileged, R, X.
                (
                    L::PTE,
                    0xc000_0000_1234_010d,
                    leaf(0x1234_0000, FETCH, Marks::YOUNG),
                ),
                // Software bits 9, 10, 11 and 61.
                (
                    L::PTE,
                    0xe000_0000_1234_0e0c,
                    leaf(
                        0x1234_0000,
                        READ,
                        Marks::GLOBAL | Marks::SOFT_DIRTY | Marks::UFFD_WP | Marks::SPECIAL,
                    ),
                ),
                // ATT: non-idempotent, tolerant.
                (
                    L::PTE,
                    0xc000_0000_1234_002e,
                    cached(0x1234_0000, WRITE, Memory::Device),
                ),
                (
                    L::PTE,
                    0xc000_0000_1234_003e,
                    cached(0x1234_0000, WRITE, Memory::WriteCombining),
                ),
                (
                    L::PMD,
                    0xc000_0000_4020_0186,
                    leaf(0x4020_0000, USER_WRITE, BOTH),
                ),
                (
                    L::PUD,
                    0xc000_0000_4000_0186,
                    leaf(0x4000_0000, USER_WRITE, BOTH),
                ),
                // Leaf without V: no access.
                (
                    L::PTE,
                    0x4000_0000_1234_0006,
                    leaf(0x1234_0000, USER_WRITE, Marks::NO_ACCESS),
                ),
                // The next level's bits in NLS.
                (L::PUD, 0x8000_0000_0765_4009, table(0x765_4000)),
                (L::P4D, 0x8000_0000_0765_4009, table(0x765_4000)),
                (L::PTE, 0x0600_0000_0003_4200, swap(3, 0x34)),
                (L::PTE, 0x0000_0000_1234_5806, migration(0x12345)),
            ],
        );
        bad(
            arch,
            &[
                (L::P4D, 0xc000_0000_4000_0186), // A leaf at the top.
                (L::PTE, 0xc000_0000_1234_0182), // Stores without loads.
                (L::PTE, 0xc000_0000_1234_0016), // Strong order, which later processors lack.
                (L::PTE, 0xd000_0000_1234_0186), // A reserved bit.
                (L::PUD, 0x8000_0000_0765_4008), // A table of another size.
                (L::PTE, 0x8000_0000_0765_4009), // A table below the last level.
            ],
        );
    }
    check(
        Arch::Ppc64K4,
        &[(L::PMD, 0x8000_0000_0765_4009, table(0x765_4000))],
    );
    // 32 entries of 64 KiB: a table of 256 bytes.
    check(
        Arch::Ppc64K64,
        &[(L::PMD, 0x8000_0000_0765_4305, table(0x765_4300))],
    );
    bad(Arch::Ppc64K64, &[(L::PTE, 0xc000_0000_1234_5186)]);
    // In memory the highest byte comes first.
    assert_eq!(
        Arch::Ppc64K4.to_memory(0xc000_0000_1234_0186).to_ne_bytes()[0],
        0xc0
    );
}

#[test]
fn riscv64() {
    for arch in [Arch::Riscv64Sv39, Arch::Riscv64Sv48] {
        check(
            arch,
            &[
                // V, R, W, U, A, D; PPN from bit 10.
                (
                    L::PTE,
                    0x0000_0000_048d_14d7,
                    leaf(0x1234_5000, USER_WRITE, BOTH),
                ),
                // V, R, X, G, A.
                (
                    L::PTE,
                    0x0000_0000_2000_006b,
                    leaf(0x8000_0000, FETCH, Marks::GLOBAL.union(Marks::YOUNG)),
                ),
                // V, X, U: execute only.
                (
                    L::PTE,
                    0x0000_0000_2000_0019,
                    leaf(0x8000_0000, Access::EXEC.union(Access::USER), NONE),
                ),
                // RSW.
                (
                    L::PTE,
                    0x0000_0000_2000_0303,
                    leaf(0x8000_0000, READ, Marks::SPECIAL.union(Marks::SOFT_DIRTY)),
                ),
                (
                    L::PMD,
                    0x0000_0000_2008_0007,
                    leaf(0x8020_0000, WRITE, NONE),
                ),
                (
                    L::PUD,
                    0x0000_0000_2000_0007,
                    leaf(0x8000_0000, WRITE, NONE),
                ),
                // PBMT 1 and 2.
                (
                    L::PTE,
                    0x2000_0000_0400_0007,
                    cached(0x1000_0000, WRITE, Memory::WriteCombining),
                ),
                (
                    L::PTE,
                    0x4000_0000_0400_0007,
                    cached(0x1000_0000, WRITE, Memory::Device),
                ),
                // Invalid with bit 58: no access.
                (
                    L::PTE,
                    0x0400_0000_048d_1416,
                    leaf(0x1234_5000, USER_WRITE, Marks::NO_ACCESS),
                ),
                (L::PMD, 0x0000_0000_01d9_5001, table(0x765_4000)),
                (L::PTE, 0x1800_0000_0000_d002, swap(3, 0x34)),
                (L::PTE, 0x0000_0000_048d_1438, migration(0x12345)),
            ],
        );
        bad(
            arch,
            &[
                (L::PTE, 0x0000_0000_2000_0005), // W without R.
                (L::PTE, 0x0000_0000_2000_0001), // A table below the last level.
                (L::PMD, 0x0000_0000_2000_0407), // Askew.
                (L::PMD, 0x0000_0000_2000_0041), // A table with A.
                (L::PTE, 0x8000_0000_2000_0007), // N.
                (L::PTE, 0x6000_0000_2000_0007), // PBMT 3.
                (L::PTE, 0x0040_0000_2000_0007), // Bit 54.
            ],
        );
    }
    let terabytes = leaf(0x80_0000_0000, WRITE, NONE);
    check(
        Arch::Riscv64Sv48,
        &[(L::P4D, 0x0000_0020_0000_0007, terabytes)],
    );
}
