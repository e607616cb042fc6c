//! The image: what an executable without a standard library has to name, around the library that is the kernel.
//!
//! Built as `MODEL.md` says; the entry is in `asm/start.s`.
#![no_std]
#![no_main]

#[cfg(panic = "unwind")]
compile_error!(
    "the image is built with panic = \"abort\": \
     CARGO_PROFILE_DEV_PANIC=abort cargo build -p flagstone-kernel --features image"
);

#[global_allocator]
static HEAP: flagstone_kernel::Heap = flagstone_kernel::Heap;

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    flagstone_kernel::panicked(info)
}

/// What the prebuilt core library names for unwinding, which never happens.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

/// As above.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    panic!("unwinding in an image that aborts")
}
