//! Every format behind one value, for tools that learn at run time which one a table has.
//!
//! [`Arch`] names the formats; its methods are those of [`Format`], each a jump to the format's own. [`with_format!`](crate::with_format) brings
//! the type of a named format into an expression, for code that is generic and only begins with a name.

use super::{Absent, Access, Canonical, Entry, Format, Leaf, Level};
use core::fmt;
use core::str::FromStr;
use flagstone_types::PhysAddr;

/// Evaluates an expression in which a name stands for the type of a format: `with_format!(arch, F => size::<F>())`.
#[macro_export]
macro_rules! with_format {
    ($arch:expr, $format:ident => $body:expr) => {
        match $arch {
            $crate::format::Arch::X86_64 => {
                type $format = $crate::format::X86_64;
                $body
            }
            $crate::format::Arch::X86_64La57 => {
                type $format = $crate::format::X86_64La57;
                $body
            }
            $crate::format::Arch::X86Pae => {
                type $format = $crate::format::X86Pae;
                $body
            }
            $crate::format::Arch::Arm64K4 => {
                type $format = $crate::format::Arm64K4;
                $body
            }
            $crate::format::Arch::Arm64K16 => {
                type $format = $crate::format::Arm64K16;
                $body
            }
            $crate::format::Arch::Arm64K64 => {
                type $format = $crate::format::Arm64K64;
                $body
            }
            $crate::format::Arch::Ppc64K4 => {
                type $format = $crate::format::Ppc64K4;
                $body
            }
            $crate::format::Arch::Ppc64K64 => {
                type $format = $crate::format::Ppc64K64;
                $body
            }
            $crate::format::Arch::Riscv64Sv39 => {
                type $format = $crate::format::Riscv64Sv39;
                $body
            }
            $crate::format::Arch::Riscv64Sv48 => {
                type $format = $crate::format::Riscv64Sv48;
                $body
            }
        }
    };
}

/// A format by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Arch {
    /// [`super::X86_64`].
    X86_64,
    /// [`super::X86_64La57`].
    X86_64La57,
    /// [`super::X86Pae`].
    X86Pae,
    /// [`super::Arm64K4`].
    Arm64K4,
    /// [`super::Arm64K16`].
    Arm64K16,
    /// [`super::Arm64K64`].
    Arm64K64,
    /// [`super::Ppc64K4`].
    Ppc64K4,
    /// [`super::Ppc64K64`].
    Ppc64K64,
    /// [`super::Riscv64Sv39`].
    Riscv64Sv39,
    /// [`super::Riscv64Sv48`].
    Riscv64Sv48,
}

/// A name that no format has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownFormat;

impl fmt::Display for UnknownFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no such page-table format; there are")?;
        for (index, arch) in Arch::ALL.iter().enumerate() {
            f.write_str(if index == 0 { " " } else { ", " })?;
            f.write_str(arch.name())?;
        }
        Ok(())
    }
}

impl core::error::Error for UnknownFormat {}

impl FromStr for Arch {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<Self, UnknownFormat> {
        Self::ALL
            .into_iter()
            .find(|arch| arch.name() == name)
            .ok_or(UnknownFormat)
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Methods that are constants of the format.
macro_rules! constants {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $constant:ident;)*) => {
        impl Arch {
            $($(#[$doc])*
            #[must_use]
            pub const fn $name(self) -> $type {
                with_format!(self, F => <F as Format>::$constant)
            })*
        }
    };
}

/// Methods that are functions of the format.
macro_rules! functions {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        impl Arch {
            $($(#[$doc])*
            #[must_use]
            pub fn $name(self, $($argument: $type),*) -> $result {
                with_format!(self, F => <F as Format>::$name($($argument),*))
            })*
        }
    };
}

constants! {
    /// As tools call it: [`Format::NAME`].
    name: &'static str = NAME;
    /// A page has `2^page_shift` bytes.
    page_shift: u32 = PAGE_SHIFT;
    /// The level of the root.
    top: Level = TOP;
    /// How many bits of an address each level translates, by [`Level::index`].
    index_bits: [u32; 6] = INDEX_BITS;
    /// How addresses beyond are told.
    canonical: Canonical = CANONICAL;
    /// Bits of a physical address that there is room for.
    phys_bits: u32 = PHYS_BITS;
    /// Levels on which a leaf may stand, by [`Level::index`].
    leaf_levels: [bool; 6] = LEAF;
    /// [`Format::HALVES`].
    halves: bool = HALVES;
    /// [`Format::BREAK_BEFORE_MAKE`].
    break_before_make: bool = BREAK_BEFORE_MAKE;
    /// [`Format::FAULT_DROPS`].
    fault_drops: bool = FAULT_DROPS;
    /// [`Format::TABLE_YOUNG`].
    table_young: bool = TABLE_YOUNG;
    /// [`Format::SHADOW`].
    shadow: bool = SHADOW;
}

functions! {
    /// [`Format::to_memory`].
    fn to_memory(raw: u64) -> u64;
    /// [`Format::from_memory`].
    fn from_memory(word: u64) -> u64;
    /// [`Format::can`].
    fn can(level: Level, leaf: &Leaf) -> bool;
    /// [`Format::leaf`].
    fn leaf(level: Level, leaf: &Leaf) -> u64;
    /// [`Format::table`].
    fn table(level: Level, at: PhysAddr) -> u64;
    /// [`Format::absent`].
    fn absent(level: Level, absent: &Absent) -> Option<u64>;
    /// [`Format::decode`].
    fn decode(level: Level, raw: u64) -> Entry;
    /// [`Format::is_present`].
    fn is_present(level: Level, raw: u64) -> bool;
    /// [`Format::is_table`].
    fn is_table(level: Level, raw: u64) -> bool;
    /// [`Format::unit_bits`].
    fn unit_bits(level: Level) -> u64;
    /// [`Format::with_young`].
    fn with_young(level: Level, raw: u64, young: bool) -> u64;
    /// [`Format::is_young`].
    fn is_young(level: Level, raw: u64) -> bool;
    /// [`Format::is_dirty`].
    fn is_dirty(level: Level, raw: u64) -> bool;
    /// [`Format::with_access`].
    fn with_access(level: Level, raw: u64, access: Access) -> u64;
    /// [`Format::write_protect`].
    fn write_protect(level: Level, raw: u64) -> u64;
    /// [`Format::advance`].
    fn advance(level: Level, raw: u64, pages: u64) -> u64;
    /// [`Format::first_part`].
    fn first_part(level: Level, raw: u64) -> Option<u64>;
    /// [`Format::needs_invalidation`].
    fn needs_invalidation(level: Level, old: u64, new: u64) -> bool;
    /// [`Format::shift`].
    fn shift(level: Level) -> u32;
    /// [`Format::entries`].
    fn entries(level: Level) -> usize;
    /// [`Format::table_bytes`].
    fn table_bytes(level: Level) -> usize;
    /// [`Format::virt_bits`].
    fn virt_bits() -> u32;
}

impl Arch {
    /// Every format.
    pub const ALL: [Self; 10] = [
        Self::X86_64,
        Self::X86_64La57,
        Self::X86Pae,
        Self::Arm64K4,
        Self::Arm64K16,
        Self::Arm64K64,
        Self::Ppc64K4,
        Self::Ppc64K64,
        Self::Riscv64Sv39,
        Self::Riscv64Sv48,
    ];
}
