//! Records of device memory that are mapped page by page.

use flagstone_host::{MemmapAccess, PageMap, PhysMem, VirtualMemmap};
use flagstone_seeded::{Builder, Call, Fault, Machine};
use flagstone_types::{AllocError, Nid, Order, Pfn, PfnRange};
use std::panic::{AssertUnwindSafe, catch_unwind};

type Small = Machine<12, 6>;

fn machine() -> Small {
    Builder::<12, 6>::new()
        .device(Nid(0), 256, Order::new(8).unwrap())
        .build()
}

/// The device's frames, and frames of ordinary memory to be behind records.
fn places(machine: &Small) -> (PfnRange, Pfn) {
    let mut first = None;
    machine.boot_ranges(&mut |range| first = first.or(Some(range.frames.start)));
    (machine.device_ranges()[0], first.unwrap())
}

fn piece(device: PfnRange, first: usize, pages: usize) -> PfnRange {
    PfnRange::new(device.start.add(first), pages)
}

/// Maps the records of the device: own, then a shared page three times. Shows them.
fn map(host: &Small) -> (PfnRange, Pfn) {
    let (device, behind) = places(host);
    // SAFETY: V3: the frames are the test's, and zero.
    unsafe {
        host.map_memmap(piece(device, 0, 64), behind, MemmapAccess::Own)
            .unwrap();
        host.map_memmap(piece(device, 64, 192), behind.add(1), MemmapAccess::Shared)
            .unwrap();
        host.show_memmap(device);
    }
    (device, behind)
}

fn violates(text: &str, f: impl FnOnce()) {
    let panic = catch_unwind(AssertUnwindSafe(f)).expect_err("a violation");
    let message = panic.downcast_ref::<String>().expect("a message");
    assert!(message.contains(text), "{message}");
}

#[test]
fn a_look_at_a_record_goes_through_the_mapping() {
    let machine = machine();
    let host = &machine;
    let (device, behind) = places(host);
    assert_eq!(host.meta(device.start), None);
    assert_eq!(host.device_node(device), Some(Nid(0)));
    assert_eq!(host.device_node(PfnRange::new(device.start, 257)), None);
    assert_eq!(host.device_node(PfnRange::new(behind, 64)), None);
    map(host);
    assert_eq!(machine.mapped_memmap(), (4, 2));
    let record = |n: usize| host.meta(device.start.add(n)).unwrap();
    let at = |pfn: Pfn, n: usize| host.frame_ptr(pfn).addr().get() + n * 64;
    assert_eq!(record(5).addr().get(), at(behind, 5));
    for first in [64, 128, 192] {
        assert_eq!(record(first + 7).addr().get(), at(behind.add(1), 7));
        assert_eq!(
            host.memmap_backing(device.start.add(first)),
            Some(behind.add(1))
        );
    }
    let frame = host.frame_ptr(device.start.add(9));
    assert_eq!(host.pfn_of(frame.addr().get()), Some(device.start.add(9)));
    host.hide_memmap(device);
    assert_eq!(
        (host.meta(device.start), host.pfn_of(frame.addr().get())),
        (None, None)
    );
    // SAFETY: V4: hidden, and no address is used any more.
    unsafe { host.unmap_memmap(device) };
    assert_eq!(machine.mapped_memmap(), (0, 0));
    machine.check_memory().unwrap();
}

#[test]
fn a_write_to_a_shared_record_is_found() {
    let machine = machine();
    let host = &machine;
    let (device, behind) = map(host);
    let write = |n: usize, byte: u8| {
        // SAFETY: the byte is there; that it may not be written is what the test is about.
        unsafe { host.meta(device.start.add(n)).unwrap().write(byte) };
    };
    // The frames were given to nobody: take them, as their owner would have.
    flagstone_host::Backing::take(&host, PfnRange::new(behind, 2));
    write(3, 1);
    machine.check_memory().unwrap();
    write(130, 1);
    let error = machine.check_memory().unwrap_err();
    assert!(error.contains("read only"), "{error}");
    host.hide_memmap(device);
    // SAFETY: V4.
    violates("read only", || unsafe { host.unmap_memmap(device) });
    write_back(host, behind.add(1));
}

/// Makes the first record in `frame` what it was, so that the machine can be dropped.
fn write_back(host: &Small, frame: Pfn) {
    // SAFETY: the frame is the test's.
    unsafe { host.frame_ptr(frame).add(2 * 64).write(0) };
    host.check_memory().unwrap();
}

#[test]
fn what_is_mapped_is_not_mapped_again_and_a_refusal_changes_nothing() {
    let machine = machine();
    let host = &machine;
    let (device, behind) = places(host);
    let map = |first, pages| {
        let frames = piece(device, first, pages);
        // SAFETY: V3: the frame is the test's.
        unsafe { host.map_memmap(frames, behind, MemmapAccess::Own) }
    };
    machine.inject(Call::MapMemmap, Fault::Nth(1));
    assert_eq!(map(0, 256), Err(AllocError::OutOfMemory));
    assert_eq!(machine.mapped_memmap(), (0, 0));
    assert_eq!(map(128, 64), Ok(()));
    assert_eq!(map(0, 256), Err(AllocError::Exists));
    assert_eq!(machine.mapped_memmap(), (1, 1));
}

#[test]
fn wrong_use_of_the_mapping_is_a_violation() {
    let machine = machine();
    let host = &machine;
    let (device, behind) = places(host);
    let half = piece(device, 32, 64);
    // SAFETY: none; what is wrong is found before anything happens.
    violates("whole memmap pages", || unsafe {
        let _ = host.map_memmap(half, behind, MemmapAccess::Own);
    });
    // SAFETY: none, as above.
    violates("are not mapped", || unsafe { host.show_memmap(device) });
    violates("are not mapped", || host.hide_memmap(device));
    // SAFETY: none, as above.
    violates("are not mapped", || unsafe { host.unmap_memmap(device) });
    map(host);
    // SAFETY: none, as above.
    violates("are not hidden", || unsafe { host.unmap_memmap(device) });
    assert_eq!(machine.mapped_memmap(), (4, 2));
}
