//! Reports as JSON: one object on one line. Addresses are strings, for a JSON number has 53 bits in many readers.

use core::fmt::{self, Write};

use super::bug::{AccessKind, Bug};
use super::place::{Event, Object, ObjectState, Place};
use super::symbols::Symbols;
use super::{Report, ShadowRows};
use crate::Stack;

/// An object or a list while it is written.
struct Json<'a> {
    out: &'a mut dyn Write,
    first: bool,
}

impl Json<'_> {
    fn object(out: &mut dyn Write, fill: impl FnOnce(&mut Json<'_>) -> fmt::Result) -> fmt::Result {
        out.write_char('{')?;
        let mut json = Json { out, first: true };
        fill(&mut json)?;
        json.out.write_char('}')
    }

    fn item(&mut self) -> Result<&mut dyn Write, fmt::Error> {
        if !core::mem::take(&mut self.first) {
            self.out.write_char(',')?;
        }
        Ok(self.out)
    }

    /// What follows is the value of `key`.
    fn key(&mut self, key: &str) -> Result<&mut dyn Write, fmt::Error> {
        let out = self.item()?;
        write!(out, "\"{key}\":")?;
        Ok(out)
    }

    fn number(&mut self, key: &str, value: impl Into<u64>) -> fmt::Result {
        write!(self.key(key)?, "{}", value.into())
    }

    fn text(&mut self, key: &str, value: impl fmt::Display) -> fmt::Result {
        string(self.key(key)?, value)
    }

    fn address(&mut self, key: &str, value: usize) -> fmt::Result {
        write!(self.key(key)?, "\"{value:#x}\"")
    }

    fn nested(
        &mut self,
        key: &str,
        fill: impl FnOnce(&mut Json<'_>) -> fmt::Result,
    ) -> fmt::Result {
        Json::object(self.key(key)?, fill)
    }

    fn list<T>(
        &mut self,
        key: &str,
        items: impl IntoIterator<Item = T>,
        mut each: impl FnMut(&mut dyn Write, T) -> fmt::Result,
    ) -> fmt::Result {
        let out = self.key(key)?;
        out.write_char('[')?;
        let mut json = Json { out, first: true };
        for item in items {
            each(json.item()?, item)?;
        }
        json.out.write_char(']')
    }
}

/// Writes a string with what JSON does not allow in one escaped.
fn string(out: &mut dyn Write, value: impl fmt::Display) -> fmt::Result {
    struct Escape<'a>(&'a mut dyn Write);
    impl Write for Escape<'_> {
        fn write_str(&mut self, s: &str) -> fmt::Result {
            for c in s.chars() {
                match c {
                    '"' => self.0.write_str("\\\"")?,
                    '\\' => self.0.write_str("\\\\")?,
                    '\n' => self.0.write_str("\\n")?,
                    '\t' => self.0.write_str("\\t")?,
                    c if u32::from(c) < 0x20 => write!(self.0, "\\u{:04x}", u32::from(c))?,
                    c => self.0.write_char(c)?,
                }
            }
            Ok(())
        }
    }
    out.write_char('"')?;
    write!(Escape(out), "{value}")?;
    out.write_char('"')
}

fn hex(out: &mut dyn Write, bytes: &[u8]) -> fmt::Result {
    out.write_char('"')?;
    for byte in bytes {
        write!(out, "{byte:02x}")?;
    }
    out.write_char('"')
}

fn stack(json: &mut Json<'_>, key: &str, stack: Stack<'_>, symbols: &dyn Symbols) -> fmt::Result {
    json.list(key, stack.iter(), |out, pc| {
        Json::object(out, |json| {
            json.address("pc", pc)?;
            let mut result = Ok(());
            let mut told = false;
            symbols.resolve(pc, &mut |symbol| {
                if core::mem::replace(&mut told, true) {
                    return;
                }
                result = (|| {
                    if let Some(module) = symbol.module {
                        json.text("module", module)?;
                        json.address("module_offset", symbol.module_offset)?;
                    }
                    if let Some(function) = symbol.function {
                        json.text("function", function)?;
                        json.address("offset", symbol.offset)?;
                    }
                    Ok(())
                })();
            });
            result
        })
    })
}

fn event(
    json: &mut Json<'_>,
    key: &str,
    event: Option<Event<'_>>,
    symbols: &dyn Symbols,
) -> fmt::Result {
    let Some(event) = event else { return Ok(()) };
    json.nested(key, |json| {
        json.number("task", event.task)?;
        json.number("cpu", event.cpu.0)?;
        json.number("time_ns", event.when.0)?;
        stack(json, "stack", event.stack, symbols)
    })
}

fn object(json: &mut Json<'_>, object: &Object<'_>, symbols: &dyn Symbols) -> fmt::Result {
    json.nested("object", |json| {
        if !object.cache.is_empty() {
            json.text("cache", object.cache)?;
        }
        json.address("start", object.start)?;
        json.number("size", object.size.0 as u64)?;
        if let Some(requested) = object.requested {
            json.number("requested", requested.0 as u64)?;
        }
        json.text(
            "state",
            match object.state {
                ObjectState::Allocated => "allocated",
                ObjectState::Freed => "freed",
                ObjectState::Quarantined => "quarantined",
            },
        )?;
        event(json, "allocated", object.allocated, symbols)?;
        event(json, "freed", object.freed, symbols)
    })
}

fn bug(json: &mut Json<'_>, bug: &Bug<'_>) -> fmt::Result {
    json.text("family", bug.family())?;
    json.text("bug", bug.name())?;
    if let Some(address) = bug.address() {
        json.address("address", address)?;
    }
    match bug {
        Bug::Access(access) => {
            json.number("size", access.size.0 as u64)?;
            json.text(
                "access",
                match access.kind {
                    AccessKind::Read => "read",
                    AccessKind::Write => "write",
                },
            )?;
            json.address("first_bad", access.first_bad)
        }
        Bug::Free(_) => Ok(()),
        Bug::Damage(damage) => {
            json.text("cache", damage.cache)?;
            json.text("message", damage.problem)?;
            if let Some(range) = &damage.range {
                json.nested("damaged", |json| {
                    json.address("from", range.from)?;
                    json.address("to", range.to)?;
                    json.number("found", range.found)?;
                    json.number("expected", range.expected)
                })?;
            }
            if let Some(slab) = &damage.slab {
                json.nested("slab", |json| {
                    json.address("address", slab.address)?;
                    json.number("objects", slab.objects)?;
                    json.number("used", slab.used)
                })?;
            }
            Ok(())
        }
        Bug::UserCopy(copy) => {
            json.text("memory", copy.what)?;
            if !copy.detail.is_empty() {
                json.text("name", copy.detail)?;
            }
            json.number("offset", copy.offset.0 as u64)?;
            json.number("size", copy.size.0 as u64)
        }
        Bug::NoMemory(shortage) => {
            json.text("cache", shortage.cache)?;
            json.number("object_size", shortage.object_size.0 as u64)?;
            json.number("size", shortage.size.0 as u64)?;
            json.number("order", shortage.order)?;
            json.text("gfp", shortage.gfp)?;
            if let Some(nid) = shortage.nid {
                json.number("node", nid.0)?;
            }
            json.list("nodes", shortage.nodes, |out, node| {
                Json::object(out, |json| {
                    json.number("node", node.nid.0)?;
                    json.number("active_slabs", node.active_slabs as u64)?;
                    json.number("slabs", node.slabs as u64)?;
                    json.number("active_objects", node.active_objects as u64)?;
                    json.number("objects", node.objects as u64)
                })
            })
        }
    }
}

fn place(json: &mut Json<'_>, place: &Place<'_>, symbols: &dyn Symbols) -> fmt::Result {
    match place {
        Place::Unknown => Ok(()),
        Place::Object(it) => object(json, it, symbols),
        Place::Global {
            name,
            module,
            start,
            size,
        } => json.nested("global", |json| {
            json.text("name", name)?;
            if !module.is_empty() {
                json.text("module", module)?;
            }
            json.address("start", *start)?;
            json.number("size", size.0 as u64)
        }),
        Place::Stack {
            task,
            name,
            function,
            start,
            variables,
        } => json.nested("frame", |json| {
            json.number("task", *task)?;
            json.text("name", name)?;
            json.address("function", *function)?;
            json.address("start", *start)?;
            json.text("variables", variables)
        }),
    }
}

fn shadow(json: &mut Json<'_>, rows: &ShadowRows) -> fmt::Result {
    let known = (0..ShadowRows::ROWS).filter_map(|k| Some((rows.row_address(k), rows.rows[k]?)));
    json.list("shadow", known, |out, (address, row)| {
        Json::object(out, |json| {
            json.address("address", address)?;
            hex(json.key("bytes")?, &row)
        })
    })
}

pub(super) fn write(
    report: &Report<'_>,
    symbols: &dyn Symbols,
    out: &mut dyn Write,
) -> fmt::Result {
    Json::object(out, |json| {
        bug(json, &report.bug)?;
        let by = &report.by;
        json.nested("by", |json| {
            json.number("task", by.task)?;
            json.text("name", by.name)?;
            json.number("cpu", by.cpu.0)?;
            json.number("time_ns", by.now.0)?;
            stack(json, "stack", by.stack, symbols)
        })?;
        place(json, &report.place, symbols)?;
        if let Some(rows) = report.shadow {
            shadow(json, rows)?;
        }
        if !report.dumps.is_empty() {
            json.list("dumps", report.dumps, |out, dump| {
                Json::object(out, |json| {
                    json.text("label", dump.label)?;
                    json.address("address", dump.address)?;
                    hex(json.key("bytes")?, dump.bytes)
                })
            })?;
        }
        if !report.fixes.is_empty() {
            json.list("fixes", report.fixes, |out, fix| string(out, fix))?;
        }
        if !report.notes.is_empty() {
            json.list("notes", report.notes, |out, note| string(out, note))?;
        }
        Ok(())
    })
}
