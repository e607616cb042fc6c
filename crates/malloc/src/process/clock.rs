//! Time: the kernel's coarse monotonic clock, read from the vDSO's page without a system call where
//! there is a vDSO. Its resolution is the kernel's tick (1 to 10 ms), which is enough to age what is cached.

use core::sync::atomic::{AtomicUsize, Ordering};

use flagstone_types::Nanos;

use super::elf::Image;
use super::syscall;

type Gettime = unsafe extern "C" fn(i32, *mut libc::timespec) -> i32;

/// The address of the vDSO's function; 0 stands for absent.
static GETTIME: AtomicUsize = AtomicUsize::new(0);

/// Finds the function in the vDSO whose header is at `vdso` (or 0).
pub(super) fn start(vdso: usize) {
    // SAFETY: P4, the address comes from the auxiliary vector.
    let Some(image) = (unsafe { Image::at(vdso) }) else {
        return;
    };
    GETTIME.store(
        image.find(c"__vdso_clock_gettime").unwrap_or(0),
        Ordering::Relaxed,
    );
}

/// Time since the system started.
pub(super) fn now() -> Nanos {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let id = libc::CLOCK_MONOTONIC_COARSE;
    let function = GETTIME.load(Ordering::Relaxed);
    if function != 0 {
        // SAFETY: P4, the address is that of the vDSO's function, which has this type.
        let function = unsafe { core::mem::transmute::<usize, Gettime>(function) };
        // SAFETY: the structure outlives the call.
        if unsafe { function(id, &raw mut time) } == 0 {
            return nanos(&time);
        }
    }
    // SAFETY: the kernel fills the exclusively borrowed structure.
    let _ = unsafe {
        syscall::call(
            libc::SYS_clock_gettime,
            [id as usize, &raw mut time as usize, 0, 0, 0, 0],
        )
    };
    nanos(&time)
}

fn nanos(time: &libc::timespec) -> Nanos {
    Nanos(
        (time.tv_sec as u64)
            .wrapping_mul(1_000_000_000)
            .wrapping_add(time.tv_nsec as u64),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::startup::Startup;

    #[test]
    fn time_goes_on_with_and_without_the_vdso() {
        let by_call = now();
        start(Startup::find().vdso);
        let before = now();
        assert!(before >= by_call);
        std::thread::sleep(std::time::Duration::from_millis(30));
        let passed = now().since(before).0;
        assert!((10_000_000..5_000_000_000).contains(&passed), "{passed}");
    }
}
