//! The conformance suite of page tables on the running unit: the machine as the suite wants it.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use super::caches;
use crate::access::{self, Fault, try_exec, try_read, try_write};
use crate::kernel::Kernel;
use crate::space::{self, ForFormat, Running};
use crate::{command_line, crew, direct};
use flagstone_conformance::{Outcome, Platform, Refusal, Seen, Table, Touch, Who, cases, run_case};
use flagstone_frames::{Frames, PageBlock};
use flagstone_host::{Clock, Entropy, PageMap};
use flagstone_pgtable::format::Level;
use flagstone_pgtable::{Error, FaultCode};
use flagstone_types::{Gfp, Order, Pfn, PhysAddr, VirtAddr};

/// A multiple of 1 GiB in the half of user mode.
const WINDOW: VirtAddr = VirtAddr(0x12_4000_0000);

/// This machine, with tables in the format that runs.
struct Machine<F>(PhantomData<F>);

type Work<'w> = &'w (dyn Fn(usize) + Sync);
static WORK: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn work(cpu: usize) {
    if cpu < COUNT.load(Ordering::Relaxed) {
        // SAFETY: `run` stored a reference that lives until every CPU has ended.
        let work = unsafe { WORK.load(Ordering::Relaxed).cast::<Work<'_>>().read() };
        work(cpu);
    }
}

/// The order of the block behind a leaf; `None` where there are no such blocks.
fn order_of(level: Level) -> Option<Order> {
    Order::new(9 * (u32::from(level.get()) - 1)).filter(|order| order.get() <= Kernel::MAX_ORDER)
}

fn frame_of(at: PhysAddr) -> Pfn {
    Pfn((at.0 >> 12) as usize)
}

fn refusal(fault: Fault) -> Refusal {
    let code = FaultCode::from_bits_truncate(fault.code);
    if code.contains(FaultCode::PRESENT) {
        Refusal::Denied
    } else {
        Refusal::Missing
    }
}

// SAFETY: conformance P1: blocks of the page allocator are whose they were given to, and are mapped at DIRECT (M1).
unsafe impl<F: Running> Platform for Machine<F> {
    type Host = Kernel;
    type Format = F;

    fn frames(&self) -> &Frames<Kernel> {
        caches().frames()
    }

    fn cpus(&self) -> usize {
        crew::size()
    }

    fn run(&self, count: usize, each: Work<'_>) {
        COUNT.store(count, Ordering::Relaxed);
        let each: *const Work<'_> = &raw const each;
        WORK.store(each.cast_mut().cast(), Ordering::Relaxed);
        crew::run(work);
    }

    fn new_table(&self) -> Result<Table<'_, Self>, Error> {
        space::new_space::<F>()
    }

    fn window(&self) -> VirtAddr {
        WINDOW
    }

    fn enter(&self, table: &Table<'_, Self>) {
        space::enter(table);
    }

    fn leave(&self, table: &Table<'_, Self>) {
        space::leave(table);
    }

    fn touch(&self, at: VirtAddr, who: Who, touch: Touch) -> Result<Seen, Refusal> {
        let who = match who {
            Who::User => access::Who::User,
            Who::Kernel => access::Who::Kernel,
        };
        let word = match touch {
            Touch::Read => try_read(who, at).map(Some),
            // SAFETY: the suite's memory, or nothing is there.
            Touch::Write(value) => unsafe { try_write(who, at, value) }.map(|()| None),
            // SAFETY: the suite's memory begins with a return instruction where it may be executed.
            Touch::Exec => unsafe { try_exec(who, at) }.map(|()| None),
            Touch::Push(_) => return Err(Refusal::Impossible),
        };
        word.map(|word| Seen { at: None, word }).map_err(refusal)
    }

    fn alloc(&self, level: Level) -> Option<PhysAddr> {
        let gfp = Gfp::KERNEL | Gfp::NOWARN;
        let block = caches()
            .frames()
            .alloc_pages(gfp, order_of(level)?, None)
            .ok()?;
        Some(PhysAddr((block.into_raw().0.0 as u64) << 12))
    }

    fn free(&self, at: PhysAddr, level: Level) {
        if let Some(order) = order_of(level) {
            // SAFETY: from `alloc`, once.
            let block = unsafe { PageBlock::from_raw(frame_of(at), order) };
            caches().frames().free_pages(block);
        }
    }

    fn word(&self, at: PhysAddr) -> Option<&AtomicU64> {
        Kernel.meta(frame_of(at))?;
        // SAFETY: M1, M4: memory, mapped; the suite asks for aligned words of what it was given.
        Some(unsafe { direct::pointer(at.0).cast::<AtomicU64>().as_ref() })
    }

    fn random(&self) -> u64 {
        Kernel.random()
    }
}

struct All;

impl ForFormat for All {
    fn run<F: Running>(self) {
        let machine = Machine::<F>(PhantomData);
        let (mut passed, mut skipped) = (0, 0);
        for case in cases() {
            if !command_line::chooses("cases", case.name).unwrap_or(true) {
                continue;
            }
            let start = Kernel.now();
            let outcome = run_case(case.name, &machine).expect("it is in the list");
            let millis = Kernel.now().since(start).0 / 1_000_000;
            match outcome {
                Outcome::Passed => {
                    passed += 1;
                    super::say!("case {}: passed in {millis} ms", case.name);
                }
                Outcome::Skipped(why) => {
                    skipped += 1;
                    super::say!("case {}: skipped, {why}", case.name);
                }
            }
        }
        super::say!("conformance: {passed} cases passed, {skipped} skipped");
    }
}

pub(super) fn run() {
    space::for_running(All);
}
