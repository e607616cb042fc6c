//! Frames that go back to their allocator: nobody may be able to reach them (V1, V2).
//!
//! A test says so for leaves (`Machine::frame_freed`); for everything that `frames` manages the unit finds out by itself: whoever frees
//! a block asks for its metadata first, so the frames asked for last are looked at with every host call, and one cached translation a call besides.

use super::Unit;
use crate::violation::{Checked, Rule, broken};
use flagstone_frames::PageKind;
use flagstone_seeded::Hooks;
use flagstone_types::Pfn;

/// Whether the allocator owns a frame of this kind.
const fn is_free(kind: PageKind) -> bool {
    matches!(
        kind,
        PageKind::Buddy | PageKind::PageList | PageKind::Isolated
    )
}

impl Unit {
    /// The bytes `start..end` of physical memory belong to the allocator again.
    pub(crate) fn freed(&mut self, hooks: Hooks<'_>, start: u64, end: u64, how: &str) -> Checked {
        let inside = |at: u64| at >= start && at < end;
        let step = hooks.steps();
        let mut verdict = Ok(());
        let mut cpus = core::mem::take(&mut self.cpus);
        for (cpu, unit) in cpus.iter_mut().enumerate() {
            if verdict.is_err() {
                break;
            }
            if let Some(root) = unit.root.filter(|root| inside(*root)) {
                verdict = broken(
                    Rule::TableReachable,
                    format!(
                        "CPU {cpu} translates by the table at {root:#x}, whose frame was freed ({how})"
                    ),
                );
            }
            let walks = unit.walk.iter().chain(&unit.access_walk);
            for walk in walks.filter(|w| inside(w.table)) {
                verdict = broken(
                    Rule::TableReachable,
                    format!(
                        "CPU {cpu} is walking to {:#x} by the level-{} table at {:#x}, whose frame was freed ({how}){}",
                        walk.va,
                        walk.level,
                        walk.table,
                        self.describe(walk.links.as_slice())
                    ),
                );
            }
            for link in unit.registers.iter().flatten() {
                if let crate::arch::Word::Table { at, .. } =
                    self.arch.decode(link.level, link.raw, &self.caps)
                    && inside(at)
                {
                    verdict = broken(
                        Rule::TableReachable,
                        format!(
                            "CPU {cpu} has loaded the table at {at:#x} into a register, and its frame was freed ({how}){}",
                            self.describe(&[*link])
                        ),
                    );
                }
            }
            let (root, asid) = (unit.root, unit.asid);
            let usable = |tag: &super::Tag| root.is_some() && (tag.global || tag.asid == asid);
            for t in &mut unit.tables {
                if !inside(t.table) {
                    continue;
                }
                if usable(&t.tag) {
                    verdict = broken(
                        Rule::TableReachable,
                        format!(
                            "CPU {cpu} has the level-{} table at {:#x} in its paging-structure cache for {:#x}, and its frame was freed ({how}){}",
                            t.level,
                            t.table,
                            t.va,
                            self.describe(t.links.as_slice())
                        ),
                    );
                } else if t.condemned.is_none() {
                    t.condemned = Some(format!("its frame was freed at step {step}").into());
                }
            }
            for t in unit.translations.iter_mut().chain(&mut unit.using) {
                if !t.maps(start, end) || self.exempt.iter().any(|e| e.0 <= t.va && t.va < e.1) {
                    continue;
                }
                if usable(&t.tag) {
                    verdict = broken(
                        Rule::FrameReachable,
                        format!(
                            "physical {start:#x}..{end:#x} was freed ({how}), but CPU {cpu} can use {t}{}",
                            self.describe(t.links.as_slice())
                        ),
                    );
                } else if t.condemned.is_none() {
                    t.condemned = Some(format!("its frame was freed at step {step}").into());
                }
            }
        }
        self.cpus = cpus;
        for pfn in self.pfn(start)..=self.pfn(end - 1) {
            self.forget_frame(pfn);
        }
        verdict
    }

    /// Software is about to use the word at `at`: the frame is not the allocator's.
    pub(crate) fn check_owned(&self, hooks: Hooks<'_>, at: u64) -> Checked {
        let kind = self.kind_of(hooks, at);
        if !is_free(kind) {
            return Ok(());
        }
        let link = super::Link {
            at: at & !7,
            ..super::Link::default()
        };
        broken(
            Rule::FreedTable,
            format!(
                "a context on CPU {} uses the word of a table at {at:#x}, whose frame is {kind:?}{}",
                hooks.cpu(),
                self.describe(&[link])
            ),
        )
    }

    /// How many frames the block at `pfn` has, if one begins there.
    fn block_pages(&self, hooks: Hooks<'_>, pfn: u64) -> u64 {
        hooks.record(Pfn(pfn as usize)).map_or(1, |record| {
            // SAFETY: M2 of the host's model: 64 bytes of metadata, aligned; a `Page` has that size and its head is atomic.
            let page = unsafe { record.cast::<flagstone_frames::Page>().as_ref() };
            page.order().pages() as u64
        })
    }

    /// Somebody asks for the metadata of `pfn`: its owner may be about to free it.
    pub(crate) fn note_touched(&mut self, hooks: Hooks<'_>, pfn: u64) {
        let kind = self.kind_of(hooks, pfn << self.frame_shift);
        if is_free(kind)
            || matches!(kind, PageKind::Absent)
            || self.touched.iter().any(|t| t.0 == pfn)
        {
            return;
        }
        let slot = self.next_touched;
        self.touched[slot] = (pfn, self.block_pages(hooks, pfn));
        self.next_touched = (slot + 1) % self.touched.len();
    }

    /// Looks at the frames whose metadata were asked for lately, and at one translation of one CPU.
    pub(crate) fn look_around(&mut self, hooks: Hooks<'_>) -> Checked {
        for slot in 0..self.touched.len() {
            let (pfn, pages) = self.touched[slot];
            if pfn != u64::MAX && is_free(self.kind_of(hooks, pfn << self.frame_shift)) {
                self.touched[slot].0 = u64::MAX;
                let start = pfn << self.frame_shift;
                let end = (pfn + pages) << self.frame_shift;
                self.freed(hooks, start, end, "its metadata say so")?;
            }
        }
        let cpu = self.sweep % self.cpus.len();
        let n = self.sweep / self.cpus.len();
        self.sweep = self.sweep.wrapping_add(1);
        let held = &self.cpus[cpu].translations;
        if !held.is_empty() {
            let cached = &held[n % held.len()];
            if self.cpus[cpu].can_use(cached.tag)
                && cached.condemned.is_none()
                && !self.is_exempt(cached.va)
                && is_free(self.kind_of(hooks, cached.pa))
            {
                return broken(
                    Rule::FrameReachable,
                    format!(
                        "a free frame is behind a translation that CPU {cpu} can use: {cached}{}",
                        self.describe(cached.links.as_slice())
                    ),
                );
            }
        }
        Ok(())
    }
}
