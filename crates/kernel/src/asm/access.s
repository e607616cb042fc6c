# Accesses that are allowed to fault: by the kernel, and by user mode.
#
# A fault at an instruction of flagstone_fixups goes on at the other address of its pair, with the fault in RAX and RDX (MODEL.md
# F1 to F3). RAX is 0 where there was none.

    .text
    .globl flagstone_try_read, flagstone_try_write, flagstone_try_exec, flagstone_exec_return

flagstone_try_read:                 # (address) -> 0, the 8 bytes; or the fault
    xorl %eax, %eax
read_at:
    movq (%rdi), %rdx
    retq

flagstone_try_write:                # (address, 8 bytes) -> 0; or the fault
    xorl %eax, %eax
write_at:
    movq %rsi, (%rdi)
    retq

flagstone_try_exec:                 # (address of a return instruction) -> 0; or the fault
    xorl %eax, %eax
exec_at:
    callq *%rdi
flagstone_exec_return:
    retq

refused:
    retq

# enter_user(code, first argument, second argument, stack) -> what the trap that left user mode says. The kernel's stack pointer is
# kept in the area; interrupts stay as they are.
    .globl flagstone_enter_user, flagstone_user_left
flagstone_enter_user:
    pushq %rbx
    pushq %rbp
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, %gs:{user_return}
    pushq ${user_data}
    pushq %rcx
    pushfq
    pushq ${user_code}
    pushq %rdi
    movq %rsi, %rdi
    movq %rdx, %rsi
    iretq
flagstone_user_left:
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbp
    popq %rbx
    retq

    .section .data.rel.ro, "aw"
    .balign 8
    .globl flagstone_fixups
flagstone_fixups:
    .quad read_at, refused
    .quad write_at, refused
    .quad exec_at, refused

# What user mode runs: a page of its own, which is mapped for it (MODEL.md F4). A breakpoint ends each piece. The code that is
# tried returns through a word of this page, so it needs no memory of its own.
    .section .user, "ax"
    .balign 4096
    .globl flagstone_user_page, flagstone_user_read, flagstone_user_write, flagstone_user_exec, flagstone_user_stack
flagstone_user_page:
flagstone_user_read:                # (address) -> the 8 bytes in RDX
    movq (%rdi), %rdx
    int3
flagstone_user_write:               # (address, 8 bytes)
    movq %rsi, (%rdi)
    int3
flagstone_user_exec:                # (address of a return instruction)
    jmpq *%rdi
user_returned:
    int3
    .balign 8
flagstone_user_stack:
    .quad {user_page} + user_returned - flagstone_user_page
    .balign 4096
