//! Our bits against those that other crates publish.

use aarch64_paging::descriptor::El1Attributes as Arm;
use flagstone_pgtable::format::{
    Access, Arm64K4, Format, Leaf, Level, Marks, Memory, X86_64, X86Pae,
};
use flagstone_types::PhysAddr;
use x86_64::structures::paging::PageTableFlags as X86;

const AT: PhysAddr = PhysAddr(0x1_4000_0000);

fn leaf(access: Access, marks: Marks) -> Leaf {
    Leaf::kernel(AT, access).mark(marks)
}

/// Leaves and the flags that the `x86_64` crate gives them on the first level.
fn x86() -> Vec<(Leaf, X86)> {
    let read = Access::READ | Access::EXEC;
    let none = Marks::empty();
    vec![
        (leaf(read, none), X86::empty()),
        (leaf(Access::READ, none), X86::NO_EXECUTE),
        (leaf(read | Access::WRITE, none), X86::WRITABLE),
        (leaf(read | Access::USER, none), X86::USER_ACCESSIBLE),
        (leaf(read, Marks::YOUNG), X86::ACCESSED),
        (
            leaf(read | Access::WRITE, Marks::DIRTY),
            X86::WRITABLE | X86::DIRTY,
        ),
        (leaf(read, Marks::GLOBAL), X86::GLOBAL),
        (
            leaf(read, none).cached(Memory::WriteCombining),
            X86::WRITE_THROUGH,
        ),
        (leaf(read, none).cached(Memory::Uncached), X86::NO_CACHE),
        (
            leaf(read, none).cached(Memory::Device),
            X86::NO_CACHE | X86::WRITE_THROUGH,
        ),
        (leaf(read, Marks::SOFT_DIRTY), X86::BIT_9),
        (leaf(read, Marks::UFFD_WP), X86::BIT_10),
        (leaf(read, Marks::SPECIAL), X86::BIT_11),
    ]
}

#[test]
fn x86_leaves_have_the_bits_of_the_x86_64_crate() {
    for (leaf, flags) in x86() {
        let want = AT.0 | (flags | X86::PRESENT).bits();
        assert_eq!(X86_64::leaf(Level::PTE, &leaf), want, "{leaf:?}");
        assert_eq!(X86Pae::leaf(Level::PTE, &leaf), want, "{leaf:?}");
        for level in [Level::PMD, Level::PUD] {
            let want = want | X86::HUGE_PAGE.bits();
            assert_eq!(X86_64::leaf(level, &leaf), want, "{leaf:?}");
        }
        assert_eq!(
            X86Pae::leaf(Level::PMD, &leaf),
            want | X86::HUGE_PAGE.bits()
        );
    }
    let saved = X86_64::leaf(Level::PTE, &leaf(Access::READ, Marks::DIRTY));
    assert_eq!(saved & X86::BIT_58.bits(), X86::BIT_58.bits());
    for (bit, key) in [
        (X86::BIT_59, 1),
        (X86::BIT_60, 2),
        (X86::BIT_61, 4),
        (X86::BIT_62, 8),
    ] {
        let keyed = X86_64::leaf(Level::PTE, &leaf(Access::READ, Marks::empty()).keyed(key));
        assert_eq!(keyed & (0xf << 59), bit.bits());
    }
}

#[test]
fn x86_tables_have_the_bits_of_the_x86_64_crate() {
    let flags = X86::PRESENT | X86::WRITABLE | X86::USER_ACCESSIBLE;
    for level in [Level::PMD, Level::PUD, Level::P4D] {
        assert_eq!(X86_64::table(level, AT), AT.0 | flags.bits());
    }
    assert_eq!(X86Pae::table(Level::PMD, AT), AT.0 | flags.bits());
    assert_eq!(X86Pae::table(Level::PUD, AT), AT.0 | X86::PRESENT.bits());
}

/// Leaves and the attributes that the `aarch64-paging` crate gives them.
fn arm() -> Vec<(Leaf, Arm)> {
    let never = Arm::PXN | Arm::UXN;
    let private = Arm::NON_GLOBAL | Arm::READ_ONLY;
    let none = Marks::empty();
    let read = Access::READ;
    let write = Access::READ | Access::WRITE;
    vec![
        (leaf(read, none), private | never),
        (leaf(read | Access::EXEC, none), private | Arm::UXN),
        (leaf(read | Access::USER, none), private | never | Arm::USER),
        (
            leaf(read | Access::EXEC | Access::USER, none),
            private | Arm::PXN | Arm::USER,
        ),
        (leaf(Access::EXEC | Access::USER, none), private | Arm::PXN),
        (leaf(read, Marks::YOUNG), private | never | Arm::ACCESSED),
        (leaf(read, Marks::GLOBAL), never | Arm::READ_ONLY),
        (leaf(write, none), private | never | Arm::DBM),
        (
            leaf(write, Marks::DIRTY),
            Arm::NON_GLOBAL | never | Arm::DBM,
        ),
        (leaf(read, Marks::DIRTY), private | never | Arm::SWFLAG_0),
        (
            leaf(read, Marks::SOFT_DIRTY),
            private | never | Arm::SWFLAG_1,
        ),
        (leaf(read, Marks::UFFD_WP), private | never | Arm::SWFLAG_2),
        (leaf(read, Marks::SPECIAL), private | never | Arm::SWFLAG_3),
        (
            leaf(read, none).cached(Memory::WriteCombining),
            private | never | Arm::ATTRIBUTE_INDEX_1,
        ),
        (
            leaf(read, none).cached(Memory::Uncached),
            private | never | Arm::ATTRIBUTE_INDEX_2,
        ),
        (
            leaf(read, none).cached(Memory::Device),
            private | never | Arm::ATTRIBUTE_INDEX_3,
        ),
        (
            leaf(read, none).cached(Memory::WriteThrough),
            private | never | Arm::ATTRIBUTE_INDEX_4,
        ),
    ]
}

#[test]
fn arm64_leaves_have_the_bits_of_the_aarch64_paging_crate() {
    for (leaf, attributes) in arm() {
        let block = attributes | Arm::VALID | Arm::INNER_SHAREABLE;
        let page = block | Arm::TABLE_OR_PAGE;
        assert_eq!(
            Arm64K4::leaf(Level::PTE, &leaf),
            AT.0 | page.bits() as u64,
            "{leaf:?}"
        );
        for level in [Level::PMD, Level::PUD] {
            assert_eq!(
                Arm64K4::leaf(level, &leaf),
                AT.0 | block.bits() as u64,
                "{leaf:?}"
            );
        }
    }
    let table = Arm::VALID | Arm::TABLE_OR_PAGE;
    assert_eq!(Arm64K4::table(Level::PMD, AT), AT.0 | table.bits() as u64);
}

#[test]
fn memory_attributes_are_those_of_the_aarch64_paging_crate() {
    use aarch64_paging::mair::{Mair, MairAttribute, NormalMemory};
    let normal = |memory| MairAttribute::normal(memory, memory);
    let mair = Mair::EMPTY
        .with_attribute(
            0,
            normal(NormalMemory::WriteBackNonTransientReadWriteAllocate),
        )
        .with_attribute(1, normal(NormalMemory::NonCacheable))
        .with_attribute(2, MairAttribute::DEVICE_NGNRNE)
        .with_attribute(3, MairAttribute::DEVICE_NGNRE)
        .with_attribute(
            4,
            normal(NormalMemory::WriteThroughNonTransientReadWriteAllocate),
        );
    assert_eq!(mair.0, Arm64K4::MAIR);
}

#[test]
fn memory_types_have_the_numbers_of_the_manual() {
    let [
        uncached,
        combining,
        through,
        protected,
        back,
        uncached_minus,
    ] = [0, 1, 4, 5, 6, 7];
    let types = [
        back,
        combining,
        uncached_minus,
        uncached,
        back,
        protected,
        uncached_minus,
        through,
    ];
    assert_eq!(u64::from_le_bytes(types), X86_64::PAT);
}
