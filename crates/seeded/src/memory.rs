//! Simulated memory: real bytes behind the frames, and exact books about each frame.
//!
//! Each node has an area of whole largest blocks, with at least one block without memory before the next node's
//! (M1 of the host's model); the areas lie in one allocation, in an order that the seed chooses. The books say of every frame whether it exists, is committed, and may hold
//! anything but zero; they are compared with the bytes (clauses B1 to B4 of `MODEL.md`). What a host calls to commit and release
//! it is in `backing.rs`.

use crate::builder::Config;
use crate::context::{Core, Point};
use crate::failure::FailureKind;
use crate::faults::Call;
use crate::machine::Machine;
use crate::memmap::Devices;
use crate::rng::Rng;
use core::alloc::Layout;
use core::cell::{Cell, RefCell};
use core::ptr::NonNull;
use flagstone_host::{META_BYTES, MemRange, PageMap, PhysMem};
use flagstone_types::{AllocError, Nid, Pfn, PfnRange};

/// What uncommitted frames hold.
pub(crate) const UNCOMMITTED: u8 = 0xa5;
/// Bytes that the boot allocator takes at once.
const ARENA: usize = 64 << 10;

pub(crate) const EXISTS: u8 = 1;
pub(crate) const COMMITTED: u8 = 2;
pub(crate) const TOUCHED: u8 = 4;

/// Areas from so many bytes on are mappings of their own: fresh pages are zero without being cleared, and only those that are used cost anything.
const MAPPED: usize = 256 << 10;

/// Zeroed memory of the test process, given back when dropped.
#[derive(Debug)]
pub(crate) struct Area {
    base: NonNull<u8>,
    /// Its size says whether it is a mapping.
    layout: Layout,
    /// `base` rounded up to the alignment that was asked for.
    pub(crate) start: NonNull<u8>,
}

impl Area {
    /// Alignment is done here: an allocator asked for it would clear what it hands out.
    pub(crate) fn new(bytes: usize, align: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes.checked_add(align)?, 16).ok()?;
        let base = if layout.size() >= MAPPED {
            // SAFETY: a new mapping at an address that the system chooses touches nothing that exists.
            let mapping = unsafe {
                libc::mmap(
                    core::ptr::null_mut(),
                    layout.size(),
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                    -1,
                    0,
                )
            };
            if mapping == libc::MAP_FAILED {
                return None;
            }
            NonNull::new(mapping.cast())?
        } else {
            // SAFETY: B5: the size is not zero, since `align` is not.
            NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?
        };
        let start = base.as_ptr().map_addr(|a| a.next_multiple_of(align));
        Some(Self {
            base,
            layout,
            start: NonNull::new(start)?,
        })
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        if self.layout.size() >= MAPPED {
            // SAFETY: B5: mapped in `new` with this size, unmapped once.
            unsafe { libc::munmap(self.base.as_ptr().cast(), self.layout.size()) };
        } else {
            // SAFETY: B5: allocated in `new` with this layout, freed once.
            unsafe { std::alloc::dealloc(self.base.as_ptr(), self.layout) }
        }
    }
}

/// The memory of one node.
#[derive(Debug)]
struct Node {
    start: usize,
    pages: usize,
    base: NonNull<u8>,
    meta: NonNull<u8>,
    books: Vec<Cell<u8>>,
    tags: RefCell<Vec<u16>>,
}

/// All memory of a machine.
#[derive(Debug)]
pub(crate) struct Memory {
    shift: u32,
    nodes: Vec<Node>,
    /// Memory of devices, whose records are mapped.
    pub(crate) devices: Devices,
    boot: Vec<MemRange>,
    unadded: Vec<MemRange>,
    arenas: RefCell<Vec<(Area, usize)>>,
    _frames: Area,
    _meta: Area,
}

/// Whether `bytes` are all `value`.
fn all(bytes: &[u8], value: u8) -> bool {
    let word = u64::from_ne_bytes([value; 8]);
    let (head, words, tail) = {
        // SAFETY: B5: any eight bytes are a u64.
        unsafe { bytes.align_to::<u64>() }
    };
    head.iter().chain(tail).all(|b| *b == value) && words.iter().all(|w| *w == word)
}

impl Memory {
    pub(crate) fn new(config: &Config, rng: &Rng) -> Self {
        let block = 1usize << config.max_order;
        let mut next = block * (1 + rng.below(4));
        let (mut boot, mut unadded, mut spans) = (Vec::new(), Vec::new(), Vec::new());
        for nid in 0..config.nodes {
            let start = next;
            for piece in config
                .pieces
                .iter()
                .filter(|p| p.nid.index() == nid && p.pages > 0)
            {
                let frames = PfnRange::new(Pfn(next), piece.pages);
                let list = if piece.unadded {
                    &mut unadded
                } else {
                    &mut boot
                };
                list.push(MemRange {
                    frames,
                    nid: piece.nid,
                    zone: piece.zone,
                });
                next += piece.pages.next_multiple_of(block);
            }
            spans.push((start, next - start));
            next += block * (1 + rng.below(2));
        }
        let total: usize = spans.iter().map(|s| s.1).sum();
        let frames = Area::new(total << config.page_shift, block << config.page_shift)
            .expect("memory for the frames");
        let meta = Area::new(total * META_BYTES, META_BYTES).expect("memory for the metadata");
        let mut order: Vec<usize> = (0..spans.len()).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, rng.below(i + 1));
        }
        let mut offsets = vec![0; spans.len()];
        let mut at = 0;
        for node in order {
            offsets[node] = at;
            at += spans[node].1;
        }
        let nodes = spans.iter().zip(offsets).map(|(&(start, pages), offset)| {
            // SAFETY: B5: the areas have `total` frames and as many records; the offsets are within.
            let (base, meta) = unsafe {
                (
                    frames.start.add(offset << config.page_shift),
                    meta.start.add(offset * META_BYTES),
                )
            };
            Node {
                start,
                pages,
                base,
                meta,
                books: vec![Cell::new(0); pages],
                tags: RefCell::default(),
            }
        });
        let nodes = nodes.collect();
        let memory = Self {
            shift: config.page_shift,
            nodes,
            devices: Devices::new(config, next),
            boot,
            unadded,
            arenas: RefCell::default(),
            _frames: frames,
            _meta: meta,
        };
        for range in &memory.boot {
            memory.each(range.frames, |book, _| book.set(EXISTS | COMMITTED));
        }
        for range in &memory.unadded {
            memory.each(range.frames, |book, frame| {
                book.set(EXISTS);
                // SAFETY: B5: a frame is PAGE_SIZE bytes of the area.
                unsafe { frame.write_bytes(UNCOMMITTED, 1 << memory.shift) };
            });
        }
        memory
    }

    fn node(&self, pfn: usize) -> Option<&Node> {
        self.nodes
            .iter()
            .find(|n| pfn.wrapping_sub(n.start) < n.pages)
    }

    /// The book and the start of each frame of `frames`, which exist.
    pub(crate) fn each(&self, frames: PfnRange, mut f: impl FnMut(&Cell<u8>, NonNull<u8>)) {
        for node in &self.nodes {
            let start = frames.start.0.max(node.start);
            let end = frames.end().0.min(node.start + node.pages);
            for pfn in start..end {
                let at = pfn - node.start;
                // SAFETY: B5: `at` is below the pages of the node.
                f(&node.books[at], unsafe { node.base.add(at << self.shift) });
            }
        }
    }

    fn book(&self, pfn: usize) -> u8 {
        self.node(pfn).map_or(0, |n| n.books[pfn - n.start].get())
    }

    /// The first frame of `frames` whose book lacks one of `bits`.
    fn lacking(&self, frames: PfnRange, bits: u8) -> Option<Pfn> {
        (frames.start.0..frames.end().0)
            .find(|&pfn| self.book(pfn) & bits != bits)
            .map(Pfn)
    }

    fn bytes(&self, frame: NonNull<u8>) -> &[u8] {
        // SAFETY: B5: a frame is PAGE_SIZE initialised bytes; B6: nobody writes while the slice is compared.
        unsafe { core::slice::from_raw_parts(frame.as_ptr(), 1 << self.shift) }
    }

    /// The first frame of `frames` that has not `value` in every byte.
    pub(crate) fn other_than(&self, frames: PfnRange, value: u8, bits: u8, of: u8) -> Option<Pfn> {
        let mut pfn = frames.start.0;
        let mut found = None;
        self.each(frames, |book, frame| {
            if found.is_none() && book.get() & bits == of && !all(self.bytes(frame), value) {
                found = Some(Pfn(pfn));
            }
            pfn += 1;
        });
        found
    }

    /// Where frame `pfn` is, if there is one.
    pub(crate) fn frame(&self, pfn: usize) -> Option<NonNull<u8>> {
        let Some(node) = self.node(pfn) else {
            return self.devices.frame(pfn);
        };
        let at = pfn - node.start;
        // SAFETY: B5: `at` is below the pages of the node.
        (node.books[at].get() & EXISTS != 0).then(|| unsafe { node.base.add(at << self.shift) })
    }

    /// Where the record of `pfn` is, if there is one.
    pub(crate) fn record(&self, pfn: usize) -> Option<NonNull<u8>> {
        let Some(node) = self.node(pfn) else {
            return self.mapped_record(pfn);
        };
        // SAFETY: B5: the node has a record for each of its frames.
        Some(unsafe { node.meta.add((pfn - node.start) * META_BYTES) })
    }

    pub(crate) fn unadded(&self) -> &[MemRange] {
        &self.unadded
    }

    pub(crate) fn check_uncommitted(&self) -> Result<(), String> {
        for range in &self.unadded {
            if let Some(pfn) =
                self.other_than(range.frames, UNCOMMITTED, EXISTS | COMMITTED, EXISTS)
            {
                return Err(format!("frame {pfn} was written before it was committed"));
            }
        }
        Ok(())
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        self.check_uncommitted()?;
        for range in self.boot.iter().chain(&self.unadded) {
            let known = EXISTS | COMMITTED | TOUCHED;
            if let Some(pfn) = self.other_than(range.frames, 0, known, EXISTS | COMMITTED) {
                return Err(format!(
                    "frame {pfn} is known to be zero, but was written without being taken"
                ));
            }
        }
        self.check_shared_records()
    }

    pub(crate) fn tag_of(&self, pfn: Pfn) -> u16 {
        self.node(pfn.0)
            .and_then(|n| n.tags.borrow().get(pfn.0 - n.start).copied())
            .unwrap_or(0)
    }

    /// How many frames carry `tag`.
    pub(crate) fn tagged(&self, tag: u16) -> usize {
        self.nodes
            .iter()
            .map(|n| n.tags.borrow().iter().filter(|t| **t == tag).count())
            .sum()
    }

    fn boot_alloc(&self, layout: Layout) -> Option<NonNull<u8>> {
        let mut arenas = self.arenas.borrow_mut();
        let align = layout.align().max(64);
        let fits = |area: &Area, used: usize| {
            let start =
                (area.base.addr().get() + used).next_multiple_of(align) - area.base.addr().get();
            let end = start.checked_add(layout.size())?;
            (end <= area.layout.size()).then_some((start, end))
        };
        if arenas
            .last()
            .is_none_or(|(area, used)| fits(area, *used).is_none())
        {
            arenas.push((Area::new(layout.size().max(ARENA), align)?, 0));
        }
        let (area, used) = arenas.last_mut()?;
        let (start, end) = fits(area, *used)?;
        *used = end;
        // SAFETY: B5: `start` is within the arena.
        Some(unsafe { area.base.add(start) })
    }
}

impl Core {
    pub(crate) fn must_exist(&self, call: &str, frames: PfnRange, bits: u8) {
        if let Some(pfn) = self.memory.lacking(frames, bits) {
            let exists = self.memory.book(pfn.0) & EXISTS != 0;
            let what = if exists {
                "is not committed"
            } else {
                "does not exist"
            };
            self.fail(
                FailureKind::Memory,
                format!("{call} of {frames:?}: frame {pfn} {what}"),
            );
        }
    }
}

// SAFETY: M2: a node has a record for each frame of its whole largest blocks; M3: arenas are zeroed, handed
// out once and live as long as the machine; M8: every piece of memory begins at a largest block.
unsafe impl<const SHIFT: u32, const ORDER: u32> PageMap for &Machine<SHIFT, ORDER> {
    const PAGE_SHIFT: u32 = SHIFT;
    const MAX_ORDER: u32 = ORDER;

    fn meta(&self, pfn: Pfn) -> Option<NonNull<u8>> {
        let core = self.core();
        core.step(Point::Memory);
        core.memory.record(pfn.0)
    }

    fn nid(&self, pfn: Pfn) -> Nid {
        let core = self.core();
        core.step(Point::Memory);
        let holds = |n: &Node| pfn.0.wrapping_sub(n.start) < n.pages;
        let nid = core.memory.nodes.iter().position(holds);
        let of_device = || core.memory.devices.nid(PfnRange::new(pfn, 1));
        match nid.map(|nid| Nid(nid as u16)).or_else(of_device) {
            Some(nid) => nid,
            None => core.fail(
                FailureKind::Memory,
                format!("nid of frame {pfn}, where no memory can be"),
            ),
        }
    }

    fn boot_ranges(&self, each: &mut dyn FnMut(MemRange)) {
        for range in &self.core().memory.boot {
            self.core().step(Point::Memory);
            each(*range);
        }
    }

    fn boot_alloc(&self, layout: Layout) -> Result<NonNull<u8>, AllocError> {
        let core = self.core();
        core.step(Point::Memory);
        if core.faults.fails(Call::BootAlloc, &core.rng) {
            return Err(AllocError::OutOfMemory);
        }
        core.memory
            .boot_alloc(layout)
            .ok_or(AllocError::OutOfMemory)
    }
}

// SAFETY: M1 and M4: a node's frames are one area, aligned to a largest block, and areas are disjoint.
unsafe impl<const SHIFT: u32, const ORDER: u32> PhysMem for &Machine<SHIFT, ORDER> {
    fn frame_ptr(&self, pfn: Pfn) -> NonNull<u8> {
        let core = self.core();
        core.step(Point::Memory);
        if let Some(frame) = core.memory.devices.frame(pfn.0) {
            return frame;
        }
        let Some(node) = core.memory.node(pfn.0) else {
            core.fail(
                FailureKind::Memory,
                format!("frame_ptr of frame {pfn}, where no memory can be"),
            )
        };
        // SAFETY: B5: the frame is within the node's area.
        unsafe { node.base.add((pfn.0 - node.start) << SHIFT) }
    }

    fn pfn_of(&self, address: usize) -> Option<Pfn> {
        let core = self.core();
        core.step(Point::Memory);
        let of_node = core.memory.nodes.iter().find_map(|n| {
            let offset = address.wrapping_sub(n.base.addr().get());
            (offset < n.pages << SHIFT).then(|| Pfn(n.start + (offset >> SHIFT)))
        });
        of_node.or_else(|| core.memory.devices.shown_at(address))
    }

    fn tag(&self, frames: PfnRange, tag: u16) {
        let core = self.core();
        core.step(Point::Memory);
        core.must_exist("tag", frames, EXISTS);
        for pfn in frames.start.0..frames.end().0 {
            if let Some(node) = core.memory.node(pfn) {
                let mut tags = node.tags.borrow_mut();
                if tags.is_empty() {
                    tags.resize(node.pages, 0);
                }
                tags[pfn - node.start] = tag;
            }
        }
    }
}
