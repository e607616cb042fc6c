//! What was found wrong: the first text is kept, and tells everybody to stop.

use crate::spin::Spin;
use alloc::string::String;
use core::sync::atomic::{AtomicBool, Ordering};

/// See the module.
#[derive(Debug)]
pub(crate) struct Findings {
    found: AtomicBool,
    first: Spin<Option<String>>,
}

impl Findings {
    pub(crate) const fn new() -> Self {
        Self {
            found: AtomicBool::new(false),
            first: Spin::new(None),
        }
    }

    /// Something is wrong.
    pub(crate) fn add(&self, text: String) {
        self.first.lock().get_or_insert(text);
        self.found.store(true, Ordering::Release);
    }

    /// Adds what went wrong, if something did.
    pub(crate) fn check(&self, result: Result<(), String>) {
        if let Err(text) = result {
            self.add(text);
        }
    }

    /// Whether something is wrong.
    pub(crate) fn any(&self) -> bool {
        self.found.load(Ordering::Acquire)
    }

    /// # Panics
    /// If something is wrong, with its text.
    #[track_caller]
    pub(crate) fn assert_none(&self) {
        if let Some(text) = self.first.lock().take() {
            panic!("{text}");
        }
    }
}
