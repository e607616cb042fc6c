//! Invalidations: which translations one of them takes away, and what must not survive a shootdown.
//!
//! The unit is as unhelpful as the rules allow: it keeps everything that it may keep. An invalidation of a range is so many
//! invalidations of single addresses, one per `2^stride` bytes; each takes what translates that address. Cached tables go only if `tables` was asked
//! for. Global translations go only if no address space was named.

use super::cached::{Link, Links, Tag};
use super::{Fault, Unit};
use crate::arch::Word;
use crate::violation::{Checked, Rule, broken};
use flagstone_host::Invalidate;
use flagstone_seeded::Hooks;
use flagstone_types::{CpuId, CpuMask};

/// A shootdown that has not reached every CPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    pub(crate) id: u64,
    pub(crate) what: Invalidate,
    /// CPUs that it has not reached.
    pub(crate) left: CpuMask,
    /// Its place in the order of events: what was written before is covered.
    pub(crate) begun: u64,
    /// The CPUs that it is for.
    pub(crate) set: CpuMask,
}

/// Whether the whole address space is meant.
pub(crate) fn is_full(what: &Invalidate) -> bool {
    what.start.0 == 0 && what.end.0 == usize::MAX
}

/// Whether an invalidation of one of the addresses that `what` names takes what translates `2^shift` bytes at `va`.
pub(crate) fn reaches(what: &Invalidate, va: u64, shift: u32) -> bool {
    if is_full(what) {
        return true;
    }
    let (start, end) = (what.start.0 as u64, what.end.0 as u64);
    let last = va.saturating_add((1u64 << shift) - 1);
    if last < start || va >= end {
        return false;
    }
    let stride = 1u64 << what.stride;
    let first = if va <= start {
        start
    } else {
        match (va - start).checked_next_multiple_of(stride) {
            Some(offset) => start.saturating_add(offset),
            None => return false,
        }
    };
    first <= last && first < end
}

/// Whether the range of `what` has an address of these `2^shift` bytes, whatever its stride.
fn covers(what: &Invalidate, va: u64, shift: u32) -> bool {
    let last = va.saturating_add((1u64 << shift) - 1);
    is_full(what) || (last >= what.start.0 as u64 && va < what.end.0 as u64)
}

impl Unit {
    /// Whether an invalidation for this address space takes translations with this tag.
    fn is_for(&self, what: &Invalidate, tag: Tag) -> bool {
        match what.asid {
            None => true,
            // A unit that does not keep address spaces apart takes them all.
            Some(asid) => !tag.global && (tag.asid == asid.0 || self.caps.asid_bits == 0),
        }
    }

    /// Invalidates on `cpu`.
    pub(crate) fn invalidate(&mut self, hooks: Hooks<'_>, cpu: usize, what: &Invalidate) {
        if is_full(what) {
            self.stats.full_invalidations += 1;
        } else {
            self.stats.invalidated_addresses += what.steps() as u64;
        }
        let mut unit = core::mem::take(&mut self.cpus[cpu]);
        unit.translations
            .retain(|t| !(self.is_for(what, t.tag) && reaches(what, t.va, t.shift)));
        if what.tables {
            unit.tables
                .retain(|t| !(self.is_for(what, t.tag) && reaches(what, t.va, t.shift)));
        }
        if let Some(walk) = &unit.walk
            && self.is_for(what, walk.tag)
            && covers(what, walk.va, self.geometry.page_shift)
            && (what.tables || walk.is_at_leaf())
        {
            unit.walk = None;
        }
        self.cpus[cpu] = unit;
        if what.tables {
            self.load_registers(hooks, cpu);
        }
        let event = self.next_event();
        self.cpus[cpu].invalidated = event;
    }

    /// Loads the top entries of x86 PAE into registers, as loading CR3 does.
    pub(crate) fn load_registers(&mut self, hooks: Hooks<'_>, cpu: usize) {
        if self.arch != crate::arch::Arch::X86Pae {
            return;
        }
        let root = self.cpus[cpu].root;
        let event = self.next_event();
        self.cpus[cpu].registers = root.map(|root| {
            core::array::from_fn(|n| {
                let at = root + 8 * n as u64;
                Link {
                    at,
                    raw: self.word(hooks, at).unwrap_or(0),
                    level: self.geometry.top,
                    event,
                }
            })
        });
    }

    /// Makes `cpu` translate by `root`.
    pub(crate) fn activate(
        &mut self,
        hooks: Hooks<'_>,
        cpu: usize,
        root: u64,
        asid: u16,
        fresh: bool,
    ) -> Checked {
        self.note_table(hooks, root, self.geometry.top);
        let keeps_apart = self.caps.asid_bits > 0;
        let goes = |tag: &Tag| !tag.global && (!keeps_apart || (fresh && tag.asid == asid));
        let unit = &mut self.cpus[cpu];
        unit.translations.retain(|t| !goes(&t.tag));
        unit.tables.retain(|t| !goes(&t.tag));
        unit.walk = None;
        let stays = (unit.root, unit.asid) == (Some(root), asid);
        (unit.root, unit.asid) = (Some(root), asid);
        if !stays {
            let event = self.next_event();
            self.cpus[cpu].active_since = event;
        }
        self.load_registers(hooks, cpu);
        let unit = &self.cpus[cpu];
        for t in &unit.translations {
            let other = t.tag.root != root && Some(t.tag.root) != self.kernel_root;
            if t.tag.asid == asid && !t.tag.global && (other || t.condemned.is_some()) {
                let why = t.condemned.as_deref().unwrap_or("it is of another table");
                let history = self.describe(t.links.as_slice());
                return broken(
                    Rule::AsidReuse,
                    format!(
                        "CPU {cpu} makes the table at {root:#x} active as address space {asid}, not fresh, but its unit has {t}: {why}{history}"
                    ),
                );
            }
        }
        Ok(())
    }

    /// Whether what an entry said allows more than, or something else than, what it says now.
    pub(crate) fn takes_away(&self, level: u8, before: u64, now: u64) -> bool {
        let decode = |raw| self.arch.decode(level, raw, &self.caps);
        match (decode(before), decode(now)) {
            (Word::Invalid | Word::Reserved(_), _) => false,
            (
                Word::Table { at, limit, .. },
                Word::Table {
                    at: now,
                    limit: left,
                    ..
                },
            ) => at != now || !left.contains(limit),
            (Word::Page(before), Word::Page(now)) => {
                before.at != now.at
                    || !now.rights.contains(before.rights)
                    || (before.dirty && !now.dirty)
                    || before.memory != now.memory
                    || before.global != now.global
            }
            _ => true,
        }
    }

    /// The link that was out of date at `event`, if one was.
    fn stale_at<'l>(&self, hooks: Hooks<'_>, links: &'l [Link], event: u64) -> Option<&'l Link> {
        links.iter().filter(|l| l.event < event).find(|link| {
            let now = self.word(hooks, link.at).unwrap_or(0);
            let then = self.history.value_at(link.at, event, now);
            self.takes_away(link.level, link.raw, then)
        })
    }

    /// A shootdown has ended: whatever it covers that was out of date when it began may never be used again, on any CPU.
    pub(crate) fn completed(&mut self, hooks: Hooks<'_>, flight: &Flight) {
        let Flight { what, begun, .. } = flight;
        let mut cpus = core::mem::take(&mut self.cpus);
        // Without `tables` a shootdown says nothing of entries that name tables.
        fn claimed<'l>(links: &'l Links, what: &Invalidate) -> &'l [Link] {
            let links = links.as_slice();
            let first = if what.tables {
                0
            } else {
                links.len().saturating_sub(1)
            };
            &links[first..]
        }
        let why = |link: &Link| {
            let text = format!(
                "a shootdown of {:#x}..{:#x} (stride {}, tables {}, {:?}) that began at event {begun} and has ended covers the entry at {:#x}",
                what.start.0, what.end.0, what.stride, what.tables, what.asid, link.at
            );
            Some(text.into_boxed_str())
        };
        for (cpu, unit) in cpus.iter_mut().enumerate() {
            // It began to use the address space when who shoots had looked at the set: what it holds is not of this shootdown (V13).
            let came_later = what.asid.is_some_and(|asid| asid.0 == unit.asid)
                && unit.root.is_some()
                && !flight.set.contains(CpuId(cpu as u32));
            if came_later {
                continue;
            }
            for t in &mut unit.translations {
                if t.condemned.is_none()
                    && self.is_for(what, t.tag)
                    && covers(what, t.va, t.shift)
                    && let Some(link) = self.stale_at(hooks, claimed(&t.links, what), *begun)
                {
                    t.condemned = why(link);
                }
            }
            if !what.tables {
                continue;
            }
            for t in &mut unit.tables {
                if t.condemned.is_none()
                    && self.is_for(what, t.tag)
                    && covers(what, t.va, t.shift)
                    && let Some(link) = self.stale_at(hooks, t.links.as_slice(), *begun)
                {
                    t.condemned = why(link);
                }
            }
            if let Some(walk) = &mut unit.walk
                && walk.condemned.is_none()
                && self.is_for(what, walk.tag)
                && covers(what, walk.va, self.geometry.page_shift)
                && let Some(link) = self.stale_at(hooks, walk.links.as_slice(), *begun)
            {
                walk.condemned = why(link);
            }
        }
        self.cpus = cpus;
    }

    /// A fault drops what caused it, where the architecture says so.
    pub(crate) fn drop_faulting(&mut self, cpu: usize, fault: &Fault) {
        if self.arch.fault_drops() {
            let va = fault.va.0 as u64;
            let unit = &mut self.cpus[cpu];
            let asid = unit.asid;
            let mine = |tag: &Tag| tag.global || tag.asid == asid;
            unit.translations.retain(|t| !(mine(&t.tag) && t.holds(va)));
            unit.tables.retain(|t| !(mine(&t.tag) && t.holds(va)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flagstone_host::Asid;
    use flagstone_types::VirtAddr;

    fn range(start: usize, end: usize, stride: u8) -> Invalidate {
        Invalidate {
            asid: Some(Asid(1)),
            start: VirtAddr(start),
            end: VirtAddr(end),
            stride,
            tables: false,
        }
    }

    #[test]
    fn an_invalidation_takes_what_translates_one_of_its_addresses() {
        let pages = range(0x1000, 0x3000, 12);
        for (va, reached) in [(0, false), (0x1000, true), (0x2000, true), (0x3000, false)] {
            assert_eq!(reaches(&pages, va, 12), reached, "{va:#x}");
        }
        assert!(reaches(&pages, 0, 21), "a huge page around it goes whole");
        let huge = range(0, 0x40_0000, 21);
        assert!(reaches(&huge, 0, 12) && reaches(&huge, 0x20_0000, 12));
        assert!(
            !reaches(&huge, 0x1000, 12),
            "too wide a stride leaves small pages"
        );
        assert!(covers(&huge, 0x1000, 12));
        assert!(reaches(&Invalidate::all(None), u64::MAX - 0xfff, 12));
    }
}
