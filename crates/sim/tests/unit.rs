//! What the unit does right: dirty bits only where they may be, faults where the hardware does not set them, huge pages, halves, determinism.

use flagstone_host::{Asid, Cpus, Invalidate, Mmu, MmuCaps, Shootdown, TableMemory};
use flagstone_sim::{Access, Arch, FaultKind, Kind, Machine, Policy, Report, Rng, task};
use flagstone_types::{CpuMask, PhysAddr, VirtAddr};
use std::cell::Cell;

const VA: VirtAddr = VirtAddr(0x40_0000_5000);
const X86: Arch = Arch::X86_64 { levels: 4 };

/// The entries on the way to `va`, root first, in the first frames of the machine; tables are linked by words that `table` makes.
fn tree<const SHIFT: u32>(
    machine: &Machine<SHIFT>,
    va: VirtAddr,
    table: impl Fn(u8, u64) -> u64,
) -> (PhysAddr, Vec<PhysAddr>) {
    let geometry = machine.arch().geometry();
    let mut next = 0;
    let tables: Vec<u64> = (0..geometry.top)
        .map(|n| {
            let frames = (geometry.table_bytes(geometry.top - n) >> SHIFT).max(1);
            let at = (machine.nth_frame(next).0 as u64) << SHIFT;
            next += frames as usize;
            at
        })
        .collect();
    let host = machine;
    let mut entries = Vec::new();
    for (n, at) in tables.iter().enumerate() {
        let level = geometry.top - n as u8;
        let entry = PhysAddr(at + 8 * geometry.index(level, va.0 as u64));
        entries.push(entry);
        if level > 1 {
            let word = machine.arch().to_memory(table(level, tables[n + 1]));
            // SAFETY: the frames are the test's, and nothing walks them yet.
            unsafe { host.store_entry(entry, word) };
        }
    }
    (PhysAddr(tables[0]), entries)
}

fn set<const SHIFT: u32>(host: &Machine<SHIFT>, at: PhysAddr, raw: u64) {
    let word = host.arch().to_memory(raw);
    // SAFETY: the frames are the test's.
    unsafe { host.exchange_entry(at, word) };
    host.invalidate(&Invalidate::all(None));
}

fn get<const SHIFT: u32>(host: &Machine<SHIFT>, at: PhysAddr) -> u64 {
    // SAFETY: the frames are the test's.
    host.arch().from_memory(unsafe { host.load_entry(at) })
}

fn activate<const SHIFT: u32>(host: &Machine<SHIFT>, root: PhysAddr) {
    // SAFETY: the tables are the test's and live as long as the machine.
    unsafe { host.activate(root, Asid(1), true) };
}

/// The word of a leaf at an address, and that of a link on a level to the table at an address.
type Words = (fn(u64) -> u64, Box<dyn Fn(u8, u64) -> u64>);

/// A leaf of every architecture, user, readable and writable, neither accessed nor dirty; and a link to a table.
fn words(arch: Arch, level: u8) -> Words {
    let bits = arch.geometry().index_bits;
    match arch {
        Arch::Arm64 { .. } => {
            let leaf: fn(u64) -> u64 = |at| at | 1 | 1 << 6 | 1 << 7 | 1 << 11 | 1 << 51 | 3 << 53;
            let page: fn(u64) -> u64 = |at| at | 3 | 1 << 6 | 1 << 7 | 1 << 11 | 1 << 51 | 3 << 53;
            (
                if level == 1 { page } else { leaf },
                Box::new(|_, at| at | 3),
            )
        }
        Arch::Ppc64Radix { .. } => (
            |at| 3 << 62 | at | 6,
            Box::new(move |level, at| 1 << 63 | at | u64::from(bits[level as usize - 1])),
        ),
        Arch::Riscv64 { .. } => (|at| at >> 2 | 0x17, Box::new(|_, at| at >> 2 | 1)),
        Arch::X86Pae => (
            if level == 1 {
                |at| at | 7
            } else {
                |at| at | 0x87
            },
            Box::new(|level, at| at | if level == 3 { 1 } else { 7 }),
        ),
        Arch::X86_64 { .. } => (
            if level == 1 {
                |at| at | 7
            } else {
                |at| at | 0x87
            },
            Box::new(|_, at| at | 7),
        ),
    }
}

fn sets_bits<const SHIFT: u32>(arch: Arch, level: u8) {
    let machine = Machine::<SHIFT>::builder(arch).build();
    let host = &machine;
    let (leaf, table) = words(arch, level);
    let va = VirtAddr(arch.canonical(VA.0 as u64) as usize);
    let (root, entries) = tree(host, va, table);
    let geometry = arch.geometry();
    let entry = entries[usize::from(geometry.top - level)];
    let size = 1u64 << geometry.shift(level);
    let at = 3 * size;
    set(host, entry, leaf(at));
    activate(host, root);
    let physical = PhysAddr(at + (va.0 as u64 & (size - 1)));
    assert_eq!(
        host.access(va, Access::READ),
        Ok(physical),
        "{arch} level {level}"
    );
    assert_eq!(get(host, entry), arch.with_accessed(leaf(at)), "{arch}: A");
    assert_eq!(host.access(va, Access::WRITE), Ok(physical), "{arch}");
    assert_eq!(get(host, entry), arch.with_dirty(leaf(at)), "{arch}: D");
    let found = machine.translate(root, va).unwrap();
    assert_eq!((found.at.0, found.shift), (at, geometry.shift(level)));
    assert!(found.dirty && found.accessed && found.entry == entry);
    let mut leaves = 0;
    machine.each_leaf(root, |leaf| {
        assert_eq!(leaf, found);
        leaves += 1;
    });
    assert_eq!(leaves, 1);
}

fn faults_for_bits<const SHIFT: u32>(arch: Arch) {
    let machine = Machine::<SHIFT>::builder(arch)
        .caps(|caps| (caps.accessed, caps.dirty) = (false, false))
        .build();
    let host = &machine;
    let (leaf, table) = words(arch, 1);
    let va = VirtAddr(arch.canonical(VA.0 as u64) as usize);
    let (root, entries) = tree(host, va, table);
    let entry = entries[entries.len() - 1];
    activate(host, root);
    let kind = |access| host.access(va, access).map_err(|fault| fault.kind);
    assert_eq!(kind(Access::READ), Err(FaultKind::NotPresent), "{arch}");
    set(host, entry, leaf(0x10_0000));
    assert_eq!(kind(Access::READ), Err(FaultKind::NotAccessed), "{arch}");
    set(host, entry, arch.with_accessed(leaf(0x10_0000)));
    assert!(kind(Access::READ).is_ok(), "{arch}");
    // Without the unit's help Arm's DBM means nothing, and AP[2] forbids the store.
    let not_dirty = if matches!(arch, Arch::Arm64 { .. }) {
        FaultKind::Protection
    } else {
        FaultKind::NotDirty
    };
    assert_eq!(kind(Access::WRITE), Err(not_dirty), "{arch}");
    set(host, entry, arch.with_dirty(leaf(0x10_0000)));
    assert!(kind(Access::WRITE).is_ok(), "{arch}");
}

#[test]
fn every_architecture_sets_its_bits_or_faults() {
    for arch in Arch::ALL {
        match arch.geometry().page_shift {
            12 => {
                sets_bits::<12>(arch, 1);
                sets_bits::<12>(arch, 2);
                faults_for_bits::<12>(arch);
            }
            14 => {
                sets_bits::<14>(arch, 1);
                sets_bits::<14>(arch, 2);
                faults_for_bits::<14>(arch);
            }
            _ => {
                sets_bits::<16>(arch, 1);
                sets_bits::<16>(arch, 2);
                faults_for_bits::<16>(arch);
            }
        }
    }
}

#[test]
fn faults_have_the_code_of_the_architecture() {
    let machine = Machine::<12>::builder(X86).build();
    let host = &machine;
    let (root, entries) = tree(host, VA, |_, at| at | 7);
    activate(host, root);
    let code = |access| host.access(VA, access).unwrap_err().code;
    assert_eq!(code(Access::WRITE), 0b0110);
    set(host, entries[3], 0x5000 | 5);
    assert_eq!(code(Access::WRITE), 0b0111);
    assert_eq!(code(Access::kernel(Kind::Write)), 0b0011);
    set(host, entries[3], 0x5000 | 5 | 1 << 63);
    assert_eq!(code(Access::EXEC), 0b1_0101);
    set(host, entries[3], 0x5000 | 1 << 50 | 7);
    assert_eq!(code(Access::READ), 0b1101);
    // A shadow stack: Write=0 and Dirty=1.
    set(host, entries[3], 0x5000 | 0x45);
    assert!(host.access(VA, Access::user(Kind::ShadowWrite)).is_ok());
    assert_eq!(code(Access::WRITE), 0b0111);
    set(host, entries[3], 0x5000 | 7);
    assert_eq!(code(Access::user(Kind::ShadowRead)), 0b100_0101);
    let wild = host.access(VirtAddr(1 << 50), Access::READ).unwrap_err();
    assert_eq!(wild.kind, FaultKind::NotCanonical);
}

/// One CPU writes while another takes the page away: the dirty bit is set in a present entry, or the store faults.
fn dirty_race(seed: u64, change: impl Fn(&mut MmuCaps)) -> (bool, bool) {
    let machine = Machine::<12>::builder(X86)
        .seed(seed)
        .caps(change)
        .policy(Policy::Uniform { mean: 1 })
        .guessing(0)
        .build();
    let (root, entries) = tree(&machine, VA, |_, at| at | 0x27);
    let entry = entries[3];
    set(&machine, entry, 0x5000 | 0x27);
    let (taken, stored) = (Cell::new(0), Cell::new(false));
    let (host, t, s) = (&machine, &taken, &stored);
    machine.run(vec![
        task(move |_| {
            activate(host, root);
            let _ = host.access(VA, Access::READ);
            s.set(host.access(VA, Access::WRITE).is_ok());
        }),
        task(move |_| {
            for _ in 0..Rng::new(seed).below(30) {
                host.step();
            }
            // SAFETY: the tables are the test's.
            t.set(unsafe { host.exchange_entry(entry, 0) });
            let what = Invalidate::all(Some(Asid(1)));
            let pending = host.shoot(&CpuMask::first(2), &what);
            host.wait(pending);
        }),
    ]);
    let dirty = taken.get() & 0x40 != 0;
    assert_eq!(
        stored.get(),
        dirty,
        "a store and its dirty bit come together"
    );
    (dirty, get(&machine, entry) != 0)
}

#[test]
fn a_dirty_bit_is_set_in_a_present_entry_only_unless_the_unit_strays() {
    let mut outcomes = [0, 0];
    for seed in 0..200 {
        let (dirty, stray) = dirty_race(seed, |_| {});
        assert!(!stray, "bits in an entry that is not present");
        outcomes[usize::from(dirty)] += 1;
    }
    assert!(outcomes.iter().all(|n| *n > 10), "{outcomes:?}");
    let strays = (0..1_000)
        .filter(|seed| dirty_race(*seed, |caps| caps.stray_dirty = true).1)
        .count();
    assert!(strays > 2, "{strays}");
}

#[test]
fn halves_of_an_entry_are_seen_torn() {
    let mut torn = 0;
    for seed in 0..200 {
        let machine = Machine::<12>::builder(Arch::X86Pae).seed(seed).build();
        let (root, entries) = tree(&machine, VirtAddr(0x5000), |level, at| {
            at | if level == 3 { 1 } else { 0x27 }
        });
        let entry = entries[2];
        // From 0x1_0000_5000 to 0x2_0000_6000, low half first: the unit may see 0x1_0000_6000.
        set(&machine, entry, 0x1_0000_5000 | 0x65);
        let (host, t) = (&machine, Cell::new(0));
        let t = &t;
        machine.run(vec![
            task(move |_| {
                activate(host, root);
                for _ in 0..4 {
                    if let Ok(at) = host.access(VirtAddr(0x5000), Access::READ) {
                        t.set(t.get() + u32::from(at.0 == 0x1_0000_6000));
                    }
                    host.invalidate(&Invalidate::all(None));
                }
            }),
            task(move |_| {
                // SAFETY: the tables are the test's.
                unsafe {
                    host.store_half(entry, 0x6065);
                    host.store_half(PhysAddr(entry.0 + 4), 2);
                    assert_eq!(host.load_half(PhysAddr(entry.0 + 4)), 2);
                }
            }),
        ]);
        torn += t.get();
    }
    assert!(torn > 5, "{torn}");
}

#[test]
fn top_entries_of_pae_are_loaded_into_registers() {
    let machine = Machine::<12>::builder(Arch::X86Pae).build();
    let host = &machine;
    let va = VirtAddr(0x4000_0000);
    let (root, entries) = tree(host, va, |level, at| at | if level == 3 { 1 } else { 7 });
    set(host, entries[2], 0x5000 | 7);
    let top = get(host, entries[0]);
    set(host, entries[0], 0);
    activate(host, root);
    // SAFETY: the tables are the test's.
    unsafe { host.store_entry(entries[0], top) };
    assert!(
        host.access(va, Access::READ).is_err(),
        "it became present unnoticed"
    );
    host.invalidate(&Invalidate::all(Some(Asid(0))));
    assert!(host.access(va, Access::READ).is_ok());
}

#[test]
fn upper_halves_have_a_table_of_their_own() {
    let arch = Arch::Arm64 {
        granule: 12,
        va_bits: 48,
    };
    let machine = Machine::<12>::builder(arch).build();
    let (root, entries) = tree(&machine, VA, |_, at| at | 3);
    let upper = VirtAddr(arch.upper(VA.0 as u64) as usize);
    set(&machine, entries[3], 0x5000 | 3 | 1 << 10 | 3 << 53);
    let empty = PhysAddr((machine.nth_frame(20).0 as u64) << 12);
    activate(&machine, empty);
    let kernel = Access::kernel(Kind::Read);
    assert!(machine.access(upper, kernel).is_err());
    machine.set_kernel_root(Some(root));
    assert_eq!(machine.access(upper, kernel), Ok(PhysAddr(0x5000)));
    assert!(
        machine.access(VA, kernel).is_err(),
        "the lower half is empty"
    );
}

fn busy_run(seed: u64) -> (Report, u64, Vec<u64>) {
    let machine = Machine::<12>::builder(X86).seed(seed).cpus(4).build();
    let (root, entries) = tree(&machine, VA, |_, at| at | 7);
    let host = &machine;
    let tasks = (0..4u64).map(|n| {
        let leaf = entries[3];
        task(move |_| {
            activate(host, root);
            for i in 0..6 {
                // SAFETY: the tables are the test's.
                unsafe { host.exchange_entry(leaf, (0x10 + n + i) << 12 | 7) };
                let _ = host.access(VA, Access::WRITE);
                let pending = host.shoot(&CpuMask::first(4), &Invalidate::all(Some(Asid(1))));
                host.wait(pending);
            }
        })
    });
    let report = machine.run(tasks.collect());
    let stats = machine.mmu_stats();
    let busy = (0..4).map(|cpu| machine.busy(flagstone_types::CpuId(cpu)).0);
    assert!(host.possible_cpus() == 4 && stats.shootdowns == 24);
    (report, stats.guesses * 1000 + stats.updates, busy.collect())
}

#[test]
fn a_seed_decides_everything() {
    let mut traces = std::collections::HashSet::new();
    for seed in 0..40 {
        let seed = Rng::new(seed).bits();
        let first = busy_run(seed);
        assert_eq!(first, busy_run(seed));
        traces.insert(first.0.trace_hash);
    }
    assert_eq!(traces.len(), 40);
}
