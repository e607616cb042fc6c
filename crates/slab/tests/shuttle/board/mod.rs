//! A host whose every step is a choice of the model checker: locks and arrays are made of its atomics.
//!
//! Its arrays are those of the fallback: a stack per CPU under an exchange lock. A section reads whether arrays are stopped
//! and then the count, or, to see whether that is found, the other way round. The CPU is drawn anew at each call, as if the
//! thread had just been moved. Orderings are not modelled: all atomics are sequentially consistent here.

mod arrays;

use arrays::Stacks;
use core::alloc::Layout;
use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;
use flagstone_frames::Frames;
use flagstone_host::{
    Backing, Backtrace, Clock, Count, Cpus, Entropy, Event, Grace, Level, LockClass, Log, MemRange,
    PageMap, PhysMem, RcuHead,
};
use flagstone_slab::{ArrayTuning, BadFree, Caches, KmallocClass, LayoutPolicy, Policy};
use flagstone_types::{AllocError, CpuId, Nanos, Nid, Pfn, PfnRange, Zone};
use shuttle::rand::Rng as _;
use shuttle::sync::atomic::{AtomicBool, AtomicU32};
use shuttle::thread::yield_now;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};

const SHIFT: u32 = 12;
const BLOCK: usize = 16;
const PAGES_PER_NODE: usize = 4 * BLOCK;
/// One largest block without memory between nodes.
const NODE_STRIDE: usize = PAGES_PER_NODE + BLOCK;
const BOOT_BYTES: usize = 256 << 10;

/// What a board is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) cpus: u32,
    pub(crate) nodes: u32,
    /// Whether sections read the count before they read whether arrays are stopped.
    pub(crate) count_first: bool,
}

type Deferred = (usize, unsafe fn(NonNull<RcuHead>));

/// The machine.
#[derive(Debug)]
pub(crate) struct Board {
    kind: Kind,
    memory: NonNull<u8>,
    meta: NonNull<u8>,
    boot: NonNull<u8>,
    boot_used: AtomicUsize,
    arrays: Mutex<Vec<Arc<Stacks>>>,
    stopped: AtomicU32,
    readers: AtomicU32,
    deferred: Mutex<Vec<Deferred>>,
    counts: [AtomicU64; Event::COUNT],
    ticks: AtomicU64,
}

// SAFETY: the pointers are to memory of the board's own; who uses it keeps to the host's model.
unsafe impl Send for Board {}
// SAFETY: as above.
unsafe impl Sync for Board {}

fn area(bytes: usize) -> (NonNull<u8>, Layout) {
    let layout = Layout::from_size_align(bytes, 4096).expect("a layout");
    // SAFETY: M3: the size is not zero.
    let start = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) });
    (start.expect("memory"), layout)
}

impl Board {
    fn frames_total(&self) -> usize {
        self.kind.nodes as usize * NODE_STRIDE
    }

    fn new(kind: Kind) -> Self {
        let total = kind.nodes as usize * NODE_STRIDE;
        Self {
            kind,
            memory: area(total << SHIFT).0,
            meta: area(total * 64).0,
            boot: area(BOOT_BYTES).0,
            boot_used: AtomicUsize::new(0),
            arrays: Mutex::default(),
            stopped: AtomicU32::new(0),
            readers: AtomicU32::new(0),
            deferred: Mutex::default(),
            counts: [const { AtomicU64::new(0) }; Event::COUNT],
            ticks: AtomicU64::new(1),
        }
    }

    /// The offset of a frame from the start of memory, in frames; frame numbers begin at one block.
    fn index(&self, pfn: Pfn) -> Option<usize> {
        let index = pfn.0.checked_sub(BLOCK)?;
        (index < self.frames_total() && index % NODE_STRIDE < PAGES_PER_NODE).then_some(index)
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        let total = self.frames_total();
        for (start, bytes) in [
            (self.memory, total << SHIFT),
            (self.meta, total * 64),
            (self.boot, BOOT_BYTES),
        ] {
            let layout = Layout::from_size_align(bytes, 4096).expect("a layout");
            // SAFETY: M3: allocated in `new` with this layout, freed once.
            unsafe { std::alloc::dealloc(start.as_ptr(), layout) };
        }
    }
}

/// Runs `f` on a board without caches, and takes it down again.
pub(crate) fn on_bare_board(kind: Kind, f: impl FnOnce(&'static Board)) {
    let board = Box::into_raw(Box::new(Board::new(kind)));
    // SAFETY: M3: the board lives until the end of this function, after everything that refers to it.
    f(unsafe { &*board });
    // SAFETY: M3: as above; every thread of the model has ended.
    drop(unsafe { Box::from_raw(board) });
}

/// Runs `f` on a board with caches, and takes everything down again.
pub(crate) fn on_board(kind: Kind, f: impl FnOnce(&'static Caches<&'static Board>)) {
    on_bare_board(kind, |host| {
        let frames = Frames::new(host).expect("memory for the page allocator");
        frames.set_min_free(Some(0));
        f(Caches::boot(frames, POLICY, CLASSES).expect("memory for the caches"));
    });
}

const CLASSES: &[KmallocClass] = &[KmallocClass {
    name: "kmalloc-64",
    size: 64,
    align: 64,
}];

const POLICY: Policy = Policy {
    debug: flagstone_slab::DebugPolicy::NONE,
    layout: LayoutPolicy {
        min_order: 0,
        max_order: 1,
        min_objects: 1,
        cache_line: 64,
        in_record: false,
        in_object: true,
        zeroed: false,
        tail: 0,
    },
    arrays: |_| ArrayTuning {
        capacity: 4,
        limit: 2,
        batch: 1,
        shared_capacity: 3,
        shared_limit: 2,
    },
    alien_limit: 2,
    adaptive: false,
    bad_free,
};

fn bad_free(bad: &BadFree<'_>) {
    panic!("a good free was refused: {bad:?}");
}

// SAFETY: M2, M3, M8: metadata and boot memory are zeroed, exclusive and constant; nodes are whole blocks.
unsafe impl PageMap for &'static Board {
    const PAGE_SHIFT: u32 = SHIFT;
    const MAX_ORDER: u32 = BLOCK.ilog2();

    fn meta(&self, pfn: Pfn) -> Option<NonNull<u8>> {
        let index = self.index(pfn)?;
        // SAFETY: M2: there is a record for every frame.
        Some(unsafe { self.meta.add(index * 64) })
    }

    fn nid(&self, pfn: Pfn) -> Nid {
        Nid(((pfn.0 - BLOCK) / NODE_STRIDE) as u16)
    }

    fn boot_ranges(&self, each: &mut dyn FnMut(MemRange)) {
        for nid in 0..self.kind.nodes as usize {
            each(MemRange {
                frames: PfnRange::new(Pfn(BLOCK + nid * NODE_STRIDE), PAGES_PER_NODE),
                nid: Nid(nid as u16),
                zone: Zone::Normal,
            });
        }
    }

    fn boot_alloc(&self, layout: Layout) -> Result<NonNull<u8>, AllocError> {
        let start = self
            .boot_used
            .load(Relaxed)
            .next_multiple_of(layout.align());
        let end = start + layout.size();
        if end > BOOT_BYTES {
            return Err(AllocError::OutOfMemory);
        }
        self.boot_used.store(end, Relaxed);
        // SAFETY: M3: within the boot memory.
        Ok(unsafe { self.boot.add(start) })
    }
}

// SAFETY: M1, M4: one linear piece of memory.
unsafe impl PhysMem for &'static Board {
    fn frame_ptr(&self, pfn: Pfn) -> NonNull<u8> {
        // SAFETY: M1: meaningful for frames that exist only, which are within.
        unsafe { self.memory.add((pfn.0 - BLOCK) << SHIFT) }
    }

    fn pfn_of(&self, address: usize) -> Option<Pfn> {
        let offset = address.checked_sub(self.memory.as_ptr().addr())?;
        let pfn = Pfn((offset >> SHIFT) + BLOCK);
        self.index(pfn).map(|_| pfn)
    }
}

impl Backing for &'static Board {}

impl Cpus for &'static Board {
    type IrqGuard<'a> = ();

    fn possible_cpus(&self) -> u32 {
        self.kind.cpus
    }

    fn is_online(&self, _: CpuId) -> bool {
        true
    }

    fn current_cpu(&self) -> CpuId {
        CpuId(shuttle::rand::thread_rng().gen_range(0..self.kind.cpus))
    }

    fn nodes(&self) -> u32 {
        self.kind.nodes
    }

    fn node_of(&self, cpu: CpuId) -> Nid {
        Nid((cpu.0 % self.kind.nodes) as u16)
    }

    fn distance(&self, from: Nid, to: Nid) -> u32 {
        if from == to { 10 } else { 20 }
    }

    fn irq_guard(&self) {}

    fn relax(&self, _: u32) {
        yield_now();
    }
}

impl Clock for &'static Board {
    fn now(&self) -> Nanos {
        Nanos(self.ticks.fetch_add(1, Relaxed))
    }
}

impl Entropy for &'static Board {
    fn random(&self) -> u64 {
        shuttle::rand::thread_rng().r#gen()
    }
}

impl Log for &'static Board {
    fn log(&self, _: Level, _: fmt::Arguments<'_>) {}
}

impl Backtrace for &'static Board {}

impl Count for &'static Board {
    fn count(&self, event: Event, n: u64) {
        self.counts[event.index()].fetch_add(n, Relaxed);
    }

    fn counted(&self, event: Event) -> u64 {
        self.counts[event.index()].load(Relaxed)
    }
}

#[derive(Debug)]
pub(crate) struct ReadGuard(&'static Board);

impl Drop for ReadGuard {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.0.readers.fetch_sub(1, SeqCst);
        }
    }
}

impl Board {
    /// Runs the deferred calls if nobody reads. They were deferred before nobody did.
    fn run_deferred(&self) -> Option<usize> {
        let mut calls = std::mem::take(&mut *self.deferred.lock().expect("not poisoned"));
        if self.readers.load(SeqCst) != 0 {
            let mut deferred = self.deferred.lock().expect("not poisoned");
            calls.append(&mut deferred);
            *deferred = calls;
            return None;
        }
        let ran = calls.len();
        for (head, call) in calls {
            yield_now();
            let head = NonNull::new(head as *mut RcuHead).expect("heads are not null");
            // SAFETY: G1: once, after every section that existed at `defer`.
            unsafe { call(head) };
        }
        Some(ran)
    }
}

impl Grace for &'static Board {
    type ReadGuard<'a> = ReadGuard;

    fn read(&self) -> ReadGuard {
        self.readers.fetch_add(1, SeqCst);
        ReadGuard(self)
    }

    unsafe fn defer(&self, head: NonNull<RcuHead>, call: unsafe fn(NonNull<RcuHead>)) {
        let head = head.as_ptr().expose_provenance();
        let mut deferred = self.deferred.lock().expect("not poisoned");
        deferred.push((head, call));
    }

    fn poll(&self) -> usize {
        self.run_deferred().unwrap_or(0)
    }

    fn synchronize(&self) {
        while self.run_deferred().is_none() {
            yield_now();
        }
    }
}

/// A lock that is taken by an exchange.
#[derive(Debug)]
pub(crate) struct RawLock<C>(AtomicBool, PhantomData<fn() -> C>);

// SAFETY: L1: the exchange lets one holder in.
unsafe impl<C: LockClass> lock_api::RawMutex for RawLock<C> {
    #[allow(clippy::declare_interior_mutable_const)] // what the trait asks for
    const INIT: Self = Self(AtomicBool::new(false), PhantomData);
    type GuardMarker = lock_api::GuardNoSend;

    fn lock(&self) {
        while self.0.swap(true, SeqCst) {
            yield_now();
        }
    }

    fn try_lock(&self) -> bool {
        !self.0.swap(true, SeqCst)
    }

    unsafe fn unlock(&self) {
        if !std::thread::panicking() {
            self.0.store(false, SeqCst);
        }
    }
}

impl flagstone_host::Machine for &'static Board {
    type Lock<C: LockClass> = RawLock<C>;
}
