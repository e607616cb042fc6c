//! The reports' text.

use super::{GFP, frames, order};
use crate::Frames;
use flagstone_seeded::{Builder, Machine};
use flagstone_types::{Gfp, Nid, Zone};
use std::string::ToString;

fn two_nodes() -> Machine<12, 10> {
    Builder::<12, 10>::new()
        .cpus(2)
        .nodes(2)
        .zone(Nid(0), Zone::Dma, 1000)
        .zone(Nid(0), Zone::Normal, 4096)
        .zone(Nid(1), Zone::Normal, 2048 + 7)
        .build()
}

#[test]
fn buddyinfo_is_linuxs() {
    let m = two_nodes();
    let f = frames(&m);
    let block = f.alloc_pages(GFP, order(4), Some(Nid(0))).unwrap();
    insta::assert_snapshot!(f.buddyinfo().to_string().replace(" \n", "|\n"), @r"
    Node 0, zone      DMA      0      0      0      1      0      1      1      1      1      1      0|
    Node 0, zone   Normal      0      0      0      0      1      1      1      1      1      1      3|
    Node 1, zone   Normal      1      1      1      0      0      0      0      0      0      0      2|
    ");
    f.free_pages(block);
}

#[test]
fn pagetypeinfo_is_linuxs() {
    let m = two_nodes();
    let f = frames(&m);
    let block = f.alloc_pages(GFP, order(4), Some(Nid(0))).unwrap();
    insta::assert_snapshot!(f.pagetypeinfo().to_string().replace(" \n", "|\n"), @r"
    Page block order: 9
    Pages per block:  512

    Free pages count per migrate type at order       0      1      2      3      4      5      6      7      8      9     10|
    Node    0, zone      DMA, type    Unmovable      0      0      0      0      0      0      0      0      0      0      0|
    Node    0, zone      DMA, type      Movable      0      0      0      1      0      1      1      1      1      1      0|
    Node    0, zone      DMA, type  Reclaimable      0      0      0      0      0      0      0      0      0      0      0|
    Node    0, zone      DMA, type   HighAtomic      0      0      0      0      0      0      0      0      0      0      0|
    Node    0, zone      DMA, type      Isolate      0      0      0      0      0      0      0      0      0      0      0|
    Node    0, zone   Normal, type    Unmovable      0      0      0      0      1      1      1      1      1      1      0|
    Node    0, zone   Normal, type      Movable      0      0      0      0      0      0      0      0      0      0      3|
    Node    0, zone   Normal, type  Reclaimable      0      0      0      0      0      0      0      0      0      0      0|
    Node    0, zone   Normal, type   HighAtomic      0      0      0      0      0      0      0      0      0      0      0|
    Node    0, zone   Normal, type      Isolate      0      0      0      0      0      0      0      0      0      0      0|
    Node    1, zone   Normal, type    Unmovable      0      0      0      0      0      0      0      0      0      0      0|
    Node    1, zone   Normal, type      Movable      1      1      1      0      0      0      0      0      0      0      2|
    Node    1, zone   Normal, type  Reclaimable      0      0      0      0      0      0      0      0      0      0      0|
    Node    1, zone   Normal, type   HighAtomic      0      0      0      0      0      0      0      0      0      0      0|
    Node    1, zone   Normal, type      Isolate      0      0      0      0      0      0      0      0      0      0      0|

    Number of blocks type     Unmovable      Movable  Reclaimable   HighAtomic      Isolate|
    Node 0, zone      DMA            0            2            0            0            0|
    Node 0, zone   Normal            2            6            0            0            0|
    Node 1, zone   Normal            0            5            0            0            0|
    ");
    f.free_pages(block);
}

#[test]
fn zoneinfo_is_linuxs() {
    let m = two_nodes();
    let f = Frames::new(&m).unwrap();
    let block = f.alloc_pages(GFP, order(0), Some(Nid(1))).unwrap();
    insta::assert_snapshot!(f.zoneinfo().to_string(), @r"
    Node 0, zone      DMA
      pages free     1000
            min      23
            low      28
            high     33
            spanned  1000
            present  1000
            managed  1000
            protection: (0, 0, 16, 16, 16)
          nr_free_pages 1000
      pagesets
        cpu: 0
                  count: 0
                  high:  6
                  batch: 1
        cpu: 1
                  count: 0
                  high:  6
                  batch: 1
      start_pfn:           4096
    Node 0, zone   Normal
      pages free     4096
            min      96
            low      120
            high     144
            spanned  4096
            present  4096
            managed  4096
            protection: (0, 0, 0, 0, 0)
          nr_free_pages 4096
      pagesets
        cpu: 0
                  count: 0
                  high:  6
                  batch: 1
        cpu: 1
                  count: 0
                  high:  6
                  batch: 1
      start_pfn:           5120
    Node 1, zone   Normal
      pages free     2054
            min      48
            low      60
            high     72
            spanned  2055
            present  2055
            managed  2055
            protection: (0, 0, 0, 0, 0)
          nr_free_pages 2054
      pagesets
        cpu: 0
                  count: 0
                  high:  6
                  batch: 1
        cpu: 1
                  count: 0
                  high:  6
                  batch: 1
      start_pfn:           10240
    ");
    f.free_pages(block);
}

#[test]
fn a_failure_is_reported_with_what_each_zone_has() {
    let m = two_nodes();
    let f = frames(&m);
    f.set_min_free(Some(64));
    m.set_backtrace(&[0xffff_ffff_8110_1234]);
    let mut hogs = std::vec::Vec::new();
    let quiet = GFP | Gfp::NOWARN | Gfp::THISNODE;
    while let Ok(block) = f.alloc_pages(quiet, order(3), Some(Nid(0))) {
        hogs.push(block);
    }
    assert!(m.messages().is_empty(), "nothing is said of quiet requests");
    f.alloc_pages(GFP | Gfp::THISNODE, order(4), Some(Nid(0)))
        .unwrap_err();
    let lines: std::vec::Vec<_> = m.messages().into_iter().map(|(_, line)| line).collect();
    insta::assert_snapshot!(lines.join("\n"), @r"
    page allocation failure: order:4, mode:0x2040000(__GFP_THISNODE|__GFP_KSWAPD_RECLAIM), node:0
     [<ffffffff81101234>]
    Node 0 DMA free:96kB min:32kB low:40kB high:48kB reserved_highatomic:0kB managed:4000kB free_pcp:0kB
    lowmem_reserve[]: 0 0 16 16 16
    Node 0 DMA: 0*4kB 0*8kB 0*16kB 1*32kB (U) 1*64kB (U) 0*128kB 0*256kB 0*512kB 0*1024kB 0*2048kB 0*4096kB = 96kB
    Node 0 Normal free:160kB min:144kB low:180kB high:216kB reserved_highatomic:0kB managed:16384kB free_pcp:0kB
    lowmem_reserve[]: 0 0 0 0 0
    Node 0 Normal: 0*4kB 0*8kB 0*16kB 1*32kB (U) 0*64kB 1*128kB (U) 0*256kB 0*512kB 0*1024kB 0*2048kB 0*4096kB = 160kB
    Node 1 Normal free:8220kB min:72kB low:88kB high:104kB reserved_highatomic:0kB managed:8220kB free_pcp:0kB
    lowmem_reserve[]: 0 0 0 0 0
    Node 1 Normal: 1*4kB (M) 1*8kB (M) 1*16kB (M) 0*32kB 0*64kB 0*128kB 0*256kB 0*512kB 0*1024kB 0*2048kB 2*4096kB (M) = 8220kB
    ");
    let said = m.messages().len();
    for _ in 0..50 {
        f.alloc_pages(GFP | Gfp::THISNODE, order(4), Some(Nid(0)))
            .unwrap_err();
    }
    assert_eq!(m.messages().len(), 10 * said, "ten reports and no more");
}
