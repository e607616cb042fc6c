//! Records of device memory in virtual memory, where a host can map them: page by page, so that records that say the
//! same thing can be one page.
//!
//! ```text
//!   records of one huge device page                 page frames
//!   ├ page 0: the head, and tails ─────────────────▶ own, written
//!   ├ page 1: tails ───────────────────────────────▶ shared, read only
//!   ├ page 2: tails ──────────────────────────┬────▶   ▲
//!   └ …                                        └────────┘
//! ```
//!
//! A *memmap page* is one page of records: those of [`PageMap::RECORDS`] frames. The host keeps the mapping and the layer above
//! owns the frames behind it. What the running machine says about sharing is [`MemmapCaps`], asked at run time.

use crate::PageMap;
use flagstone_types::{AllocError, Nid, Order, Pfn, PfnRange};

/// How memmap pages are mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemmapAccess {
    /// Read and written: the records are written through their addresses.
    Own,
    /// Read only, and several memmap pages may be one frame.
    Shared,
}

/// An architecture, as far as it decides about sharing records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemmapArch {
    /// x86-64: shares records of device memory and of hugetlb pages.
    X86_64,
    /// arm64: shares those of hugetlb pages only.
    Arm64,
    /// ppc64: shares those of device memory only, and only where the radix MMU is in use, which is known at run time: the hash MMU has
    /// its records in a mapping of its own.
    Ppc64 {
        /// Whether the radix MMU is in use.
        radix: bool,
    },
    /// riscv64: shares both.
    Riscv64,
}

/// What the running machine says about sharing records. Decides how much memory records take, never what they say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemmapCaps {
    /// The switch for device memory.
    pub share_device: bool,
    /// The switch for hugetlb pages: an architecture may have either, both or none. Device memory does not ask it.
    pub share_hugetlb: bool,
    /// What one entry of the second level maps, if this machine has such huge mappings.
    pub huge_pmd: Option<Order>,
    /// What one entry of the third level maps, if this machine has such huge mappings.
    pub huge_pud: Option<Order>,
}

impl MemmapCaps {
    /// A machine that shares nothing.
    pub const NONE: Self = Self {
        share_device: false,
        share_hugetlb: false,
        huge_pmd: None,
        huge_pud: None,
    };

    /// The answer of a machine of `arch` with pages of `2^page_shift` bytes whose unit has huge entries at the second and third level as
    /// `huge_pmd` and `huge_pud` say ([`crate::MmuCaps`]; known at run time).
    #[must_use]
    pub const fn new(arch: MemmapArch, page_shift: u32, huge_pmd: bool, huge_pud: bool) -> Self {
        let (share_device, share_hugetlb) = match arch {
            MemmapArch::X86_64 | MemmapArch::Riscv64 => (true, true),
            MemmapArch::Arm64 => (false, true),
            MemmapArch::Ppc64 { radix } => (radix, false),
        };
        // Radix tables of ppc64 map 2 MiB and 1 GiB whatever the size of a page; elsewhere a table fills a page of 8-byte entries.
        let (pmd, pud) = match arch {
            MemmapArch::Ppc64 { radix: true } => (
                21_u32.saturating_sub(page_shift),
                30_u32.saturating_sub(page_shift),
            ),
            MemmapArch::Ppc64 { radix: false } => (0, 0),
            _ => (page_shift - 3, 2 * (page_shift - 3)),
        };
        Self {
            share_device,
            share_hugetlb,
            huge_pmd: if huge_pmd && pmd > 0 {
                Order::new(pmd)
            } else {
                None
            },
            huge_pud: if huge_pud && pud > 0 {
                Order::new(pud)
            } else {
                None
            },
        }
    }

    /// Whether one entry of a page table of this machine maps `2^order` frames, more than one.
    #[must_use]
    pub fn has_leaf(&self, order: Order) -> bool {
        self.huge_pmd == Some(order) || self.huge_pud == Some(order)
    }
}

/// The mapping of device memory's records. Optional: a host whose records lie elsewhere has device memory by
/// [`PageMap::boot_ranges`] or not at all.
///
/// All ranges are whole memmap pages, that is multiples of [`PageMap::RECORDS`] frames, of device memory.
///
/// # Safety
/// An implementation promises (clauses of `MODEL.md`):
/// - **V1** [`PageMap::meta`] answers for the frames from [`VirtualMemmap::show_memmap`] to [`VirtualMemmap::hide_memmap`] and at no other time; the
///   address of the record of frame `f` is that of byte `f % RECORDS * META_BYTES` of the frame behind its memmap page, and stays
///   valid until [`VirtualMemmap::unmap_memmap`] is called;
/// - **V2** [`VirtualMemmap::device_node`] answers only for frames that are committed (M5), that `frame_ptr` answers for like any others of one
///   zone (M1), whose largest-order blocks hold nothing else (M8), and that are there as long as the machine; nobody uses them before their records are mapped.
pub unsafe trait VirtualMemmap: PageMap {
    /// What the running machine says about sharing.
    fn memmap_caps(&self) -> MemmapCaps;

    /// The node of `frames`, if all of them are memory of one device whose records this host can map, on one node.
    fn device_node(&self, frames: PfnRange) -> Option<Nid>;

    /// Maps each memmap page of `frames` to the frame `backing`. All or nothing. Nobody sees it before [`VirtualMemmap::show_memmap`].
    ///
    /// # Errors
    /// [`AllocError::Exists`] if one of them is mapped; [`AllocError::OutOfMemory`] if there is no room for the
    /// mapping. Nothing has changed then.
    ///
    /// # Safety
    /// `backing` is the caller's until the pages are unmapped, and holds valid records from now on if they are `Shared`, else from the time they are shown (V3).
    unsafe fn map_memmap(
        &self,
        frames: PfnRange,
        backing: Pfn,
        access: MemmapAccess,
    ) -> Result<(), AllocError>;

    /// What the memmap page of `frame` is mapped to.
    fn memmap_backing(&self, frame: Pfn) -> Option<Pfn>;

    /// Lets [`PageMap::meta`] answer for `frames`.
    ///
    /// # Safety
    /// All of their memmap pages are mapped (V3).
    unsafe fn show_memmap(&self, frames: PfnRange);

    /// Lets [`PageMap::meta`] answer no more. Addresses that it gave before stay valid (V1).
    fn hide_memmap(&self, frames: PfnRange);

    /// Unmaps every memmap page of `frames`. When it returns no CPU has a translation of them (as T5), so what was behind them is only the
    /// caller's. May wait for other CPUs: called with no lock of the core held and interrupts open.
    ///
    /// # Safety
    /// The frames are hidden, or were never shown, and nobody uses an address that `meta` gave for one of them (V4).
    unsafe fn unmap_memmap(&self, frames: PfnRange);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_architecture_has_its_own_two_switches() {
        let switches = |arch| {
            let caps = MemmapCaps::new(arch, 12, true, true);
            (caps.share_device, caps.share_hugetlb)
        };
        assert_eq!(switches(MemmapArch::X86_64), (true, true));
        assert_eq!(switches(MemmapArch::Riscv64), (true, true));
        assert_eq!(switches(MemmapArch::Arm64), (false, true));
        assert_eq!(switches(MemmapArch::Ppc64 { radix: true }), (true, false));
        assert_eq!(switches(MemmapArch::Ppc64 { radix: false }), (false, false));
    }

    #[test]
    fn leaves_are_those_of_the_running_machine() {
        let order = |order| Order::new(order).unwrap();
        let caps = MemmapCaps::new(MemmapArch::Ppc64 { radix: true }, 16, true, true);
        assert_eq!(order(5).bytes(16), 2 << 20);
        assert_eq!(order(14).bytes(16), 1 << 30);
        assert!(caps.has_leaf(order(5)) && caps.has_leaf(order(14)));
        assert!(!caps.has_leaf(order(13)) && !caps.has_leaf(Order::ZERO));
        let caps = MemmapCaps::new(MemmapArch::Ppc64 { radix: true }, 16, true, false);
        assert!(caps.has_leaf(order(5)) && !caps.has_leaf(order(14)));
        let caps = MemmapCaps::new(MemmapArch::X86_64, 12, true, true);
        assert!(caps.has_leaf(order(9)) && caps.has_leaf(order(18)));
        let caps = MemmapCaps::new(MemmapArch::Ppc64 { radix: false }, 16, true, true);
        assert_eq!((caps.huge_pmd, caps.huge_pud), (None, None));
    }
}
