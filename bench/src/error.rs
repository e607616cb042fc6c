//! What can keep a measurement from being made.

use flagstone_types::AllocError;

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The job has no such subject.
    #[error("{job} has no subject {subject}")]
    NoSubject {
        /// The job's name.
        job: &'static str,
        /// What was asked for.
        subject: String,
    },
    /// The process has caches already (B1).
    #[error("this process has measured already; a subject needs a process of its own")]
    Taken,
    /// No memory, or no array.
    #[error("{what}: {error}")]
    Memory {
        /// What was to be made.
        what: &'static str,
        /// The allocator's answer.
        error: AllocError,
    },
    /// A thread could not be put on a CPU.
    #[error("running on CPU {cpu}: {error}")]
    Processor {
        /// The CPU's number.
        cpu: usize,
        /// The system's answer.
        error: std::io::Error,
    },
    /// A page table refused, or holds something else than what was put into it.
    #[error("page tables: {what}: {error}")]
    PageTable {
        /// What it was asked for.
        what: &'static str,
        /// Its answer.
        error: String,
    },
    /// The system named no CPU that this process may run on.
    #[error("no CPU to run on")]
    NoProcessor,
}

impl Error {
    /// For `map_err`: what was to be made when the allocator refused.
    pub(crate) fn memory(what: &'static str) -> impl Fn(AllocError) -> Self {
        move |error| Self::Memory { what, error }
    }
}
