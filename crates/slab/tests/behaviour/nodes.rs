//! Where objects come from and where they go home to: nodes, zones, lists of the page allocator.

use super::*;

#[test]
fn objects_that_are_freed_on_another_node_go_home() {
    let machine = Machine::builder().cpus(2).nodes(2).build();
    let caches = ledger::boot(&machine, Flavour::Linux.policy());
    let handle = caches
        .create(&CacheParams::new("travellers", 64, 64))
        .unwrap();
    let all: Vec<_> = (0..60).map(|_| alloc(caches, &handle)).collect();
    machine.set_cpu(CpuId(1));
    for object in &all {
        free(caches, &handle, *object);
        ledger::validate(caches);
    }
    assert_eq!((&machine).counted(Event::SlabRemoteFree), 60);
    // Twelve wait here; each time one more comes, all go home.
    assert_eq!((&machine).counted(Event::SlabAlienFlush), 60 / 13 * 12);
    assert_eq!(caches.info(&handle).used_objects(), 0);
    let here = alloc(caches, &handle);
    let nid = |o: NonNull<u8>| {
        let host = &machine;
        host.nid(flagstone_host::PhysMem::pfn_of(&host, o.as_ptr().addr()).unwrap())
    };
    assert_eq!(
        nid(here),
        Nid(1),
        "those of the other node are not handed out here"
    );
    free(caches, &handle, here);
    machine.set_cpu(CpuId(0));
    let slabs = caches.info(&handle).slabs;
    for _ in 0..40 {
        assert_eq!(nid(alloc(caches, &handle)), Nid(0));
    }
    assert_eq!(
        caches.info(&handle).slabs,
        slabs,
        "they are used again at home"
    );
}

#[test]
fn one_node_has_no_alien_caches() {
    let machine = Machine::builder().cpus(4).nodes(1).build();
    let caches = ledger::boot(&machine, Flavour::Linux.policy());
    let before = ledger::used_pages(caches);
    let handle = caches.create(&CacheParams::new("local", 64, 64)).unwrap();
    let object = alloc(caches, &handle);
    machine.set_cpu(CpuId(3));
    free(caches, &handle, object);
    assert_eq!((&machine).counted(Event::SlabRemoteFree), 0);
    caches.destroy(handle).unwrap();
    ledger::expect_nothing_left(caches, before, false, false);
}

#[test]
fn slab_pages_stay_unmovable_whatever_the_request_says() {
    let machine = machine();
    let caches = ledger::boot(&machine, Flavour::Linux.policy());
    let handle = caches.create(&CacheParams::new("fixed", 64, 8)).unwrap();
    let object = caches.alloc(&handle, Gfp::HIGHUSER_MOVABLE).unwrap();
    let (_, page) = caches
        .frames()
        .page_of_address(object.as_ptr().addr())
        .unwrap();
    assert_eq!(page.migrate_type(), flagstone_types::MigrateType::Unmovable);
    let mut params = CacheParams::new("reclaimable", 64, 8);
    params.flags.reclaimable = true;
    let handle = caches.create(&params).unwrap();
    let object = alloc(caches, &handle);
    let (_, page) = caches
        .frames()
        .page_of_address(object.as_ptr().addr())
        .unwrap();
    assert_eq!(
        page.migrate_type(),
        flagstone_types::MigrateType::Reclaimable
    );
}

#[test]
fn dma_objects_come_from_the_dma_zone() {
    let machine = Machine::builder()
        .cpus(1)
        .zone(Nid(0), flagstone_types::Zone::Dma, 64)
        .zone(Nid(0), flagstone_types::Zone::Normal, 128)
        .build();
    let caches = ledger::boot(&machine, Flavour::Linux.policy());
    let mut params = CacheParams::new("dma", 64, 8);
    params.flags.dma = true;
    let handle = caches.create(&params).unwrap();
    let zone = |object: NonNull<u8>| {
        let (_, page) = caches
            .frames()
            .page_of_address(object.as_ptr().addr())
            .unwrap();
        page.zone()
    };
    assert_eq!(zone(alloc(caches, &handle)), flagstone_types::Zone::Dma);
    // The zone is the cache's to say, not the request's.
    let plain = caches.create(&CacheParams::new("plain", 72, 8)).unwrap();
    let object = caches.alloc(&plain, Gfp::KERNEL | Gfp::DMA).unwrap();
    assert_eq!(zone(object), flagstone_types::Zone::Normal);
    let object = caches.kmalloc(20_000, Gfp::KERNEL | Gfp::DMA).unwrap();
    assert_eq!(zone(object), flagstone_types::Zone::Dma);
}

#[test]
fn kmalloc_has_sets_of_classes_for_devices_and_for_shrinkers() {
    let machine = Machine::builder()
        .cpus(1)
        .zone(Nid(0), flagstone_types::Zone::Dma, 128)
        .zone(Nid(0), flagstone_types::Zone::Normal, 128)
        .build();
    let caches = ledger::boot(&machine, Flavour::Linux.policy());
    let page = |gfp: Gfp| {
        let object = caches.kmalloc(100, gfp).unwrap();
        let (_, page) = caches
            .frames()
            .page_of_address(object.as_ptr().addr())
            .unwrap();
        let found = (page.zone(), page.migrate_type(), page.kind());
        assert!(caches.ksize(object).unwrap() >= 100);
        // SAFETY: the test owns it.
        unsafe { caches.kfree(object) };
        found
    };
    use flagstone_types::{MigrateType, Zone};
    let ordinary = (Zone::Normal, MigrateType::Unmovable, PageKind::Slab);
    let (dma, reclaimable) = (Gfp::KERNEL | Gfp::DMA, Gfp::KERNEL | Gfp::RECLAIMABLE);
    assert_eq!(page(Gfp::KERNEL), ordinary);
    assert_eq!(page(reclaimable), ordinary);
    assert_eq!(page(dma).0, Zone::Dma);
    assert_eq!(page(dma).2, PageKind::Large);
    for set in [KmallocSet::Dma, KmallocSet::Reclaimable] {
        machine.inject(Call::NewArray, Fault::Nth(3));
        assert_eq!(caches.make_kmalloc_set(set), Err(AllocError::OutOfMemory));
        caches.make_kmalloc_set(set).unwrap();
        caches.make_kmalloc_set(set).unwrap();
    }
    let mut names = Vec::new();
    caches.slabinfo(|info| names.push(info.name().to_owned()));
    assert_eq!(names.len(), 3 * flagstone_slab::KERNEL_CLASSES.len() + 1);
    assert!(names.contains(&"dma-kmalloc-192".to_owned()));
    assert!(names.contains(&"kmalloc-rcl-8".to_owned()));
    assert_eq!(page(Gfp::KERNEL), ordinary);
    assert_eq!(
        page(dma | Gfp::RECLAIMABLE),
        (Zone::Dma, MigrateType::Unmovable, PageKind::Slab)
    );
    assert_eq!(
        page(reclaimable),
        (Zone::Normal, MigrateType::Reclaimable, PageKind::Slab)
    );
    ledger::validate(caches);
}
