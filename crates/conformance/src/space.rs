//! One page table under test, with its books: mapping, unmapping, and accesses as a kernel's fault handler makes them.

use crate::calls::{Calls, Gathering};
use crate::findings::Findings;
use crate::ledger::{Ledger, PieceId, Releasing};
use crate::platform::{Platform, Refusal, Seen, Table, Touch, Who};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicU64, Ordering};
use flagstone_host::{Cpus, Grace, Invalidate, Mmu};
use flagstone_pgtable::format::{Access, Entry, Format, Leaf, Level, Marks};
use flagstone_pgtable::shadow::Mapping;
use flagstone_pgtable::{
    Become, Error, Found, MapError, Ops, Pmd, Pte, Pud, TableLevel, VirtRange,
};
use flagstone_types::{PhysAddr, VirtAddr};

/// Loads, stores, and what both are.
pub(crate) const RW: Access = Access::READ.union(Access::WRITE).union(Access::USER);
/// Loads by user code.
pub(crate) const RO: Access = Access::READ.union(Access::USER);
/// Loads and fetches by user code.
pub(crate) const RX: Access = RO.union(Access::EXEC);
/// Everything.
pub(crate) const RWX: Access = RW.union(Access::EXEC);

/// Tries after which a fault counts as one without end.
const TRIES: u32 = 10_000;

/// See the module.
pub(crate) struct Space<'p, P: Platform> {
    pub(crate) platform: &'p P,
    /// Dropped by `end` only: after a failure CPUs may still use it.
    table: ManuallyDrop<Table<'p, P>>,
    pub(crate) ledger: Ledger,
    pub(crate) findings: Findings,
    /// Absent entries that came back.
    pub(crate) absent: AtomicU64,
    /// What the next store stores: never the same twice.
    next_word: AtomicU64,
    /// Tables that it had at the start.
    tables: usize,
}

impl<P: Platform> core::fmt::Debug for Space<'_, P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Space({:?})", *self.table)
    }
}

/// How many bytes a leaf of a level maps.
pub(crate) const fn reach<F: Format>(level: Level) -> usize {
    let mut shift = F::PAGE_SHIFT;
    let mut below = 1;
    while below < level.index() {
        shift += F::INDEX_BITS[below];
        below += 1;
    }
    1usize << shift
}

/// Whether a leaf lets an access through, bits of use apart.
pub(crate) fn allows(access: Access, marks: Marks, who: Who, touch: Touch) -> bool {
    let user = access.contains(Access::USER);
    if marks.contains(Marks::NO_ACCESS) || (who == Who::User) != user {
        return false;
    }
    match touch {
        Touch::Read => access.contains(Access::READ),
        Touch::Write(_) => access.contains(Access::WRITE),
        Touch::Exec => access.contains(Access::EXEC),
        Touch::Push(_) => marks.contains(Marks::SHADOW),
    }
}

impl<'p, P: Platform> Space<'p, P> {
    /// An empty page table, with books that have room for so many pieces of memory. `None` if there is no memory for it.
    pub(crate) fn new(platform: &'p P, pieces: usize) -> Option<Self> {
        let table = platform.new_table().ok()?;
        Some(Self {
            platform,
            tables: table.table_count(),
            table: ManuallyDrop::new(table),
            ledger: Ledger::new(pieces, reach::<P::Format>(Level::PTE) as u64),
            findings: Findings::new(),
            absent: AtomicU64::new(0),
            next_word: AtomicU64::new(1),
        })
    }

    pub(crate) fn table(&self) -> &Table<'p, P> {
        &self.table
    }

    pub(crate) fn ops(&self) -> Calls<'_, 'p, P> {
        Calls::new(&self.table)
    }

    pub(crate) fn exclusive(
        &mut self,
    ) -> Ops<'_, 'p, P::Host, P::Format, flagstone_pgtable::Exclusive> {
        self.table.exclusive()
    }

    pub(crate) fn host(&self) -> P::Host {
        self.platform.frames().host()
    }

    /// How many bytes a page has.
    pub(crate) fn page() -> usize {
        reach::<P::Format>(Level::PTE)
    }

    /// An address so many pages into the window.
    pub(crate) fn at(&self, page: usize) -> VirtAddr {
        VirtAddr(self.platform.window().0 + page * Self::page())
    }

    /// So many pages from an address on.
    pub(crate) fn pages(at: VirtAddr, count: usize) -> VirtRange {
        VirtRange::new(at.0, count * Self::page())
    }

    pub(crate) fn releasing(&self) -> Releasing<'_, P> {
        Releasing {
            ledger: &self.ledger,
            platform: self.platform,
            findings: &self.findings,
            absent: &self.absent,
        }
    }

    /// Gathers while `work` runs, then invalidates and releases.
    pub(crate) fn gathered<R>(
        &self,
        work: impl for<'s> FnOnce(&Calls<'s, 'p, P>, &mut Gathering<'s, 'p, P>) -> R,
    ) -> R {
        let ops = self.ops();
        let mut gather = ops.gather(self.releasing());
        let result = work(&ops, &mut gather);
        Calls::<P>::finish(gather);
        result
    }

    /// A word that no store has stored.
    pub(crate) fn new_word(&self) -> u64 {
        // The byte is what a fetch may find.
        let n = self.next_word.fetch_add(1, Ordering::Relaxed);
        n << 8 | u64::from(crate::platform::RETURN)
    }

    /// Memory for a leaf, written down.
    pub(crate) fn memory(&self, level: Level) -> Option<(PieceId, PhysAddr)> {
        let at = self.platform.alloc(level)?;
        match self.ledger.enter(self.platform, at, level) {
            Some(piece) => Some((piece, at)),
            None => {
                self.findings.add("the ledger is full".into());
                self.platform.free(at, level);
                None
            }
        }
    }

    /// A leaf of ordinary memory; one without any access if it can not be read.
    pub(crate) fn leaf(at: PhysAddr, access: Access) -> Leaf {
        let leaf = Leaf::new(at, access.union(Access::READ), Mapping::Ordinary);
        if access.contains(Access::READ) {
            return leaf;
        }
        leaf.mark(Marks::NO_ACCESS)
    }

    /// Maps `count` leaves of level `L` onto one piece from its first byte on.
    pub(crate) fn map_piece<L: TableLevel>(
        &self,
        va: VirtAddr,
        (piece, at): (PieceId, PhysAddr),
        access: Access,
        count: usize,
    ) -> Result<(), MapError> {
        let pages = (reach::<P::Format>(L::LEVEL) / Self::page()) as u64;
        let all = count as u64 * pages;
        self.findings.check(self.ledger.put_out(piece, 0, all));
        let result = self.ops().map::<L>(va, &Self::leaf(at, access), count);
        if let Err(stopped) = &result {
            let mapped = stopped.mapped as u64 * pages;
            self.unmapped_rest(at.0 + mapped * Self::page() as u64, all - mapped);
        }
        result
    }

    /// Maps pages one by one onto pieces of a page each.
    pub(crate) fn map_pages(
        &self,
        va: VirtAddr,
        pieces: &[(PieceId, PhysAddr)],
        access: Access,
    ) -> Result<(), MapError> {
        for (piece, _) in pieces {
            self.findings.check(self.ledger.put_out(*piece, 0, 1));
        }
        let leaf = |n: usize| Self::leaf(pieces[n].1, access);
        let result = self.ops().map_each(va, pieces.len(), leaf);
        if let Err(stopped) = &result {
            for (_, at) in &pieces[stopped.mapped..] {
                self.unmapped_rest(at.0, 1);
            }
        }
        result
    }

    /// Pages that were put out and did not get into a table.
    fn unmapped_rest(&self, at: u64, count: u64) {
        if count == 0 {
            return;
        }
        match self.ledger.take_back(at, count) {
            Ok(ended) => {
                for (at, level) in ended {
                    self.ledger.give(self.platform, at, level);
                }
            }
            Err(text) => self.findings.add(text),
        }
    }

    /// A page that was put out and did not get into a table.
    pub(crate) fn unmapped(&self, at: PhysAddr) {
        self.unmapped_rest(at.0, 1);
    }

    /// Maps one new page.
    ///
    /// # Panics
    /// If there is no memory, or it can not be mapped.
    #[track_caller]
    pub(crate) fn map_new(&self, va: VirtAddr, access: Access) -> PhysAddr {
        self.map_new_at::<Pte>(va, access)
    }

    /// Maps one new leaf of level `L`.
    ///
    /// # Panics
    /// If there is no memory, or it can not be mapped.
    #[track_caller]
    pub(crate) fn map_new_at<L: TableLevel>(&self, va: VirtAddr, access: Access) -> PhysAddr {
        let memory = self.memory(L::LEVEL).expect("memory for a leaf");
        let result = self.map_piece::<L>(va, memory, access, 1);
        assert_eq!(result, Ok(()), "mapping {va:?}");
        memory.1
    }

    /// Takes everything of a range out, empty tables too.
    ///
    /// # Panics
    /// If that is refused.
    #[track_caller]
    pub(crate) fn unmap(&self, range: VirtRange) {
        let result = self.gathered(|ops, gather| {
            ops.unmap(range, gather)?;
            ops.free_tables(range, gather)
        });
        assert_eq!(result, Ok(()), "unmapping {range:?}");
    }

    /// Gives a range this access.
    ///
    /// # Panics
    /// If that is refused.
    #[track_caller]
    pub(crate) fn protect(&self, range: VirtRange, access: Access) {
        let result = self.gathered(|ops, gather| ops.protect(range, access, gather));
        assert_eq!(result, Ok(()), "protecting {range:?}");
    }

    /// An access as user code makes it, or the kernel: faults are handled until it is done or refused for good.
    ///
    /// # Errors
    /// Why it was refused.
    pub(crate) fn touch(&self, at: VirtAddr, who: Who, touch: Touch) -> Result<Seen, Refusal> {
        self.touch_beside(at, who, touch, |note| note())
    }

    /// As [`Space::touch`]; setting bits of a leaf, which may break it for a moment, is left to `around`.
    pub(crate) fn touch_beside(
        &self,
        at: VirtAddr,
        who: Who,
        touch: Touch,
        around: impl Fn(&dyn Fn()),
    ) -> Result<Seen, Refusal> {
        for _ in 0..TRIES {
            match self.platform.touch(at, who, touch) {
                Ok(seen) => return Ok(seen),
                Err(Refusal::Impossible) => return Err(Refusal::Impossible),
                Err(refusal) => {
                    if !self.handle_fault(at, who, touch, &around) {
                        return Err(refusal);
                    }
                }
            }
            if self.findings.any() {
                return Err(Refusal::Missing);
            }
        }
        self.findings
            .add(format!("{touch:?} at {:#x} faults without end", at.0));
        Err(Refusal::Missing)
    }

    /// Does what a fault asks for; whether to try again.
    fn handle_fault(
        &self,
        at: VirtAddr,
        who: Who,
        touch: Touch,
        around: &impl Fn(&dyn Fn()),
    ) -> bool {
        let Some(found) = self.look(at) else {
            return false;
        };
        let Some(leaf) = found.leaf() else {
            return false;
        };
        if !allows(leaf.access(), leaf.marks(), who, touch) {
            return false;
        }
        let mut wanted = Marks::YOUNG;
        if matches!(touch, Touch::Write(_)) {
            wanted |= Marks::DIRTY;
        }
        if leaf.marks().contains(wanted) || leaf.marks().contains(Marks::SHADOW) {
            self.invalidate_here(at);
            return true;
        }
        around(&|| match found.level {
            Level::PTE => self.note::<Pte>(&found, who, touch, wanted),
            Level::PMD => self.note::<Pmd>(&found, who, touch, wanted),
            _ => self.note::<Pud>(&found, who, touch, wanted),
        });
        true
    }

    /// What is at an address, read under the lock of its table: what is broken for a moment, by who holds the lock, is not seen.
    pub(crate) fn look(&self, at: VirtAddr) -> Option<Found> {
        for _ in 0..TRIES {
            let mut found = self.ops().lookup(at).ok()?;
            let entry = match found.level {
                Level::PTE => self.locked::<Pte>(found.at),
                Level::PMD => self.locked::<Pmd>(found.at),
                Level::PUD => self.locked::<Pud>(found.at),
                _ => return Some(found),
            };
            match entry {
                Ok(entry) => found.entry = entry,
                // On this level are no leaves that could be broken for a moment.
                Err(Error::NoSuchEntry(_)) => {}
                Err(_) => continue,
            }
            return Some(found);
        }
        self.findings
            .add(format!("the entry of {:#x} changes without end", at.0));
        None
    }

    fn locked<L: TableLevel>(&self, at: VirtAddr) -> Result<Entry, Error> {
        self.gathered(|ops, gather| ops.replace::<L>(at, gather, |_| Become::Same))
    }

    /// Sets bits of a leaf for a unit that does not, if it still allows the access.
    fn note<L: TableLevel>(&self, found: &Found, who: Who, touch: Touch, wanted: Marks) {
        let decide = |entry| match entry {
            Entry::Leaf(leaf) if allows(leaf.access(), leaf.marks(), who, touch) => {
                Become::Leaf(leaf.mark(wanted))
            }
            _ => Become::Same,
        };
        // It may have gone, or be of another size by now: then the access faults again.
        let _ = self.gathered(|ops, gather| ops.replace::<L>(found.at, gather, decide));
    }

    /// Drops what this CPU holds for a page.
    pub(crate) fn invalidate_here(&self, at: VirtAddr) {
        let host = self.host();
        let page = Self::page();
        let start = at.0 & !(page - 1);
        let _guard = host.irq_guard();
        host.invalidate(&Invalidate {
            asid: self.table.asid(),
            start: VirtAddr(start),
            end: VirtAddr(start.wrapping_add(page)),
            stride: P::Format::PAGE_SHIFT as u8,
            tables: false,
        });
    }

    pub(crate) fn read(&self, at: VirtAddr) -> Result<Seen, Refusal> {
        self.touch(at, Who::User, Touch::Read)
    }

    /// Stores a new word into the second word of a page.
    pub(crate) fn write(&self, page: VirtAddr) -> Result<Seen, Refusal> {
        let word = self.new_word();
        self.touch(VirtAddr(page.0 + 8), Who::User, Touch::Write(word))
    }

    /// That a load is allowed and leads to this memory.
    #[track_caller]
    pub(crate) fn assert_reads(&self, va: VirtAddr, at: PhysAddr) {
        let seen = self.read(va);
        self.findings.assert_none();
        let Ok(seen) = seen else {
            panic!("a load at {va:?} is refused: {seen:?}");
        };
        if let Some(led) = seen.at {
            assert_eq!(led, at, "a load at {va:?}");
        }
        if let (Some(word), Some(there)) = (seen.word, self.platform.word(at)) {
            assert_eq!(word, there.load(Ordering::Relaxed), "a load at {va:?}");
        }
    }

    /// That a load is refused.
    #[track_caller]
    pub(crate) fn assert_refused(&self, va: VirtAddr) {
        let seen = self.read(va);
        self.findings.assert_none();
        assert!(seen.is_err(), "a load at {va:?} is allowed: {seen:?}");
    }

    /// What the leaf at an address says.
    #[track_caller]
    pub(crate) fn leaf_at(&self, va: VirtAddr) -> Leaf {
        let found = self.look(va);
        match found.and_then(|found| found.leaf()) {
            Some(leaf) => leaf,
            None => panic!("no leaf at {va:?}: {found:?}"),
        }
    }

    pub(crate) fn enter(&self) {
        self.platform.enter(&self.table);
    }

    pub(crate) fn leave(&self) {
        self.platform.leave(&self.table);
    }

    /// Runs `work` on the first `count` CPUs, each translating by the table meanwhile.
    pub(crate) fn run(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        self.platform.run(count, &|cpu| {
            self.enter();
            work(cpu);
        });
        self.findings.assert_none();
        // All has ended, and every CPU still translates by the table.
        self.platform.check_all_settled(&self.table);
        self.platform.run(count, &|_| self.leave());
    }

    /// Every leaf and absent entry of the window, as the library says.
    pub(crate) fn contents(&self, pages: usize) -> Vec<Found> {
        let range = Self::pages(self.platform.window(), pages);
        // Nothing is allocated in a section.
        let mut count = 0;
        let counted = self.ops().walk(range, |_| count += 1);
        assert_eq!(counted, Ok(()));
        let mut found = Vec::with_capacity(count);
        let result = self.ops().walk(range, |entry| found.push(entry));
        assert_eq!(result, Ok(()));
        found
    }

    /// Unmaps what is left of these ranges and looks whether everything was given back.
    ///
    /// # Panics
    /// If not.
    #[track_caller]
    pub(crate) fn end(mut self, ranges: &[VirtRange]) {
        for range in ranges {
            self.unmap(*range);
        }
        self.findings.assert_none();
        assert_eq!(self.ledger.pages_out(), 0, "pages that were not released");
        let left = self.table.table_count();
        assert_eq!(left, self.tables, "tables that are empty and still linked");
        self.platform.each_leaf(&self.table, &mut |leaf| {
            assert!(
                leaf.va < self.platform.window(),
                "{leaf:?} is left in an empty page table"
            );
        });
        // SAFETY: taken once: `self` ends here, and `ManuallyDrop` has no destructor.
        let table = unsafe { ManuallyDrop::take(&mut self.table) };
        self.platform.drop_table(table);
        // Another root, where the first one was perhaps: nothing that is due belongs to that one any more.
        let next = self.platform.new_table();
        self.host().synchronize();
        if let Ok(next) = next {
            self.platform.drop_table(next);
        }
    }
}

/// An error as a text, for findings.
pub(crate) fn said(what: &str, error: &Error) -> String {
    format!("{what}: {error}")
}
