//! arm64, ppc64 radix and riscv64.

use super::*;

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
