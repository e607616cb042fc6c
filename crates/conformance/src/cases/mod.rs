//! The cases by name. Each makes its own page table on the platform, leaves nothing behind, and panics if something is wrong.

mod absent;
mod bits;
mod exhaustion;
mod huge;
mod machines;
mod meetings;
mod permissions;
mod races;
mod refusals;
mod sharing;
mod single;
mod stores;
mod unasked;
mod unmapping;
mod workloads;

use crate::platform::Platform;

/// How a case ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All was right.
    Passed,
    /// The machine has not what the case is about: this.
    Skipped(&'static str),
}

/// A case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// What it shows, in one line.
    pub shows: &'static str,
}

macro_rules! cases {
    ($($name:literal: $module:ident::$function:ident, $shows:literal;)*) => {
        const CASES: &[Case] = &[$(Case { name: $name, shows: $shows }),*];

        fn run<P: Platform>(name: &str, platform: &P) -> Option<Outcome> {
            match name {
                $($name => Some($module::$function(platform)),)*
                _ => None,
            }
        }
    };
}

cases! {
    "permissions": permissions::every_access, "each access right on each level lets through what it says, to user code and to the kernel, and nothing else";
    "five-levels": permissions::five_levels, "addresses that only a fifth level translates are mapped and told apart";
    "halves": permissions::halves, "memory beyond 4 GiB is reached where an entry is two words";
    "unmap": unmapping::everywhere, "what every CPU has used is gone for every CPU after an unmapping, and what is mapped next is what all see";
    "shootdown": unmapping::under_way, "no access that begins after an unmapping has ended is allowed, on CPUs that go on all the time";
    "protect-down": unmapping::protect_down, "no store is allowed after write access was taken, on any CPU";
    "protect-up": unmapping::protect_up, "access that was added is there, and costs no invalidation where a fault drops what caused it";
    "batches": unmapping::batches, "unmapping a table of pages, or changing a huge leaf, asks for one invalidation";
    "switching": unmapping::switching, "CPUs that use two page tables by turns see each one's pages, and what changed while they were away";
    "young-dirty": bits::set_by_use, "use makes a leaf young and stores make it dirty, by the unit or by a fault; cleared bits come back";
    "dirty-races": bits::races, "no store goes unnoticed while others clear dirty and young bits and change access";
    "store-beside-change": stores::beside_changes, "one store beside one change of its page is noted, and nothing is left of it where the page has gone";
    "store-beside-split": stores::beside_splits, "one store beside a split or a collapse is noted";
    "use-unasked": unasked::changes, "where nobody asks for use, pages change by stores, and translations go all the same";
    "single": single::entries, "single pages are mapped, protected and unmapped by the forms for one";
    "single-races": single::races, "the same on many CPUs, beside what works on ranges and frees tables";
    "skim": bits::skim, "young leaves are found although tables that nobody used are skipped";
    "huge-pmd": huge::pmd, "a leaf of the second level maps all of its memory; splitting and joining change nothing that it says";
    "huge-pud": huge::pud, "the same on the third level";
    "retract": huge::retract, "a whole table goes with everything in it, in one step";
    "in-place": huge::in_place, "what is split and joined in place is there for every access meanwhile";
    "walkers": races::walkers, "readers beside collapse, retract, split, unmapping and freeing of tables see what is there or nothing";
    "install": races::install, "mappers that need the same tables make them once";
    "free-tables": races::free_tables, "tables are freed beside mappers and readers, and none is lost";
    "lookups": races::lookups, "what is read without locks is whole, and never of another place";
    "random": workloads::all, "random operations of every kind on all CPUs, each access held against what must be there";
    "random-pages": workloads::pages, "the same with single pages and their tables only";
    "entering": meetings::entering, "CPUs may enter a page table at any moment of a change that relied on nobody using it";
    "alone-and-used": meetings::alone_and_used, "who has a page table alone, on a CPU that uses it, loses no bit that the unit sets";
    "guards": meetings::guards, "a table that a caller has locked stays until it is unlocked";
    "refilling": meetings::refilling, "a page may be put where another context has just taken one out";
    "fork": sharing::fork, "a copy of a page table shares its pages, write-protected, and each side gets its own at a store";
    "replace": sharing::replace, "a page is moved beside its readers: they see the old place or the new one, and stores are not lost";
    "break-before-make": machines::break_before_make, "entries change address and size, in a machine that wants them invalid in between";
    "paravirtual": machines::paravirtual, "everything works where entries that name tables are a hypervisor's";
    "stray-dirty": machines::stray_dirty, "no dirty bit is lost or left behind where the unit may set it in entries that have gone";
    "shadow-stack": machines::shadow_stack, "a shadow stack is written by calls and not by stores, and stays one through split and protection";
    "absent": absent::entries, "swap, migration, device and marker entries keep their numbers, are no translation, and come back";
    "out-of-memory": exhaustion::at_every_point, "an operation that gets no memory, at whatever point, leaves everything as it was";
    "bad-input": refusals::bad_input, "bad addresses, lengths and leaves are refused with an error that names them, and change nothing";
    "exclusive": refusals::exclusive, "who has the page table alone gets the same results without locks";
}

/// The cases, in the order in which they are best run.
#[must_use]
pub const fn cases() -> &'static [Case] {
    CASES
}

/// Runs a case; `None` if there is none of this name.
///
/// # Panics
/// If something is wrong.
pub fn run_case<P: Platform>(name: &str, platform: &P) -> Option<Outcome> {
    run(name, platform)
}
