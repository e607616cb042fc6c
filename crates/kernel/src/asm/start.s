# From the loader to Rust on the first CPU.
#
# PVH enters in 32-bit protected mode without paging, with the physical address of the start information in
# EBX. Here the page tables of MODEL.md M1 are made, long mode is entered, and flagstone_main(start information) is called
# on the first stack, at its address in the last 2 GiB. Tables have five levels if the command line says levels=5 and the CPU has them:
# only without paging can their number be changed.

    .section .note.pvh, "a", @note
    .balign 4
    .long 4                         # length of the owner's name
    .long 8                         # length of the value
    .long 18                        # XEN_ELFNOTE_PHYS32_ENTRY
    .asciz "Xen"
    .quad flagstone_start

    .section .start.tables, "aw", @nobits
    .balign 4096
    .globl flagstone_tables, flagstone_tables_direct
flagstone_tables:                   # level 4
    .skip 4096
flagstone_tables_direct:            # level 3 of the direct map, and of addresses from 0
    .skip 4096
tables_image:                       # level 3 of the last 512 GiB
    .skip 4096
tables_low:                         # level 2 of the first 4 GiB
    .skip 4 * 4096
tables_top:                         # level 5, where there is one
    .skip 4096
tables_end:

    .section .start.data, "aw"
    .balign 8
    .globl flagstone_start_gdt
flagstone_start_gdt:
    .quad 0
    .quad 0x00af9b000000ffff        # 0x08 code, 64 bits
    .quad 0x00cf93000000ffff        # 0x10 data
    .quad 0x00cf9b000000ffff        # 0x18 code, 32 bits
start_gdt_end:
start_gdt_pointer:
    .word start_gdt_end - flagstone_start_gdt - 1
    .quad flagstone_start_gdt

    .section .start.text, "ax"
    .globl flagstone_start
    .code32
flagstone_start:
    cli
    cld
    movl %ebx, %ebp                 # CPUID changes EBX
    movl $tables_end, %ecx
    movl $flagstone_tables, %edi
    subl %edi, %ecx
    shrl $2, %ecx
    xorl %eax, %eax
    rep stosl

    movl $flagstone_tables_direct + 3, %eax
    movl %eax, flagstone_tables             # from 0
    movl %eax, flagstone_tables + 256 * 8   # from DIRECT
    movl $tables_image + 3, flagstone_tables + 511 * 8

    movl $tables_low + 3, %eax
    movl %eax, tables_image + 510 * 8
    movl %eax, flagstone_tables_direct
    addl $0x1000, %eax
    movl %eax, tables_image + 511 * 8
    movl %eax, flagstone_tables_direct + 8
    addl $0x1000, %eax
    movl %eax, flagstone_tables_direct + 16
    addl $0x1000, %eax
    movl %eax, flagstone_tables_direct + 24

    movl $tables_low, %edi          # 2 MiB each: present, writable, large
    movl $0x83, %eax
fill:
    movl %eax, (%edi)
    addl $8, %edi
    addl $0x200000, %eax
    jnc fill
    orl $0x18, tables_low + (0xfee00000 >> 21) * 8   # the local APIC: not cached

    movl $flagstone_tables, %edi    # the root
    movl $0x6a0, %esi               # PAE, PGE, OSFXSR, OSXMMEXCPT
    movl 24(%ebp), %edx             # the command line
    testl %edx, %edx
    jz levels_known
look:
    cmpb $0, (%edx)
    je levels_known
    cmpl $0x6576656c, (%edx)        # "leve"
    jne next
    cmpl $0x353d736c, 4(%edx)       # "ls=5"
    je five
next:
    addl $1, %edx
    jmp look
five:
    xorl %eax, %eax
    cpuid
    cmpl $7, %eax
    jb levels_known
    movl $7, %eax
    xorl %ecx, %ecx
    cpuid
    testl $0x10000, %ecx            # LA57
    jz levels_known
    movl $flagstone_tables + 3, tables_top
    movl $flagstone_tables + 7, tables_top + 511 * 8   # one page below it is for user mode
    movl $tables_top, %edi
    orl $0x1000, %esi
levels_known:
    movl %cr4, %eax
    orl %esi, %eax
    movl %eax, %cr4
    movl %edi, %cr3
    movl $0xc0000080, %ecx          # EFER
    rdmsr
    orl $0x900, %eax                # LME, NXE
    wrmsr
    movl $0x80010033, %eax          # PG, WP, NE, ET, MP, PE
    movl %eax, %cr0
    lgdt start_gdt_pointer
    ljmp $0x08, $start64

    .code64
start64:
    movl $0x10, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    movl %ebp, %edi
    movabsq $first_stack_end, %rsp
    movabsq $flagstone_main, %rax
    xorl %ebp, %ebp
    callq *%rax
    ud2

    .section .bss
    .balign 4096
first_stack:
    .skip 128 * 1024
first_stack_end:
