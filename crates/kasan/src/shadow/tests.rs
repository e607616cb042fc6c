//! The shadow against a map of single bytes.

use super::*;
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

const BASE: usize = 0x7000_0000;
const SPAN: usize = 256;
/// Memory of the model, of which the block in the middle has no shadow.
const BYTES: usize = 5 * SPAN;
const HOLE: core::ops::Range<usize> = 2 * SPAN..3 * SPAN;

struct Host {
    /// Each block's shadow lies apart.
    shadow: Vec<[AtomicU64; SPAN / 64]>,
}

// SAFETY: H1, H2: each block of `SPAN` bytes has an array of atomic words of its own.
unsafe impl Shadow for Host {
    const SPAN: usize = SPAN;
    const USER_END: usize = 0x1000_0000;

    fn shadow_of(&self, address: usize) -> Option<NonNull<u8>> {
        let offset = address.checked_sub(BASE)?;
        if offset >= BYTES || HOLE.contains(&offset) {
            return None;
        }
        let block = self.shadow[offset / SPAN].as_ptr().cast::<u8>().cast_mut();
        NonNull::new(block.wrapping_add(offset % SPAN / GRANULE))
    }
}

fn host() -> Host {
    Host {
        shadow: (0..BYTES / SPAN)
            .map(|_| [const { AtomicU64::new(0) }; SPAN / 64])
            .collect(),
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Poison(usize, usize, Code),
    Unpoison(usize, usize),
    Object(usize, usize, usize, Code),
}

fn op() -> impl Strategy<Value = Op> {
    let start = (0..BYTES / GRANULE).prop_map(|granule| granule * GRANULE);
    let code = prop::sample::select(Code::ALL.to_vec());
    prop_oneof![
        (start.clone(), 0..700usize, code.clone()).prop_map(|(a, n, c)| Op::Poison(a, n, c)),
        (start.clone(), 0..700usize).prop_map(|(a, n)| Op::Unpoison(a, n)),
        (start, 0..300usize, 0..50usize, code).prop_map(|(a, n, more, c)| Op::Object(
            a,
            n,
            n + more,
            c
        )),
    ]
}

/// What may be accessed, byte by byte.
fn apply(model: &mut [bool], op: Op) {
    let mut set = |from: usize, to: usize, value| {
        for (k, byte) in model.iter_mut().enumerate() {
            if (from..to).contains(&k) && !HOLE.contains(&k) {
                *byte = value;
            }
        }
    };
    let up = |n: usize| n.div_ceil(GRANULE) * GRANULE;
    match op {
        Op::Poison(a, n, _) => set(a, a + up(n), false),
        Op::Unpoison(a, n) => {
            set(a, a + up(n), false);
            set(a, a + n, true);
        }
        Op::Object(a, n, room, _) => {
            set(a, a + up(room), false);
            set(a, a + n, true);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn checks_say_what_a_map_of_bytes_says(
        ops in prop::collection::vec(op(), 0..12),
        accesses in prop::collection::vec((0..BYTES + 20, prop_oneof![prop::sample::select(vec![1usize, 2, 4, 8, 16]), 0..600usize]), 1..200),
    ) {
        let host = host();
        let mut model = vec![true; BYTES + 2000];
        model[HOLE].fill(false);
        model[BYTES..].fill(false);
        for op in ops {
            match op {
                Op::Poison(a, n, code) => poison(&host, BASE + a, n, code),
                Op::Unpoison(a, n) => unpoison(&host, BASE + a, n),
                Op::Object(a, n, room, code) => unpoison_object(&host, BASE + a, n, room, code),
            }
            apply(&mut model[..BYTES], op);
        }
        for (at, size) in accesses {
            let expected = (at..at + size).find(|k| !model[*k]).map(|k| BASE + k);
            prop_assert_eq!(first_bad(&host, BASE + at, size), expected);
            let got = check(&host, BASE + at, size);
            prop_assert_eq!(got.err().map(|bad| bad.first_bad), expected);
            if let Err(bad) = got {
                prop_assert_eq!((bad.address, bad.size.0), (BASE + at, size));
            }
            prop_assert_eq!(accessible(&host, BASE + at, size), expected.map_or(size, |bad| bad - BASE - at));
        }
    }
}

#[test]
fn each_code_is_named_as_linux_names_it() {
    let host = host();
    for code in Code::ALL {
        poison(&host, BASE, 64, code);
        unpoison(&host, BASE, 13);
        assert_eq!(load(&host, BASE + 8), Some(5));
        let bad = check(&host, BASE + 12, 4).unwrap_err();
        assert_eq!(bad.first_bad, BASE + 13);
        assert_eq!(
            bad.describe(&host, AccessKind::Read).bug,
            code.bug(),
            "{code:?}"
        );
        assert_eq!(Code::of(code as u8), Some(code));
    }
    use crate::report::AccessKind;
    for (address, bug) in [
        (8, AccessBug::NullPtrDeref),
        (0x5000, AccessBug::UserMemoryAccess),
        (BASE + HOLE.start, AccessBug::WildMemoryAccess),
        (usize::MAX, AccessBug::OutOfBounds),
    ] {
        let bad = check(&host, address, 4).unwrap_err();
        assert_eq!(
            bad.describe(&host, AccessKind::Write).bug,
            bug,
            "{address:#x}"
        );
    }
    // A length that was negative.
    let bad = check(&host, BASE, 0usize.wrapping_sub(2)).unwrap_err();
    assert_eq!(
        bad.describe(&host, AccessKind::Write).bug,
        AccessBug::OutOfBounds
    );
}

#[test]
fn the_rows_of_a_report_are_the_shadow_around_the_address() {
    let host = host();
    poison(&host, BASE + 200, 56, Code::SlabRedzone);
    let rows = rows_around(&host, BASE + 203);
    assert_eq!(rows.start, BASE - 128);
    assert_eq!(rows.rows[0], None);
    assert_eq!(
        rows.rows[2].unwrap()[8..],
        [0, 0xfc, 0xfc, 0xfc, 0xfc, 0xfc, 0xfc, 0xfc][..]
    );
    assert_eq!(
        rows.rows[4],
        Some([0; 16])
            .filter(|_| !HOLE.contains(&384))
            .or(rows.rows[4])
    );
}
