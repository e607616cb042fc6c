//! What an interrupt must leave alone: every register that compiled code uses, and the 128 bytes below the stack pointer,
//! which compiled code uses without moving it.

use core::arch::asm;

use super::Dice;
use crate::crew;

const ROUNDS: usize = 40;
/// Long enough for some interrupts to come.
const SPINS: u64 = 300_000;

/// Puts `value` everywhere, spins, and returns which bits of it have changed anywhere.
fn changed(value: u64) -> u64 {
    let wrong: u64;
    // SAFETY: every register that is used is named; the bytes below the stack pointer are nobody's here, since the
    // compiler expects this code to push.
    unsafe {
        asm!(
            ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
            "movq xmm\\n, rax",
            "punpcklqdq xmm\\n, xmm\\n",
            "mov [rsp - 8 * \\n - 8], rax",
            ".endr",
            ".irp r, rdx, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15",
            "mov \\r, rax",
            ".endr",
            "2:",
            "sub rcx, 1",
            "jnz 2b",
            ".irp r, rdx, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15",
            "xor \\r, rax",
            "or rcx, \\r",
            ".endr",
            ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
            "movq rdx, xmm\\n",
            "xor rdx, rax",
            "or rcx, rdx",
            "psrldq xmm\\n, 8",
            "movq rdx, xmm\\n",
            "xor rdx, rax",
            "or rcx, rdx",
            "mov rdx, [rsp - 8 * \\n - 8]",
            "xor rdx, rax",
            "or rcx, rdx",
            ".endr",
            in("rax") value,
            inout("rcx") SPINS => wrong,
            out("rdx") _, out("rsi") _, out("rdi") _, out("r8") _, out("r9") _, out("r10") _, out("r11") _,
            out("r12") _, out("r13") _, out("r14") _, out("r15") _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
            out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
        );
    }
    wrong
}

fn work(_cpu: usize) {
    let mut dice = Dice::new();
    for _ in 0..ROUNDS {
        assert_eq!(changed(dice.next()), 0, "an interrupt changed a register");
    }
}

pub(super) fn run() {
    crew::run(work);
}
