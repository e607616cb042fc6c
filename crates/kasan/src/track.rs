//! Who allocated or freed an object, where and when: what is kept with each object.

use flagstone_types::{CpuId, Nanos};

use crate::Handle;

/// One event of an object's life. All zero means that nothing was recorded.
///
/// It may lie in memory that a broken program wrote to: every pattern of bits is a value, and a handle that the depot did not give is no
/// stack (D4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Track {
    /// When, on the host's clock.
    pub when: Nanos,
    /// The call stack.
    pub stack: Handle,
    /// The CPU it happened on.
    pub cpu: CpuId,
    /// The thread or process.
    pub task: u32,
}

impl Track {
    /// Whether anything was recorded.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        *self != Self::default()
    }
}

const _: () = assert!(size_of::<Track>() == 24 && align_of::<Track>() == 8);
