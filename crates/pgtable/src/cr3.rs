//! What CR3 of an x86-64 processor says beside the root: only bits 12 to 51 are an address.

use flagstone_types::PhysAddr;

/// A value of CR3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cr3(pub u64);

impl Cr3 {
    /// The bits of the root's address. The others are the process-context id or caching bits (0–11), address masking (61, 62), and "keep
    /// translations" (63); what is left is reserved or belongs to memory encryption.
    pub const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

    /// The root that it names, on a machine whose physical addresses have `phys_bits` bits: an encryption bit above them is no part of it.
    #[must_use]
    pub const fn root(self, phys_bits: u32) -> PhysAddr {
        let fits = if phys_bits < 64 {
            (1 << phys_bits) - 1
        } else {
            u64::MAX
        };
        PhysAddr(self.0 & Self::ADDRESS & fits)
    }

    /// The root that it names with PAE: bits 5 to 31.
    #[must_use]
    pub const fn pae_root(self) -> PhysAddr {
        PhysAddr(self.0 & 0xffff_ffe0)
    }

    /// The process-context id, where those are in use.
    #[must_use]
    pub const fn pcid(self) -> u16 {
        (self.0 & 0xfff) as u16
    }

    /// Whether translations of the process-context id are kept when it is loaded.
    #[must_use]
    pub const fn keeps_translations(self) -> bool {
        self.0 >> 63 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_address_is_the_root() {
        let cr3 = Cr3(1 << 63 | 3 << 61 | 1 << 47 | 0x1234_5000 | 0x7ff);
        assert_eq!(cr3.root(46), PhysAddr(0x1234_5000));
        assert_eq!(cr3.root(52), PhysAddr(1 << 47 | 0x1234_5000));
        assert_eq!((cr3.pcid(), cr3.keeps_translations()), (0x7ff, true));
        assert_eq!(Cr3(0x1234_5678).pae_root(), PhysAddr(0x1234_5660));
    }
}
