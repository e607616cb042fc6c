//! Absent entries: how a swap slot, a frame on the move, a device's frame or a marker is packed into a word that the unit ignores.
//!
//! Every format has the same four fields at places of its own, told by an [`AbsentLayout`]. Invariant: what [`AbsentLayout::encode`] makes is never 0 in the
//! field of the kind, so it is never taken for nothing, and it uses no bit outside of the fields.

use super::{Absent, Marks};

/// Where the fields stand.
pub(super) struct AbsentLayout {
    /// Shift of the kind: 3 bits, 1 to 7.
    pub(super) kind: u32,
    /// Shift of the marks: 4 bits.
    pub(super) marks: u32,
    /// Shift of the swap area: 5 bits.
    pub(super) area: u32,
    /// Shift of the number: a slot, a frame, or a marker's payload.
    pub(super) number: u32,
    /// Bits of the number.
    pub(super) number_bits: u32,
    /// Whether the number is stored inverted: processors that speculate on entries that are not present then look far beyond memory.
    pub(super) inverted: bool,
    /// What is constant in every absent entry.
    pub(super) fixed: u64,
    /// What the unit may set in an absent entry: not looked at.
    pub(super) ignored: u64,
}

const SWAP: u64 = 1;
const SWAP_EXCLUSIVE: u64 = 2;
const MIGRATION_READ: u64 = 3;
const MIGRATION_WRITE: u64 = 4;
const DEVICE_READ: u64 = 5;
const DEVICE_WRITE: u64 = 6;
const MARKER: u64 = 7;

const SWAP_MARKS: Marks = Marks::SOFT_DIRTY.union(Marks::UFFD_WP);
const MIGRATION_MARKS: Marks = SWAP_MARKS.union(Marks::YOUNG).union(Marks::DIRTY);

impl AbsentLayout {
    const fn number_mask(&self) -> u64 {
        ((1 << self.number_bits) - 1) << self.number
    }

    const fn fields(&self) -> u64 {
        7 << self.kind | 15 << self.marks | 31 << self.area | self.number_mask()
    }

    /// The entry, or `None` if a number or mark has no room.
    #[inline(always)]
    pub(super) const fn encode(&self, absent: &Absent) -> Option<u64> {
        let (kind, number, marks, allowed, area) = match *absent {
            Absent::Swap {
                area,
                offset,
                exclusive,
                marks,
            } => {
                let kind = if exclusive { SWAP_EXCLUSIVE } else { SWAP };
                (kind, offset, marks, SWAP_MARKS, area)
            }
            Absent::Migration {
                frame,
                write,
                marks,
            } => {
                let kind = if write {
                    MIGRATION_WRITE
                } else {
                    MIGRATION_READ
                };
                (kind, frame, marks, MIGRATION_MARKS, 0)
            }
            Absent::Device { frame, write } => {
                let kind = if write { DEVICE_WRITE } else { DEVICE_READ };
                (kind, frame, Marks::empty(), Marks::empty(), 0)
            }
            Absent::Marker { payload } => {
                if payload > 7 {
                    return None;
                }
                (MARKER, payload as u64, Marks::empty(), Marks::empty(), 0)
            }
        };
        if number >> self.number_bits != 0 || area > 31 || !allowed.contains(marks) {
            return None;
        }
        let number = number << self.number;
        let number = if self.inverted {
            number ^ self.number_mask()
        } else {
            number
        };
        Some(
            self.fixed
                | kind << self.kind
                | (marks.bits() as u64) << self.marks
                | (area as u64) << self.area
                | number,
        )
    }

    /// What an entry says that is neither nothing nor present; `None` if [`AbsentLayout::encode`] does not make such a one.
    #[inline(always)]
    pub(super) const fn decode(&self, raw: u64) -> Option<Absent> {
        let raw = raw & !self.ignored;
        if raw & !self.fields() != self.fixed {
            return None;
        }
        let area = (raw >> self.area & 31) as u8;
        let marks = Marks::from_bits_truncate((raw >> self.marks & 15) as u16);
        let number = raw & self.number_mask();
        let number = if self.inverted {
            number ^ self.number_mask()
        } else {
            number
        };
        let number = number >> self.number;
        let kind = raw >> self.kind & 7;
        let (absent, allowed) = match kind {
            SWAP | SWAP_EXCLUSIVE => {
                let absent = Absent::Swap {
                    area,
                    offset: number,
                    exclusive: kind == SWAP_EXCLUSIVE,
                    marks,
                };
                return if SWAP_MARKS.contains(marks) {
                    Some(absent)
                } else {
                    None
                };
            }
            MIGRATION_READ | MIGRATION_WRITE => (
                Absent::Migration {
                    frame: number,
                    write: kind == MIGRATION_WRITE,
                    marks,
                },
                MIGRATION_MARKS,
            ),
            DEVICE_READ | DEVICE_WRITE => (
                Absent::Device {
                    frame: number,
                    write: kind == DEVICE_WRITE,
                },
                Marks::empty(),
            ),
            MARKER if number < 8 => (
                Absent::Marker {
                    payload: number as u8,
                },
                Marks::empty(),
            ),
            _ => return None,
        };
        if area == 0 && allowed.contains(marks) {
            Some(absent)
        } else {
            None
        }
    }
}
