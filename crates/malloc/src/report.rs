//! Statistics: a report when the process ends.
//!
//! Where the report goes is in `FLAGSTONE_STATS`: `text` (a table on standard error), `json` (there too), or the name of a file, in
//! which `%p` stands for the process id; a name ending in `.json` gets JSON. The same JSON is kept in a file while
//! the process runs (`live.rs`).

use core::fmt::{self, Write as _};

use flagstone_host::{Clock, Count, Cpus, Event, Level, Log, PageMap};
use flagstone_slab::{Caches, SlabInfo};
use flagstone_types::Nid;

use crate::direct;
use crate::heap::caches;
use crate::live;
use crate::process::{Process, syscall};

/// Sums over the heap, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// In objects, runs and mappings with the program.
    pub in_use: usize,
    /// In objects that wait in arrays.
    pub cached: usize,
    /// In free objects of slabs, and what slabs can not use.
    pub slab_free: usize,
    /// In free page frames that hold memory of the system.
    pub frames_free: usize,
    /// In free page frames whose memory went back or was never touched.
    pub frames_empty: usize,
    /// In page frames, all together.
    pub frames: usize,
    /// In mappings of their own.
    pub direct: usize,
    /// How many mappings of their own.
    pub mappings: usize,
    /// In large runs.
    pub runs: usize,
}

impl Totals {
    /// The sums now.
    #[must_use]
    pub fn of(caches: &Caches<Process>) -> Self {
        let mut totals = Self::default();
        let mut slab_pages = 0;
        let mut used = 0;
        caches.slabinfo(|info| {
            used += info.used_objects() * info.size;
            totals.cached += info.cached_objects * info.size;
            slab_pages += info.slabs * info.pages_per_slab;
        });
        let page = Process::PAGE_SIZE;
        let host = caches.host();
        let frames = caches.frames();
        let sum = |each: &dyn Fn(Nid) -> usize| -> usize {
            (0..host.nodes() as u16).map(|nid| each(Nid(nid))).sum()
        };
        let managed = sum(&|nid| frames.managed_count(nid));
        let free = sum(&|nid| frames.free_count(nid)).min(managed);
        let touched = frames.touched_free_count().min(free);
        (totals.mappings, totals.direct) = direct::totals();
        totals.frames = managed * page;
        totals.frames_free = touched * page;
        totals.frames_empty = (free - touched) * page;
        totals.slab_free = (slab_pages * page).saturating_sub(used + totals.cached);
        totals.runs = (managed - free).saturating_sub(slab_pages) * page;
        totals.in_use = used + totals.runs + totals.direct;
        totals
    }
}

/// Text to a file descriptor, a piece at a time.
struct Out {
    fd: i32,
    bytes: [u8; 1024],
    filled: usize,
}

impl Out {
    const fn new(fd: i32) -> Self {
        Self {
            fd,
            bytes: [0; 1024],
            filled: 0,
        }
    }

    fn flush(&mut self) {
        syscall::write_all(self.fd, &self.bytes[..self.filled]);
        self.filled = 0;
    }
}

impl fmt::Write for Out {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        for piece in s.as_bytes().chunks(self.bytes.len()) {
            if piece.len() > self.bytes.len() - self.filled {
                self.flush();
            }
            self.bytes[self.filled..self.filled + piece.len()].copy_from_slice(piece);
            self.filled += piece.len();
        }
        Ok(())
    }
}

/// The program's name as the kernel has it.
struct Program([u8; 32], usize);

impl Program {
    fn find() -> Self {
        let mut name = [0; 32];
        let len = syscall::read_file(c"/proc/self/comm", &mut name)
            .map_or(0, |text| text.iter().take_while(|b| **b != b'\n').count());
        Self(name, len)
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..self.1].iter().try_for_each(|b| {
            let plain = b.is_ascii_graphic() && !matches!(b, b'"' | b'\\') || *b == b' ';
            f.write_char(if plain { *b as char } else { '?' })
        })
    }
}

/// A number of bytes with a unit, in at most six columns.
struct Size(usize);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = ["B", "K", "M", "G", "T", "P"];
        let (mut value, mut unit) = (self.0 as f64, 0);
        while value >= 1000.0 && unit + 1 < units.len() {
            value /= 1024.0;
            unit += 1;
        }
        let digits = usize::from(unit > 0 && value < 99.95);
        let width = f.width().unwrap_or(0).saturating_sub(1);
        write!(f, "{value:width$.digits$}{}", units[unit])
    }
}

/// Resident bytes of the whole process, as the system counts them; 0 if it does not say.
fn resident() -> usize {
    let mut text = [0; 128];
    let pages = syscall::read_file(c"/proc/self/statm", &mut text)
        .and_then(|text| core::str::from_utf8(text).ok())
        .and_then(|text| text.split(' ').nth(1)?.parse::<usize>().ok());
    pages.unwrap_or(0) * 4096
}

pub(crate) fn pid() -> u32 {
    // SAFETY: getpid has no preconditions.
    unsafe { syscall::call(libc::SYS_getpid, [0; 6]) }.unwrap_or(0) as u32
}

/// Writes everything as one JSON object.
///
/// # Errors
/// What the writer says.
pub fn write_json(caches: &Caches<Process>, out: &mut dyn fmt::Write) -> fmt::Result {
    let host = caches.host();
    let t = Totals::of(caches);
    write!(
        out,
        "{{\"pid\":{},\"program\":\"{}\",\"arrays\":\"{}\",\"cpus\":{},\"nodes\":{},\
         \"page_size\":{},\"time_ns\":{},",
        pid(),
        Program::find(),
        host.mode().name(),
        host.possible_cpus(),
        host.nodes(),
        Process::PAGE_SIZE,
        host.now().0,
    )?;
    write!(
        out,
        "\"heap\":{{\"in_use\":{},\"cached\":{},\"slab_free\":{},\"frames_free\":{},\
         \"frames_empty\":{},\"frames\":{},\"runs\":{},\"direct\":{},\"mappings\":{},\
         \"resident\":{},\"restarted\":{}}},\"caches\":[",
        t.in_use,
        t.cached,
        t.slab_free,
        t.frames_free,
        t.frames_empty,
        t.frames,
        t.runs,
        t.direct,
        t.mappings,
        resident(),
        crate::process::fast::aborts(),
    )?;
    let mut result = Ok(());
    let mut first = true;
    caches.slabinfo(|info| {
        if result.is_ok() && info.slabs > 0 {
            if !first {
                result = out.write_str(",");
            }
            first = false;
            result = result.and_then(|()| info.write_json(out));
        }
    });
    result?;
    out.write_str("],")?;
    if let Some(guard) = &host.settings().guard
        && crate::guard::is_on()
    {
        let seen = crate::guard::statistics();
        write!(
            out,
            "\"guard\":{{\"interval_ns\":{},\"objects\":{},\"allocated\":{},\"total_allocations\":{},\
             \"total_frees\":{},\"total_bugs\":{},\"skipped_full\":{},\"skipped_covered\":{}}},",
            guard.interval.0,
            guard.objects,
            seen.allocated,
            seen.total_allocations,
            seen.total_frees,
            seen.total_bugs,
            seen.skipped_full,
            seen.skipped_covered,
        )?;
    }
    out.write_str("\"vmstat\":{")?;
    for (n, event) in Event::ALL.iter().enumerate() {
        let comma = if n == 0 { "" } else { "," };
        write!(out, "{comma}\"{}\":{}", event.name(), host.counted(*event))?;
    }
    out.write_str("}}\n")
}

/// Writes everything as text for people, 80 columns wide.
///
/// # Errors
/// What the writer says.
pub fn write_text(caches: &Caches<Process>, out: &mut dyn fmt::Write) -> fmt::Result {
    let host = caches.host();
    let t = Totals::of(caches);
    writeln!(
        out,
        "flagstone: {} (process {}), arrays {}, {} CPUs, {} node(s)",
        Program::find(),
        pid(),
        host.mode().name(),
        host.possible_cpus(),
        host.nodes()
    )?;
    writeln!(
        out,
        "  in use {:6}   of it {} in runs, {} in {} mapping(s)",
        Size(t.in_use),
        Size(t.runs),
        Size(t.direct),
        t.mappings
    )?;
    writeln!(
        out,
        "  cached {:6}   free in slabs {}, free frames {} kept, {} empty",
        Size(t.cached),
        Size(t.slab_free),
        Size(t.frames_free),
        Size(t.frames_empty)
    )?;
    writeln!(
        out,
        "  mapped {:6}   process resident {}, {} released in {} call(s)",
        Size(t.frames + t.direct),
        Size(resident()),
        Size(host.counted(Event::BackingRelease) as usize * Process::PAGE_SIZE),
        host.counted(Event::BackingReleaseCalls),
    )?;
    writeln!(
        out,
        "{:<18}{:>9}{:>9}{:>8}{:>8}{:>8}{:>8}{:>11}",
        "cache", "used", "cached", "free", "slabs", "memory", "used", "layout"
    )?;
    let mut result = Ok(());
    caches.slabinfo(|info| {
        if result.is_ok() && info.slabs > 0 {
            result = write_row(info, out);
        }
    });
    result
}

fn write_row(info: &SlabInfo, out: &mut dyn fmt::Write) -> fmt::Result {
    let memory = info.slabs * info.pages_per_slab * Process::PAGE_SIZE;
    let used = info.used_objects() * info.size;
    writeln!(
        out,
        "{:<18}{:>9}{:>9}{:>8}{:>8}{:>8}{:>7}%{:>11}",
        info.name(),
        info.used_objects(),
        info.cached_objects,
        info.objects - info.active_objects,
        info.slabs,
        Size(memory),
        used * 100 / memory.max(1),
        info.layout.place.name()
    )
}

/// A path made of a directory or pattern and the process id.
pub(crate) struct Path([u8; 1100], usize);

impl Path {
    pub(crate) const fn new() -> Self {
        Self([0; 1100], 0)
    }

    /// The address of the text, which ends with a 0.
    pub(crate) fn address(&self) -> usize {
        self.0.as_ptr() as usize
    }
}

impl fmt::Write for Path {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        // The last byte stays 0.
        let end = self.1 + s.len();
        if end >= self.0.len() {
            return Err(fmt::Error);
        }
        self.0[self.1..end].copy_from_slice(s.as_bytes());
        self.1 = end;
        Ok(())
    }
}

pub(crate) fn open_file(path: &Path, flags: i32) -> Option<i32> {
    let (at, flags) = (path.address(), flags | libc::O_CLOEXEC | libc::O_NOFOLLOW);
    // SAFETY: the path ends with a 0.
    let fd = unsafe { syscall::call(libc::SYS_open, [at, flags as usize, 0o600, 0, 0, 0]) };
    fd.ok().map(|fd| fd as i32)
}

pub(crate) fn close(fd: i32) {
    // SAFETY: the descriptor is ours.
    let _ = unsafe { syscall::call(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
}

/// Writes the report that was asked for; called when the process ends.
pub fn at_exit() {
    let Some(caches) = caches() else { return };
    live::remove();
    let Some(Ok(to)) = caches.host().settings().stats().map(core::str::from_utf8) else {
        return;
    };
    let mut is_json = to == "json" || to.ends_with(".json");
    let fd = match to {
        "" | "0" => return,
        "1" | "text" | "stderr" | "json" => Some(2),
        name => {
            let mut path = Path::new();
            let mut parts = name.split("%p");
            let mut ok = path.write_str(parts.next().unwrap_or_default()).is_ok();
            for part in parts {
                ok &= write!(path, "{}{part}", pid()).is_ok();
            }
            is_json &= ok;
            let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND;
            if ok { open_file(&path, flags) } else { None }
        }
    };
    let Some(fd) = fd else {
        let error = "the report of FLAGSTONE_STATS can not be written to";
        return caches
            .host()
            .log(Level::Warning, format_args!("{error} {to}"));
    };
    let mut out = Out::new(fd);
    let _ = if is_json {
        write_json(caches, &mut out)
    } else {
        write_text(caches, &mut out)
    };
    out.flush();
    if fd != 2 {
        close(fd);
    }
}

#[cfg(test)]
mod tests {
    use super::Size;
    use std::format;

    #[test]
    fn sizes_have_at_most_six_columns() {
        let all = [
            (0, "0B"),
            (999, "999B"),
            (1000, "1.0K"),
            (10 << 10, "10.0K"),
            (100 << 10, "100K"),
            (3 << 30, "3.0G"),
        ];
        for (bytes, text) in all {
            assert_eq!(format!("{}", Size(bytes)), text);
            assert_eq!(format!("{:6}", Size(bytes)).len(), 6);
        }
    }
}
