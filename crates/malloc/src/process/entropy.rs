//! Random numbers: SipHash of a counter under a key that nobody outside the process knows.
//!
//! The key is made from the kernel's random bytes if it has some ready, the sixteen bytes that every program
//! gets at its start, the time, and addresses; the first source that is good makes it good.

use core::hash::Hasher as _;
use core::sync::atomic::{AtomicU64, Ordering};

use siphasher::sip::SipHasher24;

use super::{clock, syscall};

static KEY: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
static COUNTER: AtomicU64 = AtomicU64::new(0);

/// Makes a key; `start_bytes` is the address of the program's sixteen random bytes, or 0.
pub(super) fn start(start_bytes: usize) {
    let mut hashed = [0u64; 2];
    if start_bytes != 0 {
        // SAFETY: P2, `AT_RANDOM` names sixteen readable bytes.
        hashed = unsafe { (start_bytes as *const [u64; 2]).read_unaligned() };
    }
    mix(hashed);
}

/// Makes the numbers of this process differ from its parent's from now on.
pub(super) fn after_fork() {
    mix([
        KEY[0].load(Ordering::Relaxed),
        KEY[1].load(Ordering::Relaxed),
    ]);
}

fn mix(seed: [u64; 2]) {
    let mut fresh = [0u8; 16];
    syscall::random(&mut fresh);
    // SAFETY: has no effect on memory.
    let process = unsafe { syscall::call(libc::SYS_getpid, [0; 6]) }.unwrap_or(0);
    for (half, key) in KEY.iter().enumerate() {
        let mut hasher = SipHasher24::new_with_keys(seed[0], seed[1]);
        hasher.write(&fresh);
        hasher.write_u64(clock::now().0);
        hasher.write_usize(process);
        // Where the stack and this library are: unknown outside by address-space randomisation.
        hasher.write_usize(&raw const fresh as usize);
        hasher.write_usize(&raw const KEY as usize);
        hasher.write_usize(half);
        key.store(hasher.finish(), Ordering::Relaxed);
    }
}

/// A random number.
pub(super) fn random() -> u64 {
    let [a, b] = [
        KEY[0].load(Ordering::Relaxed),
        KEY[1].load(Ordering::Relaxed),
    ];
    let mut hasher = SipHasher24::new_with_keys(a, b);
    hasher.write_u64(COUNTER.fetch_add(1, Ordering::Relaxed));
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_do_not_repeat_and_bits_are_even() {
        start(0);
        let mut seen = std::collections::HashSet::new();
        let mut ones = 0;
        for _ in 0..4096 {
            let n = random();
            ones += n.count_ones();
            assert!(seen.insert(n));
        }
        // 131072 expected, standard deviation 256.
        assert!((129_500..132_600).contains(&ones), "{ones}");
        let before = KEY[0].load(Ordering::Relaxed);
        after_fork();
        assert_ne!(before, KEY[0].load(Ordering::Relaxed));
    }
}
