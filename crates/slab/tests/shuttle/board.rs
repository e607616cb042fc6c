//! A host whose every step is a choice of the model checker: locks and arrays are made of its atomics.
//!
//! Its arrays are those of the fallback: a stack per CPU under an exchange lock. A section reads whether arrays are stopped
//! and then the count, or, to see whether that is found, the other way round. The CPU is drawn anew at each call, as if the
//! thread had just been moved. Orderings are not modelled: all atomics are sequentially consistent here.

use core::alloc::Layout;
use core::fmt;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use flagstone_frames::Frames;
use flagstone_host::{
    ArrayParams, Backing, Backtrace, Clock, Count, CpuCache, Cpus, Entropy, Event, Grace, Host,
    Level, LockClass, Log, MemRange, PageMap, PhysMem, Push, RcuHead,
};
use flagstone_slab::{ArrayTuning, BadFree, Caches, KmallocClass, LayoutPolicy, Policy};
use flagstone_types::{AllocError, CpuId, Nanos, Nid, Pfn, PfnRange, Zone};
use shuttle::rand::Rng as _;
use shuttle::sync::atomic::{AtomicBool, AtomicU32};
use shuttle::thread::yield_now;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize};
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

#[derive(Debug)]
struct Stack {
    locked: AtomicBool,
    count: AtomicU32,
    limit: AtomicU32,
    slots: Vec<AtomicPtr<u8>>,
}

#[derive(Debug)]
struct Stacks {
    stacks: Vec<Stack>,
    tag: u16,
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
    layout: LayoutPolicy {
        min_order: 0,
        max_order: 1,
        min_objects: 1,
        cache_line: 64,
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

/// The arrays of one cache.
#[derive(Debug)]
pub(crate) struct Array {
    board: &'static Board,
    stacks: Arc<Stacks>,
}

impl Drop for Array {
    fn drop(&mut self) {
        // What unwinds after a failure is outside of the model, where its atomics can not be used.
        let stacks = if std::thread::panicking() {
            &[][..]
        } else {
            &self.stacks.stacks
        };
        for stack in stacks {
            assert_eq!(stack.count.load(SeqCst), 0, "an array is dropped in use");
        }
        let mut arrays = self.board.arrays.lock().expect("not poisoned");
        arrays.retain(|stacks| stacks.tag != self.stacks.tag);
    }
}

/// Proof that arrays are stopped.
#[derive(Debug)]
pub(crate) struct Stopped(&'static Board);

impl Drop for Stopped {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.0.stopped.fetch_sub(1, SeqCst);
        }
    }
}

const ROUNDS: u32 = 4;

impl Array {
    /// Claims the stack of `cpu` by one exchange and hands out what was in it (A9).
    fn empty(&self, cpu: CpuId, take: &mut dyn FnMut(&[NonNull<u8>])) {
        let stack = &self.stacks.stacks[cpu.index()];
        let claimed = stack.count.swap(0, SeqCst) as usize;
        let objects: Vec<_> = stack.slots[..claimed].iter().map(object).collect();
        for piece in objects.chunks(2) {
            take(piece);
        }
    }

    /// Runs `body` on the current CPU's stack with its count, under its lock; `refused` if arrays are stopped or the lock is not to be had.
    fn section<R>(&self, refused: R, body: impl FnOnce(&Stack, u32) -> R) -> R {
        let stack = &self.stacks.stacks[self.board.current_cpu().index()];
        for _ in 0..ROUNDS {
            if stack.locked.swap(true, SeqCst) {
                yield_now();
                continue;
            }
            let stopped = || self.board.stopped.load(SeqCst) != 0;
            let (stopped, count) = if self.board.kind.count_first {
                let count = stack.count.load(SeqCst);
                (stopped(), count)
            } else {
                let stopped = stopped();
                (stopped, stack.count.load(SeqCst))
            };
            let result = if stopped { refused } else { body(stack, count) };
            stack.locked.store(false, SeqCst);
            return result;
        }
        refused
    }
}

fn object(slot: &AtomicPtr<u8>) -> NonNull<u8> {
    NonNull::new(slot.load(Relaxed)).expect("live slots are written")
}

// SAFETY: A1 to A11: one section at a time on a stack; who stops waits until each lock was free after its mark, and a section
// that takes the lock later sees the mark before it reads the count.
unsafe impl CpuCache for Array {
    fn pop(&self) -> Option<NonNull<u8>> {
        self.section(None, |stack, count| {
            let top = count.checked_sub(1)?;
            let object = object(&stack.slots[top as usize]);
            stack.count.store(top, SeqCst);
            Some(object)
        })
    }

    unsafe fn push(&self, object_in: NonNull<u8>) -> Push {
        self.section(Push::Full, |stack, count| {
            if count > 0 && object(&stack.slots[count as usize - 1]) == object_in {
                return Push::OnTop;
            }
            if count >= stack.limit.load(SeqCst) {
                return Push::Full;
            }
            stack.slots[count as usize].store(object_in.as_ptr(), Relaxed);
            stack.count.store(count + 1, SeqCst);
            Push::Done
        })
    }

    fn pop_n(&self, into: &mut [MaybeUninit<NonNull<u8>>]) -> usize {
        self.section(0, |stack, count| {
            let n = into.len().min(count as usize);
            let from = count as usize - n;
            for (place, slot) in into[..n].iter_mut().zip(&stack.slots[from..]) {
                place.write(object(slot));
            }
            stack.count.store(from as u32, SeqCst);
            n
        })
    }

    unsafe fn push_n(&self, objects: &[NonNull<u8>]) -> usize {
        self.section(0, |stack, count| {
            let room = stack.limit.load(SeqCst).saturating_sub(count) as usize;
            let n = room.min(objects.len());
            for (i, object) in objects[objects.len() - n..].iter().enumerate() {
                stack.slots[count as usize + i].store(object.as_ptr(), Relaxed);
            }
            stack.count.store(count + n as u32, SeqCst);
            n
        })
    }

    fn set_limit(&self, cpu: CpuId, limit: u32) {
        let stack = &self.stacks.stacks[cpu.index()];
        stack
            .limit
            .store(limit.min(stack.slots.len() as u32), SeqCst);
    }

    fn limit(&self, cpu: CpuId) -> u32 {
        self.stacks.stacks[cpu.index()].limit.load(SeqCst)
    }

    fn len(&self, cpu: CpuId) -> u32 {
        self.stacks.stacks[cpu.index()].count.load(SeqCst)
    }

    fn tag(&self) -> u16 {
        self.stacks.tag
    }
}

impl Host for &'static Board {
    type Array = Array;
    type Stopped = Stopped;

    fn new_array(&self, params: ArrayParams) -> Result<Array, AllocError> {
        let stack = |_| Stack {
            locked: AtomicBool::new(false),
            count: AtomicU32::new(0),
            limit: AtomicU32::new(0),
            slots: (0..params.capacity).map(|_| AtomicPtr::default()).collect(),
        };
        let stacks = (0..self.kind.cpus).map(stack).collect();
        let mut arrays = self.arrays.lock().expect("not poisoned");
        let tag = (1..).find(|tag| arrays.iter().all(|s| s.tag != *tag));
        let stacks = Arc::new(Stacks {
            stacks,
            tag: tag.ok_or(AllocError::Exists)?,
        });
        arrays.push(Arc::clone(&stacks));
        Ok(Array {
            board: self,
            stacks,
        })
    }

    fn stop_arrays(&self) -> Option<Stopped> {
        self.stopped.fetch_add(1, SeqCst);
        let proof = Stopped(self);
        let arrays = self.arrays.lock().expect("not poisoned").clone();
        for stack in arrays.iter().flat_map(|stacks| &stacks.stacks) {
            while stack.locked.load(SeqCst) {
                yield_now();
            }
        }
        Some(proof)
    }

    fn drain(&self, _: &Stopped, array: &Array, cpu: CpuId, take: &mut dyn FnMut(&[NonNull<u8>])) {
        array.empty(cpu, take);
    }

    fn drain_unshared(&self, array: &mut Array, cpu: CpuId, take: &mut dyn FnMut(&[NonNull<u8>])) {
        array.empty(cpu, take);
    }
}
