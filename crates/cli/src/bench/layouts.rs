//! `bench layouts`: what the layout rule makes of objects, beside the published tables.
//!
//! The rule is a function, and its results are shown as they are. The older rule (the index at a slab's start, off-slab for every
//! object of 128 bytes or more) and the variant that was rejected (free objects linked by their numbers, no index at all) are worked
//! out here, so that there are columns beside it on the same caches. What the places cost in time is measured.

use super::inside::{self, Inside, Ratio, by_size};
use super::kernel_caches::{KEPT, PLAIN};
use super::published::{self, PUBLISHED};
use super::report::Report;
use super::rounds::Part;
use super::table::{Table, number};
use super::{chosen, say_what_is_missing};
use crate::args::Plan;
use anyhow::{Context, Result};
use flagstone_bench::{Job, SHORT_SIZES};
use flagstone_slab::LayoutPolicy;
use flagstone_slab::layout::{IndexClass, IndexPlace, Layout, ObjectShape, choose, entry_bytes};
use serde::Serialize;
use std::collections::BTreeMap;

/// The kernel's: pages of 4 KiB, slabs of one or two of them.
const PAGE_SHIFT: u32 = 12;
const LARGEST_ORDER: u32 = 10;
const POLICY: LayoutPolicy = LayoutPolicy {
    min_order: 0,
    max_order: 1,
    min_objects: 1,
    cache_line: 64,
    in_record: false,
    in_object: true,
    zeroed: false,
    tail: 0,
};
/// The older rule put the index of objects from this size on into another cache.
const OLD_OFF_SLAB: usize = 128;

/// The experiment as data.
#[derive(Debug, Serialize)]
struct Layouts {
    experiment: &'static str,
    index_at_end: Vec<AtEnd>,
    /// Caches by place of the index.
    before: BTreeMap<&'static str, usize>,
    after: BTreeMap<&'static str, usize>,
    /// With free objects linked by their numbers.
    linked: BTreeMap<&'static str, usize>,
    /// Bytes of a slab that serve nothing, the index included where room was set aside for it: mean over the caches, in
    /// percent of a slab.
    waste_before_percent: f64,
    waste_after_percent: f64,
    waste_linked_percent: f64,
}

/// The experiment as a file.
#[derive(Serialize)]
struct Whole<'a> {
    #[serde(flatten)]
    layouts: Option<&'a Layouts>,
    costs: Option<Report<'a>>,
}

#[derive(Debug, Serialize)]
struct AtEnd {
    size: usize,
    align: usize,
    objects: u32,
    bytes: u32,
    /// Bytes that the older placement sets aside for as many: index and alignment come first.
    older_bytes: usize,
    /// Where its first object starts.
    older_first: usize,
}

const RULE: &str = "rule";
const PARTS: &[Part] = &[
    Part { name: RULE },
    Part { name: "placement" },
    Part { name: "index" },
];

/// Works the layouts out, measures what they cost, and prints both.
pub(super) fn layouts(plan: &Plan) -> Result<()> {
    let parts = chosen(plan, PARTS, |part| part.name)?;
    let has = |name| parts.iter().any(|part| part.name == name);
    let run = |job: Job| {
        has(job.name())
            .then(|| inside::measure(plan, &[job]))
            .transpose()
    };
    let data = has(RULE).then(work_out).transpose()?;
    let placement = run(Job::Placement)?;
    let index = run(Job::Index)?;
    if let Some(data) = &data {
        print_rule(data);
    }
    if let Some(placement) = &placement {
        print_placement(placement, plan);
    }
    if let Some(index) = &index {
        print_index(index, plan);
    }
    let measured: Vec<_> = [&placement, &index]
        .into_iter()
        .flatten()
        .map(|inside| (&inside.field, &inside.results))
        .collect();
    let failures = say_what_is_missing(&measured);
    if let Some(path) = &plan.json {
        let units = "nanoseconds or cycles per operation";
        let costs = (!measured.is_empty()).then(|| Report::new("layouts", plan, &measured, units));
        let whole = Whole {
            layouts: data.as_ref(),
            costs,
        };
        std::fs::write(path, serde_json::to_string_pretty(&whole)? + "\n")
            .with_context(|| path.display().to_string())?;
        println!("data: {}", path.display());
    }
    failures
}

/// Where the index elsewhere costs more than the index in a free object.
const CHEAPER: Ratio = Ratio {
    head: "ratio",
    of: "in-object",
    by: &["elsewhere"],
};
const LINKED: Ratio = Ratio {
    head: "ratio",
    of: "linked",
    by: &["array"],
};

fn print_placement(placement: &Inside, plan: &Plan) {
    println!("Index in a free object, or elsewhere (as where objects have a constructor).");
    println!("Slabs of a process have 64 KiB: their indexes do not fit into small objects.\n");
    for (what, title) in [("alloc", "allocated"), ("free", "freed")] {
        let title = format!("{} objects {title}, nanoseconds", plan.objects);
        let rows = by_size(SHORT_SIZES, "placement", what);
        println!("{}", placement.table(&title, "bytes", &rows, &[CHEAPER]));
    }
    let mut table = Table::new(
        "Cycles of an allocation/a free, median; objects of a slab",
        [
            "bytes",
            "elsewhere",
            "in-object",
            "published before",
            "after",
            "elsewhere",
            "in-object",
        ]
        .map(String::from),
    );
    let theirs = &PUBLISHED.in_object_index_cycles;
    for &size in SHORT_SIZES {
        let metric = format!("placement/{size}");
        let objects = |name| {
            let objects = placement.median(&format!("{metric}/objects"), name);
            objects.map_or_else(|| "-".into(), |objects| format!("{objects:.0}"))
        };
        table.row([
            size.to_string(),
            placement.cycles(&metric, "elsewhere"),
            placement.cycles(&metric, "in-object"),
            published::cell(&theirs.before, size),
            published::cell(&theirs.after, size),
            objects("elsewhere"),
            objects("in-object"),
        ]);
    }
    println!("{table}");
}

fn print_index(index: &Inside, plan: &Plan) {
    println!("The index by itself: numbers side by side (array), or each free object naming");
    println!("the next (linked, which the published work rejected).\n");
    for (what, title) in [("alloc", "taken"), ("free", "given back in another order")] {
        let title = format!("{} objects {title}, nanoseconds", plan.objects);
        let rows = by_size(SHORT_SIZES, "index", what);
        println!("{}", index.table(&title, "bytes", &rows, &[LINKED]));
    }
}

fn print_rule(data: &Layouts) {
    let mut table = Table::new(
        "Index forced into a slab of one page, at its end",
        [
            "bytes",
            "align",
            "objects",
            "bytes used",
            "published",
            "older needs",
            "published",
            "first at",
        ]
        .map(String::from),
    );
    for (own, published) in data
        .index_at_end
        .iter()
        .zip(&PUBLISHED.index_at_end_bytes.rows)
    {
        let [_, _, objects, before, after] = published;
        table.row([
            own.size.to_string(),
            own.align.to_string(),
            own.objects.to_string(),
            own.bytes.to_string(),
            format!("{objects} in {after}"),
            own.older_bytes.to_string(),
            before.to_string(),
            own.older_first.to_string(),
        ]);
    }
    println!("{table}");

    let total = PLAIN.len() + KEPT.len();
    let mut table = Table::new(
        format!("{total} caches of a kernel by place of the index (published: another set of 126)"),
        ["", "before", "after", "linked", "published before", "after"].map(String::from),
    );
    let published = &PUBLISHED.layout_counts;
    let place = |name: &str| {
        published
            .columns
            .iter()
            .position(|column| column.replace('_', "-") == name)
    };
    for name in IndexPlace::ALL.map(IndexPlace::name) {
        let of = |counts: &[u64]| {
            place(name)
                .and_then(|place| counts.get(place))
                .map_or("-".into(), u64::to_string)
        };
        table.row([
            name.to_owned(),
            data.before[name].to_string(),
            data.after[name].to_string(),
            data.linked[name].to_string(),
            of(&published.before),
            of(&published.after),
        ]);
    }
    let nothing =
        |counts: &BTreeMap<&str, usize>| (counts["in-object"] + counts["leftover"]).to_string();
    let published_nothing = |counts: &[u64]| {
        ["in-object", "leftover"]
            .iter()
            .filter_map(|name| counts.get(place(name)?))
            .sum::<u64>()
            .to_string()
    };
    table.row([
        "nothing set aside".to_owned(),
        nothing(&data.before),
        nothing(&data.after),
        nothing(&data.linked),
        published_nothing(&published.before),
        published_nothing(&published.after),
    ]);
    println!("{table}");
    let percent = |value| number(Some(value));
    println!(
        "Mean share of a slab that holds no object: {} % before, {} % after, {} %",
        percent(data.waste_before_percent),
        percent(data.waste_after_percent),
        percent(data.waste_linked_percent)
    );
    println!("with objects linked by their numbers\n");
}

fn work_out() -> Result<Layouts> {
    let mut index_at_end = Vec::new();
    for [size, align, ..] in &PUBLISHED.index_at_end_bytes.rows {
        let shape = ObjectShape {
            may_overwrite: false,
            may_be_off_slab: false,
            ..shape(*size, *align)
        };
        let layout = choose(&shape, &POLICY, PAGE_SHIFT, 0, &|_| None)
            .map_err(|error| anyhow::anyhow!("objects of {size} bytes: {error}"))?;
        index_at_end.push(AtEnd {
            size: *size,
            align: *align,
            objects: layout.num,
            bytes: (1 << PAGE_SHIFT) - layout.waste,
            // Where the index comes first, the objects after it may have to move up to their alignment.
            older_bytes: (1 << PAGE_SHIFT) - layout.waste as usize + align,
            older_first: layout.index_bytes().next_multiple_of(*align),
        });
    }
    let empty = || {
        IndexPlace::ALL
            .map(|place| (place.name(), 0))
            .into_iter()
            .collect::<BTreeMap<_, usize>>()
    };
    let (mut before, mut after, mut linked) = (empty(), empty(), empty());
    let (mut waste_before, mut waste_after, mut waste_linked) = (0.0, 0.0, 0.0);
    let kinds = [(PLAIN, true), (KEPT, false)];
    let caches = kinds.iter().flat_map(|(caches, plain)| {
        caches
            .iter()
            .map(move |(name, size)| (*name, *size, *plain))
    });
    for (name, size, may_overwrite) in caches {
        let old = older(size);
        *before.entry(old.place.name()).or_default() += 1;
        waste_before += old.without_object();
        let shape = ObjectShape {
            may_overwrite,
            ..shape(size, 8)
        };
        let new = choose(&shape, &POLICY, PAGE_SHIFT, LARGEST_ORDER, &index_class)
            .map_err(|error| anyhow::anyhow!("{name}: {error}"))?;
        *after.entry(new.place.name()).or_default() += 1;
        waste_after += Slab::of(&new).without_object();
        let links =
            linked_by_number(&new, may_overwrite).with_context(|| format!("{name}: no slab"))?;
        *linked.entry(links.place.name()).or_default() += 1;
        waste_linked += links.without_object();
    }
    let percent = |sum: f64| sum * 100.0 / (PLAIN.len() + KEPT.len()) as f64;
    Ok(Layouts {
        experiment: "layouts",
        index_at_end,
        before,
        after,
        linked,
        waste_before_percent: percent(waste_before),
        waste_after_percent: percent(waste_after),
        waste_linked_percent: percent(waste_linked),
    })
}

/// A slab whose free objects are linked by their numbers: where they may be written to, nothing is set aside however many there are;
/// elsewhere the numbers need the room that an index needs.
fn linked_by_number(by_rule: &Layout, may_overwrite: bool) -> Option<Slab> {
    let slab = Slab::of(by_rule);
    if !may_overwrite {
        return Some(slab);
    }
    (0..=LARGEST_ORDER)
        .map(|order| Slab {
            bytes: 1 << (PAGE_SHIFT + order),
            objects: (1 << (PAGE_SHIFT + order)) / slab.size,
            place: IndexPlace::InObject,
            ..slab
        })
        .find(|slab| {
            let left = slab.bytes - slab.objects * slab.size;
            let largest = slab.bytes >= 1 << (PAGE_SHIFT + POLICY.max_order);
            slab.objects > 0 && (largest || left * 8 <= slab.bytes)
        })
}

fn shape(object_size: usize, align: usize) -> ObjectShape {
    ObjectShape {
        object_size,
        align,
        may_overwrite: true,
        may_be_off_slab: true,
        reclaimable: false,
    }
}

/// The smallest of the kernel's kmalloc classes for `bytes`; none of these keeps its own index off-slab.
fn index_class(bytes: usize) -> Option<IndexClass> {
    let classes = [
        8, 16, 32, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096, 8192,
    ];
    classes
        .into_iter()
        .find(|size| *size >= bytes)
        .map(|size| IndexClass {
            size,
            off_slab: false,
        })
}

/// A slab, as far as its use of memory goes.
#[derive(Clone, Copy, Debug)]
struct Slab {
    bytes: usize,
    size: usize,
    objects: usize,
    entry: usize,
    place: IndexPlace,
}

impl Slab {
    fn of(layout: &Layout) -> Self {
        Self {
            bytes: layout.order.bytes(PAGE_SHIFT),
            size: layout.size as usize,
            objects: layout.num as usize,
            entry: layout.entry.into(),
            place: layout.place,
        }
    }

    /// The share of its memory that holds no object; an index in another cache is memory of this slab too.
    fn without_object(self) -> f64 {
        let elsewhere = match self.place {
            IndexPlace::OffSlab => {
                let index = self.objects * self.entry;
                index_class(index).map_or(index, |class| class.size)
            }
            _ => 0,
        };
        let memory = (self.bytes + elsewhere) as f64;
        (memory - (self.objects * self.size) as f64) / memory
    }
}

/// What the older rule makes of objects of `size` bytes: small ones have the index in the slab, others in another cache unless
/// the objects happen to leave room for it.
fn older(size: usize) -> Slab {
    let off_slab = size >= OLD_OFF_SLAB;
    let mut slab = Slab {
        bytes: 0,
        size,
        objects: 0,
        entry: 1,
        place: IndexPlace::Dedicated,
    };
    for order in 0..=LARGEST_ORDER {
        slab.bytes = 1 << (PAGE_SHIFT + order);
        slab.entry = entry_bytes(slab.bytes, size);
        let per_object = if off_slab { size } else { size + slab.entry };
        slab.objects = slab.bytes / per_object;
        let left = slab.bytes - slab.objects * per_object;
        if slab.objects > 0 && (order >= POLICY.max_order || left * 8 <= slab.bytes) {
            break;
        }
    }
    let room = slab.bytes - slab.objects * size;
    slab.place = if slab.objects == slab.bytes / size && room >= slab.objects * slab.entry {
        IndexPlace::Leftover
    } else if off_slab {
        IndexPlace::OffSlab
    } else {
        IndexPlace::Dedicated
    };
    slab
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_at_the_end_gives_the_published_counts() {
        for (own, [size, align, objects, before, after]) in work_out()
            .unwrap()
            .index_at_end
            .iter()
            .zip(&PUBLISHED.index_at_end_bytes.rows)
        {
            assert_eq!((own.size, own.align), (*size, *align));
            assert_eq!(
                (own.objects as usize, own.bytes as usize),
                (*objects, *after)
            );
            assert_eq!(own.older_bytes, *before);
            assert!(own.older_first > 0 && own.older_first % align == 0);
        }
    }

    #[test]
    fn every_cache_is_counted_and_fewer_set_room_aside_than_before() {
        let data = work_out().unwrap();
        assert_eq!(PLAIN.len() + KEPT.len(), 126);
        assert_eq!(data.before.values().sum::<usize>(), 126);
        assert_eq!(data.after.values().sum::<usize>(), 126);
        let nothing = |counts: &BTreeMap<&str, usize>| counts["in-object"] + counts["leftover"];
        assert_eq!(data.before["in-object"], 0);
        assert!(nothing(&data.after) > nothing(&data.before));
        assert!(data.waste_after_percent < data.waste_before_percent);
        assert_eq!(data.linked.values().sum::<usize>(), 126);
        assert!(data.linked["in-object"] >= data.after["in-object"]);
    }

    #[test]
    fn the_older_rule_by_hand() {
        // 32 bytes: 124 objects and 124 bytes of index; without the index 128 objects fill the page.
        assert_eq!(
            (older(32).place, older(32).objects),
            (IndexPlace::Dedicated, 124)
        );
        // 2048 bytes: two fill the page, the index goes elsewhere.
        assert_eq!(
            (older(2048).place, older(2048).objects),
            (IndexPlace::OffSlab, 2)
        );
        // 192 bytes: 21 objects leave 64 bytes, room for 21.
        assert_eq!(
            (older(192).place, older(192).objects),
            (IndexPlace::Leftover, 21)
        );
    }
}
