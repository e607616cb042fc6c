//! `flagstone ptdump`: the page tables in an image of a machine's memory, as ranges with flags; what may be written and executed; what
//! an access would have met.

mod image;

use crate::args::PtdumpOptions;
use anyhow::{Context, Result, bail};
use flagstone_pgtable::dump::{Range, Ranges, WritableAndExecutable, level_name};
use flagstone_pgtable::format::{Arch, Canonical, Format};
use flagstone_pgtable::{BadAccess, FaultCode, Reach, with_format};
use flagstone_types::{PhysAddr, VirtAddr};
use image::{Image, Space};
use std::io::{self, BufWriter, Write};

/// An address in hexadecimal with `0x`, or in decimal.
pub(crate) fn address(text: &str) -> Result<PhysAddr, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(&digits.replace('_', ""), 16),
        None => text.parse(),
    };
    parsed.map(PhysAddr).map_err(|_| {
        format!("{text:?} is no address: 0x and hexadecimal digits, or decimal digits")
    })
}

/// Prints what was asked for.
pub(crate) fn ptdump(options: &PtdumpOptions) -> Result<()> {
    let image = Image::open(&options.image).with_context(|| options.image.display().to_string())?;
    let spaces = chosen(&image, options)?;
    let mut out = BufWriter::new(io::stdout().lock());
    let mut spaces_as_json = Vec::new();
    for (n, space) in spaces.iter().enumerate() {
        if options.json {
            spaces_as_json.push(with_format!(space.arch, F => json::<F>(&image, space, options)));
            continue;
        }
        if n > 0 {
            writeln!(out)?;
        }
        with_format!(space.arch, F => text::<F>(&image, space, options, &mut out))?;
    }
    if options.json {
        serde_json::to_writer_pretty(&mut out, &spaces_as_json)?;
        writeln!(out)?;
    }
    out.flush()?;
    Ok(())
}

/// The page tables that are to be shown: those of the image, the one that was named, or the one that the command line describes.
fn chosen(image: &Image, options: &PtdumpOptions) -> Result<Vec<Space>> {
    if let Some(root) = options.root {
        let Some(arch) = options
            .arch
            .or(image.spaces().first().map(|space| space.arch))
        else {
            bail!(
                "--root {:#x} needs --arch, since the image names none",
                root.0
            );
        };
        return Ok(vec![Space {
            name: format!("{:#x}", root.0),
            arch,
            root,
        }]);
    }
    let mut spaces = image.spaces().to_vec();
    if let Some(name) = &options.space {
        spaces.retain(|space| space.name == *name);
        if spaces.is_empty() {
            let names: Vec<_> = image.spaces().iter().map(|space| &*space.name).collect();
            bail!(
                "no page table is called {name:?}; there are: {}",
                names.join(", ")
            );
        }
    }
    if let Some(arch) = options.arch {
        spaces.iter_mut().for_each(|space| space.arch = arch);
    }
    if spaces.is_empty() {
        bail!("the image does not say where its page tables are: give --arch and --root");
    }
    Ok(spaces)
}

/// The ranges of one table. A format with two roots is shown as the half that was asked for.
fn ranges<'i, F: Format>(
    image: &'i Image,
    space: &Space,
    options: &PtdumpOptions,
) -> Ranges<F, impl FnMut(PhysAddr) -> Option<u64> + use<'i, F>> {
    let ranges = Ranges::new(space.root, reach::<F>(options), |at| image.word(at));
    if options.young_dirty {
        ranges.with_unit_bits()
    } else {
        ranges
    }
}

fn reach<F: Format>(options: &PtdumpOptions) -> Reach {
    if options.upper && F::CANONICAL == Canonical::TwoRoots {
        Reach::Upper
    } else {
        Reach::Whole
    }
}

fn is_wanted(range: &Range, options: &PtdumpOptions) -> bool {
    !options.wx || range.is_writable_and_executable()
}

fn text<F: Format>(
    image: &Image,
    space: &Space,
    options: &PtdumpOptions,
    out: &mut impl Write,
) -> Result<()> {
    writeln!(
        out,
        "---[ {}: {}, root {:#x} ]---",
        space.name,
        F::NAME,
        space.root.0
    )?;
    if let Some(at) = options.fault {
        writeln!(out, "{}", fault::<F>(image, space, at, options))?;
        return Ok(());
    }
    let mut both = Vec::new();
    for range in ranges::<F>(image, space, options) {
        if range.is_writable_and_executable() {
            both.push(range);
        }
        if is_wanted(&range, options) {
            write!(out, "{range}")?;
            match range.at {
                Some(at) if options.physical && range.is_contiguous => {
                    writeln!(out, " at {:#x}", at.0)?
                }
                Some(_) if options.physical => writeln!(out, " scattered")?,
                _ => writeln!(out)?,
            }
        }
    }
    writeln!(out, "{}", WritableAndExecutable::of(both))?;
    Ok(())
}

fn fault<F: Format>(
    image: &Image,
    space: &Space,
    at: PhysAddr,
    options: &PtdumpOptions,
) -> BadAccess<F> {
    let code = FaultCode::from_bits_truncate(options.code);
    let at = VirtAddr(at.0 as usize);
    BadAccess::new(space.root, reach::<F>(options), at, code, |at| {
        image.word(at)
    })
}

fn json<F: Format>(image: &Image, space: &Space, options: &PtdumpOptions) -> serde_json::Value {
    let mut value = serde_json::json!({
        "name": space.name,
        "format": F::NAME,
        "root": space.root.0,
    });
    if let Some(at) = options.fault {
        let fault = fault::<F>(image, space, at, options);
        value["fault"] = serde_json::json!({
            "address": at.0,
            "code": options.code,
            "reason": fault.reason(),
            "canonical": fault.is_canonical,
            "entries": fault.entries[1..].iter().rev().collect::<Vec<_>>(),
        });
        return value;
    }
    let shown = ranges::<F>(image, space, options).filter(|range| is_wanted(range, options));
    value["ranges"] = shown.map(|range| range_json(&range)).collect();
    value
}

fn range_json(range: &Range) -> serde_json::Value {
    serde_json::json!({
        "start": range.start.0,
        "bytes": range.bytes(),
        "level": level_name(range.level, range.is_top),
        "what": range.kind.to_string().split_whitespace().collect::<Vec<_>>().join(" "),
        "physical": range.at.map(|at| at.0),
        "contiguous": range.at.is_some() && range.is_contiguous,
        "writable_and_executable": range.is_writable_and_executable(),
    })
}

/// The names of formats, for the command line.
pub(crate) fn arch(text: &str) -> Result<Arch, String> {
    text.parse()
        .map_err(|error: flagstone_pgtable::format::UnknownFormat| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_in_both_ways_and_refused_with_their_text() {
        assert_eq!(address("0x1_000"), Ok(PhysAddr(0x1000)));
        assert_eq!(address("4096"), Ok(PhysAddr(4096)));
        assert!(address("0xzz").unwrap_err().contains("0xzz"));
    }

    #[test]
    fn an_unknown_format_is_answered_with_those_there_are() {
        let error = arch("vax").unwrap_err();
        assert!(
            error.contains("x86_64") && error.contains("riscv64"),
            "{error}"
        );
    }
}
