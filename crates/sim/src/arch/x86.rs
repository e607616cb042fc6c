//! x86: entries of IA-32e paging and of PAE paging (SDM volume 3, tables 4-8 to 4-11 and 4-14 to 4-20).
//!
//! The unit is one with execute-disable and write-protect switched on, as every 64-bit system has them.

use super::{Page, Rights, Word};
use flagstone_host::MmuCaps;

const P: u64 = 1;
const W: u64 = 1 << 1;
const U: u64 = 1 << 2;
/// Accessed.
pub(super) const A: u64 = 1 << 5;
/// Dirty.
pub(super) const D: u64 = 1 << 6;
/// On levels 2 and 3: a leaf. On level 1 it is a bit of the memory type.
const PS: u64 = 1 << 7;
const G: u64 = 1 << 8;
const XD: u64 = 1 << 63;

const fn below(bits: u32) -> u64 {
    (1 << bits) - 1
}

fn limit(raw: u64) -> Rights {
    let mut limit = Rights::READ;
    limit.set(Rights::WRITE, raw & W != 0);
    limit.set(Rights::USER, raw & U != 0);
    limit.set(Rights::EXEC_USER | Rights::EXEC_KERNEL, raw & XD == 0);
    limit
}

/// `address` is the mask of physical address bits; `fixed` of those that are reserved besides.
fn leaf(level: u8, raw: u64, address: u64, caps: &MmuCaps) -> Word {
    let page = below(12 + 9 * (u32::from(level) - 1));
    // Bit 12 of a huge leaf is PAT.
    let pat = if level > 1 { 1 << 12 } else { 0 };
    let misaligned = raw & address & page & !pat;
    if misaligned != 0 {
        return Word::Reserved(misaligned);
    }
    let pat = if level > 1 {
        raw >> 12 & 1
    } else {
        raw >> 7 & 1
    };
    Word::Page(Page {
        at: raw & address & !page,
        rights: limit(raw),
        global: raw & G != 0,
        accessed: raw & A != 0,
        dirty: raw & D != 0,
        shadow: caps.shadow_stack && raw & W == 0 && raw & D != 0,
        memory: (pat << 2 | raw >> 3 & 3) as u8,
    })
}

pub(super) fn decode(level: u8, raw: u64, caps: &MmuCaps) -> Word {
    if raw & P == 0 {
        return Word::Invalid;
    }
    let address = below(u32::from(caps.phys_bits).min(52)) & !below(12);
    let reserved = below(52) & !below(12) & !address;
    if raw & reserved != 0 {
        return Word::Reserved(raw & reserved);
    }
    let huge = match level {
        2 => true,
        3 => caps.huge_pud,
        _ => false,
    };
    if level == 1 || (raw & PS != 0 && huge) {
        return leaf(level, raw, address, caps);
    }
    if raw & PS != 0 {
        return Word::Reserved(PS);
    }
    Word::Table {
        at: raw & address,
        limit: limit(raw),
        global: false,
        accessed: raw & A != 0,
    }
}

pub(super) fn decode_pae(level: u8, raw: u64, caps: &MmuCaps) -> Word {
    if raw & P == 0 {
        return Word::Invalid;
    }
    let address = below(u32::from(caps.phys_bits).min(52)) & !below(12);
    let mut reserved = below(63) & !below(12) & !address;
    if level == 3 {
        reserved |= 0b1_1110_0110 | XD;
    }
    if raw & reserved != 0 {
        return Word::Reserved(raw & reserved);
    }
    match level {
        3 => Word::Table {
            at: raw & address,
            limit: Rights::all(),
            global: false,
            accessed: true,
        },
        2 if raw & PS == 0 => Word::Table {
            at: raw & address,
            limit: limit(raw),
            global: false,
            accessed: raw & A != 0,
        },
        _ => leaf(level, raw, address, caps),
    }
}
