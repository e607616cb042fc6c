//! Identities: memory nodes, CPUs, zones, migrate types.

use core::fmt;

/// A memory node (NUMA node).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nid(pub u16);

impl Nid {
    /// The node as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Nid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A CPU. In a process it may be a concurrency id, which is as good: it names
/// a slot that one running thread has to itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuId(pub u32);

impl CpuId {
    /// The CPU as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for CpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The zones of a node, from the most to the least restricted address, then
/// the two that are set apart by use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Zone {
    /// Addresses that old devices reach (below 16 MiB on x86).
    Dma = 0,
    /// Addresses below 4 GiB.
    Dma32 = 1,
    /// Everything else that the kernel maps permanently.
    Normal = 2,
    /// Memory that holds only what can be moved.
    Movable = 3,
    /// Memory that belongs to a device (DAX); never handed out by the buddy lists.
    Device = 4,
}

impl Zone {
    /// Every zone in the order of [`Zone::index`].
    pub const ALL: [Self; 5] = [
        Self::Dma,
        Self::Dma32,
        Self::Normal,
        Self::Movable,
        Self::Device,
    ];
    /// How many zones there are.
    pub const COUNT: usize = Self::ALL.len();

    /// The zone as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The name that `buddyinfo` and `zoneinfo` print.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dma => "DMA",
            Self::Dma32 => "DMA32",
            Self::Normal => "Normal",
            Self::Movable => "Movable",
            Self::Device => "Device",
        }
    }
}

/// What may become of the pages of a block, so that blocks of one kind stay
/// together and leave long free runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum MigrateType {
    /// Pages that can be neither moved nor reclaimed.
    Unmovable = 0,
    /// Pages that can be moved elsewhere.
    Movable = 1,
    /// Pages that a shrinker can give back.
    Reclaimable = 2,
    /// A reserve for atomic callers of higher orders.
    HighAtomic = 3,
    /// Pages taken out of use while they are being isolated.
    Isolate = 4,
}

impl MigrateType {
    /// Every type in the order of [`MigrateType::index`].
    pub const ALL: [Self; 5] = [
        Self::Unmovable,
        Self::Movable,
        Self::Reclaimable,
        Self::HighAtomic,
        Self::Isolate,
    ];
    /// How many types there are.
    pub const COUNT: usize = Self::ALL.len();

    /// The type as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The name that `pagetypeinfo` prints.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unmovable => "Unmovable",
            Self::Movable => "Movable",
            Self::Reclaimable => "Reclaimable",
            Self::HighAtomic => "HighAtomic",
            Self::Isolate => "Isolate",
        }
    }
}
