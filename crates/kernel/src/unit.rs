//! The memory management unit of the CPU (U1 to U5): words of tables, the active root, invalidation.
//!
//! Tables are read and written through the direct map, which is the memory that the unit walks. There are no process-context
//! identifiers, so a change of the root leaves nothing behind but global translations.

use core::arch::asm;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::direct;
use crate::features::{self, Features};
use crate::kernel::Kernel;
use flagstone_host::{Asid, Invalidate, Mmu, MmuCaps, TableMemory};
use flagstone_pgtable::cr3::Cr3;
use flagstone_pgtable::format::X86_64;
use flagstone_types::PhysAddr;
use x86_64::registers::control::{Cr4, Cr4Flags};
use x86_64::registers::model_specific::Msr;

/// Pages that are invalidated one by one; beyond, everything at once is cheaper than the walks that it makes necessary.
pub(crate) const MOST_STEPS: usize = 33;

/// The word of an entry.
///
/// # Safety
/// U1: `at` is aligned and in a page table, or in memory that is the caller's, for as long as the result is used.
#[inline(always)]
unsafe fn word<'a>(at: PhysAddr) -> &'a AtomicU64 {
    debug_assert!(at.0.is_multiple_of(8));
    // SAFETY: M1: mapped at the direct map; nobody accesses entries but atomically (U1).
    unsafe { direct::pointer(at.0).cast::<AtomicU64>().as_ref() }
}

/// Half of an entry.
///
/// # Safety
/// As [`word`].
#[inline(always)]
unsafe fn half<'a>(at: PhysAddr) -> &'a AtomicU32 {
    debug_assert!(at.0.is_multiple_of(4));
    // SAFETY: as `word`.
    unsafe { direct::pointer(at.0).cast::<AtomicU32>().as_ref() }
}

// SAFETY: host T1: the direct map is the memory that the unit walks (M1), and each access is one of its width; host T2:
// instructions with a lock prefix, or an exchange, are atomic against the unit's updates, which are locked as well.
unsafe impl TableMemory for Kernel {
    #[inline(always)]
    unsafe fn load_entry(&self, at: PhysAddr) -> u64 {
        // SAFETY: the caller's promise is U1.
        unsafe { word(at).load(Ordering::Acquire) }
    }

    #[inline(always)]
    unsafe fn store_entry(&self, at: PhysAddr, value: u64) {
        // SAFETY: the caller's promise is U1.
        unsafe { word(at).store(value, Ordering::Release) }
    }

    #[inline(always)]
    unsafe fn exchange_entry(&self, at: PhysAddr, value: u64) -> u64 {
        // SAFETY: the caller's promise is U1.
        unsafe { word(at).swap(value, Ordering::AcqRel) }
    }

    #[inline(always)]
    unsafe fn compare_exchange_entry(&self, at: PhysAddr, old: u64, new: u64) -> Result<(), u64> {
        // SAFETY: the caller's promise is U1.
        unsafe { word(at) }
            .compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
    }

    #[inline(always)]
    unsafe fn load_half(&self, at: PhysAddr) -> u32 {
        // SAFETY: the caller's promise is U1.
        unsafe { half(at).load(Ordering::Acquire) }
    }

    #[inline(always)]
    unsafe fn store_half(&self, at: PhysAddr, value: u32) {
        // SAFETY: the caller's promise is U1.
        unsafe { half(at).store(value, Ordering::Release) }
    }
}

/// The root that this CPU translates by.
pub(crate) fn root() -> PhysAddr {
    let value: u64;
    // SAFETY: reading CR3 has no effect.
    unsafe { asm!("mov {}, cr3", out(reg) value, options(nomem, nostack, preserves_flags)) };
    Cr3(value).root(u32::from(features::phys_bits()))
}

/// Sets CR3, which drops every translation but the global ones, and every cached table.
///
/// # Safety
/// U2: the table at `root` maps what runs here, as it is mapped now.
unsafe fn load_root(root: PhysAddr) {
    debug_assert_eq!(root.0 & !Cr3::ADDRESS, 0);
    // SAFETY: the caller's promise. The compiler moves no access across.
    unsafe { asm!("mov cr3, {}", in(reg) root.0, options(nostack, preserves_flags)) };
}

/// Levels of the running tables: 4 or 5.
pub(crate) fn levels() -> u8 {
    if Cr4::read().contains(Cr4Flags::L5_PAGING) {
        5
    } else {
        4
    }
}

/// Sets up this CPU's unit: memory types as formats name them, and what keeps the kernel from using user memory by mistake (U4).
pub(crate) fn set_up() {
    /// `IA32_PAT`.
    const MEMORY_TYPES: u32 = 0x277;
    // SAFETY: every CPU with 64 bits has it; the types of the indices in use, 0 and 3, stay.
    unsafe { Msr::new(MEMORY_TYPES).write(X86_64::PAT) };
    let features = features::features();
    let mut flags = Cr4::read();
    flags.set(
        Cr4Flags::SUPERVISOR_MODE_EXECUTION_PROTECTION,
        features.contains(Features::SMEP),
    );
    flags.set(
        Cr4Flags::SUPERVISOR_MODE_ACCESS_PREVENTION,
        features.contains(Features::SMAP),
    );
    // SAFETY: flags that the CPU has; no page that runs here or that is used is open to user mode.
    unsafe { Cr4::write(flags) };
}

/// How many pages are to be invalidated one by one; `None` if everything is.
pub(crate) fn steps(what: &Invalidate) -> Option<usize> {
    // The end of the address space is no multiple of anything, and its beginning is all that the stride of everything says.
    let steps = what.steps();
    (what.end.0 != usize::MAX && (1..=MOST_STEPS).contains(&steps)).then_some(steps)
}

/// Drops one page's translation, global or not, and every cached table (Intel's manual, volume 3, 4.10.4.1).
#[inline]
fn drop_page(address: usize) {
    // SAFETY: U3: losing a translation changes nothing but time. The compiler moves no access across.
    unsafe { asm!("invlpg [{}]", in(reg) address, options(nostack, preserves_flags)) };
}

/// Drops every translation, global ones too: changing CR4.PGE does.
fn drop_all() {
    let flags = Cr4::read();
    // SAFETY: U3; the flag is as it was before in the end, and what is mapped does not depend on it.
    unsafe {
        Cr4::write(flags ^ Cr4Flags::PAGE_GLOBAL);
        Cr4::write(flags);
    }
}

// SAFETY: host T5 by U3.
unsafe impl Mmu for Kernel {
    fn capabilities(&self) -> MmuCaps {
        let features = features::features();
        MmuCaps {
            accessed: true,
            accessed_table: true,
            dirty: true,
            stray_dirty: features.contains(Features::STRAY_DIRTY),
            huge_pmd: true,
            huge_pud: features.contains(Features::GIB_PAGES),
            // CR4.CET is off.
            shadow_stack: false,
            asid_bits: 0,
            broadcast: false,
            paravirtual: false,
            phys_bits: features::phys_bits(),
        }
    }

    unsafe fn activate(&self, root: PhysAddr, _asid: Asid, fresh: bool) {
        if fresh || root != self::root() {
            // SAFETY: U2 by the caller's promise.
            unsafe { load_root(root) };
        }
    }

    fn invalidate(&self, what: &Invalidate) {
        if let Some(steps) = steps(what) {
            for step in 0..steps {
                drop_page(what.start.0 + (step << what.stride));
            }
        } else if what.asid.is_some() {
            // SAFETY: U2: it is the active root already.
            unsafe { load_root(root()) };
        } else {
            drop_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flagstone_types::VirtAddr;

    fn range(start: usize, end: usize, stride: u8) -> Invalidate {
        Invalidate {
            asid: None,
            start: VirtAddr(start),
            end: VirtAddr(end),
            stride,
            tables: false,
        }
    }

    #[test]
    fn short_ranges_go_page_by_page_and_all_others_at_once() {
        assert_eq!(steps(&range(0x1000, 0x2000, 12)), Some(1));
        assert_eq!(steps(&range(0, 33 << 12, 12)), Some(33));
        assert_eq!(steps(&range(0, 34 << 12, 12)), None);
        assert_eq!(steps(&range(0, 4 << 21, 21)), Some(4));
        assert_eq!(steps(&range(0x1000, 0x1000, 12)), None);
        assert_eq!(steps(&range(usize::MAX - 4095, usize::MAX, 12)), None);
        assert_eq!(steps(&Invalidate::all(None)), None);
        assert_eq!(steps(&Invalidate::all(Some(Asid(1)))), None);
    }
}
