//! Leaves: what an entry that maps memory says, and who may say it.
//!
//! A [`Leaf`] is made by [`Leaf::new`] or comes out of [`super::Format::decode`]. Invariant: [`Marks::SHADOW`] gets into
//! a leaf that can be encoded only through [`Leaf::mkwrite`] with a [`ShadowStack`](crate::shadow::ShadowStack) token, which
//! safe code can not make. A decoded leaf tells of the mark and yet can not be encoded with it.

use crate::shadow::Mapping;
use core::hash::{Hash, Hasher};
use flagstone_types::PhysAddr;

bitflags::bitflags! {
    /// What may be done with a page.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u8 {
        /// Loads.
        const READ = 1;
        /// Stores. Implies loads on every architecture here.
        const WRITE = 2;
        /// Instruction fetches.
        const EXEC = 4;
        /// By user code; without it by the kernel only.
        const USER = 8;
    }
}

bitflags::bitflags! {
    /// What is noted of a page in its entry.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Marks: u16 {
        /// Was accessed since this was cleared.
        const YOUNG = 1;
        /// Was written since this was cleared.
        const DIRTY = 2;
        /// Was written since a tracker cleared this.
        const SOFT_DIRTY = 4;
        /// Write-protected on behalf of a userfaultfd.
        const UFFD_WP = 8;
        /// Maps a frame that is nobody's page: not counted, not owned.
        const SPECIAL = 16;
        /// The same in every address space.
        const GLOBAL = 32;
        /// The page of a shadow stack: Write=0 and Dirty=1 on x86-64. Always with `DIRTY`, never with [`Access::WRITE`].
        const SHADOW = 64;
        /// There and owned, but no access is allowed (PROT_NONE, or a hinting fault).
        const NO_ACCESS = 128;
    }
}

/// How the processor caches what is behind an entry. The numbers are part of the formats: see `FORMATS.md`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Memory {
    /// Ordinary memory.
    #[default]
    WriteBack = 0,
    /// Stores are collected, loads are not cached (frame buffers).
    WriteCombining = 1,
    /// Nothing is cached.
    Uncached = 2,
    /// Registers of a device: in order, never speculated.
    Device = 3,
    /// Loads are cached, stores go to memory at once.
    WriteThrough = 4,
}

/// A leaf: what a present entry that maps memory says.
#[derive(Clone, Copy, Debug)]
pub struct Leaf {
    /// The first byte; aligned to the size of the entry's level.
    pub at: PhysAddr,
    /// How it is cached.
    pub memory: Memory,
    /// Protection key, where the architecture has them; else 0.
    pub key: u8,
    access: Access,
    marks: Marks,
    /// Whether `SHADOW` in `marks` was granted by a token. Not part of what the leaf says.
    granted: bool,
}

impl Leaf {
    /// A leaf of ordinary memory without marks. [`Access::WRITE`] in `access` becomes what writing means in a mapping of that kind, and brings [`Access::READ`].
    #[inline(always)]
    #[must_use]
    pub const fn new(at: PhysAddr, access: Access, kind: Mapping<'_>) -> Self {
        let leaf = Self {
            at,
            memory: Memory::WriteBack,
            key: 0,
            access: access.difference(Access::WRITE),
            marks: Marks::empty(),
            granted: false,
        };
        if access.contains(Access::WRITE) {
            leaf.mkwrite(kind)
        } else {
            leaf
        }
    }

    /// As [`Leaf::new`], of a kernel mapping: those have no VMA.
    #[inline(always)]
    #[must_use]
    pub const fn kernel(at: PhysAddr, access: Access) -> Self {
        Self::new(at, access, Mapping::Ordinary)
    }

    /// What a format read: tells of `SHADOW`, but grants nothing.
    #[inline(always)]
    pub(super) const fn decoded(
        at: PhysAddr,
        access: Access,
        marks: Marks,
        memory: Memory,
        key: u8,
    ) -> Self {
        Self {
            at,
            memory,
            key,
            access,
            marks,
            granted: false,
        }
    }

    /// The leaf with what it says of `SHADOW` taken as granted: it was decoded from an entry that stays in the same mapping,
    /// so that the token was shown when that entry was made.
    #[inline(always)]
    #[must_use]
    pub(crate) const fn found_in_place(mut self) -> Self {
        self.granted = true;
        self
    }

    /// What may be done.
    #[inline(always)]
    #[must_use]
    pub const fn access(&self) -> Access {
        self.access
    }

    /// What is noted.
    #[inline(always)]
    #[must_use]
    pub const fn marks(&self) -> Marks {
        self.marks
    }

    /// Whether somebody may write it: by stores, or as a shadow stack.
    #[inline(always)]
    #[must_use]
    pub const fn is_writable(&self) -> bool {
        self.access.contains(Access::WRITE) || self.marks.contains(Marks::SHADOW)
    }

    /// Whether the leaf says `SHADOW` and may be encoded so.
    #[inline(always)]
    #[must_use]
    pub const fn is_granted_shadow(&self) -> bool {
        self.granted && self.marks.contains(Marks::SHADOW)
    }

    /// Writable, as writing is meant in a mapping of that kind: by stores, or by CALL and its like.
    #[inline(always)]
    #[must_use]
    pub const fn mkwrite(mut self, kind: Mapping<'_>) -> Self {
        match kind {
            Mapping::Ordinary => return self.mkwrite_kernel(),
            Mapping::ShadowStack(_) => {
                self.access = self.access.union(Access::READ).difference(Access::WRITE);
                self.marks = self.marks.union(Marks::SHADOW).union(Marks::DIRTY);
                self.granted = true;
            }
        }
        self
    }

    /// Writable by stores: for kernel mappings, which have no VMA and no kind.
    #[inline(always)]
    #[must_use]
    pub const fn mkwrite_kernel(mut self) -> Self {
        self.access = self.access.union(Access::READ).union(Access::WRITE);
        self.marks = self.marks.difference(Marks::SHADOW);
        self
    }

    /// Not writable by anybody. A dirty leaf stays dirty.
    #[inline(always)]
    #[must_use]
    pub const fn wrprotect(mut self) -> Self {
        self.access = self.access.difference(Access::WRITE);
        self.marks = self.marks.difference(Marks::SHADOW);
        self
    }

    /// With other access for those who only read: [`Access::WRITE`] stays as it is, whatever `access` says of it.
    #[inline(always)]
    #[must_use]
    pub const fn readable(mut self, access: Access) -> Self {
        self.access = access
            .difference(Access::WRITE)
            .union(self.access.intersection(Access::WRITE));
        self
    }

    /// With more marks. `SHADOW` is not among those that can be set.
    #[inline(always)]
    #[must_use]
    pub const fn mark(mut self, marks: Marks) -> Self {
        self.marks = self.marks.union(marks.difference(Marks::SHADOW));
        self
    }

    /// With fewer marks. A leaf that is not dirty is no shadow stack's: clearing `DIRTY` clears `SHADOW`.
    #[inline(always)]
    #[must_use]
    pub const fn unmark(mut self, marks: Marks) -> Self {
        self.marks = self.marks.difference(marks);
        if marks.contains(Marks::DIRTY) {
            self.marks = self.marks.difference(Marks::SHADOW);
        }
        self
    }

    /// Cached in another way.
    #[inline(always)]
    #[must_use]
    pub const fn cached(mut self, memory: Memory) -> Self {
        self.memory = memory;
        self
    }

    /// With a protection key.
    #[inline(always)]
    #[must_use]
    pub const fn keyed(mut self, key: u8) -> Self {
        self.key = key;
        self
    }

    /// Of another place in memory.
    #[inline(always)]
    #[must_use]
    pub const fn moved(mut self, at: PhysAddr) -> Self {
        self.at = at;
        self
    }
}

impl PartialEq for Leaf {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
            && self.memory == other.memory
            && self.key == other.key
            && self.access == other.access
            && self.marks == other.marks
    }
}

impl Eq for Leaf {}

impl Hash for Leaf {
    fn hash<S: Hasher>(&self, state: &mut S) {
        (self.at, self.memory, self.key, self.access, self.marks).hash(state);
    }
}
