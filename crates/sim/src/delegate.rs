//! The traits of a host that the machine underneath answers. Each call is also a moment at which units do something unasked.

use crate::machine::Machine;
use core::alloc::Layout;
use core::fmt;
use core::ptr::NonNull;
use flagstone_host::{
    ArrayParams, Backing, Backtrace, Clock, Count, Cpus, Entropy, Event, Grace, Host, Level,
    LockClass, Log, MemRange, PageMap, PhysMem, RcuHead,
};
use flagstone_seeded::{Array, IrqGuard, RawLock, ReadGuard, Stopped};
use flagstone_types::{AllocError, CpuId, Nanos, Nid, Pfn, PfnRange};

// SAFETY: M2, M3, M8: the machine underneath promises them.
unsafe impl<const SHIFT: u32, const ORDER: u32> PageMap for &Machine<SHIFT, ORDER> {
    const PAGE_SHIFT: u32 = SHIFT;
    const MAX_ORDER: u32 = ORDER;

    fn meta(&self, pfn: Pfn) -> Option<NonNull<u8>> {
        self.aside();
        self.unit
            .get()
            .borrow_mut()
            .note_touched(self.hooks(), pfn.0 as u64);
        (&self.inner).meta(pfn)
    }

    fn nid(&self, pfn: Pfn) -> Nid {
        (&self.inner).nid(pfn)
    }

    fn boot_ranges(&self, each: &mut dyn FnMut(MemRange)) {
        (&self.inner).boot_ranges(each);
    }

    fn boot_alloc(&self, layout: Layout) -> Result<NonNull<u8>, AllocError> {
        (&self.inner).boot_alloc(layout)
    }
}

// SAFETY: M1, M4: the machine underneath promises them.
unsafe impl<const SHIFT: u32, const ORDER: u32> PhysMem for &Machine<SHIFT, ORDER> {
    fn frame_ptr(&self, pfn: Pfn) -> NonNull<u8> {
        (&self.inner).frame_ptr(pfn)
    }

    fn pfn_of(&self, address: usize) -> Option<Pfn> {
        (&self.inner).pfn_of(address)
    }

    fn tag(&self, frames: PfnRange, tag: u16) {
        (&self.inner).tag(frames, tag);
    }
}

impl<const SHIFT: u32, const ORDER: u32> Backing for &Machine<SHIFT, ORDER> {
    const CAN_RELEASE: bool = true;

    fn commit(&self, frames: PfnRange) -> Result<(), AllocError> {
        (&self.inner).commit(frames)
    }

    fn release(&self, frames: PfnRange) -> bool {
        self.aside();
        (&self.inner).release(frames)
    }

    fn take(&self, frames: PfnRange) -> bool {
        self.aside();
        (&self.inner).take(frames)
    }

    fn populate(&self, frames: PfnRange) {
        (&self.inner).populate(frames);
    }

    fn touched(&self, frames: PfnRange) -> usize {
        (&self.inner).touched(frames)
    }
}

impl<const SHIFT: u32, const ORDER: u32> Cpus for &Machine<SHIFT, ORDER> {
    type IrqGuard<'a>
        = IrqGuard<'a>
    where
        Self: 'a;

    fn possible_cpus(&self) -> u32 {
        (&self.inner).possible_cpus()
    }

    fn is_online(&self, cpu: CpuId) -> bool {
        (&self.inner).is_online(cpu)
    }

    fn current_cpu(&self) -> CpuId {
        self.aside();
        (&self.inner).current_cpu()
    }

    fn nodes(&self) -> u32 {
        (&self.inner).nodes()
    }

    fn node_of(&self, cpu: CpuId) -> Nid {
        (&self.inner).node_of(cpu)
    }

    fn distance(&self, from: Nid, to: Nid) -> u32 {
        (&self.inner).distance(from, to)
    }

    fn irq_guard(&self) -> IrqGuard<'_> {
        self.aside();
        let machine: &Machine<SHIFT, ORDER> = self;
        let hooks = machine.hooks();
        hooks.irq_guard()
    }

    fn relax(&self, spins: u32) {
        self.aside();
        (&self.inner).relax(spins);
    }
}

impl<const SHIFT: u32, const ORDER: u32> Clock for &Machine<SHIFT, ORDER> {
    fn now(&self) -> Nanos {
        (&self.inner).now()
    }
}

impl<const SHIFT: u32, const ORDER: u32> Entropy for &Machine<SHIFT, ORDER> {
    fn random(&self) -> u64 {
        (&self.inner).random()
    }
}

impl<const SHIFT: u32, const ORDER: u32> Log for &Machine<SHIFT, ORDER> {
    fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        (&self.inner).log(level, message);
    }
}

impl<const SHIFT: u32, const ORDER: u32> Backtrace for &Machine<SHIFT, ORDER> {
    fn backtrace(&self, into: &mut [usize]) -> usize {
        (&self.inner).backtrace(into)
    }
}

impl<const SHIFT: u32, const ORDER: u32> Count for &Machine<SHIFT, ORDER> {
    fn count(&self, event: Event, n: u64) {
        self.aside();
        (&self.inner).count(event, n);
    }

    fn counted(&self, event: Event) -> u64 {
        (&self.inner).counted(event)
    }
}

impl<const SHIFT: u32, const ORDER: u32> Grace for &Machine<SHIFT, ORDER> {
    type ReadGuard<'a>
        = ReadGuard<'a>
    where
        Self: 'a;

    fn read(&self) -> ReadGuard<'_> {
        self.aside();
        let machine: &Machine<SHIFT, ORDER> = self;
        machine.hooks().read()
    }

    unsafe fn defer(&self, head: NonNull<RcuHead>, call: unsafe fn(NonNull<RcuHead>)) {
        self.aside();
        // SAFETY: the caller's promise.
        unsafe { (&self.inner).defer(head, call) }
    }

    fn poll(&self) -> usize {
        self.aside();
        (&self.inner).poll()
    }

    fn synchronize(&self) {
        self.aside();
        (&self.inner).synchronize();
    }
}

impl<const SHIFT: u32, const ORDER: u32> flagstone_host::Machine for &Machine<SHIFT, ORDER> {
    type Lock<C: LockClass> = RawLock<C>;
}

impl<'m, const SHIFT: u32, const ORDER: u32> Host for &'m Machine<SHIFT, ORDER> {
    type Array = Array<'m>;
    type Stopped = Stopped<'m>;

    fn new_array(&self, params: ArrayParams) -> Result<Array<'m>, AllocError> {
        let inner: &'m _ = &self.inner;
        inner.new_array(params)
    }

    fn stop_arrays(&self) -> Option<Stopped<'m>> {
        let inner: &'m _ = &self.inner;
        inner.stop_arrays()
    }

    fn drain(
        &self,
        stopped: &Stopped<'m>,
        array: &Array<'m>,
        cpu: CpuId,
        take: &mut dyn FnMut(&[NonNull<u8>]),
    ) {
        let inner: &'m _ = &self.inner;
        inner.drain(stopped, array, cpu, take);
    }

    fn drain_unshared(
        &self,
        array: &mut Array<'m>,
        cpu: CpuId,
        take: &mut dyn FnMut(&[NonNull<u8>]),
    ) {
        let inner: &'m _ = &self.inner;
        inner.drain_unshared(array, cpu, take);
    }
}
