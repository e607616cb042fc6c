//! What the laws are checked on: all combinations of access, marks and memory, on addresses of every shape.

use flagstone_pgtable::format::{Absent, Access, Format, Leaf, Level, Marks, Memory};
use flagstone_pgtable::shadow::{Mapping, ShadowStack};
use flagstone_types::PhysAddr;

pub(crate) const MEMORIES: [Memory; 5] = [
    Memory::WriteBack,
    Memory::WriteCombining,
    Memory::Uncached,
    Memory::Device,
    Memory::WriteThrough,
];

/// The kind that grants `SHADOW`.
pub(crate) fn shadow_stack() -> Mapping<'static> {
    // SAFETY: nothing is put into a page table that a unit walks: the words are only looked at.
    Mapping::ShadowStack(unsafe { ShadowStack::of_mapping(&()) })
}

/// The levels that a format has.
pub(crate) fn levels<F: Format>() -> impl Iterator<Item = Level> {
    (1..=F::TOP.get()).filter_map(Level::new)
}

/// The levels that a leaf may stand on.
pub(crate) fn leaf_levels<F: Format>() -> impl Iterator<Item = Level> {
    levels::<F>().filter(|level| F::LEAF[level.index()])
}

/// Addresses aligned to `2^shift`: each single bit, none, all, and two patterns.
pub(crate) fn addresses<F: Format>(shift: u32) -> Vec<PhysAddr> {
    let mask = (u64::MAX << shift) & ((1 << F::PHYS_BITS) - 1);
    let single = (shift..F::PHYS_BITS).map(|bit| 1 << bit);
    [
        0,
        mask,
        mask & 0x5555_5555_5555_5555,
        mask & 0x0123_4567_89ab_cdef,
    ]
    .into_iter()
    .chain(single)
    .map(PhysAddr)
    .collect()
}

/// A leaf with these parts, `SHADOW` granted if it is among the marks.
pub(crate) fn leaf(at: PhysAddr, access: Access, marks: Marks, memory: Memory, key: u8) -> Leaf {
    let leaf = Leaf::kernel(at, access)
        .mark(marks)
        .cached(memory)
        .keyed(key);
    if marks.contains(Marks::SHADOW) {
        leaf.mkwrite(shadow_stack())
    } else {
        leaf
    }
}

/// Every combination of access, marks and memory and some keys, at one address.
pub(crate) fn flag_combinations(at: PhysAddr) -> impl Iterator<Item = Leaf> {
    (0..16u8).flat_map(move |access| {
        (0..256u16).flat_map(move |marks| {
            MEMORIES.into_iter().flat_map(move |memory| {
                [0, 1, 6, 15, 16].into_iter().map(move |key| {
                    let access = Access::from_bits_truncate(access);
                    let marks = Marks::from_bits_truncate(marks);
                    leaf(at, access, marks, memory, key)
                })
            })
        })
    })
}

/// All leaves of a level that the format can say, of those combinations at one address and of a few combinations at every address.
pub(crate) fn leaves<F: Format>(level: Level) -> Vec<Leaf> {
    let shift = F::shift(level);
    let addresses = addresses::<F>(shift);
    let mut leaves: Vec<_> = flag_combinations(addresses[3]).collect();
    for at in addresses {
        for access in 0..16 {
            for marks in [Marks::empty(), Marks::DIRTY, Marks::NO_ACCESS, Marks::all()] {
                let access = Access::from_bits_truncate(access);
                let marks = marks.difference(Marks::SHADOW);
                leaves.push(leaf(at, access, marks, Memory::WriteBack, 0));
            }
        }
    }
    leaves.retain(|leaf| F::can(level, leaf));
    leaves
}

/// Absent entries with numbers of up to `bits` bits.
pub(crate) fn absents(bits: u32) -> Vec<Absent> {
    let top = (1 << bits) - 1;
    let numbers = [0, 1, top, top & 0x5555_5555_5555_5555];
    let marks = |bits| Marks::from_bits_truncate(bits);
    let mut all: Vec<_> = (0..8).map(|payload| Absent::Marker { payload }).collect();
    for number in numbers.into_iter().chain((0..bits).map(|bit| 1 << bit)) {
        for write in [false, true] {
            all.push(Absent::Device {
                frame: number,
                write,
            });
            all.extend((0..16).map(|bits| Absent::Migration {
                frame: number,
                write,
                marks: marks(bits),
            }));
            all.extend((0..32).flat_map(|area| {
                [0, 4, 8, 12].map(|bits| Absent::Swap {
                    area,
                    offset: number,
                    exclusive: write,
                    marks: marks(bits),
                })
            }));
        }
    }
    all
}
