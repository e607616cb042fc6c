//! What the loader says: the start information of PVH, version 1, and the firmware's memory map in it.
//!
//! Layout: <https://xenbits.xen.org/docs/unstable/misc/pvh.html>. Everything is copied, since the memory that it lies in is
//! nobody's afterwards.

use core::ffi::CStr;

use crate::{command_line, direct};

const MAGIC: u32 = 0x336e_c578;
/// A region of the memory map that is memory for anyone to use.
const USABLE: u32 = 1;
/// Regions that are looked at; firmware has about ten.
const MOST: usize = 64;

/// Usable memory: physical addresses from `start` to before `end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// The start information that is of use later.
#[derive(Debug)]
pub(crate) struct StartInfo {
    regions: [Region; MOST],
    count: usize,
    /// Physical address of ACPI's root pointer, 0 if there is none.
    pub(crate) rsdp: u64,
}

#[repr(C)]
struct RawInfo {
    magic: u32,
    version: u32,
    flags: u32,
    modules: u32,
    module_list: u64,
    command_line: u64,
    rsdp: u64,
    memory_map: u64,
    memory_map_entries: u32,
    reserved: u32,
}

#[repr(C)]
struct RawRegion {
    start: u64,
    size: u64,
    kind: u32,
    reserved: u32,
}

impl StartInfo {
    /// Copies what lies at physical address `at`; `None` if it is no start information with a memory map. Keeps the command line.
    ///
    /// # Safety
    /// `at` came from the loader, and nothing has been written to memory outside the image yet.
    pub(crate) unsafe fn read(at: u32) -> Option<Self> {
        let info = direct::pointer(u64::from(at)).cast::<RawInfo>();
        // SAFETY: M1: mapped; the loader put a structure of at least this size there.
        let info = unsafe { info.read_unaligned() };
        if info.magic != MAGIC || info.version < 1 || info.memory_map_entries == 0 {
            return None;
        }
        let mut this = Self {
            regions: [Region::default(); MOST],
            count: 0,
            rsdp: info.rsdp,
        };
        if info.command_line != 0 {
            // SAFETY: M1: mapped; the loader says that it is text that ends with 0.
            let text =
                unsafe { CStr::from_ptr(direct::pointer(info.command_line).as_ptr().cast()) };
            command_line::keep(text.to_bytes());
        }
        let map = direct::pointer(info.memory_map).cast::<RawRegion>();
        for n in 0..info.memory_map_entries as usize {
            // SAFETY: M1: mapped; the loader says that there are so many entries.
            let region = unsafe { map.add(n).read_unaligned() };
            if region.kind == USABLE && this.count < MOST {
                this.regions[this.count] = Region {
                    start: region.start,
                    end: region.start.saturating_add(region.size),
                };
                this.count += 1;
            }
        }
        Some(this)
    }

    /// Usable memory, in the firmware's order.
    pub(crate) fn regions(&self) -> &[Region] {
        &self.regions[..self.count]
    }
}
