//! The statistics functions of the GNU C library.

use core::ffi::{c_int, c_void};
use core::fmt::{self, Write};

use flagstone_malloc::heap::heap;
use flagstone_malloc::{report::Totals, trim};

/// `struct mallinfo`, whose fields are too small for a large heap: values that do not fit wrap, as in the C library.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct MallInfo {
    arena: c_int,
    ordblks: c_int,
    smblks: c_int,
    hblks: c_int,
    hblkhd: c_int,
    usmblks: c_int,
    fsmblks: c_int,
    uordblks: c_int,
    fordblks: c_int,
    keepcost: c_int,
}

/// `struct mallinfo2`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct MallInfo2 {
    /// Bytes of page frames that hold memory of the system.
    arena: usize,
    /// Free pieces; here: 1 if there is free memory at all.
    ordblks: usize,
    smblks: usize,
    /// Mappings of their own.
    hblks: usize,
    /// Their bytes.
    hblkhd: usize,
    usmblks: usize,
    fsmblks: usize,
    /// Bytes with the program, mappings apart.
    uordblks: usize,
    /// Free bytes.
    fordblks: usize,
    /// What `malloc_trim` could give back.
    keepcost: usize,
}

fn totals() -> Totals {
    heap().map(Totals::of).unwrap_or_default()
}

fn info() -> MallInfo2 {
    let t = totals();
    let arena = t.frames - t.frames_empty;
    let used = t.in_use - t.direct;
    MallInfo2 {
        arena,
        ordblks: usize::from(arena > used),
        hblks: t.mappings,
        hblkhd: t.direct,
        uordblks: used,
        fordblks: arena.saturating_sub(used),
        keepcost: t.frames_free,
        ..MallInfo2::default()
    }
}

/// `mallinfo2`.
#[unsafe(no_mangle)]
pub extern "C" fn mallinfo2() -> MallInfo2 {
    info()
}

/// `mallinfo`.
#[unsafe(no_mangle)]
pub extern "C" fn mallinfo() -> MallInfo {
    let i = info();
    MallInfo {
        arena: i.arena as c_int,
        ordblks: i.ordblks as c_int,
        smblks: i.smblks as c_int,
        hblks: i.hblks as c_int,
        hblkhd: i.hblkhd as c_int,
        usmblks: i.usmblks as c_int,
        fsmblks: i.fsmblks as c_int,
        uordblks: i.uordblks as c_int,
        fordblks: i.fordblks as c_int,
        keepcost: i.keepcost as c_int,
    }
}

/// `mallopt`: the parameters are about an allocator of another make. Those that exist are accepted (1) and change nothing; others are refused (0).
#[unsafe(no_mangle)]
pub extern "C" fn mallopt(parameter: c_int, value: c_int) -> c_int {
    const M_MXFAST: c_int = 1;
    /// The least parameter number (`M_ARENA_MAX`).
    const LEAST: c_int = -8;
    /// `MAX_FAST_SIZE` of the C library: larger values of `M_MXFAST` are refused.
    const MOST_FAST: c_int = 160;
    match parameter {
        M_MXFAST => c_int::from((0..=MOST_FAST).contains(&value)),
        LEAST..=-1 => 1,
        _ => 0,
    }
}

/// `malloc_trim`: gives free memory back to the system but for `pad` bytes; 1 if any was given.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_trim(pad: usize) -> c_int {
    c_int::from(heap().is_ok_and(|caches| trim(caches, pad)))
}

/// Text to a stream of the C library.
struct Stream(*mut libc::FILE);

impl fmt::Write for Stream {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        // SAFETY: the stream is the caller's, the bytes are ours.
        let n = unsafe { libc::fwrite(s.as_ptr().cast(), 1, s.len(), self.0) };
        if n == s.len() {
            Ok(())
        } else {
            Err(fmt::Error)
        }
    }
}

unsafe extern "C" {
    static stderr: *mut libc::FILE;
}

/// `malloc_stats`: the heap's sums on standard error.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_stats() {
    let t = totals();
    let system = t.frames - t.frames_empty;
    // SAFETY: standard error is open as far as the C library knows.
    let mut out = Stream(unsafe { stderr });
    let _ = write!(
        out,
        "Arena 0:\nsystem bytes     = {:10}\nin use bytes     = {:10}\n\
         Total (incl. mmap):\nsystem bytes     = {:10}\nin use bytes     = {:10}\n\
         max mmap regions = {:10}\nmax mmap bytes   = {:10}\n",
        system,
        t.in_use - t.direct,
        system + t.direct,
        t.in_use,
        t.mappings,
        t.direct,
    );
}

/// `malloc_info`: the heap as XML. `options` must be 0, else `EINVAL` is returned.
///
/// # Safety
/// `stream` is an open stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_info(options: c_int, stream: *mut c_void) -> c_int {
    if options != 0 {
        return libc::EINVAL;
    }
    let mut out = Stream(stream.cast());
    if write_xml(&mut out).is_ok() { 0 } else { -1 }
}

fn write_xml(out: &mut Stream) -> fmt::Result {
    let t = totals();
    writeln!(out, "<malloc version=\"1\">\n<heap nr=\"0\">\n<sizes>")?;
    let mut result = Ok(());
    if let Ok(caches) = heap() {
        let mut lower = 1;
        // Newest first, so the largest class comes first.
        let mut rows = [(0usize, 0usize); 128];
        let mut n = 0;
        caches.slabinfo(|info| {
            let free = info.objects - info.used_objects();
            if free > 0 && n < rows.len() && info.name().starts_with("malloc-") {
                rows[n] = (info.size, free);
                n += 1;
            }
        });
        for &(size, free) in rows[..n].iter().rev() {
            result = result.and_then(|()| {
                writeln!(
                    out,
                    "  <size from=\"{lower}\" to=\"{size}\" total=\"{}\" count=\"{free}\"/>",
                    size * free
                )
            });
            lower = size + 1;
        }
    }
    result?;
    let free = t.cached + t.slab_free;
    let system = t.frames - t.frames_empty;
    for level in ["</sizes>\n", "</heap>\n"] {
        write!(
            out,
            "{level}<total type=\"fast\" count=\"0\" size=\"{}\"/>\n\
             <total type=\"rest\" count=\"0\" size=\"{}\"/>\n",
            t.cached,
            free + t.frames_free - t.cached
        )?;
        if level.starts_with("</heap") {
            writeln!(
                out,
                "<total type=\"mmap\" count=\"{}\" size=\"{}\"/>",
                t.mappings, t.direct
            )?;
        }
        write!(
            out,
            "<system type=\"current\" size=\"{system}\"/>\n<system type=\"max\" size=\"{system}\"/>\n\
             <aspace type=\"total\" size=\"{0}\"/>\n<aspace type=\"mprotect\" size=\"{0}\"/>\n",
            t.frames
        )?;
    }
    writeln!(out, "</malloc>")
}
