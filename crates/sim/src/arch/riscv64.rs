//! riscv64: page-table entries of Sv39, Sv48 and Sv57 (privileged specification 4.4), with Svpbmt and without Svnapot.
//!
//! The supervisor runs with SUM=1 and MXR=0. Updates of A and D are the unit's (Svadu) if `MmuCaps::accessed` and `dirty`, else they fault (Svade).

use super::{Page, Rights, Word};
use flagstone_host::MmuCaps;

const V: u64 = 1;
const R: u64 = 1 << 1;
const W: u64 = 1 << 2;
const X: u64 = 1 << 3;
const U: u64 = 1 << 4;
const G: u64 = 1 << 5;
/// Accessed.
pub(super) const A: u64 = 1 << 6;
/// Dirty.
pub(super) const D: u64 = 1 << 7;
/// Bits 60 to 54, and N without Svnapot.
const RESERVED: u64 = 0x7f << 54 | 1 << 63;
const PBMT: u64 = 3 << 61;

pub(super) fn decode(level: u8, raw: u64, caps: &MmuCaps) -> Word {
    if raw & V == 0 {
        return Word::Invalid;
    }
    if raw & RESERVED != 0 {
        return Word::Reserved(raw & RESERVED);
    }
    let at = (raw >> 10 & ((1 << 44) - 1)) << 12;
    let beyond = at & !((1u64 << caps.phys_bits.min(56)) - 1);
    if raw & (R | W) == W {
        return Word::Reserved(W);
    }
    if raw & (R | X) == 0 {
        let wrong = raw & (A | D | U | PBMT);
        if wrong != 0 || level == 1 || beyond != 0 {
            return Word::Reserved(wrong | beyond);
        }
        return Word::Table {
            at,
            limit: Rights::all(),
            global: raw & G != 0,
            accessed: true,
        };
    }
    let page = (1u64 << (12 + 9 * (u32::from(level) - 1))) - 1;
    if at & page != 0 || beyond != 0 || raw & PBMT == PBMT {
        return Word::Reserved(at & page | beyond | raw & PBMT);
    }
    let mut rights = Rights::empty();
    rights.set(Rights::READ, raw & R != 0);
    rights.set(Rights::WRITE, raw & W != 0);
    rights.set(Rights::USER, raw & U != 0);
    rights.set(Rights::EXEC_USER | Rights::EXEC_KERNEL, raw & X != 0);
    Word::Page(Page {
        at,
        rights,
        global: raw & G != 0,
        accessed: raw & A != 0,
        dirty: raw & D != 0,
        shadow: false,
        memory: (raw >> 61 & 3) as u8,
    })
}
