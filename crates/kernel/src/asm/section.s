# Sections: the only code that changes a stack of an array on its own CPU (MODEL.md S1 to S4).
#
# A stack lies at the offset RDI from the GS base: count (4 bytes), limit (4 bytes), slots (8 bytes each). An interrupt
# between a start and the end of a commit returns to the start, so inputs (RDI, RSI, RDX) stay as they are until then, and nothing is
# stored but to slots at or above the count and to the caller's buffer. flagstone_sections lists start and end of each.

    .text
    .balign 64
    .globl flagstone_pop, flagstone_push, flagstone_pop_n, flagstone_push_n

# pop(stack) -> object or 0
flagstone_pop:
    cmpl $0, flagstone_stopped(%rip)
    jne nothing
    movl %gs:(%rdi), %ecx
    subl $1, %ecx
    jb nothing
    movq %gs:8(%rdi, %rcx, 8), %rax
    movl %ecx, %gs:(%rdi)           # commit
pop_end:
    retq
nothing:
    xorl %eax, %eax
    retq

# push(stack, object) -> 0 full or stopped, 1 done, 2 already on top. The word below the first slot is count and limit, which
# equals no object, so an empty stack needs no test.
    .balign 32
flagstone_push:
    cmpl $0, flagstone_stopped(%rip)
    jne nothing
    movl %gs:(%rdi), %ecx
    cmpq %rsi, %gs:(%rdi, %rcx, 8)
    je on_top
    cmpl %gs:4(%rdi), %ecx
    jae nothing
    movq %rsi, %gs:8(%rdi, %rcx, 8)
    addl $1, %ecx
    movl %ecx, %gs:(%rdi)           # commit
push_end:
    movl $1, %eax
    retq
on_top:
    movl $2, %eax
    retq

# pop_n(stack, into, n) -> how many; the deepest first
    .balign 32
flagstone_pop_n:
    cmpl $0, flagstone_stopped(%rip)
    jne nothing
    movl %gs:(%rdi), %ecx
    movl %edx, %eax
    cmpl %ecx, %eax
    cmoval %ecx, %eax               # how many
    subl %eax, %ecx                 # what stays
    leaq 8(%rdi, %rcx, 8), %r8
    xorl %r9d, %r9d
1:  cmpl %eax, %r9d
    je 2f
    movq %gs:(%r8, %r9, 8), %r10
    movq %r10, (%rsi, %r9, 8)
    addl $1, %r9d
    jmp 1b
2:  movl %ecx, %gs:(%rdi)           # commit
pop_n_end:
    retq

# push_n(stack, objects, n) -> how many of the last; the last on top
    .balign 32
flagstone_push_n:
    cmpl $0, flagstone_stopped(%rip)
    jne nothing
    movl %gs:(%rdi), %ecx
    movl %gs:4(%rdi), %eax
    subl %ecx, %eax                 # room
    jbe nothing
    cmpl %edx, %eax
    cmoval %edx, %eax               # how many
    movl %edx, %r9d
    subl %eax, %r9d
    leaq (%rsi, %r9, 8), %r8        # the first to go
    leaq 8(%rdi, %rcx, 8), %r10
    xorl %r9d, %r9d
1:  cmpl %eax, %r9d
    je 2f
    movq (%r8, %r9, 8), %r11
    movq %r11, %gs:(%r10, %r9, 8)
    addl $1, %r9d
    jmp 1b
2:  addl %eax, %ecx
    movl %ecx, %gs:(%rdi)           # commit
push_n_end:
    retq

    .section .data.rel.ro, "aw"
    .balign 8
    .globl flagstone_sections
flagstone_sections:
    .quad flagstone_pop, pop_end
    .quad flagstone_push, push_end
    .quad flagstone_pop_n, pop_n_end
    .quad flagstone_push_n, push_n_end
