//! Sections under interrupts and drains: tokens go in and out of one array on every CPU, while the first CPU drains all
//! stacks again and again, and timer interrupts use the array too. No token may be handed out twice or get lost.

use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, Ordering};

use super::Dice;
use crate::array::Array;
use crate::crew;
use crate::kernel::Kernel;
use crate::per_cpu::Area;
use flagstone_host::{ArrayParams, Clock, CpuCache, Cpus, Host, Push};
use flagstone_types::CpuId;

const CPUS: usize = 16;
const TOKENS_EACH: usize = 32;
const TOKENS: usize = CPUS * TOKENS_EACH;
/// More than a CPU begins with, less than all: a push can find a stack full.
const CAPACITY: u32 = 40;
const DRAINS: usize = 40;
const DRAIN_EACH: usize = 200;
/// Pairs of a pop and a push in a row: most of a CPU's time is to be spent in sections.
const BURST: usize = 50;
/// How long the trial goes on for a section to be sent back, in nanoseconds.
const PATIENCE: u64 = 3_000_000_000;

/// The token is with a CPU: 1, or in an array: 0.
static HELD: [AtomicU8; TOKENS] = [const { AtomicU8::new(0) }; TOKENS];
static SEEN: [AtomicU8; TOKENS] = [const { AtomicU8::new(0) }; TOKENS];
static ARRAY: AtomicPtr<Array> = AtomicPtr::new(core::ptr::null_mut());
static DONE: AtomicBool = AtomicBool::new(false);
static DRAINED: AtomicU64 = AtomicU64::new(0);

/// What the timer interrupts of each CPU hold.
static IN_INTERRUPT: [[AtomicPtr<u8>; 2]; CPUS] =
    [const { [const { AtomicPtr::new(core::ptr::null_mut()) }; 2] }; CPUS];

fn array() -> &'static Array {
    // SAFETY: `run` stored an array that lives until the CPUs are done.
    unsafe { ARRAY.load(Ordering::Acquire).as_ref() }.expect("the trial's array")
}

fn token(n: usize) -> NonNull<u8> {
    NonNull::from(&HELD[n]).cast()
}

fn number(token: NonNull<u8>) -> usize {
    let n = token.addr().get().wrapping_sub(HELD.as_ptr().addr());
    assert!(
        n < TOKENS,
        "an array handed out {token:p}, which is no token"
    );
    n
}

fn took(token: NonNull<u8>) {
    let before = HELD[number(token)].swap(1, Ordering::AcqRel);
    assert_eq!(before, 0, "a token was handed out twice");
}

fn gives(token: NonNull<u8>) {
    HELD[number(token)].store(0, Ordering::Release);
}

/// What a CPU holds.
struct Hand {
    tokens: [NonNull<u8>; TOKENS],
    len: usize,
}

impl Hand {
    fn add(&mut self, token: NonNull<u8>) {
        took(token);
        self.tokens[self.len] = token;
        self.len += 1;
    }

    fn pop(&mut self, n: usize) {
        let mut into = [MaybeUninit::uninit(); 8];
        let got = array().pop_n(&mut into[..n]);
        for token in &into[..got] {
            // SAFETY: `pop_n` filled so many.
            self.add(unsafe { token.assume_init() });
        }
    }

    fn push(&mut self, n: usize) {
        let n = n.min(self.len);
        let last = &self.tokens[self.len - n..self.len];
        last.iter().for_each(|&t| gives(t));
        // SAFETY: the tokens are ours; the array touches no byte of them.
        let taken = unsafe { array().push_n(last) };
        // Those that were not taken are still ours, and nobody had them in between.
        last[..n - taken].iter().for_each(|&t| took(t));
        self.len -= taken;
    }

    fn push_one(&mut self) {
        let Some(&top) = self.tokens[..self.len].last() else {
            return;
        };
        gives(top);
        // SAFETY: as above.
        match unsafe { array().push(top) } {
            Push::Done => self.len -= 1,
            Push::Full => took(top),
            Push::OnTop => panic!("a token that a CPU holds is in its array"),
        }
    }

    fn burst(&mut self) {
        for _ in 0..BURST {
            let Some(token) = array().pop() else {
                return;
            };
            let held = &HELD[number(token)];
            assert_eq!(
                held.load(Ordering::Relaxed),
                0,
                "a token was handed out twice"
            );
            // SAFETY: the token is ours.
            if unsafe { array().push(token) } != Push::Done {
                // The arrays were stopped, or an interrupt filled this one.
                self.add(token);
                return;
            }
        }
    }

    fn drain_all(&mut self) {
        let stopped = Kernel.stop_arrays().expect("this host stops arrays");
        assert!(
            array().pop().is_none(),
            "a stopped array handed out a token"
        );
        for area in Area::all() {
            Kernel.drain(&stopped, array(), area.id, &mut |tokens| {
                DRAINED.fetch_add(tokens.len() as u64, Ordering::Relaxed);
                tokens.iter().for_each(|&t| self.add(t));
            });
        }
    }
}

/// In each timer interrupt: tokens out of the array, in the next one back, in another order.
pub(super) fn tick() {
    // SAFETY: as in `array`; the array goes only after every CPU has passed an interrupt that finds none.
    let Some(array) = (unsafe { ARRAY.load(Ordering::Acquire).as_ref() }) else {
        return;
    };
    let Some(hand) = IN_INTERRUPT.get(Area::current().id.index()) else {
        return;
    };
    for slot in hand {
        match NonNull::new(slot.load(Ordering::Relaxed)) {
            None => {
                if let Some(token) = array.pop() {
                    took(token);
                    slot.store(token.as_ptr(), Ordering::Relaxed);
                }
            }
            Some(token) => {
                gives(token);
                // SAFETY: the token is ours.
                match unsafe { array.push(token) } {
                    Push::Done => slot.store(core::ptr::null_mut(), Ordering::Relaxed),
                    Push::Full => took(token),
                    Push::OnTop => panic!("a token that an interrupt holds is in its array"),
                }
            }
        }
    }
}

/// Puts down what the interrupts of a CPU hold, when they find no array any more.
fn lay_down(cpu: usize) {
    let _guard = Kernel.irq_guard();
    for slot in IN_INTERRUPT.get(cpu).into_iter().flatten() {
        if let Some(token) = NonNull::new(slot.swap(core::ptr::null_mut(), Ordering::Relaxed)) {
            SEEN[number(token)].fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn rewinds() -> u64 {
    Area::all().map(|a| a.rewinds.load(Ordering::Relaxed)).sum()
}

fn work(cpu: usize) {
    if cpu >= CPUS {
        return;
    }
    let mut hand = Hand {
        tokens: [NonNull::dangling(); TOKENS],
        len: 0,
    };
    let mut dice = Dice::new();
    for n in cpu * TOKENS_EACH..(cpu + 1) * TOKENS_EACH {
        hand.add(token(n));
    }
    let start = Kernel.now();
    let mut round = 0;
    while !DONE.load(Ordering::Relaxed) {
        round += 1;
        match dice.below(6) {
            0 => hand.pop(1 + dice.below(8)),
            1 => hand.push(1 + dice.below(8)),
            2 | 3 => {
                if let Some(token) = array().pop() {
                    hand.add(token);
                }
            }
            _ => hand.push_one(),
        }
        hand.burst();
        if cpu == 0 {
            if round % DRAIN_EACH == 0 {
                hand.drain_all();
            }
            let waited = Kernel.now().since(start).0;
            if round >= DRAINS * DRAIN_EACH && rewinds() > 0 || waited > PATIENCE {
                DONE.store(true, Ordering::Relaxed);
            }
        }
    }
    for &token in &hand.tokens[..hand.len] {
        SEEN[number(token)].fetch_add(1, Ordering::Relaxed);
    }
}

/// One CPU alone: what push and pop answer.
fn answers(array: &Array) {
    let cpu = CpuId(0);
    let (a, b) = (token(0), token(1));
    // SAFETY: tokens, which nobody else has yet.
    unsafe {
        assert_eq!(array.push(a), Push::Full, "a new array has limit 0");
        array.set_limit(cpu, 1);
        assert_eq!(array.push(a), Push::Done);
        assert_eq!(array.push(a), Push::OnTop, "which wins over full");
        assert_eq!(array.push(b), Push::Full);
        array.set_limit(cpu, 3);
        assert_eq!(
            array.push_n(&[token(2), b, a, b]),
            2,
            "the last ones, while there is room"
        );
        assert_eq!(array.len(cpu), 3);
    }
    let mut into = [MaybeUninit::uninit(); 2];
    assert_eq!(array.pop_n(&mut into), 2);
    // SAFETY: `pop_n` filled both.
    let got = into.map(|t| unsafe { t.assume_init() });
    assert_eq!(got, [a, b], "the deepest first");
    assert_eq!(array.pop(), Some(a));
    assert_eq!(array.pop(), None);
}

pub(super) fn run() {
    let params = ArrayParams {
        capacity: CAPACITY,
        link_offset: 0,
    };
    let array = Kernel.new_array(params).expect("room for an array");
    answers(&array);
    for area in Area::all() {
        array.set_limit(area.id, CAPACITY);
    }
    ARRAY.store((&raw const array).cast_mut(), Ordering::Release);
    crew::run(work);
    ARRAY.store(core::ptr::null_mut(), Ordering::Release);
    crew::run(lay_down);
    let stopped = Kernel.stop_arrays().expect("this host stops arrays");
    for area in Area::all() {
        Kernel.drain(&stopped, &array, area.id, &mut |tokens| {
            for &token in tokens {
                SEEN[number(token)].fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    drop(stopped);
    let cpus = Area::all()
        .filter(|a| a.online.load(Ordering::Relaxed))
        .count()
        .min(CPUS);
    for (n, seen) in SEEN[..cpus * TOKENS_EACH].iter().enumerate() {
        assert_eq!(seen.load(Ordering::Relaxed), 1, "token {n}");
    }
    super::say!(
        "sections: {} rewinds, {} tokens drained",
        rewinds(),
        DRAINED.load(Ordering::Relaxed)
    );
}
