//! Reports as text, in the wording and the order of Linux.

use core::fmt;
use flagstone_types::Nanos;

use super::bug::{Access, AccessKind, BadFree, CopyDirection, Damage, MemoryShortage, UserCopy};
use super::place::{Event, Object, ObjectState, Place};
use super::symbols::{Frame, Symbols};
use super::{Bug, Fix, Report};
use crate::Stack;

/// A report with what its return addresses are called.
#[derive(Clone, Copy)]
pub struct Text<'r> {
    pub(super) report: &'r Report<'r>,
    pub(super) symbols: &'r dyn Symbols,
}

impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.report)
    }
}

/// The lines around a report of KASAN.
const KASAN_RULE: &str = "==================================================================";
/// The lines around the title of a report of SLUB.
const DEBUG_RULE: &str =
    "=============================================================================";
const DEBUG_SECOND_RULE: &str =
    "-----------------------------------------------------------------------------";

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.report.bug {
            Bug::Access(access) => self.kasan(f, |f| self.access(f, access)),
            Bug::Free(free) => self.kasan(f, |f| self.bad_free(f, free)),
            Bug::Damage(damage) => self.damage(f, damage),
            Bug::UserCopy(copy) => self.user_copy(f, copy),
            Bug::NoMemory(shortage) => self.no_memory(f, shortage),
        }
    }
}

impl<'r> Text<'r> {
    fn frame(&self, pc: usize) -> Frame<'r> {
        Frame {
            pc,
            symbols: self.symbols,
        }
    }

    fn stack(&self, f: &mut fmt::Formatter<'_>, stack: Stack<'_>) -> fmt::Result {
        if stack.is_empty() {
            return writeln!(f, "(stack is not available)");
        }
        stack
            .iter()
            .try_for_each(|pc| writeln!(f, " {}", self.frame(pc)))
    }

    fn kasan(
        &self,
        f: &mut fmt::Formatter<'_>,
        what: impl FnOnce(&mut fmt::Formatter<'_>) -> fmt::Result,
    ) -> fmt::Result {
        writeln!(f, "{KASAN_RULE}")?;
        write!(f, "BUG: KASAN: {}", self.report.bug.name())?;
        self.in_function(f)?;
        what(f)?;
        writeln!(f)?;
        self.who(f)?;
        self.place(f)?;
        self.dumps(f)?;
        if let Some(rows) = self.report.shadow {
            write!(f, "\nMemory state around the buggy address:\n{rows}")?;
        }
        self.tail(f, "")?;
        writeln!(f, "{KASAN_RULE}")
    }

    fn in_function(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.report.by.stack.iter().next() {
            Some(pc) => writeln!(f, " in {}", self.frame(pc)),
            None => writeln!(f),
        }
    }

    fn by_task(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            " by task {}/{}",
            self.report.by.name, self.report.by.task
        )
    }

    fn access(&self, f: &mut fmt::Formatter<'_>, access: &Access) -> fmt::Result {
        let kind = match access.kind {
            AccessKind::Read => "Read",
            AccessKind::Write => "Write",
        };
        write!(
            f,
            "{kind} of size {} at addr {:016x}",
            access.size.0, access.address
        )?;
        self.by_task(f)
    }

    fn bad_free(&self, f: &mut fmt::Formatter<'_>, free: &BadFree) -> fmt::Result {
        write!(f, "Free of addr {:016x}", free.address)?;
        self.by_task(f)
    }

    fn who(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = &self.report.by;
        write!(f, "CPU: {} PID: {}", by.cpu, by.task)?;
        if !by.name.is_empty() {
            write!(f, " Comm: {}", by.name)?;
        }
        writeln!(f)?;
        writeln!(f, "Call Trace:")?;
        self.stack(f, by.stack)
    }

    fn place(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.report.bug.address().unwrap_or_default();
        match &self.report.place {
            Place::Unknown => Ok(()),
            Place::Object(object) => self.object(f, object, address),
            Place::Global {
                name,
                module,
                start,
                size,
            } => {
                writeln!(f, "\nThe buggy address belongs to the variable:")?;
                write!(
                    f,
                    " {name}+{:#x}/{:#x}",
                    address.wrapping_sub(*start),
                    size.0
                )?;
                if !module.is_empty() {
                    write!(f, " [{module}]")?;
                }
                writeln!(f)
            }
            Place::Stack {
                task,
                name,
                function,
                start,
                variables,
            } => {
                writeln!(
                    f,
                    "\nThe buggy address belongs to stack of task {name}/{task}"
                )?;
                if *function == 0 {
                    return Ok(());
                }
                let offset = address.wrapping_sub(*start);
                writeln!(f, " and is located at offset {offset} in frame:")?;
                writeln!(f, " {}", self.frame(*function))?;
                write!(f, "{}", Variables(variables))
            }
        }
    }

    fn object(
        &self,
        f: &mut fmt::Formatter<'_>,
        object: &Object<'_>,
        address: usize,
    ) -> fmt::Result {
        self.event(f, "Allocated", object.allocated)?;
        self.event(f, "Freed", object.freed)?;
        writeln!(
            f,
            "\nThe buggy address belongs to the object at {:016x}",
            object.start
        )?;
        if !object.cache.is_empty() {
            writeln!(
                f,
                " which belongs to the cache {} of size {}",
                object.cache, object.size.0
            )?;
        }
        let size = object.extent().0;
        let end = object.start.wrapping_add(size);
        let (distance, side) = if address < object.start {
            (object.start - address, "to the left")
        } else if address >= end {
            (address - end, "to the right")
        } else {
            (address - object.start, "inside")
        };
        let state = match object.state {
            ObjectState::Allocated => "allocated ",
            ObjectState::Freed | ObjectState::Quarantined => "freed ",
        };
        writeln!(f, "The buggy address is located {distance} bytes {side} of")?;
        writeln!(
            f,
            " {state}{size}-byte region [{:016x}, {end:016x})",
            object.start
        )
    }

    fn event(
        &self,
        f: &mut fmt::Formatter<'_>,
        what: &str,
        event: Option<Event<'_>>,
    ) -> fmt::Result {
        let Some(event) = event else { return Ok(()) };
        writeln!(
            f,
            "\n{what} by task {} on cpu {} at {}:",
            event.task,
            event.cpu,
            Seconds(event.when)
        )?;
        self.stack(f, event.stack)
    }

    fn damage(&self, f: &mut fmt::Formatter<'_>, damage: &Damage<'_>) -> fmt::Result {
        writeln!(f, "{DEBUG_RULE}")?;
        writeln!(f, "BUG {}: {}", damage.cache, damage.problem)?;
        writeln!(f, "{DEBUG_SECOND_RULE}\n")?;
        if let Some(range) = &damage.range {
            writeln!(
                f,
                "INFO: {:#x}-{:#x} @offset={}. First byte {:#x} instead of {:#x}",
                range.from, range.to, range.offset.0, range.found, range.expected
            )?;
        }
        if let Place::Object(object) = &self.report.place {
            self.aged(f, "Allocated", object.allocated)?;
            self.aged(f, "Freed", object.freed)?;
        }
        if let Some(slab) = &damage.slab {
            writeln!(
                f,
                "INFO: Slab {:#x} objects={} used={}",
                slab.address, slab.objects, slab.used
            )?;
        }
        self.object_line(f, damage)?;
        self.dumps(f)?;
        writeln!(f)?;
        self.who(f)?;
        self.tail(f, damage.cache)
    }

    fn object_line(&self, f: &mut fmt::Formatter<'_>, damage: &Damage<'_>) -> fmt::Result {
        let Place::Object(object) = &self.report.place else {
            return writeln!(f, "INFO: Object {:#x}", damage.object);
        };
        write!(f, "INFO: Object {:#x}", object.start)?;
        if let Some(offset) = object.offset_in_slab {
            write!(f, " @offset={}", offset.0)?;
        }
        write!(f, " size={}", object.extent().0)?;
        match damage.object.wrapping_sub(object.start) {
            0 => writeln!(f),
            inside => writeln!(f, " pointer={:#x} (object+{inside:#x})", damage.object),
        }
    }

    /// An event with its age in milliseconds: a jiffy of a kernel with a thousand of them to the second.
    fn aged(
        &self,
        f: &mut fmt::Formatter<'_>,
        what: &str,
        event: Option<Event<'_>>,
    ) -> fmt::Result {
        let Some(event) = event else { return Ok(()) };
        write!(f, "INFO: {what} in ")?;
        match event.stack.iter().next() {
            Some(pc) => write!(f, "{}", self.frame(pc))?,
            None => f.write_str("unknown")?,
        }
        let age = self.report.by.now.since(event.when).0 / 1_000_000;
        writeln!(f, " age={age} cpu={} pid={}", event.cpu, event.task)?;
        event
            .stack
            .iter()
            .try_for_each(|pc| writeln!(f, " {}", self.frame(pc)))
    }

    fn dumps(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.report.dumps.is_empty() {
            writeln!(f)?;
        }
        self.report
            .dumps
            .iter()
            .try_for_each(|dump| write!(f, "{dump}"))
    }

    /// Notes, and what was done.
    fn tail(&self, f: &mut fmt::Formatter<'_>, cache: &str) -> fmt::Result {
        for note in self.report.notes {
            writeln!(f, "{note}")?;
        }
        for fix in self.report.fixes {
            if cache.is_empty() {
                writeln!(f, "FIX: {fix}")?;
            } else {
                writeln!(f, "FIX {cache}: {fix}")?;
            }
        }
        Ok(())
    }

    fn user_copy(&self, f: &mut fmt::Formatter<'_>, copy: &UserCopy<'_>) -> fmt::Result {
        let (what, from) = match copy.direction {
            CopyDirection::Exposure => ("exposure", "from"),
            CopyDirection::Overwrite => ("overwrite", "to"),
        };
        write!(
            f,
            "usercopy: Kernel memory {what} attempt detected {from} {}",
            copy.what
        )?;
        if !copy.detail.is_empty() {
            write!(f, " '{}'", copy.detail)?;
        }
        writeln!(f, " (offset {}, size {})!", copy.offset.0, copy.size.0)?;
        self.who(f)?;
        self.place(f)?;
        self.tail(f, "")
    }

    fn no_memory(&self, f: &mut fmt::Formatter<'_>, shortage: &MemoryShortage<'_>) -> fmt::Result {
        f.write_str("SLAB: Unable to allocate memory on node ")?;
        match shortage.nid {
            Some(nid) => write!(f, "{nid}")?,
            None => f.write_str("-1")?,
        }
        writeln!(f, ", gfp={:#x}({})", shortage.gfp.bits(), shortage.gfp)?;
        writeln!(
            f,
            "  cache: {}, object size: {}, buffer size: {}, order: {}",
            shortage.cache, shortage.object_size.0, shortage.size.0, shortage.order
        )?;
        for node in shortage.nodes {
            writeln!(
                f,
                "  node {}: slabs: {}/{}, objs: {}/{}, free: {}",
                node.nid,
                node.active_slabs,
                node.slabs,
                node.active_objects,
                node.objects,
                node.objects.saturating_sub(node.active_objects)
            )?;
        }
        self.who(f)?;
        self.tail(f, shortage.cache)
    }
}

impl fmt::Display for Fix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Restoring {
                what,
                from,
                bytes,
                value,
            } => write!(
                f,
                "Restoring {what} {from:#x}-{:#x}={value:#x}",
                from + bytes.saturating_sub(1)
            ),
            Self::NotFreed { object } => write!(f, "Object at {object:#x} not freed"),
            Self::Other(words) => f.write_str(words),
        }
    }
}

/// Seconds with six decimals.
struct Seconds(Nanos);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.0 / 1000;
        write!(f, "{}.{:06}s", micros / 1_000_000, micros % 1_000_000)
    }
}

/// The variables of a frame, from the compiler's description: as much of it as can be understood.
struct Variables<'a>(&'a str);

impl fmt::Display for Variables<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        let Some(count) = number(&mut rest) else {
            return Ok(());
        };
        writeln!(
            f,
            "\nThis frame has {count} object{}:",
            if count == 1 { "" } else { "s" }
        )?;
        for _ in 0..count {
            let (Some(offset), Some(size), Some(length)) =
                (number(&mut rest), number(&mut rest), number(&mut rest))
            else {
                return Ok(());
            };
            let Some((name, after)) = rest.split_at_checked(length) else {
                return Ok(());
            };
            rest = after;
            // GCC adds the line of the declaration to the name.
            let name = name.split(':').next().unwrap_or(name);
            writeln!(f, " [{offset}, {}) '{name}'", offset.saturating_add(size))?;
        }
        Ok(())
    }
}

/// Takes a number and the blanks around it off the front.
fn number(text: &mut &str) -> Option<usize> {
    let start = text.trim_start_matches(' ');
    let end = start
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(start.len());
    let value = start[..end].parse().ok()?;
    *text = start[end..].strip_prefix(' ').unwrap_or(&start[end..]);
    Some(value)
}
