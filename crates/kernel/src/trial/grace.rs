//! Readers follow a pointer without a lock while the first CPU replaces what it points to; what was replaced is spoiled and
//! freed after a grace period, so a reader that sees spoiled contents was not waited for.

use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use super::Dice;
use crate::kernel::Kernel;
use crate::{crew, heap};
use flagstone_host::{Grace, RcuHead};

const REPLACED: u64 = 500;

#[repr(C)]
struct Entry {
    head: RcuHead,
    value: AtomicU64,
    check: AtomicU64,
}

static CURRENT: AtomicPtr<Entry> = AtomicPtr::new(null_mut());
static FREED: AtomicU64 = AtomicU64::new(0);
static READ: AtomicU64 = AtomicU64::new(0);
static DONE: AtomicBool = AtomicBool::new(false);

fn publish(value: u64) -> *mut Entry {
    let entry = super::caches()
        .kmalloc(size_of::<Entry>(), heap::gfp())
        .expect("there is memory for an entry")
        .cast::<Entry>();
    // SAFETY: ours, large enough and aligned.
    unsafe {
        entry.write(Entry {
            head: RcuHead::new(),
            value: AtomicU64::new(value),
            check: AtomicU64::new(!value),
        });
    }
    CURRENT.swap(entry.as_ptr(), Ordering::AcqRel)
}

unsafe fn spoil(head: NonNull<RcuHead>) {
    let entry = head.cast::<Entry>();
    // SAFETY: the head is an entry's first field; nobody reads it any more.
    unsafe {
        entry.as_ref().value.store(1, Ordering::Relaxed);
        entry.as_ref().check.store(1, Ordering::Relaxed);
        super::caches().kfree(entry.cast());
    }
    FREED.fetch_add(1, Ordering::Relaxed);
}

fn retire(old: *mut Entry) {
    if let Some(old) = NonNull::new(old) {
        // SAFETY: unreachable for readers that begin now, and not touched by us again.
        unsafe { Kernel.defer(old.cast(), spoil) };
    }
}

fn look(dice: &mut Dice) {
    let _guard = Kernel.read();
    // SAFETY: published, and not freed before this section ends.
    let entry = unsafe { CURRENT.load(Ordering::Acquire).as_ref() }.expect("an entry");
    for _ in 0..1 + dice.below(200) {
        let (value, check) = (
            entry.value.load(Ordering::Relaxed),
            entry.check.load(Ordering::Relaxed),
        );
        assert_eq!(value, !check, "an entry was freed while it was read");
    }
}

fn work(cpu: usize) {
    let mut dice = Dice::new();
    if cpu != 0 {
        while !DONE.load(Ordering::Relaxed) {
            look(&mut dice);
            READ.fetch_add(1, Ordering::Relaxed);
        }
        return;
    }
    for value in 1..=REPLACED {
        retire(publish(value << 8));
        look(&mut dice);
        match dice.below(16) {
            0 => Kernel.synchronize(),
            1..8 => drop(Kernel.poll()),
            _ => {}
        }
    }
    DONE.store(true, Ordering::Relaxed);
}

pub(super) fn run() {
    publish(0);
    crew::run(work);
    retire(CURRENT.swap(null_mut(), Ordering::AcqRel));
    Kernel.synchronize();
    assert_eq!(FREED.load(Ordering::Relaxed), REPLACED + 1);
    super::say!("grace: {} reads", READ.load(Ordering::Relaxed));
}
