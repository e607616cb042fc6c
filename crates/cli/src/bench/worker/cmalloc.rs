//! The process's malloc, called through pointers that the compiler can not see through.
//!
//! A compiler knows what `malloc` and `free` do and removes a pair whose object nobody uses. A call through
//! a pointer it knows nothing of stays, and costs what a call through a shared library's table costs.

use anyhow::{Result, bail};
use std::ffi::{CStr, OsStr, c_void};
use std::hint::black_box;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr::NonNull;

/// An object of the process's malloc. It is freed by [`Malloc::free`] only.
#[derive(Debug)]
pub(super) struct Object(NonNull<c_void>);

// SAFETY: W2. An object belongs to whoever holds this value, in whatever thread.
unsafe impl Send for Object {}

impl Object {
    /// Writes to the first eight bytes, as a program does that uses its object.
    ///
    /// # Panics
    /// Never; objects of fewer than eight bytes are not made (see [`Malloc::alloc`]).
    pub(super) fn touch(&mut self) {
        // SAFETY: W1. The object has at least eight bytes and is ours; malloc aligns it to sixteen.
        unsafe { self.0.cast::<u64>().write_volatile(1) }
    }
}

/// `malloc` and `free`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Malloc {
    malloc: unsafe extern "C" fn(usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void),
}

impl Malloc {
    /// The functions of this process.
    pub(super) fn of_this_process() -> Self {
        Self {
            malloc: black_box(libc::malloc),
            free: black_box(libc::free),
        }
    }

    /// An object of `size` bytes, at least eight. Ends the process if there is no memory: a
    /// measurement would mean nothing any more.
    #[inline(always)]
    pub(super) fn alloc(self, size: usize) -> Object {
        debug_assert!(size >= 8);
        // SAFETY: W1. malloc may be called with any size.
        match NonNull::new(unsafe { (self.malloc)(size) }) {
            Some(pointer) => Object(pointer),
            None => no_memory(size),
        }
    }

    /// Frees an object.
    #[inline(always)]
    pub(super) fn free(self, object: Object) {
        // SAFETY: W1. The value came from `alloc`, can not be copied, and ends here.
        unsafe { (self.free)(object.0.as_ptr()) }
    }
}

#[cold]
#[inline(never)]
fn no_memory(size: usize) -> ! {
    eprintln!("malloc({size}) failed");
    std::process::exit(1)
}

/// The file of the library that provides `malloc` in this process.
pub(super) fn provider() -> Result<PathBuf> {
    // SAFETY: W3.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr()) };
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: W3. An address that is in no library, as null is, gives 0.
    let found = unsafe { libc::dladdr(address, &mut info) };
    if found == 0 || info.dli_fname.is_null() {
        bail!("no library provides malloc");
    }
    // SAFETY: W3. The loader's name of a loaded library lives as long as the library, which is never unloaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Ok(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}
