//! Every point of every section: the CPU single-steps through it, and at one point, each in turn, the debug trap takes the part
//! of an interrupt that finds another use for the same array. Wherever it comes, no token may be had twice or get lost.
//!
//! Timer interrupts come where an emulator lets them; this finds the points in between.

use core::arch::asm;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, Ordering};

use crate::array::{Array, Stopped};
use crate::kernel::Kernel;
use crate::trap;
use flagstone_host::{ArrayParams, CpuCache, Cpus, Host, Push};
use flagstone_types::CpuId;

const CPU: CpuId = CpuId(0);
const TOKENS: usize = 8;
/// The token that the interrupt brings.
const BROUGHT: usize = 7;

/// How often each token was had; the addresses are the tokens.
static HAD: [AtomicU8; TOKENS] = [const { AtomicU8::new(0) }; TOKENS];
static ARRAY: AtomicPtr<Array> = AtomicPtr::new(core::ptr::null_mut());
/// Points of sections that are left alone before the one that is not.
static LEFT: AtomicU32 = AtomicU32::new(0);
static REACHED: AtomicBool = AtomicBool::new(false);
static DRAINS: AtomicBool = AtomicBool::new(false);

/// What is called while the CPU steps.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Call {
    Pop,
    Push,
    PopN,
    PushN,
}

fn array() -> &'static Array {
    // SAFETY: `run` stored an array that lives until it has ended.
    unsafe { ARRAY.load(Ordering::Relaxed).as_ref() }.expect("the trial's array")
}

fn token(n: usize) -> NonNull<u8> {
    NonNull::from(&HAD[n]).cast()
}

fn have(token: NonNull<u8>) {
    let n = token.addr().get().wrapping_sub(HAD.as_ptr().addr());
    HAD[n].fetch_add(1, Ordering::Relaxed);
}

/// After each instruction; whether it was in a section, or at its start or end.
fn step(in_section: bool) -> Option<fn()> {
    if !in_section {
        return None;
    }
    let left = LEFT.load(Ordering::Relaxed);
    LEFT.store(left.wrapping_sub(1), Ordering::Relaxed);
    if left != 0 {
        return None;
    }
    REACHED.store(true, Ordering::Relaxed);
    Some(interrupt)
}

/// What the interrupt does: as a drain by another CPU, or as a handler that frees and allocates.
fn interrupt() {
    if DRAINS.load(Ordering::Relaxed) {
        drain(&Stopped::in_interrupt());
        return;
    }
    if let Some(token) = array().pop() {
        have(token);
    }
    // SAFETY: the token is nobody's.
    if unsafe { array().push(token(BROUGHT)) } != Push::Done {
        have(token(BROUGHT));
    }
}

fn drain(stopped: &Stopped) {
    Kernel.drain(stopped, array(), CPU, &mut |tokens| {
        tokens.iter().for_each(|&token| have(token));
    });
}

/// Calls `f` with the trap flag set.
fn stepped<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: the debug trap is handled while `on_step` is set.
    unsafe { asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
    let result = f();
    // SAFETY: as it was before.
    unsafe { asm!("pushfq", "and qword ptr [rsp], -0x101", "popfq") };
    result
}

/// Interrupts `call` at its point number `point`. `false` if it has not so many.
fn attempt(call: Call, point: u32, drains: bool) -> bool {
    let array = array();
    HAD.iter().for_each(|had| had.store(0, Ordering::Relaxed));
    // SAFETY: tokens, which are nobody's.
    assert_eq!(unsafe { array.push_n(&[token(0), token(1), token(2)]) }, 3);
    DRAINS.store(drains, Ordering::Relaxed);
    REACHED.store(false, Ordering::Relaxed);
    LEFT.store(point, Ordering::Relaxed);
    let mut given = 3;
    match call {
        Call::Pop => {
            if let Some(token) = stepped(|| array.pop()) {
                have(token);
            }
        }
        Call::Push => {
            given += 1;
            // SAFETY: as above.
            let outcome = stepped(|| unsafe { array.push(token(3)) });
            assert_ne!(outcome, Push::OnTop);
            if outcome == Push::Full {
                have(token(3));
            }
        }
        Call::PopN => {
            let mut into = [MaybeUninit::uninit(); 2];
            let n = stepped(|| array.pop_n(&mut into));
            for token in &into[..n] {
                // SAFETY: `pop_n` filled so many.
                have(unsafe { token.assume_init() });
            }
        }
        Call::PushN => {
            given += 3;
            let tokens = [token(3), token(4), token(5)];
            // SAFETY: as above.
            let taken = stepped(|| unsafe { array.push_n(&tokens) });
            tokens[..3 - taken].iter().for_each(|&token| have(token));
        }
    }
    let stopped = Stopped::in_interrupt();
    drain(&stopped);
    let reached = REACHED.load(Ordering::Relaxed);
    for (n, had) in HAD.iter().enumerate() {
        let expected = n < given || n == BROUGHT && reached && !drains;
        assert_eq!(
            had.load(Ordering::Relaxed),
            u8::from(expected),
            "token {n} of {call:?}, interrupted at point {point}"
        );
    }
    reached
}

pub(super) fn run() {
    let params = ArrayParams {
        capacity: 8,
        link_offset: 0,
    };
    let array = Kernel.new_array(params).expect("room for an array");
    array.set_limit(CPU, 6);
    ARRAY.store((&raw const array).cast_mut(), Ordering::Relaxed);
    trap::on_step(Some(step));
    let mut points = 0;
    for call in [Call::Pop, Call::Push, Call::PopN, Call::PushN] {
        for drains in [false, true] {
            // Nothing but the trap comes in between; other CPUs have no part in this.
            let _guard = Kernel.irq_guard();
            let of_this = (0..)
                .take_while(|&point| attempt(call, point, drains))
                .count();
            assert!(of_this > 5, "{call:?} has {of_this} points");
            points += of_this;
        }
    }
    trap::on_step(None);
    super::say!("stepping: {points} points");
}
