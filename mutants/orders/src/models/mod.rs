//! The models, by what they are of.

mod frames;
mod pgtable;
mod process;
mod slab;

/// A model: one run for a seed; panics if what it found is wrong.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) run: fn(u64),
}

const fn model(name: &'static str, what: &'static str, run: fn(u64)) -> Model {
    Model { name, what, run }
}

/// A thread of a run.
type Body<'b> = Box<dyn FnOnce() + 'b>;

pub(crate) const ALL: &[Model] = &[
    model(
        "lock",
        "two threads count under a lock of the process",
        process::lock,
    ),
    model(
        "readers",
        "a value is freed when nobody can be reading it",
        process::readers,
    ),
    model(
        "waiter",
        "who waited for a grace period sees what readers did before",
        process::waiter,
    ),
    model(
        "callers",
        "deferred calls are made by one context at a time",
        process::callers,
    ),
    model(
        "reclaimer",
        "who finds the reclaimer finds it whole",
        frames::reclaimer,
    ),
    model(
        "slots",
        "who finds the CPUs' page lists finds them made",
        frames::slots,
    ),
    model(
        "watermarks",
        "the last to add memory computes with everybody's",
        frames::watermarks,
    ),
    model(
        "order",
        "who finds a cache's random order finds it written",
        slab::order,
    ),
    model("set", "who finds a cache of a set finds it made", slab::set),
    model(
        "end",
        "a cache ends after the releases that were deferred",
        slab::end,
    ),
    model(
        "refusals",
        "each refused pointer is reported, once, and soon",
        slab::refusals,
    ),
    model("off", "arrays that are off are empty", slab::off),
    model(
        "cpu-slabs-off",
        "slots that are off are empty",
        slab::cpu_slabs_off,
    ),
    model(
        "entering",
        "a CPU that enters is seen or sees the change",
        pgtable::entering,
    ),
    model(
        "quiet",
        "no dirty bit is lost when a CPU enters beside a quiet run",
        pgtable::quiet,
    ),
    model(
        "gathers",
        "who finds an entry gone returns after its invalidation",
        pgtable::gathers,
    ),
    model(
        "fragments",
        "a page of tables is freed after the last use of each",
        pgtable::fragments,
    ),
    model(
        "drop",
        "a page table ends after the frees that were deferred",
        pgtable::ending,
    ),
];
