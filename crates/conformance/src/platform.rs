//! What the suite asks of a machine: CPUs to run on, accesses through the unit, memory to map, page tables to map it in.
//!
//! Everything that only some machines know (where an access led to, what a unit still holds) has a default that knows nothing.

use core::sync::atomic::AtomicU64;
use flagstone_frames::Frames;
use flagstone_pgtable::format::{Format, Level};
use flagstone_pgtable::{Error, PageTable, TableHost, VirtRange};
use flagstone_types::{Bytes, PhysAddr, VirtAddr};

/// A page table on the machine of a platform.
pub type Table<'p, P> = PageTable<'p, <P as Platform>::Host, <P as Platform>::Format>;

/// Who makes an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// User code.
    User,
    /// The kernel. The suite lets it touch pages without user access only.
    Kernel,
}

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// Loads 64 bits.
    Read,
    /// Stores 64 bits.
    Write(u64),
    /// Fetches an instruction. Memory that the suite makes executable begins with the byte [`RETURN`].
    Exec,
    /// Stores 64 bits as CALL does on a shadow stack.
    Push(u64),
}

/// The first byte of every page that may be fetched from: the instruction that returns, on x86.
pub const RETURN: u8 = 0xc3;

/// Why the unit refused an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Nothing is mapped there.
    Missing,
    /// What is mapped there does not allow it.
    Denied,
    /// It is allowed, and software must set the accessed or the dirty bit first; a platform that can not tell says [`Refusal::Denied`].
    NotNoted,
    /// The machine has no such access.
    Impossible,
}

/// What an access that was allowed has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Where it led to, if the platform knows.
    pub at: Option<PhysAddr>,
    /// What a load loaded, if there is memory.
    pub word: Option<u64>,
}

/// What one leaf of a page table says, by the platform's own decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// The first address.
    pub va: VirtAddr,
    /// Where it leads to.
    pub at: PhysAddr,
    /// How much it maps.
    pub bytes: Bytes,
    /// Whether user code may store there once the dirty bit is set.
    pub user_writes: bool,
}

/// A machine under test.
///
/// # Safety
/// **P1** Memory that [`Platform::alloc`] gave out is nobody else's until it is given back, and [`Platform::word`] gives only words of memory.
pub unsafe trait Platform: Sync {
    /// The host of the page tables.
    type Host: TableHost;
    /// The format that its units run.
    type Format: Format;

    /// Where tables come from.
    fn frames(&self) -> &Frames<Self::Host>;

    /// How many CPUs can take part.
    fn cpus(&self) -> usize;

    /// Runs `work` on the first `count` CPUs at once, each with its number, and returns when all have ended. Work stays on its CPU.
    ///
    /// # Panics
    /// May, if the machine finds something wrong.
    fn run(&self, count: usize, work: &(dyn Fn(usize) + Sync));

    /// An empty page table in which the suite has the addresses of [`Platform::window`] for itself. Tables of one case have different address spaces.
    ///
    /// # Errors
    /// What [`PageTable::new`] says.
    fn new_table(&self) -> Result<Table<'_, Self>, Error>
    where
        Self: Sized;

    /// Gives back a table of [`Platform::new_table`], which no CPU uses and in which nothing of the suite's is mapped.
    fn drop_table(&self, table: Table<'_, Self>)
    where
        Self: Sized,
    {
        drop(table);
    }

    /// The first address that is the suite's: a multiple of what an entry of the third level reaches. The suite goes up to three such entries beyond it,
    /// and to two entries of the highest level.
    fn window(&self) -> VirtAddr;

    /// Makes this CPU translate by `table`.
    fn enter(&self, table: &Table<'_, Self>)
    where
        Self: Sized;

    /// Makes this CPU translate by the table that it had before [`Platform::enter`], and takes it out of the table's set of CPUs.
    fn leave(&self, table: &Table<'_, Self>)
    where
        Self: Sized;

    /// One access on this CPU, tried once.
    ///
    /// # Errors
    /// Why it was refused. May be spurious, as on any machine: the unit may still hold what the tables said before.
    fn touch(&self, at: VirtAddr, who: Who, touch: Touch) -> Result<Seen, Refusal>;

    /// Memory for one leaf of a level, aligned to its size, contents unknown; `None` if there is none (any more).
    fn alloc(&self, level: Level) -> Option<PhysAddr>;

    /// Takes memory back that [`Platform::alloc`] gave out for a leaf of this level.
    fn free(&self, at: PhysAddr, level: Level);

    /// The word at a physical address, if there is memory that the suite may read and write. On a machine that really runs: always the same word as through the unit.
    fn word(&self, at: PhysAddr) -> Option<&AtomicU64>;

    /// No CPU may reach this memory from now on: told before it is given back.
    fn released(&self, at: PhysAddr, bytes: Bytes) {
        let _ = (at, bytes);
    }

    /// Finds it wrong if a CPU can use anything for the range that the tables do not say now. Nobody changes the range meanwhile.
    fn check_settled(&self, table: &Table<'_, Self>, range: VirtRange)
    where
        Self: Sized,
    {
        let _ = (table, range);
    }

    /// As [`Platform::check_settled`] for all addresses, and finds it wrong if a CPU keeps what entries that name tables said before. Nobody changes anything
    /// meanwhile.
    fn check_all_settled(&self, table: &Table<'_, Self>)
    where
        Self: Sized,
    {
        let _ = table;
    }

    /// Whether anybody will ask for accessed and dirty bits from now on: if not, the library may lose some.
    fn ask_use(&self, asked: bool) {
        let _ = asked;
    }

    /// Calls `each` with every leaf of a table, lowest address first, by a decoding of its own; `false` if the platform has none.
    fn each_leaf(&self, table: &Table<'_, Self>, each: &mut dyn FnMut(Mapped)) -> bool
    where
        Self: Sized,
    {
        let _ = (table, each);
        false
    }

    /// Finds it wrong if memory was lost or damaged: at the end of a case, when everything was given back.
    fn check_memory(&self) {}

    /// A random number: the seed of everything that a case draws.
    fn random(&self) -> u64;

    /// Whether all memory of the machine may be taken for a moment.
    fn may_exhaust(&self) -> bool {
        false
    }
}
