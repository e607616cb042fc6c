//! `malloc` and `free` of everybody who is linked into this program.

use crate::allocator::{Allocator, ByCall, Inlined};
use crate::{BATCH_SIZES, Error, PAIR_SIZES, Print, Scale, caches, loops, processors};
use core::ffi::c_void;
use flagstone_malloc::entry;

/// Who takes part. `flagstone` is called as the others are; `inlined` is the same without the call.
#[cfg(feature = "rivals")]
pub(crate) const SUBJECTS: &[&str] = &[
    "glibc",
    "jemalloc",
    "mimalloc",
    "snmalloc",
    "flagstone",
    "inlined",
];
#[cfg(not(feature = "rivals"))]
pub(crate) const SUBJECTS: &[&str] = &["glibc", "flagstone", "inlined"];

/// Who could take part.
#[cfg(feature = "rivals")]
pub(crate) const NOT_BUILT: &[&str] = &[];
#[cfg(not(feature = "rivals"))]
pub(crate) const NOT_BUILT: &[&str] = &["jemalloc", "mimalloc", "snmalloc"];

/// `malloc` as the shared library has it, instruction by instruction, under a name of its own.
#[unsafe(naked)]
extern "C" fn flagstone_malloc_by_call(size: usize) -> *mut c_void {
    flagstone_malloc::allocate_body!(allocate_slow)
}

extern "C" fn allocate_slow(size: usize) -> *mut c_void {
    entry::allocate_slow(size).cast()
}

/// `free`, likewise.
///
/// # Safety
/// As in C.
#[unsafe(naked)]
unsafe extern "C" fn flagstone_free_by_call(object: *mut c_void) {
    flagstone_malloc::free_body!(free_slow)
}

/// # Safety
/// As in C.
unsafe extern "C" fn free_slow(object: *mut c_void) {
    // SAFETY: as promised.
    unsafe { entry::free_slow(object.cast()) }
}

/// What is done with an allocator, whichever it is.
trait Work {
    fn on(self, allocator: &impl Allocator) -> Result<(), Error>;
}

fn with(subject: &str, work: impl Work) -> Result<(), Error> {
    processors::stay_on_first()?;
    match subject {
        "glibc" => work.on(&ByCall::new(libc::malloc, libc::free)),
        #[cfg(feature = "rivals")]
        "jemalloc" => work.on(&ByCall::new(
            tikv_jemalloc_sys::malloc,
            tikv_jemalloc_sys::free,
        )),
        #[cfg(feature = "rivals")]
        "mimalloc" => work.on(&ByCall::new(
            libmimalloc_sys::mi_malloc,
            libmimalloc_sys::mi_free,
        )),
        #[cfg(feature = "rivals")]
        "snmalloc" => work.on(&ByCall::new(snmalloc_sys::sn_malloc, snmalloc_sys::sn_free)),
        "flagstone" => {
            caches::claim()?;
            work.on(&ByCall::new(
                flagstone_malloc_by_call,
                flagstone_free_by_call,
            ))
        }
        _ => {
            caches::claim()?;
            work.on(&Inlined)
        }
    }
}

struct Pairs<'a, 'p> {
    scale: &'a Scale,
    print: &'a mut Print<'p>,
}

impl Work for Pairs<'_, '_> {
    fn on(self, allocator: &impl Allocator) -> Result<(), Error> {
        for &size in PAIR_SIZES {
            (self.print)(
                format!("linked-pair/{size}"),
                loops::pair(allocator, size, self.scale.slice),
            );
        }
        Ok(())
    }
}

pub(crate) fn pairs(subject: &str, scale: &Scale, print: &mut Print<'_>) -> Result<(), Error> {
    with(subject, Pairs { scale, print })
}

struct Batches<'a, 'p> {
    touch: bool,
    scale: &'a Scale,
    print: &'a mut Print<'p>,
}

impl Work for Batches<'_, '_> {
    fn on(self, allocator: &impl Allocator) -> Result<(), Error> {
        let name = if self.touch {
            "linked-touched"
        } else {
            "linked-batch"
        };
        let how = loops::How {
            touch: self.touch,
            cool: false,
        };
        for &size in BATCH_SIZES {
            loops::batch(allocator, size, how, self.scale).print(name, size, self.print);
        }
        Ok(())
    }
}

pub(crate) fn batches(
    subject: &str,
    touch: bool,
    scale: &Scale,
    print: &mut Print<'_>,
) -> Result<(), Error> {
    with(
        subject,
        Batches {
            touch,
            scale,
            print,
        },
    )
}
