//! Every CPU allocates messages that the next one checks and frees, so that objects travel between the CPUs' arrays.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use super::SharedCache;
use crate::per_cpu::MOST_CPUS;
use crate::services::mix;
use crate::{crew, heap};
use flagstone_slab::CacheParams;

const MESSAGES: u64 = 8000;
const SLOTS: usize = 64;

#[repr(C)]
struct Message {
    from: usize,
    number: u64,
    body: [u64; 9],
}

/// Messages on their way to one CPU, by one sender.
struct Pipe {
    slots: [AtomicPtr<Message>; SLOTS],
}

static PIPES: [Pipe; MOST_CPUS] = [const {
    Pipe {
        slots: [const { AtomicPtr::new(null_mut()) }; SLOTS],
    }
}; MOST_CPUS];
static CACHE: SharedCache = SharedCache::new();
static RECEIVED: AtomicUsize = AtomicUsize::new(0);

fn body(from: usize, number: u64) -> [u64; 9] {
    core::array::from_fn(|i| mix(number << 16 ^ (from as u64) << 8 ^ i as u64))
}

fn send(from: usize, number: u64, slot: &AtomicPtr<Message>) -> bool {
    if !slot.load(Ordering::Acquire).is_null() {
        return false;
    }
    let object = super::caches()
        .alloc(CACHE.get(), heap::gfp())
        .expect("there is memory for a message");
    let message = object.cast::<Message>();
    // SAFETY: the object is ours, large enough and aligned.
    unsafe {
        message.write(Message {
            from,
            number,
            body: body(from, number),
        });
    }
    slot.store(message.as_ptr(), Ordering::Release);
    true
}

fn receive(from: usize, number: u64, slot: &AtomicPtr<Message>) -> bool {
    let Some(message) = core::ptr::NonNull::new(slot.load(Ordering::Acquire)) else {
        return false;
    };
    // SAFETY: the sender gave it to us by storing its pointer.
    let content = unsafe { message.as_ref() };
    assert_eq!((content.from, content.number), (from, number));
    assert_eq!(content.body, body(from, number), "a message has changed");
    slot.store(null_mut(), Ordering::Release);
    // SAFETY: from `send`, ours alone.
    unsafe { super::caches().free(CACHE.get(), message.cast()) };
    true
}

fn work(cpu: usize) {
    let cpus = crew::size();
    let (to, from) = ((cpu + 1) % cpus, (cpu + cpus - 1) % cpus);
    let (mut sent, mut received) = (0, 0);
    while sent < MESSAGES || received < MESSAGES {
        let mut idle = true;
        if sent < MESSAGES && send(cpu, sent, &PIPES[to].slots[sent as usize % SLOTS]) {
            sent += 1;
            idle = false;
        }
        if received < MESSAGES
            && receive(from, received, &PIPES[cpu].slots[received as usize % SLOTS])
        {
            received += 1;
            idle = false;
        }
        if idle {
            core::hint::spin_loop();
        }
    }
    RECEIVED.fetch_add(received as usize, Ordering::Relaxed);
}

pub(super) fn run() {
    let mut params = CacheParams::new("message", size_of::<Message>(), align_of::<Message>());
    params.flags.no_merge = true;
    CACHE.make(&params);
    crew::run(work);
    assert_eq!(
        RECEIVED.load(Ordering::Relaxed),
        crew::size() * MESSAGES as usize
    );
    CACHE.destroy();
}
