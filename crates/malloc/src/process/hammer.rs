//! A hammer on every form of arrays: threads that pop and push, alone and in bulk, are moved between CPUs, signalled and
//! drained from outside, while limits change. Every object has a word that says who owns it, so that an object
//! handed out twice is seen at once and one that was lost is missing at the end.
//!
//! Short by default; `FLAGSTONE_HAMMER_SECONDS` makes it as long as wanted. The modes that a process decides on at start
//! are tested by running this test program again with another environment.

use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::vec::Vec;

use flagstone_host::{ArrayParams, CpuCache, Cpus, Host, Push};
use flagstone_types::CpuId;

use super::tests::ALONE;
use super::*;

const THREADS: u64 = 6;
const OBJECTS: usize = 1536;
const CAPACITY: u32 = 120;

/// An object: its owner (0 while it is in a stack), and the place for a link.
#[repr(C, align(16))]
struct Object {
    owner: AtomicU64,
    link: AtomicU64,
}

fn owner(object: NonNull<u8>) -> &'static AtomicU64 {
    // SAFETY: objects are leaked and begin with the word.
    unsafe { &(*object.cast::<Object>().as_ptr()).owner }
}

/// Notes that `object` came out of a stack.
fn claim(object: NonNull<u8>, me: u64) {
    assert_eq!(
        owner(object).swap(me, Ordering::Relaxed),
        0,
        "{object:?} was handed out twice"
    );
}

/// Notes that `object` goes into a stack.
fn yield_up(object: NonNull<u8>, me: u64) {
    assert_eq!(
        owner(object).swap(0, Ordering::Relaxed),
        me,
        "{object:?} was another's"
    );
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Puts this thread on a CPU; `false` if it may not run there.
pub(super) fn run_on(cpu: usize) -> bool {
    // SAFETY: all-zero bytes are an empty set.
    let mut set: libc::cpu_set_t = unsafe { core::mem::zeroed() };
    // SAFETY: the number is below the size of the set.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the set outlives the call. A CPU that may not be used is refused, which does no harm here.
    unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) == 0 }
}

extern "C" fn on_signal(_: i32) {}

fn one_thread<A: CpuCache>(
    array: &A,
    me: u64,
    mut held: Vec<NonNull<u8>>,
    stop: &AtomicBool,
) -> Vec<NonNull<u8>> {
    let cpus = topology::allowed_cpus().max(1) as usize;
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ (me << 32));
    while !stop.load(Ordering::Relaxed) {
        let r = random.next();
        match r % 64 {
            0 if r.is_multiple_of(4096) => {
                let _ = run_on((r >> 40) as usize % cpus);
            }
            1..=3 => {
                let mut into = [MaybeUninit::uninit(); 24];
                let taken = array.pop_n(&mut into[..(r >> 8) as usize % 25]);
                for object in &into[..taken] {
                    // SAFETY: A1, the first `taken` were filled.
                    let object = unsafe { object.assume_init() };
                    claim(object, me);
                    held.push(object);
                }
            }
            4..=6 => {
                let many = ((r >> 8) as usize % 25).min(held.len());
                let from = held.len() - many;
                held[from..].iter().for_each(|o| yield_up(*o, me));
                // SAFETY: the objects are ours and have room for a link.
                let taken = unsafe { array.push_n(&held[from..]) };
                let rest = held.len() - taken;
                // Those that were not taken are still ours, and nobody else touched their words.
                held[from..rest].iter().for_each(|o| claim(*o, me));
                held.truncate(rest);
            }
            7 if r >> 20 & 0xff == 0 => {
                array.set_limit(
                    CpuId((r >> 40) as u32 % cpus as u32),
                    (r >> 8) as u32 % (CAPACITY + 1),
                );
            }
            n if n % 2 == 0 => {
                if let Some(object) = array.pop() {
                    claim(object, me);
                    held.push(object);
                }
            }
            _ => {
                if let Some(object) = held.pop() {
                    yield_up(object, me);
                    // SAFETY: the object is ours and has room for a link.
                    match unsafe { array.push(object) } {
                        Push::Done => {}
                        Push::Full => {
                            claim(object, me);
                            held.insert(0, object);
                        }
                        Push::OnTop => panic!("an object of ours was in the stack"),
                    }
                }
            }
        }
    }
    held
}

/// Runs the hammer on form `F` and says how many objects drains found and how many times sections were restarted.
fn hammer<F: ArrayForm>(threads: u64) -> (u64, u64) {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let host = ProcessWith::<F>::start();
    let params = ArrayParams {
        capacity: CAPACITY,
        link_offset: 8,
    };
    let mut array = host.new_array(params).unwrap();
    for cpu in 0..host.possible_cpus() {
        array.set_limit(CpuId(cpu), CAPACITY);
    }
    let objects: Vec<Object> = (0..OBJECTS)
        .map(|n| Object {
            owner: AtomicU64::new(1 + n as u64 % threads),
            link: AtomicU64::new(0),
        })
        .collect();
    let objects = objects.leak();
    let pointers: Vec<_> = objects
        .iter()
        .map(|o| NonNull::from(o).cast::<u8>())
        .collect();
    // SAFETY: the handler does nothing.
    unsafe { libc::signal(libc::SIGUSR1, on_signal as *const () as usize) };
    let seconds = std::env::var("FLAGSTONE_HAMMER_SECONDS")
        .ok()
        .and_then(|s| s.parse().ok());
    let duration = seconds.map_or(Duration::from_millis(1200), Duration::from_secs);
    let aborts = fast::aborts();
    let stop = AtomicBool::new(false);
    let ids = std::sync::Mutex::new(Vec::new());
    let mut drained = 0;
    let mut found: Vec<NonNull<u8>> = std::thread::scope(|scope| {
        let handles: Vec<_> = (1..=threads)
            .map(|me| {
                let mine: Vec<usize> = pointers
                    .iter()
                    .skip(me as usize - 1)
                    .step_by(threads as usize)
                    .map(|p| p.as_ptr() as usize)
                    .collect();
                let (array, stop, ids) = (&array, &stop, &ids);
                scope.spawn(move || {
                    // SAFETY: no preconditions.
                    ids.lock().unwrap().push(unsafe { libc::pthread_self() });
                    let mine = mine
                        .iter()
                        .map(|p| NonNull::new(*p as *mut u8).unwrap())
                        .collect();
                    one_thread(array, me, mine, stop)
                        .iter()
                        .map(|p| p.as_ptr() as usize)
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        let mut kept = Vec::new();
        let end = Instant::now() + duration;
        let mut round = 0u32;
        while Instant::now() < end {
            for id in ids
                .lock()
                .unwrap()
                .iter()
                .filter(|_| round.is_multiple_of(4))
            {
                // SAFETY: the threads live until `stop` is set, and the handler does nothing.
                unsafe { libc::pthread_kill(*id, libc::SIGUSR1) };
            }
            std::thread::sleep(Duration::from_micros(200));
            round += 1;
            if threads > 1
                && let Some(stopped) = host.stop_arrays()
            {
                for cpu in 0..host.possible_cpus() {
                    host.drain(&stopped, &array, CpuId(cpu), &mut |objects| {
                        drained += objects.len() as u64;
                        for object in objects {
                            claim(*object, 100);
                            kept.push(*object);
                        }
                    });
                }
                drop(stopped);
            }
            // Give them back, mostly.
            while let Some(object) = kept.pop() {
                yield_up(object, 100);
                // SAFETY: the object is ours and has room for a link.
                if threads == 1 || unsafe { array.push(object) } != Push::Done {
                    claim(object, 100);
                    kept.push(object);
                    break;
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        let theirs = handles.into_iter().flat_map(|h| h.join().unwrap());
        kept.extend(theirs.map(|p| NonNull::new(p as *mut u8).unwrap()));
        kept
    });
    for cpu in 0..host.possible_cpus() {
        host.drain_unshared(&mut array, CpuId(cpu), &mut |objects| {
            objects.iter().for_each(|o| claim(*o, 100));
            found.extend_from_slice(objects);
        });
        assert_eq!(array.len(CpuId(cpu)), 0);
    }
    found.sort_unstable();
    assert!(
        found.windows(2).all(|w| w[0] != w[1]),
        "an object is there twice"
    );
    assert_eq!(found.len(), OBJECTS, "objects were lost");
    std::println!(
        "mode {} aborts {} drained {drained}",
        host.mode().name(),
        fast::aborts() - aborts
    );
    (drained, fast::aborts() - aborts)
}

#[test]
fn restartable_arrays_lose_nothing() {
    let (drained, aborts) = hammer::<Restartable>(THREADS);
    if matches!(Process::start().mode(), Mode::Cpu | Mode::Concurrency) {
        assert!(aborts > 0, "no section was restarted, so nothing was shown");
    }
    assert!(drained > 0);
}

#[test]
fn arrays_under_exchange_locks_lose_nothing() {
    assert!(hammer::<ExchangeLock>(THREADS).0 > 0);
}

#[test]
fn arrays_with_transaction_ids_lose_nothing() {
    assert!(hammer::<TransactionArray>(THREADS).0 > 0);
}

#[test]
fn lists_with_transaction_ids_lose_nothing() {
    assert!(hammer::<TransactionList>(THREADS).0 > 0);
}

#[test]
fn plain_arrays_lose_nothing_in_one_thread() {
    hammer::<Plain>(1);
}

/// Runs a test of this program in a process of its own and returns what it printed.
pub(super) fn again(test: &str, environment: &[(&str, &str)]) -> std::string::String {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--include-ignored"])
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    let text = std::string::String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = std::string::String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}{errors}");
    assert!(text.contains("1 passed"), "{text}");
    text + &errors
}

const RESTARTABLE: &str = "process::hammer::restartable_arrays_lose_nothing";

#[test]
fn without_restartable_sequences_exchange_locks_do_the_same() {
    let text = again(RESTARTABLE, &[("GLIBC_TUNABLES", "glibc.pthread.rseq=0")]);
    assert!(text.contains("mode exchange aborts 0 "), "{text}");
    let text = again(RESTARTABLE, &[("FLAGSTONE_ARRAY", "exchange")]);
    assert!(text.contains("mode exchange aborts 0 "), "{text}");
}

#[test]
fn concurrency_ids_do_the_same() {
    let text = again(RESTARTABLE, &[("FLAGSTONE_ARRAY", "cid")]);
    let startup = Startup::find();
    if Registered::find(startup.loader, startup.rseq_features).is_some_and(|r| r.concurrency_id) {
        assert!(text.contains("mode cid"), "{text}");
    }
}
