//! On which CPU a thread runs.

use crate::Error;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

fn refused(cpu: usize) -> impl Fn(rustix::io::Errno) -> Error {
    move |error| Error::Processor {
        cpu,
        error: error.into(),
    }
}

/// The CPUs that this process may run on.
///
/// # Errors
/// [`Error::NoProcessor`] if the system names none.
pub(crate) fn allowed() -> Result<Vec<usize>, Error> {
    let set = sched_getaffinity(None).map_err(refused(0))?;
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|cpu| set.is_set(*cpu))
        .collect();
    if cpus.is_empty() {
        Err(Error::NoProcessor)
    } else {
        Ok(cpus)
    }
}

/// Keeps this thread, and those that it starts, on one CPU.
///
/// # Errors
/// [`Error::Processor`] if the system refuses.
pub(crate) fn stay_on(cpu: usize) -> Result<(), Error> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(refused(cpu))
}

/// Keeps this thread on the first CPU that it may run on, as every subject of one thread does.
pub(crate) fn stay_on_first() -> Result<(), Error> {
    stay_on(allowed()?[0])
}
