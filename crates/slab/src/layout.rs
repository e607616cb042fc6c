//! How a slab is cut: its order, how many objects it has, and where the index
//! of its free objects is kept (S3).
//!
//! ```text
//!  in-object   │obj│obj│obj│obj│obj│obj│obj│obj│   index inside a free object
//!  leftover    │obj│obj│obj│obj│obj│obj│obj│ixx│   the objects leave room for it
//!  off-slab    │obj│obj│obj│obj│obj│obj│obj│   │   index is an object of a kmalloc cache
//!  dedicated   │obj│obj│obj│obj│obj│obj│  │ixxx│   room is set aside, one object fewer or so
//!  in-record   │obj│obj│obj│obj│obj│obj│obj│   │   64 objects or fewer: one bit each in the slab's record
//! ```
//!
//! The index is at the slab's end, so that objects start page-aligned. The
//! rule tries the first four in this order; alignment is settled before. Where the policy allows it, the last comes before all of
//! them: it takes no room and touches no memory of the slab. The
//! smallest order that wastes at most an eighth is taken, within the policy's bounds.

use crate::tuning::LayoutPolicy;
use flagstone_types::{AllocError, Order};

/// Where the index of free objects is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum IndexPlace {
    /// Inside the free object that is handed out last.
    InObject,
    /// In the space that the objects leave over.
    Leftover,
    /// In an object of a `kmalloc` cache.
    OffSlab,
    /// In space set aside for it.
    Dedicated,
    /// In the slab's record, as a bit for each object. The published rule does not have it.
    InRecord,
}

/// The most objects of a slab whose index is in its record.
pub(crate) const RECORD_OBJECTS: usize = 64;

impl IndexPlace {
    /// Every place: those of the rule in the order in which it tries them, then the one beyond it.
    pub const ALL: [Self; 5] = [
        Self::InObject,
        Self::Leftover,
        Self::OffSlab,
        Self::Dedicated,
        Self::InRecord,
    ];

    /// The name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::InObject => "in-object",
            Self::Leftover => "leftover",
            Self::OffSlab => "off-slab",
            Self::Dedicated => "dedicated",
            Self::InRecord => "in-record",
        }
    }
}

/// What the rule asks of an object.
#[derive(Clone, Copy, Debug)]
pub struct ObjectShape {
    /// Bytes that the user asked for.
    pub object_size: usize,
    /// Alignment in bytes, a power of two.
    pub align: usize,
    /// Whether a free object's bytes may be overwritten: no constructor, not type-safe by RCU,
    /// not zeroed on free.
    pub may_overwrite: bool,
    /// Whether the index may be kept in another cache.
    pub may_be_off_slab: bool,
    /// Whether the objects can be reclaimed, so that small slabs are better than little waste.
    pub reclaimable: bool,
}

/// A `kmalloc` class that could hold an index: its size in bytes and whether it keeps its own index off-slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexClass {
    /// Object size in bytes.
    pub size: usize,
    /// Whether that cache is itself off-slab.
    pub off_slab: bool,
}

/// The shape of a cache's slabs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Stride: bytes from one object to the next.
    pub size: u32,
    /// Alignment of objects in bytes.
    pub align: u32,
    /// Order of the page block.
    pub order: Order,
    /// Objects per slab.
    pub num: u32,
    /// Where the index is.
    pub place: IndexPlace,
    /// Bytes per index entry: 1 or 2.
    pub entry: u8,
    /// Where the index starts in the slab, in bytes; 0 if it is not at a fixed place of the slab.
    pub index_offset: u32,
    /// How many different positions of the first object there are, at least 1.
    pub colours: u32,
    /// Bytes from one position to the next.
    pub colour_step: u32,
    /// Bytes of the slab that hold neither an object nor its index, beside the policy's tail.
    pub waste: u32,
}

impl Layout {
    /// Bytes of the index.
    #[must_use]
    pub const fn index_bytes(&self) -> usize {
        self.num as usize * self.entry as usize
    }
}

/// The most objects that a slab can have: what a two-byte index can name.
pub const MAX_OBJECTS: usize = 1 << 16;

/// No order above this one is taken only to make an off-slab index worth its while: such blocks are hard to find.
const COSTLY_ORDER: u32 = 3;

/// Index entries are one byte where 256 object numbers suffice for the most objects a slab of this host can have.
#[must_use]
pub const fn entry_bytes(slab_bytes: usize, size: usize) -> usize {
    if slab_bytes / size <= 256 { 1 } else { 2 }
}

struct Cut {
    order: Order,
    num: usize,
    left: usize,
    entry: usize,
}

/// The smallest acceptable order for objects of `size` bytes. `on_slab`: whether the index takes room in the slab.
fn cut(
    size: usize,
    on_slab: bool,
    shape: &ObjectShape,
    policy: &LayoutPolicy,
    page_shift: u32,
    largest: u32,
    index_class: Option<&dyn Fn(usize) -> Option<IndexClass>>,
) -> Option<Cut> {
    let mut best: Option<Cut> = None;
    for order in policy.min_order..=largest {
        let order = Order::new(order)?;
        let Some(bytes) = order.bytes(page_shift).checked_sub(policy.tail) else {
            continue;
        };
        let entry = entry_bytes(bytes, size);
        let per_object = if on_slab { size + entry } else { size };
        let num = bytes / per_object;
        if num == 0 {
            continue;
        }
        if num > MAX_OBJECTS && best.is_some() {
            break;
        }
        // Where even the smallest allowed slab has room for more, the rest stays unused.
        let num = num.min(MAX_OBJECTS);
        if let Some(class_for) = index_class {
            let index = num * entry;
            let Some(class) = class_for(index) else {
                continue;
            };
            if order.get() > policy.max_order.max(COSTLY_ORDER) {
                break;
            }
            let saves_memory = class.size <= size / 2;
            let fits_well = index > class.size / 2;
            if class.off_slab || !saves_memory || !fits_well {
                continue;
            }
        }
        let left = bytes - num * per_object;
        best = Some(Cut {
            order,
            num,
            left,
            entry,
        });
        let enough = left * 8 <= bytes && num >= policy.min_objects as usize;
        if shape.reclaimable || order.get() >= policy.max_order || enough {
            break;
        }
    }
    best
}

/// Chooses the layout of a cache. `index_class(bytes)` names the smallest ready `kmalloc` class that
/// holds so many bytes.
///
/// # Errors
/// [`AllocError::InvalidArgument`] for a zero size or an alignment that is no power of two,
/// [`AllocError::TooLarge`] if not one object fits in the largest block.
pub fn choose(
    shape: &ObjectShape,
    policy: &LayoutPolicy,
    page_shift: u32,
    largest_order: u32,
    index_class: &dyn Fn(usize) -> Option<IndexClass>,
) -> Result<Layout, AllocError> {
    if shape.object_size == 0 || !shape.align.is_power_of_two() || shape.align > 1 << page_shift {
        return Err(AllocError::InvalidArgument);
    }
    let align = shape.align.max(core::mem::align_of::<usize>());
    let size = shape
        .object_size
        .max(core::mem::size_of::<usize>())
        .checked_next_multiple_of(align)
        .ok_or(AllocError::TooLarge)?;
    if size > 1 << (page_shift + largest_order) || size > u32::MAX as usize {
        return Err(AllocError::TooLarge);
    }
    let colour_step = align.max(policy.cache_line);
    let finish = |c: &Cut, place: IndexPlace, left: usize| {
        let bytes = c.order.bytes(page_shift) - policy.tail;
        let index = c.num * c.entry;
        let index_offset = match place {
            IndexPlace::Leftover | IndexPlace::Dedicated => (bytes - index) & !(c.entry - 1),
            IndexPlace::InObject | IndexPlace::OffSlab | IndexPlace::InRecord => 0,
        };
        Layout {
            size: size as u32,
            align: align as u32,
            order: c.order,
            num: c.num as u32,
            place,
            entry: c.entry as u8,
            index_offset: index_offset as u32,
            colours: (left / colour_step + 1) as u32,
            colour_step: colour_step as u32,
            waste: left as u32,
        }
    };
    let cut = |on_slab, class| {
        cut(
            size,
            on_slab,
            shape,
            policy,
            page_shift,
            largest_order,
            class,
        )
    };

    if policy.in_record
        && let Some(c) = cut(false, None)
        && c.num <= RECORD_OBJECTS
    {
        return Ok(finish(&c, IndexPlace::InRecord, c.left));
    }
    if shape.may_overwrite
        && policy.in_object
        && let Some(c) = cut(false, None)
        && c.num * c.entry <= shape.object_size
    {
        return Ok(finish(&c, IndexPlace::InObject, c.left));
    }
    if shape.may_be_off_slab {
        // The objects cut without regard to the index may leave room for it.
        if let Some(c) = cut(false, None) {
            let index = c.num * c.entry;
            if c.left >= index {
                return Ok(finish(&c, IndexPlace::Leftover, c.left - index));
            }
        }
        if let Some(c) = cut(false, Some(index_class)) {
            let index = c.num * c.entry;
            return Ok(if c.left >= index {
                finish(&c, IndexPlace::Leftover, c.left - index)
            } else {
                finish(&c, IndexPlace::OffSlab, c.left)
            });
        }
    }
    let c = cut(true, None).ok_or(AllocError::TooLarge)?;
    Ok(finish(&c, IndexPlace::Dedicated, c.left))
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
