//! The process host: Flagstone's machine is an ordinary Linux process.
//!
//! ```text
//!   fast                                                       what malloc and free run
//!   restartable · exchange · transaction · plain               forms of per-CPU arrays
//!   arrays · room                                              mode, stop and restart; where arrays are
//!   reservation · touched · shrink · boot                      address space for frames, tables, own structures
//!   grace · lock · counters · clock · cpu_number · entropy · log
//!                                                              small services
//!   topology · settings · startup · rseq_symbols · elf         what the process finds when it starts
//!   unwind                                                     call stacks
//!   syscall                                                    the kernel
//! ```
//!
//! [`Process`] is a zero-sized key to statics. It allocates nothing, has no thread-local storage, takes no lock of
//! the C library and leaves `errno` alone, so it can be the ground of a preloaded `malloc` from the loader's first
//! call on. `MODEL.md` of this crate has the invariants (P1 …), that of `flagstone-host` the contract (M1 …).

mod arrays;
mod boot;
mod clock;
mod counters;
mod cpu_number;
mod elf;
mod entropy;
mod exchange;
pub mod fast;
mod grace;
mod lock;
mod log;
mod plain;
mod reservation;
mod restartable;
mod room;
mod rseq_symbols;
pub mod settings;
mod shrink;
mod startup;
pub(crate) mod syscall;
mod topology;
mod touched;
mod transaction;
pub mod unwind;

use core::alloc::Layout;
use core::cell::UnsafeCell;
use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};

use flagstone_host::{
    ArrayParams, Backing, Backtrace, Clock, Count, CpuCache, Cpus, Entropy, Event, Grace, Host,
    Level, LockClass, Log, Machine, MemRange, PageMap, PhysMem, RcuHead,
};
use flagstone_types::{AllocError, CpuId, Nanos, Nid, Pfn, PfnRange};

pub use arrays::Mode;
pub use exchange::{ExchangeArray, ExchangeLock};
pub use grace::ReadGuard;
pub use lock::Lock;
pub use plain::{Plain, PlainArray};
pub use restartable::{Restartable, RestartableArray};
pub use transaction::{
    TransactionArray, TransactionArrayCache, TransactionList, TransactionListCache,
};

use rseq_symbols::Registered;
use settings::Settings;
use startup::Startup;

/// A form of per-CPU arrays.
pub trait ArrayForm: Copy + fmt::Debug + Send + Sync + 'static {
    /// Its arrays.
    type Array: CpuCache;

    /// Makes an array.
    ///
    /// # Errors
    /// [`AllocError::TooLarge`] for more slots than the form can have, [`AllocError::OutOfMemory`] if there is no room for it.
    fn make(params: ArrayParams) -> Result<Self::Array, AllocError>;

    /// Hands out everything on `cpu`'s stack, bottom first. Arrays are stopped, or nobody else can reach this one.
    fn drain(array: &Self::Array, cpu: CpuId, take: &mut dyn FnMut(&[NonNull<u8>]));
}

/// This process as a host whose arrays have form `F`. All values are the same process.
pub struct ProcessWith<F>(PhantomData<fn() -> F>);

/// This process, with the arrays of production.
pub type Process = ProcessWith<Restartable>;

impl<F> Clone for ProcessWith<F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for ProcessWith<F> {}

impl<F> fmt::Debug for ProcessWith<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Process")
    }
}

const UNSTARTED: u32 = 0;
const STARTING: u32 = 1;
const READY: u32 = 2;

/// How far [`ProcessWith::start`] has come (P1).
static STARTED: AtomicU32 = AtomicU32::new(UNSTARTED);

struct SettingsCell(UnsafeCell<Settings>);

// SAFETY: P1, written by the one that starts, before READY; read only after.
unsafe impl Sync for SettingsCell {}

static SETTINGS: SettingsCell = SettingsCell(UnsafeCell::new(Settings::DEFAULT));

impl<F> ProcessWith<F> {
    /// The process, if it has been started.
    #[inline]
    #[must_use]
    pub fn get() -> Option<Self> {
        (STARTED.load(Ordering::Acquire) == READY).then_some(Self(PhantomData))
    }

    /// The process; the first call finds out what the machine is and reserves address space. Others wait for it.
    /// It can not fail: a process that gets no address space is one without memory, and says so when asked for some.
    pub fn start() -> Self {
        if STARTED.load(Ordering::Acquire) != READY {
            start_once();
        }
        Self(PhantomData)
    }

    /// The settings that the process started with; the defaults before.
    #[must_use]
    pub fn settings(self) -> &'static Settings {
        if STARTED.load(Ordering::Acquire) != READY {
            return const { &Settings::DEFAULT };
        }
        // SAFETY: P1, nobody writes after READY.
        unsafe { &*SETTINGS.0.get() }
    }

    /// How arrays of the form in production are made indivisible.
    #[must_use]
    pub fn mode(self) -> Mode {
        arrays::mode()
    }

    /// Whether arrays can be stopped from outside; `false` if the kernel refused `membarrier` at start.
    #[must_use]
    pub fn can_stop_arrays(self) -> bool {
        arrays::can_stop()
    }

    /// Commits `pages` more frames in one run on node `nid`, to be added to the page allocator. They are zero.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`] if the system refuses, [`AllocError::InvalidArgument`] for no pages or a node that
    /// does not exist.
    pub fn grow(self, nid: Nid, pages: usize) -> Result<MemRange, AllocError> {
        reservation::grow(nid, pages)
    }

    /// Gives back unused reserved address space, so that an address-space limit of `limit` bytes leaves the program room.
    pub fn shrink_reservation(self, limit: usize) {
        shrink::shrink(limit);
    }

    /// The tag of the frame that `address` is in, in any range; 0 if it has none.
    #[must_use]
    pub fn tag_at(self, address: usize) -> u16 {
        reservation::tag_at(address)
    }

    /// Makes every array refuse, for a thread that is about to call `vfork` (P24).
    pub fn stop_for_vfork(self) {
        arrays::stop_for_vfork();
    }

    /// Ends one [`ProcessWith::stop_for_vfork`], in the parent.
    pub fn restart_after_vfork(self) {
        arrays::restart_after_vfork();
    }

    /// Takes every lock of the host, so that a fork finds them at rest; after all locks of the core.
    pub fn prepare_fork(self) {
        core::mem::forget(arrays::STOP.lock());
        core::mem::forget(room::ARRAYS.lock());
        core::mem::forget(reservation::MEMORY.lock());
        core::mem::forget(boot::BOOT.lock());
        core::mem::forget(grace::GRACE.lock());
    }

    /// Releases what [`ProcessWith::prepare_fork`] took, in the parent.
    ///
    /// # Safety
    /// This thread called `prepare_fork` before, once for each call of this.
    pub unsafe fn after_fork_in_parent(self) {
        // SAFETY: P22, this thread holds all of them.
        unsafe {
            grace::GRACE.force_unlock();
            boot::BOOT.force_unlock();
            reservation::MEMORY.force_unlock();
            room::ARRAYS.force_unlock();
            arrays::STOP.force_unlock();
        }
    }

    /// Makes what must differ between processes anew in the child of a fork.
    pub fn renew_in_child(self) {
        entropy::after_fork();
    }

    /// Puts the host in order in the child of a fork and releases the locks.
    ///
    /// # Safety
    /// The parent called `prepare_fork` before the fork, and this is the child's only thread.
    pub unsafe fn after_fork_in_child(self) {
        // SAFETY: P22, the lock is held by this thread, so nobody else looks at the data.
        arrays::after_fork(unsafe { &mut *arrays::STOP.data_ptr() });
        // SAFETY: P22, likewise.
        grace::after_fork(unsafe { &mut *grace::GRACE.data_ptr() });
        // SAFETY: P22, as in the parent.
        unsafe { self.after_fork_in_parent() };
    }
}

#[cold]
#[inline(never)]
fn start_once() {
    if STARTED
        .compare_exchange(UNSTARTED, STARTING, Ordering::Acquire, Ordering::Acquire)
        .is_err()
    {
        let mut round = 0;
        while STARTED.load(Ordering::Acquire) != READY {
            syscall::wait_a_little(round);
            round = round.saturating_add(1);
        }
        return;
    }
    let startup = Startup::find();
    let settings = Settings::parse(startup.environment(), &mut |message| {
        log::write_line(2, message)
    });
    // SAFETY: P1, only this thread is starting.
    unsafe { *SETTINGS.0.get() = settings };
    clock::start(startup.vdso);
    cpu_number::start(startup.vdso);
    entropy::start(startup.random);
    topology::start(settings.fake_nodes);
    lock::MAY_SPIN.store(topology::allowed_cpus() > 1, Ordering::Relaxed);
    reservation::start();
    arrays::start(
        settings.array,
        Registered::find(startup.loader, startup.rseq_features),
    );
    if settings.verbose {
        log::write_line(
            2,
            format_args!(
                "arrays by {}, {} CPUs, {} node(s)",
                arrays::mode().name(),
                topology::possible_cpus(),
                topology::nodes()
            ),
        );
    }
    STARTED.store(READY, Ordering::Release);
}

// SAFETY: M2: P5, P6; records are 64-byte aligned since tables begin on a page and records come first. M3: P10. M8: P5.
unsafe impl<F: ArrayForm> PageMap for ProcessWith<F> {
    const PAGE_SHIFT: u32 = reservation::FRAME_SHIFT;
    const MAX_ORDER: u32 = reservation::MAX_ORDER;

    #[inline]
    fn meta(&self, pfn: Pfn) -> Option<NonNull<u8>> {
        reservation::record(pfn).and_then(NonNull::new)
    }

    #[inline]
    fn nid(&self, pfn: Pfn) -> Nid {
        reservation::node_of_frame(pfn).unwrap_or_default()
    }

    fn boot_ranges(&self, each: &mut dyn FnMut(MemRange)) {
        reservation::first_frames(each);
    }

    fn boot_alloc(&self, layout: Layout) -> Result<NonNull<u8>, AllocError> {
        boot::alloc(layout)
    }
}

// SAFETY: M1: a frame's number is its address divided by the frame size; P5 for the gap between ranges. M4: `pfn_of` asks for
// the record.
unsafe impl<F: ArrayForm> PhysMem for ProcessWith<F> {
    #[inline]
    fn frame_ptr(&self, pfn: Pfn) -> NonNull<u8> {
        let address = core::ptr::with_exposed_provenance_mut(pfn.0 << reservation::FRAME_SHIFT);
        NonNull::new(address).unwrap_or(NonNull::dangling())
    }

    #[inline]
    fn pfn_of(&self, address: usize) -> Option<Pfn> {
        let pfn = Pfn(address >> reservation::FRAME_SHIFT);
        reservation::record(pfn).map(|_| pfn)
    }

    fn tag(&self, frames: PfnRange, tag: u16) {
        reservation::set_tags(frames, tag);
        if tag != 0 {
            crate::harden::close(frames);
        }
    }

    fn reopen(&self, frames: PfnRange) -> bool {
        crate::harden::reopen(frames)
    }

    fn returned(&self, object: NonNull<u8>, bytes: usize) {
        crate::harden::returned(object, bytes);
    }
}

impl<F: ArrayForm> Backing for ProcessWith<F> {
    const CAN_RELEASE: bool = true;

    fn commit(&self, frames: PfnRange) -> Result<(), AllocError> {
        if reservation::is_committed(frames) {
            Ok(())
        } else {
            Err(AllocError::OutOfMemory)
        }
    }

    fn release(&self, frames: PfnRange) -> bool {
        touched::release(frames)
    }

    fn take(&self, frames: PfnRange) -> bool {
        touched::take(frames)
    }

    fn populate(&self, frames: PfnRange) {
        touched::populate(frames);
    }

    fn touched(&self, frames: PfnRange) -> usize {
        touched::touched(frames)
    }
}

impl<F: ArrayForm> Cpus for ProcessWith<F> {
    type IrqGuard<'a>
        = ()
    where
        Self: 'a;

    fn possible_cpus(&self) -> u32 {
        topology::possible_cpus()
    }

    fn is_online(&self, cpu: CpuId) -> bool {
        cpu.0 < topology::possible_cpus()
    }

    #[inline]
    fn current_cpu(&self) -> CpuId {
        arrays::current_cpu()
    }

    fn nodes(&self) -> u32 {
        topology::nodes()
    }

    fn node_of(&self, cpu: CpuId) -> Nid {
        topology::node_of(cpu)
    }

    fn current_node(&self) -> Nid {
        arrays::current_node()
    }

    fn distance(&self, from: Nid, to: Nid) -> u32 {
        topology::distance(from, to)
    }

    #[inline]
    fn irq_guard(&self) {}

    fn relax(&self, spins: u32) {
        if spins < 64 {
            core::hint::spin_loop()
        } else {
            syscall::yield_now()
        }
    }
}

impl<F: ArrayForm> Clock for ProcessWith<F> {
    fn now(&self) -> Nanos {
        clock::now()
    }
}

impl<F: ArrayForm> Entropy for ProcessWith<F> {
    fn random(&self) -> u64 {
        entropy::random()
    }
}

impl<F: ArrayForm> Log for ProcessWith<F> {
    fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        match level {
            Level::Error => log::write_line(2, format_args!("error: {message}")),
            Level::Warning => log::write_line(2, format_args!("warning: {message}")),
            Level::Info => log::write_line(2, message),
        }
    }
}

impl<F: ArrayForm> Backtrace for ProcessWith<F> {
    // The first address is that of the program's call, where the library is one of its own; else, by inlining, that of the call of this.
    #[inline(always)]
    fn backtrace(&self, into: &mut [usize]) -> usize {
        let depth = unwind::backtrace(into);
        crate::debug::program_frames(into, depth)
    }
}

impl<F: ArrayForm> Count for ProcessWith<F> {
    fn count(&self, event: Event, n: u64) {
        counters::count(arrays::current_cpu(), event, n);
    }

    fn counted(&self, event: Event) -> u64 {
        counters::counted(event)
    }
}

impl<F: ArrayForm> Grace for ProcessWith<F> {
    type ReadGuard<'a>
        = ReadGuard<'a>
    where
        Self: 'a;

    fn read(&self) -> ReadGuard<'_> {
        grace::read(arrays::current_cpu())
    }

    unsafe fn defer(&self, head: NonNull<RcuHead>, call: unsafe fn(NonNull<RcuHead>)) {
        // SAFETY: the caller's.
        unsafe { grace::defer(head, call) };
    }

    fn poll(&self) -> usize {
        grace::poll()
    }

    fn synchronize(&self) {
        grace::synchronize();
    }
}

/// Proof that arrays are stopped; they go on when it is dropped.
#[derive(Debug)]
pub struct Stopped(());

impl Drop for Stopped {
    fn drop(&mut self) {
        arrays::restart();
    }
}

impl<F: ArrayForm> Machine for ProcessWith<F> {
    type Lock<C: LockClass> = Lock<C>;
}

impl<F: ArrayForm> Host for ProcessWith<F> {
    type Array = F::Array;
    type Stopped = Stopped;

    fn new_array(&self, params: ArrayParams) -> Result<F::Array, AllocError> {
        F::make(params)
    }

    fn stop_arrays(&self) -> Option<Stopped> {
        arrays::stop().then_some(Stopped(()))
    }

    fn drain(
        &self,
        _stopped: &Stopped,
        array: &F::Array,
        cpu: CpuId,
        take: &mut dyn FnMut(&[NonNull<u8>]),
    ) {
        F::drain(array, cpu, take);
    }

    fn drain_unshared(
        &self,
        array: &mut F::Array,
        cpu: CpuId,
        take: &mut dyn FnMut(&[NonNull<u8>]),
    ) {
        F::drain(array, cpu, take);
    }
}

#[cfg(test)]
mod hammer;
#[cfg(test)]
mod tests;
