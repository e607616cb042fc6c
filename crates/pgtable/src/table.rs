//! The page table as a value: its root, the CPUs that use it, how tables are made for it and given back.

use crate::error::Error;
use crate::format::{Canonical, Format, Level};
use crate::level::{P4d, Pgd, Pmd, Pte, Pud, TableAt, TableLevel};
use crate::mode::{Exclusive, Shared};
use crate::ops::Ops;
use crate::record::{Owner, Record, address_of, frame_of, shape};
use crate::span::{Addresses, Reach};
use crate::words::{Locked, Table};
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use flagstone_frames::{Frames, Page};
use flagstone_host::{Asid, Host, Level as LogLevel, MmuCaps, Shootdown};
use flagstone_types::{AllocError, AtomicCpuMask, CpuId, CpuMask, Gfp, Pfn, PhysAddr};

/// A machine that page tables can be made on.
pub trait TableHost: Host + Shootdown {}
impl<H: Host + Shootdown> TableHost for H {}

/// What a page table is made with.
#[derive(Clone, Copy, Debug)]
pub struct Params {
    /// The address space; `None` for the kernel's, whose translations are everybody's.
    pub asid: Option<Asid>,
    /// Which addresses it translates.
    pub reach: Reach,
    /// How its tables are allocated.
    pub gfp: Gfp,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            asid: Some(Asid(0)),
            reach: Reach::Whole,
            gfp: Gfp::KERNEL.union(Gfp::ACCOUNT),
        }
    }
}

/// A page table in format `F`.
///
/// Operations are methods of [`Ops`], in two forms with the same names: [`PageTable::shared`] for any number of contexts at once,
/// [`PageTable::exclusive`] for who has the page table alone. Dropping it frees its tables and waits for those whose free is deferred: with no lock held, in no
/// read-side section. No CPU may have it active then. Leaves that are still mapped are not released: unmap them first.
pub struct PageTable<'f, H: TableHost, F: Format> {
    frames: &'f Frames<H>,
    pub(crate) host: H,
    pub(crate) caps: MmuCaps,
    pub(crate) addresses: Addresses<F>,
    root: PhysAddr,
    asid: Option<Asid>,
    gfp: Gfp,
    pub(crate) cpus: AtomicCpuMask,
    /// Gathers that may have changed something and not yet invalidated it (I4).
    pub(crate) gathering: AtomicU32,
    /// Contexts that change entries on the strength of no CPU being in `cpus` (E3).
    pub(crate) editors: AtomicU32,
    /// Tables that are linked, the root included.
    pub(crate) linked: AtomicUsize,
    /// Whether the tables that the root names stay for good, because other roots name them too.
    pub(crate) lends: AtomicBool,
    /// By level: the page that fragments are taken from (frame number, then 16 bits of the next fragment's number); 0: none.
    fragments: [AtomicU64; 6],
    format: PhantomData<F>,
}

impl<H: TableHost, F: Format> core::fmt::Debug for PageTable<'_, H, F> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("PageTable")
            .field("format", &F::NAME)
            .field("root", &self.root)
            .field("asid", &self.asid)
            .field("tables", &self.table_count())
            .finish_non_exhaustive()
    }
}

impl<'f, H: TableHost, F: Format> PageTable<'f, H, F> {
    /// An empty page table.
    ///
    /// # Errors
    /// [`Error::NoTable`] if its root can not be allocated; [`Error::NoSuchEntry`] for a reach that the format does not have.
    pub fn new(frames: &'f Frames<H>, params: Params) -> Result<Self, Error> {
        let host = frames.host();
        let has_halves = !matches!(F::CANONICAL, Canonical::ZeroExtended);
        if params.reach != Reach::Whole && !has_halves {
            return Err(Error::NoSuchEntry(F::TOP));
        }
        let mut this = Self {
            frames,
            host,
            caps: host.capabilities(),
            addresses: Addresses::new(params.reach),
            root: PhysAddr(0),
            asid: params.asid,
            gfp: params.gfp,
            cpus: AtomicCpuMask::new(),
            gathering: AtomicU32::new(0),
            editors: AtomicU32::new(0),
            linked: AtomicUsize::new(0),
            lends: AtomicBool::new(false),
            fragments: [const { AtomicU64::new(0) }; 6],
            format: PhantomData,
        };
        this.root = match F::TOP.get() {
            2 => this.new_root::<Pmd>()?,
            3 => this.new_root::<Pud>()?,
            4 => this.new_root::<P4d>()?,
            _ => this.new_root::<Pgd>()?,
        };
        this.linked = AtomicUsize::new(1);
        Ok(this)
    }

    fn new_root<L: TableLevel>(&self) -> Result<PhysAddr, AllocError> {
        let owner = Owner {
            frames: core::ptr::from_ref(self.frames),
        };
        let pfn = self.new_page::<L>(owner, true, 1)?;
        Ok(address_of::<H>(pfn))
    }

    /// A zeroed page (or block) for `tables` tables of level `L`.
    fn new_page<L: TableLevel>(
        &self,
        owner: Owner<H>,
        is_root: bool,
        tables: u16,
    ) -> Result<Pfn, AllocError> {
        let (order, _) = shape::<H>(F::table_bytes(L::LEVEL));
        let (mut gfp, mut bits) = (self.gfp.union(Gfp::ZERO), self.phys_bits());
        if F::HALVES {
            // H4: below 4 GiB.
            (gfp, bits) = (gfp.union(Gfp::DMA32), bits.min(32));
        }
        let block = self.frames.alloc_pages(gfp, order, None)?;
        let last = address_of::<H>(block.range().end()).0 - 1;
        let Some(page) = self
            .frames
            .page(block.pfn())
            .filter(|_| last.unbounded_shr(bits) == 0)
        else {
            self.frames.free_pages(block);
            return Err(AllocError::OutOfMemory);
        };
        let (pfn, _) = block.into_raw();
        // SAFETY: F1: the block was just allocated, and nobody knows it.
        unsafe { Record::init::<L>(page, pfn, tables, owner, is_root) };
        Ok(pfn)
    }

    /// A zeroed table that nobody names. Called with no lock and in no section (D8).
    ///
    /// # Errors
    /// What the allocator says.
    pub(crate) fn new_table<L: TableLevel>(&self) -> Result<TableAt<F, L>, AllocError> {
        let bytes = F::table_bytes(L::LEVEL);
        let (_, tables) = shape::<H>(bytes);
        let owner = Owner {
            root: self.root_record().as_ptr().cast_const(),
        };
        if tables == 1 {
            let pfn = self.new_page::<L>(owner, false, 1)?;
            return Ok(TableAt::new(address_of::<H>(pfn)));
        }
        let fragments = &self.fragments[L::LEVEL.index()];
        loop {
            let word = fragments.load(Ordering::Acquire);
            let (pfn, next) = if word != 0 {
                let (pfn, next) = (Pfn((word >> 16) as usize), word & 0xffff);
                let rest = if next + 1 == u64::from(tables) {
                    0
                } else {
                    word + 1
                };
                if !claim_fragment(fragments, word, rest) {
                    continue;
                }
                (pfn, next)
            } else {
                let pfn = self.new_page::<L>(owner, false, tables)?;
                if !claim_fragment(fragments, 0, (pfn.0 as u64) << 16 | 1) {
                    // Another context brought a page meanwhile.
                    self.free_private_page(pfn);
                    continue;
                }
                (pfn, 0)
            };
            let at = address_of::<H>(pfn).0 + next * bytes as u64;
            return Ok(TableAt::new(PhysAddr(at)));
        }
    }

    /// Gives back a page of tables that nobody ever knew.
    fn free_private_page(&self, pfn: Pfn) {
        if let Some(page) = self.frames.page(pfn) {
            // SAFETY: no table in it was linked.
            unsafe { Record::<H>::free_now(Record::of(page), page) };
        }
    }

    /// Gives back a table that was never linked.
    pub(crate) fn free_private<L: TableLevel>(&self, table: TableAt<F, L>) {
        let (_, tables) = shape::<H>(F::table_bytes(L::LEVEL));
        if tables == 1 {
            self.free_private_page(frame_of::<H>(table.0));
        } else {
            // Other fragments of the page may have died a moment ago.
            // SAFETY: no CPU has seen this one.
            unsafe { self.retire::<Shared>(table.0) };
        }
    }

    /// Frees a table that is dead.
    ///
    /// # Safety
    /// It was unlinked, and every CPU that may have cached an entry naming it was invalidated with `tables`. Once.
    pub(crate) unsafe fn retire<M: crate::mode::Mode>(&self, at: PhysAddr) {
        let Some((page, record)) = self.record(at) else {
            return;
        };
        // SAFETY: D6: the record stays until the deferred free.
        if !unsafe { record.as_ref() }.lose_table(1) {
            return;
        }
        if M::SHARED {
            // SAFETY: D7: every table of the page is dead and invalidated.
            unsafe { Record::free_after_grace(record, &self.host) };
        } else {
            // SAFETY: E1: no walker; all tables of the page are dead and invalidated.
            unsafe { Record::free_now(record, page) };
        }
    }

    /// The record of the page that a table is in.
    #[inline(always)]
    pub(crate) fn record(&self, at: PhysAddr) -> Option<(&'f Page, NonNull<Record<H>>)> {
        let page = self.frames.page(frame_of::<H>(at))?;
        Some((page, Record::of(page)))
    }

    fn root_record(&self) -> NonNull<Record<H>> {
        match self.record(self.root) {
            Some((_, record)) => record,
            // The root is a frame that was allocated.
            None => unreachable!(),
        }
    }

    /// Where the root is: what [`flagstone_host::Mmu::activate`] takes.
    #[must_use]
    pub fn root(&self) -> PhysAddr {
        self.root
    }

    #[inline(always)]
    pub(crate) fn root_table<L: TableLevel>(&self) -> TableAt<F, L> {
        debug_assert_eq!(L::LEVEL, F::TOP);
        TableAt::new(self.root)
    }

    /// The address space, `None` for the kernel's.
    #[must_use]
    pub fn asid(&self) -> Option<Asid> {
        self.asid
    }

    /// What the unit of the machine could do when the page table was made.
    #[must_use]
    pub fn capabilities(&self) -> MmuCaps {
        self.caps
    }

    /// The allocator that its tables come from.
    #[must_use]
    pub fn frames(&self) -> &'f Frames<H> {
        self.frames
    }

    /// The addresses that it translates.
    #[must_use]
    pub fn reach(&self) -> Reach {
        self.addresses.reach()
    }

    /// Tables that are linked, the root included. Changes at any time.
    #[must_use]
    pub fn table_count(&self) -> usize {
        self.linked.load(Ordering::Relaxed)
    }

    /// CPUs that may hold translations of it.
    #[must_use]
    pub fn cpus(&self) -> CpuMask {
        self.cpus.load()
    }

    /// Bits that a physical address may have here.
    pub(crate) fn phys_bits(&self) -> u32 {
        F::PHYS_BITS.min(u32::from(self.caps.phys_bits))
    }

    /// Whether the machine and the format have leaves on `level`: asked at run time, like Linux's `has_transparent_pud_hugepage`. Where
    /// a hypervisor writes the entries above the last level there are none above it: the unit changes a leaf's bits, and a hypercall is no exchange.
    #[inline]
    #[must_use]
    pub fn has_leaf(&self, level: Level) -> bool {
        F::LEAF[level.index()]
            && match level {
                Level::PTE => true,
                _ if self.caps.paravirtual => false,
                Level::PMD => self.caps.huge_pmd,
                Level::PUD => self.caps.huge_pud,
                _ => true,
            }
    }

    /// The operations, for any number of contexts at once.
    #[inline(always)]
    pub fn shared(&self) -> Ops<'_, 'f, H, F, Shared> {
        Ops::new(self)
    }

    /// The operations for who has the page table alone: without locks and grace periods.
    #[inline(always)]
    pub fn exclusive(&mut self) -> Ops<'_, 'f, H, F, Exclusive> {
        Ops::new(self)
    }

    /// Makes this CPU, `cpu`, translate by this page table.
    ///
    /// # Safety
    /// As [`flagstone_host::Mmu::activate`]; `cpu` is the one that this runs on and the caller keeps it so. The page table is not dropped before
    /// [`PageTable::leave`].
    pub unsafe fn activate(&self, cpu: CpuId) {
        // I3: before the unit can load anything.
        let fresh = self.cpus.insert(cpu);
        if fresh {
            self.wait_for_editors();
        }
        // SAFETY: the caller's promise; the CPU is in the set, so it misses no invalidation from here on.
        unsafe {
            self.host
                .activate(self.root, self.asid.unwrap_or_default(), fresh);
        }
    }

    /// Takes a CPU out of the set of those that are invalidated, after another page table was made active there.
    ///
    /// # Safety
    /// T6: `cpu` translates by another page table, and will enter this one by [`PageTable::activate`] only.
    pub unsafe fn leave(&self, cpu: CpuId) {
        self.cpus.remove(cpu);
    }

    /// Puts a CPU into the set of those that are invalidated without activating anything: for page tables that are reached from others (a kernel half).
    pub fn enter(&self, cpu: CpuId) {
        if self.cpus.insert(cpu) {
            self.wait_for_editors();
        }
    }

    /// Waits until nobody relies any more on the set of CPUs being empty (E3): for one run of one table at most.
    fn wait_for_editors(&self) {
        let mut spins = 0;
        while self.editors.load(Ordering::SeqCst) != 0 {
            self.host.relax(spins);
            spins = spins.saturating_add(1);
        }
    }

    /// Frees every table below the entries of a table, which is the caller's.
    fn free_below<L: TableLevel>(&self, table: TableAt<F, L>, from: usize, to: usize) {
        if L::LEVEL == Level::PTE {
            return;
        }
        // SAFETY: the page table is being dropped: nobody else reaches the table.
        let words: Table<'_, H, F, L> = unsafe { Table::new(&self.host, table) };
        // SAFETY: as above.
        let words: Locked<'_, H, F, L, Exclusive> = unsafe { Locked::owned(words) };
        for index in from..to {
            if let Some(child) = words.load(index).child() {
                self.free_below::<L::Below>(child, 0, F::entries(L::Below::LEVEL));
                words.unlink(index, self.caps.paravirtual);
                // SAFETY: no CPU uses the page table, and none has it in its caches (T6).
                unsafe { self.retire::<Exclusive>(child.0) };
            }
        }
    }

    fn free_tables_of_root<L: TableLevel>(&self) {
        // What a format of sign-extended addresses does not reach is another page table's (D9).
        let entries = F::entries(L::LEVEL);
        let (from, to) = match (F::CANONICAL, self.reach()) {
            (Canonical::SignExtended, Reach::Lower) => (0, entries / 2),
            (Canonical::SignExtended, Reach::Upper) => (entries / 2, entries),
            _ => (0, entries),
        };
        self.free_below::<L>(self.root_table(), from, to);
    }

    fn free_fragments(&self, level: Level) {
        let word = self.fragments[level.index()].load(Ordering::Acquire);
        if word == 0 {
            return;
        }
        let (_, tables) = shape::<H>(F::table_bytes(level));
        let unused = tables - (word & 0xffff) as u16;
        let pfn = Pfn((word >> 16) as usize);
        if let Some((page, record)) = self.record(address_of::<H>(pfn)) {
            // SAFETY: fragments that were never handed out keep the record alive.
            if unsafe { record.as_ref() }.lose_table(unused) {
                // SAFETY: the page table is being dropped; the others are dead.
                unsafe { Record::free_now(record, page) };
            }
        }
    }
}

/// Claims a fragment (D7); false if another context was quicker.
fn claim_fragment(fragments: &AtomicU64, seen: u64, rest: u64) -> bool {
    fragments
        .compare_exchange(seen, rest, Ordering::AcqRel, Ordering::Relaxed)
        .is_ok()
}

impl<H: TableHost, F: Format> Drop for PageTable<'_, H, F> {
    fn drop(&mut self) {
        if *self.linked.get_mut() == 0 {
            // It has no root yet.
            return;
        }
        if !self.cpus.load().is_empty() {
            let message = format_args!("a page table that a CPU uses was dropped; its tables stay");
            self.host.log(LogLevel::Error, message);
            return;
        }
        match F::TOP.get() {
            2 => self.free_tables_of_root::<Pmd>(),
            3 => self.free_tables_of_root::<Pud>(),
            4 => self.free_tables_of_root::<P4d>(),
            _ => self.free_tables_of_root::<Pgd>(),
        }
        for level in [Pte::LEVEL, Pmd::LEVEL, Pud::LEVEL, P4d::LEVEL] {
            self.free_fragments(level);
        }
        let mut spins = 0;
        // SAFETY: the root is freed below.
        while unsafe { self.root_record().as_ref() }.deferred() != 0 {
            self.host.synchronize();
            self.host.relax(spins);
            spins += 1;
        }
        self.free_private_page(frame_of::<H>(self.root));
    }
}
