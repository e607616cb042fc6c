//! Changing what leaves say, at the same address and of the same size: access, marks, whatever a caller decides leaf by leaf.

use crate::alike::address_bits;
use crate::edit::Edit;
use crate::error::Error;
use crate::flush;
use crate::format::{Absent, Access, Entry, Format, Leaf, Level, Marks};
use crate::gather::{Gather, Owner};
use crate::level::{Raw, TableLevel};
use crate::mode::Mode;
use crate::ops::Ops;
use crate::span::{VirtRange, reach_of};
use crate::stray::{CHUNK, take_in_two_steps};
use crate::table::TableHost;
use crate::words::Locked;
use flagstone_types::VirtAddr;

/// What becomes of an entry that is a leaf or absent. Asked again if the unit changes the entry meanwhile.
pub(crate) trait Rule {
    /// Whether it calls nothing that is not known, and does the same to all present leaves with the same flags.
    const SHORT: bool;

    fn apply<F: Format, L: TableLevel>(&mut self, old: Raw<F, L>, offset: u64) -> Raw<F, L>;
}

/// What becomes of present leaves with the same flags.
struct Alike {
    flags: u64,
    /// The bits that change.
    change: u64,
    /// Whether a store is enough (E1, E2).
    plain: bool,
}

impl Alike {
    /// Does to the entries that are alike what was done to the one before them; says where it stopped.
    #[inline(always)]
    fn change_run<H: TableHost, F: Format, L: TableLevel, M: Mode>(
        &self,
        locked: &Locked<'_, H, F, L, M>,
        first: usize,
        entries: core::ops::Range<usize>,
    ) -> usize {
        for n in entries.clone() {
            let seen = locked.load(first + n);
            if seen.flags() != self.flags {
                return n;
            }
            if self.change == 0 {
                continue;
            }
            let new = Raw::from_bits(seen.bits() ^ self.change);
            if self.plain {
                locked.overwrite(first + n, new);
            } else if locked.update(first + n, seen, new).is_err() {
                return n;
            }
        }
        entries.end
    }
}

struct Change<'g, 't, 'f, H: TableHost, F: Format, M: Mode, O: Owner, R> {
    gather: &'g mut Gather<'t, 'f, H, F, M, O>,
    rule: R,
}

impl<H: TableHost, F: Format, M: Mode, O: Owner, R: Rule> Change<'_, '_, '_, H, F, M, O, R> {
    /// Changes one entry; says from what to what.
    #[inline]
    fn change<L: TableLevel>(
        &mut self,
        locked: &Locked<'_, H, F, L, M>,
        index: usize,
        seen: Raw<F, L>,
        offset: u64,
        quiet: bool,
    ) -> (Raw<F, L>, Raw<F, L>) {
        let mut old = seen;
        loop {
            let new = self.rule.apply(old, offset);
            if new == old {
                return (old, new);
            }
            if quiet || old.is_settled() {
                locked.overwrite(index, new);
                return (old, new);
            }
            match locked.update(index, old, new) {
                Ok(()) => return (old, new),
                Err(now) => old = now,
            }
        }
    }

    /// As `edit`, on a unit that sets the dirty bit of entries that have gone (I6). What was present was invalidated when it was taken out; the gather
    /// invalidates once more, as for any other unit: a second time is what this erratum costs everywhere, and nothing is argued from the first.
    #[cold]
    fn edit_in_two_steps<L: TableLevel>(
        &mut self,
        ops: &Ops<'_, '_, H, F, M>,
        locked: &Locked<'_, H, F, L, M>,
        first: usize,
        count: usize,
        offset: u64,
    ) -> usize {
        let size = reach_of::<F>(L::LEVEL);
        let (done, taken) = take_in_two_steps(ops, locked, first, count, offset);
        for (n, &old) in taken.iter().enumerate().take(done) {
            if old.is_none() {
                continue;
            }
            let at = offset + n as u64 * size;
            let new = self.rule.apply(old, at);
            if old.is_present() {
                locked.set(first + n, new);
            } else if new != old {
                locked.overwrite(first + n, new);
            }
            if flush::is_needed(old, new) {
                self.gather.note(at, at + size, L::LEVEL);
            }
        }
        done
    }
}

impl<H: TableHost, F: Format, M: Mode, O: Owner, R: Rule> Edit<H, F, M>
    for Change<'_, '_, '_, H, F, M, O, R>
{
    const SHORT: bool = R::SHORT;

    #[inline]
    fn room(&mut self, wanted: usize) -> usize {
        wanted
    }

    #[inline]
    fn edit<L: TableLevel>(
        &mut self,
        ops: &Ops<'_, '_, H, F, M>,
        locked: &Locked<'_, H, F, L, M>,
        first: usize,
        count: usize,
        offset: u64,
        quiet: bool,
    ) -> usize {
        if ops.table.caps.stray_dirty {
            return self.edit_in_two_steps(ops, locked, first, count.min(CHUNK), offset);
        }
        // E4: what the unit sets meanwhile is asked for by nobody.
        let quiet = quiet || (!O::ASKS_USE && !F::HALVES);
        let size = reach_of::<F>(L::LEVEL);
        let (mut from, mut to) = (u64::MAX, 0);
        let mut n = 0;
        while n < count {
            let seen = locked.load(first + n);
            if seen.is_table() {
                break;
            }
            if seen.is_none() {
                n += 1;
                continue;
            }
            let at = offset + n as u64 * size;
            let (old, new) = self.change(locked, first + n, seen, at, quiet);
            n += 1;
            let needs = old != new && flush::is_needed(old, new);
            let change = old.bits() ^ new.bits();
            // An address that is changed with its flags is not alike any other's.
            if R::SHORT && old.is_present() && change & address_bits::<F>(L::LEVEL) == 0 {
                let alike = Alike {
                    flags: old.flags(),
                    change,
                    plain: quiet || old.is_settled(),
                };
                n = alike.change_run(locked, first, n..count);
            }
            if needs {
                from = from.min(at);
                to = offset + n as u64 * size;
            }
        }
        let done = n;
        if from < to {
            self.gather.note(from, to, L::LEVEL);
        }
        done
    }
}

pub(crate) struct Protect(pub(crate) Access);

impl Rule for Protect {
    const SHORT: bool = true;

    #[inline]
    fn apply<F: Format, L: TableLevel>(&mut self, old: Raw<F, L>, _: u64) -> Raw<F, L> {
        if old.is_present() {
            return Raw::from_bits(F::with_access(L::LEVEL, old.bits(), self.0));
        }
        protect_absent(old, self.0)
    }
}

struct WriteProtect;

impl Rule for WriteProtect {
    const SHORT: bool = true;

    #[inline]
    fn apply<F: Format, L: TableLevel>(&mut self, old: Raw<F, L>, _: u64) -> Raw<F, L> {
        if old.is_present() {
            return Raw::from_bits(F::write_protect(L::LEVEL, old.bits()));
        }
        match old.decode() {
            Entry::Leaf(_) => Raw::from_bits(F::write_protect(L::LEVEL, old.bits())),
            _ => protect_absent(old, Access::READ),
        }
    }
}

/// An entry that is not present, with other access.
#[cold]
fn protect_absent<F: Format, L: TableLevel>(old: Raw<F, L>, access: Access) -> Raw<F, L> {
    let write = access.contains(Access::WRITE);
    let absent = match old.decode() {
        Entry::Leaf(_) => return Raw::from_bits(F::with_access(L::LEVEL, old.bits(), access)),
        Entry::Absent(Absent::Migration {
            frame,
            write: true,
            marks,
        }) if !write => Absent::Migration {
            frame,
            write,
            marks,
        },
        Entry::Absent(Absent::Device { frame, write: true }) if !write => {
            Absent::Device { frame, write }
        }
        _ => return old,
    };
    Raw::absent(&absent).unwrap_or(old)
}

struct Each<C> {
    new: C,
}

/// A [`Rule`] that a caller's function decides, leaf by leaf.
impl<C: FnMut(u64, Level, Leaf) -> Leaf> Rule for Each<C> {
    const SHORT: bool = false;

    #[inline]
    fn apply<F: Format, L: TableLevel>(&mut self, old: Raw<F, L>, offset: u64) -> Raw<F, L> {
        let Entry::Leaf(leaf) = old.decode() else {
            return old;
        };
        // The caller sees a leaf that grants nothing: it could keep it and map it elsewhere. What it leaves a shadow stack's stays one here.
        let mut new = (self.new)(offset, L::LEVEL, leaf);
        if leaf.marks().contains(Marks::SHADOW) {
            new = new.found_in_place();
        }
        // What a leaf maps is not changed here.
        if new.at != leaf.at || new.memory != leaf.memory {
            debug_assert!(false, "{leaf:?} was to become {new:?}");
            return old;
        }
        Raw::leaf(&new).unwrap_or(old)
    }
}

impl<'t, 'f, H: TableHost, F: Format, M: Mode> Ops<'t, 'f, H, F, M> {
    #[inline]
    fn change<O: Owner>(
        &self,
        range: VirtRange,
        gather: &mut Gather<'t, 'f, H, F, M, O>,
        rule: impl Rule,
    ) -> Result<(), Error> {
        let span = self.table.addresses.span(range, Level::PTE)?;
        self.check_end(span)?;
        let mut change = Change { gather, rule };
        self.edit(span, &mut change)
    }

    /// Gives every leaf of a range this access. Without [`Access::READ`] leaves lose all access and stay leaves. Absent entries of moving and device pages lose the right to write with it. A
    /// shadow stack stays one unless [`Access::WRITE`] is given.
    ///
    /// # Errors
    /// As [`Ops::unmap`].
    #[inline]
    pub fn protect<O: Owner>(
        &self,
        range: VirtRange,
        access: Access,
        gather: &mut Gather<'t, 'f, H, F, M, O>,
    ) -> Result<(), Error> {
        self.change(range, gather, Protect(access))
    }

    /// Takes the right to write from every leaf of a range, shadow stacks included; dirty leaves stay dirty.
    ///
    /// # Errors
    /// As [`Ops::unmap`].
    #[inline]
    pub fn write_protect<O: Owner>(
        &self,
        range: VirtRange,
        gather: &mut Gather<'t, 'f, H, F, M, O>,
    ) -> Result<(), Error> {
        self.change(range, gather, WriteProtect)
    }

    /// Sets and clears marks of every leaf of a range. `SHADOW` can not be set.
    ///
    /// # Errors
    /// As [`Ops::unmap`].
    #[inline]
    pub fn set_marks<O: Owner>(
        &self,
        range: VirtRange,
        set: Marks,
        clear: Marks,
        gather: &mut Gather<'t, 'f, H, F, M, O>,
    ) -> Result<(), Error> {
        let new = |_, _, leaf: Leaf| leaf.unmark(clear).mark(set);
        self.change(range, gather, Each { new })
    }

    /// Lets `new` decide, leaf by leaf, what access, marks and key it has; address and memory type stay. `new` may be asked several times for a leaf whose
    /// accessed or dirty bit the unit sets meanwhile; the table is locked while it is asked. An answer that the format can not say changes nothing.
    ///
    /// # Errors
    /// As [`Ops::unmap`].
    pub fn change_each<O: Owner>(
        &self,
        range: VirtRange,
        gather: &mut Gather<'t, 'f, H, F, M, O>,
        mut new: impl FnMut(VirtAddr, Level, Leaf) -> Leaf,
    ) -> Result<(), Error> {
        let addresses = self.table.addresses;
        let new = |offset, level, leaf| new(addresses.address(offset), level, leaf);
        self.change(range, gather, Each { new })
    }
}
