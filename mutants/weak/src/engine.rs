//! Threads of a run: coroutines, and which goes on.

use crate::memory::Memory;
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;

/// More waiting than this is a wait without end.
const MOST_SPINS: u32 = 2_000;
/// Loads after a wait that see what is newest.
const FRESH_LOADS: u32 = 6;
const STACK_BYTES: usize = 512 << 10;

struct Engine {
    memory: Memory,
    rng: u64,
    current: usize,
    /// A thread goes on with a chance of `stay` in 256: from steps that alternate to long runs that are cut once or twice.
    stay: u64,
    fresh: Vec<u32>,
    spins: Vec<u32>,
    waits: Vec<bool>,
}

thread_local! {
    static ENGINE: RefCell<Option<Engine>> = const { RefCell::new(None) };
    static YIELDER: Cell<*const Yielder<(), ()>> = const { Cell::new(std::ptr::null()) };
}

impl Engine {
    fn random(&mut self) -> u64 {
        self.rng = self.rng.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.rng;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        (self.random() >> 16) % n
    }
}

fn with<R>(f: impl FnOnce(&mut Engine) -> R) -> Option<R> {
    if YIELDER.get().is_null() {
        return None;
    }
    ENGINE.with_borrow_mut(|engine| engine.as_mut().map(f))
}

/// Whether this is a thread of a run.
#[must_use]
pub fn is_running() -> bool {
    !YIELDER.get().is_null()
}

/// The number of the thread of the run that this is; 0 outside.
#[must_use]
pub fn current() -> usize {
    with(|engine| engine.current).unwrap_or(0)
}

/// Lets another thread go on, perhaps.
pub fn step() {
    // What unwinds is no longer of the run.
    if std::thread::panicking() {
        return;
    }
    let goes_on = with(|engine| engine.below(256) < engine.stay).unwrap_or(true);
    if !goes_on {
        suspend();
    }
}

fn suspend() {
    let yielder = YIELDER.get();
    if !yielder.is_null() {
        // SAFETY: the pointer is to the yielder of the coroutine that runs, which is there as long as it does.
        unsafe { (*yielder).suspend(()) };
    }
}

/// Says that this thread waits for another one.
///
/// # Panics
/// If it waits without end.
pub fn spin() {
    let too_long = with(|engine| {
        let current = engine.current;
        engine.fresh[current] = FRESH_LOADS;
        engine.spins[current] += 1;
        engine.waits[current] = true;
        engine.spins[current] > MOST_SPINS
    });
    assert!(too_long != Some(true), "a wait that does not end");
    suspend();
}

/// An access of the running thread to the memory of the run; `None` outside.
pub(crate) fn access<R>(
    f: impl FnOnce(&mut Memory, usize, &mut dyn FnMut(u32) -> u32) -> R,
) -> Option<R> {
    step();
    access_now(f)
}

/// The same without letting another thread go on before.
pub(crate) fn access_now<R>(
    f: impl FnOnce(&mut Memory, usize, &mut dyn FnMut(u32) -> u32) -> R,
) -> Option<R> {
    with(|engine| {
        let current = engine.current;
        let mut draws = engine.random() >> 8;
        let fresh = engine.fresh[current] > 0;
        engine.fresh[current] = engine.fresh[current].saturating_sub(1);
        let mut choose = |n: u32| {
            let draw = draws;
            draws >>= 8;
            if fresh || n <= 1 || draw & 1 == 0 {
                0
            } else {
                ((draw >> 1) % u64::from(n.min(8))) as u32
            }
        };
        f(&mut engine.memory, current, &mut choose)
    })
}

pub(crate) fn fence(order: Ordering) {
    access(|memory, thread, _| memory.fence(thread, order));
}

pub(crate) fn mark(at: usize, writes: bool) {
    let ordered = access(|memory, thread, _| memory.mark(thread, at, writes));
    assert!(
        ordered != Some(false) || std::thread::panicking(),
        "an ordinary {} at {at:#x} is not ordered after another access",
        if writes { "write" } else { "read" }
    );
}

/// Runs `threads` together, once, in a schedule and with answers of memory that `seed` chooses.
///
/// # Panics
/// With what the first thread that failed said; the others are abandoned.
pub fn run(seed: u64, threads: Vec<Box<dyn FnOnce() + '_>>) {
    let count = threads.len();
    let mut engine = Engine {
        memory: Memory::new(count),
        rng: seed.wrapping_mul(0x2545_f491_4f6c_dd1d),
        current: 0,
        stay: 0,
        fresh: vec![0; count],
        spins: vec![0; count],
        waits: vec![false; count],
    };
    engine.stay = [0, 128, 192, 240, 252, 255][engine.below(6) as usize];
    ENGINE.set(Some(engine));
    let mut coroutines: Vec<_> = threads
        .into_iter()
        .map(|body| Some(coroutine(body)))
        .collect();
    let mut yielders = vec![std::ptr::null(); count];
    let mut failure = None;
    while failure.is_none() && coroutines.iter().any(Option::is_some) {
        let next = pick(&coroutines);
        ENGINE.with_borrow_mut(|engine| {
            if let Some(engine) = engine {
                engine.current = next;
            }
        });
        let Some(running) = &mut coroutines[next] else {
            continue;
        };
        YIELDER.set(yielders[next]);
        let result = running.resume(());
        yielders[next] = YIELDER.replace(std::ptr::null());
        match result {
            CoroutineResult::Yield(()) => {}
            CoroutineResult::Return(ended) => {
                coroutines[next] = None;
                failure = ended.err();
            }
        }
    }
    ENGINE.set(None);
    if let Some(failure) = failure {
        // Their stacks hold what can not be dropped in the middle: the process is about to end.
        std::mem::forget(coroutines);
        resume_unwind(failure);
    }
}

type Ended = Result<(), Box<dyn std::any::Any + Send>>;

fn coroutine<'b>(body: Box<dyn FnOnce() + 'b>) -> Coroutine<(), (), Ended, DefaultStack> {
    // SAFETY: `run` does not return before the coroutine has ended or was forgotten, so what the body borrows lives long enough.
    let body: Box<dyn FnOnce() + 'static> = unsafe { std::mem::transmute(body) };
    let stack = DefaultStack::new(STACK_BYTES).expect("memory for a stack");
    Coroutine::with_stack(stack, move |yielder, ()| {
        YIELDER.set(std::ptr::from_ref(yielder));
        catch_unwind(AssertUnwindSafe(body))
    })
}

/// A thread that has not ended; one that waits only if all do.
fn pick(coroutines: &[Option<Coroutine<(), (), Ended, DefaultStack>>]) -> usize {
    ENGINE.with_borrow_mut(|engine| {
        let Some(engine) = engine else { return 0 };
        let alive = |n: &usize| coroutines[*n].is_some();
        let mut ready: Vec<usize> = (0..coroutines.len()).filter(alive).collect();
        if ready.iter().any(|n| !engine.waits[*n]) {
            ready.retain(|n| !engine.waits[*n]);
        }
        let next = ready[engine.below(ready.len() as u64) as usize];
        engine.waits.fill(false);
        next
    })
}
