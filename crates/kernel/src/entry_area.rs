//! What a CPU needs to enter the kernel: descriptors, task state and stacks for interrupts, mapped at a random place of a region that is for
//! nothing else (E1 to E3).
//!
//! ```text
//!   region:  gates │ …… area of CPU 2 …… area of CPU 0 ……………… area of CPU 1 …… │   512 GiB, areas at random slots
//!   area:    descriptors │ – │ stack │ – │ stack │ – │ stack │ – │ first stack │ –       – is a page that is not mapped
//! ```
//!
//! Who learns an address of one CPU's area has not learned those of others, nor where the kernel's other memory is. Gates and
//! descriptors can not be written through it.

use core::alloc::Layout;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::descriptors::{self, Descriptors, STACK, STACKS};
use crate::direct;
use crate::interrupts::IrqGuard;
use crate::kernel::Kernel;
use crate::layout::{ENTRY_AREAS, IMAGE, SPAN};
use crate::per_cpu::{Area, MOST_CPUS};
use flagstone_host::{Entropy, PageMap};
use flagstone_pgtable::format::Access;
use flagstone_types::{AllocError, PhysAddr};

const PAGE: usize = 4096;
/// Bytes of the stack that is entered on without a stack of the table.
const FIRST_STACK: usize = PAGE;
/// From the start of an area: the stacks of the table, then the first one, each behind a page that is not mapped.
const STACKS_AT: usize = 2 * PAGE;
const FIRST_STACK_AT: usize = STACKS_AT + STACKS * (STACK + PAGE);
/// Bytes of an area, the page behind it included.
pub(crate) const AREA: usize = FIRST_STACK_AT + FIRST_STACK + PAGE;
/// Areas begin at multiples of this.
const SLOT: usize = AREA.next_power_of_two();
/// Bytes of the boot pool for the descriptors and the first stack of a CPU.
pub(crate) const POOL_BYTES: usize = PAGE + FIRST_STACK;

/// Where the areas are, by CPU; 0 where there is none.
static PLACES: [AtomicU64; MOST_CPUS] = [const { AtomicU64::new(0) }; MOST_CPUS];

/// Where a CPU's area is.
pub(crate) fn place(cpu: usize) -> usize {
    PLACES[cpu].load(Ordering::Relaxed) as usize
}

/// A slot that is not taken, by `random`; the first slot of the region is the gates'.
fn choose(mut random: impl FnMut() -> u64, is_taken: impl Fn(usize) -> bool) -> usize {
    const SLOTS: u64 = (SPAN / SLOT) as u64;
    loop {
        // With few CPUs in millions of slots this seldom goes round twice.
        let slot = 1 + random() % (SLOTS - 1);
        let place = ENTRY_AREAS + slot as usize * SLOT;
        if !is_taken(place) {
            return place;
        }
    }
}

/// Chooses a place for the area of every CPU, makes its descriptors, and tells `map` each page of the region: where, which frame, what may be
/// done. Called once by the first CPU.
///
/// # Errors
/// What `map` says, or that the boot pool is empty.
pub(crate) fn map<E: From<AllocError>>(
    mut map: impl FnMut(usize, PhysAddr, Access) -> Result<(), E>,
) -> Result<(), E> {
    let gates = descriptors::gates_address() - IMAGE;
    map(ENTRY_AREAS, PhysAddr(gates as u64), Access::READ)?;
    for area in Area::all() {
        let cpu = area.id.index();
        let at = choose(
            || Kernel.random(),
            |at| (0..cpu).any(|other| place(other) == at),
        );
        let page = Layout::from_size_align(PAGE, PAGE).map_err(|_| AllocError::InvalidArgument)?;
        let descriptors = Kernel.boot_alloc(page)?.cast::<Descriptors>();
        let first = Kernel.boot_alloc(page)?;
        // SAFETY: P3: only addresses of stacks are read, which are constant since the area was made.
        let old = unsafe { &*area.descriptors.get() };
        let mut new = Descriptors::new();
        for n in 0..STACKS {
            let start = at + STACKS_AT + n * (STACK + PAGE);
            new.set_stack(n, start + STACK);
            let frames = old.stack_end(n) - STACK - direct::DIRECT;
            for offset in (0..STACK).step_by(PAGE) {
                let frame = PhysAddr((frames + offset) as u64);
                map(start + offset, frame, Access::READ | Access::WRITE)?;
            }
        }
        new.set_first_stack(at + FIRST_STACK_AT + FIRST_STACK);
        new.set_task(at);
        // SAFETY: a page of ours, aligned.
        unsafe { descriptors.write(new) };
        let of = |pointer| PhysAddr(direct::physical(pointer));
        map(at, of(descriptors.cast()), Access::READ)?;
        let first_at = at + FIRST_STACK_AT;
        map(first_at, of(first), Access::READ | Access::WRITE)?;
        area.entry.store(descriptors.as_ptr(), Ordering::Relaxed);
        PLACES[cpu].store(at as u64, Ordering::Relaxed);
    }
    Ok(())
}

/// Makes a CPU use its area.
///
/// # Safety
/// Once, on that CPU, when the table that is active has what [`map`] told.
pub(crate) unsafe fn enter(area: &'static Area) {
    let _guard = IrqGuard::new();
    let descriptors = area.entry.load(Ordering::Relaxed);
    // SAFETY: E1, E2: made by `map` for this CPU; both addresses are of the same page.
    unsafe { descriptors::reload(descriptors, place(area.id.index()), ENTRY_AREAS) };
}

/// Offsets of the pages of an area that are not mapped.
pub(crate) fn guards() -> impl Iterator<Item = usize> {
    let behind = |n| STACKS_AT + n * (STACK + PAGE) + STACK;
    let first = [PAGE, FIRST_STACK_AT + FIRST_STACK];
    first.into_iter().chain((0..STACKS).map(behind))
}

/// Offsets of the pages of an area that are mapped: the descriptors, then the lowest page of each stack.
pub(crate) fn pages() -> impl Iterator<Item = usize> {
    let start = |n| STACKS_AT + n * (STACK + PAGE);
    [0, FIRST_STACK_AT]
        .into_iter()
        .chain((0..STACKS).map(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_are_in_the_region_and_do_not_overlap_each_other_or_the_gates() {
        let mut state = 0;
        // Few different numbers, so that slots are drawn twice.
        let mut random = || {
            state = crate::services::mix(state + 1);
            state % 20
        };
        let mut taken = [0; 16];
        for n in 0..taken.len() {
            let place = choose(&mut random, |at| taken.contains(&at));
            assert!(place >= ENTRY_AREAS + PAGE && place + AREA <= ENTRY_AREAS + SPAN);
            for &other in &taken[..n] {
                assert!(place >= other + AREA || other >= place + AREA);
            }
            taken[n] = place;
        }
    }

    #[test]
    fn the_last_slot_ends_with_the_region() {
        let place = choose(|| (SPAN / SLOT - 2) as u64, |_| false);
        assert_eq!(place + SLOT, ENTRY_AREAS + SPAN);
    }
}
