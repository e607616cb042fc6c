//! Entries put together by hand from the manuals, in hexadecimal: what the formats are. A change here breaks saved machine images.

mod risc;
mod x86;

use flagstone_pgtable::format::{Absent, Access, Arch, Entry, Leaf, Level, Marks, Memory};
use flagstone_types::PhysAddr;

use Level as L;

pub(super) fn leaf(at: u64, access: Access, marks: Marks) -> Entry {
    Entry::Leaf(Leaf::kernel(PhysAddr(at), access).mark(marks))
}

pub(super) fn cached(at: u64, access: Access, memory: Memory) -> Entry {
    Entry::Leaf(Leaf::kernel(PhysAddr(at), access).cached(memory))
}

pub(super) fn table(at: u64) -> Entry {
    Entry::Table {
        at: PhysAddr(at),
        young: false,
    }
}

pub(super) fn swap(area: u8, offset: u64) -> Entry {
    Entry::Absent(Absent::Swap {
        area,
        offset,
        exclusive: false,
        marks: Marks::empty(),
    })
}

pub(super) fn migration(frame: u64) -> Entry {
    Entry::Absent(Absent::Migration {
        frame,
        write: true,
        marks: Marks::YOUNG | Marks::DIRTY,
    })
}

pub(super) const READ: Access = Access::READ;
pub(super) const WRITE: Access = Access::READ.union(Access::WRITE);
pub(super) const FETCH: Access = Access::READ.union(Access::EXEC);
pub(super) const USER: Access = Access::READ.union(Access::USER);
pub(super) const USER_WRITE: Access = USER.union(Access::WRITE);
pub(super) const USER_FETCH: Access = USER.union(Access::EXEC);
pub(super) const BOTH: Marks = Marks::YOUNG.union(Marks::DIRTY);
pub(super) const NONE: Marks = Marks::empty();

/// Encodes and decodes each line.
pub(super) fn check(arch: Arch, lines: &[(L, u64, Entry)]) {
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

pub(super) fn bad(arch: Arch, lines: &[(L, u64)]) {
    for &(level, raw) in lines {
        assert_eq!(
            arch.decode(level, raw),
            Entry::Bad(raw),
            "{arch} {raw:#018x}"
        );
    }
}
