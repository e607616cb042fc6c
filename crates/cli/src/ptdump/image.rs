//! Images of a machine's memory: ELF cores whose segments have physical addresses, from the simulator, QEMU's
//! `dump-guest-memory` and others that write such cores.

use anyhow::{Context, Result, bail, ensure};
use flagstone_pgtable::format::Arch;
use flagstone_types::PhysAddr;
use memmap2::Mmap;
use object::LittleEndian as Le;
use object::elf::{FileHeader64, PT_LOAD, PT_NOTE};
use object::read::elf::{FileHeader, ProgramHeader};
use std::fs::File;
use std::path::Path;

/// A page table that the image names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Space {
    pub(crate) name: String,
    pub(crate) arch: Arch,
    pub(crate) root: PhysAddr,
}

/// A run of physical memory in the file.
#[derive(Clone, Copy, Debug)]
struct Piece {
    physical: u64,
    offset: usize,
    bytes: usize,
}

/// An image, mapped.
#[derive(Debug)]
pub(crate) struct Image {
    bytes: Mmap,
    /// By physical address.
    pieces: Vec<Piece>,
    spaces: Vec<Space>,
}

impl Image {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path)?;
        // SAFETY: the file is only read, and a tool that shows it may show nonsense if somebody changes it meanwhile.
        let bytes = unsafe { Mmap::map(&file) }?;
        let (pieces, spaces) = parse(&bytes)?;
        Ok(Self {
            bytes,
            pieces,
            spaces,
        })
    }

    pub(crate) fn spaces(&self) -> &[Space] {
        &self.spaces
    }

    /// The word at a physical address, as a little-endian machine loads it; `None` if the image does not have it.
    pub(crate) fn word(&self, at: PhysAddr) -> Option<u64> {
        let after = self.pieces.partition_point(|piece| piece.physical <= at.0);
        let piece = self.pieces[..after].last()?;
        let within = usize::try_from(at.0 - piece.physical).ok()?;
        if within.checked_add(8)? > piece.bytes {
            return None;
        }
        let from = piece.offset + within;
        let word = self.bytes.get(from..from + 8)?;
        Some(u64::from_le_bytes(word.try_into().ok()?))
    }
}

fn parse(bytes: &[u8]) -> Result<(Vec<Piece>, Vec<Space>)> {
    let header = FileHeader64::<Le>::parse(bytes)
        .context("no image of memory: a 64-bit little-endian ELF core is expected")?;
    let programs = header.program_headers(Le, bytes)?;
    let mut pieces = Vec::new();
    let mut spaces = Vec::new();
    for program in programs {
        match program.p_type(Le) {
            PT_LOAD => {
                let (offset, in_file) = program.file_range(Le);
                let piece = Piece {
                    physical: program.p_paddr(Le),
                    offset: usize::try_from(offset)?,
                    bytes: usize::try_from(in_file)?,
                };
                ensure!(
                    piece
                        .offset
                        .checked_add(piece.bytes)
                        .is_some_and(|end| end <= bytes.len()),
                    "the file ends before the memory at {:#x} that its header names",
                    piece.physical
                );
                pieces.push(piece);
            }
            PT_NOTE => {
                if let Some(mut notes) = program.notes(Le, bytes)? {
                    while let Some(note) = notes.next()? {
                        match (note.name(), note.n_type(Le)) {
                            (b"FLAGSTONE", flagstone_sim::NOTE_SPACES) => {
                                spaces.append(&mut listed(note.desc())?);
                            }
                            (b"QEMU", 0) => spaces.extend(of_qemu(note.desc(), spaces.len())),
                            _ => {}
                        }
                    }
                }
            }
            _ => {}
        }
    }
    if pieces.is_empty() {
        bail!("the core has no memory");
    }
    pieces.sort_by_key(|piece| piece.physical);
    Ok((pieces, spaces))
}

/// The page tables that the simulator lists: lines of name, format and root.
fn listed(text: &[u8]) -> Result<Vec<Space>> {
    let text = str::from_utf8(text).context("the note that lists page tables is no text")?;
    let mut spaces = Vec::new();
    for line in text.trim_end_matches('\0').lines() {
        let mut fields = line.split('\t');
        let (Some(name), Some(arch), Some(root)) = (fields.next(), fields.next(), fields.next())
        else {
            bail!("the note that lists page tables has the line {line:?}");
        };
        spaces.push(Space {
            name: name.to_owned(),
            arch: arch.parse().with_context(|| arch.to_owned())?,
            root: super::address(root).map_err(anyhow::Error::msg)?,
        });
    }
    Ok(spaces)
}

/// What is active on a CPU of QEMU's: its note has the registers, CR0 to CR4 among them.
///
/// Version and size; 18 registers; ten segments of 24 bytes; the control registers.
fn of_qemu(note: &[u8], cpu: usize) -> Option<Space> {
    const CONTROL: usize = 8 + 18 * 8 + 10 * 24;
    let register = |n: usize| {
        let at = CONTROL + n * 8;
        Some(u64::from_le_bytes(note.get(at..at + 8)?.try_into().ok()?))
    };
    let (root, control) = (register(3)?, register(4)?);
    let five_levels = control >> 12 & 1 != 0;
    Some(Space {
        name: format!("cpu{cpu}"),
        arch: if five_levels {
            Arch::X86_64La57
        } else {
            Arch::X86_64
        },
        root: PhysAddr(root & 0x000f_ffff_ffff_f000),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_of_qemu_tells_the_root_and_the_number_of_levels() {
        let mut note = vec![0; 8 + 18 * 8 + 10 * 24 + 5 * 8];
        let control = 8 + 18 * 8 + 10 * 24;
        note[control + 24..control + 32].copy_from_slice(&0x1234_5018u64.to_le_bytes());
        assert_eq!(
            of_qemu(&note, 2),
            Some(Space {
                name: "cpu2".into(),
                arch: Arch::X86_64,
                root: PhysAddr(0x1234_5000)
            })
        );
        note[control + 32..control + 40].copy_from_slice(&(1u64 << 12).to_le_bytes());
        assert_eq!(of_qemu(&note, 0).unwrap().arch, Arch::X86_64La57);
        assert_eq!(of_qemu(&note[..control + 20], 0), None);
    }

    #[test]
    fn what_is_no_core_is_refused_with_the_reason() {
        let error =
            parse(b"not an image at all, but long enough to be one, one would think").unwrap_err();
        assert!(
            format!("{error:#}").contains("ELF core is expected"),
            "{error:#}"
        );
    }

    #[test]
    fn a_broken_list_of_page_tables_is_shown() {
        let error = listed(b"name only\n").unwrap_err();
        assert!(format!("{error:#}").contains("name only"));
        let error = listed(b"a\tvax\t0x1000\n").unwrap_err();
        assert!(format!("{error:#}").contains("vax"), "{error:#}");
    }
}
