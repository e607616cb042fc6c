//! A machine's memory as a file: an ELF core of physical memory, as hypervisors and crash dumps have it, with a note that says where
//! page tables begin. `flagstone ptdump` reads it.

use crate::Machine;
use flagstone_host::{PageMap, PhysMem};
use flagstone_types::{Pfn, PhysAddr};
use std::io::{self, Write};

/// A page table in an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Space {
    /// What to call it.
    pub name: String,
    /// Its format, as `flagstone_pgtable` names it.
    pub format: &'static str,
    /// Where its root is.
    pub root: PhysAddr,
}

/// The name of our notes.
pub const NOTE_NAME: &str = "FLAGSTONE";
/// The type of the note that lists page tables: lines of name, format and root, separated by tabs.
pub const NOTE_SPACES: u32 = 1;

const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;

fn note(spaces: &[Space]) -> Vec<u8> {
    let mut text = String::new();
    for space in spaces {
        let name = space.name.replace(['\t', '\n'], " ");
        text += &format!("{name}\t{}\t{:#x}\n", space.format, space.root.0);
    }
    let mut note = Vec::new();
    for word in [NOTE_NAME.len() as u32 + 1, text.len() as u32, NOTE_SPACES] {
        note.extend(word.to_le_bytes());
    }
    for part in [NOTE_NAME.as_bytes(), b"\0", text.as_bytes()] {
        note.extend(part);
        if part != NOTE_NAME.as_bytes() {
            note.resize(note.len().next_multiple_of(4), 0);
        }
    }
    note
}

fn program_header(kind: u32, offset: u64, physical: u64, bytes: u64) -> Vec<u8> {
    let mut header = Vec::with_capacity(PROGRAM_HEADER);
    header.extend(kind.to_le_bytes());
    header.extend(6u32.to_le_bytes());
    for word in [offset, 0, physical, bytes, bytes, 0] {
        header.extend(word.to_le_bytes());
    }
    header
}

fn header(programs: u16) -> Vec<u8> {
    let mut header = vec![0x7f, b'E', b'L', b'F', 2, 1, 1];
    header.resize(16, 0);
    // A core, of no particular machine, version 1.
    header.extend(4u16.to_le_bytes());
    header.extend(0u16.to_le_bytes());
    header.extend(1u32.to_le_bytes());
    for word in [0, HEADER as u64, 0] {
        header.extend(word.to_le_bytes());
    }
    header.extend(0u32.to_le_bytes());
    for half in [HEADER as u16, PROGRAM_HEADER as u16, programs, 0, 0, 0] {
        header.extend(half.to_le_bytes());
    }
    header
}

impl<const SHIFT: u32, const ORDER: u32> Machine<SHIFT, ORDER> {
    /// Writes the machine's memory and where `spaces` begin.
    ///
    /// # Errors
    /// What `out` says.
    pub fn write_image(&self, spaces: &[Space], out: &mut impl Write) -> io::Result<()> {
        let mut ranges = Vec::new();
        (&self).boot_ranges(&mut |range| ranges.push(range.frames));
        let note = note(spaces);
        out.write_all(&header(ranges.len() as u16 + 1))?;
        let mut offset = HEADER + (ranges.len() + 1) * PROGRAM_HEADER;
        out.write_all(&program_header(4, offset as u64, 0, note.len() as u64))?;
        offset += note.len();
        for range in &ranges {
            let bytes = range.pages << SHIFT;
            let physical = (range.start.0 << SHIFT) as u64;
            out.write_all(&program_header(1, offset as u64, physical, bytes as u64))?;
            offset += bytes;
        }
        out.write_all(&note)?;
        for range in &ranges {
            for n in 0..range.pages {
                let at = (&self).frame_ptr(Pfn(range.start.0 + n));
                // SAFETY: a frame that the machine has at start (M1 of the host's model). Nobody runs while it is copied (M3).
                let page = unsafe { core::slice::from_raw_parts(at.as_ptr(), 1 << SHIFT) };
                out.write_all(page)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Arch;

    #[test]
    fn an_image_has_every_frame_where_its_header_says() {
        let machine = Machine::<12>::builder(Arch::X86_64 { levels: 4 }).build();
        let mut image = Vec::new();
        let spaces = [Space {
            name: "one".into(),
            format: "x86_64",
            root: PhysAddr(0x1000),
        }];
        machine.write_image(&spaces, &mut image).unwrap();
        let word = |at: usize| u64::from_le_bytes(image[at..at + 8].try_into().unwrap());
        let programs = u16::from_le_bytes([image[56], image[57]]) as usize;
        let last = HEADER + (programs - 1) * PROGRAM_HEADER;
        assert_eq!(word(last + 8) + word(last + 32), image.len() as u64);
        let text = String::from_utf8_lossy(&image[..word(HEADER + PROGRAM_HEADER + 8) as usize]);
        assert!(text.contains("one\tx86_64\t0x1000\n"));
    }
}
