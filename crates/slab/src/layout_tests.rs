//! Tests of the layout rule against its published results and against sums done by hand.

use super::*;

const KERNEL: LayoutPolicy = LayoutPolicy {
    min_order: 0,
    max_order: 1,
    min_objects: 1,
    cache_line: 64,
    in_record: false,
    in_object: true,
    zeroed: false,
    tail: 0,
};

fn shape(object_size: usize, align: usize) -> ObjectShape {
    ObjectShape {
        object_size,
        align,
        may_overwrite: true,
        may_be_off_slab: true,
        reclaimable: false,
    }
}

fn no_class(_: usize) -> Option<IndexClass> {
    None
}

fn kmalloc_class(bytes: usize) -> Option<IndexClass> {
    Some(IndexClass {
        size: bytes.next_power_of_two().max(32),
        off_slab: false,
    })
}

#[test]
fn index_forced_into_the_slab_gives_the_published_counts() {
    // size, align, objects, bytes used of a 4096-byte page
    let published = [
        (32, 8, 124, 4092),
        (64, 8, 63, 4095),
        (88, 8, 46, 4094),
        (272, 8, 15, 4095),
        (408, 8, 10, 4090),
        (32, 16, 124, 4092),
        (64, 16, 63, 4095),
        (32, 32, 124, 4092),
        (64, 32, 63, 4095),
        (96, 32, 42, 4074),
    ];
    for (size, align, objects, bytes) in published {
        let s = ObjectShape {
            may_overwrite: false,
            may_be_off_slab: false,
            ..shape(size, align)
        };
        let l = choose(&s, &KERNEL, 12, 0, &no_class).unwrap();
        assert_eq!(l.place, IndexPlace::Dedicated, "{size}/{align}");
        assert_eq!(l.num, objects, "{size}/{align}");
        assert_eq!(4096 - l.waste, bytes, "{size}/{align}");
    }
}

#[test]
fn sixty_four_byte_objects_keep_their_index_inside_and_fill_the_page() {
    let l = choose(&shape(64, 8), &KERNEL, 12, 10, &no_class).unwrap();
    assert_eq!(
        (l.place, l.num, l.order.get(), l.waste),
        (IndexPlace::InObject, 64, 0, 0)
    );
}

#[test]
fn objects_that_may_not_be_overwritten_carry_no_index() {
    let s = ObjectShape {
        may_overwrite: false,
        ..shape(320, 8)
    };
    let l = choose(&s, &KERNEL, 12, 10, &kmalloc_class).unwrap();
    // 12 objects leave 256 bytes, enough for 12 entries.
    assert_eq!((l.place, l.num), (IndexPlace::Leftover, 12));
    assert_eq!(l.index_offset, 4096 - 12);
}

#[test]
fn an_index_goes_off_slab_only_where_that_saves_memory() {
    let s = ObjectShape {
        may_overwrite: false,
        ..shape(4096, 4096)
    };
    // One object of a page: a 1-byte index in a 32-byte object is less than half used.
    let l = choose(&s, &KERNEL, 12, 10, &kmalloc_class).unwrap();
    assert_eq!(l.place, IndexPlace::Dedicated);
    let s = ObjectShape {
        may_overwrite: false,
        ..shape(64, 64)
    };
    // 64 objects, 64 bytes of index: as large as an object, nothing saved.
    assert_eq!(
        choose(&s, &KERNEL, 12, 10, &kmalloc_class).unwrap().place,
        IndexPlace::Dedicated
    );
    let s = ObjectShape {
        may_overwrite: false,
        ..shape(128, 128)
    };
    // 32 objects, 32 bytes of index, a class of 32.
    assert_eq!(
        choose(&s, &KERNEL, 12, 10, &kmalloc_class).unwrap().place,
        IndexPlace::OffSlab
    );
    // … which is not ready, or is itself off-slab
    assert_eq!(
        choose(&s, &KERNEL, 12, 10, &no_class).unwrap().place,
        IndexPlace::Dedicated
    );
    let off = |_| {
        Some(IndexClass {
            size: 32,
            off_slab: true,
        })
    };
    assert_eq!(
        choose(&s, &KERNEL, 12, 10, &off).unwrap().place,
        IndexPlace::Dedicated
    );
}

#[test]
fn in_a_process_nothing_under_362_bytes_can_hold_its_own_index() {
    let process = LayoutPolicy {
        min_order: 4,
        max_order: 6,
        min_objects: 1,
        cache_line: 64,
        in_record: false,
        in_object: true,
        zeroed: false,
        tail: 0,
    };
    for size in (16..=4096).step_by(8) {
        let l = choose(&shape(size, 8), &process, 12, 10, &no_class).unwrap();
        if size < 256 {
            assert_eq!(l.entry, 2, "{size}");
        }
        if l.place == IndexPlace::InObject && l.entry == 2 {
            assert!(size >= 362, "{size}");
        }
    }
}

#[test]
fn every_layout_fits_and_is_aligned() {
    for page_shift in [12, 14, 16] {
        for size in (1..3000).chain([4096, 5000, 10_000, 65_536, 100_000]) {
            for align in [1, 8, 16, 64, 256] {
                for (may_overwrite, may_be_off_slab) in
                    [(true, true), (false, true), (false, false)]
                {
                    let s = ObjectShape {
                        may_overwrite,
                        may_be_off_slab,
                        reclaimable: size % 2 == 0,
                        ..shape(size, align)
                    };
                    let policy = LayoutPolicy {
                        in_record: size % 3 == 0,
                        ..KERNEL
                    };
                    let l = choose(&s, &policy, page_shift, 10, &kmalloc_class).unwrap();
                    let bytes = l.order.bytes(page_shift);
                    let objects = l.num as usize * l.size as usize;
                    assert!(l.size as usize >= size && (l.size as usize).is_multiple_of(align));
                    let colour = (l.colours - 1) as usize * l.colour_step as usize;
                    assert_eq!(l.colour_step as usize % align, 0);
                    match l.place {
                        IndexPlace::InObject => {
                            assert!(may_overwrite && l.index_bytes() <= size);
                            assert!(objects + colour <= bytes);
                        }
                        IndexPlace::OffSlab => assert!(objects + colour <= bytes),
                        IndexPlace::InRecord => {
                            assert!(policy.in_record && l.num as usize <= RECORD_OBJECTS);
                            assert!(objects + colour <= bytes);
                        }
                        IndexPlace::Leftover | IndexPlace::Dedicated => {
                            assert!(objects + colour <= l.index_offset as usize, "{s:?} {l:?}");
                            assert!(l.index_offset as usize + l.index_bytes() <= bytes);
                        }
                    }
                    assert!(l.num as usize <= if l.entry == 1 { 256 } else { MAX_OBJECTS });
                }
            }
        }
    }
}

#[test]
fn bad_shapes_are_refused() {
    let e = |s: ObjectShape| choose(&s, &KERNEL, 12, 10, &no_class).unwrap_err();
    assert_eq!(e(shape(0, 8)), AllocError::InvalidArgument);
    assert_eq!(e(shape(8, 3)), AllocError::InvalidArgument);
    assert_eq!(e(shape(8, 8192)), AllocError::InvalidArgument);
    assert_eq!(e(shape((4 << 20) + 1, 8)), AllocError::TooLarge);
    assert_eq!(e(shape(usize::MAX, 8)), AllocError::TooLarge);
}
