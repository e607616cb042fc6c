//! One walk of the tables: an entry a step, as the unit does it.
//!
//! A walk reads an entry, perhaps sets its accessed or dirty bit by a compare-exchange (if the entry changed meanwhile, it is read
//! again), and goes down. Between any two of these others may write the tables.

use super::cached::{Cached, CachedTable, Condemned, Link, Links, Tag};
use super::{FaultKind, Unit};
use crate::arch::{Access, Arch, Page, Rights, Word};
use crate::history::Writer;
use crate::violation::{Checked, Rule, broken};
use flagstone_frames::PageKind;
use flagstone_seeded::Hooks;

/// What a walk does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Reads the entry of its level.
    Read,
    /// Replaces what it read by the entry with more bits set.
    Update { new: u64, by: Writer },
}

/// A walk under way.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
    pub(crate) tag: Tag,
    pub(crate) va: u64,
    pub(crate) level: u8,
    pub(crate) table: u64,
    pub(crate) limit: Rights,
    pub(crate) links: Links,
    pub(crate) condemned: Condemned,
    /// What it is for; nothing if the unit only guesses.
    pub(crate) access: Option<Access>,
    next: Next,
}

/// What a step of a walk came to.
#[derive(Debug)]
pub(crate) enum Progress {
    More,
    Done(Box<Cached>),
    Fault(FaultKind, u8),
}

impl Walk {
    /// A walk that begins at the root.
    pub(crate) fn from_root(tag: Tag, top: u8, va: u64, access: Option<Access>) -> Self {
        Self {
            tag,
            va,
            level: top,
            table: tag.root,
            limit: Rights::all(),
            links: Links::default(),
            condemned: None,
            access,
            next: Next::Read,
        }
    }

    /// A walk that begins at a cached table.
    pub(crate) fn from_cached(cached: &CachedTable, va: u64, access: Option<Access>) -> Self {
        Self {
            tag: cached.tag,
            va,
            level: cached.level,
            table: cached.table,
            limit: cached.limit,
            links: cached.links,
            condemned: cached.condemned.clone(),
            access,
            next: Next::Read,
        }
    }

    /// Whether it has read the leaf and is about to change it.
    pub(crate) fn is_at_leaf(&self) -> bool {
        self.next != Next::Read
    }

    fn cached(&self, unit: &Unit, page: &Page, shadow: bool) -> Cached {
        let shift = unit.geometry.shift(self.level);
        Cached {
            tag: Tag {
                global: self.tag.global || page.global,
                ..self.tag
            },
            va: self.va >> shift << shift,
            shift,
            pa: page.at,
            rights: page.rights & self.limit,
            dirty: page.dirty,
            shadow,
            links: self.links,
            condemned: self.condemned.clone(),
        }
    }

    /// Takes one step on `cpu`.
    pub(crate) fn advance(
        &mut self,
        unit: &mut Unit,
        hooks: Hooks<'_>,
        cpu: usize,
    ) -> Checked<Progress> {
        match self.next {
            Next::Read => self.read(unit, hooks, cpu),
            Next::Update { new, by } => self.update(unit, hooks, cpu, new, by),
        }
    }

    fn read(&mut self, unit: &mut Unit, hooks: Hooks<'_>, cpu: usize) -> Checked<Progress> {
        let index = unit.geometry.index(self.level, self.va);
        let at = self.table + 8 * index;
        let event = unit.next_event();
        let registers = unit.arch == Arch::X86Pae && self.level == unit.geometry.top;
        let link = if registers {
            let Some(registers) = &unit.cpus[cpu].registers else {
                return Ok(Progress::Fault(FaultKind::NoRoot, self.level));
            };
            registers[index as usize]
        } else {
            if let Some(condemned) = &self.condemned
                && self.access.is_some()
            {
                let history = unit.describe(self.links.as_slice());
                return broken(
                    Rule::StaleUse,
                    format!(
                        "CPU {cpu} walks to {:#x} by a table at {:#x} that it should not have cached: {condemned}{history}",
                        self.va, self.table
                    ),
                );
            }
            let kind = unit.kind_of(hooks, at);
            if !matches!(kind, PageKind::Table | PageKind::Absent) {
                let history = unit.describe(self.links.as_slice());
                return broken(
                    Rule::TableReachable,
                    format!(
                        "CPU {cpu} walks to {:#x} by a level-{} table at {:#x}, whose frame is {kind:?}{history}",
                        self.va, self.level, self.table
                    ),
                );
            }
            let Some(raw) = unit.word(hooks, at) else {
                let history = unit.describe(self.links.as_slice());
                return broken(
                    Rule::WildTable,
                    format!(
                        "CPU {cpu} walks to {:#x} by a level-{} table at {:#x}, where no memory is{history}",
                        self.va, self.level, self.table
                    ),
                );
            };
            Link {
                at,
                raw,
                level: self.level,
                event,
            }
        };
        self.follow(unit, hooks, cpu, link)
    }

    /// Goes on with an entry as it is at this moment.
    fn follow(
        &mut self,
        unit: &mut Unit,
        hooks: Hooks<'_>,
        cpu: usize,
        link: Link,
    ) -> Checked<Progress> {
        let raw = link.raw;
        let registers = unit.arch == Arch::X86Pae && self.level == unit.geometry.top;
        match unit.arch.decode(self.level, raw, &unit.caps) {
            Word::Invalid => Ok(Progress::Fault(FaultKind::NotPresent, self.level)),
            Word::Reserved(bits) => Ok(Progress::Fault(FaultKind::Reserved(bits), self.level)),
            Word::Table {
                at,
                limit,
                global,
                accessed,
            } => {
                if !accessed && unit.caps.accessed_table {
                    return Ok(self.want(link, unit.arch.with_accessed(raw), Writer::UnitAccessed));
                }
                self.links.push(link);
                self.limit &= limit;
                self.tag.global |= global;
                self.level -= 1;
                self.table = at;
                unit.note_table(hooks, at, self.level);
                if !registers {
                    unit.keep_table(cpu, self);
                }
                Ok(Progress::More)
            }
            Word::Page(page) => self.leaf(unit, link, &page),
        }
    }

    fn leaf(&mut self, unit: &Unit, link: Link, page: &Page) -> Checked<Progress> {
        let shadow = page.shadow && self.limit.contains(Rights::WRITE);
        let rights = page.rights & self.limit;
        let stores = self.access.is_some_and(Access::stores);
        if let Some(access) = self.access
            && !unit.arch.allows(rights, shadow, access)
        {
            return Ok(Progress::Fault(FaultKind::Protection, self.level));
        }
        if !page.accessed && !unit.caps.accessed {
            return Ok(Progress::Fault(FaultKind::NotAccessed, self.level));
        }
        if stores && !page.dirty {
            if !unit.caps.dirty {
                return Ok(Progress::Fault(FaultKind::NotDirty, self.level));
            }
            return Ok(self.want(link, unit.arch.with_dirty(link.raw), Writer::UnitDirty));
        }
        if !page.accessed {
            return Ok(self.want(
                link,
                unit.arch.with_accessed(link.raw),
                Writer::UnitAccessed,
            ));
        }
        self.links.push(link);
        let cached = self.cached(unit, page, shadow);
        Ok(Progress::Done(Box::new(cached)))
    }

    /// Remembers what was read in order to change it with the next step.
    fn want(&mut self, link: Link, new: u64, by: Writer) -> Progress {
        self.links.push(link);
        self.next = Next::Update { new, by };
        Progress::More
    }

    fn update(
        &mut self,
        unit: &mut Unit,
        hooks: Hooks<'_>,
        cpu: usize,
        new: u64,
        by: Writer,
    ) -> Checked<Progress> {
        self.next = Next::Read;
        let read = self.links.pop();
        let kind = unit.kind_of(hooks, read.at);
        let now = unit.word(hooks, read.at);
        let (Some(now), PageKind::Table | PageKind::Absent) = (now, kind) else {
            let history = unit.describe(&[read]);
            return broken(
                Rule::TableReachable,
                format!(
                    "CPU {cpu} sets bits in an entry of a level-{} table at {:#x}, whose frame is {kind:?}{history}",
                    self.level, self.table
                ),
            );
        };
        if now == read.raw {
            unit.unit_write(hooks, cpu, read.at, now, new, by);
            let event = unit.next_event();
            let link = Link {
                raw: new,
                event,
                ..read
            };
            return self.follow(unit, hooks, cpu, link);
        } else if unit.caps.stray_dirty
            && matches!(
                unit.arch.decode(self.level, read.raw, &unit.caps),
                Word::Page(_)
            )
            && unit.arch.decode(self.level, now, &unit.caps) == Word::Invalid
            && unit.rng.chance(128)
        {
            let stray = now | new & unit.arch.unit_bits();
            unit.unit_write(hooks, cpu, read.at, now, stray, Writer::UnitStray);
        }
        // The entry has changed, and is read again: what it says now is what counts.
        Ok(Progress::More)
    }
}
