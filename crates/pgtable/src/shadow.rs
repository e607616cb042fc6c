//! Shadow stacks: who may make an entry with Write=0 and Dirty=1, and the check when one goes away.
//!
//! On an x86-64 processor with the feature such a leaf *is* a page of a shadow stack: CALL pushes there and RET believes what it
//! finds. Invariant: safe code can not make one outside a shadow-stack mapping. [`ShadowStack`] is the only key to
//! [`Marks::SHADOW`], and only the owner of the mapping can make it, by an `unsafe` call. Everything else that could give the pattern
//! (write-protecting a dirty leaf, marking a read-only one dirty) keeps the news in a software bit, saved-dirty.
//!
//! ```
//! use flagstone_pgtable::format::{Access, Format, Leaf, Level, X86_64};
//! use flagstone_pgtable::shadow::{Mapping, ShadowStack};
//! use flagstone_types::PhysAddr;
//!
//! let vma = "what describes the mapping";
//! // SAFETY: the leaf goes nowhere.
//! let kind = Mapping::ShadowStack(unsafe { ShadowStack::of_mapping(vma) });
//! let access = Access::READ | Access::WRITE | Access::USER;
//! let leaf = Leaf::new(PhysAddr(0x5000), access, kind);
//! assert_eq!(X86_64::leaf(Level::PTE, &leaf), 0x8000_0000_0000_5045);
//! ```
//! What safe code might try instead is in `tests/format_refused`, with what the compiler says to it. Marks can not be written into a leaf:
//! ```compile_fail,E0616
//! use flagstone_pgtable::format::{Access, Leaf, Marks};
//! let mut leaf = Leaf::kernel(flagstone_types::PhysAddr(0), Access::READ);
//! leaf.marks = Marks::SHADOW | Marks::DIRTY;
//! ```
//! and the token is not to be had without `unsafe`:
//! ```compile_fail,E0133
//! use flagstone_pgtable::shadow::{Mapping, ShadowStack};
//! let vma = ();
//! let kind = Mapping::ShadowStack(ShadowStack::of_mapping(&vma));
//! ```

use crate::format::{Entry, Format, Level, Marks};
use core::fmt;
use core::marker::PhantomData;
use flagstone_host::MmuCaps;

/// Proof that a mapping is a shadow stack, for as long as its VMA is borrowed.
#[derive(Clone, Copy, Debug)]
pub struct ShadowStack<'a>(PhantomData<&'a ()>);

impl<'a> ShadowStack<'a> {
    /// The proof for the mapping that `vma` describes.
    ///
    /// # Safety
    /// `vma` is a mapping of a shadow stack. Leaves that are made with the token, and copies of them, are put into the page table only
    /// at addresses of that mapping, and are taken out or made another kind of leaf before it becomes another kind of mapping.
    #[inline(always)]
    #[must_use]
    pub const unsafe fn of_mapping<T: ?Sized>(vma: &'a T) -> Self {
        let _ = vma;
        Self(PhantomData)
    }
}

/// What kind of mapping a leaf is made writable in.
#[derive(Clone, Copy, Debug)]
pub enum Mapping<'a> {
    /// Written by stores.
    Ordinary,
    /// Written by CALL and its like only.
    ShadowStack(ShadowStack<'a>),
}

/// A shadow-stack entry outside every shadow-stack mapping: the invariant of this file is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StrayShadow {
    /// The level of the entry.
    pub level: Level,
    /// The entry.
    pub raw: u64,
}

impl fmt::Display for StrayShadow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "shadow-stack entry {:#018x} on level {} outside of a shadow-stack mapping",
            self.raw,
            self.level.get()
        )
    }
}

impl core::error::Error for StrayShadow {}

/// Looks at an entry that was taken out of a mapping that is a shadow stack, or not.
///
/// Only a processor with the feature gives the pattern its meaning; others may set the dirty bit of an entry whose write access was just
/// taken away, so there it says nothing and is not reported.
///
/// # Errors
/// The entry is a shadow stack's and the mapping is not.
#[inline(always)]
pub fn zap_checked<F: Format>(
    level: Level,
    raw: u64,
    in_shadow_stack: bool,
    caps: &MmuCaps,
) -> Result<(), StrayShadow> {
    if F::SHADOW
        && caps.shadow_stack
        && !in_shadow_stack
        && let Entry::Leaf(leaf) = F::decode(level, raw)
        && leaf.marks().contains(Marks::SHADOW)
    {
        return Err(StrayShadow { level, raw });
    }
    Ok(())
}
