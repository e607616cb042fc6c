//! Who reaches a table: CPUs that may walk it, shootdowns that leave such CPUs out (V13), contexts that read it without anything that keeps it (V14).

use super::{Link, Unit};
use crate::arch::Word;
use crate::violation::{Checked, Rule, broken};
use flagstone_frames::PageKind;
use flagstone_host::Invalidate;
use flagstone_seeded::Hooks;
use flagstone_types::CpuMask;

impl Unit {
    /// A CPU whose active tables have the word at `at` in one of level `level`.
    pub(crate) fn user_of(&self, hooks: Hooks<'_>, level: u8, at: u64) -> Option<usize> {
        let active = |cpu: &usize| self.cpus[*cpu].root;
        let cpus = 0..self.cpus.len();
        let mut failed = None;
        cpus.into_iter().find(|cpu| {
            let Some(root) = active(cpu).filter(|root| failed != Some(*root)) else {
                return false;
            };
            let reached = self.has_word(hooks, root, self.geometry.top, level, at);
            if !reached {
                failed = Some(root);
            }
            reached
        })
    }

    /// Whether the word at `at` is in a table of level `level` that hangs under this one.
    fn has_word(&self, hooks: Hooks<'_>, table: u64, own: u8, level: u8, at: u64) -> bool {
        if own <= level {
            return own == level && at.wrapping_sub(table) < self.geometry.table_bytes(level);
        }
        let mut words = self.used_words(table, own).into_iter();
        words.any(|word| {
            let raw = self.word(hooks, word).unwrap_or(0);
            match self.arch.decode(own, raw, &self.caps) {
                Word::Table { at: below, .. } => self.has_word(hooks, below, own - 1, level, at),
                _ => false,
            }
        })
    }

    /// A shootdown begins: a CPU that translates by this address space is in its set, or began to after the last change, or has invalidated since.
    pub(crate) fn check_set(&self, hooks: Hooks<'_>, cpus: &CpuMask, what: &Invalidate) -> Checked {
        let Some(asid) = what.asid else {
            return Ok(());
        };
        let changed = self.last_write(hooks);
        for (n, unit) in self.cpus.iter().enumerate() {
            let cpu = flagstone_types::CpuId(n as u32);
            if unit.root.is_some()
                && unit.asid == asid.0
                && unit.active_since < changed
                && unit.invalidated < changed
                && !cpus.contains(cpu)
            {
                return broken(
                    Rule::CpuLeftOut,
                    format!(
                        "CPU {} changed tables at event {changed} and shoots at {:?}; CPU {n} translates by them since event {}",
                        hooks.cpu(),
                        cpus.iter().map(|c| c.0).collect::<Vec<_>>(),
                        unit.active_since
                    ),
                );
            }
        }
        Ok(())
    }

    /// Software is about to read the word at `at`: if it is of a table that others may free, something keeps the table.
    pub(crate) fn check_protected(&self, hooks: Hooks<'_>, at: u64) -> Checked {
        let level = self.level_of(at);
        // Where several tables share a frame, one that is nobody's yet is not told from the others.
        if level == 0
            || self.geometry.table_bytes(level) < 1 << self.frame_shift
            || level >= self.geometry.top
            || !hooks.running()
            || hooks.is_protected()
            || !hooks.has_company()
            || self.kind_of(hooks, at) != PageKind::Table
        {
            return Ok(());
        }
        let link = Link {
            at: at & !7,
            level,
            ..Link::default()
        };
        broken(
            Rule::UnprotectedWalk,
            format!(
                "a context on CPU {} reads the word of a level-{level} table at {at:#x}, in no read-side section and with no lock{}",
                hooks.cpu(),
                self.describe(&[link])
            ),
        )
    }
}
