//! C++: `operator delete` in all forms, and the forms of `operator new` that do not throw.
//!
//! The forms that throw stay the C++ library's, which calls `malloc`: only that library can throw.

use core::ffi::c_void;

use flagstone_malloc::entry;

macro_rules! deletes {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {
        $(
            /// A form of `operator delete`.
            ///
            /// # Safety
            /// As in C++.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(object: *mut c_void, $($argument: $type),*) {
                // SAFETY: the caller's promise.
                unsafe { entry::free(object.cast()) }
            }
        )*
    };
}

deletes! {
    _ZdlPv();
    _ZdaPv();
    _ZdlPvm(_size: usize);
    _ZdaPvm(_size: usize);
    _ZdlPvRKSt9nothrow_t(_nothrow: *const c_void);
    _ZdaPvRKSt9nothrow_t(_nothrow: *const c_void);
    _ZdlPvSt11align_val_t(_align: usize);
    _ZdaPvSt11align_val_t(_align: usize);
    _ZdlPvmSt11align_val_t(_size: usize, _align: usize);
    _ZdaPvmSt11align_val_t(_size: usize, _align: usize);
    _ZdlPvSt11align_val_tRKSt9nothrow_t(_align: usize, _nothrow: *const c_void);
    _ZdaPvSt11align_val_tRKSt9nothrow_t(_align: usize, _nothrow: *const c_void);
}

/// The C++ library's own function of this name, which calls the program's new-handler until there is memory or none is left.
#[cold]
#[inline(never)]
fn next(name: &core::ffi::CStr) -> *mut c_void {
    // SAFETY: the name is a C string.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

/// `new (std::nothrow) T`: null if there is no memory after the new-handler has had its say.
#[unsafe(no_mangle)]
pub extern "C" fn _ZnwmRKSt9nothrow_t(size: usize, nothrow: *const c_void) -> *mut c_void {
    let object = entry::allocate(size).cast::<c_void>();
    if object.is_null() {
        ask_library(c"_ZnwmRKSt9nothrow_t", size, nothrow)
    } else {
        object
    }
}

/// `new (std::nothrow) T[n]`.
#[unsafe(no_mangle)]
pub extern "C" fn _ZnamRKSt9nothrow_t(size: usize, nothrow: *const c_void) -> *mut c_void {
    let object = entry::allocate(size).cast::<c_void>();
    if object.is_null() {
        ask_library(c"_ZnamRKSt9nothrow_t", size, nothrow)
    } else {
        object
    }
}

#[cold]
#[inline(never)]
fn ask_library(name: &core::ffi::CStr, size: usize, nothrow: *const c_void) -> *mut c_void {
    let function = next(name);
    if function.is_null() {
        return function;
    }
    type New = unsafe extern "C" fn(usize, *const c_void) -> *mut c_void;
    // SAFETY: the symbol of this name has this type in every C++ library of this platform.
    unsafe { core::mem::transmute::<*mut c_void, New>(function)(size, nothrow) }
}

/// `new (std::align_val_t, std::nothrow) T`.
#[unsafe(no_mangle)]
pub extern "C" fn _ZnwmSt11align_val_tRKSt9nothrow_t(
    size: usize,
    align: usize,
    nothrow: *const c_void,
) -> *mut c_void {
    aligned(c"_ZnwmSt11align_val_tRKSt9nothrow_t", size, align, nothrow)
}

/// `new (std::align_val_t, std::nothrow) T[n]`.
#[unsafe(no_mangle)]
pub extern "C" fn _ZnamSt11align_val_tRKSt9nothrow_t(
    size: usize,
    align: usize,
    nothrow: *const c_void,
) -> *mut c_void {
    aligned(c"_ZnamSt11align_val_tRKSt9nothrow_t", size, align, nothrow)
}

fn aligned(
    name: &core::ffi::CStr,
    size: usize,
    align: usize,
    nothrow: *const c_void,
) -> *mut c_void {
    if align.is_power_of_two() {
        let object = entry::allocate_aligned(size, align).cast::<c_void>();
        if !object.is_null() {
            return object;
        }
    }
    let function = next(name);
    if function.is_null() {
        return function;
    }
    type New = unsafe extern "C" fn(usize, usize, *const c_void) -> *mut c_void;
    // SAFETY: as for `ask_library`.
    unsafe { core::mem::transmute::<*mut c_void, New>(function)(size, align, nothrow) }
}
