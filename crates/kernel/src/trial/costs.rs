//! What operations on page tables cost a page, as the time-stamp counter says: in guest instructions where an emulator counts those instead of time. Finds
//! nothing wrong; runs only if the command line asks for it. One line of JSON for each form and number of pages.
//!
//! The least of several rounds counts. Entries that map pages have tables above them already, as in use: those are made before and stay.

use super::spaces::{Change, change, map};
use crate::clock;
use crate::kernel::Kernel;
use crate::space::{self, ForFormat, Running};
use flagstone_pgtable::format::{Access, Leaf, Marks};
use flagstone_pgtable::{Mode, NotOwned, Ops, Pte, VirtRange};
use flagstone_types::{PhysAddr, VirtAddr};

const PLACE: usize = 0x12_4000_0000;
const PAGE: usize = 4096;
const ROUNDS: usize = 40;

/// Of one number of pages in one form: what all of its pages cost together, at least.
#[derive(Clone, Copy, Debug)]
struct Costs {
    map: u64,
    walk: u64,
    lookup: u64,
    protect: u64,
    unmap: u64,
}

/// Ticks that `work` takes, less those of asking.
#[inline(always)]
fn ticks(work: impl FnOnce()) -> u64 {
    let start = clock::ticks();
    let empty = clock::ticks() - start;
    let start = clock::ticks();
    work();
    (clock::ticks() - start).saturating_sub(empty)
}

#[inline(never)]
fn measure<F: Running, M: Mode>(ops: &Ops<'_, 'static, Kernel, F, M>, pages: usize) -> Costs {
    let range = VirtRange::new(PLACE, pages * PAGE);
    // Memory that is somebody's, and is not touched here.
    let leaf = Leaf::kernel(PhysAddr(0), Access::READ | Access::WRITE | Access::USER)
        .mark(Marks::SPECIAL | Marks::YOUNG | Marks::DIRTY);
    let mut least = Costs {
        map: u64::MAX,
        walk: u64::MAX,
        lookup: u64::MAX,
        protect: u64::MAX,
        unmap: u64::MAX,
    };
    for _ in 0..ROUNDS {
        let took = ticks(|| {
            ops.map::<Pte>(VirtAddr(PLACE), &leaf, pages)
                .expect("there are tables");
        });
        least.map = least.map.min(took);
        let mut seen = 0;
        let took = ticks(|| {
            ops.walk(range, |_| seen += 1).expect("a good range");
        });
        least.walk = least.walk.min(took);
        assert_eq!(seen, pages);
        let took = ticks(|| {
            for n in 0..pages {
                let found = ops
                    .lookup(VirtAddr(PLACE + n * PAGE))
                    .expect("a good address");
                core::hint::black_box(found);
            }
        });
        least.lookup = least.lookup.min(took);
        let took = ticks(|| {
            let mut gather = ops.gather(NotOwned);
            ops.protect(range, Access::READ | Access::USER, &mut gather)
                .expect("mapped");
            gather.finish();
        });
        least.protect = least.protect.min(took);
        let took = ticks(|| {
            let mut gather = ops.gather(NotOwned);
            ops.unmap(range, &mut gather).expect("mapped");
            gather.finish();
        });
        least.unmap = least.unmap.min(took);
    }
    least
}

/// Says what it costs a page, in tenths.
fn report<F: Running>(form: &str, is_active: bool, pages: usize, costs: Costs) {
    let each = |sum: u64| {
        let tenths = sum * 10 / pages as u64;
        (tenths / 10, tenths % 10)
    };
    let [map, walk, lookup, protect, unmap] = [
        costs.map,
        costs.walk,
        costs.lookup,
        costs.protect,
        costs.unmap,
    ]
    .map(each);
    super::say!(
        "{{\"costs\":\"pgtable\",\"unit\":\"ticks per page\",\"format\":\"{}\",\"form\":\"{form}\",\"active\":{is_active},\"pages\":{pages},\
         \"map\":{}.{},\"walk\":{}.{},\"lookup\":{}.{},\"protect\":{}.{},\"unmap\":{}.{}}}",
        F::NAME,
        map.0,
        map.1,
        walk.0,
        walk.1,
        lookup.0,
        lookup.1,
        protect.0,
        protect.1,
        unmap.0,
        unmap.1
    );
}

struct All;

impl ForFormat for All {
    fn run<F: Running>(self) {
        let mut own = space::new_space::<F>().expect("memory for a root");
        // The tables are made by a page that is taken out again.
        let frame = super::spaces::frame(0, 0);
        map::<F, _, Pte>(&own.shared(), VirtAddr(PLACE), &[frame]);
        let gone = Change {
            unmap: true,
            ..Change::default()
        };
        let page = VirtRange::new(PLACE, PAGE);
        change(&own.shared(), page, gone, &mut || {});
        for is_active in [false, true] {
            if is_active {
                space::enter(&own);
            }
            for pages in [1, 16, 512] {
                let costs = measure(&own.shared(), pages);
                report::<F>("shared", is_active, pages, costs);
                let costs = measure(&own.exclusive(), pages);
                report::<F>("exclusive", is_active, pages, costs);
            }
        }
        space::leave(&own);
    }
}

pub(super) fn run() {
    super::set_timers(0);
    space::for_running(All);
    super::set_timers(super::TIMER_PERIOD);
}
