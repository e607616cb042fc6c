//! Faults: those in the pool are reported, and everything else goes to whoever handles it.
//!
//! Our handler stays installed. What a program wants done with `SIGSEGV` is kept here when it asks for it ([`replace_handler`]), and is what
//! happens to every fault that is none of ours, as if we were not there.

use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;

use flagstone_host::classes::HostInner;

use crate::process::Lock;

use super::pool;

unsafe extern "C" {
    /// The C library's own name of `sigaction`, which nobody interposes.
    fn __sigaction(signal: i32, action: *const libc::sigaction, old: *mut libc::sigaction) -> i32;
}

/// What is to be done with a signal.
pub type Handler = libc::sigaction;

/// What the program wants done with faults that are not ours; as the kernel had it before us to begin with.
static WANTED: lock_api::Mutex<Lock<HostInner>, MaybeUninit<Handler>> =
    lock_api::Mutex::new(MaybeUninit::zeroed());

/// A write, in the error code of an x86 page fault.
const WRITE: i64 = 1 << 1;

pub(super) fn install() {
    // SAFETY: all-zero bytes are an action: the default one, with an empty mask.
    let mut action: Handler = unsafe { core::mem::zeroed() };
    action.sa_sigaction = handle as *const () as usize;
    // On the thread's own signal stack where it has one: the fault may be an overflow of the ordinary one.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART;
    let mut wanted = WANTED.lock();
    // SAFETY: both are actions that outlive the call.
    unsafe { __sigaction(libc::SIGSEGV, &raw const action, wanted.as_mut_ptr()) };
}

/// Notes what a program wants done with `SIGSEGV`, if `new` says so, and returns what it wanted before. For `sigaction` and its relatives, while
/// [`is_on`](super::is_on).
#[must_use]
pub fn replace_handler(new: Option<&Handler>) -> Handler {
    let mut wanted = WANTED.lock();
    // SAFETY: zeroed, or written since: an action either way.
    let old = unsafe { wanted.assume_init_read() };
    if let Some(new) = new {
        wanted.write(*new);
    }
    old
}

/// # Safety
/// Called by the kernel.
unsafe extern "C" fn handle(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel's structures, which live until the handler returns.
    let (code, address, error) = unsafe {
        let registers = &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        (
            (*info).si_code,
            (*info).si_addr().addr(),
            registers[libc::REG_ERR as usize],
        )
    };
    // A signal that was sent has a code that is not positive, and the sender where the address would be.
    if code > 0 && pool::contains(address) {
        pool::fault(address, error & WRITE != 0);
        return;
    }
    // SAFETY: as promised.
    unsafe { hand_on(signal, info, context, code > 0) }
}

/// Does what would have happened without us.
///
/// # Safety
/// The arguments are those of a handler that the kernel called.
unsafe fn hand_on(
    signal: i32,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
    is_fault: bool,
) {
    let wanted = replace_handler(None);
    match wanted.sa_sigaction {
        libc::SIG_IGN if !is_fault => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: all-zero bytes are the default action. The fault comes again and ends the process; a signal that was sent is sent again.
            unsafe {
                let default: Handler = core::mem::zeroed();
                __sigaction(signal, &raw const default, core::ptr::null_mut());
                if !is_fault {
                    libc::raise(signal);
                }
            }
        }
        handler => {
            if wanted.sa_flags & libc::SA_RESETHAND != 0 {
                // SAFETY: all-zero bytes are the default action.
                let _ = replace_handler(Some(&unsafe { core::mem::zeroed() }));
            }
            // SAFETY: the handler is the program's, called as the kernel would: with its mask, and the old one comes back with the
            // context when we return.
            unsafe {
                let mut mask = wanted.sa_mask;
                if wanted.sa_flags & libc::SA_NODEFER == 0 {
                    libc::sigaddset(&raw mut mask, signal);
                }
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const mask, core::ptr::null_mut());
                core::sync::atomic::compiler_fence(Ordering::SeqCst);
                if wanted.sa_flags & libc::SA_SIGINFO != 0 {
                    let call: unsafe extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                        core::mem::transmute(handler);
                    call(signal, info, context);
                } else {
                    let call: unsafe extern "C" fn(i32) = core::mem::transmute(handler);
                    call(signal);
                }
            }
        }
    }
}
