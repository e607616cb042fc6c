//! Symbols of a mapped shared object, found by reading its own tables.
//!
//! This is what `dlsym` does without its locks and without its allocations: the program headers lead to the
//! dynamic section, that leads to the symbol table and its hash table. It serves for two
//! objects, the loader (`__rseq_offset`) and the vDSO (`__vdso_clock_gettime`).
//! Formats: System V ABI, generic and x86-64 supplement; `DT_GNU_HASH` as GNU linkers write it.

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_HASH: usize = 4;
const DT_STRTAB: usize = 5;
const DT_SYMTAB: usize = 6;
const DT_GNU_HASH: usize = 0x6fff_fef5;

#[repr(C)]
struct Header {
    magic: [u8; 16],
    kind: u16,
    machine: u16,
    version: u32,
    entry: usize,
    segments: usize,
    sections: usize,
    flags: u32,
    header_size: u16,
    segment_size: u16,
    segment_count: u16,
}

/// A program header.
#[repr(C)]
#[derive(Clone, Copy)]
struct Segment {
    kind: u32,
    flags: u32,
    offset: usize,
    address: usize,
    physical: usize,
    file_size: usize,
    size: usize,
    align: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: usize,
    size: usize,
}

/// A shared object in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Image {
    bias: usize,
    symbols: *const Symbol,
    strings: *const u8,
    gnu_hash: *const u32,
    hash: *const u32,
}

impl Image {
    /// The object whose ELF header is at `base`; `None` if it has no symbols to look up.
    ///
    /// # Safety
    /// P4: `base` is 0 or the address of a mapped object's header.
    pub(super) unsafe fn at(base: usize) -> Option<Self> {
        if base == 0 || !base.is_multiple_of(8) {
            return None;
        }
        // SAFETY: P4, a mapped object begins with its header.
        let header = unsafe { &*(base as *const Header) };
        if header.magic[..5] != *b"\x7fELF\x02"
            || header.segment_size as usize != size_of::<Segment>()
        {
            return None;
        }
        let count = header.segment_count as usize;
        // SAFETY: P4, the program headers are part of the first mapping.
        let segments = unsafe {
            core::slice::from_raw_parts((base + header.segments) as *const Segment, count)
        };
        let first = segments.iter().find(|s| s.kind == PT_LOAD)?;
        let bias = base.wrapping_sub(first.address.wrapping_sub(first.offset));
        let dynamic = segments.iter().find(|s| s.kind == PT_DYNAMIC)?;
        let mut entry = bias.wrapping_add(dynamic.address) as *const [usize; 2];
        let mut image = Self {
            bias,
            symbols: core::ptr::null(),
            strings: core::ptr::null(),
            gnu_hash: core::ptr::null(),
            hash: core::ptr::null(),
        };
        loop {
            // SAFETY: P4, the dynamic section is mapped and ends with an entry of kind 0.
            let [kind, value] = unsafe { *entry };
            // Some loaders store absolute addresses into the dynamic section; those lie above the bias.
            let address = if value < bias {
                value.wrapping_add(bias)
            } else {
                value
            };
            match kind {
                0 => break,
                DT_SYMTAB => image.symbols = address as *const Symbol,
                DT_STRTAB => image.strings = address as *const u8,
                DT_GNU_HASH => image.gnu_hash = address as *const u32,
                DT_HASH => image.hash = address as *const u32,
                _ => {}
            }
            // SAFETY: the terminating entry has not been reached.
            entry = unsafe { entry.add(1) };
        }
        let complete = !image.symbols.is_null() && !image.strings.is_null();
        complete.then_some(image)
    }

    /// The address of the symbol `name` that this object defines.
    pub(super) fn find(&self, name: &core::ffi::CStr) -> Option<usize> {
        if self.gnu_hash.is_null() {
            self.find_linearly(name)
        } else {
            self.find_by_hash(name)
        }
    }

    fn find_by_hash(&self, name: &core::ffi::CStr) -> Option<usize> {
        let wanted = name.to_bytes().iter().fold(5381u32, |h, b| {
            h.wrapping_mul(33).wrapping_add(u32::from(*b))
        });
        // SAFETY: P4; the table begins with four words: buckets, first symbol, filter words of 8 bytes, shift.
        let (buckets, first, filter) =
            unsafe { (*self.gnu_hash, *self.gnu_hash.add(1), *self.gnu_hash.add(2)) };
        if buckets == 0 {
            return None;
        }
        let bucket_at = 4 + 2 * filter as usize;
        // SAFETY: P4; the buckets follow the filter.
        let mut index = unsafe { *self.gnu_hash.add(bucket_at + (wanted % buckets) as usize) };
        if index < first {
            return None;
        }
        let chain = bucket_at + buckets as usize;
        loop {
            // SAFETY: P4; one hash per symbol from `first` on follows the buckets, the last of a bucket is odd.
            let hash = unsafe { *self.gnu_hash.add(chain + (index - first) as usize) };
            if hash | 1 == wanted | 1
                && let Some(found) = self.symbol_if_named(index as usize, name)
            {
                return Some(found);
            }
            if hash & 1 == 1 {
                return None;
            }
            index += 1;
        }
    }

    fn find_linearly(&self, name: &core::ffi::CStr) -> Option<usize> {
        if self.hash.is_null() {
            return None;
        }
        // SAFETY: P4; the second word is the number of symbols.
        let count = unsafe { *self.hash.add(1) };
        (0..count as usize).find_map(|i| self.symbol_if_named(i, name))
    }

    fn symbol_if_named(&self, index: usize, name: &core::ffi::CStr) -> Option<usize> {
        // SAFETY: P4; the hash table names symbols that exist.
        let symbol = unsafe { *self.symbols.add(index) };
        if symbol.section == 0 {
            return None;
        }
        // SAFETY: P4; names are null-terminated strings in the string table.
        let own =
            unsafe { core::ffi::CStr::from_ptr(self.strings.add(symbol.name as usize).cast()) };
        (own == name).then(|| self.bias.wrapping_add(symbol.value))
    }
}

/// Where the part of a loaded segment that its file fills, and that `address` is in, ends; `None` if it is in none, or no header is at
/// `base`.
///
/// # Safety
/// The eight bytes at `base` can be read; if they are an object's header, P4 holds for it, and `bias` is what was added to its addresses.
pub(super) unsafe fn end_of_segment(base: usize, bias: usize, address: usize) -> Option<usize> {
    // SAFETY: promised.
    let magic = unsafe { (base as *const [u8; 5]).read() };
    if magic != *b"\x7fELF\x02" {
        return None;
    }
    // SAFETY: P4, a mapped object begins with its header.
    let header = unsafe { &*(base as *const Header) };
    if header.segment_size as usize != size_of::<Segment>() {
        return None;
    }
    let count = header.segment_count as usize;
    // SAFETY: P4, the program headers are part of the first mapping.
    let segments =
        unsafe { core::slice::from_raw_parts((base + header.segments) as *const Segment, count) };
    segments
        .iter()
        .filter(|segment| segment.kind == PT_LOAD)
        .map(|segment| (bias.wrapping_add(segment.address), segment.file_size))
        .find(|(start, size)| address.wrapping_sub(*start) < *size)
        .map(|(start, size)| start + size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::startup::Startup;

    #[test]
    fn finds_what_dlsym_finds_in_the_loader_and_nothing_else() {
        let startup = Startup::find();
        // SAFETY: P4, the address comes from the auxiliary vector.
        let loader = unsafe { Image::at(startup.loader) }.unwrap();
        for name in [c"__libc_stack_end", c"_r_debug", c"__tls_get_addr"] {
            // SAFETY: an ordinary look-up by a constant name.
            let expected = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            assert_eq!(loader.find(name), Some(expected as usize), "{name:?}");
        }
        assert_eq!(loader.find(c"no_such_symbol"), None);
        assert_eq!(loader.find(c"malloc_usable_size"), None);
    }

    #[test]
    fn finds_the_clock_in_the_vdso() {
        // SAFETY: P4.
        let vdso = unsafe { Image::at(Startup::find().vdso) };
        if let Some(vdso) = vdso {
            assert!(vdso.find(c"__vdso_clock_gettime").is_some());
            assert!(vdso.find_linearly(c"nothing").is_none());
        }
    }

    #[test]
    fn what_is_not_an_object_has_no_symbols() {
        let bytes = [7u64; 32];
        // SAFETY: readable memory without the magic bytes.
        assert!(unsafe { Image::at(bytes.as_ptr() as usize) }.is_none());
        // SAFETY: 0 is allowed.
        assert!(unsafe { Image::at(0) }.is_none());
    }
}
