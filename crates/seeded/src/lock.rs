//! Locks by class: found machine, checked order, statistics.
//!
//! A [`RawLock`] can be made in a constant, so it finds its machine through the thread: it is the machine that
//! this thread used last. While it is held it remembers that machine's id. Without a machine it is a plain spin lock.

use crate::context::{Core, Point, with_current, with_machine};
use crate::failure::FailureKind;
use crate::schedule::{Held, Order};
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU64, Ordering};
use flagstone_host::{LockClass, Rank};

/// What happened to the locks of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockStat {
    /// The class.
    pub name: &'static str,
    /// Its place in the lock order.
    pub rank: Rank,
    /// How often a lock of the class was taken.
    pub acquisitions: u64,
    /// How often it had to be waited for.
    pub contended: u64,
    /// How often it was tried in vain.
    pub refused: u64,
    /// Steps (host calls and their parts) that were taken while holding one.
    pub steps: u64,
    /// The most steps that it was held for.
    pub longest: u64,
}

const FREE: u64 = 0;
/// Held by a thread without a machine.
const NO_MACHINE: u64 = u64::MAX;

/// A lock of class `C`; see [`flagstone_host::Machine::Lock`].
#[derive(Debug)]
pub struct RawLock<C> {
    /// `FREE`, `NO_MACHINE`, or the id of the machine in which it is held.
    holder: AtomicU64,
    class: PhantomData<fn() -> C>,
}

impl<C: LockClass> RawLock<C> {
    fn address(&self) -> usize {
        (&raw const *self).addr()
    }

    fn take(&self, holder: u64) -> bool {
        self.holder
            .compare_exchange(FREE, holder, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }
}

impl Core {
    fn stat(&self, name: &'static str, rank: Rank, update: impl FnOnce(&mut LockStat)) {
        let mut stats = self.lock_stats.borrow_mut();
        let at = stats
            .iter()
            .position(|s| s.rank == rank && s.name == name)
            .unwrap_or_else(|| {
                stats.push(LockStat {
                    name,
                    rank,
                    acquisitions: 0,
                    contended: 0,
                    refused: 0,
                    steps: 0,
                    longest: 0,
                });
                stats.len() - 1
            });
        update(&mut stats[at]);
    }

    /// Notes the lock as held by the running context.
    fn note_taken<C: LockClass>(&self, address: usize, tried: bool) {
        let result = {
            let mut schedule = self.schedule.borrow_mut();
            let me = &mut schedule.contexts[self.me.get()];
            let order = me.order.get_or_insert_with(|| Box::new(Order::new()));
            order.acquire::<C>(address, tried)
        };
        if let Err(violation) = result {
            let text = format!("{violation}{}", self.schedule.borrow().describe());
            self.fail(FailureKind::LockOrder, text);
        }
    }

    fn note_held<C: LockClass>(&self, address: usize) {
        let since = self.my_steps.get();
        let mut schedule = self.schedule.borrow_mut();
        schedule.contexts[self.me.get()].held.push(Held {
            address,
            name: C::NAME,
            since,
        });
        drop(schedule);
        self.stat(C::NAME, C::RANK, |s| s.acquisitions += 1);
    }

    fn note_released<C: LockClass>(&self, address: usize) {
        let (result, held) = {
            let mut schedule = self.schedule.borrow_mut();
            let me = &mut schedule.contexts[self.me.get()];
            let result = match &mut me.order {
                Some(order) => order.release::<C>(address).map_err(|e| e.to_string()),
                None => Err(format!("{} released, but nothing is held", C::NAME)),
            };
            let held = me
                .held
                .iter()
                .rposition(|h| h.address == address)
                .map(|at| me.held.remove(at));
            (result, held)
        };
        if let Some(held) = held {
            let steps = self.my_steps.get() - held.since;
            self.stat(C::NAME, C::RANK, |s| {
                s.steps += steps;
                s.longest = s.longest.max(steps);
            });
        }
        if let Err(text) = result
            && !std::thread::panicking()
        {
            self.fail(FailureKind::LockOrder, text);
        }
    }
}

// SAFETY: T4: `holder` leaves FREE only by a compare-exchange and returns to it only in `unlock`.
unsafe impl<C: LockClass> lock_api::RawMutex for RawLock<C> {
    #[allow(
        clippy::declare_interior_mutable_const,
        reason = "that is what INIT is for"
    )]
    const INIT: Self = Self {
        holder: AtomicU64::new(FREE),
        class: PhantomData,
    };
    type GuardMarker = lock_api::GuardNoSend;

    fn lock(&self) {
        let address = self.address();
        let found = with_current(|core| {
            if C::IN_INTERRUPT {
                core.block_irq();
            } else if core.irq_blocked() {
                let text = format!("{} may sleep and is taken with interrupts blocked", C::NAME);
                core.fail(FailureKind::LockOrder, text);
            }
            core.note_taken::<C>(address, false);
            let mut waited = false;
            loop {
                core.step(Point::Lock);
                if self.take(core.id) {
                    break;
                }
                if !waited {
                    core.stat(C::NAME, C::RANK, |s| s.contended += 1);
                    waited = true;
                }
                core.wait(address, C::NAME);
            }
            core.note_held::<C>(address);
        });
        if found.is_none() {
            while !self.take(NO_MACHINE) {
                std::thread::yield_now();
            }
        }
    }

    fn try_lock(&self) -> bool {
        let address = self.address();
        with_current(|core| {
            if C::IN_INTERRUPT {
                core.block_irq();
            }
            core.step(Point::Lock);
            let taken = self.take(core.id);
            if taken {
                core.note_taken::<C>(address, true);
                core.note_held::<C>(address);
            } else {
                if C::IN_INTERRUPT {
                    core.unblock_irq();
                }
                core.stat(C::NAME, C::RANK, |s| s.refused += 1);
            }
            taken
        })
        .unwrap_or_else(|| self.take(NO_MACHINE))
    }

    unsafe fn unlock(&self) {
        let address = self.address();
        let holder = self.holder.load(Ordering::Relaxed);
        if holder == NO_MACHINE {
            self.holder.store(FREE, Ordering::Release);
            return;
        }
        let found = with_machine(holder, |core| {
            core.step(Point::Unlock);
            core.note_released::<C>(address);
            self.holder.store(FREE, Ordering::Release);
            core.schedule.borrow_mut().wake(address);
            if C::IN_INTERRUPT {
                core.unblock_irq();
            }
            core.step(Point::Unlock);
        });
        if found.is_none() {
            self.holder.store(FREE, Ordering::Release);
        }
    }

    fn is_locked(&self) -> bool {
        self.holder.load(Ordering::Relaxed) != FREE
    }
}
