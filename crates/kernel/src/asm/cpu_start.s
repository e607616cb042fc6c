# From real mode to Rust on every further CPU.
#
# A copy of this lies at physical address 0x8000, where a start-up interrupt with vector 8 begins. The words at its end say where to
# go: page tables, CR4, stack, area of the CPU, entry. CPUs start one at a time, so there is one set of words.

    .section .rodata
    .balign 16
    .globl flagstone_cpu_start, flagstone_cpu_start_end, flagstone_cpu_start_words
    .set AT, 0x8000

flagstone_cpu_start:
    .code16
    cli
    cld
    xorw %ax, %ax
    movw %ax, %ds
    lgdtl AT + (cpu_gdt_pointer - flagstone_cpu_start)
    movl %cr0, %eax
    orl $1, %eax
    movl %eax, %cr0
    ljmpl $0x18, $AT + (cpu32 - flagstone_cpu_start)

    .code32
cpu32:
    movl $0x10, %eax
    movl %eax, %ds
    movl %eax, %ss
    movl AT + (flagstone_cpu_start_words - flagstone_cpu_start) + 8, %eax
    movl %eax, %cr4                 # as the first CPU has it, five levels included
    movl AT + (flagstone_cpu_start_words - flagstone_cpu_start), %eax
    movl %eax, %cr3
    movl $0xc0000080, %ecx          # EFER
    rdmsr
    orl $0x900, %eax                # LME, NXE
    wrmsr
    movl $0x80010033, %eax          # PG, WP, NE, ET, MP, PE
    movl %eax, %cr0
    ljmp $0x08, $AT + (cpu64 - flagstone_cpu_start)

    .code64
cpu64:
    movl $0x10, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    movq flagstone_cpu_start_words + 16(%rip), %rsp
    movq flagstone_cpu_start_words + 24(%rip), %rdi
    movq flagstone_cpu_start_words + 32(%rip), %rax
    xorl %ebp, %ebp
    callq *%rax
    ud2

    .balign 8
cpu_gdt:
    .quad 0
    .quad 0x00af9b000000ffff        # 0x08 code, 64 bits
    .quad 0x00cf93000000ffff        # 0x10 data
    .quad 0x00cf9b000000ffff        # 0x18 code, 32 bits
cpu_gdt_pointer:
    .word cpu_gdt_pointer - cpu_gdt - 1
    .long AT + (cpu_gdt - flagstone_cpu_start)

    .balign 8
flagstone_cpu_start_words:          # tables, CR4, stack, area, entry
    .quad 0, 0, 0, 0, 0
flagstone_cpu_start_end:
