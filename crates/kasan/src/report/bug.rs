//! What can have happened.

use core::fmt;
use flagstone_types::{Bytes, FreeError, Gfp, Nid};

/// What happened.
#[derive(Clone, Copy, Debug)]
pub enum Bug<'a> {
    /// An access to memory that may not be accessed (KASAN).
    Access(Access),
    /// A free of what can not be freed (KASAN).
    Free(BadFree),
    /// An object or a slab that is not as it must be (SLUB's debugging).
    Damage(Damage<'a>),
    /// A copy from or to outside that spans objects (hardened user copy).
    UserCopy(UserCopy<'a>),
    /// No memory for a slab.
    NoMemory(MemoryShortage<'a>),
}

impl Bug<'_> {
    /// A short name of the kind of bug, as KASAN has them: words with dashes. JSON has it as `bug`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Access(access) => access.bug.name(),
            Self::Free(free) => free.bug.name(),
            Self::Damage(damage) => damage.problem.name(),
            Self::UserCopy(copy) => match copy.direction {
                CopyDirection::Exposure => "usercopy-exposure",
                CopyDirection::Overwrite => "usercopy-overwrite",
            },
            Self::NoMemory(_) => "out-of-memory",
        }
    }

    /// Which checker found it: the family whose wording it has. JSON has it as `family`.
    #[must_use]
    pub const fn family(&self) -> &'static str {
        match self {
            Self::Access(_) | Self::Free(_) => "kasan",
            Self::Damage(_) => "debug",
            Self::UserCopy(_) => "usercopy",
            Self::NoMemory(_) => "memory",
        }
    }

    /// The address it is about, if there is one.
    #[must_use]
    pub const fn address(&self) -> Option<usize> {
        match self {
            Self::Access(access) => Some(access.address),
            Self::Free(free) => Some(free.address),
            Self::Damage(damage) => Some(damage.object),
            Self::UserCopy(copy) => Some(copy.address),
            Self::NoMemory(_) => None,
        }
    }
}

/// Whether memory was read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// It was read.
    Read,
    /// It was written.
    Write,
}

/// An access that is not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// What is wrong with it.
    pub bug: AccessBug,
    /// Where it begins.
    pub address: usize,
    /// Its length.
    pub size: Bytes,
    /// Read or write.
    pub kind: AccessKind,
    /// The first byte that may not be accessed.
    pub first_bad: usize,
}

macro_rules! names {
    ($($(#[$doc:meta])* $variant:ident = $name:literal;)*) => {
        /// What is wrong with an access.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum AccessBug {
            $($(#[$doc])* $variant,)*
        }
        impl AccessBug {
            /// Every kind.
            pub const ALL: &[Self] = &[$(Self::$variant),*];
            /// What KASAN calls it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }
        }
    };
}

names! {
    /// Outside of an allocated object, before or behind it.
    SlabOutOfBounds = "slab-out-of-bounds";
    /// In an object that was freed.
    SlabUseAfterFree = "slab-use-after-free";
    /// In a page that was freed.
    UseAfterFree = "use-after-free";
    /// Outside of a global variable.
    GlobalOutOfBounds = "global-out-of-bounds";
    /// Outside of a variable on a stack.
    StackOutOfBounds = "stack-out-of-bounds";
    /// In a variable whose scope has ended.
    UseAfterScope = "use-after-scope";
    /// Outside of a block of `alloca`, or of an array of variable length.
    AllocaOutOfBounds = "alloca-out-of-bounds";
    /// A range that goes past the end of all addresses, as a negative size makes it.
    OutOfBounds = "out-of-bounds";
    /// Near address 0.
    NullPtrDeref = "null-ptr-deref";
    /// In memory of the user, by a kernel.
    UserMemoryAccess = "user-memory-access";
    /// At an address that no memory has.
    WildMemoryAccess = "wild-memory-access";
    /// Memory in a state that has no name.
    UnknownCrash = "unknown-crash";
}

/// A free that is not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadFree {
    /// What is wrong with it.
    pub bug: FreeBug,
    /// What was to be freed.
    pub address: usize,
}

/// What is wrong with a free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FreeBug {
    /// The object is free already.
    Double,
    /// The address is not the start of an object.
    Invalid,
}

impl FreeBug {
    /// What KASAN calls it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Double => "double-free",
            Self::Invalid => "invalid-free",
        }
    }
}

impl From<FreeError> for FreeBug {
    fn from(error: FreeError) -> Self {
        match error {
            FreeError::AlreadyFree => Self::Double,
            _ => Self::Invalid,
        }
    }
}

/// An object or a slab that is not as it must be.
#[derive(Clone, Copy, Debug)]
pub struct Damage<'a> {
    /// The cache.
    pub cache: &'a str,
    /// What is wrong.
    pub problem: Problem<'a>,
    /// The object, or the address that was taken for one.
    pub object: usize,
    /// The bytes that are not as they must be.
    pub range: Option<DamagedRange>,
    /// The slab: its address, and how many objects it has and how many of them are in use.
    pub slab: Option<SlabUse>,
}

/// Bytes that are not as they must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DamagedRange {
    /// The first wrong byte.
    pub from: usize,
    /// The last wrong byte.
    pub to: usize,
    /// How far the first one is from the start of its slab.
    pub offset: Bytes,
    /// What the first one is.
    pub found: u8,
    /// What it must be.
    pub expected: u8,
}

/// A slab, as reports print it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlabUse {
    /// Its address.
    pub address: usize,
    /// How many objects it has.
    pub objects: u32,
    /// How many of them are in use.
    pub used: u32,
}

/// What can be wrong with an object or a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem<'a> {
    /// Bytes before the object were written to.
    LeftRedzone,
    /// Bytes behind the object were written to.
    RightRedzone,
    /// Bytes behind what was asked for, within the object, were written to.
    KmallocRedzone,
    /// A free object was written to.
    Poison,
    /// Bytes that align an object's metadata were written to.
    AlignmentPadding,
    /// Bytes behind an object's metadata were written to.
    ObjectPadding,
    /// Bytes of a slab behind its last object were written to.
    SlabPadding,
    /// The link of a free object leads to no object.
    FreePointer,
    /// What was to be freed is free.
    AlreadyFree,
    /// What was to be freed is no object: it is in no slab, or not the start of an object.
    InvalidPointer,
    /// What was to be freed is in memory that this allocator does not have.
    Foreign,
    /// What was to be freed is this far inside an object.
    Interior {
        /// Distance from the object's start in bytes.
        offset: usize,
    },
    /// What was to be freed is an object of another cache.
    WrongCache {
        /// The cache it is of.
        other: &'a str,
    },
    /// It was freed with a size that it was not allocated with.
    WrongSize {
        /// The size it was freed with, in bytes.
        given: usize,
        /// The size it was allocated with.
        allocated: usize,
    },
    /// It was freed with an alignment that it was not allocated with.
    WrongAlignment {
        /// The alignment it was freed with, in bytes.
        given: usize,
    },
    /// A slab counts another number of objects in use than there are.
    WrongCount {
        /// What the slab says.
        counted: u32,
        /// How many there are.
        found: u32,
    },
    /// A cache was destroyed that has objects in use.
    ObjectsRemaining,
    /// Anything else, in words.
    Other(&'a str),
}

impl Problem<'_> {
    /// A short name, words with dashes.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::LeftRedzone => "left-redzone-overwritten",
            Self::RightRedzone => "right-redzone-overwritten",
            Self::KmallocRedzone => "kmalloc-redzone-overwritten",
            Self::Poison => "poison-overwritten",
            Self::AlignmentPadding => "alignment-padding-overwritten",
            Self::ObjectPadding => "object-padding-overwritten",
            Self::SlabPadding => "slab-padding-overwritten",
            Self::FreePointer => "freepointer-corrupt",
            Self::AlreadyFree => "double-free",
            Self::InvalidPointer => "invalid-free",
            Self::Foreign => "foreign-free",
            Self::Interior { .. } => "interior-free",
            Self::WrongCache { .. } => "wrong-cache",
            Self::WrongSize { .. } => "wrong-size",
            Self::WrongAlignment { .. } => "wrong-alignment",
            Self::WrongCount { .. } => "wrong-object-count",
            Self::ObjectsRemaining => "objects-remaining",
            Self::Other(_) => "damage",
        }
    }
}

impl fmt::Display for Problem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LeftRedzone => f.write_str("Left Redzone overwritten"),
            Self::RightRedzone => f.write_str("Right Redzone overwritten"),
            Self::KmallocRedzone => f.write_str("kmalloc Redzone overwritten"),
            Self::Poison => f.write_str("Poison overwritten"),
            Self::AlignmentPadding => f.write_str("Alignment padding overwritten"),
            Self::ObjectPadding => f.write_str("Object padding overwritten"),
            Self::SlabPadding => f.write_str("Padding overwritten"),
            Self::FreePointer => f.write_str("Freepointer corrupt"),
            Self::AlreadyFree => f.write_str("Object already free"),
            Self::InvalidPointer => f.write_str("Invalid object pointer"),
            Self::Foreign => f.write_str("Attempt to free object outside of slab"),
            Self::Interior { offset } => {
                write!(f, "Invalid object pointer, {offset} bytes inside an object")
            }
            Self::WrongCache { other } => write!(f, "Wrong slab cache, object is from {other}"),
            Self::WrongSize { given, allocated } => {
                write!(f, "Freed with size {given} instead of {allocated}")
            }
            Self::WrongAlignment { given } => {
                write!(f, "Freed with alignment {given}, which it does not have")
            }
            Self::WrongCount { counted, found } => write!(
                f,
                "Wrong object count. Counter is {counted} but counted were {found}"
            ),
            Self::ObjectsRemaining => f.write_str("Objects remaining on __kmem_cache_shutdown()"),
            Self::Other(words) => f.write_str(words),
        }
    }
}

/// Which way a copy went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyDirection {
    /// Our memory was to be read, and handed out.
    Exposure,
    /// Our memory was to be written, with what came from outside.
    Overwrite,
}

/// A copy that spans objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserCopy<'a> {
    /// Which way.
    pub direction: CopyDirection,
    /// What the memory is: "SLUB object", "process stack", "page alloc", "null address", "wrapped address".
    pub what: &'a str,
    /// Its name, for instance the cache; empty if it has none.
    pub detail: &'a str,
    /// Where our side of the copy begins.
    pub address: usize,
    /// How far that is from the start of the object.
    pub offset: Bytes,
    /// Bytes to be copied.
    pub size: Bytes,
}

/// The slabs and objects of one node of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeUse {
    /// The node.
    pub nid: Nid,
    /// Slabs with an object in use.
    pub active_slabs: usize,
    /// All slabs.
    pub slabs: usize,
    /// Objects in use.
    pub active_objects: usize,
    /// All objects.
    pub objects: usize,
}

/// A slab could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryShortage<'a> {
    /// The node asked for; any if `None`.
    pub nid: Option<Nid>,
    /// The flags of the request.
    pub gfp: Gfp,
    /// The cache.
    pub cache: &'a str,
    /// Bytes of an object as asked for.
    pub object_size: Bytes,
    /// Bytes from one object to the next.
    pub size: Bytes,
    /// The order of its slabs.
    pub order: u32,
    /// What the nodes have.
    pub nodes: &'a [NodeUse],
}
