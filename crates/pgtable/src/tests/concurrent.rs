//! Many contexts at once: every leaf that was mapped is released once, every table freed, whatever the order.

use super::*;
use crate::format::{Arm64K4, Entry, Level, Ppc64K64, X86_64, X86Pae};
use crate::span::reach_of;
use crate::{Pmd, Pte};
use core::cell::{Cell, RefCell};
use flagstone_host::Grace;
use flagstone_seeded::{Builder, Rng, TaskCtx, for_each_seed, task};
use flagstone_types::{CpuId, VirtAddr};
use std::collections::BTreeMap;

/// Who has each page-sized piece of memory: mapped so often, released so often.
type Ledger = RefCell<BTreeMap<u64, (u32, u32)>>;

struct Releasing<'l, F> {
    ledger: &'l Ledger,
    page: u64,
    format: core::marker::PhantomData<F>,
}

// SAFETY: O1: nothing is owned but lines of a ledger.
unsafe impl<F: Format> Owner for Releasing<'_, F> {
    fn release(&mut self, taken: Taken) {
        let Entry::Leaf(_) = taken.entry else {
            panic!("{taken:?}");
        };
        for n in 0..taken.pages {
            let leaf = taken.leaf::<F>(n).unwrap();
            for m in 0..reach_of::<F>(taken.level) / self.page {
                let mut ledger = self.ledger.borrow_mut();
                ledger
                    .get_mut(&(leaf.at.0 + m * self.page))
                    .expect("was mapped")
                    .1 += 1;
            }
        }
    }
}

struct Work<'w, 'f, 'm, F: Format, const SHIFT: u32> {
    table: &'w PageTable<'f, TestHost<'m, SHIFT>, F>,
    ledger: &'w Ledger,
    next: &'w Cell<u64>,
}

impl<F: Format, const SHIFT: u32> Work<'_, '_, '_, F, SHIFT> {
    fn page() -> u64 {
        reach_of::<F>(Level::PTE)
    }

    fn releasing(&self) -> Releasing<'_, F> {
        Releasing {
            ledger: self.ledger,
            page: Self::page(),
            format: core::marker::PhantomData,
        }
    }

    /// New memory of so many pages, aligned to a huge leaf if it is one.
    fn memory(&self, pages: u64, align: u64) -> u64 {
        let at = self.next.get().next_multiple_of(align);
        self.next.set(at + pages * Self::page());
        at
    }

    fn note_mapped(&self, at: u64, pages: u64) {
        for n in 0..pages {
            self.ledger
                .borrow_mut()
                .entry(at + n * Self::page())
                .or_default()
                .0 += 1;
        }
    }

    fn unnote(&self, at: u64, pages: u64) {
        for n in 0..pages {
            self.ledger
                .borrow_mut()
                .get_mut(&(at + n * Self::page()))
                .unwrap()
                .0 -= 1;
        }
    }

    fn step(&self, rng: &Rng) {
        let ops = self.table.shared();
        let huge = reach_of::<F>(Level::PMD);
        let page = Self::page();
        let per_huge = huge / page;
        let at = rng.below(3) * per_huge as usize
            + if rng.chance(128) {
                0
            } else {
                rng.below(per_huge as usize)
            };
        let pages = if rng.chance(60) {
            per_huge as usize
        } else {
            1 + rng.below(8)
        };
        let range = VirtRange::new(at * page as usize, pages * page as usize);
        match rng.below(12) {
            0 | 1 => {
                let to = self.memory(pages as u64, huge);
                self.note_mapped(to, pages as u64);
                if let Err(stopped) = ops.map::<Pte>(range.start, &leaf(to, RW), pages) {
                    let mapped = stopped.mapped as u64;
                    self.unnote(to + mapped * page, pages as u64 - mapped);
                }
            }
            2 => {
                let to = self.memory(per_huge, huge);
                self.note_mapped(to, per_huge);
                let start = VirtAddr((at as u64 / per_huge * huge) as usize);
                if ops.map::<Pmd>(start, &leaf(to, RW), 1).is_err() {
                    self.unnote(to, per_huge);
                }
            }
            3 | 4 => {
                let mut gather = ops.gather(self.releasing());
                let _ = ops.unmap(range, &mut gather);
                let _ = ops.free_tables(range, &mut gather);
                gather.finish();
            }
            5 => {
                let mut gather = ops.gather(NoOwner {});
                let _ = ops.protect(range, if rng.chance(128) { RO } else { RW }, &mut gather);
                gather.finish();
            }
            6 => {
                let _ = ops.split_at(range.start);
            }
            7 => {
                let start = VirtAddr((at as u64 / per_huge * huge) as usize);
                if rng.chance(128) {
                    let _ = ops.collapse::<Pmd>(start);
                } else {
                    let mut gather = ops.gather(self.releasing());
                    let _ = ops.retract(start, &mut gather);
                    gather.finish();
                }
            }
            8 => {
                let to = self.memory(1, page);
                self.note_mapped(to, 1);
                if ops.map_one::<Pte>(range.start, &leaf(to, RW)).is_err() {
                    self.unnote(to, 1);
                }
            }
            9 => {
                if let Ok(taken) = ops.unmap_one::<Pte>(range.start)
                    && !taken.is_none()
                {
                    self.releasing().release(Taken {
                        at: range.start,
                        level: Level::PTE,
                        entry: taken.decode(),
                        pages: 1,
                    });
                }
            }
            10 => {
                let _ = ops.protect_one::<Pte>(range.start, if rng.chance(128) { RO } else { RW });
                let _ = ops.physical(range.start);
            }
            _ => {
                let _ = ops.lookup(range.start).unwrap();
                ops.walk(range, |found| {
                    assert!(!matches!(found.entry, Entry::Bad(_)), "{found:?}")
                })
                .unwrap();
            }
        }
        self.table.host.poll();
    }
}

fn storm<F: Format, const SHIFT: u32>(seeds: u64) {
    for_each_seed(seeds, |seed| {
        let machine = Builder::<SHIFT, 6>::new()
            .seed(seed)
            .cpus(4)
            .memory(if SHIFT == 12 { 384 } else { 128 })
            .build();
        let unit = Unit::new(ALL);
        let host = TestHost {
            machine: &machine,
            unit: &unit,
        };
        let frames = Frames::new(host).unwrap();
        frames.set_min_free(Some(0));
        frames.drain_page_lists();
        let free = frames.free_count(flagstone_types::Nid(0));
        let table = PageTable::<_, F>::new(&frames, params()).unwrap();
        table.enter(CpuId(0));
        let (ledger, next) = (Ledger::default(), Cell::new(0));
        let work = Work {
            table: &table,
            ledger: &ledger,
            next: &next,
        };
        let tasks = (0..4u64).map(|n| {
            let work = &work;
            task(move |_: &TaskCtx<'_>| {
                let rng = Rng::new(seed ^ n << 56 ^ 0x9e37);
                for _ in 0..12 {
                    work.step(&rng);
                }
            })
        });
        machine.run(tasks.collect());
        let ops = table.shared();
        let all = VirtRange::new(0, 4 * reach_of::<F>(Level::PMD) as usize);
        let mut gather = ops.gather(work.releasing());
        ops.unmap(all, &mut gather).unwrap();
        ops.free_tables(all, &mut gather).unwrap();
        gather.finish();
        assert_eq!(table.table_count(), 1);
        for (at, (mapped, released)) in ledger.borrow().iter() {
            assert_eq!(mapped, released, "memory at {at:#x}");
        }
        // SAFETY: T6: there is no unit.
        unsafe { table.leave(CpuId(0)) };
        drop(table);
        frames.drain_page_lists();
        assert_eq!(
            frames.free_count(flagstone_types::Nid(0)),
            free,
            "pages were lost"
        );
        frames.validate().unwrap();
    });
}

#[test]
fn contexts_that_work_on_the_same_tables_lose_nothing() {
    storm::<X86_64, 12>(200);
}

#[test]
fn contexts_lose_nothing_where_entries_are_halves() {
    storm::<X86Pae, 12>(100);
}

#[test]
fn contexts_lose_nothing_where_entries_are_broken_first() {
    storm::<Arm64K4, 12>(100);
}

#[test]
fn contexts_lose_nothing_where_tables_share_pages() {
    storm::<Ppc64K64, 16>(100);
}
