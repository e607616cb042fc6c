//! Records of device memory that are mapped page by page: every look at such a record goes through the mapping to the bytes of the frame
//! behind it, so that records which share a page wrongly are seen to do so.
//!
//! The frames behind are whoever's maps them. A page that is mapped to be read only is remembered by a sum of its bytes: who writes to it is found
//! when it is unmapped, by [`Machine::check_memory`], and when the machine is dropped (clauses V1 to V3 of `MODEL.md`).

use crate::builder::Config;
use crate::context::{Core, Point};
use crate::failure::FailureKind;
use crate::faults::Call;
use crate::machine::Machine;
use crate::memory::{Area, Memory};
use core::cell::RefCell;
use core::hash::Hasher;
use core::ptr::NonNull;
use flagstone_host::{META_BYTES, MemmapAccess, MemmapCaps, VirtualMemmap};
use flagstone_types::{AllocError, Nid, Pfn, PfnRange};
use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;

/// The memory of one device.
#[derive(Debug)]
struct Device {
    frames: PfnRange,
    nid: Nid,
    area: Area,
}

/// What one memmap page is mapped to.
#[derive(Clone, Copy, Debug)]
struct Mapping {
    backing: Pfn,
    /// For a page that is read only, the sum of its bytes.
    sum: Option<u64>,
    /// Whether `meta` answers.
    shown: bool,
}

/// All devices of a machine, and the mapping of their records.
#[derive(Debug)]
pub(crate) struct Devices {
    shift: u32,
    caps: MemmapCaps,
    devices: Vec<Device>,
    /// By memmap page: the number of its first frame divided by the records of a page.
    table: RefCell<BTreeMap<usize, Mapping>>,
}

impl Devices {
    /// The devices of `config`, at frames from `next` on.
    pub(crate) fn new(config: &Config, mut next: usize) -> Self {
        let block = 1usize << config.max_order;
        let mut devices = Vec::new();
        for piece in &config.devices {
            let align = piece.align.pages().max(block);
            let start = next.next_multiple_of(align);
            let area = Area::new(piece.pages << config.page_shift, block << config.page_shift);
            devices.push(Device {
                frames: PfnRange::new(Pfn(start), piece.pages),
                nid: piece.nid,
                area: area.expect("memory for a device"),
            });
            next = start + piece.pages.next_multiple_of(block) + block;
        }
        Self {
            shift: config.page_shift,
            caps: config.memmap,
            devices,
            table: RefCell::default(),
        }
    }

    fn records(&self) -> usize {
        (1 << self.shift) / META_BYTES
    }

    fn pages(&self, frames: PfnRange) -> core::ops::Range<usize> {
        frames.start.0 / self.records()..frames.end().0.div_ceil(self.records())
    }

    /// The node of the device that all of `frames` are memory of.
    pub(crate) fn nid(&self, frames: PfnRange) -> Option<Nid> {
        let holds = |d: &&Device| frames.start >= d.frames.start && frames.end() <= d.frames.end();
        self.devices.iter().find(holds).map(|d| d.nid)
    }

    /// Where frame `pfn` is, if a device has it.
    pub(crate) fn frame(&self, pfn: usize) -> Option<NonNull<u8>> {
        let device = self.devices.iter().find(|d| d.frames.contains(Pfn(pfn)))?;
        let at = (pfn - device.frames.start.0) << self.shift;
        // SAFETY: B5: the area has as many frames as the device.
        Some(unsafe { device.area.start.add(at) })
    }

    /// The frame at `address`, if it is a device's and its record can be had.
    pub(crate) fn shown_at(&self, address: usize) -> Option<Pfn> {
        self.devices.iter().find_map(|device| {
            let offset = address.wrapping_sub(device.area.start.addr().get()) >> self.shift;
            let pfn = device.frames.start.0.checked_add(offset)?;
            let inside = offset < device.frames.pages && self.shown(pfn).is_some();
            inside.then_some(Pfn(pfn))
        })
    }

    /// What is behind the record of `pfn`, if it can be had.
    fn shown(&self, pfn: usize) -> Option<Pfn> {
        let table = self.table.borrow();
        let mapping = table.get(&(pfn / self.records()))?;
        mapping.shown.then_some(mapping.backing)
    }
}

impl Memory {
    /// Where the record of a device's frame is, if it can be had.
    pub(crate) fn mapped_record(&self, pfn: usize) -> Option<NonNull<u8>> {
        let base = self.frame(self.devices.shown(pfn)?.0)?;
        let at = pfn % self.devices.records() * META_BYTES;
        // SAFETY: B5: a frame has room for so many records.
        Some(unsafe { base.add(at) })
    }

    fn sum(&self, backing: Pfn) -> Option<u64> {
        let base = self.frame(backing.0)?;
        // SAFETY: B5: a frame is PAGE_SIZE initialised bytes; B6: nobody writes while they are read.
        let bytes = unsafe { core::slice::from_raw_parts(base.as_ptr(), 1 << self.devices.shift) };
        let mut hasher = DefaultHasher::new();
        hasher.write(bytes);
        Some(hasher.finish())
    }

    /// That nobody wrote to a page of records that is mapped to be read only.
    pub(crate) fn check_shared_records(&self) -> Result<(), String> {
        let table = self.devices.table.borrow();
        let mut last = None;
        for (page, mapping) in table.iter() {
            let Some(sum) = mapping.sum else { continue };
            if last != Some((mapping.backing, sum)) && self.sum(mapping.backing) != Some(sum) {
                let frame = page * self.devices.records();
                return Err(format!(
                    "records of frame {frame:#x} and others, read only in frame {}, were written",
                    mapping.backing
                ));
            }
            last = Some((mapping.backing, sum));
        }
        Ok(())
    }
}

impl Core {
    /// Calls `each` with the mapping of every memmap page of `frames`; all must be mapped.
    fn each_mapping(&self, call: &str, frames: PfnRange, mut each: impl FnMut(&mut Mapping)) {
        let devices = &self.memory.devices;
        for page in devices.pages(frames) {
            let mut table = devices.table.borrow_mut();
            let Some(mapping) = table.get_mut(&page) else {
                drop(table);
                let frame = page * devices.records();
                let text = format!("{call}: the records of frame {frame:#x} are not mapped");
                self.fail(FailureKind::Memory, text);
            };
            each(mapping);
        }
    }

    fn must_be_whole(&self, call: &str, frames: PfnRange) {
        let records = self.memory.devices.records();
        let whole = frames.start.0.is_multiple_of(records) && frames.pages.is_multiple_of(records);
        if !whole || self.memory.devices.nid(frames).is_none() {
            let text = format!("{call} of {frames:?}: not whole memmap pages of one device");
            self.fail(FailureKind::Memory, text);
        }
    }
}

// SAFETY: V1: `meta` goes through the table and answers for what is shown; the frame behind stays where it is. V2: a device has an area of its
// own, aligned to a largest block and with a gap behind it, for as long as the machine.
unsafe impl<const SHIFT: u32, const ORDER: u32> VirtualMemmap for &Machine<SHIFT, ORDER> {
    fn memmap_caps(&self) -> MemmapCaps {
        self.core().step(Point::Memory);
        self.core().memory.devices.caps
    }

    fn device_node(&self, frames: PfnRange) -> Option<Nid> {
        self.core().step(Point::Memory);
        self.core().memory.devices.nid(frames)
    }

    unsafe fn map_memmap(
        &self,
        frames: PfnRange,
        backing: Pfn,
        access: MemmapAccess,
    ) -> Result<(), AllocError> {
        let core = self.core();
        core.step(Point::Memory);
        core.must_be_whole("map_memmap", frames);
        let devices = &core.memory.devices;
        if core.faults.fails(Call::MapMemmap, &core.rng) {
            return Err(AllocError::OutOfMemory);
        }
        let sum = match (core.memory.sum(backing), access) {
            (None, _) => core.fail(
                FailureKind::Memory,
                format!("map_memmap to frame {backing}, which does not exist"),
            ),
            (sum, MemmapAccess::Shared) => sum,
            (_, MemmapAccess::Own) => None,
        };
        {
            let mut table = devices.table.borrow_mut();
            let pages = devices.pages(frames);
            if table.range(pages.clone()).next().is_some() {
                return Err(AllocError::Exists);
            }
            let mapping = Mapping {
                backing,
                sum,
                shown: false,
            };
            table.extend(pages.map(|page| (page, mapping)));
        }
        core.step(Point::Memory);
        Ok(())
    }

    fn memmap_backing(&self, frame: Pfn) -> Option<Pfn> {
        let core = self.core();
        core.step(Point::Memory);
        let devices = &core.memory.devices;
        let table = devices.table.borrow();
        table
            .get(&(frame.0 / devices.records()))
            .map(|mapping| mapping.backing)
    }

    unsafe fn show_memmap(&self, frames: PfnRange) {
        self.core().step(Point::Memory);
        self.core().must_be_whole("show_memmap", frames);
        self.core()
            .each_mapping("show_memmap", frames, |mapping| mapping.shown = true);
        self.core().step(Point::Memory);
    }

    fn hide_memmap(&self, frames: PfnRange) {
        self.core().step(Point::Memory);
        self.core().must_be_whole("hide_memmap", frames);
        self.core()
            .each_mapping("hide_memmap", frames, |mapping| mapping.shown = false);
        self.core().step(Point::Memory);
    }

    unsafe fn unmap_memmap(&self, frames: PfnRange) {
        let core = self.core();
        core.step(Point::Memory);
        core.must_be_whole("unmap_memmap", frames);
        if let Err(text) = core.memory.check_shared_records() {
            core.fail(FailureKind::Memory, text);
        }
        let mut shown = false;
        core.each_mapping("unmap_memmap", frames, |mapping| shown |= mapping.shown);
        if shown {
            let text = format!("unmap_memmap of {frames:?}: records are not hidden");
            core.fail(FailureKind::Memory, text);
        }
        let devices = &core.memory.devices;
        let pages = devices.pages(frames);
        devices
            .table
            .borrow_mut()
            .retain(|page, _| !pages.contains(page));
        core.step(Point::Memory);
    }
}

impl<const SHIFT: u32, const ORDER: u32> Machine<SHIFT, ORDER> {
    /// Memory of devices, in the order in which it was given to the builder.
    #[must_use]
    pub fn device_ranges(&self) -> Vec<PfnRange> {
        let devices = &self.core().memory.devices.devices;
        devices.iter().map(|device| device.frames).collect()
    }

    /// How many memmap pages are mapped, and how many frames are behind them.
    #[must_use]
    pub fn mapped_memmap(&self) -> (usize, usize) {
        let table = self.core().memory.devices.table.borrow();
        let mut frames: Vec<Pfn> = table.values().map(|mapping| mapping.backing).collect();
        frames.sort_unstable();
        frames.dedup();
        (table.len(), frames.len())
    }
}
