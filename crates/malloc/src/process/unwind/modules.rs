//! Which module an address is in: the program, a shared library, the vDSO.
//!
//! `_dl_find_object` (glibc 2.35) tells it in a few nanoseconds, without a lock and in signal handlers too. An older C library is asked by
//! `dl_iterate_phdr`, which takes a recursive lock of the loader, so it is asked with no lock of ours held, and once for each module of a walk.

use core::arch::asm;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicU64, Ordering};

use super::memory::is_readable;
use crate::process::elf;

/// What the loader knows of a module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Module {
    pub(super) start: usize,
    pub(super) end: usize,
    /// What was added to the addresses in its file.
    bias: usize,
    /// Its path; empty for the program itself.
    name: *const c_char,
    /// Where its `.eh_frame_hdr` is; 0 if it has none.
    pub(super) table: usize,
    /// Its number for the table of rules, if it has got one.
    pub(super) number: Option<u8>,
}

const NONE: Module = Module {
    start: 0,
    end: 0,
    bias: 0,
    name: core::ptr::null(),
    table: 0,
    number: None,
};

/// The modules that a walk has met last.
#[derive(Debug)]
pub(super) struct Modules {
    met: [Module; 4],
    last: usize,
    next: usize,
    /// A page outside of modules that may hold code.
    page: usize,
}

impl Modules {
    pub(super) const fn new() -> Self {
        Self {
            met: [NONE; 4],
            last: 0,
            next: 0,
            page: 0,
        }
    }

    /// The module that `address` is in.
    #[inline]
    pub(super) fn find(&mut self, address: usize) -> Option<&Module> {
        let is_in = |module: &Module| (module.start..module.end).contains(&address);
        if !is_in(&self.met[self.last]) {
            self.last = match self.met.iter().position(is_in) {
                Some(at) => at,
                None => self.ask(address)?,
            };
        }
        Some(&self.met[self.last])
    }

    #[inline(never)]
    fn ask(&mut self, address: usize) -> Option<usize> {
        let mut module = ask_loader(address)?;
        module.number = number_of(&module);
        let at = self.next;
        self.met[at] = module;
        self.next = (at + 1) % self.met.len();
        Some(at)
    }

    /// Whether a return address may be true: in a module, or in memory that can be read, as code made at run time can.
    #[inline]
    pub(super) fn is_code(&mut self, address: usize) -> bool {
        if self.find(address).is_some() {
            return true;
        }
        let page = address & !4095;
        if page != self.page {
            if !is_readable(page) {
                return false;
            }
            self.page = page;
        }
        true
    }
}

/// Names of modules, as far as rules depend on them; the place of a name is the module's number. A module that was unloaded keeps
/// its own, and gets it back if it comes to the same place.
static NUMBERED: [AtomicU64; 128] = [const { AtomicU64::new(0) }; 128];

/// The module's number; `None` if all are given (its rules are read anew each time then). Two modules have the same number only if they
/// have one path, take the same addresses, and their tables do not differ in their head and in the entries looked at here (P28).
fn number_of(module: &Module) -> Option<u8> {
    /// Entries of the table: where a function is, and where its frames are described.
    const LOOKED_AT: usize = 16;
    let mut name = 0u64;
    let mut mix = |word: u64| {
        name = (name.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    };
    mix(module.start as u64);
    mix(module.end as u64);
    mix(module.table as u64);
    if !module.name.is_null() {
        // SAFETY: P27, a string of the loader's.
        let path = unsafe { CStr::from_ptr(module.name) }.to_bytes();
        for piece in path.chunks(8) {
            let mut word = [0; 8];
            word[..piece.len()].copy_from_slice(piece);
            mix(u64::from_le_bytes(word));
        }
    }
    if module.table != 0 {
        let table = core::ptr::with_exposed_provenance::<u32>(module.table);
        // SAFETY: P27, the head of a table: four bytes that say how it is written, the place of `.eh_frame`, a count.
        let head = unsafe { table.cast::<[u32; 3]>().read_unaligned() };
        head.into_iter().for_each(|word| mix(u64::from(word)));
        // As every linker writes it: numbers of four bytes, and entries of two.
        if head[0] == u32::from_le_bytes([1, 0x1b, 0x03, 0x3b]) {
            let count = head[2] as usize;
            for entry in (0..count).step_by(count.div_ceil(LOOKED_AT).max(1)) {
                // SAFETY: P27, the entries follow the head.
                mix(unsafe { table.add(3 + 2 * entry).cast::<u64>().read_unaligned() });
            }
        }
    }
    let name = name.max(1);
    let first = (name >> 32) as usize;
    (0..NUMBERED.len()).find_map(|step| {
        let at = (first + step) % NUMBERED.len();
        let held = match NUMBERED[at].load(Ordering::Relaxed) {
            0 => NUMBERED[at]
                .compare_exchange(0, name, Ordering::Relaxed, Ordering::Relaxed)
                .map_or_else(|other| other, |_| name),
            held => held,
        };
        (held == name).then_some(at as u8)
    })
}

/// The beginning of the loader's record of a module (`link.h`).
#[repr(C)]
struct LinkMap {
    bias: usize,
    name: *const c_char,
}

/// What `_dl_find_object` answers (`dlfcn.h`).
#[repr(C)]
struct Found {
    flags: u64,
    start: usize,
    end: usize,
    link_map: *const LinkMap,
    table: usize,
    reserved: [u64; 7],
}

fn ask_loader(address: usize) -> Option<Module> {
    let function: usize;
    // SAFETY: reads an address that the loader filled in, 0 if there is no such symbol. The reference is weak, so that
    // older C libraries do without.
    unsafe {
        asm!(
            ".weak _dl_find_object",
            "mov {function}, qword ptr [rip + _dl_find_object@GOTPCREL]",
            function = out(reg) function,
            options(nostack, readonly, preserves_flags),
        );
    }
    if function == 0 {
        return ask_by_headers(address);
    }
    // SAFETY: the C library's function has this type.
    let find: extern "C" fn(usize, &mut Found) -> c_int = unsafe { core::mem::transmute(function) };
    let mut found = Found {
        flags: 0,
        start: 0,
        end: 0,
        link_map: core::ptr::null(),
        table: 0,
        reserved: [0; 7],
    };
    if find(address, &mut found) != 0 || found.link_map.is_null() {
        return None;
    }
    // SAFETY: P27, the record lives as long as the module.
    let map = unsafe { &*found.link_map };
    Some(Module {
        start: found.start,
        end: found.end,
        bias: map.bias,
        name: map.name,
        table: found.table,
        number: None,
    })
}

#[cold]
#[inline(never)]
fn ask_by_headers(address: usize) -> Option<Module> {
    struct Question {
        address: usize,
        answer: Option<Module>,
    }
    unsafe extern "C" fn look(
        info: *mut libc::dl_phdr_info,
        _: usize,
        question: *mut c_void,
    ) -> c_int {
        // SAFETY: the C library passes its record and what it was given.
        let (info, question) = unsafe { (&*info, &mut *question.cast::<Question>()) };
        let (mut start, mut end, mut table) = (usize::MAX, 0, 0);
        for at in 0..usize::from(info.dlpi_phnum) {
            // SAFETY: the record names so many headers.
            let header = unsafe { &*info.dlpi_phdr.add(at) };
            let place = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
            match header.p_type {
                libc::PT_LOAD => {
                    start = start.min(place & !4095);
                    end = end.max(place + header.p_memsz as usize);
                }
                libc::PT_GNU_EH_FRAME => table = place,
                _ => {}
            }
        }
        if !(start..end).contains(&question.address) {
            return 0;
        }
        question.answer = Some(Module {
            start,
            end,
            bias: info.dlpi_addr as usize,
            name: info.dlpi_name,
            table,
            number: None,
        });
        1
    }
    let mut question = Question {
        address,
        answer: None,
    };
    // SAFETY: the function above is called with the question only while this call lasts.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut question).cast()) };
    question.answer
}

/// Where in which file an address is.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The module's path; `None` for the program itself.
    pub path: Option<&'static CStr>,
    /// The address as the file has it, before it was loaded anywhere.
    pub offset: usize,
    /// Whether the module is the one that this code is in.
    pub is_own: bool,
}

/// The module that `address` is in. The path lives as long as the module is loaded.
#[must_use]
pub fn place_of(address: usize) -> Option<Place> {
    let module = ask_loader(address)?;
    let own = place_of as *const () as usize;
    let name = if module.name.is_null() {
        c""
    } else {
        // SAFETY: P27, a string of the loader's.
        unsafe { CStr::from_ptr(module.name) }
    };
    Some(Place {
        path: (!name.is_empty()).then_some(name),
        offset: address.wrapping_sub(module.bias),
        is_own: (module.start..module.end).contains(&own),
    })
}

impl Module {
    /// The bytes of this module from `address` to the end of the segment that it is in; `None` if it is in none.
    pub(super) fn bytes_from(&self, address: usize) -> Option<&'static [u8]> {
        if !is_readable(self.start) {
            return None;
        }
        // SAFETY: P27, the first segment of a module begins with its header; if not, that is seen.
        let end = unsafe { elf::end_of_segment(self.start, self.bias, address) }?;
        let at = core::ptr::with_exposed_provenance::<u8>(address);
        // SAFETY: P27, the segment is mapped and its tables are not written to.
        Some(unsafe { core::slice::from_raw_parts(at, end - address) })
    }
}
