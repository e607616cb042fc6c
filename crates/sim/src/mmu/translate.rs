//! Translations by the book: what the tables say now, without caches, steps or updates. Tests compare a library with it.

use super::Unit;
use crate::arch::{Rights, Word};
use flagstone_seeded::Hooks;
use flagstone_types::{PhysAddr, VirtAddr};

/// What the tables say of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The first address that the leaf translates.
    pub va: VirtAddr,
    /// Where it leads.
    pub at: PhysAddr,
    /// It translates `2^shift` bytes.
    pub shift: u32,
    /// What it allows, upper levels included.
    pub rights: Rights,
    /// In every address space.
    pub global: bool,
    /// Accessed.
    pub accessed: bool,
    /// Written.
    pub dirty: bool,
    /// Of a shadow stack.
    pub shadow: bool,
    /// Physical address of the leaf entry.
    pub entry: PhysAddr,
    /// Its word, as the manual numbers the bits.
    pub raw: u64,
}

impl Unit {
    /// What the table at `root` says of `va`; `None` if it does not translate it.
    pub(crate) fn translate(&self, hooks: Hooks<'_>, root: u64, va: u64) -> Option<Translation> {
        let (mut table, mut level) = (root, self.geometry.top);
        let (mut limit, mut global) = (Rights::all(), false);
        loop {
            let at = table + 8 * self.geometry.index(level, va);
            let raw = self.word(hooks, at)?;
            match self.arch.decode(level, raw, &self.caps) {
                Word::Table {
                    at,
                    limit: below,
                    global: all,
                    ..
                } => {
                    limit &= below;
                    global |= all;
                    (table, level) = (at, level - 1);
                }
                Word::Page(page) => {
                    let shift = self.geometry.shift(level);
                    return Some(Translation {
                        va: VirtAddr((va >> shift << shift) as usize),
                        at: PhysAddr(page.at),
                        shift,
                        rights: page.rights & limit,
                        global: page.global || global,
                        accessed: page.accessed,
                        dirty: page.dirty,
                        shadow: page.shadow && limit.contains(Rights::WRITE),
                        entry: PhysAddr(at),
                        raw,
                    });
                }
                Word::Invalid | Word::Reserved(_) => return None,
            }
        }
    }

    /// Calls `each` with every leaf that can be reached from `root`, by address.
    pub(crate) fn each_leaf(&self, hooks: Hooks<'_>, root: u64, each: &mut dyn FnMut(Translation)) {
        self.leaves(hooks, (root, root), self.geometry.top, 0, each);
    }

    fn leaves(
        &self,
        hooks: Hooks<'_>,
        (root, table): (u64, u64),
        level: u8,
        va: u64,
        each: &mut dyn FnMut(Translation),
    ) {
        for index in 0..1u64 << self.geometry.index_bits[level as usize] {
            let Some(raw) = self.word(hooks, table + 8 * index).filter(|raw| *raw != 0) else {
                continue;
            };
            let va = va | index << self.geometry.shift(level);
            match self.arch.decode(level, raw, &self.caps) {
                Word::Table { at, .. } => self.leaves(hooks, (root, at), level - 1, va, each),
                Word::Page(_) => {
                    if let Some(found) = self.translate(hooks, root, self.arch.canonical(va)) {
                        each(found);
                    }
                }
                Word::Invalid | Word::Reserved(_) => {}
            }
        }
    }
}
