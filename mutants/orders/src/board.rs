//! A machine for models: a few CPUs, one for each thread, one node, and memory that the engine sees.
//!
//! Its locks and grace periods are those of the process host, from their sources. Entries of page tables are atomics: the unit's loads are
//! relaxed, its updates and the host's exchanges are locked instructions, as x86-64's.

use crate::stacks::Stacks;
use crate::{grace, lock};
use core::alloc::Layout;
use core::fmt;
use core::ptr::NonNull;
use flagstone_host::{
    Asid, Backing, Backtrace, Clock, Count, Cpus, Entropy, Event, Grace, Invalidate, Level,
    LockClass, Log, MemRange, Mmu, MmuCaps, PageMap, PhysMem, RcuHead, Shootdown, TableMemory,
};
use flagstone_types::{AllocError, CpuId, CpuMask, Nanos, Nid, Pfn, PfnRange, PhysAddr, Zone};
use flagstone_weak::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::cell::{Cell, RefCell};
use std::sync::Arc;

pub(crate) const BLOCK: usize = 16;
/// The number of the first frame.
pub(crate) const FIRST: usize = BLOCK;
/// Frames that the machine has from the beginning; two more blocks can be added.
pub(crate) const LATE: usize = 3 * BLOCK;
const PAGES: usize = LATE + 2 * BLOCK;
const BOOT_BYTES: usize = 256 << 10;
pub(crate) const CPUS: u32 = 3;

/// The machine.
#[derive(Debug)]
pub(crate) struct Board<const SHIFT: u32> {
    memory: (NonNull<u8>, Layout),
    meta: (NonNull<u8>, Layout),
    boot: (NonNull<u8>, Layout),
    boot_used: Cell<usize>,
    pub(crate) arrays: RefCell<Vec<Arc<Stacks>>>,
    pub(crate) stopped: AtomicU32,
    /// What was invalidated, by whom.
    pub(crate) shot: RefCell<Vec<(usize, CpuMask, Invalidate)>>,
    /// One for each CPU: written when it invalidates.
    pub(crate) marks: [u8; CPUS as usize],
    randoms: Cell<u64>,
    caps: MmuCaps,
}

// SAFETY: threads of a run are coroutines of one thread, and boards are used in runs only.
unsafe impl<const SHIFT: u32> Send for Board<SHIFT> {}
// SAFETY: as above.
unsafe impl<const SHIFT: u32> Sync for Board<SHIFT> {}

fn area(bytes: usize) -> (NonNull<u8>, Layout) {
    let layout = Layout::from_size_align(bytes, 1 << 16).expect("a layout");
    // SAFETY: M3: the size is not zero.
    let start = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) });
    (start.expect("memory"), layout)
}

impl<const SHIFT: u32> Board<SHIFT> {
    /// Runs `f` on a board, and takes it down again.
    pub(crate) fn with(f: impl FnOnce(&'static Self)) {
        let board = Box::into_raw(Box::new(Self {
            memory: area(PAGES << SHIFT),
            meta: area(PAGES * 64),
            boot: area(BOOT_BYTES),
            boot_used: Cell::new(0),
            arrays: RefCell::default(),
            stopped: AtomicU32::new(0),
            shot: RefCell::default(),
            marks: [0; CPUS as usize],
            randoms: Cell::new(1),
            caps: CAPS,
        }));
        // SAFETY: M3: the board lives until the end of this function, after everything that refers to it. What panics ends the process.
        f(unsafe { &*board });
        // SAFETY: M3: as above.
        let board = unsafe { Box::from_raw(board) };
        for (start, layout) in [board.memory, board.meta, board.boot] {
            // SAFETY: M3: allocated by `area` with this layout, freed once.
            unsafe { std::alloc::dealloc(start.as_ptr(), layout) };
        }
    }

    fn word(&self, at: PhysAddr) -> &AtomicU64 {
        let frame = self.frame_ptr(Pfn((at.0 >> SHIFT) as usize));
        // SAFETY: M1, T1: within the frame, aligned.
        unsafe {
            AtomicU64::from_ptr(
                frame
                    .add(at.0 as usize & ((1 << SHIFT) - 1))
                    .cast()
                    .as_ptr(),
            )
        }
    }

    /// A load of the unit's.
    pub(crate) fn unit_load(&self, at: PhysAddr) -> u64 {
        self.word(at).load(Relaxed)
    }

    /// Sets bits in an entry as the unit does: if it is still `seen`.
    pub(crate) fn unit_sets(&self, at: PhysAddr, seen: u64, bits: u64) -> bool {
        self.word(at)
            .compare_exchange(seen, seen | bits, SeqCst, SeqCst)
            .is_ok()
    }

    /// Whether an invalidation reached a CPU.
    pub(crate) fn was_shot(&self, cpu: CpuId) -> bool {
        self.shot
            .borrow()
            .iter()
            .any(|(_, cpus, _)| cpus.contains(cpu))
    }
}

const CAPS: MmuCaps = MmuCaps {
    accessed: true,
    accessed_table: true,
    dirty: true,
    stray_dirty: false,
    huge_pmd: true,
    huge_pud: true,
    shadow_stack: true,
    asid_bits: 12,
    broadcast: false,
    paravirtual: false,
    phys_bits: 46,
};

// SAFETY: M2, M3, M8: metadata and boot memory are zeroed, exclusive and constant; whole blocks.
unsafe impl<const SHIFT: u32> PageMap for &'static Board<SHIFT> {
    const PAGE_SHIFT: u32 = SHIFT;
    const MAX_ORDER: u32 = BLOCK.ilog2();

    fn meta(&self, pfn: Pfn) -> Option<NonNull<u8>> {
        let index = pfn.0.checked_sub(FIRST).filter(|index| *index < PAGES)?;
        // SAFETY: M2: there is a record for every frame.
        Some(unsafe { self.meta.0.add(index * 64) })
    }

    fn nid(&self, _: Pfn) -> Nid {
        Nid(0)
    }

    fn boot_ranges(&self, each: &mut dyn FnMut(MemRange)) {
        each(MemRange {
            frames: PfnRange::new(Pfn(FIRST), LATE),
            nid: Nid(0),
            zone: Zone::Normal,
        });
    }

    fn boot_alloc(&self, layout: Layout) -> Result<NonNull<u8>, AllocError> {
        let start = self.boot_used.get().next_multiple_of(layout.align());
        let end = start + layout.size();
        if end > BOOT_BYTES {
            return Err(AllocError::OutOfMemory);
        }
        self.boot_used.set(end);
        // SAFETY: M3: within the boot memory.
        Ok(unsafe { self.boot.0.add(start) })
    }
}

// SAFETY: M1, M4: one linear piece of memory.
unsafe impl<const SHIFT: u32> PhysMem for &'static Board<SHIFT> {
    fn frame_ptr(&self, pfn: Pfn) -> NonNull<u8> {
        Board::frame_ptr(self, pfn)
    }

    fn pfn_of(&self, address: usize) -> Option<Pfn> {
        let offset = address.checked_sub(self.memory.0.as_ptr().addr())?;
        let pfn = Pfn((offset >> SHIFT) + FIRST);
        self.meta(pfn).map(|_| pfn)
    }
}

impl<const SHIFT: u32> Board<SHIFT> {
    pub(crate) fn frame_ptr(&self, pfn: Pfn) -> NonNull<u8> {
        // SAFETY: M1: meaningful for frames that exist only, which are within.
        unsafe { self.memory.0.add((pfn.0 - FIRST) << SHIFT) }
    }
}

impl<const SHIFT: u32> Backing for &'static Board<SHIFT> {}

impl<const SHIFT: u32> Cpus for &'static Board<SHIFT> {
    type IrqGuard<'a> = ();

    fn possible_cpus(&self) -> u32 {
        CPUS
    }

    fn is_online(&self, _: CpuId) -> bool {
        true
    }

    fn current_cpu(&self) -> CpuId {
        CpuId(flagstone_weak::current() as u32)
    }

    fn nodes(&self) -> u32 {
        1
    }

    fn node_of(&self, _: CpuId) -> Nid {
        Nid(0)
    }

    fn distance(&self, _: Nid, _: Nid) -> u32 {
        10
    }

    fn irq_guard(&self) {}

    fn relax(&self, _: u32) {
        flagstone_weak::spin();
    }
}

impl<const SHIFT: u32> Clock for &'static Board<SHIFT> {
    fn now(&self) -> Nanos {
        Nanos(0)
    }
}

impl<const SHIFT: u32> Entropy for &'static Board<SHIFT> {
    fn random(&self) -> u64 {
        let next = self
            .randoms
            .get()
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(1);
        self.randoms.set(next);
        next
    }
}

impl<const SHIFT: u32> Log for &'static Board<SHIFT> {
    fn log(&self, _: Level, _: fmt::Arguments<'_>) {}
}

impl<const SHIFT: u32> Backtrace for &'static Board<SHIFT> {}

impl<const SHIFT: u32> Count for &'static Board<SHIFT> {
    fn count(&self, _: Event, _: u64) {}

    fn counted(&self, _: Event) -> u64 {
        0
    }
}

impl<const SHIFT: u32> Grace for &'static Board<SHIFT> {
    type ReadGuard<'a> = grace::ReadGuard<'static>;

    fn read(&self) -> Self::ReadGuard<'_> {
        grace::read(self.current_cpu())
    }

    unsafe fn defer(&self, head: NonNull<RcuHead>, call: unsafe fn(NonNull<RcuHead>)) {
        // SAFETY: the caller's promise.
        unsafe { grace::defer(head, call) };
    }

    fn poll(&self) -> usize {
        grace::poll()
    }

    fn synchronize(&self) {
        grace::synchronize();
    }
}

impl<const SHIFT: u32> flagstone_host::Machine for &'static Board<SHIFT> {
    type Lock<C: LockClass> = lock::Lock<C>;
}

// SAFETY: T1: the unit of the models loads the same words; T2: exchanges.
unsafe impl<const SHIFT: u32> TableMemory for &'static Board<SHIFT> {
    unsafe fn load_entry(&self, at: PhysAddr) -> u64 {
        self.word(at).load(Acquire)
    }
    unsafe fn store_entry(&self, at: PhysAddr, value: u64) {
        self.word(at).store(value, Release);
    }
    unsafe fn exchange_entry(&self, at: PhysAddr, value: u64) -> u64 {
        self.word(at).swap(value, SeqCst)
    }
    unsafe fn compare_exchange_entry(&self, at: PhysAddr, old: u64, new: u64) -> Result<(), u64> {
        self.word(at)
            .compare_exchange(old, new, SeqCst, SeqCst)
            .map(|_| ())
    }
    unsafe fn load_half(&self, _: PhysAddr) -> u32 {
        unreachable!("no model has entries in halves")
    }
    unsafe fn store_half(&self, _: PhysAddr, _: u32) {
        unreachable!("no model has entries in halves")
    }
}

// SAFETY: T5: models look at what was asked for.
unsafe impl<const SHIFT: u32> Mmu for &'static Board<SHIFT> {
    fn capabilities(&self) -> MmuCaps {
        self.caps
    }
    unsafe fn activate(&self, _: PhysAddr, _: Asid, _: bool) {}
    fn invalidate(&self, _: &Invalidate) {}
}

// SAFETY: T6: as T5.
unsafe impl<const SHIFT: u32> Shootdown for &'static Board<SHIFT> {
    type Pending = ();
    fn shoot(&self, cpus: &CpuMask, what: &Invalidate) {
        flagstone_weak::step();
        // Whoever relies on an invalidation comes after it.
        flagstone_weak::write(&raw const self.marks[flagstone_weak::current()]);
        self.shot
            .borrow_mut()
            .push((flagstone_weak::current(), *cpus, *what));
    }
    fn wait(&self, (): ()) {
        flagstone_weak::step();
    }
}
