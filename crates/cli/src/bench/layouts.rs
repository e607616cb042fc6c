//! `bench layouts`: what the layout rule makes of objects, beside the published tables.
//!
//! Nothing is timed and nobody else takes part: the rule is a function, and what is shown are its results. The older rule
//! (the index at a slab's start, off-slab for every object of 128 bytes or more) is worked out here, so that there is
//! a column before and one after on the same caches.

use super::kernel_caches::{KEPT, PLAIN};
use super::published::PUBLISHED;
use super::table::Table;
use anyhow::{Context, Result};
use flagstone_slab::LayoutPolicy;
use flagstone_slab::layout::{IndexClass, IndexPlace, Layout, ObjectShape, choose, entry_bytes};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// The kernel's: pages of 4 KiB, slabs of one or two of them.
const PAGE_SHIFT: u32 = 12;
const LARGEST_ORDER: u32 = 10;
const POLICY: LayoutPolicy = LayoutPolicy {
    min_order: 0,
    max_order: 1,
    cache_line: 64,
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
    /// Bytes of a slab that serve nothing, the index included where room was set aside for it: mean over the caches, in
    /// percent of a slab.
    waste_before_percent: f64,
    waste_after_percent: f64,
}

#[derive(Debug, Serialize)]
struct AtEnd {
    size: usize,
    align: usize,
    objects: u32,
    bytes: u32,
}

/// Works the layouts out and prints them.
pub(super) fn layouts(json: Option<&Path>) -> Result<()> {
    let data = work_out()?;
    let mut table = Table::new(
        "Index forced into a slab of one page, at its end",
        [
            "bytes",
            "align",
            "objects",
            "bytes used",
            "published",
            "older placement",
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
            format!("{objects} in {before}"),
        ]);
    }
    println!("{table}");

    let total = PLAIN.len() + KEPT.len();
    let mut table = Table::new(
        format!("{total} caches of a kernel by place of the index (published: another set of 126)"),
        ["", "before", "after", "published before", "published after"].map(String::from),
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
        published_nothing(&published.before),
        published_nothing(&published.after),
    ]);
    println!("{table}");
    println!(
        "Mean share of a slab that holds no object: {:.2} % before, {:.2} % after\n",
        data.waste_before_percent, data.waste_after_percent
    );
    if let Some(path) = json {
        std::fs::write(path, serde_json::to_string_pretty(&data)? + "\n")
            .with_context(|| path.display().to_string())?;
        println!("data: {}", path.display());
    }
    Ok(())
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
        });
    }
    let empty = || {
        IndexPlace::ALL
            .map(|place| (place.name(), 0))
            .into_iter()
            .collect::<BTreeMap<_, usize>>()
    };
    let (mut before, mut after) = (empty(), empty());
    let (mut waste_before, mut waste_after) = (0.0, 0.0);
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
    }
    let percent = |sum: f64| sum * 100.0 / (PLAIN.len() + KEPT.len()) as f64;
    Ok(Layouts {
        experiment: "layouts",
        index_at_end,
        before,
        after,
        waste_before_percent: percent(waste_before),
        waste_after_percent: percent(waste_after),
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
        for (own, [size, align, objects, _, after]) in work_out()
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
