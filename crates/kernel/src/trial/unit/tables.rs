//! Tables of one address space, written word by word. The kernel's half is that of the root that is active when they are made.

use alloc::vec::Vec;

use super::{FRAME, LARGE, PRESENT, USER, WRITE};
use crate::kernel::Kernel;
use crate::trial::caches;
use crate::unit;
use flagstone_frames::PageBlock;
use flagstone_host::{Asid, Mmu, PhysMem, TableMemory};
use flagstone_types::{Gfp, Order, Pfn, PhysAddr, VirtAddr};

const WORDS: u64 = 512;

/// An address space and the frames that it is made of and that it maps.
pub(in crate::trial) struct Tables {
    root: PhysAddr,
    kernel: PhysAddr,
    levels: u8,
    blocks: Vec<PageBlock>,
}

/// The shift of what an entry of `level` reaches.
pub(super) const fn shift(level: u8) -> u32 {
    12 + 9 * (level as u32 - 1)
}

impl Tables {
    pub(in crate::trial) fn new() -> Self {
        let mut this = Self {
            root: PhysAddr(0),
            kernel: unit::root(),
            levels: unit::levels(),
            blocks: Vec::new(),
        };
        this.root = this.frame(0);
        for n in WORDS / 2..WORDS {
            // SAFETY: U1: the active root, and a frame of ours.
            unsafe {
                let entry = Kernel.load_entry(PhysAddr(this.kernel.0 + 8 * n));
                Kernel.store_entry(PhysAddr(this.root.0 + 8 * n), entry);
            }
        }
        this
    }

    /// A block of zeroes of `2^order` frames, which lives as long as this.
    pub(in crate::trial) fn frame(&mut self, order: u32) -> PhysAddr {
        let order = Order::new(order).expect("a small order");
        let block = caches()
            .frames()
            .alloc_pages(Gfp::KERNEL | Gfp::ZERO, order, None)
            .expect("memory for a table or a page");
        let at = PhysAddr((block.pfn().0 as u64) << 12);
        self.blocks.push(block);
        at
    }

    /// Where the entry of `level` for `at` is; makes the tables above it.
    pub(in crate::trial) fn entry(&mut self, at: VirtAddr, level: u8) -> PhysAddr {
        let mut table = self.root;
        let mut here = self.levels;
        loop {
            let index = (at.0 >> shift(here)) as u64 % WORDS;
            let place = PhysAddr(table.0 + 8 * index);
            if here == level {
                return place;
            }
            // SAFETY: U1: a table of ours.
            let mut entry = unsafe { Kernel.load_entry(place) };
            if entry & PRESENT == 0 {
                entry = self.frame(0).0 | PRESENT | WRITE | USER;
                // SAFETY: as above.
                unsafe { Kernel.store_entry(place, entry) };
            }
            assert_eq!(entry & LARGE, 0, "a table is in the way");
            table = PhysAddr(entry & FRAME);
            here -= 1;
        }
    }

    /// The table of the highest level.
    pub(in crate::trial) const fn root(&self) -> PhysAddr {
        self.root
    }

    /// Makes this CPU translate by these tables.
    pub(in crate::trial) fn enter(&self) {
        // SAFETY: U2: the kernel's half is as it was, and the others only return when `leave` was called on their CPUs.
        unsafe { Kernel.activate(self.root, Asid(0), true) };
    }

    /// Makes this CPU translate by the kernel's own tables again.
    pub(in crate::trial) fn leave(&self) {
        // SAFETY: U2: the root that was active before.
        unsafe { Kernel.activate(self.kernel, Asid(0), true) };
    }

    /// Frees everything. No CPU is in these tables.
    pub(in crate::trial) fn free(self) {
        for block in self.blocks {
            caches().frames().free_pages(block);
        }
    }
}

/// The contents of physical memory, as a pointer.
pub(in crate::trial) fn contents(at: PhysAddr) -> core::ptr::NonNull<u64> {
    Kernel.frame_ptr(Pfn((at.0 >> 12) as usize)).cast()
}

/// Loads an entry.
pub(in crate::trial) fn load(at: PhysAddr) -> u64 {
    // SAFETY: U1: the trials' own tables.
    unsafe { Kernel.load_entry(at) }
}

/// Stores an entry.
pub(in crate::trial) fn store(at: PhysAddr, value: u64) {
    // SAFETY: U1: the trials' own tables.
    unsafe { Kernel.store_entry(at, value) }
}
