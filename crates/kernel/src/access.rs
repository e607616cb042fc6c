//! Accesses that are allowed to fault, by the kernel and by user mode (F1 to F4): how one finds out what the unit makes of a table.

use core::arch::{asm, global_asm};
use core::mem::offset_of;

use crate::descriptors::{USER_CODE, USER_DATA};
use crate::features::{self, Features};
use crate::interrupts::IrqGuard;
use crate::layout::USER_PAGE;
use crate::per_cpu::Area;
use flagstone_types::VirtAddr;

global_asm!(
    include_str!("asm/access.s"),
    user_return = const offset_of!(Area, user_return),
    user_data = const USER_DATA,
    user_code = const USER_CODE,
    user_page = const USER_PAGE,
    options(att_syntax)
);

/// What a function of the assembly returns: 0 and a value, or a [`Fault`] in two words.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Answer {
    word: u64,
    value: u64,
}

unsafe extern "C" {
    fn flagstone_try_read(address: usize) -> Answer;
    fn flagstone_try_write(address: usize, value: u64) -> Answer;
    fn flagstone_try_exec(address: usize) -> Answer;
    fn flagstone_enter_user(code: usize, first: usize, second: u64, stack: usize) -> Answer;
    static flagstone_exec_return: u8;
    static flagstone_user_left: u8;
    static flagstone_user_page: u8;
    static flagstone_user_read: u8;
    static flagstone_user_write: u8;
    static flagstone_user_exec: u8;
    static flagstone_user_stack: u8;
    static flagstone_fixups: [Fixup; 3];
}

/// An instruction that may fault, and where to go on if it does.
#[repr(C)]
struct Fixup {
    at: u64,
    on: u64,
}

/// Why an access was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// The exception's vector: 14 is a page fault, 13 is what an address outside of both halves raises.
    pub(crate) vector: u8,
    /// Its error code: for a page fault, bits of [`flagstone_pgtable::FaultCode`].
    pub(crate) code: u32,
    /// The address; of a page fault only.
    pub(crate) address: VirtAddr,
}

/// Vectors of the exceptions that an access may raise.
pub(crate) const BREAKPOINT: u64 = 3;
const PROTECTION: u64 = 13;
pub(crate) const PAGE_FAULT: u64 = 14;

impl Fault {
    /// As a word that is not 0.
    const fn word(vector: u64, code: u64) -> u64 {
        1 << 63 | vector << 32 | code & 0xffff_ffff
    }
}

impl Answer {
    const fn result(self) -> Result<u64, Fault> {
        if self.word == 0 {
            return Ok(self.value);
        }
        Err(Fault {
            vector: (self.word >> 32) as u8,
            code: self.word as u32,
            address: VirtAddr(self.value as usize),
        })
    }
}

/// Who makes an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// The kernel, which leaves user memory alone (SMAP and SMEP, where the CPU has them).
    Kernel,
    /// The kernel on behalf of user mode: may read and write user memory.
    KernelForUser,
    /// User mode.
    User,
}

impl Who {
    /// Makes an access of the kernel, or for user mode.
    fn make(self, access: impl FnOnce() -> Answer) -> Result<u64, Fault> {
        if self != Self::KernelForUser || !features::features().contains(Features::SMAP) {
            return access().result();
        }
        // The flag would be set in an interrupt too.
        let _guard = IrqGuard::new();
        // SAFETY: the CPU has the instruction; the flag is set for the access only.
        unsafe { asm!("stac", options(nomem, nostack)) };
        let answer = access();
        // SAFETY: as above.
        unsafe { asm!("clac", options(nomem, nostack)) };
        answer.result()
    }
}

/// The page of code for user mode, in the image.
pub(crate) fn user_page() -> *const u8 {
    &raw const flagstone_user_page
}

/// The address in the mapping for user mode of a symbol of the page.
fn in_user_page(symbol: *const u8) -> usize {
    USER_PAGE + (symbol.addr() - (&raw const flagstone_user_page).addr())
}

/// Runs a piece of the page in user mode.
///
/// # Safety
/// The page is mapped (F4), and the piece does with the arguments what the caller may do.
unsafe fn enter_user(piece: *const u8, first: usize, second: u64) -> Result<u64, Fault> {
    let stack = in_user_page(&raw const flagstone_user_stack);
    // SAFETY: F4 by the caller's promise.
    unsafe { flagstone_enter_user(in_user_page(piece), first, second, stack).result() }
}

/// Reads 8 bytes.
///
/// # Errors
/// The fault.
pub(crate) fn try_read(who: Who, at: VirtAddr) -> Result<u64, Fault> {
    // SAFETY: F1: a read that faults has no effect; there is no memory whose reading has one but the controllers' registers,
    // which the callers have no addresses of.
    unsafe {
        match who {
            Who::User => enter_user(&raw const flagstone_user_read, at.0, 0),
            _ => who.make(|| flagstone_try_read(at.0)),
        }
    }
}

/// Writes 8 bytes.
///
/// # Errors
/// The fault.
///
/// # Safety
/// If the access is allowed, the memory is the caller's.
pub(crate) unsafe fn try_write(who: Who, at: VirtAddr, value: u64) -> Result<(), Fault> {
    // SAFETY: the caller's promise; F1.
    unsafe {
        match who {
            Who::User => enter_user(&raw const flagstone_user_write, at.0, value),
            _ => who.make(|| flagstone_try_write(at.0, value)),
        }
    }
    .map(drop)
}

/// The return instruction: what [`try_exec`] runs.
pub(crate) const RETURN: u8 = 0xc3;

/// Runs the instruction at `at`.
///
/// # Errors
/// The fault.
///
/// # Safety
/// If the access is allowed, [`RETURN`] is there.
pub(crate) unsafe fn try_exec(who: Who, at: VirtAddr) -> Result<(), Fault> {
    // SAFETY: the caller's promise; F2.
    unsafe {
        match who {
            Who::User => enter_user(&raw const flagstone_user_exec, at.0, 0),
            _ => who.make(|| flagstone_try_exec(at.0)),
        }
    }
    .map(drop)
}

/// Where an exception of the kernel came from, and what is to be there when it returns.
#[derive(Debug)]
pub(crate) struct Point<'a> {
    pub(crate) vector: u64,
    pub(crate) code: u64,
    pub(crate) rip: &'a mut u64,
    pub(crate) rsp: &'a mut u64,
    pub(crate) rax: &'a mut u64,
    pub(crate) rdx: &'a mut u64,
}

impl Point<'_> {
    fn say(&mut self) {
        *self.rax = Fault::word(self.vector, self.code);
        *self.rdx = if self.vector == PAGE_FAULT {
            x86_64::registers::control::Cr2::read_raw()
        } else {
            0
        };
    }

    /// Goes on after an access of the kernel that was allowed to fault; `false` if it was another.
    pub(crate) fn fix_up(&mut self) -> bool {
        if !matches!(self.vector, PROTECTION | PAGE_FAULT) {
            return false;
        }
        // SAFETY: a constant table of the assembly.
        let fixups = unsafe { &flagstone_fixups };
        if let Some(fixup) = fixups.iter().find(|fixup| fixup.at == *self.rip) {
            self.say();
            *self.rip = fixup.on;
            return true;
        }
        // F2: a fetch faults at the address that was called.
        let fetched = if self.vector == PAGE_FAULT {
            x86_64::registers::control::Cr2::read_raw() == *self.rip
        } else {
            (*self.rip << 16).cast_signed() >> 16 != (*self.rip).cast_signed()
        };
        let back = (&raw const flagstone_exec_return).addr() as u64;
        let stack = core::ptr::with_exposed_provenance::<u64>(*self.rsp as usize);
        // SAFETY: the kernel's stack, which has a return address at its end when code that was called has done nothing yet.
        if fetched && unsafe { stack.read() } == back {
            self.say();
            *self.rip = back;
            *self.rsp += 8;
            return true;
        }
        false
    }

    /// Leaves user mode, on a breakpoint without a fault.
    pub(crate) fn leave_user(&mut self, area: &Area) {
        if self.vector == BREAKPOINT {
            *self.rax = 0;
        } else {
            self.say();
        }
        *self.rip = (&raw const flagstone_user_left).addr() as u64;
        *self.rsp = area.user_return.load(core::sync::atomic::Ordering::Relaxed);
    }
}
