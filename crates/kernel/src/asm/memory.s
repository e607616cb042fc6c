# The memory functions that compiled code calls and that a C library usually brings. Whole words first: an emulator
# runs string instructions one element at a time.

    .text
    .globl memcpy, memmove, memset, memcmp, bcmp, strlen

memcpy:                             # (to, from, n) -> to
    movq %rdi, %rax
copy_up:
    movq %rdx, %rcx
    shrq $3, %rcx
    rep movsq
    movl %edx, %ecx
    andl $7, %ecx
    rep movsb
    retq

memmove:                            # (to, from, n) -> to
    movq %rdi, %rax
    movq %rdi, %rcx
    subq %rsi, %rcx
    cmpq %rdx, %rcx                 # not inside the source, unsigned: upwards is safe
    jae copy_up
    leaq -1(%rdi, %rdx), %rdi
    leaq -1(%rsi, %rdx), %rsi
    movq %rdx, %rcx
    std
    rep movsb
    cld
    retq

memset:                             # (to, byte, n) -> to
    movq %rdi, %r8
    movzbl %sil, %esi
    movabsq $0x0101010101010101, %rax
    imulq %rsi, %rax
    movq %rdx, %rcx
    shrq $3, %rcx
    rep stosq
    movl %edx, %ecx
    andl $7, %ecx
    rep stosb
    movq %r8, %rax
    retq

bcmp:
memcmp:                             # (left, right, n) -> difference of the first bytes that differ
    xorl %ecx, %ecx
1:  cmpq %rdx, %rcx
    je 2f
    movzbl (%rdi, %rcx), %eax
    movzbl (%rsi, %rcx), %r8d
    addq $1, %rcx
    subl %r8d, %eax
    je 1b
    retq
2:  xorl %eax, %eax
    retq

strlen:                             # (string) -> bytes before the 0
    xorl %eax, %eax
1:  cmpb $0, (%rdi, %rax)
    je 2f
    addq $1, %rax
    jmp 1b
2:  retq
