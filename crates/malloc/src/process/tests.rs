//! The process host as a whole.

use core::ptr::NonNull;
use std::string::ToString;
use std::sync::Mutex;
use std::vec::Vec;

use flagstone_host::{ArrayParams, CpuCache, Cpus, Entropy, Grace, Host, Push};

use super::hammer::again;
use super::*;

/// Held by tests that use arrays: whoever stops them stops everybody's.
pub(super) static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn the_host_knows_its_cpus() {
    let host = Process::start();
    assert!(Process::get().is_some());
    assert!(host.possible_cpus() >= topology::allowed_cpus().min(1));
    assert!(host.current_cpu().0 < host.possible_cpus());
    assert!(host.is_online(host.current_cpu()));
    assert!(host.node_of(host.current_cpu()).0 < host.nodes() as u16);
    assert_eq!(host.current_node(), host.node_of(host.current_cpu()));
    assert_ne!(host.random(), host.random());
}

#[test]
fn many_threads_may_start_the_host_at_once() {
    let modes: Vec<_> = (0..8)
        .map(|_| std::thread::spawn(|| Process::start().mode()))
        .collect();
    let modes: Vec<_> = modes.into_iter().map(|t| t.join().unwrap()).collect();
    assert!(
        modes
            .iter()
            .all(|m| *m == modes[0] && *m != Mode::Unstarted)
    );
}

/// Runs `check` in the child of a fork and returns whether it was true there.
fn in_child(check: impl FnOnce() -> bool) -> bool {
    let host = Process::start();
    host.prepare_fork();
    // SAFETY: the child only runs `check`, which uses this host and what the fork left in order, and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: prepared above; this is the child.
        unsafe { host.after_fork_in_child() };
        let status = i32::from(!check());
        // SAFETY: ends the child without running anything else.
        unsafe { libc::_exit(status) };
    }
    // SAFETY: prepared above; this is the parent.
    unsafe { host.after_fork_in_parent() };
    let mut status = -1;
    // SAFETY: the word outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

#[test]
fn the_child_of_a_fork_goes_on_at_once() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let host = Process::start();
    let array = host
        .new_array(ArrayParams {
            capacity: 50,
            link_offset: 0,
        })
        .unwrap();
    (0..host.possible_cpus()).for_each(|cpu| array.set_limit(CpuId(cpu), 50));
    let word = 0u64;
    let object = NonNull::from(&word).cast::<u8>();
    let (host_locks, stop) = (&host, core::sync::atomic::AtomicBool::new(false));
    std::thread::scope(|scope| {
        // Readers, growing and stopping threads that the children do not have.
        for n in 0..3u16 {
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let _guard = host_locks.read();
                    match n {
                        0 => drop(host_locks.grow(Nid(0), 1)),
                        1 => drop(host_locks.stop_arrays()),
                        _ => std::thread::yield_now(),
                    }
                }
            });
        }
        let before = host.random();
        for _ in 0..40 {
            assert!(in_child(|| {
                host.synchronize();
                let stopped = host.stop_arrays().is_some();
                // SAFETY: the object is ours.
                let pushed = unsafe { array.push(object) } == Push::Done;
                let popped = array.pop() == Some(object);
                stopped
                    && pushed
                    && popped
                    && host.grow(Nid(0), 1).is_ok()
                    && host.random() != before
            }));
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
#[ignore = "run by another test with settings in the environment"]
fn with_settings() {
    let host = Process::start();
    assert_eq!(
        host.settings().retain,
        Some(flagstone_types::Bytes(1 << 20))
    );
    // What start and a call of every service leave of errno.
    // SAFETY: the C library's own word.
    unsafe { *libc::__errno_location() = 77 };
    assert!(host.grow(Nid(0), usize::MAX >> 20).is_err());
    flagstone_host::Clock::now(&host);
    // SAFETY: as above.
    assert_eq!(unsafe { *libc::__errno_location() }, 77);
}

#[test]
fn settings_come_from_the_environment_and_wrong_ones_are_named() {
    let text = again(
        "process::tests::with_settings",
        &[
            ("FLAGSTONE_RETAIN", "1M"),
            ("FLAGSTONE_WRONG", "1"),
            ("FLAGSTONE_VERBOSE", "1"),
        ],
    );
    assert!(
        text.contains("flagstone: setting FLAGSTONE_WRONG is unknown, ignored\n"),
        "{text}"
    );
    assert!(text.contains("flagstone: arrays by "), "{text}");
}

#[test]
fn a_thread_that_slept_is_known() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let host = Process::start();
    if !matches!(host.mode(), Mode::Cpu | Mode::Concurrency) {
        return;
    }
    let array = host
        .new_array(ArrayParams {
            capacity: 4,
            link_offset: 0,
        })
        .unwrap();
    std::thread::sleep(std::time::Duration::from_millis(5));
    assert!((0..100).any(|_| {
        array.pop();
        !fast::slept()
    }));
    std::thread::sleep(std::time::Duration::from_millis(5));
    assert!(fast::slept());
}

#[test]
fn sections_run_also_if_the_loader_was_started_as_a_program() {
    let text = again(
        "process::tests::the_host_knows_its_cpus",
        &[("FLAGSTONE_VERBOSE", "1")],
    );
    let loader = "/lib64/ld-linux-x86-64.so.2";
    if !std::path::Path::new(loader).exists() {
        return;
    }
    let output = std::process::Command::new(loader)
        .arg(std::env::current_exe().unwrap())
        .args([
            "process::tests::the_host_knows_its_cpus",
            "--exact",
            "--nocapture",
        ])
        .env("FLAGSTONE_VERBOSE", "1")
        .output()
        .unwrap();
    let line = |text: &str| {
        text.lines()
            .find(|l| l.contains("arrays by"))
            .map(ToString::to_string)
    };
    let errors = std::string::String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    assert_eq!(line(&errors), line(&text));
}

/// Makes the kernel refuse `membarrier` from now on, as a program that confines itself may.
fn refuse_membarrier() -> bool {
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let statement = |code: u32, jt, jf, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    // The number of the call is the first word of what a filter sees.
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            0,
            1,
            libc::SYS_membarrier as u32,
        ),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, refuse),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the filter outlives the calls, which copy it.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program,
            ) == 0
    }
}

#[test]
#[ignore = "run by another test in a process of its own, which it confines"]
fn confined() {
    let host = Process::start();
    let mut array = host
        .new_array(ArrayParams {
            capacity: 4,
            link_offset: 0,
        })
        .unwrap();
    (0..host.possible_cpus()).for_each(|cpu| array.set_limit(CpuId(cpu), 4));
    drop(host.stop_arrays().unwrap());
    // A filter is a thread's own: everything that follows is done by this one.
    if !refuse_membarrier() || host.mode() == Mode::Exchange {
        return;
    }
    assert!(host.stop_arrays().is_none());
    let word = 0u64;
    let object = NonNull::from(&word).cast::<u8>();
    let _ = super::hammer::run_on(0);
    // SAFETY: the object is ours.
    let pushed = unsafe { array.push(object) };
    assert_eq!(pushed, Push::Done, "nothing is stopped");
    let mut drained = 0;
    for cpu in 0..host.possible_cpus() {
        host.drain_unshared(&mut array, CpuId(cpu), &mut |objects| {
            drained += objects.len()
        });
    }
    assert_eq!(drained, 1);
}

#[test]
fn a_program_that_confines_itself_keeps_its_arrays() {
    again("process::tests::confined", &[]);
}
