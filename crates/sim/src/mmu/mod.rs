//! The memory management units of all CPUs, and what they make of every write to a table.
//!
//! [`Unit`] is a plain state machine: it takes no step and calls nobody. The machine around it decides when something happens.

mod cached;
mod freed;
mod guess;
mod invalidate;
mod reach;
mod settled;
mod translate;
mod walk;
mod written;

pub(crate) use cached::{Cached, CpuUnit, Link, Tag};
pub(crate) use invalidate::Flight;
pub use translate::Translation;
pub(crate) use walk::Progress;

use crate::arch::{Access, Arch, Geometry, Kind};
use crate::history::{AddressMap, History, Writer};
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU64, Ordering};
use flagstone_frames::{Page, PageKind};
use flagstone_host::MmuCaps;
use flagstone_seeded::{Hooks, Rng};
use flagstone_types::{Pfn, VirtAddr};

/// Why an access was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// No table is active on this CPU that could translate the address.
    NoRoot,
    /// The address is not one that the architecture translates.
    NotCanonical,
    /// An entry is not valid.
    NotPresent,
    /// Not allowed.
    Protection,
    /// Allowed, but the accessed bit is not set, which software must do here.
    NotAccessed,
    /// Allowed, but the dirty bit is not set, which software must do here.
    NotDirty,
    /// An entry has these bits, which may not be so.
    Reserved(u64),
    /// The translation leads to where no memory is (data accesses only).
    NoMemory,
}

/// A fault, as the CPU would take it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fault {
    /// The address.
    pub va: VirtAddr,
    /// What was tried.
    pub access: Access,
    /// Why it was refused.
    pub kind: FaultKind,
    /// The level of the entry that decided, 1 for pages; 0 if none did.
    pub level: u8,
    /// The architecture's error code: `#PF` error code, fault status code with WnR, DSISR, scause.
    pub code: u64,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "fault at {:#x}: {:?} of {:?}, level {}, code {:#x}",
            self.va.0, self.kind, self.access, self.level, self.code
        )
    }
}

impl core::error::Error for Fault {}

/// The error code that the architecture gives.
pub(crate) fn fault_code(arch: Arch, kind: FaultKind, level: u8, access: Access) -> u64 {
    let stores = access.stores();
    let fetches = access.kind == Kind::Exec;
    let flag = |on: bool, bit: u32| u64::from(on) << bit;
    match arch {
        Arch::X86_64 { .. } | Arch::X86Pae => {
            let shadow = matches!(access.kind, Kind::ShadowRead | Kind::ShadowWrite);
            let reserved = matches!(kind, FaultKind::Reserved(_));
            flag(kind == FaultKind::Protection || reserved, 0)
                | flag(stores, 1)
                | flag(access.user, 2)
                | flag(reserved, 3)
                | flag(fetches, 4)
                | flag(shadow, 6)
        }
        Arch::Arm64 { .. } => {
            let class = match kind {
                FaultKind::Reserved(_) => 0b00_0000,
                FaultKind::NotAccessed => 0b00_1000,
                FaultKind::Protection | FaultKind::NotDirty => 0b00_1100,
                _ => 0b00_0100,
            };
            class | 4u64.saturating_sub(u64::from(level)).min(3) | flag(stores, 6)
        }
        Arch::Ppc64Radix { .. } => {
            let reason = match kind {
                FaultKind::Protection => 0x0800_0000,
                FaultKind::NotAccessed | FaultKind::NotDirty => 0x0004_0000,
                FaultKind::Reserved(_) => 0x0008_0000,
                _ => 0x4000_0000,
            };
            reason | flag(stores, 25)
        }
        Arch::Riscv64 { .. } => match (fetches, stores) {
            (true, _) => 12,
            (_, false) => 13,
            (_, true) => 15,
        },
    }
}

/// What is known of a frame that is, or was, a page table.
#[derive(Debug, Default)]
struct FrameNote {
    /// The level of the tables in it, as far as a unit may reach them; 0: none does.
    level: u8,
    /// Words that were not zero at some time.
    words: Vec<u16>,
}

/// What a context knows of words of tables: what it last read or wrote.
type Seen = AddressMap<u64>;

/// What happened in all units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MmuStats {
    /// Accesses that a cached translation served.
    pub hits: u64,
    /// Accesses that walked the tables.
    pub walks: u64,
    /// Faults.
    pub faults: u64,
    /// Translations loaded without being asked for.
    pub guesses: u64,
    /// Times that the unit set an accessed or dirty bit.
    pub updates: u64,
    /// Invalidations of this CPU by itself.
    pub local_invalidations: u64,
    /// Shootdowns.
    pub shootdowns: u64,
    /// Interrupts (or broadcasts) that arrived at other CPUs.
    pub remote_invalidations: u64,
    /// Single addresses invalidated, counted once a CPU; whole address spaces count as none.
    pub invalidated_addresses: u64,
    /// Invalidations of a whole address space, or of all.
    pub full_invalidations: u64,
    /// Calls to the hypervisor.
    pub hypercalls: u64,
}

/// The units of a machine.
#[derive(Debug)]
pub(crate) struct Unit {
    pub(crate) arch: Arch,
    pub(crate) geometry: Geometry,
    pub(crate) caps: MmuCaps,
    /// Frames of the machine have `2^frame_shift` bytes.
    pub(crate) frame_shift: u32,
    pub(crate) cpus: Vec<CpuUnit>,
    /// Translations that a CPU keeps at most.
    pub(crate) capacity: usize,
    /// Of 256 host calls, how many let a unit guess.
    pub(crate) guessing: u32,
    pub(crate) kernel_root: Option<u64>,
    /// Virtual ranges whose translations own nothing, such as a direct map.
    pub(crate) exempt: Vec<(u64, u64)>,
    frames: AddressMap<FrameNote>,
    seen: Vec<Seen>,
    /// The event of each context's last write to a table that units reach.
    wrote: Vec<u64>,
    /// Whether anybody asks for accessed and dirty bits (V5, V12).
    pub(crate) use_asked: bool,
    pub(crate) history: History,
    pub(crate) flights: Vec<Flight>,
    pub(crate) next_flight: u64,
    /// Owned blocks whose metadata were asked for lately, with their pages: they may be about to be freed.
    pub(crate) touched: [(u64, u64); 8],
    pub(crate) next_touched: usize,
    pub(crate) sweep: usize,
    pub(crate) rng: Rng,
    event: u64,
    pub(crate) stats: MmuStats,
}

impl Unit {
    pub(crate) fn new(
        arch: Arch,
        caps: MmuCaps,
        frame_shift: u32,
        cpus: usize,
        capacity: usize,
        guessing: u32,
        rng: Rng,
    ) -> Self {
        Self {
            arch,
            geometry: arch.geometry(),
            caps,
            frame_shift,
            cpus: (0..cpus).map(|_| CpuUnit::default()).collect(),
            capacity,
            guessing,
            kernel_root: None,
            exempt: Vec::new(),
            frames: AddressMap::default(),
            seen: Vec::new(),
            wrote: Vec::new(),
            use_asked: true,
            history: History::default(),
            flights: Vec::new(),
            next_flight: 0,
            touched: [(u64::MAX, 1); 8],
            next_touched: 0,
            sweep: 0,
            rng,
            event: 0,
            stats: MmuStats::default(),
        }
    }

    pub(crate) fn next_event(&mut self) -> u64 {
        self.event += 1;
        self.event
    }

    fn pfn(&self, at: u64) -> u64 {
        at >> self.frame_shift
    }

    /// The place of a word in memory.
    fn place<'m>(&self, hooks: Hooks<'m>, at: u64) -> Option<&'m AtomicU64> {
        let frame = hooks.frame(Pfn(self.pfn(at) as usize))?;
        let offset = at & ((1 << self.frame_shift) - 1) & !7;
        // SAFETY: B5 of seeded's model: a frame is whole and as long as the machine, and the offset is within it and aligned.
        // M3: words of tables are reached by atomic accesses only.
        Some(unsafe { frame.add(offset as usize).cast::<AtomicU64>().as_ref() })
    }

    /// The word at `at` as the manual numbers its bits; `None` where no memory is.
    pub(crate) fn word(&self, hooks: Hooks<'_>, at: u64) -> Option<u64> {
        let word = self.place(hooks, at)?.load(Ordering::Relaxed);
        Some(self.arch.from_memory(word))
    }

    pub(crate) fn set_word(&self, hooks: Hooks<'_>, at: u64, raw: u64) {
        if let Some(place) = self.place(hooks, at) {
            place.store(self.arch.to_memory(raw), Ordering::Relaxed);
        }
    }

    /// What the frame at `at` is, by its metadata: `Absent` if nobody manages it or that can not be told.
    pub(crate) fn kind_of(&self, hooks: Hooks<'_>, at: u64) -> PageKind {
        let pfn = self.pfn(at) as usize;
        let page = |pfn: usize| {
            let record = hooks.record(Pfn(pfn))?;
            // SAFETY: M2 of the host's model: 64 bytes of metadata, aligned, zeroed at first; `Page` has that size and its head is atomic.
            Some(unsafe { record.cast::<Page>().as_ref() })
        };
        let Some(own) = page(pfn) else {
            return PageKind::Absent;
        };
        if own.kind() != PageKind::Tail {
            return own.kind();
        }
        for order in 1..=12 {
            let head = pfn >> order << order;
            if let Some(page) = page(head)
                && page.kind().is_head()
                && page.order().get() >= order
            {
                return page.kind();
            }
        }
        PageKind::Absent
    }

    /// The history of entries, a few lines each.
    pub(crate) fn describe(&self, links: &[Link]) -> String {
        let mut text = String::new();
        for link in links {
            let _ = write!(
                text,
                "\n  entry {:#x} of level {}, read as {:#x} (event {}); written:",
                link.at, link.level, link.raw, link.event
            );
            let mut any = false;
            for record in self.history.of(link.at).take(8) {
                any = true;
                let _ = write!(text, "\n    event {:>6} {record}", record.event);
            }
            if !any {
                text.push_str(" never through TableMemory");
            }
        }
        text
    }

    /// Notes what a context has learned of a word.
    pub(crate) fn note_seen(&mut self, hooks: Hooks<'_>, at: u64, value: u64) {
        let context = hooks.context();
        if self.seen.len() <= context {
            self.seen.resize(context + 1, Seen::default());
        }
        self.seen[context].insert(at, value);
    }

    /// Notes that the running context has written a word of a table that units reach.
    pub(crate) fn note_wrote(&mut self, hooks: Hooks<'_>, event: u64) {
        let context = hooks.context();
        if self.wrote.len() <= context {
            self.wrote.resize(context + 1, 0);
        }
        self.wrote[context] = event;
    }

    /// When the running context last wrote to a table that units reach, 0 if it has not.
    pub(crate) fn last_write(&self, hooks: Hooks<'_>) -> u64 {
        self.wrote.get(hooks.context()).copied().unwrap_or(0)
    }

    /// What the running context knows of a word, if it has looked at it lately.
    pub(crate) fn known(&self, hooks: Hooks<'_>, at: u64) -> Option<u64> {
        self.seen(hooks, at)
    }

    fn seen(&self, hooks: Hooks<'_>, at: u64) -> Option<u64> {
        self.seen.get(hooks.context())?.get(&at).copied()
    }

    /// What contexts know is of the last run.
    pub(crate) fn forget_contexts(&mut self) {
        self.seen.truncate(1);
        self.wrote.clear();
    }

    /// The unit of `cpu` writes a word.
    pub(crate) fn unit_write(
        &mut self,
        hooks: Hooks<'_>,
        cpu: usize,
        at: u64,
        old: u64,
        new: u64,
        by: Writer,
    ) {
        self.set_word(hooks, at, new);
        self.stats.updates += 1;
        let event = self.next_event();
        self.history.push(
            at,
            (old, new),
            (event, hooks.steps()),
            cpu as u32,
            0,
            by,
            None,
        );
    }

    /// Whether translations of `va` own nothing.
    pub(crate) fn is_exempt(&self, va: u64) -> bool {
        self.exempt
            .iter()
            .any(|(start, end)| *start <= va && va < *end)
    }
}
