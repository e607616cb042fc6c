//! What the kernel told the program at its start: environment and auxiliary vector.
//!
//! Both lie above the initial stack. The loader keeps the address of that place in `__libc_stack_end`, so that
//! they can be read before the C library has set up `environ`. In a static program the start-up code keeps the address of
//! the word below instead. If neither place looks as it must, the auxiliary vector is read from `/proc` and the environment
//! counts as empty.

use core::ffi::{CStr, c_char};

use super::syscall;

const AT_NULL: usize = 0;
const AT_PAGESZ: usize = 6;
const AT_BASE: usize = 7;
const AT_SECURE: usize = 23;
const AT_RANDOM: usize = 25;
const AT_RSEQ_FEATURE_SIZE: usize = 27;
const AT_SYSINFO_EHDR: usize = 33;

/// More arguments or variables than this are taken for a sign of misreading.
const MOST_STRINGS: usize = 1 << 24;

unsafe extern "C" {
    static __libc_stack_end: *const usize;
    static _r_debug: DebuggerInterface;
}

/// Where the stack of the program's first thread ends, at the block that the kernel put there (P2).
pub(super) fn stack_end() -> usize {
    // SAFETY: P2; the loader sets the pointer before anything else runs.
    unsafe { (&raw const __libc_stack_end).read_volatile() }.addr()
}

/// What the loader tells debuggers (System V ABI, `struct r_debug`).
#[repr(C)]
struct DebuggerInterface {
    version: i32,
    objects: usize,
    breakpoint: usize,
    state: i32,
    /// Where the loader is mapped.
    loader: usize,
}

/// The values of use to this host. 0 stands for absent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Startup {
    /// Where the dynamic loader is mapped.
    pub(super) loader: usize,
    /// Where the vDSO is mapped.
    pub(super) vdso: usize,
    /// Sixteen random bytes.
    pub(super) random: usize,
    /// Bytes of the restartable-sequence area that the kernel knows to fill.
    pub(super) rseq_features: usize,
    /// Whether the program has rights that whoever started it has not: then its environment is not to be trusted.
    is_privileged: bool,
    /// The first of a null-terminated array of environment strings.
    environment: *const *const c_char,
}

impl Startup {
    /// Reads the block (P2).
    pub(super) fn find() -> Self {
        let mut found = Self {
            loader: 0,
            vdso: 0,
            random: 0,
            rseq_features: 0,
            is_privileged: false,
            environment: core::ptr::null(),
        };
        // SAFETY: P2; the loader sets the pointer before anything else runs.
        let block = unsafe { __libc_stack_end };
        if !found.read_block(block) && !found.read_block(block.wrapping_add(1)) {
            found.environment = core::ptr::null();
            let mut words = [[0u8; 16]; 64];
            if let Some(bytes) = syscall::read_file(c"/proc/self/auxv", words.as_flattened_mut()) {
                for pair in bytes.chunks_exact(16) {
                    let word = |at: usize| {
                        usize::from_ne_bytes(pair[at..at + 8].try_into().unwrap_or_default())
                    };
                    found.note(word(0), word(8));
                }
            }
        }
        if found.loader == 0 {
            // The loader itself was started as a program, with the one to run as its argument: the kernel names no loader.
            // SAFETY: P4; the loader fills this in before it relocates anything. A volatile read, since it is written outside of this program.
            found.loader = unsafe { (&raw const _r_debug.loader).read_volatile() };
        }
        found
    }

    /// The strings of the environment as it was at the start; none in a privileged program, which would write to files that
    /// they name.
    pub(super) fn environment(&self) -> impl Iterator<Item = &'static [u8]> {
        let mut at = if self.is_privileged {
            core::ptr::null()
        } else {
            self.environment
        };
        core::iter::from_fn(move || {
            if at.is_null() {
                return None;
            }
            // SAFETY: P2, the array was checked to end with a null pointer, not reached yet.
            let string = unsafe { *at };
            if string.is_null() {
                return None;
            }
            // SAFETY: as above.
            at = unsafe { at.add(1) };
            // SAFETY: P2, an environment string of the kernel's block.
            Some(unsafe { CStr::from_ptr(string) }.to_bytes())
        })
    }

    fn read_block(&mut self, block: *const usize) -> bool {
        if block.is_null() || !block.is_aligned() {
            return false;
        }
        // SAFETY: P2, the block begins with the number of arguments.
        let arguments = unsafe { *block };
        if arguments > MOST_STRINGS {
            return false;
        }
        // SAFETY: P2, so many pointers and a null pointer follow.
        let end = unsafe { block.add(1 + arguments) };
        // SAFETY: as above.
        if unsafe { *end } != 0 {
            return false;
        }
        // SAFETY: P2, the environment follows.
        let environment = unsafe { end.add(1) };
        let mut at = environment;
        // SAFETY: P2, it ends with a null pointer.
        while unsafe { *at } != 0 {
            // SAFETY: as above.
            at = unsafe { at.add(1) };
            // SAFETY: both are in the same block.
            if unsafe { at.offset_from(environment) } as usize > MOST_STRINGS {
                return false;
            }
        }
        let mut is_vector = false;
        for pair in 0..256 {
            // SAFETY: P2, pairs follow, the last of kind 0.
            let (kind, value) = unsafe { (*at.add(1 + 2 * pair), *at.add(2 + 2 * pair)) };
            if kind == AT_NULL {
                break;
            }
            is_vector |= kind == AT_PAGESZ && value == 4096;
            self.note(kind, value);
        }
        self.environment = environment.cast();
        is_vector
    }

    fn note(&mut self, kind: usize, value: usize) {
        match kind {
            AT_BASE => self.loader = value,
            AT_SECURE => self.is_privileged = value != 0,
            AT_RANDOM => self.random = value,
            AT_RSEQ_FEATURE_SIZE => self.rseq_features = value,
            AT_SYSINFO_EHDR => self.vdso = value,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_c_library() {
        let found = Startup::find();
        // SAFETY: getauxval has no preconditions.
        let vector = |kind: usize| unsafe { libc::getauxval(kind as u64) } as usize;
        assert_eq!(found.vdso, vector(AT_SYSINFO_EHDR));
        assert_eq!(found.random, vector(AT_RANDOM));
        assert_eq!(found.rseq_features, vector(AT_RSEQ_FEATURE_SIZE));
        assert_eq!(found.loader, vector(AT_BASE));
        let path = std::env::var_os("PATH").unwrap();
        let wanted = [b"PATH=", path.as_encoded_bytes()].concat();
        assert!(found.environment().any(|s| s == wanted));
    }

    #[test]
    fn a_privileged_program_has_no_environment() {
        let mut found = Startup::find();
        found.note(AT_SECURE, 1);
        assert_eq!(found.environment().count(), 0);
    }

    #[test]
    fn a_block_that_is_none_is_refused() {
        let mut found = Startup::find();
        let mut words = [0usize; 600];
        words[0] = 2;
        words[3] = 1;
        assert!(!found.read_block(words.as_ptr()), "argv is not terminated");
        words[3] = 0;
        assert!(
            !found.read_block(words.as_ptr()),
            "the vector has no page size"
        );
        assert!(!found.read_block(core::ptr::null()));
    }
}
