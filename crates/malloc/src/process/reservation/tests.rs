//! Frames of this very process. Tests run beside each other, so each grows frames of its own.

use flagstone_host::{Backing as _, PageMap as _, PhysMem as _};
use std::vec::Vec;

use super::super::Process;
use super::super::fast;
use super::super::hammer::again;
use super::*;

fn bytes(frames: PfnRange) -> &'static mut [u8] {
    // SAFETY: M5, the test grew the frames and has them to itself.
    unsafe {
        core::slice::from_raw_parts_mut(
            (frames.start.0 << FRAME_SHIFT) as *mut u8,
            frames.pages << FRAME_SHIFT,
        )
    }
}

#[test]
fn grown_frames_are_zero_writable_and_found() {
    let host = Process::start();
    let range = host.grow(Nid(0), 3).unwrap();
    assert_eq!(
        (range.frames.pages, range.nid, range.zone),
        (3, Nid(0), Zone::Normal)
    );
    let memory = bytes(range.frames);
    assert!(memory.iter().all(|b| *b == 0));
    memory.fill(0x5a);
    for pfn in range.frames.start.0..range.frames.end().0 {
        let at = host.frame_ptr(Pfn(pfn)).as_ptr() as usize;
        assert_eq!(host.pfn_of(at), Some(Pfn(pfn)));
        assert_eq!(host.pfn_of(at + 0xffff), Some(Pfn(pfn)));
        let meta = host.meta(Pfn(pfn)).unwrap().as_ptr();
        assert_eq!(meta as usize % 64, 0);
        // SAFETY: M2, the record of our own frame.
        assert_eq!(unsafe { meta.cast::<[u8; 64]>().read() }, [0; 64]);
        assert_eq!(host.nid(Pfn(pfn)), Nid(0));
    }
    let local = 0u8;
    for foreign in [0, 4096, &raw const local as usize, usize::MAX] {
        assert_eq!(host.pfn_of(foreign), None, "{foreign:#x}");
    }
}

#[test]
fn records_answer_for_whole_largest_blocks() {
    let host = Process::start();
    let range = host.grow(Nid(0), 1).unwrap();
    let block = range.frames.start.0 & !(BLOCK_FRAMES - 1);
    let first = host.meta(Pfn(block)).unwrap().as_ptr() as usize;
    for n in 0..BLOCK_FRAMES {
        assert_eq!(
            host.meta(Pfn(block + n)).unwrap().as_ptr() as usize,
            first + 64 * n
        );
    }
}

#[test]
fn touched_bits_tell_what_is_zero() {
    let host = Process::start();
    let frames = host.grow(Nid(0), 200).unwrap().frames;
    let part = |from: usize, pages| PfnRange::new(frames.start.add(from), pages);
    assert_eq!(host.touched(frames), 0);
    assert!(host.take(part(0, 100)));
    assert!(!host.take(part(99, 2)), "one of them was taken before");
    assert!(!host.take(part(0, 1)));
    assert_eq!(host.touched(frames), 101);
    bytes(frames)[50 << FRAME_SHIFT] = 7;
    assert!(host.release(part(40, 30)));
    assert_eq!(bytes(frames)[50 << FRAME_SHIFT], 0);
    assert_eq!(host.touched(frames), 71);
    assert!(host.take(part(40, 30)));
    assert!(host.commit(frames).is_ok());
    assert!(host.commit(PfnRange::new(Pfn(1), 1)).is_err());
    assert!(!host.release(PfnRange::new(Pfn(1), 1)));
}

#[test]
fn locked_memory_is_not_released() {
    let host = Process::start();
    let frames = host.grow(Nid(0), 1).unwrap().frames;
    host.take(frames);
    bytes(frames).fill(1);
    let at = (frames.start.0 << FRAME_SHIFT) as *const core::ffi::c_void;
    // SAFETY: our own memory.
    if unsafe { libc::mlock(at, FRAME) } != 0 {
        return;
    }
    assert!(!host.release(frames));
    assert_eq!(host.touched(frames), 1);
    // SAFETY: as above.
    unsafe { libc::munlock(at, FRAME) };
    assert!(host.release(frames));
}

#[test]
fn tags_are_seen_by_the_fast_path() {
    let host = Process::start();
    let frames = host.grow(Nid(0), 4).unwrap().frames;
    host.tag(PfnRange::new(frames.start.add(1), 2), 0xabcd);
    let tags: Vec<u16> = (0..4)
        .map(|n| fast::tag_at((frames.start.0 + n) << FRAME_SHIFT))
        .collect();
    assert_eq!(tags, [0, 0xabcd, 0xabcd, 0]);
    assert_eq!(host.tag_at((frames.start.0 + 2) << FRAME_SHIFT), 0xabcd);
    assert_eq!(host.tag_at(0x1234), 0);
    // Frames of range 0 without memory, and addresses outside.
    let end =
        (FAST.first.load(Ordering::Relaxed) + FAST.frames.load(Ordering::Relaxed)) << FRAME_SHIFT;
    assert_eq!(
        [
            fast::tag_at(end - 1),
            fast::tag_at(end),
            fast::tag_at(0),
            fast::tag_at(usize::MAX)
        ],
        [0; 4]
    );
}

#[test]
fn growth_that_can_not_be_is_refused() {
    let host = Process::start();
    assert_eq!(host.grow(Nid(0), 0), Err(AllocError::InvalidArgument));
    assert_eq!(host.grow(Nid(77), 1), Err(AllocError::InvalidArgument));
    assert_eq!(host.grow(Nid(0), usize::MAX), Err(AllocError::OutOfMemory));
    assert_eq!(host.grow(Nid(0), 1 << 31), Err(AllocError::OutOfMemory));
}

#[test]
fn aligned_reservations_are_aligned() {
    for size in [FRAME, BLOCK - FRAME, 3 * BLOCK] {
        let at = reserve_aligned(size).unwrap();
        assert_eq!(at % BLOCK, 0);
        // SAFETY: reserved above.
        unsafe { syscall::unmap(at, size) }.unwrap();
    }
}

#[test]
#[ignore = "run by another test with fake nodes"]
fn on_four_nodes() {
    let host = Process::start();
    assert_eq!(flagstone_host::Cpus::nodes(&host), 4);
    let mut first = Vec::new();
    host.boot_ranges(&mut |range| first.push(range));
    assert_eq!(
        first.iter().map(|r| r.nid.0).collect::<Vec<_>>(),
        [0, 1, 2, 3]
    );
    for nid in 0..4 {
        let frames = host.grow(Nid(nid), 5).unwrap().frames;
        assert_eq!(frames.start, first[nid as usize].frames.end());
        for pfn in frames.start.0..frames.end().0 {
            assert_eq!(host.nid(Pfn(pfn)), Nid(nid));
            assert!(host.meta(Pfn(pfn)).is_some());
        }
        bytes(frames).fill(1);
        host.tag(frames, nid + 1);
        assert_eq!(fast::tag_at(frames.start.0 << FRAME_SHIFT), nid + 1);
    }
    assert_eq!(flagstone_host::Cpus::distance(&host, Nid(1), Nid(2)), 20);
}

#[test]
fn fake_nodes_have_slices_of_their_own() {
    again(
        "process::reservation::tests::on_four_nodes",
        &[("FLAGSTONE_FAKE_NODES", "4")],
    );
}

fn set_address_space(limit: usize) {
    let limit = libc::rlimit {
        rlim_cur: limit as u64,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: the structure outlives the call.
    let failed = unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) };
    assert_eq!(failed, 0);
}

#[test]
#[ignore = "run by another test in a process of its own, since it limits the address space"]
fn under_a_small_limit() {
    let before = syscall::address_space_used().unwrap();
    let limit = before + (200 << 20);
    set_address_space(limit);
    let host = Process::start();
    let used = syscall::address_space_used().unwrap();
    assert!(used <= limit - (90 << 20), "half is left to the program");
    // The ranges that fit into what is left, one after the other, down to the last frame.
    let mut grown: Vec<PfnRange> = Vec::with_capacity(1 << 16);
    while let Ok(range) = host.grow(Nid(0), 16) {
        bytes(range.frames)[0] = 1;
        grown.push(range.frames);
    }
    assert!(grown.len() > 100, "{} MiB", grown.len());
    grown.sort_by_key(|r| r.start);
    assert!(grown.windows(2).all(|w| w[0].end().0 <= w[1].start.0));
    let blocks: Vec<_> = grown.iter().map(|r| r.start.0 / BLOCK_FRAMES).collect();
    for frames in &grown {
        assert!(host.meta(frames.start).is_some() && host.touched(*frames) == 0);
    }
    std::println!(
        "{} MiB in {} blocks",
        grown.len(),
        blocks.last().unwrap() - blocks[0] + 1
    );
}

#[test]
fn a_small_address_space_is_shared_with_the_program_and_can_be_used_up() {
    again("process::reservation::tests::under_a_small_limit", &[]);
}

#[test]
#[ignore = "run by another test in a process of its own, since it limits the address space"]
fn under_a_limit_set_later() {
    let host = Process::start();
    let frames = host.grow(Nid(0), 40).unwrap().frames;
    bytes(frames).fill(3);
    let limit = 600 << 20;
    host.shrink_reservation(limit);
    let used = syscall::address_space_used().unwrap();
    assert!(used < limit, "{} MiB", used >> 20);
    set_address_space(limit);
    assert!(bytes(frames).iter().all(|b| *b == 3));
    assert!(host.meta(frames.start).is_some());
    // SAFETY: an ordinary mapping, unmapped below.
    let room = syscall::map(0, 100 << 20, libc::PROT_NONE).unwrap();
    // SAFETY: mapped above.
    unsafe { syscall::unmap(room, 100 << 20) }.unwrap();
    let more = host.grow(Nid(0), 160).unwrap().frames;
    bytes(more).fill(4);
    let array = flagstone_host::Host::new_array(
        &host,
        flagstone_host::ArrayParams {
            capacity: 64,
            link_offset: 0,
        },
    );
    assert!(array.is_ok());
}

#[test]
fn a_limit_set_later_can_be_honoured() {
    again("process::reservation::tests::under_a_limit_set_later", &[]);
    let nodes = [("FLAGSTONE_FAKE_NODES", "4")];
    again(
        "process::reservation::tests::under_a_limit_set_later",
        &nodes,
    );
}

#[test]
#[ignore = "run by another test in a process of its own, since it uses up range 0"]
fn beyond_range_0() {
    let host = Process::start();
    let all = FAST.frames.load(Ordering::Relaxed);
    let most = host.grow(Nid(0), all - FIRST_FRAMES).unwrap().frames;
    let next = host.grow(Nid(0), 10).unwrap().frames;
    assert!(
        next.start.0 >= most.end().0 + BLOCK_FRAMES || next.end().0 + BLOCK_FRAMES <= most.start.0
    );
    bytes(next).fill(1);
    assert!(host.take(next) && !host.take(next));
    assert!(host.release(next));
    host.tag(next, 5);
    let at = next.start.0 << FRAME_SHIFT;
    assert_eq!((host.tag_at(at), fast::tag_at(at)), (5, 0));
    assert_eq!(host.nid(next.start), Nid(0));
    // Many ranges' worth in one run.
    let large = host.grow(Nid(0), 3 << 20).unwrap().frames;
    assert!(host.meta(large.start).is_some() && host.meta(Pfn(large.end().0 - 1)).is_some());
}

#[test]
fn ranges_follow_when_range_0_is_used_up() {
    again("process::reservation::tests::beyond_range_0", &[]);
}
