//! What the parts of the process host ask of the kernel: who sleeps lets others go on.

use flagstone_weak::atomic::{AtomicU32, Ordering};

/// Sleeps if the word has that value; may wake for no reason.
pub(crate) fn futex_wait(word: &impl Word, value: u32) {
    if word.now() == value {
        flagstone_weak::spin();
    }
}

/// Sleepers look by themselves.
pub(crate) fn futex_wake(_: &impl Word, _: u32) {}

pub(crate) fn wait_a_little(_: u32) {
    flagstone_weak::spin();
}

/// The word of a lock, of whichever atomics the sources were built with.
pub(crate) trait Word {
    fn now(&self) -> u32;
}

impl Word for AtomicU32 {
    fn now(&self) -> u32 {
        self.load(Ordering::SeqCst)
    }
}

impl Word for core::sync::atomic::AtomicU32 {
    fn now(&self) -> u32 {
        self.load(core::sync::atomic::Ordering::SeqCst)
    }
}
