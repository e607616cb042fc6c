//! Where statistics come from: the boundary between `slabinfo` and whatever wrote them.
//!
//! Everything is turned into a [`Snapshot`]; the tables know nothing else. Three forms are read:
//!
//! - JSON, as `flagstone run --stats=FILE.json` and `flagstone slabinfo --json` write it;
//! - the same in the file that a process keeps up to date (see [`live`]);
//! - the text of Linux's `/proc/slabinfo`, version 2.1 (which has no layouts).

use crate::live::{self, LiveError};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The object caches of one process, or of one kernel, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    /// Bytes of a page in `pagesperslab`.
    pub(crate) page_size: u64,
    pub(crate) caches: Vec<Cache>,
    /// What else a report says: the process, sums over its heap, event counters. Passed on as it is.
    #[serde(flatten)]
    pub(crate) other: serde_json::Map<String, serde_json::Value>,
}

/// One object cache. The names are those of `/proc/slabinfo`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cache {
    pub(crate) name: String,
    /// Objects in use, and all objects in slabs.
    pub(crate) active_objs: u64,
    pub(crate) num_objs: u64,
    /// Bytes from one object to the next.
    pub(crate) objsize: u64,
    pub(crate) objperslab: u64,
    pub(crate) pagesperslab: u64,
    /// Objects an array may hold, objects moved at once, arrays' worth of objects in the shared array.
    pub(crate) limit: u64,
    pub(crate) batchcount: u64,
    pub(crate) sharedfactor: u64,
    /// Slabs with objects in use, all slabs, objects in shared arrays.
    pub(crate) active_slabs: u64,
    pub(crate) num_slabs: u64,
    pub(crate) sharedavail: u64,
    /// What only Flagstone's reports say.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) more: Option<More>,
}

/// Numbers of a cache that Linux's table has no column for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct More {
    /// Of the active objects, those that wait in arrays, and those with users.
    pub(crate) cached_objs: u64,
    pub(crate) used_objs: u64,
    /// Bytes of an object as asked for.
    pub(crate) requested_size: u64,
    /// Where the index of free objects is kept.
    pub(crate) layout: Layout,
    /// Places that a slab's first object may have, and bytes of a slab that serve nothing.
    pub(crate) colours: u64,
    pub(crate) waste: u64,
    /// Whether the objects count as reclaimable.
    pub(crate) reclaimable: bool,
}

/// Where a slab keeps the index of its free objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Layout {
    /// Inside a free object.
    InObject,
    /// In what the objects leave over of the slab.
    Leftover,
    /// In an object of another cache.
    OffSlab,
    /// In room of the slab that objects could have had.
    Dedicated,
}

/// Why there are no statistics to show.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StatsError {
    #[error("there is no process {0}")]
    NoProcess(u32),
    #[error("process {0} does not run on Flagstone")]
    OtherMalloc(u32),
    #[error("process {0} runs on Flagstone, but keeps no live statistics (FLAGSTONE_LIVE)")]
    NotLive(u32),
    #[error("{}: {error}", path.display())]
    Live { path: PathBuf, error: LiveError },
    #[error("{}: {error}", path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    #[error("{}: neither a JSON report nor the text of a slabinfo file, version 2.1", .0.display())]
    UnknownForm(PathBuf),
    #[error("{}: {error}", path.display())]
    Json {
        path: PathBuf,
        error: serde_json::Error,
    },
    #[error("{}, line {line}: {reason}", path.display())]
    Text {
        path: PathBuf,
        line: usize,
        reason: String,
    },
}

/// Reads the caches of a living process.
pub(crate) fn read_process(pid: u32) -> Result<Snapshot, StatsError> {
    if !Path::new(&format!("/proc/{pid}")).exists() {
        return Err(StatsError::NoProcess(pid));
    }
    if let Some(path) = live::file_of(pid) {
        let text = live::read(&path, Some(pid)).map_err(|error| StatsError::Live {
            path: path.clone(),
            error,
        })?;
        return serde_json::from_str(&text).map_err(|error| StatsError::Json { path, error });
    }
    // Only to say why there is nothing to show; may not be readable for us.
    match fs::read_to_string(format!("/proc/{pid}/maps")) {
        Ok(text) if text.contains("/libflagstone-") => Err(StatsError::NotLive(pid)),
        _ => Err(StatsError::OtherMalloc(pid)),
    }
}

/// Reads a saved report, or the kernel's.
pub(crate) fn read_file(path: &Path) -> Result<Snapshot, StatsError> {
    let text = fs::read_to_string(path).map_err(|error| StatsError::Unreadable {
        path: path.to_owned(),
        error,
    })?;
    if text.trim_start().starts_with('{') {
        return serde_json::from_str(&text).map_err(|error| StatsError::Json {
            path: path.to_owned(),
            error,
        });
    }
    let mut lines = text.lines().enumerate();
    if lines.next().map(|(_, line)| line.trim()) != Some("slabinfo - version: 2.1") {
        return Err(StatsError::UnknownForm(path.to_owned()));
    }
    let caches = lines
        .filter(|(_, line)| !line.starts_with('#') && !line.trim().is_empty())
        .map(|(number, line)| {
            cache_of(line).map_err(|reason| StatsError::Text {
                path: path.to_owned(),
                line: number + 1,
                reason,
            })
        })
        .collect::<Result<_, _>>()?;
    Ok(Snapshot {
        page_size: rustix::param::page_size() as u64,
        caches,
        other: serde_json::Map::new(),
    })
}

/// `name active num size per pages : tunables limit batch shared : slabdata active num avail`
fn cache_of(line: &str) -> Result<Cache, String> {
    let mut words = line.split_whitespace();
    let name = words.next().ok_or("empty")?.to_owned();
    let mut numbers = Vec::new();
    for word in words.filter(|word| !matches!(*word, ":" | "tunables" | "slabdata")) {
        numbers.push(
            word.parse::<u64>()
                .map_err(|_| format!("{word:?} is not a number"))?,
        );
    }
    let count = numbers.len();
    let Ok(
        [
            active_objs,
            num_objs,
            objsize,
            objperslab,
            pagesperslab,
            limit,
            batchcount,
            sharedfactor,
            active_slabs,
            num_slabs,
            sharedavail,
        ],
    ) = <[u64; 11]>::try_from(numbers)
    else {
        return Err(format!("{count} numbers where there should be 11"));
    };
    Ok(Cache {
        name,
        active_objs,
        num_objs,
        objsize,
        objperslab,
        pagesperslab,
        limit,
        batchcount,
        sharedfactor,
        active_slabs,
        num_slabs,
        sharedavail,
        more: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_kernels_slabinfo_is_read() {
        let line = "kmalloc-64  9000  9088   64   64    1 : tunables  120   60    8 : slabdata    140    142      5";
        let cache = cache_of(line).unwrap();
        assert_eq!(
            (cache.name.as_str(), cache.active_objs, cache.num_objs),
            ("kmalloc-64", 9000, 9088)
        );
        assert_eq!(
            (cache.limit, cache.batchcount, cache.sharedfactor),
            (120, 60, 8)
        );
        assert_eq!(
            (cache.active_slabs, cache.num_slabs, cache.sharedavail),
            (140, 142, 5)
        );
    }

    #[test]
    fn a_damaged_line_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("slabinfo");
        fs::write(&path, "slabinfo - version: 2.1\n# name\nkmalloc-64 1 2 x\n").unwrap();
        let error = read_file(&path).unwrap_err().to_string();
        assert!(
            error.contains("line 3") && error.contains("\"x\""),
            "{error}"
        );
        fs::write(&path, "slabinfo - version: 2.1\nkmalloc-64 1 2\n").unwrap();
        assert!(
            read_file(&path)
                .unwrap_err()
                .to_string()
                .contains("2 numbers")
        );
        fs::write(&path, "something else\n").unwrap();
        assert!(matches!(read_file(&path), Err(StatsError::UnknownForm(_))));
        fs::write(&path, "{\"page_size\": 1}").unwrap();
        assert!(read_file(&path).unwrap_err().to_string().contains("caches"));
    }

    #[test]
    fn the_librarys_json_is_read_with_and_without_its_own_numbers() {
        let linux = "\"name\":\"a\",\"active_objs\":3,\"num_objs\":4,\"objsize\":64,\"objperslab\":4,\"pagesperslab\":1,\
            \"limit\":2,\"batchcount\":1,\"sharedfactor\":1,\"active_slabs\":1,\"num_slabs\":1,\"sharedavail\":1";
        let own = "\"cached_objs\":2,\"used_objs\":1,\"requested_size\":60,\"layout\":\"leftover\",\"colours\":2,\
            \"waste\":8,\"reclaimable\":false";
        let read = |text: String| serde_json::from_str::<Cache>(&text).unwrap();
        assert_eq!(read(format!("{{{linux}}}")).more, None);
        let cache = read(format!("{{{linux},{own}}}"));
        assert_eq!(cache.more.as_ref().unwrap().layout, Layout::Leftover);
        assert_eq!(
            serde_json::from_value::<Cache>(serde_json::to_value(&cache).unwrap()).unwrap(),
            cache
        );
    }

    #[test]
    fn a_process_on_another_malloc_is_told_from_none() {
        assert!(matches!(
            read_process(std::process::id()),
            Err(StatsError::OtherMalloc(_))
        ));
        assert!(matches!(
            read_process(u32::MAX),
            Err(StatsError::NoProcess(_))
        ));
    }
}
