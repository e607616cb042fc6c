//! arm64: VMSAv8-64 stage 1 descriptors for 48-bit output addresses (Arm ARM D8.3), EL1&0.
//!
//! The unit has hardware management of the access flag if `MmuCaps::accessed`, and of the dirty state if `MmuCaps::dirty`; its granules,
//! block sizes and attribute bits are those of FEAT_LPA-less implementations.

use super::{Page, Rights, Word};
use flagstone_host::MmuCaps;

const VALID: u64 = 1;
/// A table, or a page on the last level; clear: a block.
const TABLE: u64 = 1 << 1;
const EL0: u64 = 1 << 6;
/// `AP[2]`.
pub(super) const READ_ONLY: u64 = 1 << 7;
/// Access flag.
pub(super) const AF: u64 = 1 << 10;
const NOT_GLOBAL: u64 = 1 << 11;
/// Dirty bit modifier.
const DBM: u64 = 1 << 51;
const PXN: u64 = 1 << 53;
const UXN: u64 = 1 << 54;
const PXN_TABLE: u64 = 1 << 59;
const UXN_TABLE: u64 = 1 << 60;
const NO_EL0_TABLE: u64 = 1 << 61;
const READ_ONLY_TABLE: u64 = 1 << 62;

/// `level` counts from the pages up; Arm's levels count down to 3.
pub(super) fn decode(granule: u32, top: u8, level: u8, raw: u64, caps: &MmuCaps) -> Word {
    debug_assert!(level <= top, "a level above the root");
    if raw & VALID == 0 {
        return Word::Invalid;
    }
    let address = (1 << 48) - (1u64 << granule);
    // An address beyond what is implemented is an address size fault.
    let beyond = address & !((1u64 << caps.phys_bits.min(48)) - 1);
    if raw & TABLE != 0 && level > 1 {
        if raw & beyond != 0 {
            return Word::Reserved(raw & beyond);
        }
        let mut limit = Rights::READ;
        limit.set(Rights::WRITE, raw & READ_ONLY_TABLE == 0);
        limit.set(Rights::USER, raw & NO_EL0_TABLE == 0);
        limit.set(Rights::EXEC_USER, raw & UXN_TABLE == 0);
        limit.set(Rights::EXEC_KERNEL, raw & PXN_TABLE == 0);
        return Word::Table {
            at: raw & address,
            limit,
            global: false,
            accessed: true,
        };
    }
    let block = matches!((level, granule), (2, _) | (3, 12));
    // The last level has no blocks, and blocks exist on some levels only: those words are invalid.
    if (level == 1) != (raw & TABLE != 0) || (level > 1 && !block) {
        return Word::Invalid;
    }
    let size = granule + (granule - 3) * (u32::from(level) - 1);
    let page = (1u64 << size) - 1;
    // Bit 16 is nT in a block; the rest below the block's size is RES0.
    let misaligned = raw & address & page & !(1 << 16);
    if level > 1 && misaligned != 0 {
        return Word::Reserved(misaligned);
    }
    if raw & beyond & !page != 0 {
        return Word::Reserved(raw & beyond);
    }
    let managed = caps.dirty && raw & DBM != 0;
    let clean = raw & READ_ONLY != 0;
    let mut rights = Rights::READ;
    rights.set(Rights::WRITE, !clean || managed);
    rights.set(Rights::USER, raw & EL0 != 0);
    rights.set(Rights::EXEC_USER, raw & UXN == 0);
    rights.set(Rights::EXEC_KERNEL, raw & PXN == 0);
    Word::Page(Page {
        at: raw & address & !page,
        rights,
        global: raw & NOT_GLOBAL == 0,
        accessed: raw & AF != 0,
        dirty: !clean,
        shadow: false,
        memory: (raw >> 2 & 7 | (raw >> 8 & 3) << 3) as u8,
    })
}
