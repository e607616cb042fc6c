//! `vfork`: the child shares the memory and the thread's own area, but the kernel does not restart its
//! sections. Arrays are stopped before, and go on when the parent runs again.
//!
//! The function returns twice on one stack, so it is written out: the return address waits in a register that
//! the system call keeps, as the C library does it.

use core::arch::naked_asm;

use flagstone_malloc::process::Process;

extern "C" fn before() {
    Process::start().stop_for_vfork();
}

extern "C" fn after() {
    Process::start().restart_after_vfork();
}

/// Stores the error of the system call; returns -1.
extern "C" fn failed(error: i32) -> i32 {
    // SAFETY: the address of the thread's errno.
    unsafe { *libc::__errno_location() = error };
    -1
}

/// `vfork`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn vfork() -> libc::pid_t {
    naked_asm!(
        "sub rsp, 8",
        "call {before}",
        "add rsp, 8",
        "pop rdi",
        "mov eax, 58",
        "syscall",
        "push rdi",
        "test eax, eax",
        "jnz 2f",
        "ret",
        // The parent: the child has ended or become another program.
        "2: push rax",
        "call {after}",
        "pop rax",
        "cmp eax, -4095",
        "jae 3f",
        "ret",
        "3: neg eax",
        "mov edi, eax",
        "jmp {failed}",
        before = sym before,
        after = sym after,
        failed = sym failed,
    )
}
