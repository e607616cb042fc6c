//! What the image does once the machine runs: the allocators under load on every CPU at once, while timer interrupts allocate
//! too. A trial that finds something wrong panics, which ends the run.
//!
//! The order: the heap comes up; every class is used once, so that what stays for ever is there; the free frames are counted; the
//! trials run; everything is given back, and the same number of frames must be free.

mod bad_access;
mod bulk;
mod churn;
mod collections;
#[cfg(feature = "conformance")]
mod conformance;
mod costs;
mod exhaustion;
mod grace;
mod handoff;
mod kernel_map;
mod lifecycle;
mod places;
mod registers;
mod sections;
mod spaces;
mod stepping;
mod ticks;
mod unit;

use core::sync::atomic::{AtomicPtr, Ordering};

use crate::kernel::Kernel;
use crate::per_cpu::Area;
use crate::{apic, clock, command_line, crew, heap, serial, services, space};
use flagstone_host::{Clock, Count, Cpus, Entropy, Event};
use flagstone_slab::{Cache, CacheHandle, CacheParams, Caches, SlabInfo};
use flagstone_types::Nid;

/// How often the timer interrupts each CPU, in microseconds.
const TIMER_PERIOD: u32 = 100;

macro_rules! say {
    ($($what:tt)*) => { crate::serial::line(format_args!($($what)*)) };
}
use say;

/// What the trials are called, in the order in which they run.
static TRIALS: [(&str, fn()); 16] = [
    ("registers", registers::run),
    ("places", places::run),
    ("unit", unit::run),
    ("spaces", spaces::run),
    ("kernel_map", kernel_map::run),
    ("costs", costs::run),
    ("bad_access", bad_access::run),
    ("stepping", stepping::run),
    ("sections", sections::run),
    ("churn", churn::run),
    ("handoff", handoff::run),
    ("bulk", bulk::run),
    ("lifecycle", lifecycle::run),
    ("collections", collections::run),
    ("grace", grace::run),
    ("exhaustion", exhaustion::run),
];

/// The suite, where it was built in.
#[cfg(feature = "conformance")]
const SUITE: &[(&str, fn())] = &[("conformance", conformance::run)];
#[cfg(not(feature = "conformance"))]
const SUITE: &[(&str, fn())] = &[];

/// Those that run only if the command line names them.
const ASKED_FOR: [&str; 2] = ["costs", "bad_access"];

/// Runs those that the command line chooses.
pub(crate) fn run() {
    say!("flagstone: {} of {} CPUs", crew::size(), Area::count());
    say!("tables of {} levels", crate::unit::levels());
    let caches = match heap::boot() {
        Ok(caches) => caches,
        Err(error) => panic!("the heap did not come up: {error}"),
    };
    let frames = caches.frames();
    if let Err(error) = space::make(frames) {
        panic!("the kernel has no page table: {error}");
    }
    for nid in nodes() {
        say!("memory: {} pages on node {nid}", frames.managed_count(nid));
    }
    crew::run(warm_up);
    let before = free_frames(caches);

    set_timers(TIMER_PERIOD);
    ticks::begin();
    for (name, trial) in TRIALS.into_iter().chain(SUITE.iter().copied()) {
        let is_for_all = !ASKED_FOR.contains(&name);
        if !command_line::chooses("trials", name).unwrap_or(is_for_all) {
            continue;
        }
        let start = Kernel.now();
        trial();
        let millis = Kernel.now().since(start).0 / 1_000_000;
        say!("trial {name}: passed in {millis} ms");
    }
    let in_interrupts = ticks::end();
    set_timers(0);

    say!("{}", SlabInfo::HEADER);
    caches.slabinfo(|info| say!("{info}"));
    let after = free_frames(caches);
    if let Err(wrong) = caches.validate() {
        panic!("caches are not consistent: {wrong}");
    }
    if let Err(wrong) = frames.validate() {
        panic!("frames are not consistent: {wrong}");
    }
    assert_eq!(before, after, "frames did not come back");
    serial::line(format_args!("{}", frames.buddyinfo()));
    for &event in Event::ALL {
        let n = Kernel.counted(event);
        if n != 0 {
            say!("{} {n}", event.name());
        }
    }
    let sum = |of: fn(&Area) -> u64| Area::all().map(of).sum::<u64>();
    say!("ticks: {}", sum(|a| a.ticks.load(Ordering::Relaxed)));
    say!("allocations in interrupts: {in_interrupts}");
    say!("rewinds: {}", sum(|a| a.rewinds.load(Ordering::Relaxed)));
    say!("frames back: {after} of {before}");
    say!("all trials passed");
}

/// Uses every class, and the cache of caches, so much that the shared array of the CPU's node is made, which stays.
fn warm_up(_cpu: usize) {
    let caches = caches();
    const MOST: usize = 512;
    for class in flagstone_slab::KERNEL_CLASSES {
        let mut objects = [None; MOST];
        for object in &mut objects {
            *object = caches.kmalloc(class.size, heap::gfp()).ok();
        }
        for object in objects.into_iter().flatten() {
            // SAFETY: allocated above, and used by nobody.
            unsafe { caches.kfree(object) };
        }
    }
    let mut params = CacheParams::new("warm-up", 64, 0);
    params.flags.no_merge = true;
    let mut handles = [const { None }; 64];
    for handle in &mut handles {
        *handle = caches.create(&params).ok();
    }
    for handle in handles.into_iter().flatten() {
        if let Err(busy) = caches.destroy(handle) {
            panic!("{busy}");
        }
    }
}

/// Gives back everything that can be, and counts the free frames.
fn free_frames(caches: &Caches<Kernel>) -> usize {
    caches.shrink_all();
    caches.frames().drain_page_lists();
    nodes().map(|nid| caches.frames().free_count(nid)).sum()
}

fn nodes() -> impl Iterator<Item = Nid> {
    (0..Kernel.nodes() as u16).map(Nid)
}

/// Starts the timers of all CPUs, or with 0 ends them.
fn set_timers(micros: u32) {
    static PERIOD: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);
    let counts = if micros == 0 {
        0
    } else {
        clock::timer_counts(micros)
    };
    PERIOD.store(counts, Ordering::Relaxed);
    crew::run(|_| apic::set_timer(PERIOD.load(Ordering::Relaxed)));
}

fn caches() -> &'static Caches<Kernel> {
    heap::caches().expect("trials run when the heap is up")
}

/// A cache that the CPUs share during a trial.
struct SharedCache(AtomicPtr<Cache<Kernel>>);

impl SharedCache {
    const fn new() -> Self {
        Self(AtomicPtr::new(core::ptr::null_mut()))
    }

    fn make(&self, params: &CacheParams<'_>) {
        let handle = caches().create(params).expect("memory for a cache");
        self.0.store(handle.into_raw().as_ptr(), Ordering::Release);
    }

    /// The cache, between `make` and `destroy`.
    fn get(&self) -> &Cache<Kernel> {
        // SAFETY: made, and not destroyed while the trial runs.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }.expect("a cache that was made")
    }

    /// Destroys the cache, to which everything must be freed.
    fn destroy(&self) {
        let raw = self.0.swap(core::ptr::null_mut(), Ordering::AcqRel);
        let raw = core::ptr::NonNull::new(raw).expect("a cache that was made");
        // SAFETY: from `into_raw` in `make`, once.
        let handle = unsafe { CacheHandle::from_raw(caches(), raw) };
        if let Err(busy) = caches().destroy(handle) {
            panic!("{busy}");
        }
    }
}

/// A sequence of random numbers.
struct Dice(u64);

impl Dice {
    fn new() -> Self {
        Self(Kernel.random())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        services::mix(self.0)
    }

    /// Below `n`.
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}
