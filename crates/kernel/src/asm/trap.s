# Entry and return of interrupts and exceptions.
#
# A gate gives each vector a stack of its own with IF clear (MODEL.md I1). All vectors end in flagstone_trap(frame),
# whose frame holds the saved registers, the vector, the error code (or 0) and what the CPU pushed.

    .altmacro
    .macro entry vector
trap_\vector:
    .if (\vector == 8) || (\vector >= 10 && \vector <= 14) || (\vector == 17) || (\vector == 21) || (\vector == 29) || (\vector == 30)
    .else
    pushq $0
    .endif
    pushq $\vector
    jmp trap_all
    .endm

    .macro address vector
    .quad trap_\vector
    .endm

    .text
    .set n, 0
    .rept 48
    entry %n
    .set n, n + 1
    .endr

trap_all:
    pushq %rax
    pushq %rcx
    pushq %rdx
    pushq %rbx
    pushq %rbp
    pushq %rsi
    pushq %rdi
    pushq %r8
    pushq %r9
    pushq %r10
    pushq %r11
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    cld
    movq %rsp, %rdi
    subq $512, %rsp                 # the stack is a multiple of 16 here: 22 words below an aligned end
    fxsave64 (%rsp)
    callq flagstone_trap
    fxrstor64 (%rsp)
    addq $512, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %r11
    popq %r10
    popq %r9
    popq %r8
    popq %rdi
    popq %rsi
    popq %rbp
    popq %rbx
    popq %rdx
    popq %rcx
    popq %rax
    addq $16, %rsp
    iretq

    .section .rodata
    .balign 8
    .globl flagstone_trap_entries
flagstone_trap_entries:
    .set n, 0
    .rept 48
    address %n
    .set n, n + 1
    .endr
