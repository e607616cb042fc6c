//! What the CPU has, asked once by the first CPU; every other is taken to be the same.
//!
//! Numbers of CPUID's leaves and bits as in Intel's manual, volume 2, CPUID.

use core::arch::x86_64::{__cpuid, __cpuid_count};
use core::sync::atomic::{AtomicU64, Ordering};

/// The word of [`Features`]; 0 before [`detect`].
static FOUND: AtomicU64 = AtomicU64::new(0);

bitflags::bitflags! {
    /// What matters here.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Features: u64 {
        /// Pages of 1 GiB.
        const GIB_PAGES = 1;
        /// No execution in the kernel of pages that user mode may use.
        const SMEP = 2;
        /// No access either, but where the AC flag is set.
        const SMAP = 4;
        /// May set the dirty bit of an entry that is no longer present.
        const STRAY_DIRTY = 8;
        /// Tables of five levels.
        const LA57 = 16;
    }
}

/// Where the word has the bits of a physical address.
const PHYS_BITS_AT: u32 = 56;
/// What a CPU without the leaf has.
const LEAST_PHYS_BITS: u32 = 36;

/// Asks the CPU. Called by the first one before others run.
pub(crate) fn detect() {
    let bit = |word: u32, bit: u32, feature| {
        if word >> bit & 1 != 0 {
            feature
        } else {
            Features::empty()
        }
    };
    let highest = __cpuid(0);
    let mut found = Features::empty();
    if highest.eax >= 7 {
        let leaf = __cpuid_count(7, 0);
        found |= bit(leaf.ebx, 7, Features::SMEP);
        found |= bit(leaf.ebx, 20, Features::SMAP);
        found |= bit(leaf.ecx, 16, Features::LA57);
    }
    let extended = __cpuid(0x8000_0000).eax;
    if extended >= 0x8000_0001 {
        found |= bit(__cpuid(0x8000_0001).edx, 26, Features::GIB_PAGES);
    }
    let phys_bits = if extended >= 0x8000_0008 {
        __cpuid(0x8000_0008).eax & 0xff
    } else {
        LEAST_PHYS_BITS
    };
    let vendor = [highest.ebx, highest.edx, highest.ecx];
    if is_stray_dirty(vendor, __cpuid(1).eax) {
        found |= Features::STRAY_DIRTY;
    }
    let word = found.bits() | u64::from(phys_bits) << PHYS_BITS_AT;
    FOUND.store(word, Ordering::Relaxed);
}

/// Xeon Phi of the x200 series (Knights Landing and Knights Mill): family 6, models 0x57 and 0x85.
fn is_stray_dirty(vendor: [u32; 3], signature: u32) -> bool {
    const INTEL: [u32; 3] = [0x756e_6547, 0x4965_6e69, 0x6c65_746e];
    let family = signature >> 8 & 0xf;
    let model = signature >> 4 & 0xf | signature >> 12 & 0xf0;
    vendor == INTEL && family == 6 && matches!(model, 0x57 | 0x85)
}

/// What was found.
#[inline]
pub(crate) fn features() -> Features {
    Features::from_bits_truncate(FOUND.load(Ordering::Relaxed))
}

/// Bits of a physical address.
pub(crate) fn phys_bits() -> u8 {
    (FOUND.load(Ordering::Relaxed) >> PHYS_BITS_AT) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knights_landing_is_told_by_vendor_family_and_model() {
        let intel = [0x756e_6547, 0x4965_6e69, 0x6c65_746e];
        assert!(is_stray_dirty(intel, 0x0005_0671));
        assert!(is_stray_dirty(intel, 0x0008_0650));
        assert!(!is_stray_dirty(intel, 0x0005_0654));
        assert!(!is_stray_dirty([0; 3], 0x0005_0671));
    }

    #[test]
    fn what_was_found_is_kept_beside_the_address_bits() {
        detect();
        assert!((32..=52).contains(&phys_bits()));
        assert!(!features().contains(Features::STRAY_DIRTY));
    }
}
