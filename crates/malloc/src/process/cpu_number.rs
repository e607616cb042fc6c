//! The number of the CPU that this runs on, where there are no restartable sequences to read it from.
//!
//! The kernel keeps it in a register that the `rdpid` instruction reads, in the low twelve bits; whether that is so is tried at start.
//! The function of the vDSO is the next best, several times slower. Where there is neither (under valgrind, say), threads are
//! spread by a number made from their thread pointer, which is as correct, if not as good.

use core::arch::{asm, x86_64::__cpuid_count};
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use super::elf::Image;

type Getcpu = unsafe extern "C" fn(*mut u32, *mut u32, *mut u8) -> i32;

const BY_THREAD: u8 = 0;
const BY_FUNCTION: u8 = 1;
const BY_INSTRUCTION: u8 = 2;

static WAY: AtomicU8 = AtomicU8::new(BY_THREAD);
/// The address of the vDSO's function; 0 stands for absent.
static FUNCTION: AtomicUsize = AtomicUsize::new(0);

const RDPID: u32 = 1 << 22;
const NUMBER: u64 = 0xfff;

/// Finds the best way; `vdso` is where the vDSO is mapped, or 0.
pub(super) fn start(vdso: usize) {
    // SAFETY: P4, the address comes from the auxiliary vector.
    let function = unsafe { Image::at(vdso) }.and_then(|image| image.find(c"__vdso_getcpu"));
    let Some(function) = function else { return };
    FUNCTION.store(function, Ordering::Relaxed);
    let agrees = || by_instruction() == by_function();
    let has_instruction = __cpuid_count(0, 0).eax >= 7 && __cpuid_count(7, 0).ecx & RDPID != 0;
    // This thread may be moved between the two; hardly so each time.
    let is_good = has_instruction && (0..4).any(|_| agrees());
    WAY.store(
        if is_good { BY_INSTRUCTION } else { BY_FUNCTION },
        Ordering::Relaxed,
    );
}

/// The number of this CPU, `None` if the system does not tell.
#[inline]
pub(super) fn known() -> Option<u32> {
    match WAY.load(Ordering::Relaxed) {
        BY_INSTRUCTION => by_instruction(),
        BY_FUNCTION => by_function(),
        _ => None,
    }
}

/// The number of this CPU, or one that stays with the thread.
#[inline]
pub(super) fn hint() -> u32 {
    known().unwrap_or_else(thread_number)
}

#[inline]
fn by_instruction() -> Option<u32> {
    let value: u64;
    // SAFETY: the instruction exists wherever this is called; it reads a register.
    unsafe { asm!("rdpid {v}", v = out(reg) value, options(nomem, nostack, preserves_flags)) };
    Some((value & NUMBER) as u32)
}

fn by_function() -> Option<u32> {
    // SAFETY: P4, the address is that of the vDSO's function, which has this type; it was found before this way was chosen.
    let function =
        unsafe { core::mem::transmute::<usize, Getcpu>(FUNCTION.load(Ordering::Relaxed)) };
    let mut cpu = 0;
    // SAFETY: the word outlives the call; null pointers are allowed for the rest.
    let failed = unsafe { function(&raw mut cpu, core::ptr::null_mut(), core::ptr::null_mut()) };
    (failed == 0).then_some(cpu)
}

fn thread_number() -> u32 {
    let pointer: usize;
    // SAFETY: the first word at the thread pointer is the thread pointer itself.
    unsafe {
        asm!("mov {p}, fs:[0]", p = out(reg) pointer, options(nostack, readonly, preserves_flags));
    }
    ((pointer as u64 >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::hammer::run_on;
    use crate::process::startup::Startup;

    #[test]
    fn every_way_tells_the_cpu_that_a_thread_was_put_on() {
        start(Startup::find().vdso);
        for cpu in [0, 1, 0] {
            if run_on(cpu)
                && let Some(known) = known()
            {
                assert_eq!(known, cpu as u32);
                assert_eq!(by_function(), Some(cpu as u32));
                assert_eq!(hint(), cpu as u32);
            }
        }
    }

    #[test]
    fn a_thread_keeps_its_number() {
        let numbers = || (thread_number(), thread_number());
        let (a, b) = numbers();
        assert_eq!(a, b);
        let others: std::vec::Vec<_> = (0..8)
            .map(|_| std::thread::spawn(move || numbers().0))
            .map(|t| t.join().unwrap())
            .collect();
        assert!(others.iter().any(|n| *n != a));
    }
}
