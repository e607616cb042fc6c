//! `malloc` and `free`, and the same of an object cache, written out: the fast paths of the C interface, instruction by instruction.
//!
//! The first two do what [`entry::allocate`](crate::entry::allocate) and [`entry::free`](crate::entry::free) do, which stay beside
//! them as what they are compared with. Written out, a failed section jumps to the slow path directly, and the
//! chain of dependent steps from a freed pointer to its array's count is as short as it can be: shift, map,
//! count. The golden disassembly of the library as shipped pins them.
//!
//! Registers: `rcx` (`rax` in a free) the array's place in every slice, `rdx` the restartable-sequence area, `rsi` this CPU's array, `r8` its
//! count. What a section needs at its start it does not overwrite, since it may be restarted. The sections are those of `process/fast.rs`: bound before count, one commit, last (P12, P13).

/// The body of a naked function `malloc(size)`: pops from the array of the size's class; goes to `$slow(size)` if that is empty
/// or stopped, if the size has no class, or while the heap is not up.
#[macro_export]
macro_rules! allocate_body {
    ($slow:path) => {
        ::core::arch::naked_asm!(
            ".p2align 6",
            "cmp rdi, {fine_max}",
            "ja 8f",
            "lea eax, [rdi + 15]",
            "shr eax, 4",
            "lea rcx, [rip + {places}]",
            "mov ecx, dword ptr [rcx + rax*4]",
            "9:",
            "mov rdx, qword ptr [rip + {fast} + {rseq_off}]",
            "mov r9, qword ptr [rip + {fast} + {id_off}]",
            ".pushsection __rseq_cs, \"aw?\"",
            ".balign 32",
            "3: .long 0, 0",
            ".quad 4f, 6f - 4f, 7f",
            ".popsection",
            ".pushsection .text.rseq_abort, \"ax?\"",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "7: lock inc qword ptr [rip + {aborts}]",
            "test byte ptr [rip + {aborts}], 15",
            "jnz 2f",
            "jmp {slow}",
            ".popsection",
            "2: lea rsi, [rip + 3b]",
            "mov qword ptr fs:[rdx + 8], rsi",
            "4: mov esi, dword ptr fs:[r9]",
            "cmp esi, dword ptr [rip + {fast} + {bound}]",
            "jae {slow}",
            "shl rsi, 22",
            "add rsi, qword ptr [rip + {fast} + {region}]",
            "mov r8, qword ptr [rsi + rcx]",
            "add rsi, rcx",
            "test r8, r8",
            "jz {slow}",
            "mov rax, qword ptr [rsi + r8*8 + 8]",
            "sub r8, 1",
            "mov qword ptr [rsi], r8",
            "6: ret",
            "8: cmp rdi, {coarse_max}",
            "ja {slow}",
            "lea eax, [rdi + 127]",
            "shr eax, 7",
            "lea rcx, [rip + {places} + {coarse}]",
            "mov ecx, dword ptr [rcx + rax*4]",
            "jmp 9b",
            fine_max = const $crate::classes::FINE_MAX,
            coarse_max = const $crate::classes::COARSE_MAX,
            coarse = const ::core::mem::offset_of!($crate::heap::Places, coarse),
            rseq_off = const ::core::mem::offset_of!($crate::process::fast::Fast, rseq_off),
            id_off = const ::core::mem::offset_of!($crate::process::fast::Fast, id_off),
            bound = const ::core::mem::offset_of!($crate::process::fast::Fast, bound),
            region = const ::core::mem::offset_of!($crate::process::fast::Fast, region),
            places = sym $crate::heap::PLACES,
            fast = sym $crate::process::fast::FAST,
            aborts = sym $crate::process::fast::ABORTS,
            slow = sym $slow,
        )
    };
}

/// The body of a naked function `free(object)`: pushes on the array of the object's frame; goes to `$slow(object)` if that is full
/// or stopped, if the object is on top of it already, is not aligned, or lies in no slab of range 0, and if the thread slept since
/// its last section. Also if the frame is of another node than the CPU: then the array's address is no multiple of 64 (P25).
#[macro_export]
macro_rules! free_body {
    ($slow:path) => {
        ::core::arch::naked_asm!(
            ".p2align 6",
            "mov rax, rdi",
            "shr rax, 16",
            "mov rcx, qword ptr [rip + {fast} + {map}]",
            "mov rdx, rax",
            "sub rdx, qword ptr [rip + {fast} + {first}]",
            "cmp rdx, qword ptr [rip + {fast} + {frames}]",
            "jae {slow}",
            "mov eax, dword ptr [rcx + rax*4]",
            "test dil, 15",
            "jnz {slow}",
            "mov rdx, qword ptr [rip + {fast} + {rseq_off}]",
            "mov r9, qword ptr [rip + {fast} + {id_off}]",
            "cmp qword ptr fs:[rdx + 8], 0",
            "je {slow}",
            ".pushsection __rseq_cs, \"aw?\"",
            ".balign 32",
            "3: .long 0, 0",
            ".quad 4f, 6f - 4f, 7f",
            ".popsection",
            ".pushsection .text.rseq_abort, \"ax?\"",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "7: lock inc qword ptr [rip + {aborts}]",
            "test byte ptr [rip + {aborts}], 15",
            "jnz 2f",
            "jmp {slow}",
            ".popsection",
            "2: lea rsi, [rip + 3b]",
            "mov qword ptr fs:[rdx + 8], rsi",
            "4: mov esi, dword ptr fs:[r9]",
            "cmp esi, dword ptr [rip + {fast} + {bound}]",
            "jae {slow}",
            "mov r10, qword ptr [rip + {fast} + {slices}]",
            "mov rsi, qword ptr [r10 + rsi*8]",
            "mov r8, qword ptr [rsi + rax]",
            "add rsi, rax",
            "test sil, 63",
            "jnz {slow}",
            "cmp r8d, dword ptr [rsi + 8]",
            "jae {slow}",
            "cmp rdi, qword ptr [rsi + r8*8 + 8]",
            "je {slow}",
            "mov qword ptr [rsi + r8*8 + 16], rdi",
            "add r8, 1",
            "mov qword ptr [rsi], r8",
            "6: ret",
            first = const ::core::mem::offset_of!($crate::process::fast::Fast, first),
            frames = const ::core::mem::offset_of!($crate::process::fast::Fast, frames),
            map = const ::core::mem::offset_of!($crate::process::fast::Fast, map),
            rseq_off = const ::core::mem::offset_of!($crate::process::fast::Fast, rseq_off),
            id_off = const ::core::mem::offset_of!($crate::process::fast::Fast, id_off),
            bound = const ::core::mem::offset_of!($crate::process::fast::Fast, bound),
            slices = const ::core::mem::offset_of!($crate::process::fast::Fast, slices),
            fast = sym $crate::process::fast::FAST,
            aborts = sym $crate::process::fast::ABORTS,
            slow = sym $slow,
        )
    };
}

/// The body of a naked function `alloc(cache: *const KnownCache)`: pops from the cache's array; goes to `$slow(cache)` if that is empty
/// or stopped.
#[macro_export]
macro_rules! cache_alloc_body {
    ($slow:path) => {
        ::core::arch::naked_asm!(
            ".p2align 6",
            "mov ecx, dword ptr [rdi + {place}]",
            "mov rdx, qword ptr [rip + {fast} + {rseq_off}]",
            "mov r9, qword ptr [rip + {fast} + {id_off}]",
            ".pushsection __rseq_cs, \"aw?\"",
            ".balign 32",
            "3: .long 0, 0",
            ".quad 4f, 6f - 4f, 7f",
            ".popsection",
            ".pushsection .text.rseq_abort, \"ax?\"",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "7: lock inc qword ptr [rip + {aborts}]",
            "test byte ptr [rip + {aborts}], 15",
            "jnz 2f",
            "jmp {slow}",
            ".popsection",
            "2: lea rsi, [rip + 3b]",
            "mov qword ptr fs:[rdx + 8], rsi",
            "4: mov esi, dword ptr fs:[r9]",
            "cmp esi, dword ptr [rip + {fast} + {bound}]",
            "jae {slow}",
            "shl rsi, 22",
            "add rsi, qword ptr [rip + {fast} + {region}]",
            "mov r8, qword ptr [rsi + rcx]",
            "add rsi, rcx",
            "test r8, r8",
            "jz {slow}",
            "mov rax, qword ptr [rsi + r8*8 + 8]",
            "sub r8, 1",
            "mov qword ptr [rsi], r8",
            "6: ret",
            place = const ::core::mem::offset_of!($crate::known::KnownCache, place),
            rseq_off = const ::core::mem::offset_of!($crate::process::fast::Fast, rseq_off),
            id_off = const ::core::mem::offset_of!($crate::process::fast::Fast, id_off),
            bound = const ::core::mem::offset_of!($crate::process::fast::Fast, bound),
            region = const ::core::mem::offset_of!($crate::process::fast::Fast, region),
            fast = sym $crate::process::fast::FAST,
            aborts = sym $crate::process::fast::ABORTS,
            slow = sym $slow,
        )
    };
}

/// The body of a naked function `free(cache: *const KnownCache, object)`: pushes on the cache's array; goes to `$slow(cache, object)` if that is full
/// or stopped, if the object is on top of it already or null, and where there are several nodes.
#[macro_export]
macro_rules! cache_free_body {
    ($slow:path) => {
        ::core::arch::naked_asm!(
            ".p2align 6",
            "mov ecx, dword ptr [rdi + {home}]",
            "test rsi, rsi",
            "jz {slow}",
            "test cl, 1",
            "jnz {slow}",
            "mov rdx, qword ptr [rip + {fast} + {rseq_off}]",
            "mov r9, qword ptr [rip + {fast} + {id_off}]",
            ".pushsection __rseq_cs, \"aw?\"",
            ".balign 32",
            "3: .long 0, 0",
            ".quad 4f, 6f - 4f, 7f",
            ".popsection",
            ".pushsection .text.rseq_abort, \"ax?\"",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "7: lock inc qword ptr [rip + {aborts}]",
            "test byte ptr [rip + {aborts}], 15",
            "jnz 2f",
            "jmp {slow}",
            ".popsection",
            "2: lea rax, [rip + 3b]",
            "mov qword ptr fs:[rdx + 8], rax",
            "4: mov eax, dword ptr fs:[r9]",
            "cmp eax, dword ptr [rip + {fast} + {bound}]",
            "jae {slow}",
            "shl rax, 22",
            "add rax, qword ptr [rip + {fast} + {region}]",
            "mov r8, qword ptr [rax + rcx]",
            "add rax, rcx",
            "cmp r8d, dword ptr [rax + 8]",
            "jae {slow}",
            "cmp rsi, qword ptr [rax + r8*8 + 8]",
            "je {slow}",
            "mov qword ptr [rax + r8*8 + 16], rsi",
            "add r8, 1",
            "mov qword ptr [rax], r8",
            "6: ret",
            home = const ::core::mem::offset_of!($crate::known::KnownCache, home),
            rseq_off = const ::core::mem::offset_of!($crate::process::fast::Fast, rseq_off),
            id_off = const ::core::mem::offset_of!($crate::process::fast::Fast, id_off),
            bound = const ::core::mem::offset_of!($crate::process::fast::Fast, bound),
            region = const ::core::mem::offset_of!($crate::process::fast::Fast, region),
            fast = sym $crate::process::fast::FAST,
            aborts = sym $crate::process::fast::ABORTS,
            slow = sym $slow,
        )
    };
}
