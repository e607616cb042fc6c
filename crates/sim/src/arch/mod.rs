//! What the unit of each architecture makes of a word of a page table, written from the manuals.
//!
//! This decoding is the oracle for `flagstone_pgtable::format` and shares nothing with it. The sources: Intel SDM volume 3 chapter 4
//! (x86), Arm ARM DDI 0487 section D8 (arm64), Power ISA 3.1 book III section 6.7 (ppc64 radix), RISC-V privileged
//! specification 1.12 sections 4.4 and 4.5. A word here is in the order of bits that the manual numbers; [`Arch::from_memory`] makes it from what memory holds.

mod arm64;
mod ppc64;
mod riscv64;
#[cfg(test)]
mod tests;
mod x86;

use core::fmt;

/// An architecture's form of page tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arch {
    /// x86-64 with 4 or 5 levels.
    X86_64 {
        /// 4 or 5.
        levels: u8,
    },
    /// 32-bit x86 with physical address extension: three levels, the top one loaded into four registers.
    X86Pae,
    /// arm64, stage 1, one half of the address space.
    Arm64 {
        /// A granule has `2^granule` bytes: 12, 14 or 16.
        granule: u8,
        /// Bits of a virtual address, 25 to 48.
        va_bits: u8,
    },
    /// ppc64 radix with a 52-bit effective address: 13, 9, 9 bits and the rest.
    Ppc64Radix {
        /// 12 or 16.
        page_shift: u8,
    },
    /// riscv64: Sv39, Sv48, Sv57.
    Riscv64 {
        /// 3, 4 or 5.
        levels: u8,
    },
}

bitflags::bitflags! {
    /// What a translation allows, before it is known who asks.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Rights: u8 {
        /// Loads.
        const READ = 1;
        /// Stores, once the dirty bit is set.
        const WRITE = 2;
        /// Fetches by user code.
        const EXEC_USER = 4;
        /// Fetches by the kernel.
        const EXEC_KERNEL = 8;
        /// Loads and stores by user code.
        const USER = 16;
    }
}

/// What is asked of a translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A load.
    Read,
    /// A store.
    Write,
    /// An instruction fetch.
    Exec,
    /// A load by CALL, RET and the like on a shadow stack.
    ShadowRead,
    /// A store by them.
    ShadowWrite,
}

/// An access: what, and by whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Access {
    /// What is done.
    pub kind: Kind,
    /// By user code; else by the kernel.
    pub user: bool,
}

impl Access {
    /// A load by user code.
    pub const READ: Self = Self::user(Kind::Read);
    /// A store by user code.
    pub const WRITE: Self = Self::user(Kind::Write);
    /// An instruction fetch by user code.
    pub const EXEC: Self = Self::user(Kind::Exec);

    /// By user code.
    #[must_use]
    pub const fn user(kind: Kind) -> Self {
        Self { kind, user: true }
    }

    /// By the kernel.
    #[must_use]
    pub const fn kernel(kind: Kind) -> Self {
        Self { kind, user: false }
    }

    /// Whether it stores.
    #[must_use]
    pub const fn stores(self) -> bool {
        matches!(self.kind, Kind::Write | Kind::ShadowWrite)
    }
}

/// A leaf as the unit understands it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// The first byte that it maps.
    pub at: u64,
    /// What it allows, upper levels apart.
    pub rights: Rights,
    /// In every address space.
    pub global: bool,
    /// Was used; true where the architecture does not say.
    pub accessed: bool,
    /// Was written.
    pub dirty: bool,
    /// A page of a shadow stack.
    pub shadow: bool,
    /// The memory type as bits of the architecture.
    pub memory: u8,
}

/// A word as the unit understands it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Not valid: a translation fault.
    Invalid,
    /// Names a table.
    Table {
        /// Where it is.
        at: u64,
        /// What is left of the rights below.
        limit: Rights,
        /// Everything below is global.
        global: bool,
        /// Was used; true where the architecture does not say.
        accessed: bool,
    },
    /// Maps memory.
    Page(Page),
    /// Valid, but with bits that may not be so: these.
    Reserved(u64),
}

/// The shape of a table tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// A page has `2^page_shift` bytes.
    pub page_shift: u32,
    /// The level of the root; 1 is the level of pages.
    pub top: u8,
    /// Bits of an address that each level translates, by level.
    pub index_bits: [u32; 6],
}

impl Geometry {
    /// An entry of `level` reaches `2^shift` bytes.
    #[must_use]
    pub fn shift(&self, level: u8) -> u32 {
        self.page_shift + self.index_bits[1..level as usize].iter().sum::<u32>()
    }

    /// Bits of an address that the tree translates.
    #[must_use]
    pub fn va_bits(&self) -> u32 {
        self.shift(self.top) + self.index_bits[self.top as usize]
    }

    /// Bytes of a table of `level`.
    #[must_use]
    pub fn table_bytes(&self, level: u8) -> u64 {
        8 << self.index_bits[level as usize]
    }

    /// Which entry of a table of `level` translates `va`.
    #[must_use]
    pub fn index(&self, level: u8, va: u64) -> u64 {
        va >> self.shift(level) & ((1 << self.index_bits[level as usize]) - 1)
    }
}

impl Arch {
    /// Every form, by the name of its [`Arch::name`].
    pub const ALL: [Self; 11] = [
        Self::X86_64 { levels: 4 },
        Self::X86_64 { levels: 5 },
        Self::X86Pae,
        Self::arm64(12),
        Self::arm64(14),
        Self::arm64(16),
        Self::Ppc64Radix { page_shift: 12 },
        Self::Ppc64Radix { page_shift: 16 },
        Self::Riscv64 { levels: 3 },
        Self::Riscv64 { levels: 4 },
        Self::Riscv64 { levels: 5 },
    ];

    const fn arm64(granule: u8) -> Self {
        Self::Arm64 {
            granule,
            va_bits: 48,
        }
    }

    /// What tools call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::X86_64 { levels: 5 } => "x86_64-la57",
            Self::X86_64 { .. } => "x86_64",
            Self::X86Pae => "x86-pae",
            Self::Arm64 { granule: 12, .. } => "arm64-4k",
            Self::Arm64 { granule: 14, .. } => "arm64-16k",
            Self::Arm64 { .. } => "arm64-64k",
            Self::Ppc64Radix { page_shift: 16 } => "ppc64-64k",
            Self::Ppc64Radix { .. } => "ppc64-4k",
            Self::Riscv64 { levels: 3 } => "riscv64-sv39",
            Self::Riscv64 { levels: 5 } => "riscv64-sv57",
            Self::Riscv64 { .. } => "riscv64-sv48",
        }
    }

    /// The form with this name, if there is one.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|arch| arch.name() == name)
    }

    /// The shape of its tables.
    #[must_use]
    pub fn geometry(self) -> Geometry {
        let even = |page_shift: u32, top: u8, va_bits: u32, bits: u32| {
            let mut index_bits = [0; 6];
            let mut left = va_bits - page_shift;
            for index_bits in index_bits.iter_mut().skip(1).take(top as usize) {
                *index_bits = left.min(bits);
                left -= *index_bits;
            }
            Geometry {
                page_shift,
                top,
                index_bits,
            }
        };
        match self {
            Self::X86_64 { levels } | Self::Riscv64 { levels } => {
                even(12, levels, 12 + 9 * u32::from(levels), 9)
            }
            Self::X86Pae => even(12, 3, 32, 9),
            Self::Arm64 { granule, va_bits } => {
                let (granule, va_bits) = (u32::from(granule), u32::from(va_bits));
                let top = (va_bits - granule).div_ceil(granule - 3);
                even(granule, top as u8, va_bits, granule - 3)
            }
            Self::Ppc64Radix { page_shift } => {
                let first = if page_shift == 16 { 5 } else { 9 };
                Geometry {
                    page_shift: u32::from(page_shift),
                    top: 4,
                    index_bits: [0, first, 9, 9, 13, 0],
                }
            }
        }
    }

    /// Whether a valid entry that changes its address, size, memory type or kind must be invalid, and invalidated, in between.
    #[must_use]
    pub const fn breaks_before_make(self) -> bool {
        matches!(self, Self::Arm64 { .. })
    }

    /// Whether entries that name tables have an accessed bit.
    #[must_use]
    pub const fn has_table_accessed(self) -> bool {
        matches!(self, Self::X86_64 { .. }) || matches!(self, Self::X86Pae)
    }

    /// Whether a fault drops the translation that caused it (so that one more access sees what the tables say).
    #[must_use]
    pub const fn fault_drops(self) -> bool {
        matches!(
            self,
            Self::X86_64 { .. } | Self::X86Pae | Self::Ppc64Radix { .. }
        )
    }

    /// A word from what memory holds, read in this machine's order.
    #[must_use]
    pub const fn from_memory(self, word: u64) -> u64 {
        match self {
            Self::Ppc64Radix { .. } => u64::from_be(word),
            _ => u64::from_le(word),
        }
    }

    /// What memory holds for a word.
    #[must_use]
    pub const fn to_memory(self, word: u64) -> u64 {
        match self {
            Self::Ppc64Radix { .. } => word.to_be(),
            _ => word.to_le(),
        }
    }

    /// What the unit makes of `raw` in a table of `level`. `caps` says how many physical bits there are, which huge sizes, and whether the unit sets dirty bits.
    #[must_use]
    pub fn decode(self, level: u8, raw: u64, caps: &flagstone_host::MmuCaps) -> Word {
        match self {
            Self::X86_64 { .. } => x86::decode(level, raw, caps),
            Self::X86Pae => x86::decode_pae(level, raw, caps),
            Self::Arm64 { granule, .. } => {
                arm64::decode(u32::from(granule), self.geometry().top, level, raw, caps)
            }
            Self::Ppc64Radix { .. } => ppc64::decode(&self.geometry(), level, raw, caps),
            Self::Riscv64 { .. } => riscv64::decode(level, raw, caps),
        }
    }

    /// The word with its accessed bit set.
    #[must_use]
    pub const fn with_accessed(self, raw: u64) -> u64 {
        match self {
            Self::X86_64 { .. } | Self::X86Pae => raw | x86::A,
            Self::Arm64 { .. } => raw | arm64::AF,
            Self::Ppc64Radix { .. } => raw | ppc64::R,
            Self::Riscv64 { .. } => raw | riscv64::A,
        }
    }

    /// The leaf with its accessed bit set and noted as dirty.
    #[must_use]
    pub const fn with_dirty(self, raw: u64) -> u64 {
        let raw = self.with_accessed(raw);
        match self {
            Self::X86_64 { .. } | Self::X86Pae => raw | x86::D,
            Self::Arm64 { .. } => raw & !arm64::READ_ONLY,
            Self::Ppc64Radix { .. } => raw | ppc64::C,
            Self::Riscv64 { .. } => raw | riscv64::D,
        }
    }

    /// The bits that the unit changes by itself.
    #[must_use]
    pub const fn unit_bits(self) -> u64 {
        match self {
            Self::X86_64 { .. } | Self::X86Pae => x86::A | x86::D,
            Self::Arm64 { .. } => arm64::AF | arm64::READ_ONLY,
            Self::Ppc64Radix { .. } => ppc64::R | ppc64::C,
            Self::Riscv64 { .. } => riscv64::A | riscv64::D,
        }
    }

    /// Whether `access` is allowed by what a leaf and the levels above it left, the dirty bit apart.
    #[must_use]
    pub fn allows(self, rights: Rights, shadow: bool, access: Access) -> bool {
        let user = !access.user || rights.contains(Rights::USER);
        match access.kind {
            Kind::Read => rights.contains(Rights::READ) && user,
            Kind::Write => rights.contains(Rights::WRITE) && !shadow && user,
            Kind::ShadowRead | Kind::ShadowWrite => {
                shadow && rights.contains(Rights::USER) && access.user
            }
            Kind::Exec if access.user => {
                rights.contains(Rights::EXEC_USER) && (user || matches!(self, Self::Arm64 { .. }))
            }
            Kind::Exec => {
                let forbidden = if matches!(self, Self::Arm64 { .. }) {
                    Rights::USER | Rights::WRITE
                } else {
                    Rights::USER
                };
                rights.contains(Rights::EXEC_KERNEL) && !rights.contains(forbidden)
            }
        }
    }

    /// Whether the unit translates `va` at all; `upper` says that a table for the upper half is there.
    #[must_use]
    pub fn is_canonical(self, va: u64, upper: bool) -> bool {
        let bits = self.geometry().va_bits();
        match self {
            Self::X86_64 { .. } | Self::Riscv64 { .. } => {
                let high = (va as i64) >> (bits - 1);
                high == 0 || high == -1
            }
            Self::Arm64 { .. } => va >> bits == 0 || (upper && va >> bits == u64::MAX >> bits),
            Self::X86Pae => va >> bits == 0,
            Self::Ppc64Radix { .. } => va >> bits == 0 || (upper && va >> bits == 0xc00),
        }
    }

    /// Whether `va` is translated by the table for the upper half, where the architecture has two.
    #[must_use]
    pub fn is_upper(self, va: u64) -> bool {
        matches!(self, Self::Arm64 { .. } | Self::Ppc64Radix { .. }) && va >> 63 != 0
    }

    /// The address that `va`'s translated bits stand for, with its upper bits as the architecture wants them.
    #[must_use]
    pub fn canonical(self, va: u64) -> u64 {
        let bits = self.geometry().va_bits();
        let low = va & (u64::MAX >> (64 - bits));
        match self {
            Self::X86_64 { .. } | Self::Riscv64 { .. } => {
                ((low << (64 - bits)) as i64 >> (64 - bits)) as u64
            }
            _ => low,
        }
    }
}

impl Arch {
    /// The address of the upper half that `va`'s translated bits stand for, where the architecture has a table of its own for it.
    #[must_use]
    pub fn upper(self, va: u64) -> u64 {
        match self {
            Self::Arm64 { .. } => va | u64::MAX << self.geometry().va_bits(),
            Self::Ppc64Radix { .. } => va | 0xc << 60,
            _ => va,
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
