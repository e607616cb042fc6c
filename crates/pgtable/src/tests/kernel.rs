//! Kernel mappings, dumps, and reports of bad accesses.

use super::*;
use crate::dump::{Kind, Range, Ranges, WritableAndExecutable};
use crate::format::{Arm64K4, Level, X86_64};
use crate::kernel_map::{Alias, KernelMap};
use crate::{BadAccess, Error, FaultCode, Pmd, Pte, TableHost};
use flagstone_types::VirtAddr;
use std::string::ToString;

const DIRECT: usize = 0xffff_8880_0000_0000;
const TEXT: usize = 0xffff_ffff_8000_0000;
const MIB: usize = 1 << 20;

fn kernel(at: u64, access: Access) -> Leaf {
    Leaf::kernel(PhysAddr(at), access).mark(Marks::YOUNG | Marks::DIRTY | Marks::GLOBAL)
}

const RW_NX: Access = Access::READ.union(Access::WRITE);
const RX: Access = Access::READ.union(Access::EXEC);

/// 8 MiB of memory, linear, and 4 MiB of it, from 2 MiB on, at the text's place.
fn map_kernel<H: TableHost>(table: &PageTable<'_, H, X86_64>) {
    let ops = table.shared();
    ops.map::<Pmd>(VirtAddr(DIRECT), &kernel(0, RW_NX), 4)
        .unwrap();
    let all = RW_NX.union(Access::EXEC);
    ops.map::<Pmd>(VirtAddr(TEXT), &kernel(2 << 20, all), 2)
        .unwrap();
}

const ALIASES: [Alias; 2] = [
    Alias {
        range: VirtRange::new(DIRECT, 8 * MIB),
        to: PhysAddr(0),
    },
    Alias {
        range: VirtRange::new(TEXT, 4 * MIB),
        to: PhysAddr(2 << 20),
    },
];

fn access_at<H: TableHost>(table: &PageTable<'_, H, X86_64>, at: usize) -> (Level, Access) {
    let found = table.shared().lookup(VirtAddr(at)).unwrap();
    (found.level, found.leaf().unwrap().access())
}

fn with_kernel(
    test: impl FnOnce(
        &PageTable<'_, TestHost<'_>, X86_64>,
        &KernelMap<'_, '_, TestHost<'_>, X86_64>,
        &Unit,
    ),
) {
    with_table::<X86_64, 12>(ALL, |table, unit| {
        map_kernel(table);
        unit.take();
        // SAFETY: nothing runs on it.
        let map = unsafe { KernelMap::new(table, &ALIASES) };
        test(table, &map, unit);
        let ops = table.shared();
        unmap(&ops, VirtRange::new(DIRECT, 8 * MIB));
        unmap(&ops, VirtRange::new(TEXT, 4 * MIB));
    });
}

#[test]
fn read_only_spreads_to_aliases_and_no_execute_does_not() {
    with_kernel(|table, map, _| {
        map.set_memory_rox(VirtRange::new(TEXT + 0x3000, 0x2000))
            .unwrap();
        assert_eq!(access_at(table, TEXT + 0x3000), (Level::PTE, RX));
        assert_eq!(
            access_at(table, TEXT + 0x5000),
            (Level::PTE, RX | Access::WRITE)
        );
        assert_eq!(
            access_at(table, TEXT + 2 * MIB).0,
            Level::PMD,
            "only what must be is split"
        );
        assert_eq!(
            access_at(table, DIRECT + 2 * MIB + 0x4000),
            (Level::PTE, Access::READ)
        );
        assert_eq!(
            access_at(table, DIRECT + 2 * MIB + 0x5000),
            (Level::PTE, RW_NX)
        );
        map.set_memory_nx(VirtRange::new(TEXT, 4 * MIB)).unwrap();
        assert_eq!(access_at(table, TEXT + 0x3000).1, Access::READ);
        map.set_memory_x(VirtRange::new(DIRECT, 2 * MIB)).unwrap();
        assert_eq!(access_at(table, DIRECT), (Level::PMD, RW_NX | Access::EXEC));
        assert_eq!(access_at(table, TEXT).1, RW_NX);
    });
}

#[test]
fn equal_parts_are_joined_again() {
    with_kernel(|table, map, unit| {
        let tables = table.table_count();
        let part = VirtRange::new(TEXT + 0x3000, 0x2000);
        map.set_memory_ro(part).unwrap();
        assert_eq!(table.table_count(), tables + 2);
        map.set_memory_rw(part).unwrap();
        assert_eq!(table.table_count(), tables);
        assert_eq!(access_at(table, TEXT + 0x3000).0, Level::PMD);
        assert_eq!(access_at(table, DIRECT + 2 * MIB).0, Level::PMD);
        unit.take();
        map.force_split(VirtRange::new(TEXT, 2 * MIB)).unwrap();
        assert_eq!(
            map.bytes_by_level(VirtRange::new(TEXT, 4 * MIB))
                .unwrap()
                .map(|b| b.0 / MIB),
            [0, 2, 2, 0, 0, 0]
        );
        map.set_memory_rw(VirtRange::new(TEXT, 2 * MIB)).unwrap();
        assert_eq!(access_at(table, TEXT).0, Level::PMD);
    });
}

#[test]
fn a_hole_is_named_and_nothing_changes() {
    with_kernel(|table, map, unit| {
        let hole = Error::NotMapped(VirtAddr(DIRECT + 8 * MIB));
        assert_eq!(
            map.set_memory_ro(VirtRange::new(DIRECT + 6 * MIB, 4 * MIB)),
            Err(hole)
        );
        assert_eq!(
            map.set_memory_ro(VirtRange::new(DIRECT + 16 * MIB, MIB)),
            Err(Error::NotMapped(VirtAddr(DIRECT + 16 * MIB)))
        );
        assert_eq!(access_at(table, DIRECT + 6 * MIB), (Level::PMD, RW_NX));
        let unaligned = Error::Misaligned {
            value: DIRECT as u64 + 5,
            shift: 12,
        };
        assert_eq!(
            map.set_memory_ro(VirtRange::new(DIRECT + 5, 4096)),
            Err(unaligned)
        );
        assert!(unit.take().is_empty());
    });
    with_table::<Arm64K4, 12>(ALL, |table, _| {
        let ops = table.shared();
        ops.map::<Pmd>(VirtAddr(0), &leaf(0, RW), 1).unwrap();
        // SAFETY: nothing runs on it.
        let map = unsafe { KernelMap::new(table, &[]) };
        map.set_memory_ro(VirtRange::new(0, 2 * MIB)).unwrap();
        assert_eq!(
            map.set_memory_rw(VirtRange::new(0, 4096)),
            Err(Error::NoSuchEntry(Level::PMD))
        );
        unmap(&ops, VirtRange::new(0, 2 * MIB));
    });
}

fn ranges<H: TableHost>(table: &PageTable<'_, H, X86_64>) -> Vec<Range> {
    let host = table.frames().host();
    // SAFETY: the tables stay.
    let read = |at| Some(unsafe { flagstone_host::TableMemory::load_entry(&host, at) });
    Ranges::<X86_64, _>::new(table.root(), Reach::Whole, read).collect()
}

#[test]
fn a_dump_has_the_longest_ranges_and_finds_what_is_writable_and_executable() {
    with_kernel(|table, map, _| {
        let ops = table.shared();
        ops.map_each::<Pte>(VirtAddr(0x1000), 3, |n| leaf((n as u64 * 5) << 12, RW))
            .unwrap();
        map.set_memory_ro(VirtRange::new(DIRECT + 0x1000, 0x1000))
            .unwrap();
        let all = ranges(table);
        let lines: Vec<_> = all.iter().map(ToString::to_string).collect();
        assert_eq!(
            lines,
            [
                "0x0000000000001000-0x0000000000004000       12K USR RW        NX pte",
                "0xffff888000000000-0xffff888000001000        4K     RW    GLB NX pte",
                "0xffff888000001000-0xffff888000002000        4K     ro    GLB NX pte",
                "0xffff888000002000-0xffff888000200000     2040K     RW    GLB NX pte",
                "0xffff888000200000-0xffff888000800000        6M     RW    GLB NX pmd",
                "0xffffffff80000000-0xffffffff80400000        4M     RW    GLB x  pmd",
            ]
        );
        assert!(!all[0].is_contiguous && all[4].is_contiguous);
        assert!(matches!(all[0].kind, Kind::Leaf { .. }));
        let found = WritableAndExecutable::of(all);
        assert_eq!(found.bytes, 4 * MIB);
        assert_eq!(
            found.to_string(),
            "W+X mappings: 4096 KiB found, the first at 0xffffffff80000000"
        );
        map.set_memory_nx(VirtRange::new(TEXT, 4 * MIB)).unwrap();
        assert_eq!(
            WritableAndExecutable::of(ranges(table)).to_string(),
            "W+X mappings: none found"
        );
        unmap(&ops, VirtRange::new(0x1000, 0x3000));
    });
}

#[test]
fn a_dump_of_a_broken_image_shows_what_it_can_not_follow() {
    let read = |at: PhysAddr| match at.0 {
        0x1000 => Some(0x2000 | 7),
        0x1008 => Some(0x9000 | 7),
        0x1ff8 => Some(0xffff_ffff_ffff_ffff),
        0x1010..0x1ff8 | 0x2000..0x3000 => Some(0),
        _ => None,
    };
    let all: Vec<_> = Ranges::<X86_64, _>::new(PhysAddr(0x1000), Reach::Whole, read).collect();
    assert!(
        matches!(all[0].kind, Kind::Unreadable(PhysAddr(0x9000))),
        "{all:?}"
    );
    assert!(
        matches!(all[1].kind, Kind::Bad(_)) && all[1].last == VirtAddr(usize::MAX),
        "{all:?}"
    );
    assert_eq!(all.len(), 2);
}

#[test]
fn a_bad_access_is_reported_with_the_entry_of_every_level() {
    with_kernel(|table, _, _| {
        let host = table.frames().host();
        // SAFETY: the tables stay.
        let read = |at| Some(unsafe { flagstone_host::TableMemory::load_entry(&host, at) });
        let at = VirtAddr(DIRECT + 0x123_4567);
        let code = FaultCode::WRITE;
        let bad = BadAccess::<X86_64>::new(table.root(), Reach::Whole, at, code, read);
        let text = bad.to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[0],
            "bad supervisor write access at address 0xffff888001234567"
        );
        assert_eq!(lines[1], "#PF: error_code(0x0002) - not-present page");
        assert!(
            lines[2].starts_with("pgd ") && lines[3].starts_with("pud "),
            "{text}"
        );
        assert_eq!(lines[4], "pmd 0000000000000000 none");
        let at = VirtAddr(DIRECT);
        let code = FaultCode::PRESENT | FaultCode::FETCH | FaultCode::USER;
        let bad = BadAccess::<X86_64>::new(table.root(), Reach::Whole, at, code, read);
        assert_eq!(bad.reason(), "permissions violation");
        assert_eq!(bad.last().unwrap().0, Level::PMD);
        assert!(bad.to_string().contains("bad user instruction fetch"));
        let odd =
            BadAccess::<X86_64>::new(table.root(), Reach::Whole, VirtAddr(1 << 50), code, read);
        assert!(odd.to_string().ends_with("not canonical"));
    });
}
