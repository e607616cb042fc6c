//! Call stacks against libgcc's unwinder: C frames of every shape under several options, every instruction of some code, signals, other
//! stacks, threads, modules that come and go; overwritten stacks, which must end a walk and nothing else.

use std::ffi::{CString, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use flagstone_malloc::process::unwind::{self, Registers};

const DEEPEST: usize = 256;

unsafe extern "C" {
    fn _Unwind_Backtrace(
        each: extern "C" fn(*mut c_void, *mut c_void) -> c_int,
        data: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

struct Stack {
    frames: [usize; DEEPEST],
    count: usize,
}

impl Stack {
    const EMPTY: Self = Self {
        frames: [0; DEEPEST],
        count: 0,
    };

    fn frames(&self) -> &[usize] {
        &self.frames[..self.count]
    }
}

extern "C" fn each(context: *mut c_void, stack: *mut c_void) -> c_int {
    // SAFETY: called by libgcc with its context and what it was given.
    let (stack, pc) = unsafe { (&mut *stack.cast::<Stack>(), _Unwind_GetIP(context)) };
    if pc > 4096 && stack.count < DEEPEST {
        stack.frames[stack.count] = pc;
        stack.count += 1;
    }
    0
}

#[inline(always)]
fn by_libgcc() -> Stack {
    let mut stack = Stack::EMPTY;
    // SAFETY: the callback matches.
    unsafe { _Unwind_Backtrace(each, (&raw mut stack).cast()) };
    stack
}

#[inline(always)]
fn by(walk: impl Fn(&mut [usize]) -> usize) -> Stack {
    let mut stack = Stack::EMPTY;
    stack.count = walk(&mut stack.frames);
    stack
}

static MET: AtomicUsize = AtomicUsize::new(0);

/// Compares three walks; a difference ends the test, which may be in a signal handler.
#[inline(never)]
extern "C" fn agree() {
    let wanted = by_libgcc();
    let rules = by(unwind::backtrace);
    let again = by(unwind::backtrace);
    let tables = by(unwind::backtrace_by_tables);
    // The first frame is this function, at different calls.
    let wanted = &wanted.frames()[1..];
    for (name, found) in [("rules", &rules), ("again", &again), ("tables", &tables)] {
        if found.frames()[1..] != *wanted {
            eprintln!("{name}: {:#x?}\nlibgcc: {wanted:#x?}", &found.frames()[1..]);
            std::process::abort();
        }
    }
    MET.fetch_add(1, Ordering::Relaxed);
}

/// Compares the two walks of ours alone.
#[inline(never)]
extern "C" fn alike() {
    let (rules, tables) = (by(unwind::backtrace), by(unwind::backtrace_by_tables));
    if rules.frames()[1..] != tables.frames()[1..] {
        std::process::abort();
    }
    MET.fetch_add(1, Ordering::Relaxed);
}

/// Walks a stack that may be anything.
#[inline(never)]
extern "C" fn survive() {
    let rules = by(unwind::backtrace);
    let tables = by(unwind::backtrace_by_tables);
    assert!(rules.count >= 1 && tables.count >= 1);
    MET.fetch_add(1, Ordering::Relaxed);
}

/// Signal handlers and single steps are of the whole process: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

struct Library(*mut c_void);

impl Library {
    fn open(path: &Path) -> Self {
        let name = CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: a library of this test, whose constructors do nothing.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{}", path.display());
        Self(handle)
    }

    fn call(&self, name: &str, meet: extern "C" fn()) {
        let name = CString::new(name).unwrap();
        // SAFETY: the functions of `frames.c` have this type.
        unsafe {
            let function = libc::dlsym(self.0, name.as_ptr());
            assert!(!function.is_null());
            let function: extern "C" fn(extern "C" fn()) = std::mem::transmute(function);
            function(meet);
        }
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: nobody is in the library any more.
        unsafe { libc::dlclose(self.0) };
    }
}

fn compile(name: &str, options: &[&str]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("unwind");
    std::fs::create_dir_all(&folder).unwrap();
    let library = folder.join(format!("{name}-{}.so", std::process::id()));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/unwind/frames.c");
    let output = Command::new("gcc")
        .args(["-shared", "-fPIC", "-pthread", "-w"])
        .args(options)
        .arg(source)
        .arg("-o")
        .arg(&library)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    library
}

const OPTIONS: &[(&str, &[&str])] = &[
    ("plain", &["-O0"]),
    ("omitted", &["-O2", "-fomit-frame-pointer"]),
    ("kept", &["-O2", "-fno-omit-frame-pointer"]),
    (
        "small",
        &["-Os", "-fno-asynchronous-unwind-tables", "-funwind-tables"],
    ),
    ("lazy", &["-O1", "-Wl,-z,lazy", "-fcf-protection=none"]),
    (
        "split",
        &[
            "-O3",
            "-freorder-blocks-and-partition",
            "-fstack-protector-all",
        ],
    ),
];

fn check(function: &str, meet: extern "C" fn()) -> usize {
    let alone = ALONE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let before = MET.load(Ordering::Relaxed);
    for (name, options) in OPTIONS {
        if function == "every_instruction" && options.contains(&"-funwind-tables") {
            // Synchronous tables say nothing of instructions between calls.
            continue;
        }
        // libgcc faults inside the loader's code that binds symbols at their first call.
        let meet = match *name {
            "lazy" if function == "every_instruction" => alike,
            _ => meet,
        };
        let library = compile(&format!("{name}-{function}"), options);
        Library::open(&library).call(function, meet);
        std::fs::remove_file(library).unwrap();
    }
    let met = MET.load(Ordering::Relaxed) - before;
    drop(alone);
    met
}

#[test]
fn frames_of_every_shape_are_walked_as_libgcc_walks_them() {
    assert!(check("every_shape", agree) > 100);
}

#[test]
fn every_instruction_is_left_as_libgcc_leaves_it() {
    assert!(check("every_instruction", agree) > 1000);
}

#[test]
fn an_overwritten_stack_ends_the_walk_and_nothing_else() {
    assert!(check("every_corruption", survive) > 1000);
}

#[test]
fn rust_frames_are_walked_as_libgcc_walks_them() {
    fn recurse(depth: usize, text: &str) -> usize {
        if depth == 0 {
            agree();
            return text.len();
        }
        let longer = format!("{text}{depth}");
        [depth, 1]
            .iter()
            .map(|n| recurse(depth - 1, &longer) + n)
            .max()
            .unwrap()
    }
    assert!(recurse(6, "a") > 0);
}

#[test]
fn a_library_at_the_place_of_another_has_rules_of_its_own() {
    let alone = ALONE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    // The loader puts a library of the same size where the last one was.
    let libraries = [
        compile("first", &["-O0"]),
        compile("second", &["-O2", "-fomit-frame-pointer"]),
    ];
    for round in 0..6 {
        Library::open(&libraries[round % 2]).call("every_shape", agree);
    }
    for library in libraries {
        std::fs::remove_file(library).unwrap();
    }
    drop(alone);
}

#[test]
fn a_walk_may_begin_at_any_registers() {
    // A made-up stack of random words, many of which are addresses of code and of the stack itself.
    let mut seed = 88172645463325252u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed as usize
    };
    let mut stack = vec![0usize; 4096];
    let base = stack.as_ptr() as usize;
    let code = [
        agree as *const () as usize,
        _Unwind_Backtrace as *const () as usize,
        libc::qsort as *const () as usize,
        unwind::backtrace as *const () as usize,
    ];
    let mut frames = [0; 64];
    let mut longest = 0;
    for _ in 0..20_000 {
        for _ in 0..32 {
            let at = random() % stack.len();
            stack[at] = match random() % 4 {
                0 => code[random() % code.len()] + random() % 4096,
                1 => base + random() % (8 * 4096) / 8 * 8,
                2 => random() % 4096 * 8,
                _ => random(),
            };
        }
        // SAFETY: plain numbers.
        let mut context: libc::ucontext_t = unsafe { std::mem::zeroed() };
        for register in &mut context.uc_mcontext.gregs {
            *register = (base + random() % (8 * 4096) / 8 * 8) as i64;
        }
        context.uc_mcontext.gregs[libc::REG_RIP as usize] =
            (code[random() % code.len()] + random() % 4096) as i64;
        longest = longest.max(unwind::walk(&Registers::of_context(&context), &mut frames));
    }
    assert!(longest > 2);
}

/// Prints what a frame costs; run with `--ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn cost_of_a_frame() {
    #[inline(never)]
    fn below(depth: usize, then: &mut dyn FnMut()) -> usize {
        if depth == 0 {
            then();
            return 1;
        }
        below(depth - 1, then) + std::hint::black_box(1)
    }
    for depth in [5, 20, 100] {
        let mut into = [0; DEEPEST];
        below(depth, &mut || {
            let rounds = 100_000;
            let filled = unwind::backtrace(&mut into);
            let start = std::time::Instant::now();
            for _ in 0..rounds {
                std::hint::black_box(unwind::backtrace(&mut into));
            }
            let ours = start.elapsed().as_nanos() as f64 / f64::from(rounds);
            let start = std::time::Instant::now();
            for _ in 0..rounds / 100 {
                std::hint::black_box(by_libgcc().count);
            }
            let libgcc = start.elapsed().as_nanos() as f64 / f64::from(rounds / 100);
            println!(
                "{filled:4} frames: {:.1} ns a frame, {ours:.0} ns a walk; libgcc {:.0} ns a frame",
                ours / filled as f64,
                libgcc / filled as f64
            );
        });
    }
}
