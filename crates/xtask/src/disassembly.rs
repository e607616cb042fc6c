//! One function of a shared library as instructions: decoded, with symbols in place of addresses, and with the restartable
//! section that it contains.
//!
//! A function is what its symbol covers. A restartable section is found by the instruction that takes its descriptor's address;
//! the descriptor (the kernel's `struct rseq_cs`: version and flags, start, length, abort address) is read with the
//! relocations that the loader would apply.

use anyhow::{Context, Result, bail, ensure};
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Formatter, FormatterOptions, Instruction, IntelFormatter,
    MemorySizeOptions, OpKind, SymbolResolver, SymbolResult,
};
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The linker's section of descriptors.
const DESCRIPTORS: &str = "__rseq_cs";
/// Bytes of a descriptor.
const DESCRIPTOR_BYTES: usize = 32;
/// What the kernel wants to find right before an abort handler, as registered by the C library on x86.
pub(crate) const SIGNATURE: u32 = 0x5305_3053;

/// A part of a symbol that has a name of its own: `(symbol, offset in bytes, name)`.
pub(crate) type Field = (&'static str, u64, &'static str);

struct Symbol {
    address: u64,
    size: u64,
    /// The last part of its path.
    name: String,
    is_code: bool,
}

/// A shared library.
pub(crate) struct Library<'a> {
    file: object::File<'a>,
    symbols: Vec<Symbol>,
    /// What the loader writes at an address, from the library's start.
    addends: BTreeMap<u64, u64>,
    fields: &'a [Field],
}

/// A restartable section.
#[derive(Debug)]
pub(crate) struct Section {
    /// Its first instruction's address.
    pub(crate) start: u64,
    /// The address after its last instruction.
    pub(crate) end: u64,
    /// The four bytes before the abort handler.
    pub(crate) signature: u32,
    /// The abort handler.
    pub(crate) abort: Vec<Instruction>,
}

/// A function.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) instructions: Vec<Instruction>,
    pub(crate) section: Option<Section>,
    /// Names of addresses outside, and labels of addresses inside.
    names: BTreeMap<u64, String>,
}

impl<'a> Library<'a> {
    /// Reads a library's symbols and relocations. `fields` name parts of its symbols.
    ///
    /// # Errors
    /// `bytes` are no ELF file.
    pub(crate) fn parse(bytes: &'a [u8], fields: &'a [Field]) -> Result<Self> {
        let file = object::File::parse(bytes).context("not an ELF file")?;
        let mut symbols: Vec<Symbol> = file
            .symbols()
            .chain(file.dynamic_symbols())
            .filter(|symbol| symbol.is_definition() && symbol.size() > 0)
            .filter_map(|symbol| {
                let full = format!("{:#}", rustc_demangle::demangle(symbol.name().ok()?));
                Some(Symbol {
                    address: symbol.address(),
                    size: symbol.size(),
                    name: full.rsplit("::").next().unwrap_or(&full).to_owned(),
                    is_code: symbol.kind() == SymbolKind::Text,
                })
            })
            .collect();
        // Several symbols of one address: the same one is chosen every time.
        symbols.sort_by(|a, b| (a.address, &a.name).cmp(&(b.address, &b.name)));
        let addends = file
            .dynamic_relocations()
            .into_iter()
            .flatten()
            .map(|(at, relocation)| (at, relocation.addend().cast_unsigned()))
            .collect();
        Ok(Self {
            file,
            symbols,
            addends,
            fields,
        })
    }

    /// The function that is exported under `name`.
    ///
    /// # Errors
    /// There is none, or it does not look like one.
    pub(crate) fn function(&self, name: &str) -> Result<Function> {
        let symbol = self
            .symbols
            .iter()
            .find(|symbol| symbol.is_code && symbol.name == name)
            .with_context(|| format!("no function {name}"))?;
        let code = self.bytes(symbol.address, symbol.size as usize)?;
        let instructions = decode(code, symbol.address);
        let section = self
            .descriptor(&instructions)
            .map(|at| self.section(at))
            .transpose()
            .with_context(|| format!("the section of {name}"))?;
        let mut function = Function {
            name: name.to_owned(),
            instructions,
            section,
            names: BTreeMap::new(),
        };
        function.name_addresses(self);
        Ok(function)
    }

    /// The address of the descriptor that one of the instructions takes.
    fn descriptor(&self, instructions: &[Instruction]) -> Option<u64> {
        let range = self.file.section_by_name(DESCRIPTORS)?;
        let range = range.address()..range.address() + range.size();
        instructions
            .iter()
            .filter(|instruction| instruction.is_ip_rel_memory_operand())
            .map(Instruction::ip_rel_memory_address)
            .find(|address| range.contains(address))
    }

    fn section(&self, descriptor: u64) -> Result<Section> {
        let bytes = self.bytes(descriptor, DESCRIPTOR_BYTES)?;
        let word = |at: usize| {
            let stored = u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
            self.addends
                .get(&(descriptor + at as u64))
                .copied()
                .unwrap_or(stored)
        };
        ensure!(word(0) == 0, "the descriptor has a version or flags");
        let (start, length, abort) = (word(8), word(16), word(24));
        let signature = self.bytes(abort - 4, 4)?;
        // The handler ends with the first jump without a condition.
        let code = self.bytes(abort, 32)?;
        let mut handler = decode(code, abort);
        let Some(last) = handler
            .iter()
            .position(|i| i.flow_control() == FlowControl::UnconditionalBranch)
        else {
            bail!("the abort handler does not jump back");
        };
        handler.truncate(last + 1);
        Ok(Section {
            start,
            end: start + length,
            signature: u32::from_le_bytes(signature.try_into().expect("four bytes")),
            abort: handler,
        })
    }

    fn bytes(&self, address: u64, length: usize) -> Result<&'a [u8]> {
        self.file
            .sections()
            .find_map(|section| section.data_range(address, length as u64).ok().flatten())
            .with_context(|| format!("no {length} bytes at {address:#x}"))
    }

    /// A name for an address, with the field of a symbol where it has fields.
    fn name_of(&self, address: u64) -> Option<String> {
        if let Some(section) = self.file.section_by_name(DESCRIPTORS)
            && (section.address()..section.address() + section.size()).contains(&address)
        {
            return Some("descriptor".into());
        }
        let symbol = self
            .symbols
            .iter()
            .find(|symbol| (symbol.address..symbol.address + symbol.size).contains(&address))?;
        let offset = address - symbol.address;
        let field = self
            .fields
            .iter()
            .find(|field| field.0 == symbol.name && field.1 == offset);
        Some(match (field, offset) {
            (Some(field), _) => format!("{}.{}", symbol.name, field.2),
            (None, 0) => symbol.name.clone(),
            (None, _) => format!("{}+{offset:#x}", symbol.name),
        })
    }
}

fn decode(code: &[u8], address: u64) -> Vec<Instruction> {
    Decoder::with_ip(64, code, address, DecoderOptions::NONE)
        .into_iter()
        .collect()
}

/// Where a jump or a call goes, if the instruction says so.
fn target(instruction: &Instruction) -> Option<u64> {
    matches!(instruction.op0_kind(), OpKind::NearBranch64).then(|| instruction.near_branch64())
}

/// The formatter's source of names.
struct Names(BTreeMap<u64, String>);

impl SymbolResolver for Names {
    fn symbol(
        &mut self,
        _instruction: &Instruction,
        _operand: u32,
        _instruction_operand: Option<u32>,
        address: u64,
        _address_size: u32,
    ) -> Option<SymbolResult<'_>> {
        self.0
            .get(&address)
            .map(|name| SymbolResult::with_str(address, name.as_str()))
    }
}

impl Function {
    /// A function made of machine code, for tests of the rules.
    #[cfg(test)]
    pub(crate) fn of_code(code: &[u8]) -> Self {
        Self {
            name: "test".into(),
            instructions: decode(code, 0x1000),
            section: None,
            names: BTreeMap::new(),
        }
    }

    /// Whether the address is that of one of the instructions.
    pub(crate) fn contains(&self, address: u64) -> bool {
        self.instructions.iter().any(|i| i.ip() == address)
    }

    /// The instructions that are executed if no conditional jump is taken: the fast path.
    pub(crate) fn straight_way(&self) -> impl Iterator<Item = &Instruction> {
        let mut ended = false;
        self.instructions.iter().take_while(move |instruction| {
            let was = ended;
            ended = !matches!(
                instruction.flow_control(),
                FlowControl::Next | FlowControl::ConditionalBranch
            );
            !was
        })
    }

    fn all_instructions(&self) -> impl Iterator<Item = &Instruction> {
        let abort = self.section.iter().flat_map(|section| &section.abort);
        self.instructions.iter().chain(abort)
    }

    fn name_addresses(&mut self, library: &Library<'_>) {
        let mut inside: Vec<u64> = self
            .all_instructions()
            .filter_map(target)
            .filter(|&address| self.contains(address))
            .chain(self.section.iter().map(|section| section.start))
            .collect();
        inside.sort_unstable();
        inside.dedup();
        let mut names: BTreeMap<u64, String> = inside
            .iter()
            .enumerate()
            .map(|(number, &address)| (address, format!("L{}", number + 1)))
            .collect();
        let outside = self.all_instructions().filter_map(|instruction| {
            if instruction.is_ip_rel_memory_operand() {
                Some(instruction.ip_rel_memory_address())
            } else {
                target(instruction)
            }
        });
        for address in outside {
            if !names.contains_key(&address)
                && let Some(name) = library.name_of(address)
            {
                names.insert(address, name);
            }
        }
        self.names = names;
    }

    /// The text of the function: labels, instructions, and the abort handler of its section. It has no addresses, so it
    /// changes only when the code does.
    pub(crate) fn text(&self) -> String {
        let mut formatter =
            IntelFormatter::with_options(Some(Box::new(Names(self.names.clone()))), None);
        let options: &mut FormatterOptions = formatter.options_mut();
        options.set_space_after_operand_separator(true);
        options.set_hex_prefix("0x");
        options.set_hex_suffix("");
        options.set_branch_leading_zeros(false);
        options.set_memory_size_options(MemorySizeOptions::Default);
        options.set_show_branch_size(false);
        let mut text = format!("{}:\n", self.name);
        let mut line = |text: &mut String, instruction: &Instruction| {
            let mut formatted = String::new();
            formatter.format(instruction, &mut formatted);
            let _ = writeln!(text, "    {formatted}");
        };
        for instruction in &self.instructions {
            let at = instruction.ip();
            if let Some(label) = self.names.get(&at) {
                let _ = writeln!(text, "  {label}:");
            }
            if self
                .section
                .as_ref()
                .is_some_and(|section| section.end == at)
            {
                text.push_str("    -- committed --\n");
            }
            if self
                .section
                .as_ref()
                .is_some_and(|section| section.start == at)
            {
                text.push_str("    -- section --\n");
            }
            line(&mut text, instruction);
        }
        if let Some(section) = &self.section {
            text.push_str("  when the kernel ends the section:\n");
            for instruction in &section.abort {
                line(&mut text, instruction);
            }
        }
        text
    }
}
