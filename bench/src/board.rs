//! A machine for page tables, bare: memory, and a unit that does nothing but count what it is asked for.
//!
//! Words are plain atomics in memory that was mapped for this, locks are one exchange and one store, a read-side section is a counter of its own CPU, as
//! in a kernel. So what is measured on it is the library's own work. One thread uses it (B9), on behalf of CPU 0.

use crate::Error;
use core::alloc::Layout;
use core::convert::Infallible;
use core::fmt;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use flagstone_host::{
    ArrayParams, Asid, Backing, Backtrace, Clock, Count, CpuCache, Cpus, Entropy, Event, Grace,
    Host, Invalidate, Level, LockClass, Log, META_BYTES, Machine, MemRange, Mmu, MmuCaps, PageMap,
    PhysMem, Push, RcuHead, Shootdown, TableMemory,
};
use flagstone_types::{AllocError, CpuId, CpuMask, Nanos, Nid, Pfn, PfnRange, PhysAddr, Zone};
use std::time::Instant;

const PAGE: usize = 4096;
/// The first frame; physical address 0 is nobody's, because some page tables take it for nothing.
const FIRST: usize = 1 << 10;

/// An x86-64 processor of these days.
pub(crate) const X86: MmuCaps = MmuCaps {
    accessed: true,
    accessed_table: true,
    dirty: true,
    stray_dirty: false,
    huge_pmd: true,
    huge_pud: true,
    shadow_stack: false,
    asid_bits: 12,
    broadcast: false,
    paravirtual: false,
    phys_bits: 46,
};

/// A Knights Landing: its unit may set the dirty bit of an entry that has gone.
pub(crate) const KNIGHTS_LANDING: MmuCaps = MmuCaps {
    stray_dirty: true,
    ..X86
};

/// What the unit was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Invalidations, each on any number of CPUs.
    pub(crate) requests: u64,
    /// Those that this CPU had a part in.
    pub(crate) local: u64,
    /// Other CPUs that had a part, one interrupt each.
    pub(crate) remote: u64,
}

/// Private memory from the system, zero, as long as the value lives.
struct Mapping {
    at: NonNull<u8>,
    bytes: usize,
}

impl Mapping {
    fn new(bytes: usize) -> Result<Self, Error> {
        // SAFETY: B9: a new mapping.
        let at = unsafe {
            libc::mmap(
                core::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        match NonNull::new(at.cast::<u8>()) {
            Some(at) if at.as_ptr().addr() != usize::MAX => Ok(Self { at, bytes }),
            _ => Err(Error::memory("memory of a board")(AllocError::OutOfMemory)),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: B9: the mapping that `new` made, once.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}

/// The machine. A host is a reference to it.
pub(crate) struct Board {
    memory: Mapping,
    meta: Mapping,
    pages: usize,
    /// Pages that [`Board::take_page`] has handed out.
    taken: AtomicUsize,
    boot: Mapping,
    boot_used: AtomicUsize,
    caps: MmuCaps,
    cpus: u32,
    started: Instant,
    events: [AtomicU64; Event::COUNT],
    sections: AtomicU32,
    deferred: AtomicPtr<RcuHead>,
    requests: AtomicU64,
    local: AtomicU64,
    remote: AtomicU64,
}

// SAFETY: B9: one thread uses a board; the host traits ask for `Sync` all the same.
unsafe impl Sync for Board {}

impl fmt::Debug for Board {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Board")
            .field("pages", &self.pages)
            .field("asked", &self.asked())
            .finish_non_exhaustive()
    }
}

/// Adds to a counter that one thread changes: no locked instruction.
#[inline(always)]
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
}

impl Board {
    /// A machine with so much memory, in MiB, and so many CPUs, of which the first one runs.
    pub(crate) fn new(mib: usize, cpus: u32, caps: MmuCaps) -> Result<Self, Error> {
        let pages = (mib << 20) / PAGE;
        let blocks = pages.next_multiple_of(1 << <&Self as PageMap>::MAX_ORDER);
        Ok(Self {
            memory: Mapping::new(pages * PAGE)?,
            meta: Mapping::new(blocks * META_BYTES)?,
            pages,
            taken: AtomicUsize::new(0),
            boot: Mapping::new(1 << 20)?,
            boot_used: AtomicUsize::new(0),
            caps,
            cpus,
            started: Instant::now(),
            events: [const { AtomicU64::new(0) }; Event::COUNT],
            sections: AtomicU32::new(0),
            deferred: AtomicPtr::new(core::ptr::null_mut()),
            requests: AtomicU64::new(0),
            local: AtomicU64::new(0),
            remote: AtomicU64::new(0),
        })
    }

    /// What was asked for since the start.
    pub(crate) fn asked(&self) -> Asked {
        let [requests, local, remote] =
            [&self.requests, &self.local, &self.remote].map(|n| n.load(Ordering::Relaxed));
        Asked {
            requests,
            local,
            remote,
        }
    }

    /// One invalidation on this CPU, for page tables that are no [`flagstone_pgtable::PageTable`].
    #[inline(always)]
    pub(crate) fn invalidated(&self) {
        add(&self.requests, 1);
        add(&self.local, 1);
    }

    /// The physical address of a page that is zero and nobody's, on a board whose memory no `Frames` has (B10).
    pub(crate) fn take_page(&self) -> Option<PhysAddr> {
        let n = self.taken.fetch_add(1, Ordering::Relaxed);
        (n < self.pages).then_some(PhysAddr(((FIRST + n) * PAGE) as u64))
    }

    /// What is added to a physical address to reach it.
    pub(crate) fn offset(&self) -> usize {
        self.memory.at.as_ptr().expose_provenance() - FIRST * PAGE
    }

    #[inline(always)]
    fn pointer(&self, at: PhysAddr) -> NonNull<u8> {
        // SAFETY: M1: within the mapping, for frames that `meta` answers for and that have memory.
        unsafe { self.memory.at.byte_add(at.0 as usize - FIRST * PAGE) }
    }

    #[inline(always)]
    fn word(&self, at: PhysAddr) -> &AtomicU64 {
        debug_assert!(at.0.is_multiple_of(8));
        // SAFETY: M1, B9; whoever names an entry says that it is in a table, and tables are aligned.
        unsafe { AtomicU64::from_ptr(self.pointer(at).as_ptr().cast()) }
    }

    #[inline(always)]
    fn half(&self, at: PhysAddr) -> &AtomicU32 {
        debug_assert!(at.0.is_multiple_of(4));
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.pointer(at).as_ptr().cast()) }
    }

    /// The entry that translates `at` as an x86-64 unit finds it from `root`; none if a table is missing.
    pub(crate) fn entry(&self, root: PhysAddr, at: usize) -> Option<&AtomicU64> {
        const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
        let mut table = root;
        for shift in [39, 30, 21] {
            let index = at >> shift & 511;
            let entry = self.word(PhysAddr(table.0 + 8 * index as u64));
            let raw = entry.load(Ordering::Acquire);
            if raw & 1 == 0 {
                return None;
            }
            table = PhysAddr(raw & ADDRESS);
        }
        Some(self.word(PhysAddr(table.0 + 8 * (at >> 12 & 511) as u64)))
    }

    fn run_deferred(&self) -> usize {
        let mut next = self.deferred.swap(core::ptr::null_mut(), Ordering::AcqRel);
        let mut ran = 0;
        while let Some(head) = NonNull::new(next) {
            // SAFETY: G1: the head is valid until its call, and no section is open.
            unsafe {
                next = (*head.as_ptr()).next;
                if let Some(call) = (*head.as_ptr()).call {
                    call(head);
                }
            }
            ran += 1;
        }
        ran
    }
}

// SAFETY: M2: the second mapping, zero, by arithmetic; M3: the third one, handed out once; M8: there is one zone.
unsafe impl PageMap for &Board {
    const PAGE_SHIFT: u32 = 12;

    #[inline(always)]
    fn meta(&self, pfn: Pfn) -> Option<NonNull<u8>> {
        let at = pfn.0.wrapping_sub(FIRST) * META_BYTES;
        // SAFETY: within the mapping.
        (at < self.meta.bytes).then(|| unsafe { self.meta.at.add(at) })
    }

    fn nid(&self, _: Pfn) -> Nid {
        Nid(0)
    }

    fn boot_ranges(&self, each: &mut dyn FnMut(MemRange)) {
        each(MemRange {
            frames: PfnRange {
                start: Pfn(FIRST),
                pages: self.pages,
            },
            nid: Nid(0),
            zone: Zone::Normal,
        });
    }

    fn boot_alloc(&self, layout: Layout) -> Result<NonNull<u8>, AllocError> {
        let at = self.boot_used.load(Ordering::Relaxed);
        let at = at.next_multiple_of(layout.align());
        let end = at + layout.size();
        if end > self.boot.bytes {
            return Err(AllocError::OutOfMemory);
        }
        self.boot_used.store(end, Ordering::Relaxed);
        // SAFETY: within the mapping.
        Ok(unsafe { self.boot.at.add(at) })
    }
}

// SAFETY: M1, M4: one mapping, by arithmetic.
unsafe impl PhysMem for &Board {
    #[inline(always)]
    fn frame_ptr(&self, pfn: Pfn) -> NonNull<u8> {
        self.pointer(PhysAddr((pfn.0 * PAGE) as u64))
    }

    fn pfn_of(&self, address: usize) -> Option<Pfn> {
        let n = address.wrapping_sub(self.memory.at.as_ptr().addr()) / PAGE;
        (n < self.pages).then_some(Pfn(FIRST + n))
    }
}

impl Backing for &Board {}

impl Cpus for &Board {
    type IrqGuard<'a>
        = ()
    where
        Self: 'a;

    fn possible_cpus(&self) -> u32 {
        self.cpus
    }
    fn is_online(&self, _: CpuId) -> bool {
        true
    }
    #[inline(always)]
    fn current_cpu(&self) -> CpuId {
        CpuId(0)
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
    fn irq_guard(&self) -> Self::IrqGuard<'_> {}
    fn relax(&self, _: u32) {
        core::hint::spin_loop();
    }
}

impl Clock for &Board {
    fn now(&self) -> Nanos {
        Nanos(self.started.elapsed().as_nanos() as u64)
    }
}

impl Entropy for &Board {
    /// Nothing here depends on it, and the same run is to count the same again.
    fn random(&self) -> u64 {
        0x9e37_79b9_7f4a_7c15
    }
}

impl Log for &Board {
    fn log(&self, _: Level, message: fmt::Arguments<'_>) {
        eprintln!("{message}");
    }
}

impl Backtrace for &Board {}

impl Count for &Board {
    fn count(&self, event: Event, n: u64) {
        add(&self.events[event.index()], n);
    }
    fn counted(&self, event: Event) -> u64 {
        self.events[event.index()].load(Ordering::Relaxed)
    }
}

/// A read-side section.
#[derive(Debug)]
pub(crate) struct Section<'a>(&'a AtomicU32);

impl Drop for Section<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        core::sync::atomic::compiler_fence(Ordering::SeqCst);
        self.0
            .store(self.0.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
    }
}

impl<'m> Grace for &'m Board {
    type ReadGuard<'a>
        = Section<'m>
    where
        Self: 'a;

    #[inline(always)]
    fn read(&self) -> Section<'m> {
        let sections = &self.sections;
        sections.store(sections.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        core::sync::atomic::compiler_fence(Ordering::SeqCst);
        Section(sections)
    }

    unsafe fn defer(&self, head: NonNull<RcuHead>, call: unsafe fn(NonNull<RcuHead>)) {
        // SAFETY: G1: the head is the host's until its call.
        unsafe {
            head.write(RcuHead {
                next: self.deferred.load(Ordering::Relaxed),
                call: Some(call),
            });
        }
        self.deferred.store(head.as_ptr(), Ordering::Relaxed);
    }

    fn poll(&self) -> usize {
        if self.sections.load(Ordering::Relaxed) > 0 {
            return 0;
        }
        self.run_deferred()
    }

    fn synchronize(&self) {
        debug_assert_eq!(self.sections.load(Ordering::Relaxed), 0);
        self.run_deferred();
    }
}

/// A lock as kernels have them: an exchange to take it, a store to release it.
#[derive(Debug)]
pub(crate) struct SpinLock<C> {
    word: AtomicU32,
    class: PhantomData<fn() -> C>,
}

// SAFETY: the compare-exchange admits one holder.
unsafe impl<C: LockClass> lock_api::RawMutex for SpinLock<C> {
    #[allow(
        clippy::declare_interior_mutable_const,
        reason = "the interface asks for a constant"
    )]
    const INIT: Self = Self {
        word: AtomicU32::new(0),
        class: PhantomData,
    };
    type GuardMarker = lock_api::GuardNoSend;

    #[inline(always)]
    fn lock(&self) {
        while !self.try_lock() {
            core::hint::spin_loop();
        }
    }

    #[inline(always)]
    fn try_lock(&self) -> bool {
        self.word
            .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    #[inline(always)]
    unsafe fn unlock(&self) {
        self.word.store(0, Ordering::Release);
    }
}

impl Machine for &Board {
    type Lock<C: LockClass> = SpinLock<C>;
}

/// The array of a machine that has none.
#[derive(Debug)]
pub(crate) enum NoArray {}

// SAFETY: there is no value.
unsafe impl CpuCache for NoArray {
    fn pop(&self) -> Option<NonNull<u8>> {
        match *self {}
    }
    unsafe fn push(&self, _: NonNull<u8>) -> Push {
        match *self {}
    }
    fn pop_n(&self, _: &mut [MaybeUninit<NonNull<u8>>]) -> usize {
        match *self {}
    }
    unsafe fn push_n(&self, _: &[NonNull<u8>]) -> usize {
        match *self {}
    }
    fn set_limit(&self, _: CpuId, _: u32) {
        match *self {}
    }
    fn limit(&self, _: CpuId) -> u32 {
        match *self {}
    }
    fn len(&self, _: CpuId) -> u32 {
        match *self {}
    }
    fn tag(&self) -> u16 {
        match *self {}
    }
}

impl Host for &Board {
    type Array = NoArray;
    type Stopped = Infallible;

    fn new_array(&self, _: ArrayParams) -> Result<NoArray, AllocError> {
        Err(AllocError::OutOfMemory)
    }
    fn stop_arrays(&self) -> Option<Infallible> {
        None
    }
    fn drain(
        &self,
        stopped: &Infallible,
        _: &NoArray,
        _: CpuId,
        _: &mut dyn FnMut(&[NonNull<u8>]),
    ) {
        match *stopped {}
    }
    fn drain_unshared(&self, array: &mut NoArray, _: CpuId, _: &mut dyn FnMut(&[NonNull<u8>])) {
        match *array {}
    }
}

// SAFETY: T1: no unit walks the words, so they are those that none walks; T2: atomics.
unsafe impl TableMemory for &Board {
    #[inline(always)]
    unsafe fn load_entry(&self, at: PhysAddr) -> u64 {
        self.word(at).load(Ordering::Acquire)
    }
    #[inline(always)]
    unsafe fn store_entry(&self, at: PhysAddr, value: u64) {
        self.word(at).store(value, Ordering::Release);
    }
    #[inline(always)]
    unsafe fn exchange_entry(&self, at: PhysAddr, value: u64) -> u64 {
        self.word(at).swap(value, Ordering::AcqRel)
    }
    #[inline(always)]
    unsafe fn compare_exchange_entry(&self, at: PhysAddr, old: u64, new: u64) -> Result<(), u64> {
        self.word(at)
            .compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
            .map(|_| ())
    }
    unsafe fn load_half(&self, at: PhysAddr) -> u32 {
        self.half(at).load(Ordering::Acquire)
    }
    unsafe fn store_half(&self, at: PhysAddr, value: u32) {
        self.half(at).store(value, Ordering::Release);
    }
}

// SAFETY: T5: no CPU translates by these tables.
unsafe impl Mmu for &Board {
    fn capabilities(&self) -> MmuCaps {
        self.caps
    }
    unsafe fn activate(&self, _: PhysAddr, _: Asid, _: bool) {}
    fn invalidate(&self, _: &Invalidate) {
        add(&self.local, 1);
    }
}

// SAFETY: T6: as T5.
unsafe impl Shootdown for &Board {
    type Pending = ();

    #[inline]
    fn shoot(&self, cpus: &CpuMask, what: &Invalidate) {
        let here = cpus.contains(self.current_cpu());
        add(&self.requests, 1);
        if cpus.has_others(self.current_cpu()) {
            add(&self.remote, u64::from(cpus.len()) - u64::from(here));
        }
        if here {
            self.invalidate(what);
        }
    }
    fn wait(&self, (): ()) {}
}
