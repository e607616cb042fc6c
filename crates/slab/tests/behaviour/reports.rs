//! What people and tools read.

use super::*;

#[test]
fn layouts_of_the_caches_of_a_kernel_are_counted() {
    let machine = machine();
    let caches = ledger::boot(&machine, Flavour::Linux.policy());
    // Sizes and alignments of caches that kernels have, those with a constructor or type-safe marked.
    let sizes = [
        ("task_struct", 2816, 64, false),
        ("files_cache", 704, 64, false),
        ("signal_cache", 1088, 64, true),
        ("sighand_cache", 2112, 64, true),
        ("mm_struct", 1024, 64, false),
        ("vm_area_struct", 200, 8, false),
        ("anon_vma", 80, 8, true),
        ("anon_vma_chain", 64, 8, false),
        ("dentry", 192, 8, false),
        ("inode_cache", 592, 8, true),
        ("filp", 256, 64, false),
        ("radix_tree_node", 576, 8, true),
        ("buffer_head", 104, 8, false),
        ("bio-0", 192, 64, false),
        ("names_cache", 4096, 64, false),
        ("proc_inode_cache", 648, 8, true),
        ("sock_inode_cache", 640, 64, true),
        ("skbuff_head_cache", 256, 64, false),
        ("TCP", 1984, 64, false),
        ("cred_jar", 192, 64, false),
        ("pid", 128, 64, false),
        ("ext4_inode_cache", 1064, 8, true),
    ];
    let mut handles = Vec::new();
    for (name, size, align, keeps) in sizes {
        let mut params = CacheParams::new(name, size, align);
        params.flags.no_merge = true;
        params.ctor = keeps.then_some(construct as _);
        handles.push(caches.create(&params).unwrap());
    }
    let mut counts = [0; IndexPlace::ALL.len()];
    let mut wasteless = 0;
    // The cache of caches apart, whose objects are as large as our own structures happen to be.
    caches.slabinfo(|info| {
        if info.name() == "kmem_cache" {
            return;
        }
        counts[info.layout.place as usize] += 1;
        wasteless += usize::from(info.layout.waste == 0);
    });
    insta::assert_snapshot!(
        format!("{:?} {wasteless} without waste", IndexPlace::ALL.map(|p| (p.name(), counts[p as usize]))),
        @r#"[("in-object", 24), ("leftover", 8), ("off-slab", 0), ("dedicated", 3), ("in-record", 0)] 14 without waste"#
    );
    assert_eq!(counts.iter().sum::<usize>(), handles.len() + 13);
}

fn info_of_a_known_state() -> Vec<SlabInfo> {
    let machine = Machine::builder().cpus(2).build();
    let caches = ledger::boot(&machine, Flavour::Linux.policy());
    let mut params = CacheParams::new("a \"quoted\" name", 60, 8);
    params.flags.reclaimable = true;
    let handle = caches.create(&params).unwrap();
    let all: Vec<_> = (0..200).map(|_| alloc(caches, &handle)).collect();
    for object in &all[..150] {
        free(caches, &handle, *object);
    }
    let mut infos = Vec::new();
    caches.slabinfo(|info| infos.push(*info));
    infos
}

#[test]
fn slabinfo_reads_as_linux_prints_it() {
    let infos = info_of_a_known_state();
    let mut text = SlabInfo::HEADER.to_owned();
    for info in &infos[..3] {
        text += &format!("\n{info}");
    }
    insta::assert_snapshot!(text, @r#"
    slabinfo - version: 2.1
    # name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> : tunables <limit> <batchcount> <sharedfactor> : slabdata <active_slabs> <num_slabs> <sharedavail>
    a "quoted" name      250    252     64   63    1 : tunables  120   60    8 : slabdata      4      4    120
    kmalloc-8192           0      0   8192    1    2 : tunables    8    4    0 : slabdata      0      0      0
    kmalloc-4096           0      0   4096    1    1 : tunables   24   12    8 : slabdata      0      0      0
    "#);
}

#[test]
fn slabinfo_is_json_too() {
    for info in info_of_a_known_state() {
        let mut text = String::new();
        info.write_json(&mut text).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["name"], info.name());
        assert_eq!(value["num_objs"], info.objects);
        assert_eq!(value["used_objs"], info.used_objects());
        assert_eq!(value["layout"], info.layout.place.name());
        assert_eq!(value["reclaimable"], info.reclaimable);
    }
}

fn text_of(machine: &Machine) -> String {
    let lines: Vec<_> = machine
        .messages()
        .into_iter()
        .map(|(level, line)| format!("{level:?}: {line}"))
        .collect();
    lines.join("\n")
}

#[test]
fn flags_that_make_no_sense_are_reported_with_the_stack_and_fixed() {
    let machine = machine();
    let caches = ledger::boot(&machine, Flavour::Linux.policy());
    let handle = caches.create(&CacheParams::new("flags", 64, 8)).unwrap();
    machine.set_backtrace(&[0xffff_ffff_8110_1234, 0xffff_ffff_8110_5678]);
    caches.alloc(&handle, Gfp::KERNEL | Gfp::HIGHMEM).unwrap();
    let unknown = Gfp::from_bits_retain(0x8000_0000);
    caches
        .alloc_node(
            &handle,
            Gfp::KERNEL | Gfp::DMA32 | Gfp::THISNODE | unknown,
            Nid(0),
        )
        .unwrap();
    insta::assert_snapshot!(text_of(&machine), @r#"
    Warning: Unexpected gfp: 0x2 (__GFP_HIGHMEM). Fixing up to gfp: 0x24000c0 (GFP_KERNEL). Fix your code!
    Warning:  [<ffffffff81101234>]
    Warning:  [<ffffffff81105678>]
    Warning: Unexpected gfp: 0x80000004 (GFP_DMA32|0x80000000). Fixing up to gfp: 0x24400c0 (GFP_KERNEL|__GFP_THISNODE). Fix your code!
    Warning:  [<ffffffff81101234>]
    Warning:  [<ffffffff81105678>]
    "#);
}

#[test]
fn a_lack_of_memory_is_reported_and_not_more_often_than_ten_times_in_five_seconds() {
    let machine = Machine::builder().cpus(2).nodes(2).memory(64).build();
    let caches = ledger::boot(&machine, Flavour::Linux.policy());
    let handle = caches.create(&CacheParams::new("hungry", 3000, 8)).unwrap();
    // All memory but room for four slabs on one node and two on the other.
    let order = handle.layout().order;
    for (nid, slabs) in [(Nid(0), 4), (Nid(1), 2)] {
        let mut hogs = Vec::new();
        let flags = Gfp::KERNEL | Gfp::THISNODE | Gfp::NOWARN;
        while let Ok(block) = caches.frames().alloc_pages(flags, order, Some(nid)) {
            hogs.push(block);
        }
        for block in hogs.drain(..slabs) {
            caches.frames().free_pages(block);
        }
    }
    while caches.alloc(&handle, Gfp::KERNEL | Gfp::NOWARN).is_ok() {}
    assert_eq!(
        text_of(&machine),
        "",
        "nothing is said if nothing is to be said"
    );
    caches.alloc(&handle, Gfp::KERNEL).unwrap_err();
    insta::assert_snapshot!(text_of(&machine), @r#"
    Warning: SLAB: Unable to allocate memory on node 0, gfp=0x24000c0(GFP_KERNEL)
      cache: hungry, object size: 3000, buffer size: 3000, order: 1
    Warning:   node 0: slabs: 4/4, objs: 8/8, free: 0
    Warning:   node 1: slabs: 2/2, objs: 4/4, free: 0
    Warning: page allocation failure: order:1, mode:0x24000c0(GFP_KERNEL), node:0
    Warning: Node 0 Normal free:4kB min:0kB low:0kB high:0kB reserved_highatomic:0kB managed:256kB free_pcp:0kB
    lowmem_reserve[]: 0 0 0 0 0
    Node 0 Normal: 1*4kB (U) 0*8kB 0*16kB 0*32kB 0*64kB 0*128kB 0*256kB = 4kB
    Warning: Node 1 Normal free:0kB min:0kB low:0kB high:0kB reserved_highatomic:0kB managed:256kB free_pcp:0kB
    lowmem_reserve[]: 0 0 0 0 0
    Node 1 Normal: 0*4kB 0*8kB 0*16kB 0*32kB 0*64kB 0*128kB 0*256kB = 0kB
    "#);
    for _ in 0..50 {
        caches.alloc(&handle, Gfp::KERNEL).unwrap_err();
    }
    let reports = |m: &Machine| text_of(m).matches("Unable to allocate").count();
    assert_eq!(reports(&machine), 10);
    machine.advance(Nanos(5_100_000_000));
    caches.alloc(&handle, Gfp::KERNEL).unwrap_err();
    assert_eq!(reports(&machine), 11);
}
