//! When a change needs an invalidation, and how one is asked for.
//!
//! [`PageTable::flush`] is the only caller of [`flagstone_host::Shootdown`].

use crate::format::{Format, Level};
use crate::level::{Raw, TableLevel};
use crate::mode::Mode;
use crate::span::Span;
use crate::table::{PageTable, TableHost};
use core::sync::atomic::{Ordering, compiler_fence, fence};
use flagstone_host::{Event, Invalidate};
use flagstone_types::CpuMask;

/// More single invalidations than this and the whole address space goes instead: Linux's `tlb_single_page_flush_ceiling`.
pub const CEILING: usize = 33;

/// Whether an entry that was `old` and is `new` needs an invalidation (I1).
#[inline(always)]
pub(crate) fn is_needed<F: Format, L: TableLevel>(old: Raw<F, L>, new: Raw<F, L>) -> bool {
    F::needs_invalidation(L::LEVEL, old.bits(), new.bits())
}

impl<H: TableHost, F: Format> PageTable<'_, H, F> {
    /// The invalidation of a span whose smallest leaf reaches `2^stride` bytes.
    pub(crate) fn invalidation(&self, span: Span, stride: u32, tables: bool) -> Invalidate {
        let what = Invalidate {
            asid: self.asid(),
            start: self.addresses.address(span.start),
            end: self.addresses.end_address(span.end),
            stride: stride as u8,
            tables,
        };
        if what.steps() > CEILING {
            self.invalidation_of_all()
        } else {
            what
        }
    }

    /// The invalidation of the whole address space.
    pub(crate) fn invalidation_of_all(&self) -> Invalidate {
        Invalidate::all(self.asid())
    }

    /// The CPUs that may hold what was in the tables before the caller changed them (I3).
    fn cpus_after_changes(&self) -> CpuMask {
        fence(Ordering::SeqCst);
        self.cpus.load()
    }

    /// Invalidates on every CPU that may hold translations, and waits until that is done.
    #[inline(never)]
    pub(crate) fn flush(&self, what: &Invalidate) {
        let cpus = self.cpus_after_changes();
        if cpus.is_empty() {
            return;
        }
        self.flush_on(cpus, what);
    }

    /// Invalidates one entry that was changed, by an exchange as the last thing if `exchanged`.
    #[inline(always)]
    pub(crate) fn flush_entry<M: Mode>(&self, span: Span, level: Level, exchanged: bool) {
        let cpus = if !M::SHARED {
            // E1: none can enter.
            self.cpus.load()
        } else if exchanged && cfg!(target_arch = "x86_64") {
            // I3: there an exchange is such a fence.
            compiler_fence(Ordering::SeqCst);
            self.cpus.load()
        } else {
            self.cpus_after_changes()
        };
        if !cpus.is_empty() {
            let what = Invalidate {
                asid: self.asid(),
                start: self.addresses.address(span.start),
                end: self.addresses.end_address(span.end),
                stride: F::shift(level) as u8,
                tables: false,
            };
            self.flush_on(cpus, &what);
        }
    }

    /// Invalidates on CPUs, and waits until that is done.
    #[inline]
    fn flush_on(&self, cpus: CpuMask, what: &Invalidate) {
        self.count_flush(&cpus, what);
        let pending = self.host.shoot(&cpus, what);
        self.host.wait(pending);
    }

    fn count_flush(&self, cpus: &CpuMask, what: &Invalidate) {
        let all = what.end.0 == usize::MAX && what.start.0 == 0;
        let here = self.host.current_cpu();
        self.host.count(
            if all {
                Event::TlbFlushAll
            } else {
                Event::TlbFlushRange
            },
            1,
        );
        if cpus.contains(here) {
            let (event, n) = if all {
                (Event::NrTlbLocalFlushAll, 1)
            } else {
                (Event::NrTlbLocalFlushOne, what.steps() as u64)
            };
            self.host.count(event, n);
        }
        if cpus.has_others(here) {
            self.host.count(Event::NrTlbRemoteFlush, 1);
        }
    }

    /// Counts a gather in or out (I4).
    #[inline(always)]
    pub(crate) fn count_gather<M: Mode>(&self, change: i32) {
        let change = change.cast_unsigned();
        if M::SHARED {
            self.gathering.fetch_add(change, Ordering::SeqCst);
        } else {
            // E1: nobody else counts.
            let count = self.gathering.load(Ordering::Relaxed);
            self.gathering
                .store(count.wrapping_add(change), Ordering::Relaxed);
        }
    }

    /// Whether a CPU is in the set. Meaningful where none can enter (E1).
    pub(crate) fn is_used(&self) -> bool {
        !self.cpus.load().is_empty()
    }

    /// Whether a gather is under way that may have changed entries and not yet invalidated them (I4).
    pub(crate) fn is_gathering(&self) -> bool {
        self.gathering.load(Ordering::SeqCst) > 0
    }
}
