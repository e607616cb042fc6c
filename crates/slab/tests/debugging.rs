//! Debugged caches: every mistake of a program is found when it must be, and nothing else is.

mod ledger;

use core::cell::RefCell;
use core::ptr::NonNull;
use flagstone_kasan::report::{Bug, Report};
use flagstone_seeded::Machine;
use flagstone_slab::{CacheParams, Caches, DebugOptions, DebugPolicy, Policy};
use flagstone_types::Gfp;
use ledger::Flavour;
use proptest::prelude::*;

thread_local! {
    static OPTIONS: RefCell<String> = const { RefCell::new(String::new()) };
    static FOUND: RefCell<Vec<(&'static str, usize)>> = const { RefCell::new(Vec::new()) };
    static TEXTS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

fn note(report: &Report<'_>) {
    if let Bug::Damage(damage) = &report.bug {
        FOUND.with_borrow_mut(|found| found.push((damage.problem.name(), damage.object)));
    }
    TEXTS.with_borrow_mut(|texts| texts.push(report.to_string()));
}

/// What was found since the last call.
fn found() -> Vec<(&'static str, usize)> {
    FOUND.take()
}

fn policy(options: &str, flavour: Flavour) -> Policy {
    OPTIONS.set(options.to_owned());
    Policy {
        debug: DebugPolicy {
            flags: |name| OPTIONS.with_borrow(|line| DebugOptions::new(line).flags_of(name)),
            report: note,
            depot: || None,
            task: || 7,
        },
        ..flavour.policy()
    }
}

/// What a program does to one of its objects.
#[derive(Clone, Debug)]
enum Act {
    /// Uses what it asked for, and frees it.
    Behave,
    /// Writes so many bytes behind what it asked for, and frees it.
    WriteBehind(usize),
    /// Writes so many bytes before it, and frees it.
    WriteBefore(usize),
    /// Frees it and writes to it, at this permille of it.
    WriteAfterFree(usize),
    /// Frees it twice.
    FreeTwice,
    /// Frees a pointer inside of it, then it.
    FreeInside(usize),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => Just(Act::Behave),
        1 => (0usize..16).prop_map(Act::WriteBehind),
        1 => (1usize..=16).prop_map(Act::WriteBefore),
        1 => (0usize..1000).prop_map(Act::WriteAfterFree),
        1 => Just(Act::FreeTwice),
        1 => (1usize..1000).prop_map(Act::FreeInside),
    ]
}

/// Frees.
fn free<'m>(
    caches: &Caches<&'m Machine>,
    cache: &flagstone_slab::Cache<&'m Machine>,
    object: NonNull<u8>,
) {
    // SAFETY: what is no object of ours is what the cache is to find out.
    unsafe { caches.free(cache, object) };
}

/// Does it, and says what must be found: now, and when the object is handed out again.
fn perform<'m>(
    caches: &Caches<&'m Machine>,
    cache: &flagstone_slab::Cache<&'m Machine>,
    object: NonNull<u8>,
    asked: usize,
    act: &Act,
) -> (Option<&'static str>, bool) {
    let letters = OPTIONS.with_borrow(|line| line.split(',').next().unwrap().to_owned());
    let (zones, poison) = (letters.contains('Z'), letters.contains('P'));
    let size = cache.object_size();
    // SAFETY: the bytes lie within the object's stride.
    unsafe {
        match act {
            Act::Behave => {
                object.write_bytes(0x11, asked);
                free(caches, cache, object);
                (None, false)
            }
            Act::WriteBehind(_) | Act::WriteBefore(_) if !zones => {
                free(caches, cache, object);
                (None, false)
            }
            Act::WriteBehind(n) => {
                object.add(asked + n).write(0x11);
                free(caches, cache, object);
                let kind = if asked + n < size {
                    "kmalloc-redzone-overwritten"
                } else {
                    "right-redzone-overwritten"
                };
                (Some(kind), false)
            }
            Act::WriteBefore(n) => {
                object.sub(*n).write(0x11);
                free(caches, cache, object);
                (Some("left-redzone-overwritten"), false)
            }
            Act::WriteAfterFree(at) => {
                free(caches, cache, object);
                if poison {
                    object.add(at * size / 1000).write(0x11);
                }
                (None, poison)
            }
            Act::FreeTwice => {
                free(caches, cache, object);
                free(caches, cache, object);
                (Some("double-free"), false)
            }
            Act::FreeInside(at) => {
                let offset = (at * size / 1000).max(1);
                if offset < size {
                    free(caches, cache, object.add(offset));
                    free(caches, cache, object);
                    (Some("interior-free"), false)
                } else {
                    free(caches, cache, object);
                    (None, false)
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn every_mistake_is_found_and_nothing_else(
        letters in prop::sample::select(vec!["F", "Z", "P", "U", "FZ", "ZP", "FZPU"]),
        flavour in prop::sample::select(Flavour::ALL.to_vec()),
        cpu_slabs in any::<bool>(),
        size in prop_oneof![1usize..100, 100usize..3000],
        align in prop::sample::select(vec![1usize, 8, 16, 64, 256]),
        program in prop::collection::vec((act(), 0usize..=1000), 1..40),
    ) {
        let machine = Machine::builder().cpus(1).build();
        let caches = ledger::boot(&machine, policy(&format!("{letters},test-*"), flavour));
        let before = ledger::used_pages(caches);
        let mut params = CacheParams::new("test-objects", size, align);
        params.cpu_slabs = Some(if cpu_slabs { 30 } else { 0 });
        let cache = caches.create(&params).unwrap();
        prop_assert!(cache.is_debugged());
        found();
        for (act, share) in &program {
            let asked = size * share / 1000;
            let object = caches.alloc_sized(&cache, Gfp::KERNEL, asked).unwrap();
            prop_assert_eq!(object.addr().get() % align, 0);
            // SAFETY: ours.
            prop_assert_eq!(unsafe { caches.requested_size(&cache, object) }, asked);
            prop_assert_eq!(found(), vec![]);
            let (now, later) = perform(caches, &cache, object, asked, act);
            let wanted: Vec<_> = now.into_iter().collect();
            let got: Vec<_> = found().iter().map(|(name, _)| *name).collect();
            prop_assert_eq!(got, wanted, "{:?} of {} of {} bytes", act, asked, size);
            if later {
                // Whoever gets it again finds out, once.
                let mut held = Vec::new();
                loop {
                    let again = caches.alloc(&cache, Gfp::KERNEL).unwrap();
                    held.push(again);
                    if again == object {
                        break;
                    }
                    prop_assert!(held.len() < 5000, "the object does not come again");
                }
                prop_assert_eq!(found(), vec![("poison-overwritten", object.addr().get())]);
                held.into_iter().for_each(|object| free(caches, &cache, object));
                prop_assert_eq!(found(), vec![]);
            }
        }
        prop_assert_eq!(caches.objects_out(&cache), 0);
        ledger::bad_frees();
        ledger::validate(caches);
        caches.destroy(cache).unwrap();
        ledger::expect_nothing_left(caches, before, true, false);
    }
}

#[test]
fn constructed_objects_keep_their_contents_and_zeroed_ones_are_zero_as_far_as_was_asked() {
    unsafe fn construct(object: NonNull<u8>) {
        // SAFETY: S7: an object has so many bytes.
        unsafe { object.write_bytes(0x33, 40) };
    }
    let machine = Machine::builder().cpus(1).build();
    let caches = ledger::boot(&machine, policy("", Flavour::Linux));
    let mut params = CacheParams::new("constructed", 40, 8);
    params.ctor = Some(construct);
    let constructed = caches.create(&params).unwrap();
    let plain = caches.create(&CacheParams::new("plain", 40, 8)).unwrap();
    for _ in 0..3 {
        let object = caches.alloc(&constructed, Gfp::KERNEL).unwrap();
        // SAFETY: ours.
        let bytes = unsafe { core::slice::from_raw_parts(object.as_ptr(), 40) };
        assert_eq!(bytes, [0x33; 40]);
        free(caches, &constructed, object);
        let zeroed = caches
            .alloc_sized(&plain, Gfp::KERNEL | Gfp::ZERO, 30)
            .unwrap();
        assert!(ledger::is_zero(zeroed, 30));
        free(caches, &plain, zeroed);
        let fresh = caches.alloc(&plain, Gfp::KERNEL).unwrap();
        // SAFETY: ours.
        let bytes = unsafe { core::slice::from_raw_parts(fresh.as_ptr(), 40) };
        assert_eq!(bytes, [0x5a; 40], "never written to");
        free(caches, &plain, fresh);
    }
    assert_eq!(found(), vec![]);
}

#[test]
fn only_caches_that_are_named_are_debugged_and_they_are_not_shared() {
    let machine = Machine::builder().cpus(1).build();
    let caches = ledger::boot(&machine, policy("-;FZ,a*", Flavour::Linux));
    let a = caches.create(&CacheParams::new("ab", 64, 8)).unwrap();
    let other = caches.create(&CacheParams::new("ac", 64, 8)).unwrap();
    let b = caches.create(&CacheParams::new("b", 64, 8)).unwrap();
    assert!(a.is_debugged() && other.is_debugged() && !b.is_debugged());
    assert!(!core::ptr::eq(&*a, &*other));
}

#[test]
fn a_report_says_what_was_overwritten_and_where() {
    let machine = Machine::builder().cpus(1).build();
    let caches = ledger::boot(&machine, policy("FZPU", Flavour::Linux));
    let cache = caches.create(&CacheParams::new("buffers", 48, 8)).unwrap();
    let object = caches.alloc_sized(&cache, Gfp::KERNEL, 40).unwrap();
    TEXTS.take();
    // SAFETY: within the stride.
    unsafe { object.add(50).cast::<u16>().write_unaligned(0x4142) };
    free(caches, &cache, object);
    let texts = TEXTS.take();
    assert_eq!(texts.len(), 1);
    let address = object.addr().get();
    for wanted in [
        "BUG buffers".to_owned(),
        "Right Redzone overwritten".to_owned(),
        format!("{:#x}-{:#x}", address + 50, address + 51),
        "First byte 0x42 instead of 0xcc".to_owned(),
        "FIX buffers: Restoring Right Redzone".to_owned(),
    ] {
        assert!(texts[0].contains(&wanted), "{wanted:?} in:\n{}", texts[0]);
    }
}
