//! Device memory whose records are mapped page by page: what is saved, and that nobody can tell.

use super::order;
use crate::{DeviceMemory, DeviceRequest, Frames, MemmapHome, MemmapInfo, NotShared, PageKind};
use flagstone_host::{MemmapArch, MemmapCaps, PageMap};
use flagstone_seeded::{Builder, Machine};
use flagstone_types::{FreeError, Nid, Pfn, PfnRange, Zone};
use std::string::ToString;

/// A machine with devices of so many frames, at multiples of so many.
fn machine<const SHIFT: u32>(
    arch: MemmapArch,
    huge_pud: bool,
    devices: &[usize],
    align: u32,
) -> Machine<SHIFT, 10> {
    let caps = MemmapCaps::new(arch, SHIFT, true, huge_pud);
    let builder = Builder::<SHIFT, 10>::new().cpus(1).memory(2 << 10);
    devices
        .iter()
        .fold(builder.memmap(caps), |builder, &pages| {
            builder.device(Nid(0), pages, order(align))
        })
        .build()
}

fn request(frames: PfnRange, compound: u32) -> DeviceRequest {
    DeviceRequest {
        frames,
        compound: order(compound),
        home: MemmapHome::System,
    }
}

fn add<const SHIFT: u32>(
    frames: &Frames<&Machine<SHIFT, 10>>,
    request: DeviceRequest,
) -> DeviceMemory {
    let memory = frames.add_device_memory(request).unwrap();
    frames.validate().unwrap();
    memory
}

/// Every frame finds the head of its compound, and only heads are heads.
fn check_heads<const SHIFT: u32>(frames: &Frames<&Machine<SHIFT, 10>>, memory: &DeviceMemory) {
    let compound = memory.compound();
    let usable = memory.usable();
    // All of the first and the last compound, and some of what is between.
    let step = |n: usize| {
        let near = n < compound.pages() || usable.pages - n <= compound.pages();
        near || n.is_multiple_of(61)
    };
    for n in (0..usable.pages).filter(|&n| step(n)) {
        let pfn = usable.start.add(n);
        let (head, page) = frames.head(pfn).unwrap();
        assert_eq!(head.0, pfn.0 & !(compound.pages() - 1));
        assert_eq!((page.kind(), page.order()), (PageKind::Device, compound));
        let own = frames.page(pfn).unwrap();
        assert_eq!(own.kind() == PageKind::Tail, head != pfn);
        assert_eq!((own.nid(), own.zone()), (memory.nid(), Zone::Device));
    }
}

fn counts<const SHIFT: u32>(
    arch: MemmapArch,
    compound: u32,
    pages: usize,
    saved: usize,
    of: usize,
) {
    let m = machine::<SHIFT>(arch, true, &[pages], compound);
    let f = Frames::new(&m).unwrap();
    let free = f.free_count(Nid(0));
    let memory = add(&f, request(m.device_ranges()[0], compound));
    let compounds = pages >> compound;
    let expected = MemmapInfo {
        pages: (of - saved) * compounds,
        saved: saved * compounds,
    };
    assert_eq!(memory.memmap(), expected);
    assert_eq!(
        m.mapped_memmap(),
        (expected.total(), expected.pages),
        "what is mapped is what is counted"
    );
    f.drain_page_lists();
    assert_eq!(f.free_count(Nid(0)), free - expected.pages);
    check_heads(&f, &memory);
    // SAFETY: D3: nobody else is here.
    unsafe { f.remove_device_memory(memory) };
    f.drain_page_lists();
    assert_eq!((f.free_count(Nid(0)), m.mapped_memmap()), (free, (0, 0)));
    f.validate().unwrap();
    m.check_memory().unwrap();
}

#[test]
fn a_compound_of_1_gib_of_64_kib_pages_saves_14_of_16() {
    counts::<16>(MemmapArch::Ppc64 { radix: true }, 14, 1 << 14, 14, 16);
}

#[test]
fn a_compound_of_1_gib_of_4_kib_pages_saves_4094_of_4096() {
    counts::<12>(MemmapArch::X86_64, 18, 1 << 18, 4094, 4096);
}

#[test]
fn compounds_of_2_mib_of_4_kib_pages_save_6_of_8_each() {
    counts::<12>(MemmapArch::X86_64, 9, 2 << 10, 6, 8);
    counts::<12>(MemmapArch::Ppc64 { radix: true }, 9, 8 << 10, 6, 8);
}

#[test]
fn other_page_sizes_save_what_they_can() {
    counts::<14>(MemmapArch::Riscv64, 11, 4 << 10, 6, 8);
    // 2 MiB of 64 KiB pages: 32 compounds have their records in one page.
    let m = machine::<16>(MemmapArch::Ppc64 { radix: true }, true, &[1 << 10], 10);
    let f = Frames::new(&m).unwrap();
    let memory = add(&f, request(m.device_ranges()[0], 5));
    assert_eq!(memory.sharing(), Err(NotShared::Small));
    assert_eq!(memory.memmap(), MemmapInfo { pages: 1, saved: 0 });
    check_heads(&f, &memory);
}

#[test]
fn every_tail_of_a_shared_compound_is_the_same_record() {
    let m = machine::<12>(MemmapArch::X86_64, true, &[2 << 10], 9);
    let f = Frames::new(&m).unwrap();
    let memory = add(&f, request(m.device_ranges()[0], 9));
    let host: &Machine<12, 10> = &m;
    let bytes = |pfn: Pfn| {
        let meta = (&host).meta(pfn).unwrap().cast::<[u64; 8]>();
        // SAFETY: a record is 64 bytes, and nobody writes now.
        unsafe { (meta, meta.read()) }
    };
    for compound in (0..memory.frames().pages).step_by(512) {
        let start = memory.frames().start.add(compound);
        let (first, tail) = bytes(start.add(64));
        for n in 1..512 {
            let (at, record) = bytes(start.add(n));
            assert_eq!(record, tail);
            assert_eq!(at == first, n >= 64 && n % 64 == 0, "tail {n}");
        }
        assert_ne!(bytes(start).1, tail);
    }
    // They are mapped read only: a write is found.
    let word = bytes(memory.frames().start.add(130)).0.cast::<u64>();
    // SAFETY: the word is there, and nobody reads it now; that it may not be written is what is shown.
    unsafe { word.add(7).write(1) };
    assert!(m.check_memory().unwrap_err().contains("read only"));
    // SAFETY: as above.
    unsafe { word.add(7).write(0) };
    m.check_memory().unwrap();
}

#[test]
fn a_head_is_its_owners() {
    let m = machine::<12>(MemmapArch::X86_64, true, &[1 << 10], 10);
    let f = Frames::new(&m).unwrap();
    let memory = add(&f, request(m.device_ranges()[0], 9));
    let start = memory.frames().start;
    f.page(start).unwrap().set_kind(PageKind::File);
    let (head, page) = f.head(start.add(300)).unwrap();
    assert_eq!((head, page.kind()), (start, PageKind::File));
    let (head, page) = f.head(start.add(700)).unwrap();
    assert_eq!((head, page.kind()), (start.add(512), PageKind::Device));
    f.validate().unwrap();
    // It is no block of the lists, whatever its kind.
    assert_eq!(f.check_block(start, order(9)), Err(FreeError::NotAllocated));
    assert_eq!(
        f.check_block(start.add(3), order(0)),
        Err(FreeError::Interior { offset: 3 << 12 })
    );
    m.check_memory().unwrap();
}

#[test]
fn nothing_is_shared_where_the_machine_does_not_do_so() {
    let arches = [
        (MemmapArch::Arm64, true, NotShared::Switch),
        (MemmapArch::Ppc64 { radix: false }, true, NotShared::Switch),
        (MemmapArch::X86_64, false, NotShared::NoLeaf),
    ];
    for (arch, huge_pud, why) in arches {
        let m = machine::<12>(arch, huge_pud, &[16 << 10], 14);
        let f = Frames::new(&m).unwrap();
        let memory = add(&f, request(m.device_ranges()[0], 14));
        assert_eq!(memory.sharing(), Err(why));
        assert_eq!(m.mapped_memmap(), (256, 256));
        assert_eq!(memory.memmap().saved, 0);
        check_heads(&f, &memory);
        // SAFETY: D3: nobody else is here.
        unsafe { f.remove_device_memory(memory) };
        f.validate().unwrap();
    }
}

#[test]
fn single_frames_have_records_of_their_own() {
    let m = machine::<12>(MemmapArch::X86_64, true, &[1 << 10], 10);
    let f = Frames::new(&m).unwrap();
    let memory = add(&f, request(m.device_ranges()[0], 0));
    assert_eq!(memory.sharing(), Err(NotShared::NotCompound));
    assert_eq!(m.mapped_memmap(), (16, 16));
    check_heads(&f, &memory);
}

#[test]
fn a_device_can_keep_its_records_itself() {
    let m = machine::<12>(MemmapArch::X86_64, true, &[4 << 10], 10);
    let f = Frames::new(&m).unwrap();
    let free = f.free_count(Nid(0));
    let range = m.device_ranges()[0];
    let own = DeviceRequest {
        home: MemmapHome::Device { pages: 512 },
        ..request(range, 9)
    };
    let memory = add(&f, own);
    assert_eq!(memory.sharing(), Err(NotShared::OwnMemmap));
    assert_eq!(
        memory.memmap(),
        MemmapInfo {
            pages: 64,
            saved: 0
        }
    );
    assert_eq!((f.free_count(Nid(0)), m.mapped_memmap()), (free, (64, 64)));
    assert_eq!(memory.usable(), PfnRange::new(range.start.add(512), 3584));
    check_heads(&f, &memory);
    for n in [0, 1, 63, 64, 511] {
        let (head, page) = f.head(range.start.add(n)).unwrap();
        assert_eq!((head, page.kind()), (range.start, PageKind::Reserved));
    }
    // SAFETY: D3: nobody else is here.
    unsafe { f.remove_device_memory(memory) };
    f.validate().unwrap();
    let again = add(&f, request(range, 9));
    assert_eq!(again.sharing(), Ok(()));
}

#[test]
fn devices_come_and_go_in_any_order() {
    let sizes = [1 << 10, 2 << 10, 1 << 10];
    let m = machine::<12>(MemmapArch::X86_64, true, &sizes, 10);
    let f = Frames::new(&m).unwrap();
    let ranges = m.device_ranges();
    let span = || {
        f.report()
            .find(|zone| zone.zone == Zone::Device)
            .map(|zone| (zone.start, zone.start.add(zone.spanned), zone.managed))
    };
    for leave in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        let mut devices = ranges
            .iter()
            .map(|&range| Some(add(&f, request(range, 9))))
            .collect::<std::vec::Vec<_>>();
        for which in leave {
            // SAFETY: D3: nobody else is here.
            unsafe { f.remove_device_memory(devices[which].take().unwrap()) };
            f.validate().unwrap();
            assert!(f.page(ranges[which].start).is_none());
            let there = || devices.iter().flatten().map(DeviceMemory::frames);
            let expected = there().map(|range| range.start).min().map(|start| {
                let end = there().map(PfnRange::end).max().unwrap();
                (start, end, there().map(|range| range.pages).sum::<usize>())
            });
            assert_eq!(span(), expected);
        }
    }
    assert_eq!(m.mapped_memmap(), (0, 0));
}

#[test]
fn zoneinfo_says_what_records_take() {
    let m = machine::<12>(MemmapArch::X86_64, true, &[1 << 10], 10);
    let f = Frames::new(&m).unwrap();
    assert!(!f.zoneinfo().to_string().contains("memmap"));
    let memory = add(&f, request(m.device_ranges()[0], 9));
    let text = f.zoneinfo().to_string();
    let lines: std::vec::Vec<_> = text
        .lines()
        .filter(|line| line.contains("memmap"))
        .collect();
    assert_eq!(lines, ["      nr_memmap 4", "      nr_memmap_saved 12"]);
    let report = f.report().find(|zone| zone.zone == Zone::Device).unwrap();
    assert_eq!(report.memmap, memory.memmap());
    assert_eq!(memory.memmap().to_string(), "12 of 16 pages saved");
}
