//! A machine with tables in its memory and no unit: the seeded one, with invalidations written down instead of done.

use core::alloc::Layout;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use flagstone_host::{
    ArrayParams, Asid, Backing, Backtrace, Clock, Count, Cpus, Entropy, Event, Grace, Host,
    Invalidate, Level, LockClass, Log, MemRange, Mmu, MmuCaps, PageMap, PhysMem, RcuHead,
    Shootdown, TableMemory,
};
use flagstone_seeded::{Builder, Machine};
use flagstone_types::{AllocError, CpuId, CpuMask, Nanos, Nid, Pfn, PfnRange, PhysAddr};
use std::sync::Mutex;
use std::vec::Vec;

/// What the unit can do, and what it was asked to invalidate.
#[derive(Debug)]
pub(crate) struct Unit {
    pub(crate) caps: MmuCaps,
    pub(crate) shot: Mutex<Vec<(CpuMask, Invalidate)>>,
    /// Bits that a stray unit sets in an entry that was exchanged for nothing, at the next invalidation.
    pub(crate) stray: Mutex<Vec<(PhysAddr, u64)>>,
    /// Entries that name tables and were written by the hypervisor.
    pub(crate) written: AtomicU64,
}

pub(crate) const CAPS: MmuCaps = MmuCaps {
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

impl Unit {
    pub(crate) fn new(caps: MmuCaps) -> Self {
        Self {
            caps,
            shot: Mutex::new(Vec::new()),
            stray: Mutex::new(Vec::new()),
            written: AtomicU64::new(0),
        }
    }

    /// The invalidations since the last call.
    pub(crate) fn take(&self) -> Vec<Invalidate> {
        core::mem::take(&mut *self.shot.lock().unwrap())
            .into_iter()
            .map(|(_, what)| what)
            .collect()
    }
}

/// The host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TestHost<'m, const SHIFT: u32 = 12> {
    pub(crate) machine: &'m Machine<SHIFT, 6>,
    pub(crate) unit: &'m Unit,
}

pub(crate) fn machine<const SHIFT: u32>(pages: usize) -> Machine<SHIFT, 6> {
    Builder::<SHIFT, 6>::new().cpus(2).memory(pages).build()
}

// SAFETY: M2, M3, M8 are those of the seeded machine.
unsafe impl<const SHIFT: u32> PageMap for TestHost<'_, SHIFT> {
    const PAGE_SHIFT: u32 = SHIFT;
    const MAX_ORDER: u32 = 6;
    fn meta(&self, pfn: Pfn) -> Option<NonNull<u8>> {
        self.machine.meta(pfn)
    }
    fn nid(&self, pfn: Pfn) -> Nid {
        self.machine.nid(pfn)
    }
    fn boot_ranges(&self, each: &mut dyn FnMut(MemRange)) {
        self.machine.boot_ranges(each);
    }
    fn boot_alloc(&self, layout: Layout) -> Result<NonNull<u8>, AllocError> {
        self.machine.boot_alloc(layout)
    }
}

// SAFETY: M1, M4 are those of the seeded machine.
unsafe impl<const SHIFT: u32> PhysMem for TestHost<'_, SHIFT> {
    fn frame_ptr(&self, pfn: Pfn) -> NonNull<u8> {
        self.machine.frame_ptr(pfn)
    }
    fn pfn_of(&self, address: usize) -> Option<Pfn> {
        self.machine.pfn_of(address)
    }
}

impl<const SHIFT: u32> Backing for TestHost<'_, SHIFT> {
    const CAN_RELEASE: bool = true;
    fn commit(&self, frames: PfnRange) -> Result<(), AllocError> {
        self.machine.commit(frames)
    }
    fn release(&self, frames: PfnRange) -> bool {
        self.machine.release(frames)
    }
    fn take(&self, frames: PfnRange) -> bool {
        self.machine.take(frames)
    }
    fn touched(&self, frames: PfnRange) -> usize {
        self.machine.touched(frames)
    }
}

impl<'m, const SHIFT: u32> Cpus for TestHost<'m, SHIFT> {
    type IrqGuard<'a>
        = <&'m Machine<SHIFT, 6> as Cpus>::IrqGuard<'a>
    where
        Self: 'a;
    fn possible_cpus(&self) -> u32 {
        self.machine.possible_cpus()
    }
    fn is_online(&self, cpu: CpuId) -> bool {
        self.machine.is_online(cpu)
    }
    fn current_cpu(&self) -> CpuId {
        self.machine.current_cpu()
    }
    fn nodes(&self) -> u32 {
        self.machine.nodes()
    }
    fn node_of(&self, cpu: CpuId) -> Nid {
        self.machine.node_of(cpu)
    }
    fn distance(&self, from: Nid, to: Nid) -> u32 {
        self.machine.distance(from, to)
    }
    fn irq_guard(&self) -> Self::IrqGuard<'_> {
        self.machine.irq_guard()
    }
    fn relax(&self, spins: u32) {
        assert!(spins < 100_000, "a loop that does not end");
        self.machine.relax(spins);
    }
}

impl<const SHIFT: u32> Clock for TestHost<'_, SHIFT> {
    fn now(&self) -> Nanos {
        self.machine.now()
    }
}
impl<const SHIFT: u32> Entropy for TestHost<'_, SHIFT> {
    fn random(&self) -> u64 {
        self.machine.random()
    }
}
impl<const SHIFT: u32> Log for TestHost<'_, SHIFT> {
    fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        self.machine.log(level, message);
    }
}
impl<const SHIFT: u32> Backtrace for TestHost<'_, SHIFT> {
    fn backtrace(&self, into: &mut [usize]) -> usize {
        self.machine.backtrace(into)
    }
}
impl<const SHIFT: u32> Count for TestHost<'_, SHIFT> {
    fn count(&self, event: Event, n: u64) {
        self.machine.count(event, n);
    }
    fn counted(&self, event: Event) -> u64 {
        self.machine.counted(event)
    }
}

impl<'m, const SHIFT: u32> Grace for TestHost<'m, SHIFT> {
    type ReadGuard<'a>
        = <&'m Machine<SHIFT, 6> as Grace>::ReadGuard<'a>
    where
        Self: 'a;
    fn read(&self) -> Self::ReadGuard<'_> {
        self.machine.read()
    }
    unsafe fn defer(&self, head: NonNull<RcuHead>, call: unsafe fn(NonNull<RcuHead>)) {
        // SAFETY: the caller's promise.
        unsafe { self.machine.defer(head, call) };
    }
    fn poll(&self) -> usize {
        self.machine.poll()
    }
    fn synchronize(&self) {
        self.machine.synchronize();
    }
}

impl<'m, const SHIFT: u32> flagstone_host::Machine for TestHost<'m, SHIFT> {
    type Lock<C: LockClass> = <&'m Machine<SHIFT, 6> as flagstone_host::Machine>::Lock<C>;
}

impl<'m, const SHIFT: u32> Host for TestHost<'m, SHIFT> {
    type Array = <&'m Machine<SHIFT, 6> as Host>::Array;
    type Stopped = <&'m Machine<SHIFT, 6> as Host>::Stopped;
    fn new_array(&self, params: ArrayParams) -> Result<Self::Array, AllocError> {
        self.machine.new_array(params)
    }
    fn stop_arrays(&self) -> Option<Self::Stopped> {
        self.machine.stop_arrays()
    }
    fn drain(
        &self,
        stopped: &Self::Stopped,
        array: &Self::Array,
        cpu: CpuId,
        take: &mut dyn FnMut(&[NonNull<u8>]),
    ) {
        self.machine.drain(stopped, array, cpu, take);
    }
    fn drain_unshared(
        &self,
        array: &mut Self::Array,
        cpu: CpuId,
        take: &mut dyn FnMut(&[NonNull<u8>]),
    ) {
        self.machine.drain_unshared(array, cpu, take);
    }
}

impl<const SHIFT: u32> TestHost<'_, SHIFT> {
    fn word(&self, at: PhysAddr) -> &AtomicU64 {
        assert_eq!(at.0 % 8, 0);
        // SAFETY: M1; the promise of the caller of the trait's methods.
        unsafe { AtomicU64::from_ptr(self.pointer(at).cast().as_ptr()) }
    }
    fn half(&self, at: PhysAddr) -> &AtomicU32 {
        assert_eq!(at.0 % 4, 0);
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.pointer(at).cast().as_ptr()) }
    }
    fn pointer(&self, at: PhysAddr) -> NonNull<u8> {
        let frame = self.machine.frame_ptr(Pfn((at.0 >> SHIFT) as usize));
        // SAFETY: M1: within the frame.
        unsafe { frame.add(at.0 as usize & ((1 << SHIFT) - 1)) }
    }
}

// SAFETY: T1: there is no unit but this; T2: atomics.
unsafe impl<const SHIFT: u32> TableMemory for TestHost<'_, SHIFT> {
    unsafe fn load_entry(&self, at: PhysAddr) -> u64 {
        self.word(at).load(Ordering::Acquire)
    }
    unsafe fn store_entry(&self, at: PhysAddr, value: u64) {
        self.word(at).store(value, Ordering::Release);
    }
    unsafe fn exchange_entry(&self, at: PhysAddr, value: u64) -> u64 {
        self.word(at).swap(value, Ordering::AcqRel)
    }
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

// SAFETY: T5: there is no translation but in the tables.
unsafe impl<const SHIFT: u32> Mmu for TestHost<'_, SHIFT> {
    fn capabilities(&self) -> MmuCaps {
        self.unit.caps
    }
    unsafe fn activate(&self, _: PhysAddr, _: Asid, _: bool) {}
    fn invalidate(&self, _: &Invalidate) {}
    unsafe fn write_table_entry(&self, at: PhysAddr, value: u64) {
        self.unit.written.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { self.store_entry(at, value) };
    }
}

// SAFETY: T6: as T5.
unsafe impl<const SHIFT: u32> Shootdown for TestHost<'_, SHIFT> {
    type Pending = ();
    fn shoot(&self, cpus: &CpuMask, what: &Invalidate) {
        self.unit.shot.lock().unwrap().push((*cpus, *what));
        for (at, bits) in self.unit.stray.lock().unwrap().drain(..) {
            self.word(at).fetch_or(bits, Ordering::AcqRel);
        }
    }
    fn wait(&self, (): ()) {}
}
