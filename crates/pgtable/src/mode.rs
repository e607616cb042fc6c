//! The two forms of every operation: shared with other contexts, or by the only one that has the page table.

use core::cell::Cell;
use core::marker::PhantomData;
use flagstone_host::Machine;

mod sealed {
    pub trait Sealed {}
}

/// Who else may reach the page table while an operation runs.
pub trait Mode: sealed::Sealed + Copy + core::fmt::Debug + 'static {
    /// Whether other contexts may: then tables are locked and validated and die by a grace period.
    const SHARED: bool;
}

/// Any context may walk and change the page table.
#[derive(Clone, Copy, Debug)]
pub struct Shared;

/// The caller borrows the page table mutably (E1). It can not be shared between threads, nor can the operations, which would be several contexts then:
///
/// ```compile_fail,E0277
/// fn between_threads<T: Sync>() {}
/// between_threads::<flagstone_pgtable::Exclusive>();
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Exclusive(PhantomData<Cell<()>>);

impl sealed::Sealed for Shared {}
impl sealed::Sealed for Exclusive {}

impl Mode for Shared {
    const SHARED: bool = true;
}
impl Mode for Exclusive {
    const SHARED: bool = false;
}

/// A walk: while it lasts tables that were found by walking stay tables (D6, E1).
pub(crate) struct Section<'h, H: Machine + 'h> {
    _guard: Option<H::ReadGuard<'h>>,
}

impl<'h, H: Machine> Section<'h, H> {
    #[inline(always)]
    pub(crate) fn begin<M: Mode>(host: &'h H) -> Self {
        let _guard = if M::SHARED { Some(host.read()) } else { None };
        Self { _guard }
    }
}
