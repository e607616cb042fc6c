//! All CPUs at once, with the published improvements of the growth path switched on one after another.
//!
//! As published: every CPU allocates N objects of a size at the same time, then every CPU frees its own; arrays have
//! the published sizes, and what is free goes back before each repetition, so that slabs are made in each. What differs is
//! that a slab of a process has at least 64 KiB, so that it is made more seldom than a kernel's. The last subject is the
//! same with the arrays of `malloc`, which grow with use.

use crate::allocator::Allocator;
use crate::caches::{self, Objects};
use crate::clock::{Clock, Span};
use crate::{Error, Print, SHORT_SIZES, Scale, processors};
use core::ptr::NonNull;
use flagstone_malloc::process::{ArrayForm, ProcessWith, Restartable, TransactionList};
use flagstone_slab::{Caches, Improvements};
use std::sync::Barrier;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::Instant;

/// Each of the first adds one improvement to the one before; `shipped` has other arrays. The last two have the published arrays again, as
/// lists through the objects, without and with slabs for each CPU: the rival form.
pub(crate) const SUBJECTS: &[&str] = &[
    "before", "+colour", "+refill", "+look", "+release", "shipped", LIST, RIVAL,
];

/// Arrays that are lists through the objects.
pub(crate) const LIST: &str = "tid-list";
/// The same over CPU slabs.
pub(crate) const RIVAL: &str = "tid-list+cpu";

/// Switches on what the stage named `subject` has, and nothing else.
pub(crate) fn switch(improvements: &Improvements, subject: &str) {
    let stage = SUBJECTS
        .iter()
        .position(|name| *name == subject)
        .unwrap_or(SUBJECTS.len());
    improvements.set_lockless_colour(stage >= 1);
    improvements.set_refill_first(stage >= 2);
    improvements.set_lockless_look(stage >= 3);
    improvements.set_release_once(stage >= 4);
    improvements.set_cpu_slabs(subject == RIVAL);
}

fn bring_up<F: ArrayForm>(subject: &str) -> Result<&'static Caches<ProcessWith<F>>, Error> {
    let policy = if subject == "shipped" {
        caches::SHIPPED
    } else {
        caches::PUBLISHED
    };
    let caches = caches::bring_up::<F>(policy)?;
    switch(caches.improvements(), subject);
    Ok(caches)
}

/// Repetitions are made until this much time has passed in them, at least three.
const LEAST: u32 = 3;

/// `stages/SIZE/alloc|free`: nanoseconds of one operation on one CPU, and cycles.
pub(crate) fn contend(subject: &str, scale: &Scale, print: &mut Print<'_>) -> Result<(), Error> {
    match subject {
        LIST | RIVAL => contend_on::<TransactionList>(subject, scale, print),
        _ => contend_on::<Restartable>(subject, scale, print),
    }
}

fn contend_on<F: ArrayForm>(
    subject: &str,
    scale: &Scale,
    print: &mut Print<'_>,
) -> Result<(), Error> {
    let cpus = processors::allowed()?;
    let caches = bring_up::<F>(subject)?;
    for &size in SHORT_SIZES {
        let objects = Objects::new(caches, size)?;
        // The time of one repetition says how many there will be, so that all threads make as many.
        let (alloc, free) = all_at_once(&objects, size, &cpus, scale.count, 1)?;
        let each = (alloc + free).time / cpus.len() as u32;
        let wanted = scale.slice.as_secs_f64() / each.as_secs_f64().max(1e-9);
        let repetitions = (wanted as u32).clamp(LEAST, 1000);
        let (alloc, free) = all_at_once(&objects, size, &cpus, scale.count, repetitions)?;
        let operations = f64::from(repetitions) * (cpus.len() * scale.count) as f64;
        for (what, span) in [("alloc", alloc), ("free", free)] {
            print(format!("stages/{size}/{what}"), span.nanos_each(operations));
            print(
                format!("stages/{size}/{what}/cycles"),
                span.cycles_each(operations),
            );
        }
        objects.destroy();
    }
    Ok(())
}

/// The time that all CPUs together spend in their allocations and in their frees.
fn all_at_once<F: ArrayForm>(
    objects: &Objects<'_, F>,
    size: usize,
    cpus: &[usize],
    count: usize,
    repetitions: u32,
) -> Result<(Span, Span), Error> {
    let barrier = Barrier::new(cpus.len());
    let work = |cpu: usize| {
        // Who can not be put on its CPU still has to come to every barrier.
        let placed = processors::stay_on(cpu);
        let mut held = Vec::with_capacity(count);
        let (mut alloc, mut free) = (Span::default(), Span::default());
        for _ in 0..repetitions {
            if barrier.wait().is_leader() {
                objects.cool();
            }
            barrier.wait();
            let start = Clock::Wall.start();
            held.extend((0..count).map(|_| objects.alloc(size)));
            alloc += start.elapsed();
            barrier.wait();
            let start = Clock::Wall.start();
            for object in held.drain(..) {
                // SAFETY: B2.
                unsafe { objects.free(object, size) };
            }
            free += start.elapsed();
        }
        placed.map(|()| (alloc, free))
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = cpus
            .iter()
            .map(|cpu| scope.spawn(move || work(*cpu)))
            .collect();
        let mut sum = (Span::default(), Span::default());
        for thread in threads {
            let (alloc, free) = thread.join().expect("a measuring thread does not panic")?;
            sum = (sum.0 + alloc, sum.1 + free);
        }
        Ok(sum)
    })
}

/// Objects that change hands at once.
const HANDFUL: usize = 128;
/// Handfuls on their way at most.
const ON_THE_WAY: usize = 16;

/// Objects on their way to another thread (B3).
struct Handful(Vec<NonNull<u8>>);

// SAFETY: B3.
unsafe impl Send for Handful {}

/// `exchange/SIZE`: nanoseconds from one object to the next, each allocated on one CPU and freed on another.
pub(crate) fn exchange(subject: &str, scale: &Scale, print: &mut Print<'_>) -> Result<(), Error> {
    match subject {
        LIST | RIVAL => exchange_on::<TransactionList>(subject, scale, print),
        _ => exchange_on::<Restartable>(subject, scale, print),
    }
}

fn exchange_on<F: ArrayForm>(
    subject: &str,
    scale: &Scale,
    print: &mut Print<'_>,
) -> Result<(), Error> {
    let cpus = processors::allowed()?;
    let (from, to) = (cpus[0], cpus[cpus.len() - 1]);
    let caches = bring_up::<F>(subject)?;
    for &size in SHORT_SIZES {
        let objects = Objects::new(caches, size)?;
        hand_over(&objects, size, (from, to), HANDFUL * ON_THE_WAY * 4)?;
        let start = Instant::now();
        let mut handed = 0;
        while start.elapsed() < scale.slice || handed == 0 {
            handed += hand_over(&objects, size, (from, to), scale.count.max(HANDFUL) * 4)?;
        }
        print(
            format!("exchange/{size}"),
            start.elapsed().as_secs_f64() * 1e9 / handed as f64,
        );
        objects.destroy();
    }
    Ok(())
}

/// Waits without sleeping: a thread that sleeps in the system would measure the system.
fn take<T>(from: &Receiver<T>) -> Option<T> {
    let mut looks = 0_u32;
    loop {
        match from.try_recv() {
            Ok(value) => return Some(value),
            Err(TryRecvError::Disconnected) => return None,
            // The other thread may be on this very CPU.
            Err(TryRecvError::Empty) if looks > 1000 => std::thread::yield_now(),
            Err(TryRecvError::Empty) => std::hint::spin_loop(),
        }
        looks = looks.saturating_add(1);
    }
}

/// Hands about `count` objects from one CPU to the other, and returns how many.
fn hand_over<F: ArrayForm>(
    objects: &Objects<'_, F>,
    size: usize,
    (from, to): (usize, usize),
    count: usize,
) -> Result<usize, Error> {
    let handfuls = count.div_ceil(HANDFUL);
    let (full, arriving): (SyncSender<Handful>, Receiver<Handful>) = sync_channel(ON_THE_WAY);
    let (empty, returning): (SyncSender<Handful>, Receiver<Handful>) = sync_channel(ON_THE_WAY);
    for _ in 0..ON_THE_WAY {
        // There is room for as many.
        let _ = empty.try_send(Handful(Vec::with_capacity(HANDFUL)));
    }
    std::thread::scope(|scope| {
        let consumer = scope.spawn(move || {
            let placed = processors::stay_on(to);
            while let Some(mut handful) = take(&arriving) {
                for object in handful.0.drain(..) {
                    // SAFETY: B2, B3.
                    unsafe { objects.free(object, size) };
                }
                // Nobody wants it back at the end.
                let _ = empty.send(handful);
            }
            placed
        });
        let producer = scope.spawn(move || {
            let placed = processors::stay_on(from);
            for _ in 0..handfuls {
                let Some(mut handful) = take(&returning) else {
                    break;
                };
                handful.0.extend((0..HANDFUL).map(|_| objects.alloc(size)));
                if full.send(handful).is_err() {
                    break;
                }
            }
            placed
        });
        let ends = [producer.join(), consumer.join()];
        for end in ends {
            end.expect("a measuring thread does not panic")?;
        }
        Ok(handfuls * HANDFUL)
    })
}
