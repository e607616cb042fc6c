//! Words of stacks, read only where there is memory.
//!
//! A system call that takes a set of signals and a wrong command says whether the set could be read, before it looks at the command: so an
//! address is probed without a fault and without changing anything. A thread's own stack is probed once, page by page as it
//! grows; every other stack (of signals, of coroutines) once in each walk.

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::process::{startup, syscall};

const PAGE: usize = 4096;

/// A walk further from its beginning than this asks for each page.
const FAR: usize = 16 << 20;

/// Memory that may be read in this walk (P26).
#[derive(Debug)]
pub(super) struct Memory {
    from: usize,
    to: usize,
}

impl Memory {
    /// For a walk whose stack pointer is `stack_pointer`.
    pub(super) fn of_stack(stack_pointer: usize) -> Self {
        let thread = Thread::this();
        // The main thread's stack ends at the block of the kernel, any other below the thread's control block.
        let top = [thread.control_block, startup::stack_end()]
            .into_iter()
            .filter(|top| *top > stack_pointer && top - stack_pointer < FAR)
            .min();
        let known = top.and_then(|top| Some((known_from(&thread, top, stack_pointer)?, top)));
        let (from, to) = known.unwrap_or((0, 0));
        Self { from, to: to & !7 }
    }

    /// The word at `address`, `None` if it is not aligned or there is no memory.
    #[inline]
    pub(super) fn word(&mut self, address: usize) -> Option<usize> {
        if !address.is_multiple_of(8) {
            return None;
        }
        // Words are aligned, and so is the end.
        if !(self.from..self.to).contains(&address) && !self.probe(address) {
            return None;
        }
        let at = core::ptr::with_exposed_provenance::<usize>(address);
        // SAFETY: P26. Volatile, since another thread may be writing to it where the stack is not what it seems to be.
        Some(unsafe { at.read_volatile() })
    }

    /// Whether there is memory all the way from `low` up to `high`.
    pub(super) fn reaches(&mut self, low: usize, high: usize) -> bool {
        let is_known = |at: usize| (self.from..self.to).contains(&at);
        (is_known(low) && is_known(high))
            || (low / PAGE..=high / PAGE).all(|page| self.probe(page * PAGE))
    }

    #[cold]
    #[inline(never)]
    fn probe(&mut self, address: usize) -> bool {
        let page = address & !(PAGE - 1);
        if !is_readable(page) {
            return false;
        }
        if page + PAGE == self.from {
            self.from = page;
        } else if page == self.to {
            self.to += PAGE;
        } else {
            (self.from, self.to) = (page, page + PAGE);
        }
        true
    }
}

/// Whether the eight bytes at `address`, a multiple of 8, can be read.
pub(super) fn is_readable(address: usize) -> bool {
    // A command that there is not.
    const NOTHING: usize = usize::MAX;
    // SAFETY: the kernel reads the set, if it can, and refuses the command then: nothing changes.
    let refused = unsafe {
        syscall::call(
            libc::SYS_rt_sigprocmask,
            [NOTHING, address, 0, size_of::<u64>(), 0, 0],
        )
    };
    address != 0 && refused == Err(syscall::Errno(libc::EINVAL))
}

/// What tells a thread from every other, of its control block.
struct Thread {
    control_block: usize,
    tid: u32,
}

impl Thread {
    fn this() -> Self {
        // Where glibc keeps the thread's id in its control block (struct pthread, unchanged since 2.4).
        const TID: usize = 0x2d0;
        let (control_block, tid);
        // SAFETY: P14, the segment register is the thread's control block, whose first word is its own address.
        unsafe {
            asm!(
                "mov {block}, fs:[0]",
                "mov {tid:e}, fs:[{offset}]",
                block = out(reg) control_block,
                tid = out(reg) tid,
                offset = const TID,
                options(nostack, readonly, preserves_flags),
            );
        }
        Self { control_block, tid }
    }
}

/// How far down threads' stacks were seen to be memory: a name of the thread and its stack's end in the upper 28 bits, a page number in
/// the others. Two threads of one place take turns.
static KNOWN: [AtomicU64; 256] = [const { AtomicU64::new(0) }; 256];

const PAGE_BITS: u32 = 36;

/// From where on everything up to `top` is memory, at or below `stack_pointer`. The pages between are probed, and those that were are kept in mind:
/// a thread's stack stays as long as the thread (P26).
fn known_from(thread: &Thread, top: usize, stack_pointer: usize) -> Option<usize> {
    let mixed = (thread.control_block as u64 ^ (u64::from(thread.tid) << 40) ^ top as u64)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let name = mixed >> PAGE_BITS << PAGE_BITS;
    let slot = &KNOWN[(mixed >> 20) as usize % KNOWN.len()];
    let entry = slot.load(Ordering::Relaxed);
    let mask = (1 << PAGE_BITS) - 1;
    let wanted = stack_pointer / PAGE;
    let is_ours = entry != 0 && entry & !mask == name;
    let seen = if is_ours {
        (entry & mask) as usize
    } else {
        top.div_ceil(PAGE)
    };
    if seen <= wanted {
        return Some(seen * PAGE);
    }
    if !(wanted..seen).rev().all(|page| is_readable(page * PAGE)) {
        return None;
    }
    slot.store(name | wanted as u64, Ordering::Relaxed);
    Some(wanted * PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_not_be_read_is_told_without_a_fault() {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let at = syscall::map(0, 3 * PAGE, rights).unwrap();
        // SAFETY: the mapping is ours.
        unsafe { syscall::unmap(at + PAGE, PAGE) }.unwrap();
        let closed = syscall::map(0, PAGE, libc::PROT_NONE).unwrap();
        let mut memory = Memory { from: 0, to: 0 };
        assert_eq!(memory.word(at), Some(0));
        assert_eq!(memory.word(at + PAGE - 8), Some(0));
        assert_eq!(memory.word(at + PAGE), None);
        assert_eq!(memory.word(at + 2 * PAGE), Some(0));
        assert_eq!(memory.word(at + 1), None);
        for nothing in [0, 8, closed, usize::MAX - 7, 1 << 60, 0x4141_4141_4141_4140] {
            assert_eq!(memory.word(nothing), None, "{nothing:#x}");
        }
    }

    #[test]
    fn a_thread_s_own_stack_is_known_down_to_its_pointer() {
        let check = || {
            let word = 77usize;
            let at = (&raw const word).addr();
            let mut memory = Memory::of_stack(at);
            assert!(
                memory.from <= at && at + 8 <= memory.to,
                "{memory:?} {at:#x}"
            );
            assert_eq!(memory.word(at), Some(77));
            // A second walk finds what the first saw.
            assert_eq!(Memory::of_stack(at).from, memory.from);
        };
        check();
        std::thread::spawn(check).join().unwrap();
    }
}
