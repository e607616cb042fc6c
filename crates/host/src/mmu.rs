//! The memory management unit: entries of page tables, what the unit can do, and telling it that a translation has changed.
//!
//! Only `pgtable` and what stands on it ask for these; a process and a pager have no page tables and answer none of
//! them. Values are entries in the order of bits that the architecture's manual numbers: the byte order of memory is the
//! format's part, which swaps them where entries are big-endian.

use crate::Machine;
use flagstone_types::{CpuMask, PhysAddr, VirtAddr};

/// Words of page tables, in memory that the unit walks.
///
/// Every access is atomic for the width it names; `acquire` and `release` mean what they mean for Rust's atomics.
/// `at` is aligned to the width and lies in a frame that [`crate::PageMap::meta`] answers for.
///
/// # Safety
/// An implementation promises (clauses of `MODEL.md`):
/// - **T1** the words are the ones that the unit walks, and each access is one access of the width it names;
/// - **T2** a read-modify-write is atomic also against the unit's own updates of accessed and dirty bits.
pub unsafe trait TableMemory: Machine {
    /// Loads 64 bits, acquire.
    ///
    /// # Safety
    /// The frame is a page table, or memory whose owner is the caller, and stays so until the return (a read-side section is enough, T3).
    unsafe fn load_entry(&self, at: PhysAddr) -> u64;

    /// Stores 64 bits, release.
    ///
    /// # Safety
    /// As [`TableMemory::load_entry`]; the caller may write the entry: it holds the table's lock or owns it whole.
    unsafe fn store_entry(&self, at: PhysAddr, value: u64);

    /// Exchanges 64 bits and returns the old ones.
    ///
    /// # Safety
    /// As [`TableMemory::store_entry`].
    unsafe fn exchange_entry(&self, at: PhysAddr, value: u64) -> u64;

    /// Stores `new` if the 64 bits are `old`.
    ///
    /// # Errors
    /// What they are instead.
    ///
    /// # Safety
    /// As [`TableMemory::store_entry`].
    unsafe fn compare_exchange_entry(&self, at: PhysAddr, old: u64, new: u64) -> Result<(), u64>;

    /// Loads one half of an entry of a machine of 32 bits (T4).
    ///
    /// # Safety
    /// As [`TableMemory::load_entry`].
    unsafe fn load_half(&self, at: PhysAddr) -> u32;

    /// Stores one half of an entry of a machine of 32 bits (T4).
    ///
    /// # Safety
    /// As [`TableMemory::store_entry`].
    unsafe fn store_half(&self, at: PhysAddr, value: u32);
}

/// What the unit of the running machine can do: asked at run time. A capability decides effort, never
/// correctness, because a CPU plugged in later may lack it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MmuCaps {
    /// Sets the accessed bit of leaf entries by itself.
    pub accessed: bool,
    /// Sets the accessed bit of entries that name a table.
    pub accessed_table: bool,
    /// Sets the dirty bit by itself, atomically and only in a present entry.
    pub dirty: bool,
    /// May set the dirty bit of an entry that is no longer present (Knights Landing).
    pub stray_dirty: bool,
    /// Has huge entries at the second level (PMD).
    pub huge_pmd: bool,
    /// Has huge entries at the third level (PUD).
    pub huge_pud: bool,
    /// Has user shadow stacks: a leaf with Write=0 and Dirty=1 is one.
    pub shadow_stack: bool,
    /// Keeps translations of several address spaces apart: bits of an [`Asid`], 0 if it has none.
    pub asid_bits: u8,
    /// An invalidation can reach other CPUs without an interrupt.
    pub broadcast: bool,
    /// Entries that name tables are written by calls to a hypervisor ([`Mmu::write_table_entry`]), never by a store.
    pub paravirtual: bool,
    /// Bits of a physical address.
    pub phys_bits: u8,
}

/// An address space as the unit knows it. 0 is the kernel's, or everybody's where there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Asid(pub u16);

/// Which translations are to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalidate {
    /// The address space; `None` for those of every address space, global ones included.
    pub asid: Option<Asid>,
    /// The first address, aligned to `2^stride`.
    pub start: VirtAddr,
    /// The address after the last one; `usize::MAX` for the end of the address space.
    pub end: VirtAddr,
    /// The shift of the smallest leaf that is to go: one invalidation per `2^stride` bytes is enough.
    pub stride: u8,
    /// Whether tables were unlinked: paging-structure caches are to go as well.
    pub tables: bool,
}

impl Invalidate {
    /// Everything of one address space, or of all.
    #[must_use]
    pub const fn all(asid: Option<Asid>) -> Self {
        Self {
            asid,
            start: VirtAddr(0),
            end: VirtAddr(usize::MAX),
            stride: usize::BITS as u8 - 1,
            tables: true,
        }
    }

    /// How many single invalidations it takes: of `2^stride` bytes each.
    #[must_use]
    pub const fn steps(&self) -> usize {
        self.end.0.saturating_sub(self.start.0) >> self.stride
    }
}

/// The unit of the CPU that this runs on.
///
/// # Safety
/// **T5**: when [`Mmu::invalidate`] returns, this CPU uses no translation, and no cached table entry if `tables` was set, that the tables
/// did not have at some moment after the call.
pub unsafe trait Mmu: TableMemory {
    /// What the unit can do.
    fn capabilities(&self) -> MmuCaps;

    /// Makes this CPU translate by the table at `root`. Translations of other address spaces may stay if `asid` keeps them apart; those of
    /// `asid` stay only if `fresh` is false, that is, if they belong to the same table and missed no invalidation.
    ///
    /// # Safety
    /// `root` is a top-level table of the running format that maps the code that runs, and lives until another one was made active on this CPU.
    unsafe fn activate(&self, root: PhysAddr, asid: Asid, fresh: bool);

    /// Invalidates on this CPU. Called where the CPU can not change: in an interrupt guard, or with one CPU.
    fn invalidate(&self, what: &Invalidate);

    /// Writes an entry that names a table, where the hypervisor does ([`MmuCaps::paravirtual`]): it refuses a table that is mapped writable.
    ///
    /// # Safety
    /// As [`TableMemory::store_entry`].
    unsafe fn write_table_entry(&self, at: PhysAddr, value: u64) {
        // SAFETY: the caller's promise.
        unsafe { self.store_entry(at, value) }
    }
}

/// Invalidation on other CPUs.
///
/// # Safety
/// **T6**: when [`Shootdown::wait`] returns, what [`Mmu::invalidate`] promises for its CPU holds for every CPU of the set.
pub unsafe trait Shootdown: Mmu {
    /// An invalidation under way.
    type Pending;

    /// Begins an invalidation on `cpus`, this one included if it is in the set. Several may be under way. Called with interrupts open, because another
    /// CPU may wait for this one; locks of classes that are taken in interrupts are not held (T7).
    fn shoot(&self, cpus: &CpuMask, what: &Invalidate) -> Self::Pending;

    /// Waits until it has happened on every CPU of the set.
    fn wait(&self, pending: Self::Pending);
}
