//! Where the parts of a debugged object lie.

use core::sync::atomic::AtomicU32;

use flagstone_kasan::Track;

use super::DebugFlags;

/// A free object's bytes, and the last of them.
pub(crate) const POISON_FREE: u8 = 0x6b;
pub(crate) const POISON_END: u8 = 0xa5;
/// Bytes that were allocated and not written to yet.
pub(crate) const POISON_INUSE: u8 = 0x5a;
/// A red zone while the object is free, and while it is allocated.
pub(crate) const ZONE_INACTIVE: u8 = 0xbb;
pub(crate) const ZONE_ACTIVE: u8 = 0xcc;

/// Values of [`Meta::state`]; anything else is damage.
pub(crate) const STATE_FREE: u32 = 0x6672_6565;
pub(crate) const STATE_ALLOCATED: u32 = 0x7573_6564;

/// The least red zone in bytes.
const ZONE: usize = 16;
/// Objects are aligned as their size is, up to so many bytes, which is what they are without debugging.
const NATURAL: usize = 64;

/// What is kept with an object.
#[repr(C)]
pub(crate) struct Meta {
    pub(crate) state: AtomicU32,
    /// Bytes that were asked for.
    pub(crate) requested: u32,
    pub(crate) allocated: Track,
    pub(crate) freed: Track,
}

/// Where the parts of an object of one cache lie, in bytes from the object's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) flags: DebugFlags,
    /// Bytes of the left red zone, before the object's start; a multiple of the alignment.
    pub(crate) left: u32,
    /// Where the right red zone ends and [`Meta`] begins.
    pub(crate) meta: u32,
    /// Whether free objects hold a pattern: nobody has to find in them what was there.
    pub(crate) poisons: bool,
    /// The alignment of objects.
    pub(crate) align: u32,
    /// Bytes of all parts.
    pub(crate) bytes: u32,
}

impl Shape {
    /// The shape for objects of `size` bytes; `None` if nothing has to be kept with them, or they are too large for it.
    pub(crate) fn new(
        flags: DebugFlags,
        size: usize,
        align: usize,
        keeps_contents: bool,
    ) -> Option<Self> {
        let wanted = [
            DebugFlags::CHECKS,
            DebugFlags::RED_ZONES,
            DebugFlags::POISON,
            DebugFlags::TRACKS,
        ];
        if size == 0 || !wanted.iter().any(|flag| flags.contains(*flag)) {
            return None;
        }
        let natural = 1 << size.trailing_zeros().min(NATURAL.trailing_zeros());
        let align = align.max(natural).max(align_of::<Meta>());
        let zones = flags.contains(DebugFlags::RED_ZONES);
        let left = if zones {
            ZONE.next_multiple_of(align)
        } else {
            0
        };
        let right = if zones { size.checked_add(ZONE)? } else { size };
        let meta = right.checked_next_multiple_of(align_of::<Meta>())?;
        let bytes = meta.checked_add(size_of::<Meta>())?.checked_add(left)?;
        Some(Self {
            flags,
            left: u32::try_from(left).ok()?,
            meta: u32::try_from(meta).ok()?,
            poisons: flags.contains(DebugFlags::POISON) && !keeps_contents,
            align: u32::try_from(align).ok()?,
            bytes: u32::try_from(bytes).ok()?,
        })
    }

    pub(crate) const fn has_zones(&self) -> bool {
        self.flags.contains(DebugFlags::RED_ZONES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap_and_objects_stay_aligned() {
        for letters in ["F", "Z", "P", "U", "FZPU"] {
            let flags = super::super::DebugOptions::new(letters).flags_of("x");
            for size in 1..3000 {
                for align in [1, 8, 16, 64, 4096] {
                    let shape = Shape::new(flags, size, align, false).unwrap();
                    assert!(
                        (shape.left as usize).is_multiple_of(align) && shape.meta as usize >= size
                    );
                    assert_eq!(shape.meta as usize % align_of::<Meta>(), 0);
                    assert!(shape.align as usize >= align);
                    if shape.has_zones() {
                        assert!(shape.left >= 16 && shape.meta as usize >= size + 16);
                    }
                    let natural = 1 << size.trailing_zeros().min(6);
                    assert_eq!(shape.align as usize % natural, 0);
                }
            }
        }
        assert_eq!(Shape::new(DebugFlags::TRACE, 8, 8, false), None);
        assert_eq!(Shape::new(DebugFlags::POISON, usize::MAX, 8, false), None);
    }
}
