//! What the fast paths read, and the restartable sections: pop and push on the stack of the CPU that runs.
//!
//! A section stores the address of its descriptor in the thread's restartable-sequence area; from then on
//! the kernel sends the thread to the abort handler if it is preempted, migrated or signalled between the section's first
//! instruction and its commit. The commit is one store of the count, the last instruction (P12), so
//! there is no lock, no atomic read-modify-write, and nothing to undo.
//!
//! ```text
//!  2: rseq_cs = descriptor        (again after an abort; every 16th abort fails the section instead)
//!  4: id of this CPU              unsigned: "not registered" is larger than any bound
//!     id < bound?                 before the count is read (P13); 0 while arrays are stopped
//!     … read count, limit, slots; write slots …
//!     count = new                 commit
//!  6:
//! ```

use core::arch::asm;
use core::mem::offset_of;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicIsize, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Every id's slice of the arrays' region has `2^SLICE_SHIFT` bytes.
pub const SLICE_SHIFT: u32 = 22;

/// A tag is the place of its array in every slice in units of `2^TAG_SHIFT` bytes.
pub const TAG_SHIFT: u32 = 6;

/// Bytes before the first slot of a stack.
pub const HEADER_BYTES: usize = 16;

/// Where sections store their descriptor's address, from the thread pointer, while there are no
/// restartable sequences (P14), less the 8 bytes at which the area has that field.
const PARKED_OFFSET: isize = 0x100 - 8;

/// What the fast paths read: one cache line.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Fast {
    /// Ids below this may run sections (P13).
    pub bound: AtomicU32,
    /// Where a thread's restartable-sequence area is, from the thread pointer, in bytes.
    pub rseq_off: AtomicIsize,
    /// Where the id to use is, from the thread pointer, in bytes.
    pub id_off: AtomicIsize,
    /// Where the arrays of id 0 are.
    pub region: AtomicPtr<u8>,
    /// The first frame of range 0.
    pub first: AtomicUsize,
    /// How many frames range 0 has; of those the map may be read (P7).
    pub frames: AtomicUsize,
    /// For each frame of range 0, by frame number: where its array is in every slice, in bytes (`tag << TAG_SHIFT`), less the
    /// frame's node; 0 if it has no array. The pointer is to where frame 0 would have its entry.
    pub map: AtomicPtr<AtomicU32>,
    /// For each id: where its slice begins, plus the id's node. Added to an entry of the map that gives an array, at a
    /// multiple of 64, if the nodes are the same, and else an address that is none.
    pub slices: AtomicPtr<AtomicUsize>,
}

/// The one [`Fast`] of the process.
pub static FAST: Fast = Fast {
    bound: AtomicU32::new(0),
    rseq_off: AtomicIsize::new(PARKED_OFFSET),
    id_off: AtomicIsize::new(PARKED_OFFSET + 16),
    region: AtomicPtr::new(null_mut()),
    first: AtomicUsize::new(0),
    frames: AtomicUsize::new(0),
    map: AtomicPtr::new(null_mut()),
    slices: AtomicPtr::new(null_mut()),
};

/// How often the kernel sent a section to its abort handler.
pub static ABORTS: AtomicU64 = AtomicU64::new(0);

// The sections address the bound as the first bytes of FAST.
const _: () = assert!(offset_of!(Fast, bound) == 0 && size_of::<Fast>() == 64);

/// How often sections were restarted.
#[must_use]
pub fn aborts() -> u64 {
    ABORTS.load(Ordering::Relaxed)
}

/// Where the stack with this tag is in id 0's slice. `tag` 0 gives a stack that sections must not be
/// run on once arrays have been started.
#[inline(always)]
#[must_use]
pub fn stack(tag: u16) -> *mut u8 {
    stack_at(u32::from(tag) << TAG_SHIFT)
}

/// Where the stack at this many bytes of every slice is in id 0's slice; 0 gives one that is always empty and full.
#[inline(always)]
#[must_use]
pub fn stack_at(place: u32) -> *mut u8 {
    FAST.region
        .load(Ordering::Relaxed)
        .wrapping_add(place as usize)
}

/// The tag of the frame that `address` lies in; 0 if it has none or is outside range 0.
#[inline(always)]
#[must_use]
pub fn tag_at(address: usize) -> u16 {
    (place_at(address).div_ceil(1 << TAG_SHIFT)) as u16
}

/// The map's entry for the frame that `address` lies in; 0 if it has none or is outside range 0.
#[inline(always)]
#[must_use]
pub fn place_at(address: usize) -> u32 {
    let frame = address >> 16;
    if frame.wrapping_sub(FAST.first.load(Ordering::Relaxed)) >= FAST.frames.load(Ordering::Relaxed)
    {
        return 0;
    }
    // SAFETY: P7, the map may be read for every frame of range 0.
    unsafe { (*FAST.map.load(Ordering::Relaxed).wrapping_add(frame)).load(Ordering::Relaxed) }
}

/// Whether this thread was descheduled (or signalled) since its last section; the kernel clears the field that names the section
/// then.
#[inline(always)]
#[must_use]
pub fn slept() -> bool {
    let current: usize;
    let off = FAST.rseq_off.load(Ordering::Relaxed);
    // SAFETY: P14, the field may be read in every mode.
    unsafe {
        asm!("mov {c}, fs:[{off} + 8]", c = out(reg) current, off = in(reg) off, options(nostack, readonly, preserves_flags));
    }
    current == 0
}

/// The id of the CPU that this runs on, as sections see it: out of date at once, and any number in a thread without
/// restartable sequences.
#[inline(always)]
#[must_use]
pub fn current_id() -> u32 {
    let id: u32;
    let off = FAST.id_off.load(Ordering::Relaxed);
    // SAFETY: P14, the field may be read in every mode.
    unsafe {
        asm!("mov {c:e}, fs:[{off}]", c = out(reg) id, off = in(reg) off, options(nostack, readonly, preserves_flags));
    }
    id
}

/// The head of every section: its descriptor, its abort handler (counts and starts again, preceded by the signature that
/// the kernel asks for, inside an instruction that traps), and the store that begins it. `{c}` is free to use.
///
/// Every 16th abort fails the section, as if arrays were stopped: the instruction `$fail` says so to the caller. Where each
/// instruction is interrupted, by a debugger that steps or watches a variable, a section that always began again would never end.
macro_rules! section {
    ($fail:literal, $($body:literal),* $(,)?) => {
        concat!(
            ".pushsection __rseq_cs, \"aw?\"\n",
            ".balign 32\n",
            "3: .long 0, 0\n",
            ".quad 4f, 6f - 4f, 7f\n",
            ".popsection\n",
            ".pushsection .text.rseq_abort, \"ax?\"\n",
            ".byte 0x0f, 0xb9, 0x3d\n",
            ".long 0x53053053\n",
            "7: lock inc qword ptr [rip + {aborts}]\n",
            "test byte ptr [rip + {aborts}], 15\n",
            "jnz 2f\n",
            $fail, "\n",
            "jmp 6f\n",
            ".popsection\n",
            "2: lea {c}, [rip + 3b]\n",
            "mov fs:[{off} + 8], {c}\n",
            "4: mov {c:e}, fs:[{id}]\n",
            $($body, "\n",)*
            "6:\n",
        )
    };
}

/// Takes the pointer on top of this CPU's stack; null if it is empty or stopped.
///
/// # Safety
/// `stack` is [`stack`] of a tag that names an array of this host, or arrays have not been started.
#[inline(always)]
#[must_use]
pub unsafe fn pop(stack: *mut u8) -> *mut u8 {
    let object: *mut u8;
    // SAFETY: P11, P12: below the bound the stack exists and nobody else changes it before the commit.
    unsafe {
        asm!(
            section!(
                "xor {o:e}, {o:e}",
                "xor {o:e}, {o:e}",
                "cmp {c:e}, dword ptr [rip + {fast}]",
                "jae 6f",
                "shl {c}, 22",
                "add {c}, {stack}",
                "mov {n}, [{c}]",
                "sub {n}, 1",
                "jb 6f",
                "mov {o}, [{c} + {n}*8 + 16]",
                "mov [{c}], {n}",
            ),
            aborts = sym ABORTS,
            fast = sym FAST,
            c = out(reg) _,
            n = out(reg) _,
            o = out(reg) object,
            stack = in(reg) stack,
            off = in(reg) FAST.rseq_off.load(Ordering::Relaxed),
            id = in(reg) FAST.id_off.load(Ordering::Relaxed),
            options(nostack),
        );
    }
    object
}

/// Puts `object` on this CPU's stack. The result is positive if it was put there, 0 if the stack is
/// full or stopped, negative if `object` is on top already (it is being freed twice), full or not.
///
/// # Safety
/// As [`pop`].
#[inline(always)]
#[must_use]
pub unsafe fn push(stack: *mut u8, object: *mut u8) -> i64 {
    let result: i64;
    // SAFETY: P11, P12 as for `pop`; P15 for the compare with the word before slot 0.
    unsafe {
        asm!(
            ".pushsection .text.rseq_abort, \"ax?\"",
            "8: mov {r}, -1",
            "jmp 6f",
            ".popsection",
            section!(
                "xor {r:e}, {r:e}",
                "xor {r:e}, {r:e}",
                "cmp {c:e}, dword ptr [rip + {fast}]",
                "jae 6f",
                "shl {c}, 22",
                "add {c}, {stack}",
                "mov {n}, [{c}]",
                "cmp {p}, [{c} + {n}*8 + 8]",
                "je 8b",
                "cmp {n:e}, dword ptr [{c} + 8]",
                "jae 6f",
                "mov [{c} + {n}*8 + 16], {p}",
                "lea {r}, [{n} + 1]",
                "mov [{c}], {r}",
            ),
            aborts = sym ABORTS,
            fast = sym FAST,
            c = out(reg) _,
            n = out(reg) _,
            r = out(reg) result,
            p = in(reg) object,
            stack = in(reg) stack,
            off = in(reg) FAST.rseq_off.load(Ordering::Relaxed),
            id = in(reg) FAST.id_off.load(Ordering::Relaxed),
            options(nostack),
        );
    }
    result
}

/// Puts `object` on this CPU's stack of the array of its frame, whose entry in the map is `place`. The result is as that of [`push`], and 0 also
/// if the frame is of another node than the CPU.
///
/// # Safety
/// `place` is an entry of the map, or 0.
#[inline(always)]
#[must_use]
pub unsafe fn push_home(place: u32, object: *mut u8) -> i64 {
    let result: i64;
    // SAFETY: as for `push`; P25 for the slice and the node.
    unsafe {
        asm!(
            ".pushsection .text.rseq_abort, \"ax?\"",
            "8: mov {r}, -1",
            "jmp 6f",
            ".popsection",
            section!(
                "xor {r:e}, {r:e}",
                "xor {r:e}, {r:e}",
                "cmp {c:e}, dword ptr [rip + {fast}]",
                "jae 6f",
                "mov {c}, [{slices} + {c}*8]",
                "add {c}, {place}",
                "test {c:l}, 63",
                "jnz 6f",
                "mov {n}, [{c}]",
                "cmp {p}, [{c} + {n}*8 + 8]",
                "je 8b",
                "cmp {n:e}, dword ptr [{c} + 8]",
                "jae 6f",
                "mov [{c} + {n}*8 + 16], {p}",
                "lea {r}, [{n} + 1]",
                "mov [{c}], {r}",
            ),
            aborts = sym ABORTS,
            fast = sym FAST,
            c = out(reg) _,
            n = out(reg) _,
            r = out(reg) result,
            p = in(reg) object,
            place = in(reg) place as usize,
            slices = in(reg) FAST.slices.load(Ordering::Relaxed),
            off = in(reg) FAST.rseq_off.load(Ordering::Relaxed),
            id = in(reg) FAST.id_off.load(Ordering::Relaxed),
            options(nostack),
        );
    }
    result
}

/// Takes up to `room` pointers from the top of this CPU's stack into `into`, the deepest first, and returns how many.
///
/// # Safety
/// As [`pop`]; `into` has room for `room` pointers.
#[inline(never)]
#[must_use]
pub unsafe fn pop_n(stack: *mut u8, into: *mut *mut u8, room: usize) -> usize {
    let taken: usize;
    // SAFETY: P11, P12; the copy goes to the caller's room only, and is done again after an abort.
    unsafe {
        asm!(
            section!(
                "xor {k:e}, {k:e}",
                "xor {k:e}, {k:e}",
                "cmp {c:e}, dword ptr [rip + {fast}]",
                "jae 6f",
                "shl {c}, 22",
                "add {c}, {stack}",
                "mov {n}, [{c}]",
                "mov {k}, {room}",
                "cmp {k}, {n}",
                "cmova {k}, {n}",
                "test {k}, {k}",
                "jz 6f",
                "sub {n}, {k}",
                "lea rsi, [{c} + {n}*8 + 16]",
                "mov rdi, {into}",
                "mov rcx, {k}",
                "rep movsq",
                "mov [{c}], {n}",
            ),
            aborts = sym ABORTS,
            fast = sym FAST,
            c = out(reg) _,
            n = out(reg) _,
            k = out(reg) taken,
            out("rcx") _,
            out("rsi") _,
            out("rdi") _,
            into = in(reg) into,
            room = in(reg) room,
            stack = in(reg) stack,
            off = in(reg) FAST.rseq_off.load(Ordering::Relaxed),
            id = in(reg) FAST.id_off.load(Ordering::Relaxed),
            options(nostack),
        );
    }
    taken
}

/// Puts the last of the pointers that end at `end` on this CPU's stack, as many of `count` as there is room for, and
/// returns how many. The last one is on top.
///
/// # Safety
/// As [`pop`]; `count` pointers lie before `end`.
#[inline(never)]
#[must_use]
pub unsafe fn push_n(stack: *mut u8, end: *const *mut u8, count: usize) -> usize {
    let taken: usize;
    // SAFETY: P11, P12; slots above the count belong to the section, and are written again after an abort.
    unsafe {
        asm!(
            section!(
                "xor {k:e}, {k:e}",
                "xor {k:e}, {k:e}",
                "cmp {c:e}, dword ptr [rip + {fast}]",
                "jae 6f",
                "shl {c}, 22",
                "add {c}, {stack}",
                "mov {n}, [{c}]",
                "mov {i:e}, dword ptr [{c} + 8]",
                "sub {i}, {n}",
                "jbe 6f",
                "mov {k}, {count}",
                "cmp {k}, {i}",
                "cmova {k}, {i}",
                "test {k}, {k}",
                "jz 6f",
                "lea {n}, [{n} + {k}]",
                "mov rcx, {k}",
                "neg rcx",
                "lea rdi, [{c} + {n}*8 + 16]",
                "lea rdi, [rdi + rcx*8]",
                "lea rsi, [{end} + rcx*8]",
                "mov rcx, {k}",
                "rep movsq",
                "mov [{c}], {n}",
            ),
            aborts = sym ABORTS,
            fast = sym FAST,
            c = out(reg) _,
            n = out(reg) _,
            k = out(reg) taken,
            i = out(reg) _,
            out("rcx") _,
            out("rsi") _,
            out("rdi") _,
            end = in(reg) end,
            count = in(reg) count,
            stack = in(reg) stack,
            off = in(reg) FAST.rseq_off.load(Ordering::Relaxed),
            id = in(reg) FAST.id_off.load(Ordering::Relaxed),
            options(nostack),
        );
    }
    taken
}
