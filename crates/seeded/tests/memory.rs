//! Memory: shapes for every page shift, and books that are compared with the bytes.

use flagstone_host::{Backing, MemRange, PageMap, PhysMem};
use flagstone_seeded::{Builder, Call, Fault, Machine, for_each_seed};
use flagstone_types::{Nid, Pfn, PfnRange, Zone};
use std::alloc::Layout;
use std::panic::{AssertUnwindSafe, catch_unwind};

fn ranges<const S: u32, const O: u32>(machine: &Machine<S, O>) -> Vec<MemRange> {
    let mut ranges = Vec::new();
    machine.boot_ranges(&mut |r| ranges.push(r));
    ranges
}

fn shape<const S: u32, const O: u32>(seed: u64) {
    let machine = Builder::<S, O>::new()
        .nodes(3)
        .memory(2 << O)
        .zone(Nid(0), Zone::Dma, (1 << O) - 1)
        .zone(Nid(0), Zone::Normal, 3 << O)
        .unadded(Nid(2), Zone::Movable, 1 << O)
        .seed(seed)
        .build();
    let host = &machine;
    let found = ranges(host);
    let shapes: Vec<_> = found
        .iter()
        .map(|r| (r.nid.0, r.zone, r.frames.pages))
        .collect();
    assert_eq!(
        shapes[..2],
        [(0, Zone::Dma, (1 << O) - 1), (0, Zone::Normal, 3 << O)]
    );
    assert_eq!(
        shapes[2..],
        [(1, Zone::Normal, 2 << O), (2, Zone::Normal, 2 << O)]
    );
    let block = 1usize << O;
    for range in found.iter().chain(&machine.unadded_ranges()) {
        assert!(range.frames.start.0.is_multiple_of(block));
        let first = host.frame_ptr(range.frames.start).addr().get();
        assert!(first.is_multiple_of(block << S), "blocks are aligned");
        for at in 0..range.frames.pages.next_multiple_of(block) {
            let pfn = range.frames.start.add(at);
            let address = host.frame_ptr(pfn).addr().get();
            assert_eq!(address, first + (at << S));
            assert_eq!(
                (host.pfn_of(address), host.pfn_of(address + (1 << S) - 1)),
                (Some(pfn), Some(pfn))
            );
            assert_eq!(host.nid(pfn), range.nid);
            let meta = host.meta(pfn).unwrap();
            assert!(meta.addr().get().is_multiple_of(64));
            // SAFETY: M2 of the host's model.
            assert_eq!(unsafe { meta.cast::<[u64; 8]>().read() }, [0; 8]);
        }
    }
    assert_eq!(host.meta(Pfn(found[0].frames.start.0 - 1)), None);
    assert_eq!(
        host.meta(found[1].frames.end()),
        None,
        "a block without memory follows each node"
    );
    assert_eq!(host.pfn_of(64), None);
}

#[test]
fn frames_have_addresses_and_metadata_at_every_page_shift() {
    for_each_seed(5, |seed| {
        shape::<12, 6>(seed);
        shape::<14, 4>(seed);
        shape::<16, 3>(seed);
        shape::<12, 10>(seed);
    });
}

#[test]
fn sixty_four_nodes_and_256_cpus_can_be_had() {
    let machine = Builder::<12, 2>::new()
        .cpus(256)
        .nodes(64)
        .memory(4)
        .build();
    assert_eq!(ranges(&machine).len(), 64);
}

#[test]
fn take_tells_zero_until_frames_are_used_and_again_after_release() {
    let machine = Machine::builder().build();
    let host = &machine;
    let frames = PfnRange::new(ranges(host)[0].frames.start, 4);
    assert_eq!(host.touched(frames), 0);
    assert!(host.take(frames) && !host.take(frames));
    assert_eq!(host.touched(frames), 4);
    // SAFETY: M6 of the host's model: the frame is ours.
    unsafe { host.frame_ptr(frames.start).write(7) };
    machine.inject(Call::Release, Fault::Nth(1));
    assert!(!host.release(frames));
    assert_eq!(host.touched(frames), 4);
    assert!(host.release(frames));
    assert_eq!(host.touched(frames), 0);
    // SAFETY: M6 of the host's model.
    assert_eq!(unsafe { host.frame_ptr(frames.start).read() }, 0);
    assert!(host.take(PfnRange::new(frames.start, 2)));
    machine.check_memory().unwrap();
}

fn panics(f: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(f)).unwrap_err();
    *panic.downcast::<String>().unwrap()
}

#[test]
fn a_write_to_a_free_frame_is_found_by_the_next_take() {
    let machine = Machine::builder().seed(9).build();
    let host = &machine;
    let frames = PfnRange::new(ranges(host)[0].frames.start, 1);
    // SAFETY: M5 of the host's model: committed, though nobody gave it to us, which is the point.
    unsafe { host.frame_ptr(frames.start).add(100).write(1) };
    assert!(machine.check_memory().is_err());
    let text = panics(|| assert!(host.take(frames)));
    assert!(
        text.contains("SEED=0x0000000000000009") && text.contains("known to be zero"),
        "{text}"
    );
}

#[test]
fn unadded_frames_are_committed_once_and_not_used_before() {
    let build = || Machine::builder().unadded(Nid(0), Zone::Normal, 64).build();
    let machine = build();
    let host = &machine;
    let frames = machine.unadded_ranges()[0].frames;
    assert!(panics(|| assert!(host.take(frames))).contains("not committed"));
    machine.inject(Call::Commit, Fault::Nth(1));
    assert!(host.commit(frames).is_err() && host.commit(frames).is_ok());
    assert!(host.take(PfnRange::new(frames.start, 1)));
    // SAFETY: M5 of the host's model: committed and taken.
    unsafe { host.frame_ptr(frames.start).write(3) };
    assert!(host.commit(frames).is_ok(), "committing again is harmless");
    // SAFETY: as above.
    assert_eq!(unsafe { host.frame_ptr(frames.start).read() }, 3);

    let machine = build();
    let host = &machine;
    let frames = machine.unadded_ranges()[0].frames;
    // SAFETY: the bytes are simulated memory; that they are not committed is the point.
    unsafe { host.frame_ptr(frames.start).write(3) };
    assert!(panics(move || drop(machine)).contains("before it was committed"));
    assert!(panics(|| assert!(host_of_absent())).contains("does not exist"));
}

fn host_of_absent() -> bool {
    let machine = Machine::builder().memory(3).build();
    let frames = PfnRange::new(ranges(&machine)[0].frames.end(), 1);
    (&machine).take(frames)
}

#[test]
fn boot_memory_is_zeroed_aligned_and_disjoint() {
    let machine = Machine::builder().build();
    let host = &machine;
    let mut got: Vec<(usize, usize)> = Vec::new();
    for i in 0..200 {
        let layout = Layout::from_size_align(1 + i * 37, 1 << (i % 13)).unwrap();
        let p = host.boot_alloc(layout).unwrap();
        let start = p.addr().get();
        assert!(start.is_multiple_of(layout.align()));
        assert!(
            got.iter()
                .all(|(s, e)| *e <= start || *s >= start + layout.size())
        );
        for at in 0..layout.size() {
            // SAFETY: M3 of the host's model.
            assert_eq!(unsafe { p.add(at).replace(0xff) }, 0);
        }
        got.push((start, start + layout.size()));
    }
    machine.inject(Call::BootAlloc, Fault::From(1));
    assert!(host.boot_alloc(Layout::new::<u64>()).is_err());
}
