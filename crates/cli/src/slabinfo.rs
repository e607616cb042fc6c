//! `flagstone slabinfo`: the table of object caches, as Linux prints it, sorted, by layout, or as JSON.

use crate::args::{SlabinfoOptions, SortKey};
use crate::stats_file::{self, Cache, Layout, Snapshot};
use anyhow::Result;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::Path;

/// Prints what was asked for.
pub(crate) fn slabinfo(options: &SlabinfoOptions) -> Result<()> {
    let pid = options.source.to_str().and_then(|text| text.parse().ok());
    let mut snapshot = match pid {
        Some(pid) => stats_file::read_process(pid)?,
        None => stats_file::read_file(Path::new(&options.source))?,
    };
    sort(&mut snapshot, options.sort);
    let text = match (options.layouts, options.json) {
        (false, false) => slabinfo_text(&snapshot),
        (false, true) => serde_json::to_string_pretty(&snapshot)? + "\n",
        (true, false) => layouts_text(&count_layouts(&snapshot)),
        (true, true) => serde_json::to_string_pretty(&count_layouts(&snapshot))? + "\n",
    };
    io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

fn slab_bytes(snapshot: &Snapshot, cache: &Cache) -> u64 {
    cache.num_slabs * cache.pagesperslab * snapshot.page_size
}

/// What no user has; where objects in arrays are not told apart, they count as used.
fn free_bytes(snapshot: &Snapshot, cache: &Cache) -> u64 {
    let used = cache
        .more
        .as_ref()
        .map_or(cache.active_objs, |more| more.used_objs);
    slab_bytes(snapshot, cache).saturating_sub(used * cache.objsize)
}

fn sort(snapshot: &mut Snapshot, key: SortKey) {
    let mut caches = std::mem::take(&mut snapshot.caches);
    match key {
        SortKey::Listed => {}
        SortKey::Name => caches.sort_by(|a, b| a.name.cmp(&b.name)),
        SortKey::Size => caches.sort_by_key(|cache| Reverse(cache.objsize)),
        SortKey::Active => caches.sort_by_key(|cache| Reverse(cache.active_objs)),
        SortKey::Total => caches.sort_by_key(|cache| Reverse(cache.num_objs)),
        SortKey::Bytes => caches.sort_by_key(|cache| Reverse(slab_bytes(snapshot, cache))),
        SortKey::Free => caches.sort_by_key(|cache| Reverse(free_bytes(snapshot, cache))),
    }
    snapshot.caches = caches;
}

/// The form of `/proc/slabinfo`, which many tools read.
fn slabinfo_text(snapshot: &Snapshot) -> String {
    let mut text = String::from(
        "slabinfo - version: 2.1\n\
         # name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> \
         : tunables <limit> <batchcount> <sharedfactor> : slabdata <active_slabs> <num_slabs> <sharedavail>\n",
    );
    for c in &snapshot.caches {
        let _ = writeln!(
            text,
            "{:<17} {:6} {:6} {:6} {:4} {:4} : tunables {:4} {:4} {:4} : slabdata {:6} {:6} {:6}",
            c.name,
            c.active_objs,
            c.num_objs,
            c.objsize,
            c.objperslab,
            c.pagesperslab,
            c.limit,
            c.batchcount,
            c.sharedfactor,
            c.active_slabs,
            c.num_slabs,
            c.sharedavail,
        );
    }
    text
}

/// Where the index of free objects is, and how many caches have it there.
fn count_layouts(snapshot: &Snapshot) -> BTreeMap<&'static str, u64> {
    let mut counts = BTreeMap::from([
        ("in-object", 0),
        ("leftover", 0),
        ("off-slab", 0),
        ("dedicated", 0),
    ]);
    for cache in &snapshot.caches {
        let name = match cache.more.as_ref().map(|more| more.layout) {
            Some(Layout::InObject) => "in-object",
            Some(Layout::Leftover) => "leftover",
            Some(Layout::OffSlab) => "off-slab",
            Some(Layout::Dedicated) => "dedicated",
            None => "not said",
        };
        *counts.entry(name).or_insert(0) += 1;
    }
    counts
}

fn layouts_text(counts: &BTreeMap<&str, u64>) -> String {
    let mut text = String::from("layout        caches\n");
    for (name, count) in counts {
        let _ = writeln!(text, "{name:<12} {count:>7}");
    }
    let _ = writeln!(text, "{:<12} {:>7}", "all", counts.values().sum::<u64>());
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats_file::More;

    fn example() -> Snapshot {
        let cache = |name: &str, active, total, size, slabs, layout: Option<Layout>| Cache {
            name: name.into(),
            active_objs: active,
            num_objs: total,
            objsize: size,
            objperslab: total / slabs,
            pagesperslab: 1,
            num_slabs: slabs,
            active_slabs: slabs,
            more: layout.map(|layout| More {
                cached_objs: 0,
                used_objs: active,
                requested_size: size - 1,
                layout,
                colours: 1,
                waste: 0,
                reclaimable: false,
            }),
            ..Cache::default()
        };
        Snapshot {
            page_size: 4096,
            other: serde_json::Map::new(),
            caches: vec![
                cache("size-64", 60, 64, 64, 1, Some(Layout::InObject)),
                cache("size-1024", 1, 8, 1024, 2, Some(Layout::OffSlab)),
                cache("size-512", 8, 8, 512, 1, None),
            ],
        }
    }

    fn names(key: SortKey) -> Vec<String> {
        let mut snapshot = example();
        sort(&mut snapshot, key);
        snapshot
            .caches
            .into_iter()
            .map(|cache| cache.name)
            .collect()
    }

    #[test]
    fn each_key_puts_its_largest_first() {
        assert_eq!(names(SortKey::Listed), ["size-64", "size-1024", "size-512"]);
        assert_eq!(names(SortKey::Name), ["size-1024", "size-512", "size-64"]);
        assert_eq!(names(SortKey::Size), ["size-1024", "size-512", "size-64"]);
        assert_eq!(names(SortKey::Active), ["size-64", "size-512", "size-1024"]);
        assert_eq!(names(SortKey::Total), ["size-64", "size-1024", "size-512"]);
        assert_eq!(names(SortKey::Bytes)[0], "size-1024");
        assert_eq!(names(SortKey::Free), ["size-1024", "size-64", "size-512"]);
    }

    #[test]
    fn what_is_printed_can_be_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report");
        let snapshot = example();
        std::fs::write(&path, serde_json::to_string(&snapshot).unwrap()).unwrap();
        assert_eq!(stats_file::read_file(&path).unwrap(), snapshot);

        let mut without_layouts = example();
        for cache in &mut without_layouts.caches {
            cache.more = None;
        }
        std::fs::write(&path, slabinfo_text(&snapshot)).unwrap();
        assert_eq!(
            stats_file::read_file(&path).unwrap().caches,
            without_layouts.caches
        );
    }

    #[test]
    fn every_layout_is_counted_even_if_none_has_it() {
        let counts = count_layouts(&example());
        assert_eq!(
            (
                counts["in-object"],
                counts["off-slab"],
                counts["dedicated"],
                counts["not said"]
            ),
            (1, 1, 0, 1)
        );
        assert!(layouts_text(&counts).contains("all                3"));
    }
}
