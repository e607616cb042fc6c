//! The words of one table: how entries are read and written in memory.
//!
//! [`Table`] reads; [`Locked`] writes, because it proves that its holder may (D1). Formats whose entries are two halves
//! have their rules here (H1, H2), and so has the hypervisor that writes entries which name tables.

use crate::format::{Entry, Format};
use crate::level::{Raw, TableAt, TableLevel};
use crate::mode::Mode;
use crate::record::Record;
use crate::table::TableHost;
use core::marker::PhantomData;
use core::ptr::NonNull;
use flagstone_types::PhysAddr;
use lock_api::RawMutex as _;

/// A table of level `L` that stays one for `'s`.
pub(crate) struct Table<'s, H, F, L> {
    host: &'s H,
    at: TableAt<F, L>,
}

impl<H, F, L> Clone for Table<'_, H, F, L> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<H, F, L> Copy for Table<'_, H, F, L> {}

/// Loads the entry at `at`. In two halves: until the low ones before and after agree (H2).
///
/// # Safety
/// An entry of a table that stays one (D6, E1).
#[inline(always)]
pub(crate) unsafe fn load_word<H: TableHost, F: Format>(host: &H, at: PhysAddr) -> u64 {
    if !F::HALVES {
        // SAFETY: the caller's promise.
        return F::from_memory(unsafe { host.load_entry(at) });
    }
    let high_at = PhysAddr(at.0 + 4);
    loop {
        // SAFETY: as above; both halves of the entry.
        let (low, high, again) = unsafe {
            (
                host.load_half(at),
                host.load_half(high_at),
                host.load_half(at),
            )
        };
        if low == 0 && again == 0 {
            // Nothing; or an entry of which only the high half is there yet, or still (H1).
            return 0;
        }
        if low == again {
            return F::from_memory(u64::from(low) | u64::from(high) << 32);
        }
    }
}

impl<'s, H: TableHost, F: Format, L: TableLevel> Table<'s, H, F, L> {
    /// The table at `at`.
    ///
    /// # Safety
    /// It stays a table of level `L` for `'s`: D6, E1, or it is the caller's.
    #[inline(always)]
    pub(crate) unsafe fn new(host: &'s H, at: TableAt<F, L>) -> Self {
        Self { host, at }
    }

    #[inline(always)]
    pub(crate) fn at(&self) -> TableAt<F, L> {
        self.at
    }

    #[inline(always)]
    pub(crate) fn host(&self) -> &'s H {
        self.host
    }

    /// Where an entry is.
    #[inline(always)]
    pub(crate) fn slot(&self, index: usize) -> PhysAddr {
        debug_assert!(index < F::entries(L::LEVEL));
        PhysAddr(self.at.0.0 + (index * size_of::<u64>()) as u64)
    }

    /// An entry as it is now.
    #[inline(always)]
    pub(crate) fn load(&self, index: usize) -> Raw<F, L> {
        // SAFETY: `new`: an entry within a table that stays one.
        Raw::from_bits(unsafe { load_word::<H, F>(self.host, self.slot(index)) })
    }

    /// Whether every entry says nothing.
    pub(crate) fn is_empty(&self) -> bool {
        (0..F::entries(L::LEVEL)).all(|index| self.load(index).is_none())
    }
}

/// A table that the caller may write: its lock is held, or nobody else reaches it. Unlocks when dropped.
pub(crate) struct Locked<'s, H: TableHost, F: Format, L: TableLevel, M: Mode> {
    table: Table<'s, H, F, L>,
    record: Option<NonNull<Record<H>>>,
    mode: PhantomData<(M, *const ())>,
}

impl<'s, H: TableHost, F: Format, L: TableLevel, M: Mode> Locked<'s, H, F, L, M> {
    /// Locks a table whose record is `record`.
    ///
    /// # Safety
    /// The record is that of the table's page, and stays so for `'s` (D6).
    #[inline(always)]
    pub(crate) unsafe fn acquire(table: Table<'s, H, F, L>, record: NonNull<Record<H>>) -> Self {
        // SAFETY: the caller's promise, and the table is of level `L`.
        unsafe { record.as_ref().lock::<L>().lock() };
        Self {
            table,
            record: Some(record),
            mode: PhantomData,
        }
    }

    /// A table whose lock this context holds already; `None` where none is needed.
    ///
    /// # Safety
    /// As said, and the record is that of the table's page.
    pub(crate) unsafe fn already(
        table: Table<'s, H, F, L>,
        record: Option<NonNull<Record<H>>>,
    ) -> Self {
        Self {
            table,
            record,
            mode: PhantomData,
        }
    }

    /// A table that nobody else writes, without its lock.
    ///
    /// # Safety
    /// The page table is the caller's alone (E1), or the table is private.
    #[inline(always)]
    pub(crate) unsafe fn owned(table: Table<'s, H, F, L>) -> Self {
        Self {
            table,
            record: None,
            mode: PhantomData,
        }
    }

    #[inline(always)]
    fn store_word(&self, at: PhysAddr, raw: u64) {
        // SAFETY: D1: an entry of a table that the caller may write.
        unsafe { self.table.host.store_entry(at, F::to_memory(raw)) };
    }

    /// Stores the halves of an entry, `first` the high one.
    #[inline(always)]
    fn store_halves(&self, at: PhysAddr, raw: u64, high_first: bool) {
        let raw = F::to_memory(raw);
        let (low, high) = (raw as u32, (raw >> 32) as u32);
        let high_at = PhysAddr(at.0 + 4);
        // SAFETY: D1: both halves of an entry of a table that the caller may write.
        unsafe {
            if high_first {
                self.table.host.store_half(high_at, high);
                self.table.host.store_half(at, low);
            } else {
                self.table.host.store_half(at, low);
                self.table.host.store_half(high_at, high);
            }
        }
    }

    /// Stores an entry that names no table where nothing present was.
    #[inline(always)]
    pub(crate) fn set(&self, index: usize, raw: Raw<F, L>) {
        let at = self.table.slot(index);
        if F::HALVES {
            self.store_halves(at, raw.bits(), true);
        } else {
            self.store_word(at, raw.bits());
        }
    }

    /// Stores an entry over one that the unit does not change (E1, E2). In two halves: a present one in one exchange, any other by way of a low half of
    /// 0, which is nothing whatever the high one says.
    #[inline(always)]
    pub(crate) fn overwrite(&self, index: usize, raw: Raw<F, L>) {
        let at = self.table.slot(index);
        if !F::HALVES {
            self.store_word(at, raw.bits());
        } else if raw.is_present() {
            self.exchange(index, raw);
        } else {
            // SAFETY: D1: an entry of a table that the caller may write.
            unsafe { self.table.host.store_half(at, 0) };
            self.store_halves(at, raw.bits(), true);
        }
    }

    /// Exchanges an entry that the unit may be changing.
    #[inline(always)]
    pub(crate) fn exchange(&self, index: usize, raw: Raw<F, L>) -> Raw<F, L> {
        let (at, word) = (self.table.slot(index), F::to_memory(raw.bits()));
        // SAFETY: D1: an entry of a table that the caller may write.
        let old = unsafe { self.table.host.exchange_entry(at, word) };
        Raw::from_bits(F::from_memory(old))
    }

    /// Changes an entry from `old` to `new`, unless the unit has changed it: then says what it is.
    #[inline(always)]
    pub(crate) fn update(
        &self,
        index: usize,
        old: Raw<F, L>,
        new: Raw<F, L>,
    ) -> Result<(), Raw<F, L>> {
        let at = self.table.slot(index);
        let (old, new) = (F::to_memory(old.bits()), F::to_memory(new.bits()));
        // SAFETY: D1: an entry of a table that the caller may write.
        let result = unsafe { self.table.host.compare_exchange_entry(at, old, new) };
        result.map_err(|now| Raw::from_bits(F::from_memory(now)))
    }

    /// Takes a leaf or an absent entry out, with the bits that the unit has set last. `quiet`: no unit uses the table.
    #[inline(always)]
    pub(crate) fn take(&self, index: usize, seen: Raw<F, L>, quiet: bool) -> Raw<F, L> {
        if quiet || seen.is_settled() {
            self.overwrite(index, Raw::NONE);
            seen
        } else {
            self.exchange(index, Raw::NONE)
        }
    }

    /// Writes an entry that names a table.
    #[inline(always)]
    fn write_table(&self, index: usize, raw: Raw<F, L>, paravirtual: bool) {
        let at = self.table.slot(index);
        if F::HALVES && !paravirtual {
            self.store_halves(at, raw.bits(), raw.is_present());
            return;
        }
        // SAFETY: D1: an entry of a table that the caller may write.
        unsafe {
            self.table
                .host
                .write_table_entry(at, F::to_memory(raw.bits()));
        }
    }

    /// Links a table where nothing was.
    #[inline(always)]
    pub(crate) fn link(&self, index: usize, child: TableAt<F, L::Below>, paravirtual: bool) {
        self.write_table(index, Raw::table(child), paravirtual);
    }

    /// Takes out the entry that names a table.
    #[inline(always)]
    pub(crate) fn unlink(&self, index: usize, paravirtual: bool) {
        self.write_table(index, Raw::NONE, paravirtual);
    }
}

impl<'s, H: TableHost, F: Format, L: TableLevel, M: Mode> core::ops::Deref
    for Locked<'s, H, F, L, M>
{
    type Target = Table<'s, H, F, L>;

    #[inline(always)]
    fn deref(&self) -> &Table<'s, H, F, L> {
        &self.table
    }
}

impl<H: TableHost, F: Format, L: TableLevel, M: Mode> Drop for Locked<'_, H, F, L, M> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(record) = self.record {
            // SAFETY: `acquire` locked it, and the record stays for `'s`.
            unsafe { record.as_ref().lock::<L>().unlock() };
        }
    }
}

/// Whether the entry at `parent`, one level above `L`, names the table (D4). The root has no parent (D5).
///
/// # Safety
/// `parent` is an entry of a table that stays one (D6).
#[inline(always)]
pub(crate) unsafe fn names_table<H: TableHost, F: Format, L: TableLevel>(
    host: &H,
    parent: Option<PhysAddr>,
    table: TableAt<F, L>,
) -> bool {
    let (Some(at), Some(above)) = (parent, L::LEVEL.above()) else {
        return true;
    };
    // SAFETY: the caller's promise.
    let raw = unsafe { load_word::<H, F>(host, at) };
    F::is_table(above, raw)
        && matches!(F::decode(above, raw), Entry::Table { at, .. } if at == table.0)
}
