//! What follows from a write to a word of a table by software: levels, and the rules that writes themselves break (V5, V6, V7).

use super::cached::{CachedTable, Tag};
use super::walk::Walk;
use super::{Link, Unit};
use crate::arch::{Rights, Word};
use crate::history::Writer;
use crate::violation::{Checked, Rule, broken};
use core::panic::Location;
use flagstone_seeded::Hooks;

/// Words of a frame that are remembered as having been used.
const WORDS: usize = 256;

impl Unit {
    /// The level of the tables in the frame at `at`, 0 if no unit reaches them.
    pub(crate) fn level_of(&self, at: u64) -> u8 {
        self.frames.get(&self.pfn(at)).map_or(0, |note| note.level)
    }

    /// Forgets what was known of the frame.
    pub(crate) fn forget_frame(&mut self, pfn: u64) {
        self.frames.remove(&pfn);
    }

    /// Notes that units may reach the table at `at`, and what it names.
    pub(crate) fn note_table(&mut self, hooks: Hooks<'_>, at: u64, level: u8) {
        if self.level_of(at) == level {
            return;
        }
        let bytes = self.geometry.table_bytes(level);
        for pfn in self.pfn(at)..=self.pfn(at + bytes - 1) {
            self.frames.entry(pfn).or_default().level = level;
        }
        if level == 1 {
            return;
        }
        for word in self.used_words(at, level) {
            if let Some(raw) = self.word(hooks, word)
                && let Word::Table { at, .. } = self.arch.decode(level, raw, &self.caps)
            {
                self.note_table(hooks, at, level - 1);
            }
        }
    }

    /// Addresses of words of a table that were not zero at some time.
    pub(crate) fn used_words(&self, table: u64, level: u8) -> Vec<u64> {
        let end = table + self.geometry.table_bytes(level);
        let mut words = Vec::new();
        for pfn in self.pfn(table)..=self.pfn(end - 1) {
            if let Some(note) = self.frames.get(&pfn) {
                let at = |word: &u16| (pfn << self.frame_shift) + 8 * u64::from(*word);
                words.extend(
                    note.words
                        .iter()
                        .map(at)
                        .filter(|at| *at >= table && *at < end),
                );
            }
        }
        words
    }

    /// Software replaces the word at `at`: writes it, and judges the write.
    pub(crate) fn software_write(
        &mut self,
        hooks: Hooks<'_>,
        at: u64,
        old: u64,
        new: u64,
        by: Writer,
        place: &'static Location<'static>,
    ) -> Checked {
        let level = self.level_of(at);
        let verdict = if level > 0 {
            self.judge(hooks, level, at, old, new, by, place)
        } else {
            Ok(())
        };
        self.set_word(hooks, at, new);
        let event = self.next_event();
        self.history.push(
            at,
            (old, new),
            (event, hooks.steps()),
            hooks.cpu().0,
            hooks.context(),
            by,
            Some(place),
        );
        if level > 0 {
            self.note_wrote(hooks, event);
        }
        self.note_seen(hooks, at, new);
        if new != 0 {
            let word = ((at & ((1 << self.frame_shift) - 1)) / 8) as u16;
            let note = self.frames.entry(self.pfn(at)).or_default();
            if !note.words.contains(&word) {
                if note.words.len() < WORDS {
                    note.words.push(word);
                } else {
                    let slot = self.rng.below(WORDS);
                    note.words[slot] = word;
                }
            }
        }
        verdict?;
        if level > 1 {
            self.relevel(hooks, level, old, new);
        }
        Ok(())
    }

    /// Tables that are named, or no longer named, by a reachable entry.
    fn relevel(&mut self, hooks: Hooks<'_>, level: u8, old: u64, new: u64) {
        let table = |unit: &Self, raw| match unit.arch.decode(level, raw, &unit.caps) {
            Word::Table { at, .. } => Some(at),
            _ => None,
        };
        let (old, new) = (table(self, old), table(self, new));
        if old == new {
            return;
        }
        if let Some(at) = old {
            // Fragments of one frame may still be named by others.
            let bytes = self.geometry.table_bytes(level - 1);
            if bytes >= 1 << self.frame_shift {
                for pfn in self.pfn(at)..=self.pfn(at + bytes - 1) {
                    if let Some(note) = self.frames.get_mut(&pfn) {
                        note.level = 0;
                    }
                }
            }
        }
        if let Some(at) = new {
            self.note_table(hooks, at, level - 1);
        }
    }

    #[allow(clippy::too_many_arguments, reason = "one write, told by its parts")]
    fn judge(
        &self,
        hooks: Hooks<'_>,
        level: u8,
        at: u64,
        old: u64,
        new: u64,
        by: Writer,
        place: &'static Location<'static>,
    ) -> Checked {
        let link = Link {
            at,
            raw: old,
            level,
            event: 0,
        };
        let tell = |rule, what: &str| {
            let text = format!(
                "CPU {} at {}:{} writes {new:#x} over {old:#x} at {at:#x}: {what}{}",
                hooks.cpu(),
                place.file(),
                place.line(),
                self.describe(&[link])
            );
            broken(rule, text)
        };
        if self.caps.paravirtual && level > 1 && by != Writer::Hypercall {
            return tell(
                Rule::PlainTableWrite,
                "only the hypervisor writes entries above the last level",
            );
        }
        let (was, is) = (
            self.arch.decode(level, old, &self.caps),
            self.arch.decode(level, new, &self.caps),
        );
        if by.is_blind()
            && self.use_asked
            && let Word::Page(was) = was
        {
            let known = self.seen(hooks, at).unwrap_or_else(|| {
                let written = self.history.of(at).find(|r| !r.by.is_unit());
                written.map_or(old, |r| r.new)
            });
            if let Word::Page(known) = self.arch.decode(level, known, &self.caps) {
                let kept = match is {
                    Word::Page(is) => (is.accessed, is.dirty),
                    _ => (false, false),
                };
                if was.dirty && !known.dirty && !kept.1 {
                    return tell(
                        Rule::LostUpdate,
                        "the unit had set the dirty bit, and nobody will know",
                    );
                }
                if was.accessed && !known.accessed && !kept.0 {
                    return tell(
                        Rule::LostUpdate,
                        "the unit had set the accessed bit, and nobody will know",
                    );
                }
            }
            let keeps = |accessed: bool, dirty: bool| matches!(is, Word::Page(is) if (is.accessed || !accessed) && (is.dirty || !dirty));
            let sets = (
                !was.accessed && self.caps.accessed,
                !was.dirty && self.caps.dirty && (was.rights.contains(Rights::WRITE) || was.shadow),
            );
            if sets != (false, false)
                && !keeps(sets.0, sets.1)
                && let Some(cpu) = self.user_of(hooks, level, at)
            {
                return tell(
                    Rule::RacingStore,
                    &format!("CPU {cpu} translates by it, and sets bits of it at any time"),
                );
            }
        }
        if self.arch.breaks_before_make() {
            if needs_break(&was, &is) {
                return tell(
                    Rule::BreakBeforeMake,
                    "a valid entry becomes another valid one at once",
                );
            }
            if was == Word::Invalid && is != Word::Invalid {
                for (cpu, unit) in self.cpus.iter().enumerate() {
                    let mut held = unit
                        .translations
                        .iter()
                        .filter(|t| t.condemned.is_none() && unit.can_use(t.tag))
                        .flat_map(|t| t.links.as_slice())
                        .chain(
                            unit.tables
                                .iter()
                                .filter(|t| t.condemned.is_none() && unit.can_use(t.tag))
                                .flat_map(|t| t.links.as_slice()),
                        );
                    if held.any(|l| {
                        l.at == at && needs_break(&self.arch.decode(level, l.raw, &self.caps), &is)
                    }) {
                        return tell(
                            Rule::BreakBeforeMake,
                            &format!(
                                "CPU {cpu} still has the one before, which was not invalidated"
                            ),
                        );
                    }
                }
            }
        }
        Ok(())
    }

    /// Perhaps keeps the table that a walk has come to.
    pub(crate) fn keep_table(&mut self, cpu: usize, walk: &Walk) {
        if walk.condemned.is_some() || !self.rng.chance(160) {
            return;
        }
        let shift = self.geometry.shift(walk.level) + self.geometry.index_bits[walk.level as usize];
        let cached = CachedTable {
            // Only leaves are kept for every address space.
            tag: Tag {
                global: false,
                ..walk.tag
            },
            va: if shift >= 64 {
                0
            } else {
                walk.va >> shift << shift
            },
            shift,
            table: walk.table,
            level: walk.level,
            limit: walk.limit,
            links: walk.links,
            condemned: None,
        };
        let capacity = self.capacity;
        let tables = &mut self.cpus[cpu].tables;
        if let Some(same) = tables
            .iter_mut()
            .find(|t| t.va == cached.va && t.level == cached.level && t.tag == cached.tag)
        {
            *same = cached;
        } else if tables.len() < capacity {
            tables.push(cached);
        } else {
            let victim = self.rng.below(capacity);
            tables[victim] = cached;
        }
    }
}

/// Whether Arm's rule asks for an invalid entry between these two.
fn needs_break(was: &Word, is: &Word) -> bool {
    match (was, is) {
        (Word::Page(was), Word::Page(is)) => {
            was.at != is.at || was.memory != is.memory || was.global != is.global
        }
        (Word::Table { at: was, .. }, Word::Table { at: is, .. }) => was != is,
        (Word::Page(_), Word::Table { .. }) | (Word::Table { .. }, Word::Page(_)) => true,
        _ => false,
    }
}
