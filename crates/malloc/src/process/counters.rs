//! Event counters: one padded set per slot, the slot chosen by the CPU hint, added to atomically since a hint
//! may be wrong.

use core::sync::atomic::{AtomicU64, Ordering};

use flagstone_host::Event;
use flagstone_types::CpuId;

const SLOTS: usize = 32;

#[repr(align(128))]
struct Slot([AtomicU64; Event::COUNT]);

static COUNTERS: [Slot; SLOTS] =
    [const { Slot([const { AtomicU64::new(0) }; Event::COUNT]) }; SLOTS];

pub(super) fn count(cpu: CpuId, event: Event, n: u64) {
    COUNTERS[cpu.index() % SLOTS].0[event.index()].fetch_add(n, Ordering::Relaxed);
}

pub(super) fn counted(event: Event) -> u64 {
    COUNTERS.iter().fold(0, |sum, slot| {
        sum.wrapping_add(slot.0[event.index()].load(Ordering::Relaxed))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_all_slots_add_up() {
        let before = counted(Event::Allocstall);
        for cpu in 0..100 {
            count(CpuId(cpu), Event::Allocstall, 2);
        }
        assert_eq!(counted(Event::Allocstall) - before, 200);
    }
}
