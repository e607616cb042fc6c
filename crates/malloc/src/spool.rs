//! Where reports of bugs go: the one way out of the process.
//!
//! `FLAGSTONE_REPORTS` names a folder, which `flagstone run` makes, reads and removes. A report is appended to `PID.txt` in it as text, to
//! `PID.json` as a line of JSON, or to both (`FLAGSTONE_REPORT_FORMAT`), each by one write, so that reports of threads do not mix. A text
//! begins with the byte [`RECORD`], which tells where the next one starts. Without a folder, or if it is gone, the text is written to standard error.
//! Nothing is allocated from this heap and no lock is taken, so it works in a signal handler and between fork and exec. The file is opened for each
//! report: the program may close every descriptor that it did not open.

use core::fmt::{self, Write as _};

use crate::process::settings::ReportFormat;
use crate::process::{Process, syscall, unwind};
use crate::report::{Path, close, open_file, pid};

/// What a text in a spool file begins with (ASCII record separator).
pub const RECORD: u8 = 0x1e;

/// What a report says, in both forms.
pub trait Account {
    /// As text, with line ends.
    ///
    /// # Errors
    /// What the writer says.
    fn write_text(&self, out: &mut dyn fmt::Write) -> fmt::Result;

    /// As one JSON object, without line ends.
    ///
    /// # Errors
    /// What the writer says.
    fn write_json(&self, out: &mut dyn fmt::Write) -> fmt::Result;
}

/// Whether there is a folder that reports go to.
pub(crate) fn is_wanted() -> bool {
    Process::start().settings().reports().is_some()
}

/// Sends a report out.
#[cold]
#[inline(never)]
pub fn send(account: &dyn Account) {
    let settings = Process::start().settings();
    let Some(folder) = settings
        .reports()
        .and_then(|folder| core::str::from_utf8(folder).ok())
    else {
        return with_room(|room| {
            let _ = account.write_text(room);
            syscall::write_all(2, room.text());
        });
    };
    let format = settings.report_format;
    if format != ReportFormat::Json {
        with_room(|room| {
            let _ = room.write_char(char::from(RECORD));
            let _ = account.write_text(room);
            let text = room.text();
            if !append(folder, "txt", text) {
                syscall::write_all(2, text.get(1..).unwrap_or_default());
            }
        });
    }
    if format != ReportFormat::Text {
        with_room(|room| {
            // A line that was cut is none.
            if account
                .write_json(room)
                .and_then(|()| room.write_char('\n'))
                .is_ok()
            {
                append(folder, "json", room.text());
            }
        });
    }
}

fn append(folder: &str, ending: &str, text: &[u8]) -> bool {
    let mut path = Path::new();
    if write!(path, "{folder}/{}.{ending}", pid()).is_err() {
        return false;
    }
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT;
    let Some(fd) = open_file(&path, flags) else {
        return false;
    };
    syscall::write_all(fd, text);
    close(fd);
    true
}

/// The longest report in bytes; the rest is cut.
const LONGEST: usize = 256 << 10;

/// Room where the system gives none.
const SMALL: usize = 1 << 10;

struct Room<'a> {
    bytes: &'a mut [u8],
    filled: usize,
}

impl Room<'_> {
    fn text(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }
}

impl fmt::Write for Room<'_> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let taken = s.len().min(self.bytes.len() - self.filled);
        self.bytes[self.filled..self.filled + taken].copy_from_slice(&s.as_bytes()[..taken]);
        self.filled += taken;
        if taken == s.len() {
            Ok(())
        } else {
            Err(fmt::Error)
        }
    }
}

/// Calls `then` with room for a report: pages of the system, since the stack may be a small one.
fn with_room(then: impl FnOnce(&mut Room<'_>)) {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let Ok(at) = syscall::map(0, LONGEST, rights) else {
        let bytes = &mut [0; SMALL];
        return then(&mut Room { bytes, filled: 0 });
    };
    let start = core::ptr::with_exposed_provenance_mut(at);
    // SAFETY: P30, the mapping is new and of this length.
    let bytes = unsafe { core::slice::from_raw_parts_mut(start, LONGEST) };
    then(&mut Room { bytes, filled: 0 });
    // SAFETY: P30, the slice is not used any more.
    let _ = unsafe { syscall::unmap(at, LONGEST) };
}

/// A return address: `0x… (module+0xoff)`, the offset being the address that the module's file has for it.
#[derive(Clone, Copy, Debug)]
pub struct Frame(pub usize);

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)?;
        match Module::of(self.0) {
            Some((module, offset)) => write!(f, " ({module}+{offset:#x})"),
            None => Ok(()),
        }
    }
}

impl Frame {
    /// The frame as a JSON object.
    ///
    /// # Errors
    /// What the writer says.
    pub fn write_json(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        write!(out, "{{\"address\":\"{:#x}\"", self.0)?;
        if let Some((module, offset)) = Module::of(self.0) {
            let module = JsonString(module);
            write!(out, ",\"module\":{module},\"offset\":\"{offset:#x}\"")?;
        }
        out.write_char('}')
    }
}

/// A call stack as lines of text, innermost frame first, without the frames of this library.
#[derive(Clone, Copy, Debug)]
pub struct CallTrace<'a>(pub &'a [usize]);

impl CallTrace<'_> {
    fn frames(&self) -> &[usize] {
        // A program that Flagstone is linked into has no library to leave out.
        let is_ours = |frame: &&usize| {
            unwind::place_of(**frame).is_some_and(|place| place.is_own && place.path.is_some())
        };
        let ours = self.0.iter().take_while(is_ours).count();
        &self.0[ours..]
    }

    /// The stack as a JSON array.
    ///
    /// # Errors
    /// What the writer says.
    pub fn write_json(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        out.write_char('[')?;
        for (n, frame) in self.frames().iter().enumerate() {
            if n > 0 {
                out.write_char(',')?;
            }
            Frame(*frame).write_json(out)?;
        }
        out.write_char(']')
    }
}

impl fmt::Display for CallTrace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.frames()
            .iter()
            .try_for_each(|frame| writeln!(f, " {}", Frame(*frame)))
    }
}

/// Text as a JSON string, in its quotes.
#[derive(Debug)]
pub struct JsonString<T>(pub T);

impl<T: fmt::Display> fmt::Display for JsonString<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        struct Escape<'a, 'b>(&'a mut fmt::Formatter<'b>);

        impl fmt::Write for Escape<'_, '_> {
            fn write_str(&mut self, s: &str) -> fmt::Result {
                s.chars().try_for_each(|char| match char {
                    '"' | '\\' => write!(self.0, "\\{char}"),
                    '\n' => self.0.write_str("\\n"),
                    '\0'..' ' => write!(self.0, "\\u{:04x}", u32::from(char)),
                    _ => self.0.write_char(char),
                })
            }
        }

        f.write_char('"')?;
        write!(Escape(f), "{}", self.0)?;
        f.write_char('"')
    }
}

/// Calls `then` with the path of the module that an address is in, and the address that the module's file has for it.
pub(crate) fn with_module(address: usize, then: impl FnOnce(&str, usize)) {
    if let Some((module, offset)) = Module::of(address) {
        // A path that is no text is cut where it stops being one.
        let path = module.bytes().utf8_chunks().next();
        then(path.map_or("?", |chunk| chunk.valid()), offset);
    }
}

/// The path of a module.
#[allow(
    clippy::large_enum_variant,
    reason = "lives on the stack while one frame is written, and nothing may be allocated"
)]
enum Module {
    Library(&'static core::ffi::CStr),
    Program([u8; 512], usize),
}

impl Module {
    fn of(address: usize) -> Option<(Self, usize)> {
        let place = unwind::place_of(address)?;
        let module = match place.path {
            Some(path) => Self::Library(path),
            None => Self::program(),
        };
        Some((module, place.offset))
    }

    fn program() -> Self {
        let (link, mut path) = (c"/proc/self/exe", [0u8; 512]);
        let arguments = [
            link.as_ptr() as usize,
            path.as_mut_ptr() as usize,
            path.len(),
            0,
            0,
            0,
        ];
        // SAFETY: the kernel reads the name and writes at most the array's length to the array.
        let length = unsafe { syscall::call(libc::SYS_readlink, arguments) };
        Self::Program(path, length.unwrap_or(0))
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Library(path) => path.to_bytes(),
            Self::Program(path, length) => &path[..*length],
        }
    }
}

impl fmt::Display for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for piece in self.bytes().utf8_chunks() {
            f.write_str(piece.valid())?;
            if !piece.invalid().is_empty() {
                f.write_char('?')?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::{String, ToString as _};

    #[test]
    fn a_frame_is_told_by_module_and_offset() {
        let address = a_frame_is_told_by_module_and_offset as *const () as usize;
        let program = std::env::current_exe().unwrap();
        let text = Frame(address).to_string();
        let start = std::format!("{address:#x} ({}+0x", program.display());
        assert!(text.starts_with(&start) && text.ends_with(')'), "{text}");
        assert_eq!(Frame(0x10).to_string(), "0x10");
        let mut json = String::new();
        Frame(address).write_json(&mut json).unwrap();
        assert!(
            json.contains("\"module\":\"/") && json.ends_with("\"}"),
            "{json}"
        );
    }

    #[test]
    fn text_in_json_is_escaped() {
        let text = JsonString("a\"b\\c\n\u{1}ä").to_string();
        assert_eq!(text, r#""a\"b\\c\n\u0001ä""#);
    }

    #[test]
    fn a_report_that_is_too_long_is_cut() {
        with_room(|room| {
            let piece = "x".repeat(1000);
            while room.write_str(&piece).is_ok() {}
            assert_eq!(room.text().len(), LONGEST);
        });
    }
}
