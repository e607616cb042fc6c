//! What a test does: operations and how often each is drawn.

use proptest::prelude::*;

/// One operation; numbers are taken modulo what there is.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// `cpu` is a limit for CPU slabs, above 99 what the switch says.
    Create {
        size: usize,
        align: u32,
        kind: u8,
        cpu: u8,
    },
    Destroy(usize),
    Alloc {
        cache: usize,
        zero: bool,
    },
    AllocNode {
        cache: usize,
        nid: u16,
        only: bool,
    },
    Place {
        cache: usize,
        how: u8,
        mask: u64,
    },
    AllocBulk {
        cache: usize,
        n: usize,
    },
    Free(usize),
    FreeBulk {
        cache: usize,
        n: usize,
    },
    Kmalloc {
        size: usize,
        zero: bool,
    },
    Kfree(usize),
    Krealloc {
        which: usize,
        size: usize,
    },
    Shrink(usize),
    ShrinkAll,
    Reap(bool),
    SetArrays {
        cache: usize,
        on: bool,
    },
    SetCpuSlabs {
        cache: usize,
        limit: u32,
    },
    DrainCpu(u32),
    Move(u32),
    Check,
}

impl Arbitrary for Op {
    type Parameters = ();
    type Strategy = BoxedStrategy<Self>;

    fn arbitrary_with((): ()) -> Self::Strategy {
        let size = || {
            prop_oneof![
                4 => 1usize..300,
                2 => 300usize..3000,
                1 => 3000usize..20_000,
                1 => Just(64usize),
            ]
        };
        let which = any::<usize>;
        prop_oneof![
            3 => (size(), 0u32..10, any::<u8>(), any::<u8>())
                .prop_map(|(size, align, kind, cpu)| Self::Create { size, align, kind, cpu }),
            2 => which().prop_map(Self::Destroy),
            20 => (which(), any::<bool>()).prop_map(|(cache, zero)| Self::Alloc { cache, zero }),
            3 => (which(), any::<u16>(), any::<bool>())
                .prop_map(|(cache, nid, only)| Self::AllocNode { cache, nid, only }),
            3 => (which(), any::<u8>(), any::<u64>())
                .prop_map(|(cache, how, mask)| Self::Place { cache, how, mask }),
            6 => (which(), 0usize..90).prop_map(|(cache, n)| Self::AllocBulk { cache, n }),
            22 => which().prop_map(Self::Free),
            6 => (which(), 0usize..90).prop_map(|(cache, n)| Self::FreeBulk { cache, n }),
            6 => (size(), any::<bool>()).prop_map(|(size, zero)| Self::Kmalloc { size, zero }),
            6 => which().prop_map(Self::Kfree),
            3 => (which(), size()).prop_map(|(which, size)| Self::Krealloc { which, size }),
            2 => which().prop_map(Self::Shrink),
            1 => Just(Self::ShrinkAll),
            2 => any::<bool>().prop_map(Self::Reap),
            1 => (which(), any::<bool>()).prop_map(|(cache, on)| Self::SetArrays { cache, on }),
            1 => (which(), prop_oneof![Just(0u32), 1u32..100])
                .prop_map(|(cache, limit)| Self::SetCpuSlabs { cache, limit }),
            1 => any::<u32>().prop_map(Self::DrainCpu),
            8 => any::<u32>().prop_map(Self::Move),
            2 => Just(Self::Check),
        ]
        .boxed()
    }
}
