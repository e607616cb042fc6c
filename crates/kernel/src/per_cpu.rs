//! The area of a CPU: what belongs to it alone, found through the GS base (P1 to P4).
//!
//! ```text
//!   GS base ─► Area (own address, ids, counters, lock list, descriptors) │ stacks of arrays, at the same offsets on every CPU
//! ```

use core::alloc::Layout;
use core::arch::asm;
use core::cell::UnsafeCell;
use core::mem::offset_of;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::descriptors::Descriptors;
use crate::kernel::Kernel;
use crate::shootdown::Mailbox;
use flagstone_host::held_locks::HeldLocks;
use flagstone_host::{Event, PageMap};
use flagstone_types::{AllocError, CpuId};

/// CPUs that are used at most.
pub(crate) const MOST_CPUS: usize = 64;
/// Bytes of an area that are for stacks of arrays.
pub(crate) const STACK_BYTES: usize = 512 << 10;
/// Where they begin.
pub(crate) const STACKS_AT: usize = size_of::<Area>().next_multiple_of(4096);

/// What belongs to one CPU.
#[repr(C, align(64))]
pub(crate) struct Area {
    this: AtomicPtr<Area>,
    pub(crate) id: CpuId,
    pub(crate) apic_id: u8,
    pub(crate) online: AtomicBool,
    /// Why interrupts are blocked (I2).
    pub(crate) irq_depth: AtomicU32,
    /// 1 while an interrupt is handled.
    pub(crate) interrupts: AtomicU32,
    /// Read-side sections (G2).
    pub(crate) read_depth: AtomicU32,
    /// Whether deferred calls run here.
    pub(crate) in_deferred: AtomicBool,
    /// The newest epoch that this CPU has been quiet in (G1).
    pub(crate) quiet: AtomicU64,
    /// The newest barrier that this CPU has passed (B1).
    pub(crate) barrier: AtomicU64,
    /// Timer interrupts.
    pub(crate) ticks: AtomicU64,
    /// Sections that an interrupt sent back to their start (S2).
    pub(crate) rewinds: AtomicU64,
    /// The stack pointer to go back to from user mode (F4).
    pub(crate) user_return: AtomicU64,
    pub(crate) mailbox: Mailbox,
    /// The descriptors of the entry area (E1), in the direct map.
    pub(crate) entry: AtomicPtr<Descriptors>,
    pub(crate) counts: [AtomicU64; Event::COUNT],
    pub(crate) held: UnsafeCell<HeldLocks<16>>,
    pub(crate) descriptors: UnsafeCell<Descriptors>,
}

// SAFETY: P3: `held` and `descriptors` are touched by their own CPU only, with interrupts blocked; the rest is atomic.
unsafe impl Sync for Area {}

static AREAS: [AtomicPtr<Area>; MOST_CPUS] = [const { AtomicPtr::new(null_mut()) }; MOST_CPUS];
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Bytes of the boot pool that one CPU needs.
pub(crate) const AREA_BYTES: usize = STACKS_AT + STACK_BYTES;

impl Area {
    /// Makes the area of the next CPU. Called by the first CPU before it starts others (P4).
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`]; [`AllocError::TooLarge`] if there are too many CPUs.
    pub(crate) fn make(apic_id: u8) -> Result<&'static Self, AllocError> {
        let id = COUNT.load(Ordering::Relaxed);
        if id as usize == MOST_CPUS {
            return Err(AllocError::TooLarge);
        }
        let layout =
            Layout::from_size_align(AREA_BYTES, 4096).map_err(|_| AllocError::InvalidArgument)?;
        let place = Kernel.boot_alloc(layout)?.cast::<Self>();
        // SAFETY: M3: zeroed memory that is ours for ever, larger than an area and aligned.
        let area = unsafe {
            place.write(Self {
                this: AtomicPtr::new(place.as_ptr()),
                id: CpuId(id),
                apic_id,
                online: AtomicBool::new(false),
                // A CPU starts with interrupts blocked.
                irq_depth: AtomicU32::new(1),
                interrupts: AtomicU32::new(0),
                read_depth: AtomicU32::new(0),
                in_deferred: AtomicBool::new(false),
                quiet: AtomicU64::new(0),
                barrier: AtomicU64::new(0),
                ticks: AtomicU64::new(0),
                rewinds: AtomicU64::new(0),
                user_return: AtomicU64::new(0),
                mailbox: Mailbox::default(),
                entry: AtomicPtr::new(null_mut()),
                counts: [const { AtomicU64::new(0) }; Event::COUNT],
                held: UnsafeCell::new(HeldLocks::new()),
                descriptors: UnsafeCell::new(Descriptors::new()),
            });
            place.as_ref()
        };
        AREAS[id as usize].store(place.as_ptr(), Ordering::Relaxed);
        COUNT.store(id + 1, Ordering::Release);
        Ok(area)
    }

    /// The area of the CPU that this runs on.
    #[inline]
    pub(crate) fn current() -> &'static Self {
        let this: *const Self;
        // SAFETY: P1: the first word at the GS base is the area's address, constant for what runs here (P2).
        unsafe {
            asm!("mov {}, gs:[0]", out(reg) this, options(pure, readonly, nostack, preserves_flags));
            &*this
        }
    }

    /// How many areas there are.
    pub(crate) fn count() -> u32 {
        COUNT.load(Ordering::Acquire)
    }

    /// The area of a CPU, `None` beyond the last.
    #[inline]
    pub(crate) fn of(cpu: CpuId) -> Option<&'static Self> {
        let area = AREAS.get(cpu.index())?.load(Ordering::Relaxed);
        // SAFETY: P1: not null, so made and never freed.
        unsafe { area.as_ref() }
    }

    /// Every area.
    pub(crate) fn all() -> impl Iterator<Item = &'static Self> {
        (0..Self::count()).filter_map(|cpu| Self::of(CpuId(cpu)))
    }

    /// Every area of a running CPU but this one's.
    pub(crate) fn others() -> impl Iterator<Item = &'static Self> {
        let this = Self::current();
        Self::all()
            .filter(move |area| !core::ptr::eq(*area, this) && area.online.load(Ordering::Acquire))
    }

    /// The address at `offset` bytes of the area.
    pub(crate) fn at(&self, offset: usize) -> NonNull<u8> {
        debug_assert!(offset < AREA_BYTES);
        let start = self.this.load(Ordering::Relaxed).cast::<u8>();
        // SAFETY: P1: an area has so many bytes, and its pointer is that of all of them.
        unsafe { NonNull::new_unchecked(start.add(offset)) }
    }

    /// Adds `n` to an event's count of this CPU.
    #[inline]
    pub(crate) fn count_event(event: Event, n: u64) {
        let at = offset_of!(Self, counts) + event.index() * 8;
        // SAFETY: P1, P3: the count is in the area, and one instruction changes it.
        unsafe { asm!("add gs:[{}], {}", in(reg) at, in(reg) n, options(nostack)) };
    }
}
