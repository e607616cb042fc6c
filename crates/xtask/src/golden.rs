//! Golden disassembly: the fast paths in the library as shipped are exactly the instructions that the repository says,
//! and these keep the promises that are made of them.
//!
//! `golden/fastpath.txt` has `malloc`, `free` and the same of an object cache, with symbols in place of addresses. [`run`] compares, and looks at the
//! instructions themselves: no lock, no atomic read-modify-write, no change of the interrupt flag, no system call, no
//! call at all; every way out is a return or a jump to a slow path; the commit is the section's last instruction.

use anyhow::{Context, Result, bail};
use flagstone_malloc::{heap::Places, process::fast::Fast};
use iced_x86::{FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind};
use similar::TextDiff;
use std::fmt::Write;
use std::mem::offset_of;
use std::path::{Path, PathBuf};

use crate::disassembly::{Field, Function, Library, SIGNATURE};
use crate::shipped;

/// The file, from the root of the repository.
const FILE: &str = "golden/fastpath.txt";

/// The functions in it.
const FUNCTIONS: &[&str] = &[
    "malloc",
    "free",
    "flagstone_cache_alloc",
    "flagstone_cache_free",
];

/// What the fast paths read, by name.
const FIELDS: &[Field] = &[
    ("FAST", offset_of!(Fast, bound) as u64, "bound"),
    ("FAST", offset_of!(Fast, rseq_off) as u64, "rseq_off"),
    ("FAST", offset_of!(Fast, id_off) as u64, "id_off"),
    ("FAST", offset_of!(Fast, region) as u64, "region"),
    ("FAST", offset_of!(Fast, first) as u64, "first"),
    ("FAST", offset_of!(Fast, frames) as u64, "frames"),
    ("FAST", offset_of!(Fast, map) as u64, "map"),
    ("FAST", offset_of!(Fast, slices) as u64, "slices"),
    ("PLACES", offset_of!(Places, fine) as u64, "fine"),
    ("PLACES", offset_of!(Places, coarse) as u64, "coarse"),
];

const PREFACE: &str = "\
# malloc, free and the same of an object cache in the shared library as shipped; `cargo xtask golden --update` writes this file.
# Addresses are replaced by symbols. The first figure counts all instructions up to the end of the function, the second
# those that run if no jump is taken: the fast path.
";

/// Compares the library (the one that is shipped if none is given) with the file, or writes the file, and in either case holds the
/// code to the rules.
///
/// # Errors
/// The code breaks a rule, or differs from the file: then with the difference.
pub(crate) fn run(root: &Path, library: Option<PathBuf>, update: bool) -> Result<()> {
    let path = match library {
        Some(path) => path,
        None => shipped::shared_library(root)?,
    };
    let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
    let library = Library::parse(&bytes, FIELDS)?;
    let mut text = String::from(PREFACE);
    let mut broken = Vec::new();
    for name in FUNCTIONS {
        let function = library.function(name)?;
        let summary = format!(
            "{name}: {} instructions, {} on the fast path",
            function.instructions.len(),
            function.straight_way().count()
        );
        println!("{summary}");
        let _ = write!(text, "\n# {summary}\n{}", function.text());
        broken.extend(
            violations(&function)
                .into_iter()
                .map(|rule| format!("{name}: {rule}")),
        );
    }
    if !broken.is_empty() {
        bail!(
            "the fast paths break their rules:\n  {}",
            broken.join("\n  ")
        );
    }
    let file = root.join(FILE);
    if update {
        return std::fs::write(&file, text).with_context(|| FILE.to_owned());
    }
    let golden = std::fs::read_to_string(&file).with_context(|| FILE.to_owned())?;
    compare(&golden, &text)
}

fn compare(golden: &str, found: &str) -> Result<()> {
    if golden == found {
        return Ok(());
    }
    let diff = TextDiff::from_lines(golden, found);
    bail!(
        "the fast paths are not those of {FILE}; if that is meant: cargo xtask golden --update\n{}",
        diff.unified_diff()
            .context_radius(4)
            .header(FILE, "the library as shipped")
    )
}

/// What the function does that a fast path must not do.
fn violations(function: &Function) -> Vec<String> {
    let mut found = Vec::new();
    for instruction in &function.instructions {
        if let Some(rule) = violation(function, instruction) {
            found.push(format!("{rule}: {instruction}"));
        }
    }
    match function.straight_way().last() {
        Some(last) if last.flow_control() == FlowControl::Return => {}
        _ => found.push("the fast path does not end with a return".into()),
    }
    found.extend(section_violations(function));
    found
}

fn violation(function: &Function, instruction: &Instruction) -> Option<&'static str> {
    let touches_memory =
        (0..instruction.op_count()).any(|n| instruction.op_kind(n) == OpKind::Memory);
    if instruction.has_lock_prefix() {
        return Some("a lock prefix");
    }
    match instruction.mnemonic() {
        Mnemonic::INVALID => return Some("no instruction"),
        Mnemonic::Xchg if touches_memory => return Some("an exchange with memory, which locks"),
        Mnemonic::Cli | Mnemonic::Sti | Mnemonic::Popf | Mnemonic::Popfq => {
            return Some("a change of the interrupt flag");
        }
        Mnemonic::Mfence | Mnemonic::Lfence | Mnemonic::Sfence => return Some("a fence"),
        _ => {}
    }
    match instruction.flow_control() {
        FlowControl::Next | FlowControl::Return => None,
        FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
            let to = instruction.near_branch64();
            // A jump backwards could be a loop; the one that is there goes from the coarse classes to the section.
            let inside = function.contains(to);
            (inside
                && to < instruction.ip()
                && instruction.flow_control() == FlowControl::ConditionalBranch)
                .then_some("a loop")
        }
        _ => Some("a call"),
    }
}

fn section_violations(function: &Function) -> Vec<String> {
    let Some(section) = &function.section else {
        return vec!["no restartable section".into()];
    };
    let mut found = Vec::new();
    if section.signature != SIGNATURE {
        found.push(format!(
            "the abort handler's signature is {:#x}",
            section.signature
        ));
    }
    if !function.contains(section.start) || !function.contains(section.end) {
        found.push("the section is not in the function".into());
        return found;
    }
    let inside: Vec<_> = function
        .instructions
        .iter()
        .filter(|i| (section.start..section.end).contains(&i.ip()))
        .collect();
    if !inside.last().is_some_and(|commit| writes_memory(commit)) {
        found.push("the section's last instruction does not store".into());
    }
    // Most times it begins again; now and then it gives up and leaves by the slow path.
    let goes_back = |i: &Instruction| {
        let target = i.near_branch64();
        target != 0 && target < section.start && function.contains(target)
    };
    if !section.abort.iter().any(goes_back) {
        found.push("the abort handler does not go back to before the section".into());
    }
    found
}

fn writes_memory(instruction: &Instruction) -> bool {
    InstructionInfoFactory::new()
        .info(instruction)
        .used_memory()
        .iter()
        .any(|memory| matches!(memory.access(), OpAccess::Write | OpAccess::ReadWrite))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rules that code breaks, but for those about its section.
    fn broken(code: &[u8]) -> Vec<String> {
        let mut rules = violations(&Function::of_code(code));
        rules.retain(|rule| !rule.contains("restartable section"));
        rules
    }

    #[test]
    fn plain_loads_and_stores_keep_the_rules() {
        // mov rax, [rdi]; mov [rdi], rsi; ret
        assert!(broken(&[0x48, 0x8b, 0x07, 0x48, 0x89, 0x37, 0xc3]).is_empty());
        // xchg rax, rdx; ret: registers only
        assert!(broken(&[0x48, 0x92, 0xc3]).is_empty());
    }

    #[test]
    fn each_rule_is_noticed_when_it_is_broken() {
        for (code, rule) in [
            (&[0xf0, 0x48, 0xff, 0x07, 0xc3][..], "a lock prefix"),
            (&[0x48, 0x87, 0x07, 0xc3], "an exchange with memory"),
            (&[0xfa, 0xc3], "the interrupt flag"),
            (&[0xfb, 0xc3], "the interrupt flag"),
            (&[0xe8, 0, 0, 0, 0, 0xc3], "a call"),
            (&[0xff, 0xd0, 0xc3], "a call"),
            (&[0x0f, 0x05, 0xc3], "a call"),
            (&[0x0f, 0xae, 0xf0, 0xc3], "a fence"),
            (&[0x90, 0x75, 0xfd, 0xc3], "a loop"),
            (&[0x90, 0x0f, 0x0b], "does not end with a return"),
        ] {
            let found = broken(code);
            assert!(
                found.iter().any(|found| found.contains(rule)),
                "{rule}: {found:?}"
            );
        }
        assert!(violations(&Function::of_code(&[0xc3]))[0].contains("no restartable section"));
    }

    #[test]
    fn a_difference_is_shown_as_one() {
        let text = compare("a\nb\nc\n", "a\nx\nc\n").unwrap_err().to_string();
        assert!(
            text.contains("-b\n+x\n") && text.contains("--update"),
            "{text}"
        );
        assert!(compare("a\n", "a\n").is_ok());
    }
}
