//! After a settled change: no CPU grants more than the tables do (V3).

use super::Unit;
use super::cached::{Cached, CpuUnit};
use crate::arch::Rights;
use crate::violation::{Checked, Rule, broken};
use flagstone_seeded::Hooks;

impl Unit {
    /// Compares every translation that some CPU can use for `start..end` of the address space with the tables.
    pub(crate) fn check_settled(
        &self,
        hooks: Hooks<'_>,
        asid: u16,
        start: u64,
        end: u64,
    ) -> Checked {
        for (cpu, unit) in self.cpus.iter().enumerate() {
            let concerned = |t: &Cached| t.va < end && start <= t.va + ((1u64 << t.shift) - 1);
            for t in unit.translations.iter().chain(&unit.using) {
                if (t.tag.global || t.tag.asid == asid) && unit.can_use(t.tag) && concerned(t) {
                    self.check_grant(hooks, cpu, unit, t, start, end)?;
                }
            }
        }
        Ok(())
    }

    /// Compares every table that some CPU can begin a walk of the address space at, and every walk that is under way, with the tables.
    pub(crate) fn check_tables_settled(&self, hooks: Hooks<'_>, asid: u16) -> Checked {
        for (cpu, unit) in self.cpus.iter().enumerate() {
            let cached = unit.tables.iter().map(|t| (t.tag, t.va, &t.links));
            let walks = unit
                .walk
                .iter()
                .map(|walk| (walk.tag, walk.va, &walk.links));
            for (tag, va, links) in cached.chain(walks) {
                if tag.asid != asid || tag.global || !unit.can_use(tag) {
                    continue;
                }
                let gone = links.as_slice().iter().find(|link| {
                    let now = self.word(hooks, link.at).unwrap_or(0);
                    self.takes_away(link.level, link.raw, now)
                });
                if let Some(gone) = gone {
                    let history = self.describe(&[*gone]);
                    return broken(
                        Rule::NotSettled,
                        format!("CPU {cpu} walks to {va:#x} by an entry that has changed{history}"),
                    );
                }
            }
        }
        Ok(())
    }

    fn check_grant(
        &self,
        hooks: Hooks<'_>,
        cpu: usize,
        unit: &CpuUnit,
        t: &Cached,
        start: u64,
        end: u64,
    ) -> Checked {
        let upper = self.arch.is_upper(t.va);
        let Some(root) = (if upper { self.kernel_root } else { unit.root }) else {
            return Ok(());
        };
        let page = 1u64 << self.geometry.page_shift;
        let last = (t.va + ((1u64 << t.shift) - 1)).min(end - 1);
        let mut va = t.va.max(start & !(page - 1));
        while va <= last {
            let now = self.translate(hooks, root, va);
            let reason = match now {
                None => Some("the tables do not translate it".to_owned()),
                Some(now) => {
                    let physical = now.at.0 + (va - now.va.0 as u64);
                    if physical != t.physical(va) {
                        Some(format!("the tables lead to {physical:#x}"))
                    } else if !now.rights.contains(t.rights) {
                        Some(format!("the tables allow {:?}", now.rights))
                    } else if now.shift != t.shift {
                        Some(format!(
                            "the tables translate 2^{} bytes at once",
                            now.shift
                        ))
                    } else if t.dirty && !now.dirty && t.rights.contains(Rights::WRITE) {
                        Some("the entry is not dirty, and a store would not make it so".to_owned())
                    } else {
                        None
                    }
                }
            };
            if let Some(reason) = reason {
                let history = self.describe(t.links.as_slice());
                return broken(
                    Rule::NotSettled,
                    format!("CPU {cpu} translates {va:#x} by {t}: {reason}{history}"),
                );
            }
            // The same leaf answers for all of its size.
            let reach = now.map_or(page, |now| 1 << now.shift.min(t.shift));
            let Some(next) = (va & !(reach - 1)).checked_add(reach) else {
                break;
            };
            va = next;
        }
        Ok(())
    }
}
