//! What units do unasked: they load translations at any time, and lose them at any time.

use super::cached::{Cached, Tag};
use super::walk::{Progress, Walk};
use super::{Fault, FaultKind, Unit};
use crate::arch::Word;
use crate::violation::Checked;
use flagstone_seeded::Hooks;

impl Unit {
    /// Keeps a translation, perhaps in the place of another.
    pub(crate) fn keep(&mut self, cpu: usize, cached: Cached) {
        let (capacity, rng) = (self.capacity, &self.rng);
        let held = &mut self.cpus[cpu].translations;
        if let Some(same) = held
            .iter_mut()
            .find(|t| t.va == cached.va && t.shift == cached.shift && t.tag == cached.tag)
        {
            *same = cached;
        } else if held.len() < capacity {
            held.push(cached);
        } else {
            held[rng.below(capacity)] = cached;
        }
    }

    /// An address that the table at `root` may translate, found by going down along entries that were used.
    fn likely_address(&self, hooks: Hooks<'_>, root: u64) -> Option<u64> {
        let (mut table, mut level, mut va) = (root, self.geometry.top, 0);
        loop {
            let words = self.used_words(table, level);
            if words.is_empty() {
                return None;
            }
            let word = self.rng.pick(&words);
            va |= ((word - table) / 8) << self.geometry.shift(level);
            let raw = self.word(hooks, word)?;
            match self.arch.decode(level, raw, &self.caps) {
                Word::Table { at, .. } => (table, level) = (at, level - 1),
                _ => {
                    let inside = self.geometry.shift(level) - self.geometry.page_shift;
                    let page = self.rng.below(1 << inside.min(30)) as u64;
                    va |= page << self.geometry.page_shift;
                    return Some(self.arch.canonical(va));
                }
            }
        }
    }

    /// Begins a walk for `va` at the root or at a cached table. The caller has looked for what is in its way.
    pub(crate) fn begin_walk(
        &self,
        cpu: usize,
        va: u64,
        access: Option<crate::arch::Access>,
    ) -> Option<Walk> {
        let unit = &self.cpus[cpu];
        let upper = self.arch.is_upper(va);
        let root = if upper { self.kernel_root } else { unit.root }?;
        let tag = Tag {
            asid: unit.asid,
            global: false,
            root,
        };
        let usable = || {
            unit.tables
                .iter()
                .filter(|t| t.holds(va) && unit.can_use(t.tag))
        };
        let count = usable().count();
        let choice = self.rng.below(count + 1);
        Some(match usable().nth(choice) {
            Some(cached) => Walk::from_cached(cached, va, access),
            None => Walk::from_root(tag, self.geometry.top, va, access),
        })
    }

    /// One unit goes on with a walk that nobody asked for, or begins one.
    pub(crate) fn guess(&mut self, hooks: Hooks<'_>, cpu: usize) -> Checked {
        let mut walk = match self.cpus[cpu].walk.take() {
            Some(walk) => walk,
            None => {
                let Some(root) = self.cpus[cpu].root else {
                    return Ok(());
                };
                let kernel = self.kernel_root.filter(|_| self.rng.chance(64));
                let Some(mut va) = self.likely_address(hooks, kernel.unwrap_or(root)) else {
                    return Ok(());
                };
                if kernel.is_some() {
                    va = self.arch.upper(va);
                }
                match self.begin_walk(cpu, va, None) {
                    Some(walk) => walk,
                    None => return Ok(()),
                }
            }
        };
        let steps = 1 + self.rng.below(4);
        for _ in 0..steps {
            match walk.advance(self, hooks, cpu)? {
                Progress::More => {}
                Progress::Fault(..) => return Ok(()),
                Progress::Done(cached) => {
                    self.stats.guesses += 1;
                    self.keep(cpu, *cached);
                    return Ok(());
                }
            }
        }
        self.cpus[cpu].walk = Some(walk);
        Ok(())
    }

    /// What happens of itself beside a host call.
    pub(crate) fn idle(&mut self, hooks: Hooks<'_>) -> Checked {
        self.look_around(hooks)?;
        let dice = self.rng.bits();
        if (dice & 0xff) < u64::from(self.guessing) {
            let cpu = (dice >> 8 & 0xffff) as usize % self.cpus.len();
            self.guess(hooks, cpu)?;
        }
        if dice >> 24 & 0xff < 2 {
            let cpu = (dice >> 32 & 0xffff) as usize % self.cpus.len();
            let which = (dice >> 48) as usize;
            let unit = &mut self.cpus[cpu];
            if !unit.translations.is_empty() {
                let victim = which % unit.translations.len();
                unit.translations.swap_remove(victim);
            }
            if !unit.tables.is_empty() && which & 1 == 0 {
                let victim = which % unit.tables.len();
                unit.tables.swap_remove(victim);
            }
        }
        Ok(())
    }

    /// The translation that `cpu` has for `va`, if any; one of them if there are several.
    pub(crate) fn held(&self, cpu: usize, va: u64) -> Option<usize> {
        let unit = &self.cpus[cpu];
        let fitting = || {
            let held = unit.translations.iter().enumerate();
            held.filter(|(_, t)| t.holds(va) && unit.can_use(t.tag))
                .map(|(n, _)| n)
        };
        match fitting().count() {
            0 => None,
            1 => fitting().next(),
            count => fitting().nth(self.rng.below(count)),
        }
    }

    /// The fault as the architecture tells it.
    pub(crate) fn fault(
        &mut self,
        cpu: usize,
        va: u64,
        access: crate::arch::Access,
        kind: FaultKind,
        level: u8,
    ) -> Fault {
        self.stats.faults += 1;
        let fault = Fault {
            va: flagstone_types::VirtAddr(va as usize),
            access,
            kind,
            level,
            code: super::fault_code(self.arch, kind, level, access),
        };
        self.drop_faulting(cpu, &fault);
        fault
    }
}
