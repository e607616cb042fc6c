//! Grace periods: deferred calls run once, after the sections that existed, and the rules are watched.

use flagstone_host::{Grace, Mutex, RcuHead, classes};
use flagstone_seeded::{FailureKind, Machine, Rng, Task, for_each_seed, task};
use std::cell::{Cell, RefCell};
use std::ptr::NonNull;

/// An object that readers look at until its deferred call has run.
#[repr(C)]
struct Node {
    head: RcuHead,
    alive: Cell<bool>,
    freed: Cell<u32>,
}

fn new_node() -> &'static Node {
    Box::leak(Box::new(Node {
        head: RcuHead::new(),
        alive: Cell::new(true),
        freed: Cell::new(0),
    }))
}

unsafe fn free(head: NonNull<RcuHead>) {
    // SAFETY: G1: the head is the first field of a node.
    let node = unsafe { head.cast::<Node>().as_ref() };
    node.alive.set(false);
    node.freed.set(node.freed.get() + 1);
}

fn head(node: &'static Node) -> NonNull<RcuHead> {
    NonNull::from(node).cast()
}

#[test]
fn readers_see_live_nodes_only_and_each_node_is_freed_once() {
    for_each_seed(300, |seed| {
        let machine = Machine::builder()
            .cpus(1 + seed as usize % 6)
            .seed(seed)
            .build();
        let published = RefCell::new(new_node());
        let retired = RefCell::new(Vec::new());
        let rng = Rng::new(seed);
        let tasks: Vec<Task<'_>> = (0..6)
            .map(|i| {
                let (host, published, retired) = (&machine, &published, &retired);
                let rng = Rng::new(rng.bits());
                task(move |ctx| {
                    for _ in 0..15 {
                        if i < 4 {
                            let outer = host.read();
                            let node = *published.borrow();
                            let inner = host.read();
                            for _ in 0..rng.below(8) {
                                ctx.step();
                                assert!(node.alive.get(), "a reader saw a freed node");
                            }
                            drop(outer);
                            ctx.step();
                            assert!(node.alive.get(), "a nested section ended too early");
                            drop(inner);
                        } else {
                            let old = published.replace(new_node());
                            retired.borrow_mut().push(old);
                            // SAFETY: G1: the node lives for ever and `free` takes its head.
                            unsafe { host.defer(head(old), free) };
                            match rng.below(3) {
                                0 => host.synchronize(),
                                1 => assert!(host.poll() <= retired.borrow().len()),
                                _ => {}
                            }
                        }
                    }
                })
            })
            .collect();
        machine.run(tasks);
        (&machine).synchronize();
        assert_eq!(machine.deferred(), 0);
        assert!(retired.borrow().iter().all(|n| n.freed.get() == 1));
    });
}

#[test]
fn synchronize_waits_for_the_section_and_runs_what_was_deferred_before() {
    let machine = Machine::builder().build();
    let host = &machine;
    let node = new_node();
    // SAFETY: G1: as above.
    unsafe { host.defer(head(node), free) };
    assert_eq!((host.poll(), host.poll(), node.freed.get()), (1, 0, 1));
    let other = new_node();
    let guard = host.read();
    // SAFETY: G1: as above.
    unsafe { host.defer(head(other), free) };
    drop(guard);
    host.synchronize();
    assert_eq!(other.freed.get(), 1);
}

#[test]
fn waiting_inside_a_section_or_under_a_lock_is_a_violation() {
    let machine = Machine::builder().build();
    let host = &machine;
    let failure = machine.try_run(vec![task(|_| {
        let _section = host.read();
        host.synchronize();
    })]);
    assert_eq!(failure.unwrap_err().kind, FailureKind::Grace);
    let machine = Machine::builder().build();
    let host = &machine;
    let lock = Mutex::<&Machine, classes::Zone, ()>::new(());
    let failure = machine.try_run(vec![task(|_| {
        let _held = lock.lock();
        host.poll();
    })]);
    assert_eq!(failure.unwrap_err().kind, FailureKind::Grace);
}
