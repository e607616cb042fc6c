//! The C interface of Flagstone's malloc: what `flagstone run` preloads, and what a C program can link.
//!
//! Every function is a few lines over `flagstone_malloc`, with the errors, `errno` and corner cases of the GNU C
//! library. Nothing here keeps state.
//!
//! | file | what |
//! | --- | --- |
//! | `memory.rs` | `malloc`, `free`, `calloc`, `realloc`, aligned and sized forms |
//! | `statistics.rs` | `mallinfo`, `mallopt`, `malloc_info`, `malloc_stats`, `malloc_trim` |
//! | `cxx.rs` | C++ `operator delete`, and `operator new` that does not throw |
//! | `limits.rs` | `setrlimit`, `prlimit`: a lower limit of address space makes the heap's reservation smaller |
//! | `vfork.rs` | `vfork`: per-CPU arrays are stopped while a child shares the memory |
//! | `signals.rs` | `sigaction`, `signal`: faults in guard pages are told from the program's own |
//! | `caches.rs` | object caches: `flagstone.h` |
#![cfg_attr(panic = "abort", no_std)]
#![allow(
    unreachable_pub,
    reason = "what is exported is reached by its symbol, not by a path"
)]

mod caches;
mod cxx;
mod limits;
mod memory;
mod signals;
mod statistics;
mod vfork;

/// The version of the library, as a C string. A symbol that no other allocator has.
#[unsafe(no_mangle)]
pub static FLAGSTONE_VERSION: [u8; VERSION.len()] = {
    let mut bytes = [0; VERSION.len()];
    let mut i = 0;
    while i < bytes.len() {
        bytes[i] = VERSION.as_bytes()[i];
        i += 1;
    }
    bytes
};

const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

/// Runs when the library is loaded: a program that never allocates may still register fork handlers, and ours have to be there before
/// them, so that theirs can allocate.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = {
    extern "C" fn at_load() {
        // Without memory the first allocation says so.
        let _ = flagstone_malloc::heap::heap();
    }
    at_load
};

/// Runs when the process ends in the ordinary way.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = {
    extern "C" fn at_exit() {
        flagstone_malloc::report::at_exit();
    }
    at_exit
};

#[cfg(panic = "abort")]
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    flagstone_malloc::fatal(format_args!("{info}"))
}

// The prebuilt `core` names a personality in its unwind tables, which nothing here ever unwinds by. Hidden, since a program may have
// a real one.
#[cfg(panic = "abort")]
core::arch::global_asm!(
    ".pushsection .text.rust_eh_personality, \"ax\", @progbits",
    ".globl rust_eh_personality",
    ".hidden rust_eh_personality",
    "rust_eh_personality: ud2",
    ".popsection",
);
