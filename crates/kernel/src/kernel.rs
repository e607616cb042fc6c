//! The machine as a value: what the layers above are given. It has no size; everything is in statics and in
//! the areas of the CPUs.

use flagstone_host::{LockClass, Machine};

/// The machine that this image runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel;

impl Machine for Kernel {
    type Lock<C: LockClass> = crate::lock::SpinLock<C>;
}
