//! ppc64: page directory and page table entries of radix trees (Power ISA 3.1 book III, figures 23 and 24), process scoped.
//!
//! The manual numbers bits from the most significant one: its bit `n` is bit `63 - n` here. Memory is big-endian.

use super::{Geometry, Page, Rights, Word};
use flagstone_host::MmuCaps;

const fn bit(n: u32) -> u64 {
    1 << (63 - n)
}

const VALID: u64 = bit(0);
const LEAF: u64 = bit(1);
/// Reference.
pub(super) const R: u64 = bit(55);
/// Change.
pub(super) const C: u64 = bit(56);
const PRIVILEGED: u64 = bit(60);
const READ: u64 = bit(61);
const READ_WRITE: u64 = bit(62);
const EXECUTE: u64 = bit(63);
/// Real page number: bits 7 to 51.
const RPN: u64 = (1 << 57) - (1 << 12);
/// Next level base: bits 4 to 55.
const NLB: u64 = (1 << 60) - (1 << 8);
/// Next level size: bits 59 to 63.
const NLS: u64 = 31;

pub(super) fn decode(geometry: &Geometry, level: u8, raw: u64, caps: &MmuCaps) -> Word {
    if raw & VALID == 0 {
        return Word::Invalid;
    }
    let beyond = !((1u64 << caps.phys_bits.min(57)) - 1);
    if raw & LEAF == 0 {
        if level == 1 {
            return Word::Reserved(LEAF);
        }
        // The size of the next table is in the entry; the tree must end at the size of a page.
        if raw & NLS != u64::from(geometry.index_bits[level as usize - 1]) {
            return Word::Reserved(NLS);
        }
        let at = raw & NLB;
        let misaligned = at & (geometry.table_bytes(level - 1) - 1);
        if misaligned != 0 || at & beyond != 0 {
            return Word::Reserved(misaligned | at & beyond);
        }
        return Word::Table {
            at,
            limit: Rights::all(),
            global: false,
            accessed: true,
        };
    }
    let page = (1u64 << geometry.shift(level)) - 1;
    let at = raw & RPN;
    if level > 3 || at & beyond != 0 {
        return Word::Reserved(if level > 3 { LEAF } else { at & beyond });
    }
    if at & page != 0 {
        return Word::Reserved(at & page);
    }
    let mut rights = Rights::empty();
    rights.set(Rights::READ, raw & (READ | READ_WRITE) != 0);
    rights.set(Rights::WRITE, raw & READ_WRITE != 0);
    rights.set(Rights::USER, raw & PRIVILEGED == 0);
    rights.set(Rights::EXEC_USER | Rights::EXEC_KERNEL, raw & EXECUTE != 0);
    Word::Page(Page {
        at,
        rights,
        global: false,
        accessed: raw & R != 0,
        dirty: raw & C != 0,
        shadow: false,
        memory: (raw >> 4 & 3) as u8,
    })
}
