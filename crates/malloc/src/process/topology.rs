//! CPUs and memory nodes, as `/sys` describes them or as `FLAGSTONE_FAKE_NODES` pretends.
//!
//! Read once at start. Nodes are numbered densely here; the system's own numbers are kept for placing memory.

use core::ffi::CStr;
use core::fmt::Write as _;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, Ordering};

use flagstone_types::{CpuId, Nid};

use super::syscall;

/// The most CPUs that are told apart.
pub(super) const MOST_CPUS: usize = 4096;
/// The most nodes.
pub(super) const MOST_NODES: usize = 64;

const LOCAL: u8 = 10;
const REMOTE: u8 = 20;
const NOT_A_NODE: u16 = u16::MAX;

static POSSIBLE: AtomicU32 = AtomicU32::new(1);
static NODES: AtomicU32 = AtomicU32::new(1);
static NODE_OF: [AtomicU8; MOST_CPUS] = [const { AtomicU8::new(0) }; MOST_CPUS];
static DISTANCE: [[AtomicU8; MOST_NODES]; MOST_NODES] =
    [const { [const { AtomicU8::new(0) }; MOST_NODES] }; MOST_NODES];
/// The system's numbers of the nodes, where memory is to be placed by them.
static SYSTEM_NODE: [AtomicU16; MOST_NODES] = [const { AtomicU16::new(NOT_A_NODE) }; MOST_NODES];

/// Finds CPUs and nodes; `fake` nodes are pretended instead of the system's.
pub(super) fn start(fake: Option<u32>) {
    let mut text = [0; 4096];
    let mut highest = None;
    if let Some(list) = syscall::read_file(c"/sys/devices/system/cpu/possible", &mut text) {
        for_each(list, &mut |cpu| highest = highest.max(Some(cpu)));
    }
    let possible = highest
        .map_or_else(allowed_cpus, |cpu| cpu + 1)
        .clamp(1, MOST_CPUS as u32);
    POSSIBLE.store(possible, Ordering::Relaxed);
    match fake {
        Some(nodes) => {
            for cpu in 0..possible {
                let node = u64::from(cpu) * u64::from(nodes) / u64::from(possible);
                NODE_OF[cpu as usize].store(node as u8, Ordering::Relaxed);
            }
            NODES.store(nodes, Ordering::Relaxed);
        }
        None => read_nodes(&mut text),
    }
}

fn read_nodes(text: &mut [u8]) {
    let Some(list) = syscall::read_file(c"/sys/devices/system/node/online", text) else {
        return;
    };
    let mut nodes = 0;
    for_each(list, &mut |node| {
        if let Some(place) = SYSTEM_NODE.get(nodes as usize) {
            place.store(node as u16, Ordering::Relaxed);
            nodes += 1;
        }
    });
    if nodes <= 1 {
        return;
    }
    NODES.store(nodes, Ordering::Relaxed);
    for nid in 0..nodes as usize {
        let system = SYSTEM_NODE[nid].load(Ordering::Relaxed);
        let mut path = Path::new();
        let _ = write!(path, "/sys/devices/system/node/node{system}/cpulist");
        if let Some(list) = path.as_c().and_then(|path| syscall::read_file(path, text)) {
            for_each(list, &mut |cpu| {
                if let Some(node) = NODE_OF.get(cpu as usize) {
                    node.store(nid as u8, Ordering::Relaxed);
                }
            });
        }
        let mut path = Path::new();
        let _ = write!(path, "/sys/devices/system/node/node{system}/distance");
        if let Some(list) = path.as_c().and_then(|path| syscall::read_file(path, text)) {
            let mut to = 0;
            for_each(list, &mut |distance| {
                if let Some(place) = DISTANCE[nid].get(to) {
                    place.store(distance.min(255) as u8, Ordering::Relaxed);
                }
                to += 1;
            });
        }
    }
}

/// Says that only `nodes` of the nodes have room for memory; CPUs of others are counted to one of those.
pub(super) fn limit_nodes(nodes: u32) {
    NODES.fetch_min(nodes.max(1), Ordering::Relaxed);
}

pub(super) fn possible_cpus() -> u32 {
    POSSIBLE.load(Ordering::Relaxed)
}

pub(super) fn nodes() -> u32 {
    NODES.load(Ordering::Relaxed)
}

pub(super) fn node_of(cpu: CpuId) -> Nid {
    let node = NODE_OF
        .get(cpu.index())
        .map_or(0, |n| n.load(Ordering::Relaxed));
    Nid(u16::from(node) % nodes() as u16)
}

pub(super) fn distance(from: Nid, to: Nid) -> u32 {
    let known = DISTANCE
        .get(from.index())
        .and_then(|row| row.get(to.index()));
    match known.map_or(0, |d| d.load(Ordering::Relaxed)) {
        0 if from == to => LOCAL.into(),
        0 => REMOTE.into(),
        d => d.into(),
    }
}

/// The system's number of the node, if memory should be placed by it: there are several, and they are real.
pub(super) fn system_node(nid: Nid) -> Option<u32> {
    let node = SYSTEM_NODE.get(nid.index())?.load(Ordering::Relaxed);
    (nodes() > 1 && node != NOT_A_NODE).then_some(node.into())
}

/// How many CPUs this process may run on.
pub(super) fn allowed_cpus() -> u32 {
    let mut mask = [0u64; MOST_CPUS / 64];
    let (length, at) = (size_of_val(&mask), mask.as_mut_ptr() as usize);
    // SAFETY: the kernel writes at most `length` bytes to the exclusively borrowed array.
    let _ = unsafe { syscall::call(libc::SYS_sched_getaffinity, [0, length, at, 0, 0, 0]) };
    mask.iter()
        .map(|word| word.count_ones())
        .sum::<u32>()
        .max(1)
}

/// Calls `each` with the numbers of a list like `0-3,8 10`, in order.
fn for_each(list: &[u8], each: &mut dyn FnMut(u32)) {
    let is_separator = |b: &u8| matches!(b, b',' | b' ' | b'\n');
    for part in list.split(is_separator).filter(|part| !part.is_empty()) {
        let mut ends = part.splitn(2, |b| *b == b'-').map(number);
        let Some(Some(first)) = ends.next() else {
            return;
        };
        let Some(last) = ends.next().unwrap_or(Some(first)) else {
            return;
        };
        for n in first..=last.min(first.saturating_add(MOST_CPUS as u32)) {
            each(n);
        }
    }
}

fn number(text: &[u8]) -> Option<u32> {
    core::str::from_utf8(text).ok()?.parse().ok()
}

/// A path built without allocation.
struct Path {
    text: [u8; 96],
    filled: usize,
}

impl Path {
    fn new() -> Self {
        Self {
            text: [0; 96],
            filled: 0,
        }
    }

    fn as_c(&self) -> Option<&CStr> {
        CStr::from_bytes_until_nul(&self.text).ok()
    }
}

impl core::fmt::Write for Path {
    fn write_str(&mut self, s: &str) -> core::fmt::Result {
        let room = self
            .text
            .get_mut(self.filled..self.filled + s.len())
            .ok_or(core::fmt::Error)?;
        room.copy_from_slice(s.as_bytes());
        self.filled += s.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn numbers(list: &str) -> Vec<u32> {
        let mut all = Vec::new();
        for_each(list.as_bytes(), &mut |n| all.push(n));
        all
    }

    #[test]
    fn lists_are_read_as_the_kernel_writes_them() {
        assert_eq!(numbers("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(numbers("10 21 31\n"), [10, 21, 31]);
        assert_eq!(numbers("0\n"), [0]);
        assert_eq!(numbers("\n"), []);
        assert_eq!(numbers("1,x,3"), [1]);
        assert_eq!(numbers("3-x"), []);
    }

    #[test]
    fn this_machine_has_cpus() {
        assert!(allowed_cpus() >= 1);
        assert_eq!(distance(Nid(0), Nid(0)), 10);
    }
}
