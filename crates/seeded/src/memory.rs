//! Simulated memory: real bytes behind the frames, and exact books about each frame.
//!
//! Each node has an area of whole largest blocks, with at least one block without memory before the next node's
//! (M1 of the host's model); the areas lie in one allocation, in an order that the seed chooses. The books say of every frame whether it exists, is committed, and may hold
//! anything but zero; they are compared with the bytes (clauses B1 to B4 of `MODEL.md`).

use crate::builder::Config;
use crate::context::{Core, Point};
use crate::failure::FailureKind;
use crate::faults::Call;
use crate::machine::Machine;
use crate::rng::Rng;
use core::alloc::Layout;
use core::cell::{Cell, RefCell};
use core::ptr::NonNull;
use flagstone_host::{Backing, META_BYTES, MemRange, PageMap, PhysMem};
use flagstone_types::{AllocError, Nid, Pfn, PfnRange};

/// What uncommitted frames hold.
const UNCOMMITTED: u8 = 0xa5;
/// What frames hold while they are being released.
const RELEASING: u8 = 0xdb;
/// Bytes that the boot allocator takes at once.
const ARENA: usize = 64 << 10;

const EXISTS: u8 = 1;
const COMMITTED: u8 = 2;
const TOUCHED: u8 = 4;

/// Areas from so many bytes on are mappings of their own: fresh pages are zero without being cleared, and only those that are used cost anything.
const MAPPED: usize = 256 << 10;

/// Zeroed memory of the test process, given back when dropped.
#[derive(Debug)]
struct Area {
    base: NonNull<u8>,
    /// Its size says whether it is a mapping.
    layout: Layout,
    /// `base` rounded up to the alignment that was asked for.
    start: NonNull<u8>,
}

impl Area {
    /// Alignment is done here: an allocator asked for it would clear what it hands out.
    fn new(bytes: usize, align: usize) -> Option<Self> {
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
    fn each(&self, frames: PfnRange, mut f: impl FnMut(&Cell<u8>, NonNull<u8>)) {
        for pfn in frames.start.0..frames.end().0 {
            if let Some(node) = self.node(pfn) {
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
    fn other_than(&self, frames: PfnRange, value: u8, bits: u8, of: u8) -> Option<Pfn> {
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
        let node = self.node(pfn)?;
        let at = pfn - node.start;
        // SAFETY: B5: `at` is below the pages of the node.
        (node.books[at].get() & EXISTS != 0).then(|| unsafe { node.base.add(at << self.shift) })
    }

    /// Where the record of `pfn` is, if there is one.
    pub(crate) fn record(&self, pfn: usize) -> Option<NonNull<u8>> {
        let node = self.node(pfn)?;
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
        Ok(())
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
    fn must_exist(&self, call: &str, frames: PfnRange, bits: u8) {
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
        let node = core.memory.node(pfn.0)?;
        // SAFETY: B5: the node has a record for each of its frames.
        Some(unsafe { node.meta.add((pfn.0 - node.start) * META_BYTES) })
    }

    fn nid(&self, pfn: Pfn) -> Nid {
        let core = self.core();
        core.step(Point::Memory);
        match core
            .memory
            .nodes
            .iter()
            .position(|n| pfn.0.wrapping_sub(n.start) < n.pages)
        {
            Some(nid) => Nid(nid as u16),
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
        core.memory.nodes.iter().find_map(|n| {
            let offset = address.wrapping_sub(n.base.addr().get());
            (offset < n.pages << SHIFT).then(|| Pfn(n.start + (offset >> SHIFT)))
        })
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

impl<const SHIFT: u32, const ORDER: u32> Backing for &Machine<SHIFT, ORDER> {
    const CAN_RELEASE: bool = true;

    fn commit(&self, frames: PfnRange) -> Result<(), AllocError> {
        let core = self.core();
        core.step(Point::Backing);
        core.must_exist("commit", frames, EXISTS);
        if core.faults.fails(Call::Commit, &core.rng) {
            return Err(AllocError::OutOfMemory);
        }
        if let Some(pfn) = core.memory.other_than(frames, UNCOMMITTED, COMMITTED, 0) {
            core.fail(
                FailureKind::Memory,
                format!("frame {pfn} was written before it was committed"),
            );
        }
        core.memory.each(frames, |book, frame| {
            if book.get() & COMMITTED == 0 {
                book.set(EXISTS | COMMITTED);
                // SAFETY: B5: a frame is PAGE_SIZE bytes; nobody may use it before it is committed (M5).
                unsafe { frame.write_bytes(0, 1 << SHIFT) };
            }
        });
        core.step(Point::Backing);
        Ok(())
    }

    fn release(&self, frames: PfnRange) -> bool {
        let core = self.core();
        core.step(Point::Backing);
        core.must_exist("release", frames, EXISTS | COMMITTED);
        if core.faults.fails(Call::Release, &core.rng) {
            core.memory.each(frames, |_, frame| {
                if core.rng.chance(64) {
                    // SAFETY: B5: a frame is PAGE_SIZE bytes; M6: the caller owns it, and some may be zero already.
                    unsafe { frame.write_bytes(0, 1 << SHIFT) };
                }
            });
            return false;
        }
        // SAFETY: B5: a frame is PAGE_SIZE bytes; M6: the caller owns it.
        core.memory.each(frames, |_, frame| unsafe {
            frame.write_bytes(RELEASING, 1 << SHIFT)
        });
        core.step(Point::Backing);
        core.step(Point::Backing);
        if let Some(pfn) = core.memory.other_than(frames, RELEASING, EXISTS, EXISTS) {
            core.fail(
                FailureKind::Memory,
                format!("frame {pfn} was written while it was being released"),
            );
        }
        core.memory.each(frames, |book, frame| {
            // SAFETY: B5: a frame is PAGE_SIZE bytes; M6: the caller owns it.
            unsafe { frame.write_bytes(0, 1 << SHIFT) };
            book.set(EXISTS | COMMITTED);
        });
        core.step(Point::Backing);
        true
    }

    fn take(&self, frames: PfnRange) -> bool {
        let core = self.core();
        core.step(Point::Backing);
        core.must_exist("take", frames, EXISTS | COMMITTED);
        let known = EXISTS | COMMITTED | TOUCHED;
        if let Some(pfn) = core.memory.other_than(frames, 0, known, EXISTS | COMMITTED) {
            let text =
                format!("frame {pfn} is known to be zero, but was written without being taken");
            core.fail(FailureKind::Memory, text);
        }
        let mut zero = true;
        core.memory.each(frames, |book, _| {
            zero &= book.get() & TOUCHED == 0;
            book.set(known);
        });
        core.step(Point::Backing);
        zero
    }

    fn touched(&self, frames: PfnRange) -> usize {
        let core = self.core();
        core.step(Point::Backing);
        core.must_exist("touched", frames, EXISTS);
        let mut touched = 0;
        core.memory.each(frames, |book, _| {
            touched += usize::from(book.get() & TOUCHED != 0)
        });
        touched
    }
}
