//! The reports' text.

use super::{GFP, frames, order};
use crate::Frames;
use flagstone_seeded::{Builder, Machine};
use flagstone_types::{Nid, Zone};
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
