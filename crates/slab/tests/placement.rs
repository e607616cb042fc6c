//! Policies of placement on machines of one to eight nodes: where objects come from, by a model that knows only which nodes have memory left.

mod ledger;

use flagstone_frames::PageBlock;
use flagstone_host::{Cpus, PageMap, PhysMem};
use flagstone_seeded::{Machine, Rng, for_each_seed};
use flagstone_slab::{CacheParams, Caches, NodeMask, NumaPolicy};
use flagstone_types::{AllocError, CpuId, Gfp, Nid, Order};
use ledger::Flavour;
use std::collections::BTreeSet;

/// Takes all pages of a node.
fn use_up(caches: &Caches<&Machine>, nid: Nid, hogs: &mut Vec<PageBlock>) {
    let flags = Gfp::KERNEL | Gfp::THISNODE | Gfp::NOWARN;
    while let Ok(block) = caches.frames().alloc_pages(flags, Order::ZERO, Some(nid)) {
        hogs.push(block);
    }
}

/// The nearest nodes first, of those in `mask`.
fn order_of(machine: &Machine, from: Nid, mask: u64, nodes: u16) -> Vec<Nid> {
    let mut order: Vec<_> = (0..nodes)
        .map(Nid)
        .filter(|n| mask >> n.0 & 1 == 1)
        .collect();
    order.sort_by_key(|&to| (to != from, machine.distance(from, to), to));
    order
}

#[test]
fn objects_come_from_where_their_policy_says() {
    for_each_seed(60, |seed| {
        let rng = Rng::new(seed);
        let nodes = 1 + rng.below(8) as u16;
        let machine = Machine::builder()
            .cpus(8)
            .nodes(nodes as usize)
            .memory(64)
            .seed(seed)
            .build();
        let caches = ledger::boot(&machine, Flavour::Linux.policy());
        let handle = caches.create(&CacheParams::new("placed", 512, 8)).unwrap();
        let all = u64::MAX >> (64 - nodes);
        let (mut hogs, mut full) = (Vec::new(), BTreeSet::new());
        for nid in (0..nodes).map(Nid) {
            if rng.chance(80) {
                use_up(caches, nid, &mut hogs);
                full.insert(nid);
            }
        }
        let mut objects = Vec::new();
        for _ in 0..40 {
            let here = CpuId(rng.below(8) as u32);
            machine.set_cpu(here);
            let at = (&machine).node_of(here);
            let mask = NodeMask(1 + rng.bits() % all);
            let mut stocked = order_of(&machine, at, mask.0 & all, nodes);
            stocked.retain(|n| !full.contains(n));
            let (policy, only) = match rng.below(3) {
                0 => (NumaPolicy::bind(mask), true),
                1 => (NumaPolicy::preferred(mask), false),
                _ => (NumaPolicy::interleave(mask), false),
            };
            let turns = matches!(
                policy.placement(),
                flagstone_slab::Placement::Interleave { .. }
            );
            let mut expected = None;
            for _ in 0..3 {
                let got = caches.alloc_policy(&handle, Gfp::KERNEL | Gfp::NOWARN, &policy);
                let Ok(object) = got else {
                    let none = mask.0 & all == 0;
                    let error = got.unwrap_err();
                    assert!(none == (error == AllocError::InvalidArgument));
                    assert!(none || only && stocked.is_empty() || full.len() == nodes as usize);
                    break;
                };
                let pfn = (&machine).pfn_of(object.as_ptr().addr()).unwrap();
                let nid = (&machine).nid(pfn);
                assert!(!full.contains(&nid), "from a node without memory");
                if turns {
                    let mut turn =
                        expected.map_or(mask.next_node_in(Nid(63)), |last| mask.next_node_in(last));
                    while turn.is_some_and(|n| n.0 >= nodes) {
                        turn = mask.next_node_in(turn.unwrap());
                    }
                    expected = turn;
                    assert!(turn == Some(nid) || full.contains(&turn.unwrap()));
                } else if let Some(nearest) = stocked.first() {
                    // A single preferred node falls back by its own distances.
                    assert_eq!(nid, *nearest, "nearest of the set first");
                } else {
                    assert!(!only, "a bound object from elsewhere");
                }
                objects.push(object);
            }
        }
        // Freed from any CPU: alien caches take them home under every policy.
        for object in objects {
            machine.set_cpu(CpuId(rng.below(8) as u32));
            // SAFETY: the test owns the object.
            unsafe { caches.free(&handle, object) };
        }
        for block in hogs {
            caches.frames().free_pages(block);
        }
        caches.destroy(handle).unwrap();
        ledger::validate(caches);
    });
}

#[test]
fn a_policy_of_the_machine_places_what_says_nothing() {
    static NOWHERE: NumaPolicy = NumaPolicy::bind(NodeMask(0b1_0000));
    static POLICY: NumaPolicy = NumaPolicy::interleave(NodeMask(0b1101));
    let machine = Machine::builder().cpus(4).nodes(4).build();
    let caches = ledger::boot(&machine, Flavour::Linux.policy());
    assert_eq!(caches.place_all(&NOWHERE), Err(AllocError::InvalidArgument));
    caches.place_all(&POLICY).unwrap();
    let handle = caches.create(&CacheParams::new("later", 100, 8)).unwrap();
    let mut counts = [0; 4];
    let objects: Vec<_> = (0..60)
        .map(|_| caches.alloc(&handle, Gfp::KERNEL | Gfp::ZERO).unwrap())
        .collect();
    for object in &objects {
        let pfn = (&machine).pfn_of(object.as_ptr().addr()).unwrap();
        counts[(&machine).nid(pfn).index()] += 1;
    }
    assert_eq!(counts, [20, 0, 20, 20]);
    for object in objects {
        // SAFETY: the test owns the object.
        unsafe { caches.free(&handle, object) };
    }
    caches.destroy(handle).unwrap();
    ledger::validate(caches);
}
