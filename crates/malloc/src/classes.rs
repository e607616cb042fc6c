//! Size classes: multiples of 16 up to 256 bytes, then eight to each doubling, so that at most an eighth
//! of an object is padding. Generated at compile time.
//!
//! Between 4 and 8 KiB a class is what one gets by dividing a slab among an even number of objects, so that nothing is left at its end. Programs
//! that keep pages of 4 KiB with a header of theirs meet a class there that is little larger.

use flagstone_slab::KmallocClass;

/// Every class is a multiple of this many bytes and aligned to it.
pub const GRANULE: usize = 16;

/// The classes up to here are found by the number of granules.
pub const FINE_MAX: usize = 8192;
/// The classes up to here are found by the number of steps of [`COARSE_STEP`] bytes.
pub const COARSE_MAX: usize = 64 << 10;
/// Classes above [`FINE_MAX`] are multiples of this many bytes.
pub const COARSE_STEP: usize = 128;

/// The largest object that comes from a slab, in bytes.
pub const LARGEST: usize = COARSE_MAX;

/// How many classes there are.
pub const COUNT: usize = count();

/// Bytes of the slabs of classes between 4 and 8 KiB: two frames, with at least 16 objects.
const DIVIDED_SLAB: usize = 128 << 10;

const fn next(size: usize) -> usize {
    if size < 256 {
        return size + GRANULE;
    }
    if 4096 <= size && size < 8192 {
        // Two objects fewer in the slab.
        let objects = DIVIDED_SLAB / size - 2;
        return DIVIDED_SLAB / objects / GRANULE * GRANULE;
    }
    // An eighth of the power of two at or below.
    size + (1 << (size.ilog2() - 3))
}

const fn count() -> usize {
    let (mut n, mut size) = (0, GRANULE);
    while size <= LARGEST {
        n += 1;
        size = next(size);
    }
    n
}

/// Bytes of an object of each class.
pub const SIZES: [u32; COUNT] = {
    let mut sizes = [0; COUNT];
    let (mut n, mut size) = (0, GRANULE);
    while n < COUNT {
        sizes[n] = size as u32;
        n += 1;
        size = next(size);
    }
    sizes
};

/// Alignment of the objects of a class: the largest power of two that divides its size, at most a page of the system.
pub const fn align_of_class(class: usize) -> usize {
    let align = 1 << SIZES[class].trailing_zeros();
    if align > 4096 { 4096 } else { align }
}

const NAME_BYTES: usize = 16;

/// `malloc-` and the size, padded with zeros, and the length.
const NAMES: [([u8; NAME_BYTES], usize); COUNT] = {
    let mut names = [([0; NAME_BYTES], 0); COUNT];
    let mut class = 0;
    while class < COUNT {
        let prefix = b"malloc-";
        let mut len = 0;
        while len < prefix.len() {
            names[class].0[len] = prefix[len];
            len += 1;
        }
        let size = SIZES[class];
        let mut power = 1;
        while size / power >= 10 {
            power *= 10;
        }
        while power > 0 {
            names[class].0[len] = b'0' + (size / power % 10) as u8;
            len += 1;
            power /= 10;
        }
        names[class].1 = len;
        class += 1;
    }
    names
};

const fn name(class: usize) -> &'static str {
    let (bytes, len) = &NAMES[class];
    match core::str::from_utf8(bytes.split_at(*len).0) {
        Ok(name) => name,
        Err(_) => "malloc",
    }
}

/// The classes as `slab` wants them.
pub static CLASSES: [KmallocClass; COUNT] = {
    let mut classes = [KmallocClass {
        name: "",
        size: 0,
        align: 1,
    }; COUNT];
    let mut class = 0;
    while class < COUNT {
        classes[class] = KmallocClass {
            name: name(class),
            size: SIZES[class] as usize,
            align: align_of_class(class),
        };
        class += 1;
    }
    classes
};

/// The class number by granules, for sizes up to [`FINE_MAX`]; size 0 has the first class.
pub const FINE: [u8; FINE_MAX / GRANULE + 1] = {
    let mut table = [0; FINE_MAX / GRANULE + 1];
    let (mut i, mut class) = (0, 0);
    while i < table.len() {
        while (SIZES[class] as usize) < i * GRANULE {
            class += 1;
        }
        table[i] = class as u8;
        i += 1;
    }
    table
};

/// The class number by coarse steps, for sizes up to [`COARSE_MAX`].
pub const COARSE: [u8; COARSE_MAX / COARSE_STEP + 1] = {
    let mut table = [0; COARSE_MAX / COARSE_STEP + 1];
    let (mut i, mut class) = (0, 0);
    while i < table.len() {
        while (SIZES[class] as usize) < i * COARSE_STEP {
            class += 1;
        }
        table[i] = class as u8;
        i += 1;
    }
    table
};

/// The class of requests of `size` bytes, at most [`LARGEST`].
#[inline]
#[must_use]
pub fn class_of(size: usize) -> usize {
    if size <= FINE_MAX {
        FINE[size.div_ceil(GRANULE)] as usize
    } else {
        COARSE[size.div_ceil(COARSE_STEP)] as usize
    }
}

/// The smallest class whose objects have at least `size` bytes and are aligned to `align` bytes, a power of two.
#[must_use]
pub fn aligned_class_of(size: usize, align: usize) -> Option<usize> {
    if size > LARGEST {
        return None;
    }
    (class_of(size)..COUNT).find(|&class| align_of_class(class) >= align)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_has_the_smallest_class_that_holds_it() {
        for size in 0..=LARGEST {
            let class = class_of(size);
            assert!(SIZES[class] as usize >= size);
            assert!(class == 0 || (SIZES[class - 1] as usize) < size, "{size}");
        }
    }

    #[test]
    fn at_most_an_eighth_is_padding() {
        for size in 129..=LARGEST {
            let waste = SIZES[class_of(size)] as usize - size;
            assert!(waste * 8 <= SIZES[class_of(size)] as usize, "{size}");
        }
    }

    #[test]
    fn classes_ascend_in_granules_and_are_named_by_size() {
        assert!(SIZES.windows(2).all(|w| w[0] < w[1]));
        assert!(SIZES.iter().all(|s| (*s as usize).is_multiple_of(GRANULE)));
        assert!(
            SIZES
                .iter()
                .all(|s| *s as usize <= FINE_MAX || (*s as usize).is_multiple_of(COARSE_STEP))
        );
        assert_eq!(SIZES[COUNT - 1] as usize, LARGEST);
        assert_eq!(CLASSES[0].name, "malloc-16");
        assert_eq!(CLASSES[COUNT - 1].name, "malloc-65536");
    }

    #[test]
    fn classes_from_4_to_8_kib_leave_nothing_of_their_slab() {
        let divided = SIZES.iter().filter(|s| (4096..=8192).contains(*s));
        let divided: Vec<_> = divided.map(|s| *s as usize).collect();
        assert_eq!(
            divided,
            [4096, 4368, 4672, 5040, 5456, 5952, 6544, 7280, 8192]
        );
        assert!(divided.iter().all(|size| DIVIDED_SLAB % size < 512));
    }

    #[test]
    fn aligned_requests_get_an_aligned_class() {
        for align in [16, 32, 64, 128, 1024, 4096] {
            for size in [1, 16, 17, 100, 1000, 5000, 40_000] {
                let class = aligned_class_of(size, align).unwrap();
                assert!(
                    SIZES[class] as usize >= size && (SIZES[class] as usize).is_multiple_of(align)
                );
            }
        }
        assert_eq!(aligned_class_of(1, 8192), None);
        assert_eq!(aligned_class_of(LARGEST + 1, 16), None);
    }
}
