//! What page-table code asks of the machine: words of tables, the unit, shootdowns.

use crate::history::Writer;
use crate::machine::Machine;
use crate::mmu::{Flight, Unit};
use crate::violation::{Rule, broken};
use core::panic::Location;
use flagstone_host::{Asid, Invalidate, Mmu, MmuCaps, Shootdown, TableMemory};
use flagstone_seeded::Hooks;
use flagstone_types::{CpuId, CpuMask, PhysAddr};

/// A shootdown under way; given back to [`Shootdown::wait`].
#[derive(Debug)]
#[must_use = "what was shot down is reachable until it was waited for"]
pub struct Pending {
    id: u64,
}

impl<const SHIFT: u32, const ORDER: u32> Machine<SHIFT, ORDER> {
    /// Others may run, then the word at `at` is there.
    fn word(&self, at: PhysAddr, width: u64) -> u64 {
        self.aside();
        self.hooks().step();
        self.word_now(at, width)
    }

    fn word_now(&self, at: PhysAddr, width: u64) -> u64 {
        self.with(|unit, hooks| {
            unit.check_owned(hooks, at.0)?;
            unit.check_protected(hooks, at.0)
        });
        let word = self.unit.get().borrow().word(self.hooks(), at.0 & !7);
        match word {
            Some(word) if at.0.is_multiple_of(width) => word,
            _ => self.hooks().misuse(format!(
                "a word of a table at {:#x}, where none can be",
                at.0
            )),
        }
    }

    #[track_caller]
    fn write(&self, at: PhysAddr, old: u64, new: u64, by: Writer) {
        let place = Location::caller();
        self.with(|unit, hooks| unit.software_write(hooks, at.0, old, new, by, place));
    }

    fn seen(&self, at: PhysAddr, value: u64) {
        self.unit
            .get()
            .borrow_mut()
            .note_seen(self.hooks(), at.0, value);
    }

    /// Memory holds `raw` in the order of bytes of the architecture, and the host's traits speak of what memory holds.
    fn to_raw(&self, word: u64) -> u64 {
        self.unit.get().borrow().arch.from_memory(word)
    }

    fn to_word(&self, raw: u64) -> u64 {
        self.unit.get().borrow().arch.to_memory(raw)
    }

    fn reach(&self, unit: &mut Unit, hooks: Hooks<'_>, cpu: CpuId, what: &Invalidate) {
        unit.invalidate(hooks, cpu.index(), what);
        let steps = what.steps() as u64;
        let cost = if steps < 64 {
            steps.max(1) * self.costs.invalidate_address
        } else {
            self.costs.invalidate_all
        };
        self.charge(cpu, cost);
    }

    /// Whether a shootdown can reach `cpu` now.
    fn can_reach(&self, unit: &Unit, hooks: Hooks<'_>, cpu: CpuId) -> bool {
        if unit.caps.broadcast {
            !unit.cpus[cpu.index()].busy
        } else {
            hooks.is_open(cpu)
        }
    }

    fn deliver(&self, unit: &mut Unit, hooks: Hooks<'_>, flight: usize, cpu: CpuId) {
        let what = unit.flights[flight].what;
        unit.flights[flight].left.remove(cpu);
        unit.stats.remote_invalidations += 1;
        if !unit.caps.broadcast {
            self.charge(cpu, self.costs.take_interrupt);
        }
        self.reach(unit, hooks, cpu, &what);
    }

    /// An interrupt under way may arrive.
    pub(crate) fn deliver_some(&self, unit: &mut Unit, hooks: Hooks<'_>) {
        let flight = unit.rng.below(unit.flights.len());
        let left = unit.flights[flight].left;
        let count = left.len() as usize;
        if count == 0 || !unit.rng.chance(64) {
            return;
        }
        if let Some(cpu) = left.iter().nth(unit.rng.below(count))
            && self.can_reach(unit, hooks, cpu)
        {
            self.deliver(unit, hooks, flight, cpu);
        }
    }
}

// SAFETY: T1: words are read and written in the frames that the unit walks, one access a step. T2: nothing intervenes between the
// comparison and the write of a read-modify-write, because they are one step.
unsafe impl<const SHIFT: u32, const ORDER: u32> TableMemory for &Machine<SHIFT, ORDER> {
    unsafe fn load_entry(&self, at: PhysAddr) -> u64 {
        let raw = self.word(at, 8);
        self.seen(at, raw);
        self.to_word(raw)
    }

    #[track_caller]
    unsafe fn store_entry(&self, at: PhysAddr, value: u64) {
        let old = self.word(at, 8);
        self.write(at, old, self.to_raw(value), Writer::Store);
        self.hooks().step();
    }

    #[track_caller]
    unsafe fn exchange_entry(&self, at: PhysAddr, value: u64) -> u64 {
        let old = self.word(at, 8);
        self.write(at, old, self.to_raw(value), Writer::Exchange);
        self.hooks().step();
        self.to_word(old)
    }

    #[track_caller]
    unsafe fn compare_exchange_entry(&self, at: PhysAddr, old: u64, new: u64) -> Result<(), u64> {
        let now = self.word(at, 8);
        self.seen(at, now);
        if now != self.to_raw(old) {
            return Err(self.to_word(now));
        }
        self.write(at, now, self.to_raw(new), Writer::CompareExchange);
        self.hooks().step();
        Ok(())
    }

    unsafe fn load_half(&self, at: PhysAddr) -> u32 {
        let whole = PhysAddr(at.0 & !7);
        let raw = self.word(at, 4);
        // What is known of the other half stays as it was known.
        let known = self.unit.get().borrow().known(self.hooks(), whole.0);
        let shift = 8 * (at.0 & 4);
        let half = (raw >> shift) as u32;
        let other = known.unwrap_or(raw) & !(0xffff_ffff << shift);
        self.seen(whole, other | u64::from(half) << shift);
        half
    }

    #[track_caller]
    unsafe fn store_half(&self, at: PhysAddr, value: u32) {
        let old = self.word(at, 4);
        let shift = 8 * (at.0 & 4);
        let new = old & !(0xffff_ffff << shift) | u64::from(value) << shift;
        self.write(PhysAddr(at.0 & !7), old, new, Writer::HalfStore);
        self.hooks().step();
    }
}

// SAFETY: T5: `Unit::invalidate` removes every translation of the range at once, and a walk that had read its leaf.
unsafe impl<const SHIFT: u32, const ORDER: u32> Mmu for &Machine<SHIFT, ORDER> {
    fn capabilities(&self) -> MmuCaps {
        self.caps()
    }

    unsafe fn activate(&self, root: PhysAddr, asid: Asid, fresh: bool) {
        self.aside();
        self.hooks().step();
        let bits = u32::from(self.caps().asid_bits);
        if bits > 0 && u32::from(asid.0) >> bits != 0 {
            self.hooks().misuse(format!(
                "{asid:?} is activated; the unit has {bits} bits for it"
            ));
        }
        if self.word_now(root, 8) == u64::MAX {
            self.hooks()
                .misuse(format!("{:#x} is activated, which is no table", root.0));
        }
        let cpu = self.hooks().cpu();
        self.with(|unit, hooks| unit.activate(hooks, cpu.index(), root.0, asid.0, fresh));
        self.charge(cpu, self.costs.invalidate_all);
        self.hooks().step();
    }

    fn invalidate(&self, what: &Invalidate) {
        self.aside();
        self.hooks().step();
        self.with(|unit, hooks| {
            let cpu = hooks.cpu();
            if hooks.running() && hooks.may_migrate() && hooks.is_open(cpu) {
                return broken(
                    Rule::ShootBlocked,
                    format!("a task invalidates on CPU {cpu}, but may be on another one by then: its interrupts are open"),
                );
            }
            unit.stats.local_invalidations += 1;
            self.reach(unit, hooks, cpu, what);
            Ok(())
        });
        self.hooks().step();
    }

    #[track_caller]
    unsafe fn write_table_entry(&self, at: PhysAddr, value: u64) {
        let old = self.word(at, 8);
        let by = if self.caps().paravirtual {
            self.unit.get().borrow_mut().stats.hypercalls += 1;
            self.charge(self.hooks().cpu(), self.costs.hypercall);
            Writer::Hypercall
        } else {
            Writer::Store
        };
        self.write(at, old, self.to_raw(value), by);
        self.hooks().step();
    }
}

// SAFETY: T6: `wait` returns when the invalidation was made on every CPU of the set.
unsafe impl<const SHIFT: u32, const ORDER: u32> Shootdown for &Machine<SHIFT, ORDER> {
    type Pending = Pending;

    fn shoot(&self, cpus: &CpuMask, what: &Invalidate) -> Pending {
        self.aside();
        self.hooks().step();
        self.with(|unit, hooks| {
            let own = hooks.cpu();
            let mut left = *cpus;
            left.remove(own);
            if !hooks.is_open(own) && !left.is_empty() && !unit.caps.broadcast {
                return broken(
                    Rule::ShootBlocked,
                    format!("CPU {own} shoots at {:?} with its interrupts blocked, so that two may wait for each other", left.iter().map(|c| c.0).collect::<Vec<_>>()),
                );
            }
            if let Some(cpu) = left.iter().find(|cpu| cpu.index() >= unit.cpus.len()) {
                hooks.misuse(format!("a shootdown of CPU {cpu}, which does not exist"));
            }
            unit.check_set(hooks, cpus, what)?;
            let id = unit.next_flight;
            unit.next_flight += 1;
            unit.stats.shootdowns += 1;
            let begun = unit.next_event();
            if cpus.contains(own) {
                self.reach(unit, hooks, own, what);
            }
            unit.flights.push(Flight {
                id,
                what: *what,
                left,
                begun,
                set: *cpus,
            });
            let cost = if unit.caps.broadcast {
                self.costs.broadcast
            } else {
                self.costs.send_interrupt * u64::from(left.len())
            };
            self.charge(own, cost);
            Ok(Pending { id })
        })
    }

    fn wait(&self, pending: Pending) {
        let mut spins = 0;
        loop {
            self.aside();
            self.hooks().step();
            let closed = self.with(|unit, hooks| {
                let Some(at) = unit.flights.iter().position(|f| f.id == pending.id) else {
                    return Ok(None);
                };
                let left = unit.flights[at].left;
                let mut reached = false;
                for cpu in left.iter() {
                    let open = self.can_reach(unit, hooks, cpu);
                    reached |= open;
                    if open && unit.rng.chance(128) {
                        self.deliver(unit, hooks, at, cpu);
                    }
                }
                if unit.flights[at].left.is_empty() {
                    let flight = unit.flights.remove(at);
                    unit.completed(hooks, &flight);
                    return Ok(None);
                }
                let closed = if reached { None } else { left.iter().next() };
                Ok(Some(closed))
            });
            match closed {
                None => return,
                Some(Some(cpu)) if !self.caps().broadcast && self.hooks().running() => {
                    self.hooks().wait_open(cpu, "the interrupts of a CPU");
                }
                Some(_) => self.hooks().relax(spins),
            }
            spins += 1;
        }
    }
}
