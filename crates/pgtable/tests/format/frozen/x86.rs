//! Long mode and PAE.

use super::*;
use crate::sample::shadow_stack;

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
