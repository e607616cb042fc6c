//! Shadow stacks: who may make an entry with Write=0 and Dirty=1, and the check when one goes away.
//!
//! On an x86-64 processor with the feature such a leaf *is* a page of a shadow stack: CALL pushes there and RET believes what it
//! finds. Invariant: safe code can not make one outside a shadow-stack mapping. [`ShadowStack`] is the only key to
//! [`Marks::SHADOW`], and only the owner of the mapping can make it, by an `unsafe` call. Everything else that could give the pattern
//! (write-protecting a dirty leaf, marking a read-only one dirty) keeps the news in a software bit, saved-dirty.
//!
//! Marks can not be written into a leaf:
//! ```compile_fail,E0616
//! use flagstone_pgtable::format::{Access, Leaf, Marks};
//! let mut leaf = Leaf::kernel(flagstone_types::PhysAddr(0), Access::READ);
//! leaf.marks = Marks::SHADOW | Marks::DIRTY;
//! ```
//! nor can a leaf be put together from its parts:
//! ```compile_fail,E0451
//! use flagstone_pgtable::format::{Access, Leaf, Marks, Memory};
//! let leaf = Leaf {
//!     at: flagstone_types::PhysAddr(0),
//!     memory: Memory::WriteBack,
//!     key: 0,
//!     access: Access::READ,
//!     marks: Marks::SHADOW | Marks::DIRTY,
//!     granted: true,
//! };
//! ```
//! The token is not to be had without `unsafe`:
//! ```compile_fail,E0133
//! use flagstone_pgtable::shadow::{Mapping, ShadowStack};
//! let vma = ();
//! let kind = Mapping::ShadowStack(ShadowStack::of_mapping(&vma));
//! ```
//! ```compile_fail,E0423
//! use flagstone_pgtable::shadow::{Mapping, ShadowStack};
//! let kind = Mapping::ShadowStack(ShadowStack(core::marker::PhantomData));
//! ```
//! It does not outlive the mapping:
//! ```compile_fail,E0597
//! use flagstone_pgtable::shadow::ShadowStack;
//! let token = {
//!     let vma = ();
//!     // SAFETY: none; the borrow checker refuses this.
//!     unsafe { ShadowStack::of_mapping(&vma) }
//! };
//! drop(token);
//! ```
//! A writable leaf can not be had without saying of which kind:
//! ```compile_fail,E0061
//! use flagstone_pgtable::format::{Access, Leaf};
//! let leaf = Leaf::kernel(flagstone_types::PhysAddr(0), Access::READ).mkwrite();
//! ```
//! And the granting that the crate itself uses for entries that stay where they are is not to be reached:
//! ```compile_fail,E0624
//! use flagstone_pgtable::format::{Access, Leaf};
//! let leaf = Leaf::kernel(flagstone_types::PhysAddr(0), Access::READ).found_in_place();
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
    if !F::SHADOW || !caps.shadow_stack || in_shadow_stack {
        return Ok(());
    }
    check::<F>(level, raw)
}

#[inline(always)]
fn check<F: Format>(level: Level, raw: u64) -> Result<(), StrayShadow> {
    match F::decode(level, raw) {
        Entry::Leaf(leaf) if leaf.marks().contains(Marks::SHADOW) => {
            Err(StrayShadow { level, raw })
        }
        _ => Ok(()),
    }
}
