//! Invalidation on other CPUs (D1 to D4).
//!
//! ```text
//!   CPU that shoots                              CPU that is shot at
//!   requests[slot] = what, left = 3   ──mark──►  marks │…1…│  one bit for each slot of each CPU
//!   wait: left == 0  ◄──── left - 1, after the invalidation ────  interrupt: take all marks, invalidate
//! ```
//!
//! Several requests of a CPU may be under way, one to a slot. A CPU that is marked already gets no second interrupt. A CPU
//! that finds many marks invalidates once for all of them.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::interrupts::{self, IrqGuard};
use crate::kernel::Kernel;
use crate::per_cpu::{Area, MOST_CPUS};
use crate::unit::{self, MOST_STEPS};
use crate::{apic, trap};
use flagstone_host::{Asid, Invalidate, Mmu, Shootdown};
use flagstone_types::{CpuId, CpuMask, VirtAddr};

/// Requests of one CPU that may be under way.
const SLOTS: usize = 4;
const WORDS: usize = MOST_CPUS * SLOTS / 64;

/// What a CPU asks of others. Its own CPU writes it while `left` is 0; others read it while they have not counted `left` down (D1).
#[derive(Debug, Default)]
struct Request {
    /// CPUs that have not invalidated yet.
    left: AtomicU32,
    /// Which request of its slot this is.
    number: AtomicU64,
    start: AtomicUsize,
    end: AtomicUsize,
    stride: AtomicU8,
    tables: AtomicBool,
    /// An [`Asid`], or [`EVERY`].
    asid: AtomicU32,
}

/// Instead of an [`Asid`]: all of them.
const EVERY: u32 = u32::MAX;

impl Request {
    fn set(&self, what: &Invalidate) {
        self.start.store(what.start.0, Ordering::Relaxed);
        self.end.store(what.end.0, Ordering::Relaxed);
        self.stride.store(what.stride, Ordering::Relaxed);
        self.tables.store(what.tables, Ordering::Relaxed);
        let asid = what.asid.map_or(EVERY, |asid| u32::from(asid.0));
        self.asid.store(asid, Ordering::Relaxed);
    }

    fn get(&self) -> Invalidate {
        Invalidate {
            asid: match self.asid.load(Ordering::Relaxed) {
                EVERY => None,
                asid => Some(Asid(asid as u16)),
            },
            start: VirtAddr(self.start.load(Ordering::Relaxed)),
            end: VirtAddr(self.end.load(Ordering::Relaxed)),
            stride: self.stride.load(Ordering::Relaxed),
            tables: self.tables.load(Ordering::Relaxed),
        }
    }
}

/// The part of a CPU's area that is for this: what it asks, and what it is asked.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    requests: [Request; SLOTS],
    /// Set from the first mark to the look at them.
    called: AtomicBool,
    /// One bit for each request of each CPU.
    marks: [AtomicU64; WORDS],
    /// Requests that this CPU made, and invalidations that it was asked for: for reports.
    pub(crate) asked: AtomicU64,
    pub(crate) answered: AtomicU64,
}

/// An invalidation that other CPUs may not have done yet.
#[derive(Debug)]
#[must_use = "it has happened only when it was waited for"]
pub struct Pending(Option<Ticket>);

/// Names a request.
#[derive(Debug)]
struct Ticket {
    cpu: CpuId,
    slot: usize,
    number: u64,
}

impl Ticket {
    fn is_done(&self) -> bool {
        let Some(area) = Area::of(self.cpu) else {
            return true;
        };
        let request = &area.mailbox.requests[self.slot];
        // D2: a slot with another number was used again, so this request has ended.
        request.left.load(Ordering::Acquire) == 0
            || request.number.load(Ordering::Acquire) != self.number
    }
}

/// A slot of this CPU that is not in use; waits for one if there is none.
fn free_slot(mailbox: &Mailbox) -> usize {
    loop {
        let free = |request: &Request| request.left.load(Ordering::Acquire) == 0;
        if let Some(slot) = mailbox.requests.iter().position(free) {
            return slot;
        }
        core::hint::spin_loop();
    }
}

// SAFETY: host T6 by D1 to D3.
unsafe impl Shootdown for Kernel {
    type Pending = Pending;

    fn shoot(&self, cpus: &CpuMask, what: &Invalidate) -> Pending {
        assert!(
            interrupts::are_open(),
            "an invalidation on other CPUs with interrupts blocked could wait for another one for ever"
        );
        let this = Area::current();
        let is_target = |area: &&Area| cpus.contains(area.id);
        let targets = Area::others().filter(is_target).count() as u32;
        let mut ticket = None;
        if targets != 0 {
            let mailbox = &this.mailbox;
            let slot = free_slot(mailbox);
            let request = &mailbox.requests[slot];
            let number = request.number.load(Ordering::Relaxed) + 1;
            request.number.store(number, Ordering::Relaxed);
            request.set(what);
            request.left.store(targets, Ordering::Release);
            let bit = this.id.index() * SLOTS + slot;
            let mut called = 0;
            // CPUs never go away, and the next ones come when nobody shoots (D3): the same ones as counted.
            for area in Area::others().filter(is_target) {
                let theirs = &area.mailbox;
                theirs.marks[bit / 64].fetch_or(1 << (bit % 64), Ordering::SeqCst);
                if !theirs.called.swap(true, Ordering::SeqCst) {
                    apic::send(area.apic_id, trap::SHOOTDOWN);
                }
                called += 1;
            }
            debug_assert_eq!(called, targets);
            mailbox.asked.fetch_add(1, Ordering::Relaxed);
            ticket = Some(Ticket {
                cpu: this.id,
                slot,
                number,
            });
        }
        if cpus.contains(this.id) {
            let _guard = IrqGuard::new();
            self.invalidate(what);
        }
        Pending(ticket)
    }

    fn wait(&self, pending: Pending) {
        let Some(ticket) = pending.0 else {
            return;
        };
        debug_assert!(interrupts::are_open());
        while !ticket.is_done() {
            core::hint::spin_loop();
        }
    }
}

/// What several requests need together.
#[derive(Debug, Default)]
struct Sum {
    steps: usize,
    global: bool,
}

/// The interrupt of a shootdown, on the CPU that `area` belongs to.
pub(crate) fn answer(area: &Area) {
    let mailbox = &area.mailbox;
    // Before the marks are taken: who marks later calls again.
    mailbox.called.store(false, Ordering::SeqCst);
    let marks: [u64; WORDS] = core::array::from_fn(|n| mailbox.marks[n].swap(0, Ordering::SeqCst));
    let mut sum = Sum::default();
    each(&marks, |request| {
        let what = request.get();
        sum.steps = sum
            .steps
            .saturating_add(unit::steps(&what).unwrap_or(usize::MAX));
        sum.global |= what.asid.is_none();
    });
    let at_once = sum.steps > MOST_STEPS;
    if at_once {
        Kernel.invalidate(&Invalidate::all((!sum.global).then_some(Asid(0))));
    }
    each(&marks, |request| {
        if !at_once {
            Kernel.invalidate(&request.get());
        }
        mailbox.answered.fetch_add(1, Ordering::Relaxed);
        // D1: the request may be used again from here on.
        request.left.fetch_sub(1, Ordering::Release);
    });
}

/// Calls `f` with each request that is marked.
fn each(marks: &[u64; WORDS], mut f: impl FnMut(&Request)) {
    for (n, &word) in marks.iter().enumerate() {
        let mut left = word;
        while left != 0 {
            let bit = n * 64 + left.trailing_zeros() as usize;
            left &= left - 1;
            if let Some(area) = Area::of(CpuId((bit / SLOTS) as u32)) {
                f(&area.mailbox.requests[bit % SLOTS]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_says_what_was_asked() {
        let request = Request::default();
        let range = Invalidate {
            asid: Some(Asid(7)),
            start: VirtAddr(0x1000),
            end: VirtAddr(0x3000),
            stride: 12,
            tables: true,
        };
        for what in [range, Invalidate::all(None), Invalidate::all(Some(Asid(0)))] {
            request.set(&what);
            assert_eq!(request.get(), what);
        }
    }
}
