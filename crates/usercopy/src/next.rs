//! The functions that are interposed, as the next object after this one has them.

use core::ffi::{CStr, c_void};
use core::marker::PhantomData;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

/// A function of the type `F`, looked up at its first use.
pub(crate) struct Next<F> {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
    of: PhantomData<F>,
}

impl<F: Copy> Next<F> {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        Self {
            name,
            address: AtomicPtr::new(null_mut()),
            of: PhantomData,
        }
    }

    /// The function; looked up if it was not yet. A process whose C library does not have it ends, as it would have by the loader's word.
    #[inline]
    pub(crate) fn get(&self) -> F {
        match self.known() {
            Some(function) => function,
            None => self.look_up(),
        }
    }

    /// The function, if it was looked up.
    #[inline(always)]
    pub(crate) fn known(&self) -> Option<F> {
        let address = self.address.load(Ordering::Relaxed);
        // SAFETY: U2, the address of a function of this type, of a pointer's size.
        (!address.is_null()).then(|| unsafe { core::mem::transmute_copy(&address) })
    }

    #[cold]
    #[inline(never)]
    fn look_up(&self) -> F {
        // SAFETY: the name is a C string.
        let address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if address.is_null() {
            // SAFETY: abort has no preconditions.
            unsafe { libc::abort() }
        }
        self.address.store(address, Ordering::Relaxed);
        // SAFETY: U2.
        unsafe { core::mem::transmute_copy(&address) }
    }
}
