//! Sections: calls of `asm/section.s`, and where an interrupted one goes on (S1, S2).

use core::sync::atomic::AtomicU32;

/// How many proofs that arrays are stopped exist. Sections read it (S4).
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub(crate) static flagstone_stopped: AtomicU32 = AtomicU32::new(0);

/// Start and end of a section: an address from the one to before the other has its commit ahead.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Bounds {
    start: u64,
    end: u64,
}

core::arch::global_asm!(include_str!("asm/section.s"), options(att_syntax));

unsafe extern "C" {
    /// The object on top of the stack at this offset of the current area; null if it is empty or stopped.
    pub(crate) safe fn flagstone_pop(stack: usize) -> *mut u8;
    /// 0 if the stack is full or stopped, 1 if it took the object, 2 if that was on top already.
    pub(crate) fn flagstone_push(stack: usize, object: *mut u8) -> u32;
    /// Pops up to `n` to `into`.
    pub(crate) fn flagstone_pop_n(stack: usize, into: *mut *mut u8, n: u32) -> u32;
    /// Pushes up to `n`, the last ones of `objects`.
    pub(crate) fn flagstone_push_n(stack: usize, objects: *const *mut u8, n: u32) -> u32;
    static flagstone_sections: [Bounds; 4];
}

/// Where to return to instead of `rip`, if that is in a section after its start.
#[inline]
pub(crate) fn rewound(rip: u64) -> Option<u64> {
    // SAFETY: a constant table of the assembly.
    start_of(unsafe { &flagstone_sections }, rip)
}

/// Whether `rip` is in a section, at its start or at its end.
pub(crate) fn touches(rip: u64) -> bool {
    // SAFETY: a constant table of the assembly.
    unsafe { &flagstone_sections }
        .iter()
        .any(|s| s.start <= rip && rip <= s.end)
}

#[inline]
fn start_of(sections: &[Bounds], rip: u64) -> Option<u64> {
    sections
        .iter()
        .find(|s| s.start < rip && rip < s.end)
        .map(|s| s.start)
}

#[cfg(test)]
mod tests {
    use super::{Bounds, start_of};

    #[test]
    fn sections_have_no_locked_instruction_and_block_no_interrupts() {
        let code = include_str!("asm/section.s");
        let names = code.lines().filter_map(|line| {
            let code = line.split('#').next()?.trim();
            code.split_whitespace().find(|word| !word.ends_with(':'))
        });
        let mut seen = 0;
        for name in names.filter(|name| !name.starts_with('.')) {
            seen += 1;
            let forbidden = [
                "lock", "xchg", "cmpxchg", "xadd", "cli", "sti", "call", "fence",
            ];
            assert!(!forbidden.iter().any(|f| name.contains(f)), "{name}");
        }
        assert!(seen > 40, "the code was read");
    }

    #[test]
    fn an_address_between_start_and_commit_goes_back_to_the_start() {
        let sections = [
            Bounds {
                start: 100,
                end: 120,
            },
            Bounds {
                start: 128,
                end: 140,
            },
        ];
        assert_eq!(start_of(&sections, 101), Some(100));
        assert_eq!(start_of(&sections, 139), Some(128));
        // At the start nothing has happened, at the end the commit has.
        for rip in [0, 99, 100, 120, 127, 128, 140, u64::MAX] {
            assert_eq!(start_of(&sections, rip), None);
        }
    }
}
