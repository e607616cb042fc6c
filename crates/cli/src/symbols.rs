//! Frames of reports by function, file and line.
//!
//! A report names a frame `0x… (module+0xoff)`, where the offset is the address that the module's file has for it. This happens outside of the
//! program that failed, so it may take time and memory. Functions that the compiler put into others are shown as frames of their own.
//! Debug information comes from the module or, if it has none, from its debug file: by build id or by name, where distributions install them.

use addr2line::Loader;
use anyhow::{Context, Result};
use object::Object as _;
use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{self, BufRead, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Where distributions put debug files.
const DEBUG_FOLDER: &str = "/usr/lib/debug";

/// Knows the modules that it was asked about.
#[derive(Default)]
pub(crate) struct Symbolizer {
    modules: HashMap<PathBuf, Option<Module>>,
}

struct Module {
    symbols: Loader,
    debug: Option<Loader>,
}

/// A function that was running at an address.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) file: Option<String>,
    pub(crate) line: Option<u32>,
}

impl std::fmt::Display for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)?;
        match (&self.file, self.line) {
            (Some(file), Some(line)) => write!(f, " {file}:{line}"),
            (Some(file), None) => write!(f, " {file}"),
            _ => Ok(()),
        }
    }
}

impl Module {
    fn open(path: &Path) -> Option<Self> {
        Some(Self {
            symbols: Loader::new(path).ok()?,
            debug: debug_file(path).and_then(|path| Loader::new(path).ok()),
        })
    }

    /// The functions at a return address, innermost first; the last one is the one that was called.
    fn functions(&self, offset: u64) -> Vec<Function> {
        // The call is before the address that it returns to.
        let Some(probe) = offset.checked_sub(1) else {
            return Vec::new();
        };
        let loaders = [Some(&self.symbols), self.debug.as_ref()];
        let loaders = loaders.into_iter().flatten();
        let symbol = loaders
            .clone()
            .find_map(|loader| loader.find_symbol(probe))
            .map(|name| addr2line::demangle_auto(Cow::Borrowed(name), None).into_owned());
        for loader in loaders {
            let found = inlined(loader, probe, symbol.as_deref());
            if !found.is_empty() {
                return found;
            }
        }
        symbol
            .map(|name| Function {
                name,
                file: None,
                line: None,
            })
            .into_iter()
            .collect()
    }
}

fn inlined(loader: &Loader, probe: u64, symbol: Option<&str>) -> Vec<Function> {
    let mut found = Vec::new();
    let Ok(mut frames) = loader.find_frames(probe) else {
        return found;
    };
    while let Ok(Some(frame)) = frames.next() {
        let name = frame
            .function
            .as_ref()
            .and_then(|function| function.demangle().ok().map(Cow::into_owned))
            .or_else(|| symbol.map(str::to_owned));
        let Some(name) = name else { continue };
        let location = frame.location;
        found.push(Function {
            name,
            file: location
                .as_ref()
                .and_then(|place| place.file.map(str::to_owned)),
            line: location.and_then(|place| place.line),
        });
    }
    found
}

/// The file with the debug information of the module `path`, if it has one apart.
fn debug_file(path: &Path) -> Option<PathBuf> {
    let bytes = std::fs::read(path).ok()?;
    let file = object::File::parse(&*bytes).ok()?;
    let by_id = file.build_id().ok().flatten().and_then(|id| {
        let (first, rest) = id.split_first()?;
        let rest = rest.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        });
        Some(format!("{DEBUG_FOLDER}/.build-id/{first:02x}/{rest}.debug").into())
    });
    let by_name = file.gnu_debuglink().ok().flatten().map(|(name, _)| {
        let (name, folder) = (OsStr::from_bytes(name), path.parent().unwrap_or(path));
        let installed = Path::new(DEBUG_FOLDER).join(folder.strip_prefix("/").unwrap_or(folder));
        [
            folder.join(name),
            folder.join(".debug").join(name),
            installed.join(name),
        ]
    });
    by_id
        .into_iter()
        .chain(by_name.into_iter().flatten())
        .find(|candidate: &PathBuf| candidate != path && candidate.is_file())
}

/// A frame as reports have it.
struct Frame<'a> {
    /// What is before it in the line, and behind it.
    before: &'a str,
    after: &'a str,
    module: &'a str,
    offset: u64,
}

/// The first `0x… (module+0xoff)` of a line.
fn frame_in(line: &str) -> Option<Frame<'_>> {
    let mut from = 0;
    while let Some(at) = line[from..].find("0x").map(|at| from + at) {
        from = at + 2;
        let digits = line[from..]
            .bytes()
            .take_while(u8::is_ascii_hexdigit)
            .count();
        let Some(rest) = line[from + digits..].strip_prefix(" (") else {
            continue;
        };
        let Some((module, offset, after)) = rest.split_once(')').and_then(|(inside, after)| {
            let (module, offset) = inside.rsplit_once("+0x")?;
            Some((module, u64::from_str_radix(offset, 16).ok()?, after))
        }) else {
            continue;
        };
        return Some(Frame {
            before: &line[..at],
            after,
            module,
            offset,
        });
    }
    None
}

impl Symbolizer {
    /// The functions at an offset of a module, innermost first; none if nothing is known.
    pub(crate) fn functions(&mut self, module: &str, offset: u64) -> Vec<Function> {
        let path = Path::new(module);
        if !self.modules.contains_key(path) {
            self.modules.insert(path.to_owned(), Module::open(path));
        }
        match &self.modules[path] {
            Some(module) => module.functions(offset),
            None => Vec::new(),
        }
    }

    /// A line of a report with its frame told by function, file and line, and a line for each function that was put into it. A line without
    /// a frame, or with one that nothing is known of, stays as it is. No line end is added.
    pub(crate) fn line(&mut self, line: &str) -> String {
        let Some(frame) = frame_in(line) else {
            return line.to_owned();
        };
        let functions = self.functions(frame.module, frame.offset);
        let Some((last, inlined)) = functions.split_last() else {
            return line.to_owned();
        };
        let (before, module) = (frame.before, frame.module);
        let mut text = String::new();
        // A frame within a sentence is one line, of the innermost function.
        let is_alone = before.trim().is_empty();
        if is_alone {
            for function in inlined {
                let _ = writeln!(text, "{before}{function} [inlined]");
            }
        }
        let shown = if is_alone { last } else { &functions[0] };
        let _ = write!(
            text,
            "{before}{shown} ({module}+{:#x}){}",
            frame.offset, frame.after
        );
        text
    }

    /// Adds `function`, `file` and `line` to every object in `json` that has a `module` and an `offset`.
    pub(crate) fn json(&mut self, json: &mut serde_json::Value) {
        match json {
            serde_json::Value::Array(items) => items.iter_mut().for_each(|item| self.json(item)),
            serde_json::Value::Object(fields) => {
                let place = fields.get("module").and_then(|module| {
                    let offset = fields.get("offset")?.as_str()?.strip_prefix("0x")?;
                    let offset = u64::from_str_radix(offset, 16).ok()?;
                    Some((module.as_str()?.to_owned(), offset))
                });
                if let Some((module, offset)) = place
                    && let Some(function) = self.functions(&module, offset).into_iter().next()
                {
                    fields.insert("function".into(), function.name.into());
                    fields.insert("file".into(), function.file.into());
                    fields.insert("line".into(), function.line.into());
                }
                fields.values_mut().for_each(|value| self.json(value));
            }
            _ => {}
        }
    }
}

/// `flagstone symbolize`: the report in `file`, or on standard input, with its frames told by function, file and line.
///
/// # Errors
/// The file can not be read, or nothing can be written.
pub(crate) fn filter(file: Option<&Path>) -> Result<()> {
    let input: Box<dyn BufRead> = match file {
        Some(path) => Box::new(io::BufReader::new(
            std::fs::File::open(path).with_context(|| path.display().to_string())?,
        )),
        None => Box::new(io::stdin().lock()),
    };
    let mut symbolizer = Symbolizer::default();
    let mut out = io::stdout().lock();
    for line in input.split(b'\n') {
        let line = line?;
        writeln!(out, "{}", symbolizer.line(&String::from_utf8_lossy(&line)))?;
        out.flush()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_found_in_lines() {
        let frame = frame_in(" 0x7f12 (/lib/a (b)+c.so+0x12) tail");
        assert!(frame.is_none(), "a parenthesis in a path is not understood");
        let frame = frame_in("  0x7f12 (/lib/a+b.so+0x12) tail").unwrap();
        assert_eq!((frame.before, frame.after), ("  ", " tail"));
        assert_eq!((frame.module, frame.offset), ("/lib/a+b.so", 0x12));
        let frame = frame_in("write of 0x12 in 0x7f (p+0x3)").unwrap();
        assert_eq!((frame.before, frame.module), ("write of 0x12 in ", "p"));
        for line in ["", "0x", "0x12", "0x12 (p)", "0x12 (p+0xg)", "0x12 (p+0x1"] {
            assert!(frame_in(line).is_none(), "{line}");
        }
    }

    #[test]
    fn a_line_that_says_nothing_known_stays() {
        let mut symbolizer = Symbolizer::default();
        for line in [
            "BUG: x",
            " 0x12 (/no/such/file+0x12)",
            "é 0x1 (/etc/passwd+0x1)",
        ] {
            assert_eq!(symbolizer.line(line), line);
        }
    }

    /// Exported, so that it is there under its name however the compiler likes it.
    #[unsafe(no_mangle)]
    extern "C" fn flagstone_test_of_a_line() -> u32 {
        line!()
    }

    #[test]
    fn a_function_of_this_program_is_found_with_its_line() {
        // By its address, so that it is not only inlined.
        let function: extern "C" fn() -> u32 = flagstone_test_of_a_line;
        let line = std::hint::black_box(function)();
        let program = std::env::current_exe().unwrap();
        let bytes = std::fs::read(&program).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        use object::{Object as _, ObjectSymbol as _};
        let symbol = file
            .symbols()
            .find(|symbol| symbol.name() == Ok("flagstone_test_of_a_line"))
            .unwrap();
        let found =
            Symbolizer::default().functions(program.to_str().unwrap(), symbol.address() + 1);
        let function = found.last().unwrap();
        assert_eq!(function.name, "flagstone_test_of_a_line", "{function:?}");
        assert!(function.file.as_ref().unwrap().ends_with("symbols.rs"));
        assert!(function.line.unwrap().abs_diff(line) <= 1);
    }
}
