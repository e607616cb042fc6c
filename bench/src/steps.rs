//! The stages of the growth path on eight simulated CPUs: how often the lock of a node is taken, how much is done under it,
//! how often somebody has to wait for it.
//!
//! A simulated machine has the kernel's pages of 4 KiB and the published arrays, and any number of CPUs. A step is a call
//! to the host or a part of one. Nothing depends on the machine that this runs on; another seed is another schedule.

use crate::caches::PUBLISHED;
use crate::stages::{self, LIST, RIVAL};
use crate::{Error, Print, STEP_SIZES, Scale};
use core::cell::Cell;
use flagstone_frames::Frames;
use flagstone_host::{Count, Event, LockClass, classes};
use flagstone_seeded::{ArrayForm, Machine, Policy as Schedule, Task, TaskCtx, task};
use flagstone_slab::{CacheParams, Caches, KERNEL_CLASSES, LayoutPolicy, Policy};
use flagstone_types::Gfp;

/// The stages that differ by a switch, and the rival form without and with CPU slabs.
pub(crate) const SUBJECTS: &[&str] = &[
    "before", "+colour", "+refill", "+look", "+release", LIST, RIVAL,
];

const CPUS: usize = 8;
/// Objects on each CPU at most; a simulated machine's memory is memory of this process.
const OBJECTS: usize = 500;
/// Every CPU allocates and frees its objects so often; what was given back in between is made again.
const PASSES: usize = 2;
/// Steps between two switches of the schedule, on average.
const CALM: u32 = 8;

/// `steps/SIZE/locks|steps|waits` of node locks, `…/all-locks` of all, and
/// `…/slabs` that were made, per 1,000 operations.
pub(crate) fn count(subject: &str, scale: &Scale, print: &mut Print<'_>) -> Result<(), Error> {
    let objects = scale.count.min(OBJECTS);
    let form = match subject {
        LIST | RIVAL => ArrayForm::TransactionList,
        _ => ArrayForm::Restartable,
    };
    for &size in STEP_SIZES {
        let pages = (2 * CPUS * objects * size) / 4096 + 1024;
        let machine = Machine::builder()
            .seed(scale.seed)
            .cpus(CPUS)
            .memory(pages.next_multiple_of(64))
            .policy(Schedule::Uniform { mean: CALM })
            .preemption(0)
            .form(form)
            .build();
        let layout = LayoutPolicy {
            min_order: 0,
            max_order: 1,
            min_objects: 1,
            cache_line: 64,
            in_record: false,
            in_object: true,
            zeroed: false,
            tail: 0,
        };
        let policy = Policy {
            layout,
            ..PUBLISHED
        };
        let refused = Error::memory("caches of a simulated machine");
        let frames = Frames::new(&machine).map_err(&refused)?;
        let caches = Caches::boot(frames, policy, KERNEL_CLASSES).map_err(&refused)?;
        stages::switch(caches.improvements(), subject);
        let mut params = CacheParams::new("steps", size, 0);
        params.flags.no_merge = true;
        let cache = caches.create(&params).map_err(&refused)?;
        machine.reset_lock_stats();
        let made_before = (&machine).counted(Event::SlabGrow);

        let arrived = Cell::new(0);
        let failed = Cell::new(None);
        let tasks: Vec<Task<'_>> = (0..CPUS)
            .map(|_| {
                task(|ctx: &TaskCtx<'_>| {
                    let together = |phase: usize| {
                        arrived.set(arrived.get() + 1);
                        while arrived.get() < phase * CPUS {
                            ctx.yield_now();
                        }
                    };
                    let mut mine = Vec::with_capacity(objects);
                    for pass in 0..PASSES {
                        for _ in 0..objects {
                            match caches.alloc(&cache, Gfp::KERNEL) {
                                Ok(object) => mine.push(object),
                                Err(error) => failed.set(Some(error)),
                            }
                        }
                        together(2 * pass + 1);
                        for object in mine.drain(..) {
                            // SAFETY: B2.
                            unsafe { caches.free(&cache, object) };
                        }
                        together(2 * pass + 2);
                    }
                })
            })
            .collect();
        machine.run(tasks);
        if let Some(error) = failed.get() {
            return Err(refused(error));
        }

        let per_thousand = |n: u64| n as f64 * 1000.0 / (2 * PASSES * CPUS * objects) as f64;
        let stats = machine.lock_stats();
        let (mut node, mut all) = ([0; 3], 0);
        for stat in &stats {
            all += stat.acquisitions;
            if stat.rank == classes::SlabNode::RANK {
                node = [stat.acquisitions, stat.steps, stat.contended];
            }
        }
        for (what, n) in ["locks", "steps", "waits"].into_iter().zip(node) {
            print(format!("steps/{size}/{what}"), per_thousand(n));
        }
        print(format!("steps/{size}/all-locks"), per_thousand(all));
        let made = (&machine).counted(Event::SlabGrow) - made_before;
        print(format!("steps/{size}/slabs"), per_thousand(made));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn counted(subject: &str) -> BTreeMap<String, f64> {
        let scale = Scale {
            count: 200,
            ..Scale::DEFAULT
        };
        let mut metrics = BTreeMap::new();
        count(subject, &scale, &mut |metric, value| {
            metrics.insert(metric, value);
        })
        .unwrap();
        metrics
    }

    #[test]
    fn a_seed_counts_the_same_again() {
        assert_eq!(counted("before"), counted("before"));
    }

    #[test]
    fn the_improvements_together_take_fewer_locks_and_do_less_under_them() {
        let (before, after) = (counted("before"), counted("+release"));
        for size in STEP_SIZES {
            for what in ["locks", "steps"] {
                let metric = format!("steps/{size}/{what}");
                assert!(after[&metric] < before[&metric], "{metric}");
            }
        }
    }

    #[test]
    fn slabs_for_each_cpu_take_fewer_locks_of_the_node() {
        let (list, rival) = (counted(LIST), counted(RIVAL));
        for size in STEP_SIZES {
            let metric = format!("steps/{size}/locks");
            assert!(rival[&metric] < list[&metric], "{metric}");
        }
    }
}
